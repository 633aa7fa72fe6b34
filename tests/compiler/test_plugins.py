"""Plug-ins as packages on the path: loaded once, left out with one sentence, told apart by their
code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HEAD = """
import json, logging
logging.basicConfig(level=logging.WARNING, format="%(message)s")
from tunefarm.compiler import plugins
from tunefarm.compiler.errors import PluginError, PluginMismatch
from tunefarm.compiler.ir import Function, TensorType, Var
from tunefarm.compiler.ops import call, find
from tunefarm.compiler.space import config_space, plugins_of, schedule_workload
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

def workload(op):
    x = Var("x", TensorType((8, 8), "float32"))
    return Workload.from_function(Function((x,), call(op, x), {"primitive": True, "constants": ()}))

target = Target("llvm -mcpu=haswell")

def refusal(action):
    try:
        action()
    except PluginError as error:
        return str(error)
"""
OPERATOR = """
from tunefarm.compiler import te
from tunefarm.compiler.ops.base import Op
print("imported", NAME)
def compute(tensors, attrs, type):
    return te.compute(type.shape, lambda *i: tensors[0][i] * 2.0, NAME)
def infer(types, attrs):
    if types[0].shape[0] == 3:
        raise KeyError("three")
    return types[0]
OPERATOR = Op(NAME, infer, compute, lambda arrays, attrs: arrays[0] * 2)
"""
SKETCH = """
from tunefarm.compiler.space import Sketch, SketchSpace, Knob
def space(function, target):
    return SketchSpace("odd", 1, (Knob("a", (1, 2)),), (), {"sketch": "odd", "a": 1}, None)
def schedule(function, target, config):
    return {}[config["a"]]
SKETCH = Sketch("odd", space, schedule)
"""


def package(folder: Path, name: str, source: str, entries: str, version: str = "0.1") -> Path:
    """An installed package of one module."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entries)
    (folder / f"{name}.py").write_text(source)
    return folder


def operator(folder: Path, name: str = "twice", **fields: Any) -> Path:
    entries = f"[tunefarm.operators]\n{name} = {name}:OPERATOR\n"
    return package(folder, name, f"NAME = {name!r}\n{OPERATOR}", entries, **fields)


def sketch(folder: Path, **fields: Any) -> Path:
    entries = "[tunefarm.sketches]\nodd = odd:SKETCH\n"
    return package(folder, "odd", SKETCH, entries, **fields)


