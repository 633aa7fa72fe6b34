"""Which trials a policy leaves out, and that what explains a best record stays."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from tunefarm.db import jobs
from tunefarm.db.lookup import best_key_of
from tunefarm.db.records import (
    FINAL,
    Budget,
    Final,
    Job,
    JobTask,
    Trial,
    TrialKey,
    Verdict,
    WorkloadRecord,
)
from tunefarm.db.retention import BATCH, Policy, batches, leave_out, prunable
from tunefarm.db.store import Store

MakeTrial = Callable[..., Trial]


NOW = 1e9
DAY = 86400.0


def key_of(trial: Trial) -> TrialKey:
    return TrialKey(trial.job, trial.task, trial.number)


def prune(store: Store, policy: Policy) -> int:
    with store.reading() as connection:
        ids = prunable(connection, policy, NOW)
    done = 0
    for batch in batches(ids):
        with store.writing() as connection:
            done += leave_out(connection, batch)
    assert done == len(ids)
    return done


def numbers(store: Store, job: str = "job") -> list[int]:
    return [trial.number for trial in store.trials_of(job, limit=10_000).trials]


def old(make_trial: MakeTrial, number: int, days: float, **fields: object) -> Trial:
    return make_trial(number, 1.0 + number, created_at=NOW - days * DAY, **fields)


def test_what_is_old_goes_and_the_newest_of_each_task_stay(
    store: Store, make_trial: MakeTrial
) -> None:
    store.add_trials([old(make_trial, n, days=20 - n) for n in range(12)])
    store.add_trials([old(make_trial, n, days=20 - n, text="other") for n in range(3)])
    assert prune(store, Policy(older_than_s=15 * DAY, keep=11)) == 0, "only the best is older"
    assert prune(store, Policy(older_than_s=17.5 * DAY, keep=2)) == 2
    assert numbers(store) == [0, *range(3, 12), *range(3)]
    assert prune(store, Policy(keep=2)) == 7
    assert numbers(store) == [0, 10, 11, *range(3)]


def test_the_best_its_default_and_finals_stay(store: Store, make_trial: MakeTrial) -> None:
    fast = make_trial(7, 1e-3, job="a")
    default = make_trial(0, 9e-3, job="a")
    bystander = make_trial(3, 5e-3, job="a")
    other_default = make_trial(0, 8e-3, job="b")
    beaten = make_trial(5, 2e-3, job="b")
    fought = replace(make_trial(9, 1e-3, job="b"), origin=FINAL)
    unrelated = make_trial(0, 7e-3, job="c")
    failed = make_trial(1, None, job="c")
    everything = [default, bystander, fast, other_default, beaten, fought, unrelated, failed]
    store.add_trials(everything)
    verdict = Final(best_key_of(fast), key_of(fast), None, Verdict.BETTER)
    assert store.promote("r1", verdict).promoted
    store.promote("r2", Final(best_key_of(fast), key_of(beaten), key_of(fast), Verdict.SAME))
    assert prune(store, Policy(older_than_s=DAY)) == 3
    with store.reading():
        kept = {(t.job, t.number) for job in "abc" for t in store.trials_of(job).trials}
    assert kept == {("a", 7), ("a", 0), ("b", 5), ("b", 0), ("b", 9)}
    assert store.best([best_key_of(fast)])[best_key_of(fast)][0].best.trial == fast


def test_open_jobs_keep_theirs_and_counts_stay(
    store: Store, make_trial: MakeTrial, workload: Callable[[str], WorkloadRecord]
) -> None:
    target = make_trial(0).task.target
    job = Job("open", target, (JobTask(workload("gemm"), 1),), Budget(10))
    with store.writing() as connection:
        jobs.submit(connection, job)
    store.add_trials([make_trial(n, 1 + n, job="open") for n in range(4)])
    assert prune(store, Policy(older_than_s=DAY)) == 0
    with store.writing() as connection:
        jobs.cancel(connection, "open", "enough")
    task = make_trial(0).task
    before = store.task_stats([task])
    assert prune(store, Policy(older_than_s=DAY)) == 3
    assert store.task_stats([task]) == before


def test_a_trial_that_was_promoted_meanwhile_stays(store: Store, make_trial: MakeTrial) -> None:
    best, second = make_trial(1, 1e-3), make_trial(2, 2e-3)
    store.add_trials([best, second])
    with store.reading() as connection:
        ids = prunable(connection, Policy(older_than_s=DAY), NOW)
    store.promote("r", Final(best_key_of(second), key_of(second), None, Verdict.BETTER))
    with store.writing() as connection:
        assert leave_out(connection, ids) == 0
    assert numbers(store) == [1, 2]


def test_batches_are_small(store: Store, make_trial: MakeTrial) -> None:
    store.add_trials([make_trial(n, 1 + n) for n in range(2 * BATCH + 5)])
    assert prune(store, Policy(keep=3)) == 2 * BATCH + 1, "the best, and three newest"
    assert [len(batch) for batch in batches(range(2 * BATCH + 1))] == [BATCH, BATCH, 1]


@pytest.mark.parametrize("values", [(None, 0), (0.0, 5), (-1.0, 0), (5.0, -1)])
def test_policies_that_say_nothing(values: tuple[float | None, int]) -> None:
    with pytest.raises(ValueError, match=re.compile("how old|makes sense")):
        Policy(*values)
