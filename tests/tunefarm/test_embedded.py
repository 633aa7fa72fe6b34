"""A farm for as long as a command lasts, of which several may begin and end at once."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from tunefarm.compiler.target import Target
from tunefarm.db.records import OWNED, Job, JobState

from tests.patience import wait_for
from tunefarm import extract_tasks, from_onnx
from tunefarm.embedded import EmbeddedFarm
from tunefarm.farm import connect
from tunefarm.owners import is_alive, mark_of, own_mark
from tunefarm.tuning import make_job


def owned_job(model: str, mark: str) -> Job:
    """A job of many trials for the tasks of a model, of the command with this mark."""
    job = make_job(extract_tasks(from_onnx(model)), 5000, owned=True)
    return replace(job, options=job.options | {OWNED: mark})


def test_commands_that_begin_at_once_share_one_farm(model: str, tmp_path: Path) -> None:
    """They all find no tracker on a database that does not exist yet. When the one whose farm it
    is ends, another's goes on; nobody is told of trackers that came second."""
    job = owned_job(model, own_mark())
    farms = [EmbeddedFarm(str(tmp_path / "new.db"), job.target) for _ in range(3)]
    # Processes of a farm end with the thread that began them: the pool's live on.
    with warnings.catch_warnings(), ThreadPoolExecutor(3) as pool, ExitStack() as entered:
        warnings.simplefilter("error")
        list(pool.map(entered.enter_context, farms))
        (owner,) = (farm for farm in farms if farm.is_own)
        submitted = owner.client.submit_job(job)
        others = [farm for farm in farms if farm is not owner]
        for farm in others:
            assert [known.id for known in farm.client.jobs()] == [submitted.id]
        owner.__exit__(None, None, None)
        for farm in others:
            assert [known.id for known in farm.client.jobs()] == [submitted.id]
        wait_for(lambda: sum(farm.is_own for farm in others) == 1, "one owner")


def test_the_job_of_a_command_that_was_killed_is_ended(
    tracker: Callable[[Path], AbstractContextManager[str]],
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That of one that lives is not, though its tracker may just be about to start again. What lies
    in the folder where the command runs is none of its modules."""
    database = tmp_path / "jobs.db"
    mark = "from tunefarm.owners import own_mark; print(own_mark())"
    gone = subprocess.run([sys.executable, "-c", mark], capture_output=True, text=True, check=True)
    marks = {"gone": gone.stdout.strip(), "alive": mark_of(os.getppid()), "old": "1"}
    with tracker(database) as place, connect(place) as client:
        jobs = {
            whose: client.submit_job(owned_job(model, mark)).id for whose, mark in marks.items()
        }
    (tmp_path / "random.py").write_text("raise SystemExit('this is no module of the farm')")
    monkeypatch.chdir(tmp_path)
    with EmbeddedFarm(str(database), Target.host().text) as farm:
        states = {job.id: job.state for job in farm.client.jobs()}
    ended = {whose for whose, job in jobs.items() if states[job] is JobState.CANCELLED}
    assert ended == {"gone", "old"}


def test_logs_bear_the_name_of_their_database(tmp_path: Path) -> None:
    """Farms of two databases in a folder keep apart, and off files that are not theirs."""
    log = tmp_path / "tracker.log"
    log.write_text("somebody's")
    with EmbeddedFarm(str(tmp_path / "farm.db"), Target.host().text):
        logs = {path.name for path in tmp_path.glob("*.log")}
    assert log.read_text() == "somebody's"
    assert logs == {log.name} | {f"farm.db.{role}.log" for role in ("tracker", "worker", "tuner")}


def test_marks_of_processes() -> None:
    assert is_alive(own_mark())
    assert not is_alive(f"{os.getpid()}/1")
    assert not any(map(is_alive, ["", "1", "1/", "x/2", f"{1 << 22}/5"]))
