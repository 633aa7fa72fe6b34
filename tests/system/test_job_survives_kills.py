"""A job whose tracker, worker, tuner and client are killed ends with the database of one that was
left alone."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tunefarm.db.backup import backup, restore
from tunefarm.db.records import Job

ROLES = ("tracker", "worker", "tuner", "client")
SHAPES = ((8, 8), (16, 4), (32, 2))
TRIALS = """
SELECT w.key, t.number, t.config, t.times_s, t.error, t.message, t.origin, t.predicted,
       t.paired_times_s, t.device_model, t.compiler_version, t.space_fingerprint
FROM trials t JOIN workloads w ON w.id = t.workload_id ORDER BY w.key, t.number
"""
BESTS = """
SELECT w.key, b.device_model, b.space_fingerprint, b.compiler_version, t.number, b.median_s,
       b.default_s, b.promoted, b.verdict, b.speedup_over_default
FROM best b JOIN workloads w ON w.id = b.workload_id JOIN trials t ON t.id = b.trial_id
ORDER BY w.key
"""
FINALS = """
SELECT w.key, c.number, i.number, f.verdict, f.speedup, f.speedup_over_default, f.promoted
FROM finals f JOIN trials c ON c.id = f.challenger_id JOIN workloads w ON w.id = c.workload_id
LEFT JOIN trials i ON i.id = f.incumbent_id ORDER BY w.key
"""
COUNTS = """
SELECT w.key, j.ok, j.failed, j.best_s, j.default_s, j.errors
FROM job_tasks j JOIN workloads w ON w.id = j.workload_id ORDER BY w.key
"""
STATES = "SELECT id, state, message FROM jobs"
LEFT = "SELECT count(*) FROM requests"


def outcome(farm: Any) -> dict[str, Sequence[tuple[Any, ...]]]:
    """Everything in the database that a job is about."""
    queries = {"trials": TRIALS, "bests": BESTS, "finals": FINALS, "counts": COUNTS}
    queries |= {"states": STATES, "left": LEFT}
    return {name: farm.rows(query) for name, query in queries.items()}


def run(farm: Any, job: Job, kills: Sequence[str], dice: random.Random) -> None:
    """Run a job to its end, and kill these roles one after another on the way."""
    for role in ("tracker", "worker", "tuner"):
        farm.start(role)
    farm.submit(job)
    gap = max(2, (job.budget.trials - 6) // (len(kills) + 1))
    for number, role in enumerate(kills):
        wanted = number * gap + dice.randint(0, gap - 1)
        farm.wait_until(lambda wanted=wanted: farm.count_trials() >= wanted, f"trial {wanted}")
        time.sleep(dice.uniform(0.0, 0.05))
        before = farm.rows(TRIALS)
        farm.kill(role)
        farm.start(role)
        assert set(before) <= set(farm.rows(TRIALS)), f"the death of the {role} lost trials"
    client = farm.processes["client"]
    farm.wait_until(lambda: client.poll() is not None, "the end of the job")
    assert client.returncode == 0, farm.logs()


def check(new_farm: Callable[..., Any], job: Job, kills: Sequence[str], seed: int) -> None:
    """The final database of a killed run is that of an undisturbed one."""
    alone, killed = new_farm("alone"), new_farm("killed")
    run(alone, job, (), random.Random(seed))
    alone.close()
    wanted = outcome(alone)
    candidates = [row for row in wanted["trials"] if row[6] != "final"]
    assert len(candidates) == job.budget.trials
    assert wanted["states"] == [(job.id, "succeeded", "")]
    assert all(promoted for *_, promoted, _, _ in wanted["bests"])
    run(killed, job, kills, random.Random(seed))
    found = outcome(killed)
    for name, rows in wanted.items():
        assert found[name] == rows, f"{name} differ\n{killed.logs()}"


def test_every_process_may_die_at_any_time(
    new_farm: Callable[..., Any], sim_job: Callable[..., Job]
) -> None:
    dice = random.Random(4)
    kills = [*dice.sample(ROLES, 4), "tuner", "tracker"]
    check(new_farm, sim_job("j", "sim -failures=10 -trial-ms=10", 60, SHAPES), kills, seed=4)


def test_a_restored_database_goes_on_where_its_copy_was_made(
    new_farm: Callable[..., Any], sim_job: Callable[..., Job]
) -> None:
    """Worker, tuner and client live on; they had come further than the copy."""
    job = sim_job("j", "sim -failures=10 -trial-ms=10", 60, SHAPES)
    alone, restored = new_farm("alone"), new_farm("restored")
    run(alone, job, (), random.Random(4))
    alone.close()
    for role in ("tracker", "worker", "tuner"):
        restored.start(role)
    restored.submit(job)
    copy = restored.folder / "copy"
    restored.wait_until(lambda: restored.count_trials() >= 12, "the trials of the copy")
    backup(str(restored.database), copy)
    restored.wait_until(lambda: restored.count_trials() >= 40, "the trials since the copy")
    restored.kill("tracker")
    restore(copy, str(restored.database), force=True)
    restored.start("tracker")
    client = restored.processes["client"]
    restored.wait_until(lambda: client.poll() is not None, "the end of the job")
    assert outcome(restored) == outcome(alone), restored.logs()


@pytest.mark.soak
def test_many_deaths_in_many_places(
    new_farm: Callable[..., Any], sim_job: Callable[..., Job]
) -> None:
    dice = random.Random(time.time_ns())
    kills = [dice.choice(ROLES) for _ in range(60)]
    job = sim_job("j", "sim -failures=10 -trial-ms=10", 400, (*SHAPES, (5, 7)))
    check(new_farm, job, kills, seed=dice.randrange(1 << 30))
    print(f"\n{len(kills)} deaths of tracker, worker, tuner and client: the same database")


@pytest.mark.soak
def test_two_hundred_deaths_of_the_tracker(
    new_farm: Callable[..., Any], sim_job: Callable[..., Job]
) -> None:
    job = sim_job("j", "sim -failures=10 -trial-ms=10", 1000, SHAPES, patience="0")
    check(new_farm, job, ["tracker"] * 200, seed=5)
    print("\n200 deaths of the tracker: no acknowledged trial lost, the same database")
