"""Convolutions of windows copied side by side: the same meaning, where tiles are filled by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pass_harness import agree, kernels_in, module_of, operators, var
from tunefarm.compiler.build import build_module
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import Constant, IRModule
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import optimize
from tunefarm.compiler.transform.lower_precision import allow_precision
from tunefarm.compiler.transform.unfold_windows import unfold_windows

TILES = Target("llvm -mcpu=graniterapids -num-cores=1")

LAYOUT = {"data_layout": "NSC", "kernel_layout": "SIO", "out_layout": "NSC"}


def layer(
    shape: tuple[int, ...],
    outputs: int = 512,
    taps: int = 3,
    stride: int = 1,
    dtype: str = "bfloat16",
    **attrs: Any,
) -> IRModule:
    """A layer of small whole numbers, channels last."""
    x = var("x", *shape, dtype=dtype)
    rng = np.random.default_rng(1)
    weights = rng.integers(-1, 2, (taps, taps, shape[-1], outputs)).astype(numpy_dtype(dtype))
    pad = taps // 2
    body = call(
        "conv", x, Constant(weights), strides=(stride,) * 2, padding=((pad, pad), (pad, pad)),
        out_dtype="float32", **LAYOUT, **attrs,
    )  # fmt: skip
    return module_of([x], body)


@pytest.mark.parametrize(
    ("shape", "taps", "stride"),
    [((2, 7, 7, 512), 3, 1), ((1, 14, 14, 512), 3, 2), ((2, 14, 14, 1024), 1, 2)],
)
def test_rows_that_fill_half_a_tile_are_unfolded(
    shape: tuple[int, ...], taps: int, stride: int
) -> None:
    module = layer(shape, taps=taps, stride=stride)
    after = unfold_windows(module, TILES)
    assert operators(after.main.body) == ["unfold", "reshape", "conv"]
    rng = np.random.default_rng(0)
    x = rng.integers(-1, 2, shape).astype(numpy_dtype("bfloat16"))
    agree(after, module, [x], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_bytes_are_padded_with_their_zero_point(dtype: str) -> None:
    x = var("x", 1, 7, 7, 512, dtype=dtype)
    rng = np.random.default_rng(1)
    weights = Constant(rng.integers(-128, 128, (3, 3, 512, 512)).astype(np.int8))
    body = call(
        "conv", x, weights, padding=((1, 1), (1, 1)), pad_value=7, out_dtype="int32", **LAYOUT
    )
    module = module_of([x], body)
    after = unfold_windows(module, TILES)
    assert operators(after.main.body) == ["unfold", "reshape", "conv"]
    values = rng.integers(0, 100, (1, 7, 7, 512)).astype(dtype)
    agree(after, module, [values], rtol=0, atol=0)


@pytest.mark.parametrize(
    "module",
    [
        layer((1, 28, 28, 128), 128),  # rows that fill tiles: the copy does not pay
        layer((1, 7, 7, 512), taps=1),  # pixels already
        layer((1, 7, 7, 500)),  # taps that fill no lines
        layer((1, 7, 7, 512), dtype="float32"),
    ],
    ids=["filled", "single", "lines", "float32"],
)
def test_others_stay(module: IRModule) -> None:
    assert unfold_windows(module, TILES) is module


def test_processors_without_the_unit_keep_theirs() -> None:
    module = layer((2, 7, 7, 512))
    for target in (Target("llvm -mcpu=znver5"), Target("cuda -arch=sm_90a")):
        assert unfold_windows(module, target) is module


def test_epilogues_stay_with_the_sums() -> None:
    """x + conv(x) on 7 × 7 in bfloat16, whose residual is read in the kernel of the sum."""
    rng = np.random.default_rng(2)
    x = var("x", 2, 512, 7, 7)
    weights = [
        Constant(rng.standard_normal((512, 512, 3, 3)).astype(np.float32) / 64) for _ in range(2)
    ]
    padded = {"padding": ((1, 1), (1, 1))}
    value = call("relu", call("conv", x, weights[0], **padded))
    body = call("relu", call("add", call("conv", value, weights[1], **padded), value))
    module = allow_precision(module_of([x], body), "bf16")
    kernels = kernels_in(optimize(module, TILES))
    assert [k for k in kernels if "conv" in k] == ["conv relu cast", "conv cast add relu"]
    given = rng.standard_normal((2, 512, 7, 7)).astype(np.float32)
    (exact,) = evaluate(module, [given])
    (found,) = build_module(module, Target.host(1)).run({"x": given}).values()
    assert np.abs(found - exact).max() < 2e-2 * np.abs(exact).max()


def test_convolutions_of_the_same_windows_read_one_copy() -> None:
    module = layer((2, 7, 7, 512))
    (x,), body = module.main.params, module.main.body
    again = call("conv", *body.args, **body.attrs)  # type: ignore[union-attr]
    both = module_of([x], call("add", body, call("sigmoid", again)))
    assert operators(unfold_windows(both, TILES).main.body).count("unfold") == 1
