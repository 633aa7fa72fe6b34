"""A thousand simulated workers that come back at once to a tracker on one core."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from tunefarm.db.records import Device, WorkerState
from tunefarm.proto import convert, farm_pb2, farm_pb2_grpc, records_pb2
from tunefarm.proto.connection import FIRST_PAUSE_S, MOST_PAUSE_S
from tunefarm.proto.pauses import SPREAD, Pauses

WORKERS = int(os.environ.get("TUNEFARM_SWARM", "1000"))
SECONDS = 60.0
LEASE_TERM_S = 10.0
LATE_MS = 250.0
_CHANNEL = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
)


@dataclass
class Swarm:
    """Workers with a connection each, and a client that holds and renews a lease of each device."""

    address: str
    token: str
    late_ms: list[tuple[float, float]] = field(default_factory=list)
    renewals_ms: list[tuple[float, float]] = field(default_factory=list)
    answered_at: dict[int, float] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    leased: dict[int, Any] = field(default_factory=dict)
    stopped: bool = False

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token}"),)

    async def work(self, index: int) -> None:
        """What a worker does: one Sync after the other, with a pause after one that failed."""
        device = Device(f"d{index}", "sim", "Sim", "sim", f"w{index}", {"name": f"d{index}"})
        async with grpc.aio.insecure_channel(self.address, options=_CHANNEL) as channel:
            stub: Any = farm_pb2_grpc.WorkerStub(channel)  # type: ignore[no-untyped-call]
            number, pauses = 0, Pauses()
            while not self.stopped:
                number += 1
                wait_s = LEASE_TERM_S / 3 * random.uniform(*SPREAD)
                state = WorkerState(f"w{index}", f"i{index}", number, "0.1", (device,), capacity=16)
                request = convert.worker_state_to_wire(state, wait_s)
                began = time.monotonic()
                try:
                    await stub.Sync(request, timeout=wait_s + 15, metadata=self.metadata)
                except grpc.RpcError:
                    await asyncio.sleep(pauses.after_failure(LEASE_TERM_S / 2))
                    continue
                pauses.after_success()
                now = time.monotonic()
                self.answered_at[index] = now
                self.late_ms.append((now, 1e3 * max(0.0, now - began - wait_s)))

    async def hold(self, index: int, stub: Any) -> None:
        """What a tuner does: a lease, renewed every third of its term."""
        request = farm_pb2.AcquireRequest(
            request_id=f"r{index}",
            client="swarm",
            wait_s=30,
            request=records_pb2.DeviceRequest(target="sim", attributes={"name": f"d{index}"}),
        )
        lease = None
        while lease is None:
            reply = await stub.Acquire(request, timeout=60, metadata=self.metadata)
            lease = reply.lease if reply.HasField("lease") else None
        self.leased[index] = lease
        await asyncio.sleep(random.uniform(0, LEASE_TERM_S / 3))
        pauses = Pauses(FIRST_PAUSE_S)
        while not self.stopped:
            began = time.monotonic()
            wire = farm_pb2.RenewRequest(lease=lease.id, epoch=lease.epoch)
            try:
                await stub.Renew(wire, timeout=15, metadata=self.metadata)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    self.lost.append(f"{lease.id}: {error.details()}")
                    return
                await asyncio.sleep(pauses.after_failure(MOST_PAUSE_S))
                continue
            pauses = Pauses(FIRST_PAUSE_S)
            self.renewals_ms.append((time.monotonic(), 1e3 * (time.monotonic() - began)))
            await asyncio.sleep(LEASE_TERM_S / 3 * random.uniform(*SPREAD))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """All workers at work, then all leases held."""
        async with grpc.aio.insecure_channel(self.address, options=_CHANNEL) as channel:
            stub: Any = farm_pb2_grpc.FarmStub(channel)  # type: ignore[no-untyped-call]
            tasks = [asyncio.create_task(self.work(i)) for i in range(WORKERS)]
            await until(lambda: len(self.answered_at) == WORKERS)
            tasks += [asyncio.create_task(self.hold(i, stub)) for i in range(WORKERS)]
            await until(lambda: len(self.leased) == WORKERS)
            try:
                yield
            finally:
                self.stopped = True
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.05)


def percentile(samples: list[tuple[float, float]], since: float) -> tuple[int, float, float]:
    """(how many, the 99th percentile, the largest) of what was sampled since then."""
    values = np.array([value for at, value in samples if at >= since])
    return len(values), float(np.percentile(values, 99)), float(values.max())


async def storm(tracker: Any, restart: Callable[[], Awaitable[None]]) -> None:
    swarm = Swarm(tracker.address, tracker.token)
    async with swarm.running():
        await asyncio.sleep(SECONDS / 12)  # what the leases stirred up
        began, before_s = time.monotonic(), cpu_seconds(tracker)
        await asyncio.sleep(SECONDS / 6)
        load = (cpu_seconds(tracker) - before_s) / (time.monotonic() - began)
        print(
            f"\nsteady, {WORKERS} workers and leases:", *told(swarm, began), f"{load:.0%} of a core"
        )
        await restart()
        restarted = time.monotonic()
        await until(lambda: min(swarm.answered_at.values()) >= restarted)
        back_s = time.monotonic() - restarted
        print(f"restarted: all back within {back_s:.1f} s; until then", *told(swarm, restarted))
        await asyncio.sleep(max(0.0, restarted + SECONDS - time.monotonic()))
        load = cpu_seconds(tracker) / (time.monotonic() - restarted)
        print(f"in the {SECONDS:.0f} s:", *told(swarm, restarted), f"{load:.0%} of a core")
        print("once they were back:", *told(swarm, restarted + back_s + 1.0))
        assert back_s <= SECONDS
        assert swarm.lost == []
        assert percentile(swarm.late_ms, restarted)[1] <= LATE_MS
        for samples in (swarm.late_ms, swarm.renewals_ms):
            assert percentile(samples, restarted + back_s + 1.0)[1] <= LATE_MS


def cpu_seconds(tracker: Any) -> float:
    """What the tracker's process has used so far."""
    times = psutil.Process(tracker.process.pid).cpu_times()
    return float(times.user + times.system)


def told(swarm: Swarm, since: float) -> list[str]:
    lines = []
    for name, samples in (("heartbeat", swarm.late_ms), ("renewal", swarm.renewals_ms)):
        count, p99, worst = percentile(samples, since)
        lines.append(f"{name} p99 {p99:.0f} ms, largest {worst:.0f} ms ({count});")
    return lines


@pytest.mark.soak
@pytest.mark.parametrize("tracker", ["sqlite"], indirect=True)
def test_a_thousand_workers_come_back_to_a_restarted_tracker(tmp_path: Path, tracker: Any) -> None:
    tracker.kill()
    tracker.options = {"lease_term_s": LEASE_TERM_S, "claim_term_s": LEASE_TERM_S}
    cores = sorted(os.sched_getaffinity(0))

    def start() -> None:
        os.sched_setaffinity(0, {cores[0]})  # of this thread, and of the process that it starts
        tracker.start()

    async def restart() -> None:
        tracker.kill()
        await asyncio.to_thread(start)

    async def run() -> None:
        await asyncio.to_thread(start)
        os.sched_setaffinity(0, {cores[-1]})
        await storm(tracker, restart)

    try:
        asyncio.run(run())
    finally:
        os.sched_setaffinity(0, cores)
    with closing(sqlite3.connect(tracker.database)) as connection:
        query = "SELECT count(*), sum(ended_at IS NULL) FROM leases"
        assert connection.execute(query).fetchone() == (WORKERS, WORKERS)
    print(f"0 of {WORKERS} live leases lost")
