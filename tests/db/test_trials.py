"""Storing trials once, the bests that follow, promotion, history and statistics."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest
from sqlalchemy import text
from tunefarm.db import best, jobs, stored_jobs
from tunefarm.db.errors import UnknownRecord
from tunefarm.db.lookup import RecordIndex, beats_default
from tunefarm.db.records import (
    FINAL,
    Best,
    BestKey,
    Budget,
    ErrorKind,
    Final,
    Job,
    JobTask,
    Match,
    TaskKey,
    Trial,
    TrialKey,
    Verdict,
    WorkloadRecord,
)
from tunefarm.db.store import Store

MakeTrial = Callable[..., Trial]
TARGET = "llvm -mcpu=znver5 -num-cores=2"


def key_of(trial: Trial) -> TrialKey:
    return TrialKey(trial.job, trial.task, trial.number)


def best_key(trial: Trial, **changes: str) -> BestKey:
    key = BestKey(trial.task.workload, trial.task.target, trial.device_model)
    return dataclasses.replace(key, **changes)


def test_trials_come_back_as_they_went_in(store: Store, make_trial: MakeTrial) -> None:
    full = dataclasses.replace(
        make_trial(3),
        stderr_tail="warning: \N{SNOWMAN}",
        device_state={"reference_s": 0.1 + 0.2},
        predicted=-1.5,
        origin="mutation",
        compiler_version="0.1.0",
        code_hash="ab" * 16,
        paired_times_s=((1e-3, 2e-3), (3e-3, 1 / 3)),
    )
    failed = make_trial(4, None)
    store.add_trials([full, failed])
    assert store.trials_of("job").trials == (full, failed)


def test_a_trial_is_stored_once(store: Store, make_trial: MakeTrial) -> None:
    first, second = make_trial(0), make_trial(1)
    late = make_trial(0, 9e-3)
    assert store.add_trials([first, late, second]) == (first, second)
    assert store.add_trials([late, second, make_trial(2)]) == (make_trial(2),)
    assert [t.median_s for t in store.trials_of("job").trials] == [1e-3, 1e-3, 1e-3]
    assert store.task_stats([first.task])[first.task].ok == 3


def test_a_cursor_walks_a_job_in_storage_order(store: Store, make_trial: MakeTrial) -> None:
    store.add_trials([make_trial(n) for n in (5, 1, 3)])
    store.add_trials([make_trial(7, job="other"), make_trial(2)])
    page = store.trials_of("job", limit=2)
    rest = store.trials_of("job", page.cursor)
    assert [t.number for t in page.trials + rest.trials] == [5, 1, 3, 2]
    assert store.trials_of("job", rest.cursor).trials == ()


def test_history_pages_newest_first(
    store: Store, make_trial: MakeTrial, workload: Callable[[str], WorkloadRecord]
) -> None:
    store.add_workloads([workload("gemm")])
    store.add_trials([make_trial(n) for n in range(5)] + [make_trial(0, target="sim")])
    first = store.history(TARGET, limit=3)
    second = store.history(TARGET, first.cursor, limit=3)
    assert [t.number for t in first.trials + second.trials] == [4, 3, 2, 1, 0]
    assert first.more
    assert not second.more
    assert first.workloads == {workload("gemm").key: "gemm"}
    assert len(store.history().trials) == 6
    assert store.history("cuda").trials == ()
    assert store.history(workloads=[workload("conv").key]).trials == ()


def test_statistics_count_all_jobs(store: Store, make_trial: MakeTrial) -> None:
    store.add_trials([make_trial(0, 4e-3), make_trial(1, 2e-3), make_trial(2, None)])
    store.add_trials([make_trial(0, 3e-3, job="later")])
    store.add_trials([dataclasses.replace(make_trial(3, 3e-3), origin=FINAL)])
    task = make_trial(0).task
    unknown = TaskKey("0" * 64, TARGET)
    found = store.task_stats([task, unknown])
    assert (found[task].ok, found[task].failed) == (3, 1)
    assert (found[task].best_s, found[task].default_s) == (2e-3, 3e-3)
    assert found[unknown].ok == 0


def test_candidates_are_counted_by_compiler_and_device(store: Store, make_trial: MakeTrial) -> None:
    mine = [make_trial(0, compiler="2"), make_trial(1, None, compiler="2"), make_trial(2)]
    final_ = dataclasses.replace(make_trial(3, compiler="2"), origin=FINAL)
    others = [
        make_trial(0, job="old", compiler="1"),
        make_trial(0, job="ryzen", compiler="2", model="Ryzen"),
        make_trial(0, job="task", compiler="2", text="conv"),
        make_trial(0, job="cores", compiler="2", target="llvm -mcpu=znver5 -num-cores=1"),
    ]
    store.add_trials([*mine, final_, *others])
    tasks = [mine[0].task, TaskKey("f" * 64, "sim")]
    assert store.count_candidates(tasks, "2", "EPYC") == 3
    assert store.count_candidates(tasks, "2") == 4
    assert store.count_candidates(tasks) == 5
    assert store.count_candidates([*tasks, others[2].task], "2", "EPYC") == 4
    assert store.count_candidates([]) == 0


def test_a_jobs_progress_follows_its_trials(
    store: Store, make_trial: MakeTrial, workload: Callable[[str], WorkloadRecord]
) -> None:
    tasks = (JobTask(workload("gemm"), 2), JobTask(workload("conv"), 1))
    with store.writing() as connection:
        jobs.submit(connection, Job("job", TARGET, tasks, Budget(10)))
    store.add_trials([make_trial(0, 2e-3), make_trial(1, None)])
    store.add_trials([make_trial(2, 1e-3), make_trial(2, 1e-3, text="elsewhere")])
    store.add_trials([dataclasses.replace(make_trial(3, 3e-3), origin=FINAL)])  # no candidate
    with store.reading() as connection:
        update = stored_jobs.progress(connection, "job")
    gemm, conv = update.progress
    assert (gemm.ok, gemm.failed, gemm.best_s, gemm.default_s) == (2, 1, 1e-3, 2e-3)
    assert (conv.ok, conv.failed, conv.best_s) == (0, 0, None)
    assert gemm.summary == "op gemm"
    assert update.errors == {"build_error": 1}
    assert update.cursor > 1


# --- best ---------------------------------------------------------------------------------------


def test_the_lowest_median_is_provisional(store: Store, make_trial: MakeTrial) -> None:
    trials = [make_trial(0, 4e-3), make_trial(1, 1e-3), make_trial(2, 2e-3), make_trial(3, None)]
    store.add_trials(trials[:3])
    store.add_trials(trials[3:])
    (found,) = store.best([best_key(trials[0])])[best_key(trials[0])]
    assert found.best.trial == trials[1]
    assert found.match is Match.EXACT
    assert not found.best.promoted
    assert found.best.speedup_over_default == pytest.approx(4)


def test_provisional_bests_do_not_depend_on_the_order_of_arrival(
    store: Store, make_trial: MakeTrial
) -> None:
    rng = random.Random(1)
    trials = [
        make_trial(
            n,
            rng.choice([None, rng.uniform(1, 9)]),
            text=task,
            model=model,
            job=model,
            compiler=f"v{n % 2}",
            created_at=float(n % 2),
        )
        for n in range(30)
        for task in ("a", "b")
        for model in ("m1", "m2")
    ]
    keys = sorted({best_key(t) for t in trials}, key=str)
    expected = RecordIndex(trials).best(keys)
    rng.shuffle(trials)
    while trials:
        batch = [trials.pop() for _ in range(min(len(trials), rng.randint(1, 9)))]
        store.add_trials(batch)
    assert store.best(keys) == expected


def test_look_up_prefers_model_then_target_then_cores(store: Store, make_trial: MakeTrial) -> None:
    mine = make_trial(0, model="EPYC")
    other_model = make_trial(0, model="Ryzen", job="j2")
    one_core = make_trial(0, target="llvm -mcpu=znver5 -num-cores=1", job="j3")
    foreign = make_trial(0, target="llvm -mcpu=haswell -num-cores=2", job="j4")
    store.add_trials([foreign, one_core, other_model, mine])
    key = best_key(mine)
    assert [(f.best.trial.job, f.match) for f in store.best([key])[key]] == [
        ("job", Match.EXACT),
        ("j2", Match.TARGET),
        ("j3", Match.COMPATIBLE),
    ]
    another = best_key(mine, protocol="cold")
    assert store.best([another]) == {another: ()}


def test_a_record_of_another_cpu_is_told_where_nothing_serves(
    store: Store, make_trial: MakeTrial
) -> None:
    old = make_trial(0, model="EPYC", created_at=1.0)
    new = make_trial(0, model="Ryzen", created_at=2.0, job="later")
    store.add_trials([old, new])
    key = best_key(make_trial(0, target="llvm -mcpu=haswell -num-cores=2"))
    (found,) = store.best([key])[key]
    assert (found.best.trial, found.match) == (new, Match.FOREIGN)


def test_fingerprints_stand_side_by_side(store: Store, make_trial: MakeTrial) -> None:
    old = make_trial(0, 1e-3, fingerprint="old", created_at=1.0)
    new = make_trial(1, 2e-3, fingerprint="new", created_at=2.0)
    store.add_trials([old, new])
    key = best_key(old)
    assert [f.best.trial for f in store.best([key])[key]] == [new, old]


def test_times_of_two_compilers_are_never_compared(store: Store, make_trial: MakeTrial) -> None:
    old = [make_trial(0, 4e-3, compiler="1"), make_trial(1, 1e-3, compiler="1")]
    new = [
        make_trial(n, seconds, job="new", compiler="2", created_at=2.0)
        for n, seconds in enumerate((3e-3, 2e-3))
    ]
    store.add_trials([*old, *new])
    key = best_key(old[0])
    bests = [found.best for found in store.best([key])[key]]
    assert [best.trial for best in bests] == [new[1], old[1]]
    assert [best.speedup_over_default for best in bests] == pytest.approx([1.5, 4.0])
    assert RecordIndex([*old, *new]).best([key])[key] == store.best([key])[key]


def look_up_plan(store: Store, explain: str) -> list[str]:
    """How the database looks three workloads up."""
    query = best.lookup_query(["a", "b", "c"])
    with store.reading() as connection:
        if explain == "EXPLAIN":  # of a small table PostgreSQL reads the only page as a whole
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        compiled = query.compile(connection.engine, compile_kwargs={"literal_binds": True})
        return [row[-1].strip() for row in connection.execute(text(f"{explain} {compiled}"))]


def test_a_look_up_reads_indexes_only(sqlite_store: Store, make_trial: MakeTrial) -> None:
    sqlite_store.add_trials([make_trial(0)])
    plan = look_up_plan(sqlite_store, "EXPLAIN QUERY PLAN")
    assert plan[0].startswith("SEARCH workloads USING COVERING INDEX")
    assert "SEARCH best USING PRIMARY KEY (workload_id=?)" in plan
    assert "SEARCH trials USING INTEGER PRIMARY KEY (rowid=?)" in plan
    assert not [line for line in plan if line.startswith("SCAN")]


@pytest.mark.parametrize("fresh_database", ["postgresql"], indirect=True)
def test_a_look_up_reads_indexes_only_on_postgresql(store: Store, make_trial: MakeTrial) -> None:
    store.add_trials([make_trial(0)])
    plan = "\n".join(look_up_plan(store, "EXPLAIN"))
    for index in ("workloads_unique_key", "best_key", "trials_key"):
        assert f"using {index} on" in plan or f"on {index} " in plan, plan
    assert "Seq Scan" not in plan


# --- promotion ----------------------------------------------------------------------------------


def final(challenger: Trial, incumbent: Trial | None, verdict: Verdict = Verdict.BETTER) -> Final:
    return Final(
        best_key(challenger),
        key_of(challenger),
        key_of(incumbent) if incumbent else None,
        verdict,
        speedup_over_default=1.25,
    )


def test_promotion_is_a_compare_and_swap(store: Store, make_trial: MakeTrial) -> None:
    a, b, c = (make_trial(n, s) for n, s in ((1, 3e-3), (2, 2e-3), (3, 1e-3)))
    store.add_trials([a, b, c])
    assert store.promote("r1", final(a, None)).promoted
    assert not store.promote("r2", final(b, None)).promoted, "another one stands there"
    assert store.promote("r3", final(b, a)).promoted
    stale = store.promote("r4", final(c, a))
    assert not stale.promoted
    assert stale.best is not None
    assert stale.best.trial == b


def test_an_incumbent_of_another_compiler_gives_way_in_any_order(
    store: Store, make_trial: MakeTrial
) -> None:
    a, rival = make_trial(1, 3e-3, compiler="1"), make_trial(3, 3e-3, compiler="1")
    b = make_trial(2, 9e-3, compiler="2", created_at=0.5)
    store.add_trials([a, b, rival])
    key = best_key(a)
    assert store.promote("r1", final(a, None)).promoted
    assert not store.promote("r2", final(b, None)).promoted, "another one stands there"
    assert store.promote("r3", final(b, a)).promoted
    found = [f.best for f in store.best([key])[key]]
    assert [(f.trial, f.promoted) for f in found] == [(b, True), (a, False)]
    assert not store.promote("r4", final(rival, a)).promoted, "it stands no more"
    assert store.promote("r5", final(rival, b)).promoted
    found = [f.best for f in store.best([key])[key]]
    assert [(f.trial, f.promoted) for f in found] == [(rival, True), (b, False)]


def test_a_repeated_promotion_changes_nothing(store: Store, make_trial: MakeTrial) -> None:
    a, b = make_trial(1), make_trial(2)
    store.add_trials([a, b])
    assert store.promote("r1", final(a, None)).promoted
    assert store.promote("r2", final(b, a)).promoted
    again = store.promote("r1", final(a, None))
    assert again.promoted
    assert again.best is not None
    assert again.best.trial == b


@pytest.mark.parametrize("verdict", [Verdict.SAME, Verdict.AMBIGUOUS])
def test_only_better_settles(store: Store, make_trial: MakeTrial, verdict: Verdict) -> None:
    a, default = make_trial(1, 1e-3), make_trial(0, 1.01e-3)
    store.add_trials([a, default])
    assert not store.promote("r1", final(a, None, verdict)).promoted
    assert store.promote("r2", final(default, None, verdict)).promoted
    key = best_key(a)
    assert store.best([key])[key][0].best.trial == default


def test_the_promoted_stays_above_luckier_samples(store: Store, make_trial: MakeTrial) -> None:
    winner = make_trial(1, 2e-3)
    store.add_trials([winner])
    store.promote("r1", final(winner, None))
    store.add_trials([make_trial(2, 1e-4)])
    key = best_key(winner)
    (found,) = store.best([key])[key]
    assert found.best.trial == winner
    assert found.best.verdict is Verdict.BETTER
    assert found.best.speedup_over_default == 1.25


def test_what_is_promoted_has_the_time_of_its_final(store: Store, make_trial: MakeTrial) -> None:
    default, winner = make_trial(0, 3e-3), make_trial(1, 1e-3)
    store.add_trials([default, winner])
    key = best_key(default)
    confirmed = dataclasses.replace(final(default, None, Verdict.SAME), latency_s=2e-3)
    assert store.promote("r1", confirmed).promoted
    best = store.best([key])[key][0].best
    assert (best.trial, best.final_s, best.latency_s) == (default, 2e-3, 2e-3)

    of_before = final(winner, default)  # as tuners of before finals told times send it
    assert store.promote("r2", of_before).promoted
    best = store.best([key])[key][0].best
    assert (best.trial, best.final_s, best.latency_s) == (winner, None, 1e-3)


def test_what_is_demoted_has_the_time_of_its_trial_again(
    store: Store, make_trial: MakeTrial
) -> None:
    old, new = make_trial(1, 3e-3, compiler="1"), make_trial(2, 9e-3, compiler="2")
    store.add_trials([old, new])
    store.promote("r1", dataclasses.replace(final(old, None), latency_s=1e-9))
    store.promote("r2", dataclasses.replace(final(new, old), latency_s=4e-3))
    found = [f.best for f in store.best([best_key(old)])[best_key(old)]]
    assert [(b.trial, b.promoted, b.latency_s) for b in found] == [
        (new, True, 4e-3),
        (old, False, 3e-3),
    ]
    luckier = make_trial(3, 2e-3, compiler="1")
    store.add_trials([luckier])
    found = [f.best for f in store.best([best_key(old)])[best_key(old)]]
    assert [b.trial for b in found] == [new, luckier]


def test_a_final_in_a_whole_model_marks_what_stands(store: Store, make_trial: MakeTrial) -> None:
    default, tuned = make_trial(0, 2e-3), make_trial(1, 1e-3)
    store.add_trials([default, tuned])
    key = best_key(tuned)
    store.promote("r1", final(tuned, None))
    in_model = dataclasses.replace(final(default, tuned, Verdict.SAME), model="m", speedup=0.8)
    assert not store.promote("r2", in_model).promoted
    best = store.best([key])[key][0].best
    assert (best.trial, best.model, best.model_speedup) == (tuned, "m", 1.25)

    in_model = dataclasses.replace(in_model, verdict=Verdict.BETTER, speedup=1.1)
    assert store.promote("r3", in_model).promoted
    best = store.best([key])[key][0].best
    assert (best.trial, best.model, best.model_speedup) == (default, "m", 1.1)

    late = dataclasses.replace(final(tuned, tuned, Verdict.SAME), model="n", speedup=1.0)
    assert not store.promote("r4", late).promoted
    assert store.best([key])[key][0].best == best, "what stands no more is not marked"
    assert store.promote("r5", final(tuned, default)).promoted
    best = store.best([key])[key][0].best
    assert (best.trial, best.model, best.model_speedup) == (tuned, "", None)


def test_a_final_needs_stored_successful_trials(store: Store, make_trial: MakeTrial) -> None:
    store.add_trials([make_trial(1, None)])
    with pytest.raises(UnknownRecord, match=r"trial 1 of task .* is a failed one"):
        store.promote("r1", final(make_trial(1), None))
    with pytest.raises(UnknownRecord, match=r"trial 9 of task .* is not stored"):
        store.promote("r1", final(make_trial(9), None))


def test_a_provisional_record_must_beat_the_default_by_more_than_noise(
    store: Store, make_trial: MakeTrial
) -> None:
    store.add_trials([make_trial(0, 1e-3), make_trial(1, 0.95e-3)])
    key = best_key(make_trial(0))
    (found,) = store.best([key])[key]

    def on_a_device_of(noise: float) -> Best:
        trial = dataclasses.replace(found.best.trial, device_state={"noise": noise})
        return dataclasses.replace(found.best, trial=trial)

    assert beats_default(found.best)
    assert beats_default(on_a_device_of(0.04))
    assert not beats_default(on_a_device_of(0.06))
    barely = dataclasses.replace(on_a_device_of(0.001), speedup_over_default=1.02)
    assert not beats_default(barely)  # the luckiest of many


def test_error_kinds_survive(store: Store, make_trial: MakeTrial) -> None:
    trials = [
        dataclasses.replace(make_trial(n, None), error=kind) for n, kind in enumerate(ErrorKind)
    ]
    store.add_trials(trials)
    assert [t.error for t in store.trials_of("job").trials] == list(ErrorKind)
