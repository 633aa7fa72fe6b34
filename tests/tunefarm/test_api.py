"""Mistakes in calls from Python: each one sentence of TunefarmError, before anything is done."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tunefarm.compiler.errors import (
    BuildError,
    ModelError,
    ScheduleError,
    ShapeError,
    TunefarmError,
)
from tunefarm.compiler.ir import IRModule

import tunefarm
from tunefarm import schedule, te


@pytest.fixture
def module(model: str) -> IRModule:
    return tunefarm.from_onnx(model)


def doubled() -> te.PrimFunc:
    x = te.placeholder((30,), name="x")
    return te.create_prim_func([x, te.compute((30,), lambda i: x[i] * 2.0, name="y")])


def test_a_path_is_no_module(model: str) -> None:
    with pytest.raises(TunefarmError, match="extract_tasks takes a module, as from_onnx reads one"):
        tunefarm.extract_tasks(model)  # type: ignore[arg-type]
    with pytest.raises(TunefarmError, match=r"build takes .* not 'm.onnx' \(str\)"):
        tunefarm.build("m.onnx")  # type: ignore[call-overload]


def test_a_module_is_no_program(module: IRModule) -> None:
    with pytest.raises(TunefarmError, match=r"lower takes a program, .* not IRModule"):
        tunefarm.lower(module)  # type: ignore[arg-type]


def test_a_precision_is_a_known_word_and_for_models(module: IRModule) -> None:
    with pytest.raises(
        TunefarmError, match="'int4' is unknown; known: 'f32', 'tf32', 'bf16', 'fp16'"
    ):
        tunefarm.build(module, precision="int4")
    with pytest.raises(TunefarmError, match="precision is for models"):
        tunefarm.build(doubled(), precision="bf16")  # type: ignore[call-overload]


def test_a_precision_makes_other_tasks(module: IRModule) -> None:
    zen = "llvm -mcpu=znver5"
    (plain,) = tunefarm.extract_tasks(module, zen)
    (rounded,) = tunefarm.extract_tasks(module, zen, "bf16")
    (allowed,) = tunefarm.extract_tasks(tunefarm.allow_precision(module, "bf16"), zen)
    assert plain.workload.key != rounded.workload.key == allowed.workload.key


def test_a_target_is_a_text(module: IRModule) -> None:
    with pytest.raises(TunefarmError, match=r"a target is a text or a Target, not 2 \(int\)"):
        tunefarm.build(module, 2)  # type: ignore[call-overload]


def test_an_open_shape_names_the_argument(tmp_path: Path, save_model: Callable[..., Path]) -> None:
    path = save_model(tmp_path / "open.onnx", rows="batch")
    with pytest.raises(ModelError, match=re.escape("shapes={'x': (1, 16)}")) as caught:
        tunefarm.from_onnx(path)
    assert "--shape" not in str(caught.value)
    for wrong in ("8x16", (8, "16"), (8.0, 16.0)):
        with pytest.raises(ModelError, match=r"shapes\['x'\] is .* expected whole numbers"):
            tunefarm.from_onnx(path, {"x": wrong})  # type: ignore[dict-item]
    with pytest.raises(ModelError, match="expected a dictionary"):
        tunefarm.from_onnx(path, (8, 16))  # type: ignore[arg-type]
    assert tunefarm.from_onnx(path, {"x": np.array([8, 16])}).main.params[0].type.shape == (8, 16)  # type: ignore[dict-item]


def test_passes_are_chosen_around_a_build(module: IRModule) -> None:
    from tunefarm.compiler.transform import PassContext

    assert tunefarm.PassContext is PassContext
    x = {"x": np.ones((8, 16), "float32")}
    with tunefarm.PassContext(opt_level=0, disabled_pass=("check_types",)):
        y = tunefarm.build(module).run(x)["y"]
    np.testing.assert_allclose(y, 16.0)
    with pytest.raises(TunefarmError, match="opt_level is '3', expected a whole number"):
        tunefarm.PassContext(opt_level="3")  # type: ignore[arg-type]
    with pytest.raises(TunefarmError, match=r"disabled_pass is 'fuse_ops', expected a tuple"):
        tunefarm.PassContext(disabled_pass="fuse_ops")  # type: ignore[arg-type]


def test_records_that_are_none() -> None:
    with pytest.raises(TunefarmError, match=r"apply_history_best takes .* not int"):
        tunefarm.apply_history_best(5)  # type: ignore[arg-type]
    with pytest.raises(TunefarmError, match=r"apply_history_best takes .* not a list of str"):
        tunefarm.apply_history_best(["tunefarm.db"])  # type: ignore[list-item]


@pytest.mark.parametrize("trials", ["7", 0, -1, None, 1.5])
def test_a_budget_that_is_none(module: IRModule, trials: object) -> None:
    tasks = tunefarm.extract_tasks(module)
    with pytest.raises(TunefarmError, match=r"trials is .* expected a whole number from 1"):
        tunefarm.tune(tasks, trials=trials)  # type: ignore[arg-type]
    with pytest.raises(TunefarmError, match=r"seconds is .* expected a number above 0"):
        tunefarm.tune(tasks, seconds="9")  # type: ignore[arg-type]
    with pytest.raises(TunefarmError, match=r"seed is -1, expected a whole number from 0"):
        tunefarm.tune(tasks, seed=-1)


def test_tasks_that_are_none(module: IRModule) -> None:
    with pytest.raises(TunefarmError, match=r"tune takes a list of tasks, .* not IRModule"):
        tunefarm.tune(module)  # type: ignore[arg-type]


def test_inputs_are_given_by_name(module: IRModule, tmp_path: Path) -> None:
    lib = tunefarm.build(module)
    for wrong in (None, np.zeros((8, 16), "float32")):
        with pytest.raises(ShapeError, match="a dictionary of arrays by name; the model takes x"):
            lib.run(wrong)  # type: ignore[arg-type]
    place = tmp_path / "nowhere" / "model.so"
    with pytest.raises(BuildError, match=r"model.so cannot be written: .*nowhere is no folder"):
        lib.export_library(place)
    with pytest.raises(BuildError, match="cannot be written: Is a directory"):
        lib.export_library(tmp_path, name="model")


def test_loops_are_given_by_their_variables() -> None:
    program = doubled()
    (i,) = schedule.loops_of(program, "y")
    expected = r"a loop of main is given as 'i' \(str\), expected its variable; loops_of"
    for primitive in (
        schedule.split, schedule.fuse, schedule.reorder, schedule.vectorize, schedule.parallel
    ):  # fmt: skip
        with pytest.raises(ScheduleError, match=expected):
            primitive(program, "i")  # type: ignore[operator]
    for factor in (4.0, "4", None, 0):
        with pytest.raises(ScheduleError, match="split of i needs positive whole numbers"):
            schedule.split(program, i, factor)  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match=r"takes a program, not tuple; .*program, parts = "):
        schedule.vectorize(schedule.split(program, i, 8), i)  # type: ignore[arg-type]


def test_shapes_of_tensors() -> None:
    for shape in ((-1, 2), (2.5,), 4, ("n",)):
        with pytest.raises(ShapeError, match=r"x has the shape .* expected whole numbers from 0"):
            te.placeholder(shape)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="y has the shape"):
        te.compute((-3,), lambda i: te.const(1.0, "float32"), name="y")
    with pytest.raises(ShapeError, match="the reduce_axis k has the shape"):
        te.reduce_axis(-1)
    with pytest.raises(ShapeError, match="x has dtype 'float33'; known: bool"):
        te.placeholder((2,), "float33")


def test_tensors_of_a_program() -> None:
    x = te.placeholder((4,), name="x")
    y = te.compute((4,), lambda i: x[i] + 1.0, name="y")
    with pytest.raises(TunefarmError, match="needs a computed tensor too, got x alone"):
        te.create_prim_func([x])
    with pytest.raises(TunefarmError, match="needs a computed tensor too, got nothing alone"):
        te.create_prim_func([])
    with pytest.raises(TunefarmError, match="takes a list of tensors"):
        te.create_prim_func(y)  # type: ignore[arg-type]
    assert te.create_prim_func((x, y)).outputs == 1
