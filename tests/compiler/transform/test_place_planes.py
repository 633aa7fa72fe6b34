"""Transposed concatenations: parts that stand one behind the other are turned into their places."""

from __future__ import annotations

import numpy as np
import pytest
from pass_harness import agree, kernels_in, module_of, var
from tunefarm.compiler.ir import Expr
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import optimize
from tunefarm.compiler.transform.place_planes import place_planes

TARGET = Target("llvm -mcpu=haswell -num-cores=2")
RNG = np.random.default_rng(3)


def joined(*shapes: tuple[int, ...], axis: int, axes: tuple[int, ...]) -> Expr:
    parts = [var(f"x{n}", *shape) for n, shape in enumerate(shapes)]
    return call("transpose", call("concat", *parts, axis=axis), axes=axes)


@pytest.mark.parametrize(
    ("shapes", "axis", "axes"),
    [
        (((1, 5, 7, 16), (1, 5, 7, 32)), 3, (0, 3, 1, 2)),
        (((1, 5, 7, 3), (1, 5, 7, 9), (1, 5, 7, 1)), -1, (0, 3, 1, 2)),
        (((9, 4), (9, 8)), 1, (1, 0)),
    ],
)
def test_parts_behind_each_other_are_turned_alone(
    shapes: tuple[tuple[int, ...], ...], axis: int, axes: tuple[int, ...]
) -> None:
    parts = [var(f"x{n}", *shape) for n, shape in enumerate(shapes)]
    body = call("transpose", call("concat", *parts, axis=axis), axes=axes)
    module = module_of(parts, body)
    optimized = optimize(module, TARGET)
    inputs = {p.name: RNG.standard_normal(p.type.shape, np.float32) for p in parts}
    agree(optimized, module, inputs)
    assert sorted(kernels_in(optimized)) == ["concat", *["transpose"] * len(shapes)]


@pytest.mark.parametrize(
    "body",
    [
        joined((2, 5, 7, 16), (2, 5, 7, 32), axis=3, axes=(0, 3, 1, 2)),  # of two images
        joined((1, 5, 7, 16), (1, 6, 7, 16), axis=1, axes=(0, 3, 1, 2)),  # rows of each plane
    ],
)
def test_interleaved_parts_stay(body: Expr) -> None:
    module = module_of([], body)
    assert place_planes(module, TARGET) is module


def test_what_others_read_is_joined_once() -> None:
    x, y = var("x", 1, 5, 7, 16), var("y", 1, 5, 7, 16)
    whole = call("concat", x, y, axis=3)
    body = call(
        "add",
        call("transpose", whole, axes=(0, 3, 1, 2)),
        call("sum", whole, axes=(1, 2, 3), keepdims=True),
    )
    module = module_of([x, y], body)
    assert place_planes(module, TARGET) is module
    assert place_planes(module, Target("cuda -arch=sm_90a")) is module
