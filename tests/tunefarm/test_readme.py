"""The README's blocks do what they say: its Python runs, and so do its commands, in their order."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tunefarm.compiler.settings import SETTINGS

from tests.ports import own_port

README = Path(__file__).parents[2] / "README.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
TRIALS = 6


def section(title: str, language: str = "") -> str:
    """The first block of a language in a section."""
    text = README.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    return next(block for kind, block in BLOCK.findall(text) if kind == language)


def commands(title: str) -> list[str]:
    return [line.split("  #")[0].strip() for line in section(title).splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with ``model.onnx``: a small convolution of ``x``, 1×3×224×224."""
    weights = np.ones((8, 3, 7, 7), "float32")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], strides=[7, 7])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 224, 224])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, tmp_path / "model.onnx")
    return tmp_path


def shell(command: str, folder: Path) -> str:
    """Run one command of the README with few trials or turns; its output."""
    if command.split()[1] in ("tune", "submit"):
        command += f" --trials {TRIALS}"
    if command.split()[1] == "bench":
        command += " --repeat 2"
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment(), timeout=120,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def environment() -> dict[str, str]:
    return os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("Tune and build a model", "promoted record"),
        ("One operator by hand", "vfmadd"),
        ("Other CPUs", "fmla"),
        ("A sketch of your own", ""),
    ],
)
def test_the_python_runs(folder: Path, title: str, expected: str) -> None:
    code = section(title, "python").replace("trials=1000", f"trials={TRIALS}")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout


def test_another_cpu_is_built_for(folder: Path) -> None:
    for command in commands("Other CPUs"):
        assert "wrote model.o and model.h" in shell(command, folder)
    assert (folder / "model.o").read_bytes()[:4] == b"\x7fELF"


def test_every_setting_is_there() -> None:
    table = README.read_text().split("\n## Settings\n")[1].split("```")[0].strip().splitlines()
    assert table[2:] == [f"| `{setting.name}` | {setting.help} |" for setting in SETTINGS]


def test_the_stages_of_a_build_are_kept(folder: Path) -> None:
    shown = [shell(command, folder) for command in commands("Settings")]
    names = shown[1].split()
    assert "00-import.txt" in names
    assert any(name.endswith("-fuse-ops.txt") for name in names)
    assert {"00-function.txt", "02-scheduled.txt"} < set(shown[2].split())


def test_a_model_is_tuned_and_its_records_are_used(folder: Path) -> None:
    shown = [shell(c, folder) for c in commands("Tune and build a model") + commands("Records")]
    assert "tune the rest with: tunefarm tune model.onnx" in shown[0]
    assert f"{TRIALS}/{TRIALS} trials" in shown[1]
    assert "0 default, 0 stale" in shown[2]
    assert ("1 tuned" in shown[2]) != ("1 confirmed" in shown[2])
    assert (folder / "model.so").exists()
    assert shown[2].splitlines()[0] in shown[3]
    assert "0 were known" not in shown[-1]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core is not two")
def test_a_model_is_timed_beside_other_libraries_and_the_machine(folder: Path) -> None:
    commands_ = commands("Beside other libraries, and beside the machine")
    raced, listed = (shell(command, folder) for command in commands_)
    assert raced.count("  onnxruntime 1.") == 2
    assert "2 cores: tunefarm runs" in raced
    assert "at the roof" in listed
    assert "wrote roofs.svg" in listed
    assert (folder / "roofs.svg").read_text().startswith("<?xml")


@contextlib.contextmanager
def background(lines: list[str], folder: Path) -> Iterator[None]:
    running = []
    try:
        for line in lines:
            process = subprocess.Popen(
                line.rstrip("& ").split(), cwd=folder, env=environment(), stdout=subprocess.PIPE
            )
            running.append(process)
            assert process.stdout is not None
            if "tuner" not in line:
                assert process.stdout.readline(), line  # it is ready
        yield
    finally:
        for process in reversed(running):
            process.terminate()
            process.communicate(timeout=120)


def test_a_farm_of_several_processes(folder: Path) -> None:
    port = str(own_port())
    lines = [c.replace("9190", port) for c in commands("A farm of several processes")]
    daemons = [line for line in lines if line.endswith("&")]
    assert len(daemons) == 3
    with background(daemons, folder):
        *asked, tuned = [line for line in lines if line not in daemons]
        shown = [shell(line, folder) for line in asked]
        job = shown[0].strip()[:8]
        shell(f"tunefarm watch {job} --tracker 127.0.0.1:{port}", folder)  # its trials are all in
        again = shell(tuned, folder)
    assert f"\n{job} " in shown[1]
    assert "idle" in shown[2] or "leased" in shown[2]
    assert f"nothing to do: the database has {TRIALS} trials of these tasks" in again
