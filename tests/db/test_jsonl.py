"""JSON lines: exact round trips, and imports that go on past what they cannot read."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tunefarm.db import jsonl, transfer
from tunefarm.db.errors import StoreError
from tunefarm.db.records import (
    BestKey,
    ErrorKind,
    Final,
    TaskKey,
    Trial,
    TrialKey,
    Verdict,
    WorkloadRecord,
)
from tunefarm.db.store import Store

MakeTrial = Callable[..., Trial]
MakeWorkload = Callable[[str], WorkloadRecord]

seconds = st.floats(min_value=0, max_value=1e6, exclude_min=True, allow_subnormal=False)
finite = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
trials = st.builds(
    Trial,
    job=texts,
    task=st.builds(TaskKey, texts, texts),
    number=st.integers(0, 10**6),
    config=st.dictionaries(texts, st.integers(-(2**63), 2**63 - 1) | texts, max_size=4),
    times_s=st.lists(seconds, min_size=1, max_size=5).map(tuple),
    error=st.none(),
    stderr_tail=texts,
    device_state=st.dictionaries(texts, finite, max_size=3),
    predicted=st.none() | finite,
    paired_times_s=st.lists(st.lists(seconds, max_size=3).map(tuple), max_size=3).map(tuple),
    created_at=finite,
) | st.builds(
    Trial,
    job=texts,
    task=st.builds(TaskKey, texts, texts),
    number=st.integers(0, 10**6),
    config=st.dictionaries(texts, st.integers() | texts, max_size=4),
    error=st.sampled_from(ErrorKind),
    message=texts,
)


@given(trials)
def test_a_trial_survives_its_line(trial: Trial) -> None:
    line = jsonl.dump(trial)
    assert "\n" not in line
    assert jsonl.parse(line) == trial


@given(st.builds(WorkloadRecord, texts, texts, texts, st.integers(0, 2**62)))
def test_a_workload_survives_its_line(workload: WorkloadRecord) -> None:
    assert jsonl.parse(jsonl.dump(workload)) == workload


def filled(store: Store, make_trial: MakeTrial, workload: MakeWorkload) -> tuple[Trial, ...]:
    rows = (make_trial(0, 4e-3), make_trial(1, 1e-3), make_trial(2, None), make_trial(3, 2e-3))
    store.add_workloads([workload("gemm")])
    store.add_trials(rows)
    key = BestKey(rows[3].task.workload, rows[3].task.target, "EPYC")
    winner = TrialKey("job", rows[3].task, 3)
    final = Final(key, winner, None, Verdict.BETTER, None, 2.0, latency_s=1.9e-3)
    store.promote("r", final)
    default = TrialKey("job", rows[0].task, 0)
    store.promote("m", Final(key, default, winner, Verdict.SAME, 0.5, model="resnet"))
    return rows


def test_an_export_imports_into_an_equal_database(
    store: Store, make_trial: MakeTrial, workload: MakeWorkload, tmp_path: Path
) -> None:
    rows = filled(store, make_trial, workload)
    path = tmp_path / "all.jsonl"
    assert transfer.export_file(store, path) == 4
    with Store.open(str(tmp_path / "copy.db")) as copy:
        done = transfer.import_file(copy, path)
        assert (done.added, done.known, done.promoted, done.problems) == (4, 0, 1, ())
        again = transfer.import_file(copy, path)
        assert (again.added, again.known, again.promoted) == (0, 4, 0)
        assert copy.trials_of("job").trials == rows
        key = BestKey(rows[0].task.workload, rows[0].task.target, "EPYC")
        assert copy.best([key]) == store.best([key])
        assert copy.best([key])[key][0].best.promoted
        assert copy.best([key])[key][0].best.model_speedup == 2.0
        second = io.StringIO()
        transfer.export(copy, second)
    assert second.getvalue() == path.read_text()


def test_the_file_answers_like_the_database(
    store: Store, make_trial: MakeTrial, workload: MakeWorkload, tmp_path: Path
) -> None:
    rows = filled(store, make_trial, workload)
    store.add_trials([make_trial(n, 1e-3 * (n + 1), text="conv") for n in range(3)])
    keys = [
        BestKey(workload(text).key, rows[0].task.target, model)
        for text in ("gemm", "conv", "unknown")
        for model in ("EPYC", "other")
    ]
    for best_only in (False, True):
        path = tmp_path / f"{best_only}.jsonl"
        transfer.export_file(store, path, best_only=best_only)
        assert jsonl.read(path).index().best(keys) == store.best(keys)
    assert len(jsonl.read(tmp_path / "True.jsonl").trials) == 3, "winner, default, and conv's"


def test_other_targets_are_kept_and_counted(
    store: Store, make_trial: MakeTrial, tmp_path: Path
) -> None:
    rows = [make_trial(0), make_trial(0, target="cuda -arch=sm_90"), make_trial(1)]
    path = tmp_path / "mixed.jsonl"
    path.write_text("".join(jsonl.dump(row) + "\n" for row in rows))
    done = transfer.import_file(store, path)
    assert done.targets == {rows[0].task.target: 2, "cuda -arch=sm_90": 1}
    assert len(store.history("cuda -arch=sm_90").trials) == 1
    assert transfer.export(store, io.StringIO(), target="cuda -arch=sm_90") == 1


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "line 2 of f.jsonl is not JSON"),
        ("[1]", "line 2 of f.jsonl is no record of tunefarm"),
        ('{"input": [], "result": [[0.1], 0]}', "line 2 of f.jsonl is no record of tunefarm"),
        ('{"tunefarm": 2, "trial": {}}', "has format version 2, this tunefarm reads 1"),
        ('{"tunefarm": 1}', "has none of workload, trial and best"),
        ('{"tunefarm": 1, "trial": {"job": "a"}}', "has fields that do not fit"),
        ('{"tunefarm": 1, "trial": 3}', "has none of workload, trial and best"),
        ('{"tunefarm": 1, "workload": {"colour": 1}}', "has fields that do not fit"),
    ],
)
def test_lines_that_are_no_records_are_told_and_left_out(
    store: Store, make_trial: MakeTrial, tmp_path: Path, line: str, sentence: str
) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text(f"{jsonl.dump(make_trial(0))}\n{line}\n\n{jsonl.dump(make_trial(1))}\n")
    done = transfer.import_file(store, path)
    assert done.added == 2
    (problem,) = done.problems
    assert sentence in problem


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("times_s", [-1.0]),
        ("times_s", ["fast"]),
        ("times_s", []),
        ("error", "tired"),
        ("number", -1),
        ("config", {"sketch": 1.5}),
        ("task", {"workload": "a"}),
    ],
)
def test_trials_with_wrong_fields_are_left_out(
    make_trial: MakeTrial, field: str, value: object
) -> None:
    content = json.loads(jsonl.dump(make_trial(0)))
    content["trial"][field] = value
    found = jsonl.collect([json.dumps(content)], "f")
    assert found.trials == []
    assert "has fields that do not fit" in found.problems[0]


def test_a_best_line_needs_its_trial(make_trial: MakeTrial) -> None:
    line = jsonl.PromotedLine(TrialKey("job", make_trial(0).task, 0), Verdict.BETTER, None)
    found = jsonl.collect([jsonl.dump(line)], "f")
    assert "which is not in it" in found.problems[0]


def test_files_that_cannot_be_used(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot read .*none\.jsonl: No such file"):
        jsonl.read(tmp_path / "none.jsonl")
    with pytest.raises(StoreError, match=r"cannot write .*folder/a\.jsonl"):
        transfer.export_file(store, tmp_path / "folder" / "a.jsonl")


def test_starter_records_can_be_asked() -> None:
    key = BestKey("0" * 64, "llvm -mcpu=znver5", "none")
    assert jsonl.starter_records().best([key]) == {key: ()}


def test_what_ships_is_clear_winners_without_samples(
    store: Store, make_trial: MakeTrial, workload: MakeWorkload, tmp_path: Path
) -> None:
    winner = filled(store, make_trial, workload)[3]
    close = make_trial(1, 1e-3, text="close")
    store.add_workloads([workload("close")])
    store.add_trials([make_trial(0, 1e-3, text="close"), close])
    key = BestKey(close.task.workload, close.task.target, "EPYC")
    final = Final(key, TrialKey("job", close.task, 1), None, Verdict.BETTER, None, 1.01)
    store.promote("close", final)

    path = tmp_path / "starter.jsonl"
    assert transfer.export_starter(store, path) == 1
    (shipped,) = jsonl.read(path).promoted
    assert (shipped.trial.task, shipped.trial.config) == (winner.task, winner.config)
    assert shipped.trial.times_s == (1.9e-3,)  # of its final, not of the trial
    assert (shipped.trial.device, shipped.trial.job) == ("", "starter EPYC")
    assert shipped.speedup_over_default == 2.0
    assert '"model' not in path.read_text()
