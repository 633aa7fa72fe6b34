"""Builds report what has no record, and commands show it; jobs queue again."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tunefarm.compiler.errors import TunefarmError
from tunefarm.db.records import Budget, Job, JobState, JobTask, WorkloadRecord
from tunefarm.proto.client import FarmClient

import tunefarm
from tunefarm.cli.app import run
from tunefarm.farm import connect


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The rendezvous file of a tracker that no worker serves."""
    folder = tmp_path_factory.mktemp("farm")
    rendezvous = str(folder / "farm.tracker.json")
    command = [sys.executable, "-m", "tunefarm", "tracker", "--db", str(folder / "farm.db")]
    process = subprocess.Popen(
        [*command, "--rendezvous", rendezvous],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TUNEFARM_HOME": str(folder / "home")},
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    yield rendezvous
    process.kill()
    process.communicate()


@pytest.fixture
def farm(tracker: str) -> Iterator[FarmClient]:
    with connect(tracker) as client:
        yield client


@pytest.fixture
def twice(tmp_path: Path) -> str:
    """A model that runs one product twice, with different weights."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((32, 32)).astype("float32") for _ in range(2)]
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("MatMul", ["h", "b"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, n) for w, n in zip(weights, "ab", strict=True)],
    )
    opset = [helper.make_opsetid("", 18)]
    path = tmp_path / "twice.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return str(path)


def test_a_build_reports_what_has_no_record(
    twice: str, tracker: str, farm: FarmClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = str(tmp_path / "m.so")
    assert run(["misses", "--tracker", tracker]) == 0
    assert "no build has reported an untuned task" in capsys.readouterr().out
    for _ in range(2):
        command = ["build", twice, "-o", output, "--tracker", tracker, "--report-misses"]
        assert run(command) == 0, capsys.readouterr().err
        assert "reported 1 untuned task: `tunefarm misses`" in capsys.readouterr().out
    (miss,) = farm.misses()
    assert (miss.weight, miss.builds, miss.job) == (2, 2, "")
    assert 0 < miss.roofline_s < miss.default_s < 1e-2
    assert run(["misses", "--tracker", tracker]) == 0
    head, _, row = capsys.readouterr().out.splitlines()[:3]
    assert head.split()[:2] == ["task", "target"]
    assert "matmul" in row


def test_without_a_farm_there_is_nobody_to_report_to(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["build", model, "-o", str(tmp_path / "m.so"), "--report-misses"]) == 2
    assert "--report-misses needs a farm to report to" in capsys.readouterr().err
    with pytest.raises(TunefarmError, match="the source is given records"):
        tunefarm.apply_history_best([], report_misses=True)


def test_a_farm_that_cannot_take_the_report_breaks_no_build(
    model: str, tracker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: FarmClient, misses: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(FarmClient, "report_misses", refuse)
    source = f"tracker://{tracker}"
    with tunefarm.apply_history_best(source, report_misses=True) as history:
        for expected in ("untuned tasks could not be reported to tracker://", ""):
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                tunefarm.build(tunefarm.from_onnx(model))
            assert [str(one.message)[:49] for one in told] == ([expected] if expected else [])
    assert len(history.decisions) == 1


def test_a_cancelled_job_queues_again(
    farm: FarmClient, tracker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    key = hashlib.sha256(b"text").hexdigest()
    job = farm.submit_job(Job("", "sim", (JobTask(WorkloadRecord(key, "text")),), Budget(8)))
    assert run(["cancel", job.id, "--tracker", tracker]) == 0
    for before in ("cancelled", "queued"):
        assert run(["jobs", "retry", job.id[:8], "--tracker", tracker]) == 0
        told = capsys.readouterr().out.splitlines()[-1]
        assert told == f"{job.id[:8]} was {before}, and is queued"
    claimed = farm.claim_job(tuner="t", job=job.id)
    assert claimed is not None
    farm.finish_job(claimed, JobState.SUCCEEDED)
    assert run(["jobs", "retry", job.id, "--tracker", tracker]) == 2
    assert "has succeeded; submit the model again" in capsys.readouterr().err
    assert run(["jobs", "--tracker", tracker]) == 0
    assert "succeeded" in capsys.readouterr().out
