"""How many leases a second trackers lend: acquire, renew and release from many clients."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from tunefarm.db.records import Device, WorkerState
from tunefarm.proto import farm_pb2, farm_pb2_grpc, records_pb2

DATABASES = ("sqlite", "postgresql")
CLIENTS = 32
"""Clients of a process; there are two processes, and as many devices as clients."""
SECONDS = 10.0


@pytest.mark.soak
def test_lease_cycles_a_second(tracker: Any) -> None:
    rate = measured([tracker], tracker.kind)
    assert rate > 10


@pytest.mark.soak
@pytest.mark.parametrize("tracker", ["postgresql"], indirect=True)
def test_lease_cycles_a_second_of_two_trackers(
    tracker: Any, make_tracker: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "second"
    folder.mkdir()
    second = make_tracker(tracker.database, folder).start()
    try:
        assert measured([tracker, second], "two trackers of postgresql") > 10
    finally:
        second.kill()


def measured(trackers: list[Any], name: str) -> float:
    """Print and return lease cycles a second; each tracker has workers and clients of its own."""
    processes = [psutil.Process(tracker.process.pid) for tracker in trackers]
    used_s = [sum(process.cpu_times()[:2]) for process in processes]
    with ExitStack() as rest:
        workers = [
            SilentWorker(rest.enter_context(tracker.client()), f"w{n}")
            for n, tracker in enumerate(trackers)
        ]
        for worker in workers:
            worker.sync(0.0)
        running = [
            subprocess.Popen(
                [sys.executable, __file__, tracker.address, tracker.token],
                stdout=subprocess.PIPE,
            )
            for tracker in (trackers * 2)[:2]
        ]
        while any(process.poll() is None for process in running):
            for worker in workers:
                worker.sync(0.2)
    cycles = sum(int(process.communicate()[0]) for process in running)
    cpu_s = sum(
        sum(process.cpu_times()[:2]) - before
        for process, before in zip(processes, used_s, strict=True)
    )
    print(
        f"\n{name}: {cycles / SECONDS:.0f} lease cycles a second on {os.cpu_count()} CPUs, "
        f"{1e3 * cpu_s / max(cycles, 1):.2f} ms of a tracker's CPU each"
    )
    return cycles / SECONDS


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


async def cycle(farm: Any, metadata: Any, until: float) -> int:
    """Acquire, renew, release, again and again; how often."""
    done = 0
    while time.monotonic() < until:
        request = farm_pb2.AcquireRequest(
            request_id=uuid.uuid4().hex,
            client="c",
            request=records_pb2.DeviceRequest(target="sim"),
            wait_s=10.0,
        )
        lease = (await farm.Acquire(request, metadata=metadata)).lease
        name = {"lease": lease.id, "epoch": lease.epoch}
        await farm.Renew(farm_pb2.RenewRequest(**name), metadata=metadata)
        await farm.Release(farm_pb2.ReleaseRequest(**name), metadata=metadata)
        done += 1
    return done


async def main(address: str, token: str) -> int:
    metadata = (("authorization", f"Bearer {token}"),)
    async with grpc.aio.insecure_channel(address) as channel:
        farm = farm_pb2_grpc.FarmStub(channel)
        until = time.monotonic() + SECONDS
        return sum(await asyncio.gather(*(cycle(farm, metadata, until) for _ in range(CLIENTS))))


if __name__ == "__main__":
    print(asyncio.run(main(sys.argv[1], sys.argv[2])))
