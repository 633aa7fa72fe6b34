"""How many leases a second trackers lend: acquire, renew and release from many clients.

Clients, tracker and database share the machine. Clients are threads that share a ``FarmClient``, so
that what they ask goes over one stream a process; or each has a stream of its own, as tuners have;
or they call, as those of older releases do. What gRPC takes of calls is told beside: the same
clients calling a server that does nothing.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from tunefarm.db.records import Device, DeviceRequest, WorkerState
from tunefarm.proto import farm_pb2, farm_pb2_grpc, records_pb2
from tunefarm.proto.client import FarmClient
from tunefarm.tracker.options import TrackerOptions

DATABASES = ("sqlite", "postgresql")
WAYS = ("one stream a process", "a stream each", "calls")
CLIENTS = 32
"""Clients of a process; there are two processes, and as many devices as clients."""
SECONDS = 10.0
USUAL = TrackerOptions("")
OPTIONS = {"lease_term_s": USUAL.lease_term_s, "claim_term_s": USUAL.claim_term_s}
"""Of a tracker that is told nothing: terms are how often those of a database tell each other what
they know, and those of the other tests are brief."""


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
def test_lease_cycles_a_second(tracker: Any, way: str) -> None:
    assert measured([tracker], tracker.kind, way) > 10


@pytest.mark.soak
@pytest.mark.parametrize("tracker", ["postgresql"], indirect=True)
def test_lease_cycles_a_second_of_two_trackers(
    tracker: Any, make_tracker: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "second"
    folder.mkdir()
    second = make_tracker(tracker.database, folder, OPTIONS).start()
    try:
        assert measured([tracker, second], "two trackers of postgresql", WAYS[0]) > 10
    finally:
        second.kill()


@pytest.mark.soak
def test_calls_a_second_that_do_nothing() -> None:
    server = subprocess.Popen([sys.executable, __file__, "serve"], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        address = f"127.0.0.1:{int(server.stdout.readline())}"
        used_s = cpu_s(server.pid)
        calls, clients_s = finished([clients_of(address, "", "nothing") for _ in range(2)])
        used_s = cpu_s(server.pid) - used_s
        print(
            f"\ncalls that do nothing: {calls / SECONDS:.0f} a second, for "
            f"{calls / SECONDS / 3:.0f} lease cycles of three calls; "
            f"{1e3 * used_s / calls:.2f} ms of the server's CPU and "
            f"{1e3 * clients_s / calls:.2f} ms of the clients' each"
        )
    finally:
        server.kill()
        server.communicate()
    assert calls > 100


def measured(trackers: list[Any], name: str, way: str) -> float:
    """Print and return lease cycles a second; each tracker has workers and clients of its own."""
    used_s = sum(cpu_s(tracker.process.pid) for tracker in trackers)
    with ExitStack() as rest:
        workers = [
            SilentWorker(rest.enter_context(tracker.client()), f"w{n}")
            for n, tracker in enumerate(trackers)
        ]
        for worker in workers:
            worker.sync(0.0)
        two = (trackers * 2)[:2]
        running = [clients_of(tracker.address, tracker.token, way) for tracker in two]
        while any(process.poll() is None for process in running):
            for worker in workers:
                worker.sync(0.2)
    cycles, clients_s = finished(running)
    used_s = sum(cpu_s(tracker.process.pid) for tracker in trackers) - used_s
    print(
        f"\n{name}, {way}: {cycles / SECONDS:.0f} lease cycles a second on {os.cpu_count()} CPUs, "
        f"{1e3 * used_s / max(cycles, 1):.2f} ms of a tracker's CPU and "
        f"{1e3 * clients_s / max(cycles, 1):.2f} ms of the clients' each"
    )
    return cycles / SECONDS


def cpu_s(pid: int) -> float:
    """What a process has used so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def clients_of(address: str, token: str, way: str) -> subprocess.Popen[bytes]:
    """A process of ``CLIENTS`` clients."""
    command = [sys.executable, __file__, address, token, way]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def finished(processes: list[subprocess.Popen[bytes]]) -> tuple[int, float]:
    """What the clients did, and the CPU seconds that it took them."""
    told = [process.communicate()[0].split() for process in processes]
    return sum(int(done) for done, _ in told), sum(float(used) for _, used in told)