def run(code: str, *folders: Path) -> tuple[Any, str]:
    """What the code leaves in ``told``, and all that it printed before."""
    path = os.pathsep.join(map(str, folders))
    done = subprocess.run(
        [sys.executable, "-c", f"{HEAD}\n{code}\nprint(json.dumps(told))"],
        env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    *lines, told = done.stdout.splitlines()
    return json.loads(told), "\n".join(lines)


def test_an_operator_is_loaded_when_it_is_first_asked_for(tmp_path: Path) -> None:
    code = """
x = Var("x", TensorType((8, 8), "float32"))
call("relu", x)
print("known operators need no plug-in")
told = [find("twice").name, find("thrice")]
config_space(workload("twice"), target)
told.append(plugins_of(workload("twice"), target))
told.append(plugins_of(workload("relu"), target))
"""
    told, printed = run(code, operator(tmp_path))
    assert printed == "known operators need no plug-in\nimported twice"
    assert told[:2] == ["twice", None]
    assert told[2][0].startswith("twice==0.1+")
    assert told[3] == []


@pytest.mark.parametrize(
    ("source", "entries", "why"),
    [
        ("1 / 0", "[tunefarm.operators]\na = bad:A", "cannot be loaded: ZeroDivisionError: div"),
        ("import sys; sys.exit(1)", "[tunefarm.sketches]\na = bad:A", "cannot be loaded: Syste"),
        ("A = 1", "[tunefarm.sketches]\na = bad:A", "names a int, expected a Sketch or several"),
        ("", "[tunefarm.sketches]\na = bad:A", "cannot be loaded: AttributeError: module 'bad'"),
    ],
)
def test_a_broken_package_is_left_out_with_one_sentence(
    tmp_path: Path, source: str, entries: str, why: str
) -> None:
    good = operator(tmp_path / "good")
    bad = package(tmp_path / "bad", "bad", source, entries)
    code = """
config_space(workload("twice"), target)
config_space(workload("relu"), target)
told = [list(plugins.loaded()), plugins.broken()]
"""
    told, printed = run(code, good, bad)
    assert told[0] == ["twice"]
    sentence = told[1]["bad"]
    assert sentence.startswith("plug-in bad 0.1: entry point a of tunefarm.")
    assert why in sentence
    assert printed.splitlines() == [
        f"{sentence}; the package is left out", "imported twice",
    ]  # fmt: skip


def test_two_packages_with_one_name_do_not_mix(tmp_path: Path) -> None:
    first = operator(tmp_path / "first")
    entries = "[tunefarm.operators]\ntwice = other:OPERATOR\n"
    source = f"NAME = 'twice'\n{OPERATOR}"
    second = package(tmp_path / "second", "other", source, entries)
    told, _ = run("find('x'); told = [list(plugins.loaded()), plugins.broken()]", first, second)
    assert told == [
        ["other"],
        {"twice": "plug-in twice 0.1: the operator 'twice' is there already"},
    ]


def test_faults_of_a_plugin_are_one_sentence(tmp_path: Path) -> None:
    code = """
three = Var("x", TensorType((3, 8), "float32"))
relu = workload("relu")
told = [
    refusal(lambda: call("twice", three)),
    refusal(lambda: schedule_workload(relu, target, {"sketch": "odd", "a": 2})),
]
"""
    told, printed = run(code, operator(tmp_path / "a"), sketch(tmp_path / "b"))
    assert told == [
        "operator 'twice' of plug-in twice 0.1 failed: KeyError: 'three'; "
        "the log (--verbose) has the traceback",
        "sketch 'odd' of plug-in odd 0.1 failed: KeyError: 2; "
        "the log (--verbose) has the traceback",
    ]
    assert printed == "imported twice"


SPACES = """
relu = workload("relu")
space = config_space(relu, target)
with plugins.using(()):
    plain = config_space(relu, target)
told = {
    "plugins": plugins_of(relu, target), "fingerprint": space.fingerprint,
    "own": space.own_fingerprint, "without": plain.fingerprint,
    "sketches": [s.sketch for s in space.sketches], "plain": [s.sketch for s in plain.sketches],
}
"""


def test_a_version_and_a_source_tell_plugins_apart(tmp_path: Path) -> None:
    first, _ = run(SPACES, sketch(tmp_path / "1"))
    newer, _ = run(SPACES, sketch(tmp_path / "2", version="0.2"))
    edited = sketch(tmp_path / "3")
    (edited / "odd.py").write_text(SKETCH.replace("{}[", "{1: 2}["))
    other, _ = run(SPACES, edited)
    assert first["sketches"] == [*first["plain"], "odd"]
    assert first["own"] == first["without"] != first["fingerprint"]
    assert newer["fingerprint"] != first["fingerprint"] == other["fingerprint"]
    assert newer["own"] == first["own"]
    versions = [told["plugins"][0] for told in (first, newer, other)]
    assert [version.partition("+")[0] for version in versions] == [
        "odd==0.1", "odd==0.2", "odd==0.1",
    ]  # fmt: skip
    assert versions[0] != versions[2]


def test_only_the_very_plugin_will_do(tmp_path: Path) -> None:
    code = """
def use(text):
    with plugins.using([text]):
        pass
here = str(plugins.loaded()["odd"])
use(here)
told = [here, refusal(lambda: use("odd==0.3+00000000")), refusal(lambda: use("even==1+0"))]
"""
    (here, other, absent), _ = run(code, sketch(tmp_path))
    rest = "; install the same one for clients, tuners and workers, and start them again"
    assert other == f"plug-in odd==0.3+00000000 is wanted, and here is {here}{rest}"
    assert absent == f"plug-in even==1+0 is wanted, and it is not installed here{rest}"


def test_a_package_in_a_namespace_is_known_by_its_own_sources(tmp_path: Path) -> None:
    inside = tmp_path / "acme" / "tuning"
    inside.mkdir(parents=True)
    (inside / "__init__.py").write_text("raise ImportError('not to be imported')\n")
    (inside / "odd.py").write_text(SKETCH)
    entries = "[tunefarm.sketches]\nodd = acme.tuning.odd:SKETCH\n"
    package(tmp_path, "unused", "", entries)
    code = "told = [plugin.digest for plugin in plugins.installed()]"
    before, _ = run(code, tmp_path)
    (inside / "odd.py").write_text(f"{SKETCH}\n")
    after, _ = run(code, tmp_path)
    (tmp_path / "acme" / "other.py").write_text("1")
    assert run(code, tmp_path)[0] == after != before
