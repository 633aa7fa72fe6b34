"""The tables of devices and jobs: whose compiler measures, at any width."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.cells import cell_len
from rich.console import Console
from tunefarm.compiler.version import compiler_version
from tunefarm.db.records import Budget, Device, Job, JobState

from tunefarm.cli.farm import device_columns
from tunefarm.cli.jobs import job_columns
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
    assert lines[-1].startswith(JOB.id)
    assert (compiler_version() in lines[-1]) == (width >= 160)


def test_a_job_without_a_device_names_no_compiler() -> None:
    (line,) = shown(job_columns([Job("1", TARGET, (), Budget(1))]), 200)[2:]
    assert "0.1.0" not in line