class SilentWorker:
    """A worker that offers devices and gets no work."""

    def __init__(self, farm: Any, name: str) -> None:
        self.farm = farm
        self.name = name
        self.number = 0
        numbers = range(2 * CLIENTS)
        self.devices = tuple(Device(f"{name}-{n}", "sim", "m", "sim", name) for n in numbers)

    def sync(self, wait_s: float) -> None:
        self.number += 1
        self.farm.sync(WorkerState(self.name, "i", self.number, "1", self.devices), wait_s)


async def serve() -> None:
    """Answer a call that does nothing, as a tracker would be called; prints the port."""
    from tunefarm.tracker.server import SERVER_OPTIONS

    server = grpc.aio.server(options=SERVER_OPTIONS)

    async def answer(content: bytes, context: Any) -> bytes:
        return content

    methods = {"Nothing": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Farm", methods),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


# --- clients ------------------------------------------------------------------------------------


def share(address: str, token: str) -> int:
    """Acquire, renew, release, again and again in threads; how often."""
    until = time.monotonic() + SECONDS
    with FarmClient(address, token) as farm, ThreadPoolExecutor(CLIENTS) as threads:

        def run(_: int) -> int:
            done = 0
            while time.monotonic() < until:
                lease = farm.acquire(DeviceRequest("sim"), client="c")
                assert lease is not None
                farm.renew(lease)
                farm.release(lease)
                done += 1
            return done

        return sum(threads.map(run, range(CLIENTS)))


Ask = Callable[..., Awaitable[Any]]


async def each(address: str, token: str, work: Callable[[Any, Any], Awaitable[int]]) -> int:
    """``work`` of every client over one connection; how often it was done."""
    header = (("authorization", f"Bearer {token}"),)
    async with grpc.aio.insecure_channel(address) as channel:
        return sum(await asyncio.gather(*(work(channel, header) for _ in range(CLIENTS))))


async def stream(channel: Any, header: Any) -> int:
    """Cycles over a stream of one's own."""
    talk = farm_pb2_grpc.FarmStub(channel).Leases(metadata=header)  # type: ignore[no-untyped-call]

    async def ask(kind: str, request: Any) -> Any:
        call = farm_pb2.LeaseCall(number=1, **{kind: request})
        await talk.write(farm_pb2.LeaseCalls(calls=[call]))
        return getattr((await talk.read()).answers[0], kind)

    done = await cycles(ask)
    talk.cancel()
    return done


async def call(channel: Any, header: Any) -> int:
    """Cycles of three calls."""
    farm: Any = farm_pb2_grpc.FarmStub(channel)  # type: ignore[no-untyped-call]

    async def ask(kind: str, request: Any) -> Any:
        return await getattr(farm, kind.capitalize())(request, metadata=header)

    return await cycles(ask)


async def cycles(ask: Ask) -> int:
    """Acquire, renew, release, again and again; how often."""
    until, done = time.monotonic() + SECONDS, 0
    while time.monotonic() < until:
        wanted = farm_pb2.AcquireRequest(
            request_id=uuid.uuid4().hex,
            client="c",
            request=records_pb2.DeviceRequest(target="sim"),
            wait_s=10.0,
        )
        lease = (await ask("acquire", wanted)).lease
        name = {"lease": lease.id, "epoch": lease.epoch}
        await ask("renew", farm_pb2.RenewRequest(**name))
        await ask("release", farm_pb2.ReleaseRequest(**name))
        done += 1
    return done


async def do_nothing(channel: Any, header: Any) -> int:
    """Have nothing done, again and again; how often."""
    nothing, done = channel.unary_unary("/test.Farm/Nothing"), 0
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        await nothing(uuid.uuid4().bytes, metadata=header)
        done += 1
    return done


def main(address: str, token: str, way: str) -> str:
    """How often the clients did what they do, and the CPU seconds that it took."""
    used_s = time.process_time()
    if way == WAYS[0]:
        done = share(address, token)
    else:
        work = {WAYS[1]: stream, WAYS[2]: call}.get(way, do_nothing)
        done = asyncio.run(each(address, token, work))
    return f"{done} {time.process_time() - used_s}"


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        asyncio.run(serve())
    else:
        print(main(*sys.argv[1:]))
