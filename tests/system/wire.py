"""A connection that fails: cut, refused, delayed, left half open."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from contextlib import suppress


class Wire:
    """A TCP proxy before the tracker, in a thread of its own, whose faults are set from outside."""

    def __init__(self, port: Callable[[], int]) -> None:
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._generation = 0
        self.refuses = False
        self.delay_s = 0.0
        self._mute: set[int] = set()
        started = threading.Event()
        self.place = ""
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        started.wait()

    def _run(self, started: threading.Event) -> None:
        async def serve() -> None:
            server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
            self.place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            started.set()

        self._loop.create_task(serve())
        self._loop.run_forever()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def cut(self) -> None:
        """Reset all connections."""

        def abort() -> None:
            for writer in self._writers:
                writer.transport.abort()

        self._loop.call_soon_threadsafe(abort)

    def half_open(self) -> None:
        """Let all that is sent on the present connections vanish, for ever; they stay open."""
        self._mute.add(self._generation)
        self._generation += 1

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        generation = self._generation
        if self.refuses:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port())
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, up_writer}
        with suppress(ConnectionError):
            await asyncio.gather(
                self._pump(reader, up_writer, generation), self._pump(up_reader, writer, generation)
            )
        for one in (writer, up_writer):
            self._writers.discard(one)
            one.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, generation: int
    ) -> None:
        while data := await reader.read(1 << 16):
            if self.delay_s:
                await asyncio.sleep(random.uniform(0.0, self.delay_s))
            if generation in self._mute:
                continue
            writer.write(data)
            await writer.drain()
        writer.close()
