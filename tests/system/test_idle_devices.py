"""A farm that tunes on its own what a build missed, and drops it for somebody's job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunefarm.db.records import IDLE, BestKey, Job, JobState, Miss
from tunefarm.proto.awake import awake_s

IDLE_OPTIONS = ("--lease-term-s", "6", "--idle-trials", "40", "--idle-after-s", "0.2")
YIELD_S = 20.0
"""Far beyond the 2 s in which it yields on a machine that has nothing else to do."""


def test_somebodys_job_goes_first(
    new_farm: Callable[..., Any], sim_job: Callable[..., Job]
) -> None:
    target = "sim -failures=0 -trial-ms=60"
    farm = new_farm("farm", target=target, tracker_options=IDLE_OPTIONS)
    for role in ("tracker", "worker", "tuner"):
        farm.start(role)
    missed = sim_job("", target, 1, ((8, 8),)).tasks[0].workload
    with farm.client() as client:
        farm.wait_until(client.devices, "a device")
        client.report_misses([Miss(missed, target, 3, default_s=2e-3, roofline_s=1e-3)])
        farm.wait_until(lambda: farm.count_trials() >= 5, "the idle device to work")
        (idle,) = client.jobs()
        assert (idle.options, idle.budget.trials) == ({IDLE: "1"}, 40)
        submitted = awake_s()
        real = client.submit_job(sim_job("real", target, 16, ((16, 4),)))
        farm.wait_until(lambda: client.collect(real.id).trials, "somebody's first trial")
        assert awake_s() - submitted < YIELD_S
        farm.wait_until(lambda: client.job(idle.id).state is JobState.SUCCEEDED, "the idle job")
        assert client.job(real.id).state is JobState.SUCCEEDED
        idle_trials, real_trials = client.collect(idle.id).trials, client.collect(real.id).trials
        assert sum(trial.origin != "final" for trial in idle_trials) == 40
        began, ended = real_trials[0].created_at, real_trials[-1].created_at
        assert not [trial for trial in idle_trials if began < trial.created_at < ended]
        key = BestKey(missed.key, target, "simulated")
        assert client.best([key])[key][0].best.promoted
        (miss,) = client.misses()
        assert miss.job == idle.id
