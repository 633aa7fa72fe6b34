"""Jobs and trials in Python: as stored, as columns, and as frames."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tunefarm.compiler.errors import TunefarmError
from tunefarm.db import jobs
from tunefarm.db.errors import UnknownRecord
from tunefarm.db.records import FINAL, ErrorKind, Job, TaskKey, Trial
from tunefarm.db.store import Store

import tunefarm
from tunefarm.trials import Trials
from tunefarm.tuning import make_job

TARGET = "llvm -mcpu=znver5 -num-cores=2"


@pytest.fixture
def stored(tmp_path: Path, model: str) -> tuple[str, Job]:
    """A database with a job of three trials and a final."""
    database = str(tmp_path / "farm.db")
    tasks = tunefarm.extract_tasks(tunefarm.from_onnx(model), TARGET)
    task = TaskKey(tasks[0].workload.key, TARGET)
    default = {"sketch": "contraction", "mb": 1}
    with Store.open(database) as store:
        with store.writing() as db:
            job = jobs.submit(db, replace(make_job(tasks, 50), id="aaaa1111"))
        first = Trial(
            job.id, task, 0, default, (2e-3, 2.5e-3, 2.25e-3), origin="default", created_at=100.0
        )
        store.add_trials([
            first,
            replace(first, number=1, config={"sketch": "plain", "unroll": 4}, times_s=(1e-3,),
                    origin="model", predicted=-0.5, phases_s={"build": 0.25}),
            replace(first, number=2, config={"sketch": "contraction", "mb": "all"}, times_s=(),
                    error=ErrorKind.RUN_TIMEOUT, message="too slow"),
            replace(first, number=3, origin=FINAL),
        ])  # fmt: skip
    return database, job


def test_a_job_is_found_by_its_first_digits(stored: tuple[str, Job]) -> None:
    database, job = stored
    (listed,) = tunefarm.list_jobs(db=database)
    found = tunefarm.load_job("aaaa", db=database)
    assert listed.id == found.id == job.id
    assert found.state == "queued"
    assert [task.workload.summary for task in found.tasks] == [job.tasks[0].workload.summary]
    assert found.update().progress[0].failed == 1
    assert "TuningJob('aaaa1111'" in repr(found)
    assert "fastest trial" in found._repr_html_()
    with pytest.raises(UnknownRecord, match="bbbb"):
        tunefarm.load_job("bbbb", db=database)


def test_a_job_that_is_over_shows_what_builds_get(stored: tuple[str, Job]) -> None:
    database, job = stored
    with Store.open(database) as store, store.writing() as db:
        jobs.cancel(db, job.id, "enough")
    found = tunefarm.load_job("aaaa", db=database)
    assert found.state == "cancelled"
    assert found.outcome().finals == 1
    assert ">tuned<" in found._repr_html_()


def test_trials_of_a_farm_are_those_of_its_database(
    stored: tuple[str, Job], tracker: Callable[[Path], AbstractContextManager[str]]
) -> None:
    database, _ = stored
    with tracker(Path(database)) as place:
        farm = tunefarm.load_job("aaaa", tracker=place).trials()
        assert farm == tunefarm.load_job("aaaa", db=database).trials()
        assert len(farm) == 4
        assert [job.id for job in tunefarm.list_jobs(tracker=place)] == ["aaaa1111"]


def test_where_jobs_are_is_said_once() -> None:
    with pytest.raises(TunefarmError, match="not both"):
        tunefarm.list_jobs(db="a.db", tracker="lab1:9190")


def test_columns_have_a_row_a_trial_and_none_where_there_is_nothing(
    stored: tuple[str, Job],
) -> None:
    trials = tunefarm.load_job("aaaa", db=stored[0]).trials()
    columns = trials.columns()
    assert {len(column) for column in columns.values()} == {4}
    assert columns["latency_s"] == [2.25e-3, 1e-3, None, 2.25e-3]
    assert columns["high_s"][0] == 2.5e-3
    assert columns["error"] == [None, None, "run_timeout", None]
    assert columns["build_s"] == [None, 0.25, None, None]
    assert columns["knob_unroll"] == [None, 4, None, None]
    assert columns["knob_mb"] == ["1", None, "all", "1"]  # words and numbers make words
    assert columns["at"][0] == datetime(1970, 1, 1, 0, 1, 40, tzinfo=UTC)
    assert set(columns["task"]) == {stored[1].tasks[0].workload.summary}


def test_a_slice_of_trials_is_trials(stored: tuple[str, Job]) -> None:
    trials = tunefarm.load_job("aaaa", db=stored[0]).trials()
    assert trials[1:3].columns()["number"] == [1, 2]
    assert trials[-1].origin == FINAL
    assert repr(trials) == "Trials(4 trials, 1 failed)"
    assert "too slow" in trials._repr_html_()
    assert repr(Trials(())) == "Trials(0 trials, 0 failed)"


def test_a_pandas_frame(stored: tuple[str, Job]) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    frame = tunefarm.load_job("aaaa", db=stored[0]).trials().to_pandas()
    assert frame.groupby("sketch").latency_s.min().to_dict() == {
        "contraction": 2.25e-3,
        "plain": 1e-3,
    }
    assert frame["at"].dt.year.tolist() == [1970] * 4
    assert frame.latency_s.isna().tolist() == [False, False, True, False]


def test_a_polars_frame(stored: tuple[str, Job]) -> None:
    pytest.importorskip("polars", reason="polars is not installed")
    frame = tunefarm.load_job("aaaa", db=stored[0]).trials().to_polars()
    assert frame.height == 4
    assert frame["latency_s"].null_count() == 1
    assert frame["at"].dt.year().to_list() == [1970] * 4
    assert frame["knob_unroll"].to_list() == [None, 4, None, None]


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_what_is_not_installed_is_said_in_a_sentence(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(TunefarmError, match=f"{package}, which is not installed; pip install"):
        getattr(Trials(()), f"to_{package}")()
