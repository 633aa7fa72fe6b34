"""Convolutions of few channels on tensor cores: pixels packed into vectors, the same meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pass_harness import agree, extents, kernels_in, module_of, var
from tunefarm.compiler.extract import extract_tasks
from tunefarm.compiler.ir import Constant, IRModule
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import optimize
from tunefarm.compiler.transform.convert_layout import convert_layout
from tunefarm.compiler.transform.pack_pixels import pack_pixels

HOPPER, HALF = Target("cuda -arch=sm_90a"), "float16"


def first_layer(
    shape: tuple[int, ...],
    taps: tuple[int, ...] = (7, 7),
    stride: int = 2,
    padding: Any = ((3, 3), (3, 3)),
    dtype: str = HALF,
    outputs: int = 16,
    **attrs: Any,
) -> IRModule:
    """A convolution of planes of whole numbers, as users give them."""
    x = var("x", *shape, dtype=dtype)
    weights = np.random.default_rng(1).integers(-3, 4, (outputs, shape[1], *taps)).astype(dtype)
    strides = (stride,) * len(taps)
    more = {"dilations": (1,) * len(taps), **attrs}
    body = call("conv", x, Constant(weights), strides=strides, padding=padding, **more)
    return module_of([x], body)


def packed(module: IRModule, target: Target = HOPPER) -> IRModule:
    return pack_pixels(convert_layout(module, target), target)


def test_pixels_are_vectors_together_with_those_that_the_stride_never_parts() -> None:
    images = [(1, c, 32, 32) for c in (1, 2, 3, 5, 6)]
    found = [extents(packed(first_layer(shape)))[0] for shape in images]
    assert found == [
        (1, 32, 16, 4), (1, 32, 16, 4), (1, 32, 16, 8), (1, 32, 16, 12), (1, 32, 16, 12)
    ]  # fmt: skip
    alone = first_layer((1, 3, 32, 32), (3, 3), 1, ((1, 1), (1, 1)))
    assert extents(packed(alone)) == [(1, 32, 32, 4), (3, 3, 4, 16)]
    patches = first_layer((1, 3, 64, 64), (16, 16), 16, ((0, 0), (0, 0)))
    assert extents(packed(patches)) == [(1, 64, 8, 24), (16, 2, 24, 16)]
    assert extents(packed(first_layer((1, 3, 32, 32)))) == [(1, 32, 16, 8), (7, 4, 8, 16)]


def test_random_ones_keep_their_meaning() -> None:
    rng, changed = np.random.default_rng(0), 0
    for _ in range(80):
        taps = tuple(int(t) for t in rng.integers(1, 6, 2))
        shape = (2, int(rng.integers(1, 8)), *(int(e) for e in rng.integers(9, 20, 2)))
        padding = tuple((int(rng.integers(0, 4)), int(rng.integers(0, 4))) for _ in taps)
        dilations = tuple(int(d) for d in rng.integers(1, 3, 2))
        module = first_layer(
            shape, taps, int(rng.integers(1, 5)), padding, outputs=8, dilations=dilations
        )
        after = packed(module)
        x = rng.integers(-3, 4, shape).astype(HALF)
        agree(after, module, [x], rtol=0, atol=0)
        changed += extents(after)[0] != shape
    assert changed > 60


@pytest.mark.parametrize("taps", [(5,), (3, 3, 3)])
def test_those_of_other_ranks_keep_their_meaning(taps: tuple[int, ...]) -> None:
    shape = (2, 3, *(9 for _ in taps))
    module = first_layer(shape, taps, 2, tuple((1, 1) for _ in taps))
    x = np.random.default_rng(3).integers(-3, 4, shape).astype(HALF)
    for after in (packed(module), optimize(module, HOPPER)):
        agree(after, module, [x], rtol=0, atol=0)


def test_channels_last_are_padded_too() -> None:
    x = var("x", 2, 9, 11, 3, dtype=HALF)
    weights = np.random.default_rng(1).integers(-3, 4, (3, 3, 3, 8)).astype(HALF)
    body = call("conv", x, Constant(weights), strides=(2, 2), padding=((1, 0), (1, 1)),
                data_layout="NSC", kernel_layout="SIO")  # fmt: skip
    module = module_of([x], body)
    after = pack_pixels(module, HOPPER)
    assert extents(after) == [(2, 9, 6, 8), (3, 2, 8, 8)]
    agree(after, module, [np.random.default_rng(2).integers(-3, 4, (2, 9, 11, 3)).astype(HALF)])


def test_what_stays_as_it_is() -> None:
    shape = (1, 3, 16, 16)
    float32 = first_layer(shape, dtype="float32")
    for module, target in (
        (first_layer(shape), Target("llvm -mcpu=znver4")),
        (first_layer(shape), Target("cuda -arch=sm_75")),  # no tensor cores that we use
        (float32, HOPPER),
        (first_layer((1, 8, 16, 16)), HOPPER),
        (first_layer(shape, (1, 1), 1, ((0, 0), (0, 0))), HOPPER),
        (first_layer(shape, outputs=4), HOPPER),
        (first_layer(shape, pad_value=1), HOPPER),
    ):
        before = convert_layout(module, target)
        assert pack_pixels(before, target) is before
    x, w = var("x", *shape, dtype=HALF), var("w", 16, 3, 7, 7, dtype=HALF)
    variable = module_of([x, w], call("conv", x, w))
    before = convert_layout(variable, HOPPER)
    assert pack_pixels(before, HOPPER) is before
    tf32 = Target("cuda -arch=sm_90a -precision=tf32")
    assert extents(packed(float32, tf32))[0] == (1, 16, 8, 6)


def test_one_kernel_packs_and_tasks_are_those_of_the_build() -> None:
    module = first_layer((1, 3, 16, 16))
    assert kernels_in(optimize(module, HOPPER))[:2] == ["transpose pad", "conv"]
    told = [task.workload.summary for task in extract_tasks(module, HOPPER)]
    assert any("conv 7x4 s2x1 1x16x8x8→16" in name for name in told)
