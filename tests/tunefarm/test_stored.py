"""Commands on jobs while no farm runs: answered from the database, or told what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Task
from tunefarm.db import jobs, misses
from tunefarm.db.records import JobState, Miss, TaskKey, Trial, WorkloadRecord
from tunefarm.db.store import Store
from tunefarm.proto.rendezvous import Rendezvous, write_rendezvous

from tunefarm import api
from tunefarm.cli.app import UNAVAILABLE, run
from tunefarm.tuning import make_job


@pytest.fixture
def task(model: str) -> Task:
    (found,) = api.extract_tasks(api.from_onnx(model), Target.host())
    return found


@pytest.fixture
def database(home: Path) -> Path:
    """The database of an embedded farm that has ended; its rendezvous file is still there."""
    home.mkdir()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    found = Rendezvous("127.0.0.1:40855", "secret", pid=ended.pid)
    write_rendezvous(home / "tunefarm.db.tracker.json", found)
    path = home / "tunefarm.db"
    Store.open(str(path)).close()
    return path


def add_job(database: Path, task: Task, *, over: bool) -> str:
    """A job with one trial, its default."""
    with Store.open(str(database)) as store, store.writing() as connection:
        job = jobs.submit(connection, make_job([task], 16))
        claimed = jobs.claim(connection, "tuner", job.id)
        assert claimed is not None
        if over:
            jobs.finish(connection, job.id, claimed.claim_epoch, JobState.SUCCEEDED, "")
    config = config_space(task.workload, task.target).default
    key = TaskKey(task.workload.key, task.target.text)
    with Store.open(str(database)) as store:
        store.add_trials([Trial(job.id, key, 0, config, (1e-4,))])
    return job.id


def test_a_job_that_is_over_is_shown_from_the_database(
    database: Path, task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    job = add_job(database, task, over=True)
    assert run(["watch", job[:8]]) == 0
    first, *_, sums, last = capsys.readouterr().out.splitlines()
    assert first.startswith("succeeded, 1/16 trials")
    assert sums == "1 trial; all tasks: 100 µs, 1.00x the defaults' 100 µs"
    assert last.startswith("1 task had no candidates timed")
    assert run(["cancel", job[:8], "--db", str(database)]) == 0
    assert capsys.readouterr().out == f"{job[:8]} was over already: succeeded\n"
    assert run(["jobs", "retry", job[:8], "--db", str(database)]) == 2
    assert "has succeeded; tune the model again to go on" in capsys.readouterr().err


def test_a_job_that_is_open_waits_for_a_farm(
    database: Path, task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    job = add_job(database, task, over=False)
    missing = f"no farm runs for {database}; start one with `tunefarm tracker`"
    for command in ("watch", "cancel"):
        assert run([command, job]) == 2
        said = capsys.readouterr().err
        assert said == f"tunefarm: job {job[:8]} is running, and {missing}\n"


@pytest.mark.parametrize("command", ["watch", "cancel"])
def test_an_unknown_job_is_unknown_without_a_farm_too(
    database: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "99"]) == 2
    assert capsys.readouterr().err == ("tunefarm: there is no job 99; `tunefarm jobs` lists them\n")


@pytest.mark.parametrize("rendezvous", [True, False])
def test_no_dead_port_is_named(
    database: Path, model: str, rendezvous: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if not rendezvous:
        database.with_name("tunefarm.db.tracker.json").unlink()
    waiting = [] if rendezvous else [["worker"], ["tuner"]]
    for command in (["devices"], ["submit", model], *waiting):
        assert run(command) == UNAVAILABLE
        said = capsys.readouterr().err
        assert said == (
            f"tunefarm: no farm runs for {database}; start one with `tunefarm tracker`\n"
        )


def test_a_file_that_no_tracker_wrote_is_said_to_be_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "farm.json"
    assert run(["devices", "--tracker", str(missing)]) == UNAVAILABLE
    assert capsys.readouterr().err == (
        f"tunefarm: there is no {missing}; a tracker writes it when it starts\n"
    )


def test_a_database_of_ones_own_is_named_in_the_command(
    database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "farm.db"
    assert run(["watch", "1", "--db", str(other)]) == UNAVAILABLE
    assert f"`tunefarm tracker --db {other}`" in capsys.readouterr().err
    assert run(["watch", "1", "--db", str(other), "--tracker", "127.0.0.1:1"]) == 2
    assert "not both" in capsys.readouterr().err


def test_misses_are_listed_from_the_database(
    database: Path, task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    job = add_job(database, task, over=True)
    work = WorkloadRecord(task.workload.key, task.workload.text, task.workload.summary)
    with Store.open(str(database)) as store, store.writing() as connection:
        miss = Miss(work, task.target.text, default_s=2e-3, roofline_s=1e-3)
        misses.report(connection, "r1", [miss])
        misses.assign(connection, [miss], job)
    for words in ([], ["--db", str(database)]):
        assert run(["misses", *words]) == 0
        *_, line = capsys.readouterr().out.splitlines()
        assert line.startswith(task.workload.summary)
        assert line.endswith(f"{job[:8]} succeeded")
