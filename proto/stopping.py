"""SIGTERM and SIGINT for processes that wait on locks: workers and tuners."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

NUMBERS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` in a thread of its own on SIGTERM and SIGINT.

    A handler runs in the main thread, which may hold the very lock that ``stop`` takes (that of an
    Event, say), so it only writes to a pipe. Does nothing outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def listen() -> None:
        while os.read(reader, 1):
            stop()

    def tell(*_: object) -> None:
        with suppress(BlockingIOError):  # so many came before that one more says nothing new
            os.write(writer, b"\0")

    listener = threading.Thread(target=listen, name="tunefarm-stop", daemon=True)
    listener.start()
    before = [signal.signal(number, tell) for number in NUMBERS]
    try:
        yield
    finally:
        for number, handler in zip(NUMBERS, before, strict=True):
            signal.signal(number, handler)
        os.close(writer)
        listener.join()
        os.close(reader)
