"""Python's ``tune`` shows what it does, unless told otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
from tunefarm.compiler.ir import Function, IRModule, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.db.records import JobUpdate

import tunefarm


def test_progress_is_on_the_standard_error_stream(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, w = (Var(name, TensorType((24, 24), "float32")) for name in "xw")
    module = IRModule({"main": Function((x, w), call("matmul", x, w))})
    tasks = tunefarm.extract_tasks(module)
    tunefarm.tune(tasks, db=str(tmp_path / "a.db"), trials=2)
    shown = capsys.readouterr()
    assert "2/2 trials" in shown.err
    assert "matmul 24x24" in shown.err
    assert shown.out == ""

    updates: list[JobUpdate] = []
    tunefarm.tune(tasks, db=str(tmp_path / "b.db"), trials=2, watch=updates.append)
    assert updates
    tunefarm.tune(tasks, db=str(tmp_path / "c.db"), trials=2, progress=False)
    assert capsys.readouterr().err == ""
