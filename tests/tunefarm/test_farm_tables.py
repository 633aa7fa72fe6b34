"""The tables of devices, jobs and tasks, at any width."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from rich.cells import cell_len
from rich.console import Console
from tunefarm.compiler.decisions import Decision, Status
from tunefarm.compiler.space import config_space
from tunefarm.compiler.version import compiler_version
from tunefarm.db.records import (
    FINAL,
    Budget,
    Device,
    ErrorKind,
    Job,
    JobState,
    Progress,
    TaskKey,
    Trial,
    WorkloadRecord,
)
from tunefarm.db.store import Store

from tunefarm.api import extract_tasks, from_onnx
from tunefarm.cli.app import run
from tunefarm.cli.devices import device_columns
from tunefarm.cli.jobs import job_columns
from tunefarm.cli.model import task_columns
from tunefarm.tables import Column, table

TARGET = "llvm -mcpu=emeraldrapids -num-cores=2"
DEVICE = Device(
    "farm-1-llvm-2",
    "llvm",
    "Intel(R) Xeon(R) Platinum 8581C CPU @ 2.10GHz 2 cores",
    TARGET,
    "farm-1",
    peaks={"flops_n": 4.1e11},
    noise=0.012,
    compiler_version=compiler_version(),
)
JOB = Job(
    "6f1d2c3b4a59687746352413f2e1d0c9",
    TARGET,
    (),
    Budget(640),
    state=JobState.CANCELLED,
    message="stopped from the keyboard",
    created_at=1.7e9,
    compiler_version=compiler_version(),
)
WIDTHS = (40, 60, 80, 100, 160)


def shown(columns: Sequence[Column], width: int) -> list[str]:
    out = Console(file=io.StringIO(), width=width)
    out.print(table(columns, width))
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue().splitlines()


@pytest.mark.parametrize("width", WIDTHS)
def test_devices_are_one_line_each_and_name_their_compiler(width: int) -> None:
    lines = shown(device_columns([DEVICE, DEVICE]), width)
    assert len(lines) == 4
    assert max(map(cell_len, lines)) <= width
    assert lines[-1].startswith(DEVICE.id)
    assert (compiler_version() in lines[-1]) == (width >= 80)


@pytest.mark.parametrize("width", WIDTHS)
def test_jobs_are_one_line_each_and_name_their_compiler(width: int) -> None:
    lines = shown(job_columns([JOB, JOB]), width)
    assert len(lines) == 4
    assert max(map(cell_len, lines)) <= width
    assert lines[-1].startswith(f"{JOB.id[:8]} ")
    assert (compiler_version() in lines[-1]) == (width >= 100)


@pytest.mark.parametrize("width", [60, 80])
def test_jobs_keep_the_names_of_their_models(width: int) -> None:
    named = replace(JOB, model_name="mobilenet v2", note="a quiet machine", selector="cores>=8")
    head, _, line = shown(job_columns([named]), width)
    assert "model" in head.split()
    assert "mobile" in line


def test_ids_of_jobs_are_as_long_as_tells_them_apart() -> None:
    other = replace(JOB, id=f"{JOB.id[:9]}0123")
    lines = shown(job_columns([JOB, other, other]), 80)
    assert [text.split()[0] for text in lines[2:]] == [JOB.id[:10], other.id[:10], other.id[:10]]


def test_what_is_known_of_each_task_fits_80_columns() -> None:
    tasks = extract_tasks(from_onnx(two_products().SerializeToString()), TARGET)
    decisions = [
        Decision(tasks[0].workload, tasks[0].target, Status.DEFAULT, {}, "", None, "no gain yet"),
        Decision(tasks[1].workload, tasks[1].target, Status.CONFIRMED, {}, ""),
    ]
    known = [
        Progress(TaskKey(t.workload.key, t.target.text), ok=61, failed=n)
        for n, t in enumerate(tasks)
    ]
    head, _, first, second = shown(task_columns(tasks, decisions, known), 80)
    assert max(map(cell_len, (head, first, second))) <= 80
    assert head.split() == ["task", "weight", "MFLOP", "trials", "failed", "status", "why"]
    assert first.split()[-5:] == ["61", "default", "no", "gain", "yet"]
    assert second.split()[-3:] == ["62", "1", "confirmed"]
    narrow = shown(task_columns(tasks, decisions, known), 50)
    assert narrow[0].split()[-2:] == ["trials", "status"]


def test_the_counts_of_tasks_come_from_the_database(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (task,) = extract_tasks(from_onnx(model))
    work, database = task.workload, str(tmp_path / "records.db")
    key = TaskKey(work.key, task.target.text)
    config = config_space(work, task.target).default
    failed = [Trial("j", key, n, config, error=ErrorKind.RUN_CRASH) for n in range(3)]
    with Store.open(database) as store:
        store.add_workloads([WorkloadRecord(work.key, work.text)])
        final = Trial("j", key, 4, config, (1e-3,), origin=FINAL)
        store.add_trials([*failed, Trial("j", key, 3, config, (1e-3,)), final])
    assert run(["tasks", model, "--db", database]) == 0
    _, head, _, row, _ = capsys.readouterr().out.splitlines()
    assert head.split()[3:6] == ["trials", "failed", "status"]
    assert re.search(r" 4 +3  target ", row)


def two_products() -> onnx.ModelProto:
    weights = [np.ones((16, 16), "float32"), np.ones((16, 8), "float32")]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w0"], ["h"]),
            helper.make_node("MatMul", ["h", "w1"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def test_a_job_without_a_device_names_no_compiler() -> None:
    (line,) = shown(job_columns([Job("1", TARGET, (), Budget(1))]), 200)[2:]
    assert "0.1.0" not in line
