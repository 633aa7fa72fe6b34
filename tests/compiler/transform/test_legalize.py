"""Windows over one dimension, and over volumes that they do not reach along, as those of images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pass_harness import agree, calls, module_of, var
from tunefarm.compiler.ir import Call, Constant, IRModule, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.legalize import legalize

TARGET = Target("llvm -mcpu=znver5 -num-cores=1")
LAST = {"data_layout": "NSC"}


def convolution(
    shape: tuple[int, ...], taps: tuple[int, ...], strides: tuple[int, ...], groups: int = 1
) -> IRModule:
    x, spatial = var("x", *shape), len(taps)
    weights = np.random.default_rng(0).standard_normal((*taps, shape[-1] // groups, 6))
    body = call(
        "conv", x, Constant(weights.astype(np.float32)), kernel_layout="SIO", groups=groups,
        strides=strides, padding=tuple((k // 2, k // 2) for k in taps),
        dilations=(1,) * spatial, **LAST,
    )  # fmt: skip
    return module_of([x], body)


def pooling(op: str, shape: tuple[int, ...], kernel: tuple[int, ...], **attrs: Any) -> IRModule:
    x, padding = var("x", *shape), tuple((k // 2, k // 2) for k in kernel)
    ones = (1,) * len(kernel)
    attrs |= {"strides": ones, "dilations": ones, "padding": padding}
    body = call(op, x, kernel=kernel, **attrs, **LAST)
    return module_of([x], body)


def windows(module: IRModule) -> list[Call]:
    return [n for n in calls(module.main.body) if n.op in ("conv", "max_pool", "avg_pool")]


@pytest.mark.parametrize(
    ("module", "images"),
    [
        (convolution((2, 9, 4), (3,), (2,)), (2, 1, 9, 4)),
        (convolution((2, 5, 6, 7, 4), (1, 3, 3), (1, 2, 1)), (10, 6, 7, 4)),
        (convolution((2, 5, 6, 7, 4), (1, 1, 3), (1, 1, 1), groups=2), (10, 6, 7, 4)),
        (convolution((2, 5, 6, 7, 4), (3, 1, 1), (2, 1, 1)), (2, 5, 42, 4)),
        (pooling("max_pool", (1, 4, 5, 6, 3), (1, 3, 2)), (4, 5, 6, 3)),
        (pooling("avg_pool", (1, 4, 5, 6, 3), (3, 1, 1), counted=((1, 1), (0, 0), (0, 0))),
         (1, 4, 30, 3)),
    ],
    ids=["sequence", "frames", "frames in groups", "along time", "maxima", "averages"],
)  # fmt: skip
def test_dimensions_without_a_window_are_joined(module: IRModule, images: tuple[int, ...]) -> None:
    after = legalize(module, TARGET)
    (window,) = windows(after)
    assert tensor_type(window.args[0]).shape == images
    shape = tensor_type(module.main.params[0]).shape
    agree(after, module, [np.random.default_rng(1).standard_normal(shape).astype(np.float32)])


@pytest.mark.parametrize(
    "module",
    [
        convolution((1, 5, 6, 7, 4), (3, 3, 3), (1, 1, 1)),
        convolution((1, 5, 6, 7, 4), (1, 1, 1), (1, 1, 1)),
        convolution((1, 5, 6, 7, 4), (1, 3, 3), (2, 1, 1)),
        convolution((1, 5, 6, 7, 4), (3, 1, 3), (1, 1, 1)),
        convolution((1, 5, 6, 7, 4), (3, 1, 1), (1, 1, 2)),
        pooling("avg_pool", (1, 4, 5, 6, 3), (3, 3, 1), counted=((1, 1), (1, 1), (0, 0))),
    ],
    ids=["volume", "pixels", "every other frame", "two of three", "a stride", "averages"],
)
def test_windows_of_volumes_stay(module: IRModule) -> None:
    (window,) = windows(legalize(module, TARGET))
    assert len(tensor_type(window.args[0]).shape) == 5
