"""A farm in a storm: its processes are killed and frozen, its connections cut, delayed and left
half open, its clocks jump, its disk fills or its database's server dies, while clients write down
what they were promised.

Afterwards the history is checked: no device had two leases, no write of a lease that was over was
taken, and what was acknowledged is in the database, once.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tunefarm.db.records import Job
from tunefarm.proto.client import FarmClient

from tests.system import history
from tests.system.disks import disk_of
from tests.system.storm import LIMIT_S, PROBES, TARGET, PostgresStorm, SqliteStorm, Storm, wait_for

SECONDS = float(os.environ.get("TUNEFARM_FAULT_S", "60"))
SEED = int(os.environ.get("TUNEFARM_FAULT_SEED", time.time_ns() % 10**6))
ROWS = (8, 16, 32)


@pytest.fixture(params=["sqlite", "postgresql"])
def storm(
    request: pytest.FixtureRequest, tmp_path: Path, sim_job: Callable[..., Job]
) -> Iterator[Storm]:
    """A farm that is not started yet, on each kind of database."""
    probed = sim_job("", TARGET, 1, ((4, 4),)).tasks[0].workload
    workload = tmp_path / f"{probed.key}.json"
    workload.write_text(probed.text)
    made: Storm
    if request.param == "postgresql":
        server = request.getfixturevalue("own_postgres")
        made = PostgresStorm(tmp_path, workload, random.Random(SEED), server=server)
        yield made
        return made.close()
    with disk_of(tmp_path / "disk") as disk:
        made = SqliteStorm(tmp_path, workload, random.Random(SEED), disk=disk)
        yield made
        made.close()


@pytest.mark.soak
def test_a_history_of_faults_holds(storm: Storm, sim_job: Callable[..., Job]) -> None:
    jobs: list[Job] = []
    storm.begin()
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        if all(_is_over(storm, job) for job in jobs):
            shapes = tuple((rows, 2 + len(jobs)) for rows in ROWS)  # no earlier trials of them
            jobs.append(_submit(storm, sim_job(uuid.uuid4().hex, TARGET, 90, shapes)))
        storm.trouble()
        time.sleep(storm.dice.uniform(0.0, 2.0))
    for probe in PROBES:
        storm.processes.pop(probe).kill()
    storm.revive()
    wait_for(lambda: all(_is_over(storm, job) for job in jobs), storm)
    lines = history.read_history(storm)
    grants, refused = history.check_leases(lines)
    history.check_terms(storm, lines)
    acknowledged = history.check_trials(storm, lines)
    history.check_jobs(storm, jobs)
    assert grants
    told = ", ".join(f"{count} {name}" for name, count in sorted(storm.faults.items()))
    print(
        f"\n{SECONDS:.0f} s of faults (seed {SEED}: {told}): 0 double leases in {grants} grants, "
        f"0 stale writes taken and {refused} refused, {acknowledged} acknowledged candidates and "
        f"{len(jobs)} jobs kept, none lost or doubled"
    )


def _submit(storm: Storm, job: Job) -> Job:
    with FarmClient.from_rendezvous(storm.through, connect_s=LIMIT_S, patience_s=LIMIT_S) as client:
        return client.submit_job(job)


def _is_over(storm: Storm, job: Job) -> bool:
    states = storm.rows(f"SELECT state FROM jobs WHERE id = '{job.id}'")
    return bool(states) and states[0][0] not in ("queued", "running")
