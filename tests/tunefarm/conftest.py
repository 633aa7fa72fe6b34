"""Small models, and a data folder for each test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder of this test; it does not exist yet."""
    monkeypatch.setenv("TUNEFARM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def tracker() -> Callable[[Path], AbstractContextManager[str]]:
    """Starts a tracker alone on a database, for a with block that gets its rendezvous file."""
    return serving


@contextmanager
def serving(database: Path) -> Iterator[str]:
    place = database.with_suffix(".json")
    process = subprocess.Popen(
        [sys.executable, "-m", "tunefarm", "tracker", "--db", str(database), "--rendezvous", place],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("tracker listening")
        yield str(place)
    finally:
        process.terminate()
        process.communicate()


@pytest.fixture
def save_model() -> Callable[..., Path]:
    return save


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(save(tmp_path / "model.onnx"))


def save(path: Path, op: str = "MatMul", rows: int | str = 8) -> Path:
    """Write ``y = op(x, w)`` with x of (rows, 16) and w of ones, (16, 24)."""
    weights = np.ones((16, 24), "float32")
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w"], ["y"], name="first")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, "w")],
    )
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return path
