"""What a tuning says in the end is what a build gets: the promoted records, by paired finals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tunefarm.compiler.host import device_model
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Task
from tunefarm.db.records import (
    FINAL,
    BestKey,
    Budget,
    Collected,
    ErrorKind,
    Final,
    Found,
    Job,
    JobState,
    JobTask,
    JobUpdate,
    Progress,
    TaskKey,
    Trial,
    TrialKey,
    Verdict,
    WorkloadRecord,
)
from tunefarm.db.store import Store

from tunefarm import api
from tunefarm.outcome import outcome, tasks_of
from tunefarm.updates import gain_text

DEFAULT_S, LUCKY_S = 4e-5, 2e-5


@dataclass(frozen=True)
class Database:
    """A database as the end of a job asks it."""

    store: Store

    def best(self, keys: Iterable[BestKey]) -> Mapping[BestKey, Sequence[Found]]:
        return self.store.best(keys)

    def collect(self, job: str, cursor: int = 0, *, limit: int) -> Collected:
        return self.store.trials_of(job, cursor, limit)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "outcome.db")) as opened:
        yield opened


@pytest.fixture
def task(model: str) -> Task:
    (found,) = api.extract_tasks(api.from_onnx(model), Target.host())
    return replace(found, weight=3)


def trials(task: Task) -> list[Trial]:
    """The default, one that was lucky once, one that failed, and their final."""
    key = TaskKey(task.workload.key, task.target.text)
    space = config_space(task.workload, task.target)
    sketch = space.sketches[0]
    other = next(
        config
        for knob in sketch.knobs
        for choice in knob.choices
        if (config := {**sketch.default, knob.name: choice}) != dict(space.default)
        and space.valid(space.encode(config)[None])[0]
    )
    machine = device_model(task.target.num_cores)
    common = {"device_model": machine, "space_fingerprint": space.fingerprint}
    return [
        Trial("job", key, 0, space.default, (DEFAULT_S,), **common),
        Trial("job", key, 1, other, (LUCKY_S,), **common),
        Trial("job", key, 2, other, error=ErrorKind.RUN_ERROR, **common),
        Trial("job", key, 3, other, (4.4e-5,), origin=FINAL, **common),
    ]


def ended(task: Task, job: str = "job") -> JobUpdate:
    """The last update: the best seen is the lucky time."""
    row = Progress(
        TaskKey(task.workload.key, task.target.text), task.workload.summary, task.workload.flops,
        task.weight, ok=2, failed=1, best_s=LUCKY_S, default_s=DEFAULT_S,
    )  # fmt: skip
    state = JobState.SUCCEEDED
    return JobUpdate(Job(job, task.target.text, (), Budget(3), state=state), (row,), {}, 0)


def test_a_default_that_won_its_final_is_no_gain(store: Store, task: Task) -> None:
    stored = trials(task)
    store.add_workloads([workload_record(task)])
    store.add_trials(stored)
    machine = stored[0].device_model
    store.promote(
        "final",
        Final(
            BestKey(task.workload.key, task.target.text, machine),
            TrialKey("job", stored[0].task, 0), None, Verdict.SAME, speedup_over_default=1.0,
            latency_s=5e-5,
        ),
    )  # fmt: skip
    found = outcome(Database(store), ended(task), [task])
    assert gain_text(found.rows) == "all tasks: 150 µs, 1.00x the defaults' 150 µs"
    assert (found.trials, found.finals, found.rows[0].failed) == (3, 1, 1)


def confirm(store: Store, default: Trial, **final: Any) -> None:
    """Promote the default, as a job does whose finals end with it."""
    key = BestKey(default.task.workload, default.task.target, default.device_model)
    held = Final(key, default.key, None, Verdict.SAME, speedup_over_default=1.0, **final)
    store.promote(str(final), held)


def test_a_task_that_was_not_searched_is_not_confirmed(store: Store, task: Task) -> None:
    default, *_ = trials(task)
    store.add_workloads([workload_record(task)])
    store.add_trials([default])
    found = outcome(Database(store), ended(task), [task])
    assert (found.statuses, found.finals) == (("default",), 0)
    assert found.sentences(ended(task))[1:] == [
        "1 task had no candidates timed, only the default: more trials would search it"
    ]


def test_a_task_whose_candidates_were_slower_met_nobody_in_finals(store: Store, task: Task) -> None:
    default, other, *_ = trials(task)
    store.add_workloads([workload_record(task)])
    store.add_trials([default, replace(other, times_s=(2 * DEFAULT_S,))])
    confirm(store, default)
    found = outcome(Database(store), ended(task), [task])
    assert found.statuses == ("confirmed",)
    assert found.sentences(ended(task))[1:] == [
        "1 task keeps its default without a final: no trial of a candidate was faster"
    ]


def test_a_default_that_stood_in_its_final_says_so(store: Store, task: Task) -> None:
    stored = trials(task)
    store.add_workloads([workload_record(task)])
    store.add_trials(stored)
    confirm(store, stored[0], latency_s=DEFAULT_S)
    found = outcome(Database(store), ended(task), [task])
    (said,) = found.sentences(ended(task))[1:]
    assert said.startswith("1 task keeps its default: timed side by side in the finals")


def test_finals_say_nothing_of_a_default_that_won_in_the_whole_model(
    store: Store, task: Task
) -> None:
    """Alone the record that it took the place of was faster."""
    stored = trials(task)
    store.add_workloads([workload_record(task)])
    store.add_trials(stored)
    confirm(store, stored[0], model="digest")
    found = outcome(Database(store), ended(task), [task])
    assert found.statuses == ("confirmed",)
    assert found.sentences(ended(task))[1:] == []


def test_a_winner_gains_what_its_final_saw_beside_the_default(store: Store, task: Task) -> None:
    stored = trials(task)
    store.add_workloads([workload_record(task)])
    store.add_trials(stored)
    machine = stored[0].device_model
    store.promote(
        "final",
        Final(
            BestKey(task.workload.key, task.target.text, machine),
            TrialKey("job", stored[3].task, 3), None, Verdict.BETTER, speedup_over_default=1.25,
        ),
    )  # fmt: skip
    found = outcome(Database(store), ended(task), [task])
    assert gain_text(found.rows) == "all tasks: 132 µs, 1.25x the defaults' 165 µs"


def test_without_a_record_the_default_is_what_a_build_gets(store: Store, task: Task) -> None:
    found = outcome(Database(store), ended(task, "another"), [task])
    assert gain_text(found.rows) == "all tasks: 120 µs, 1.00x the defaults' 120 µs"
    assert found.statuses == ("default",)


def test_the_tasks_of_a_stored_job_are_those_that_were_submitted(task: Task) -> None:
    job = Job("j", task.target.text, (JobTask(workload_record(task), 3),), Budget())
    (found,) = tasks_of(job)
    assert (found.workload.key, found.target, found.weight) == (
        task.workload.key,
        task.target,
        task.weight,
    )


def workload_record(task: Task) -> WorkloadRecord:
    work = task.workload
    return WorkloadRecord(work.key, work.text, work.summary, work.flops)
