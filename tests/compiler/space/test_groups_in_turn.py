"""Tiles of rows that take the groups of a convolution in turn: where, by default, and in what
order of loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sketch_harness import check, function_of
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space import config_space, schedule_workload
from tunefarm.compiler.space.contraction.shape import contraction_of, groups_of
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.workload import Workload

ZEN3 = Target("llvm -mcpu=znver3 -num-cores=1")


def convolution(
    size: int, channels: tuple[int, int], groups: int, stride: int = 1, batch: int = 1,
    constants: tuple[int, ...] = (1,), dtypes: tuple[str, str] = ("float32", "float32"),
    **attrs: Any,
) -> Function:  # fmt: skip
    """A 3×3 convolution of ``groups`` of ``channels`` (inputs, outputs)."""
    inputs, outputs = channels
    attrs = {
        "strides": (stride, stride), "padding": ((1, 1), (1, 1)), "groups": groups,
        "data_layout": "NSC", "kernel_layout": "SIO", **attrs,
    }  # fmt: skip
    if attrs["data_layout"] == "NSC":
        shapes = (batch, size, size, inputs * groups), (3, 3, inputs, outputs * groups)
    else:
        shapes = (batch, inputs * groups, size, size), (outputs * groups, inputs, 3, 3)
    made = function_of("conv", *zip(shapes, dtypes, strict=True), **attrs)
    return Function(made.params, made.body, {"primitive": True, "constants": constants})


def contraction_default(function: Function, target: Target = ZEN3) -> dict[str, Any]:
    space = config_space(Workload.from_function(function), target).sketch("contraction")
    return dict(space.default)


def orders(function: Function, sketch: str = "contraction") -> tuple[Any, ...]:
    space = config_space(Workload.from_function(function), ZEN3).sketch(sketch)
    return next(k.choices for k in space.knobs if k.name == "order")


def test_groups_are_inside_the_tiles_of_rows() -> None:
    function = convolution(14, (24, 24), 3)
    config = {**contraction_default(function), "order": "mtg"}
    program = schedule_workload(Workload.from_function(function), ZEN3, config)
    c = contraction_of(function)
    assert c is not None
    (group,) = groups_of(c)
    order = [v.name for v in s.loops_of(program, c.block)]
    tiles = [n for n, name in enumerate(order) if name.startswith(("y", "x"))]
    assert max(tiles[:2]) < order.index(group.name.partition(".")[0])


@pytest.mark.parametrize("size", [1, 5, 14])
@pytest.mark.parametrize("stride", [1, 2])
def test_results_agree(size: int, stride: int) -> None:
    function = convolution(size, (12, 20), 3, stride)
    workload, rng = Workload.from_function(function), np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, p.type.shape).astype("float32") for p in function.params]
    config = contraction_default(function)
    if "mtg" in orders(function):
        config["order"] = "mtg"
    check(workload, ZEN3, config, arrays, "execute")


@pytest.mark.parametrize(
    ("function", "in_turn"),
    [
        (convolution(28, (24, 24), 5), True),  # groups share lines
        (convolution(56, (64, 64), 2, 2), True),  # two pixels apart
        (convolution(28, (48, 48), 4), False),  # three lines each
        (convolution(28, (48, 16), 4), False),  # it is inputs that are read
        (convolution(7, (32, 32), 32), False),  # 1.2 MB of weights
    ],
    ids=["lines", "stride", "whole lines", "inputs", "weights"],
)
def test_where_lines_are_shared(function: Function, in_turn: bool) -> None:
    config = contraction_default(function)
    assert (config["order"] == "mtg") == in_turn
    if in_turn:
        assert config["next_panel"] == config["prefetch"] == 0


def test_cores_have_even_shares() -> None:
    """Seven rows of tiles are shared 4 to 3; those of a batch are even."""
    four = Target("llvm -mcpu=znver3 -num-cores=4")
    function = convolution(14, (24, 24), 4, 2)
    assert contraction_default(function)["order"] == "mtg"
    assert contraction_default(function, four)["order"] != "mtg"
    batch = convolution(14, (24, 24), 4, 2, batch=4)
    assert contraction_default(batch, four)["order"] == "mtg"


def test_only_groups_take_turns() -> None:
    """Not rows of an image, of channels first; nor where panels are copied; nor bytes."""
    planes = convolution(14, (64, 64), 1, data_layout="NCS", kernel_layout="OIS")
    assert "mtg" not in orders(planes)
    assert "mtg" not in orders(convolution(24, (32, 32), 4, 2, constants=()))
    narrow = convolution(28, (16, 16), 4, dtypes=("uint8", "int8"), out_dtype="int32")
    assert orders(narrow, "dot") == ("nm", "mn")
