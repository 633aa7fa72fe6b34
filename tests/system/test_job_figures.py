"""What jobs cost and survive, in figures: ``make soak`` prints them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil
import pytest
from tunefarm.db.records import Job
from tunefarm.proto.awake import awake_s

pytestmark = pytest.mark.soak
SHAPES = ((8, 8), (16, 4), (32, 2))
TERM_S = 2.0
ATTEMPTS = 3
"""Times are taken anew if a machine that is busy with other things spoilt them."""
STARTED = "SELECT min(created_at) FROM trials"
ENDED = "SELECT updated_at FROM jobs"
LATEST = "SELECT device FROM trials ORDER BY id DESC LIMIT 1"
CANDIDATES = "SELECT count(*) FROM trials WHERE origin != 'final'"


def wall_s(farm: Any, job: Job) -> float:
    """Seconds from a job's first result to its end, on a farm that is up."""
    return run(farm, job)[0]


def run(farm: Any, job: Job) -> tuple[float, float]:
    """The same, and the processor's seconds that the farm took for the job."""
    for role in ("tracker", "worker", "tuner"):
        farm.start(role)
    farm.wait_until(lambda: "of tracker" in farm.logs(), "the tuner")
    before_s = used_s(farm)
    farm.submit(job)
    farm.wait_until(lambda: farm.processes["client"].poll() is not None, "the end of the job")
    worked_s = used_s(farm) - before_s
    farm.close()
    return float(farm.rows(ENDED)[0][0] - farm.rows(STARTED)[0][0]), worked_s


def used_s(farm: Any) -> float:
    """Seconds of the processor that tracker, worker and tuner have had."""
    roles = [psutil.Process(farm.processes[role].pid) for role in ("tracker", "worker", "tuner")]
    return sum(sum(process.cpu_times()[:2]) for process in roles)


def test_the_device_is_busy(new_farm: Callable[..., Any], sim_job: Callable[..., Job]) -> None:
    target, trial_s = "sim -failures=5 -trial-ms=100", 0.1
    share = 0.0
    for attempt in range(ATTEMPTS):
        farm = new_farm(f"busy{attempt}", target=target)
        passed_s = wall_s(farm, sim_job("j", target, 300, SHAPES, patience="0"))
        share = max(share, farm.count_trials() * trial_s / (passed_s + trial_s))
        if share >= 0.9:
            break
    print(f"\nthe device was busy for {share:.1%} of a job's wall time (trials of 100 ms)")
    assert share >= 0.9


def test_the_overhead_of_a_candidate(
    new_farm: Callable[..., Any], sim_job: Callable[..., Job]
) -> None:
    """In time, or in that of the processor where the machine has other things to do."""
    best_s = worked_s = float("inf")
    for attempt in range(ATTEMPTS):
        target = "sim -failures=5"
        farm = new_farm(f"overhead{attempt}", target=target)
        figures = run(farm, sim_job("j", target, 500, SHAPES, patience="0"))
        count = farm.rows(CANDIDATES)[0][0]
        best_s, worked_s = min(best_s, figures[0] / count), min(worked_s, figures[1] / count)
        if best_s <= 0.020:
            break
    print(f"\na candidate costs {1e3 * best_s:.1f} ms beside its build and run, search included, "
          f"and {1e3 * worked_s:.1f} ms of a processor")  # fmt: skip
    assert min(best_s, worked_s) <= 0.020


def test_a_killed_workers_work_goes_to_another(
    new_farm: Callable[..., Any], sim_job: Callable[..., Job]
) -> None:
    target = "sim -failures=0 -trial-ms=100"
    farm = new_farm("farm", target=target, tracker_options=("--lease-term-s", f"{TERM_S}"))
    for role in ("tracker", "worker", "twin", "tuner"):
        farm.start(role)
    with farm.client() as client:
        farm.wait_until(lambda: len(client.devices()) == 2, "two devices")
        worker_of = {device.id: device.worker for device in client.devices()}
        farm.submit(sim_job("j", target, 1000, SHAPES, patience="0"))
        seconds = []
        for _ in range(6):
            before = farm.count_trials()
            farm.wait_until(lambda n=before: farm.count_trials() > n + 3, "trials")
            ((device,),) = farm.rows(LATEST)
            killed_at = awake_s()
            farm.kill(worker_of[device])
            farm.wait_until(lambda d=device: farm.rows(LATEST) != [(d,)], "the other worker")
            seconds.append(awake_s() - killed_at)
            farm.start(worker_of[device])
            farm.wait_until(
                lambda: all(d.state != "offline" for d in client.devices()), "both workers"
            )
    print(
        f"\na killed worker's work was measured elsewhere after {max(seconds):.1f} s at most "
        f"(lease term {TERM_S:.0f} s, {len(seconds)} kills)"
    )
    assert max(seconds) <= TERM_S + 5
