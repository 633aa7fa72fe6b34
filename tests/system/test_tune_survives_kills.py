"""``tunefarm tune`` as a user runs it: real processes, killed, interrupted and started again."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.patience import wait_for

LIMIT_S = 150.0
TRIALS = 44


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """One small MatMul with constant weights."""
    weights = np.random.default_rng(0).standard_normal((96, 80)).astype("float32")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 96])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [64, 80])],
        [numpy_helper.from_array(weights, "w")],
    )
    path = tmp_path / "product.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


class Tuning:
    """A running ``tunefarm tune`` with a data folder of its own."""

    def __init__(self, model: Path, home: Path, trials: int) -> None:
        self.database = home / "tunefarm.db"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tunefarm", "tune", str(model), "--trials", str(trials)],
            env={**os.environ, "TUNEFARM_HOME": str(home), "TUNEFARM_CACHE": str(home / "cache")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def member(self, role: str) -> psutil.Process:
        """The farm process of a role."""
        for child in psutil.Process(self.process.pid).children():
            command = " ".join(child.cmdline()).partition(" -m tunefarm ")[2]
            if command.startswith(role):
                return child
        raise LookupError(role)

    def numbers(self) -> list[int]:
        """Numbers of the trials in the database, in order."""
        if not self.database.exists():
            return []
        try:
            with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as connection:
                rows = connection.execute("SELECT number FROM trials ORDER BY id").fetchall()
        except sqlite3.OperationalError:
            return []
        return [n for (n,) in rows]

    def wait_until(self, done: Callable[[], bool]) -> None:
        def happened() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            return done()

        wait_for(happened, seconds=LIMIT_S)

    def finish(self) -> tuple[str, str]:
        return self.process.communicate(timeout=LIMIT_S)


@pytest.fixture
def tuning(model: Path, tmp_path: Path) -> Iterator[Callable[[int], Tuning]]:
    started: list[Tuning] = []

    def start(trials: int) -> Tuning:
        started.append(Tuning(model, tmp_path / "home", trials))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.terminate()
            one.process.wait(90)


def test_a_job_finishes_though_every_process_of_the_farm_is_killed(
    tuning: Callable[[int], Tuning],
) -> None:
    run = tuning(TRIALS)
    for role, trials in (("worker", 4), ("tracker", 14), ("tuner", 24)):
        run.wait_until(lambda trials=trials: len(run.numbers()) >= trials)
        acknowledged = run.numbers()
        run.member(role).kill()
        known = len(acknowledged)
        run.wait_until(lambda known=known: len(run.numbers()) > known)
        assert run.numbers()[: len(acknowledged)] == acknowledged, f"lost trials with the {role}"
    output, errors = run.finish()
    assert run.process.returncode == 0, errors
    assert "succeeded" in output
    numbers = sorted(run.numbers())
    assert numbers == list(range(len(numbers))), "a trial is missing or stored twice"
    assert TRIALS <= len(numbers) <= TRIALS + 2, "the budget, and the paired final"


def test_ctrl_c_keeps_every_trial_and_a_second_run_goes_on(
    tuning: Callable[[int], Tuning],
) -> None:
    first = tuning(400)
    first.wait_until(lambda: len(first.numbers()) >= 10)
    family = psutil.Process(first.process.pid).children(recursive=True)
    first.process.send_signal(signal.SIGINT)
    _, errors = first.finish()
    assert first.process.returncode == 130
    assert "every finished trial is kept" in errors
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive, "processes of the farm were left behind"
    kept = len(first.numbers())
    assert kept >= 10

    second = tuning(kept + 4)
    output, errors = second.finish()
    assert second.process.returncode == 0, errors
    assert re.search(r"^[45] trials", output, re.MULTILINE), output
    third = tuning(kept)
    output, _ = third.finish()
    assert "nothing to do" in output


def test_two_runs_on_one_database_share_its_farm(tuning: Callable[[int], Tuning]) -> None:
    first = tuning(40)
    first.wait_until(lambda: len(first.numbers()) >= 1)
    second = tuning(48)
    for run in (first, second):
        _, errors = run.finish()
        assert run.process.returncode == 0, errors
