"""How many leases a second a tracker lends: acquire, renew and release from many clients."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import uuid
from typing import Any

import grpc
import pytest
from tunefarm.db.records import Device, WorkerState
from tunefarm.proto import farm_pb2, farm_pb2_grpc, records_pb2

DATABASES = ("sqlite", "postgresql")
CLIENTS = 64
PROCESSES = 2
SECONDS = 10.0


@pytest.mark.soak
def test_lease_cycles_a_second(tracker: Any) -> None:
    each = CLIENTS // PROCESSES
    command = [sys.executable, __file__, tracker.address, tracker.token, str(each), str(SECONDS)]
    devices = tuple(Device(f"d{n}", "sim", "m", "sim", "w") for n in range(CLIENTS))
    number = 1
    with tracker.client() as farm:
        farm.sync(WorkerState("w", "i", number, "1", devices), 0.0)
        running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(PROCESSES)]
        while any(process.poll() is None for process in running):
            number += 1
            farm.sync(WorkerState("w", "i", number, "1", devices), 0.2)
    cycles = sum(int(process.communicate()[0]) for process in running)
    rate = cycles / SECONDS
    print(f"\n{tracker.kind}: {rate:.0f} lease cycles a second on {os.cpu_count()} CPUs")
    assert rate >= 50


async def cycle(farm: Any, metadata: Any, until: float) -> int:
    """Acquire, renew, release, again and again; how often."""
    done = 0
    while time.monotonic() < until:
        wanted = records_pb2.DeviceRequest(target="sim")
        request = farm_pb2.AcquireRequest(
            request_id=uuid.uuid4().hex, client="c", request=wanted, wait_s=10.0
        )
        lease = (await farm.Acquire(request, metadata=metadata)).lease
        name = {"lease": lease.id, "epoch": lease.epoch}
        await farm.Renew(farm_pb2.RenewRequest(**name), metadata=metadata)
        await farm.Release(farm_pb2.ReleaseRequest(**name), metadata=metadata)
        done += 1
    return done


async def main(address: str, token: str, clients: int, seconds: float) -> int:
    metadata = (("authorization", f"Bearer {token}"),)
    async with grpc.aio.insecure_channel(address) as channel:
        farm = farm_pb2_grpc.FarmStub(channel)
        until = time.monotonic() + seconds
        return sum(await asyncio.gather(*(cycle(farm, metadata, until) for _ in range(clients))))


if __name__ == "__main__":
    print(asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))))
