"""Convolutions of few channels for a matrix unit: pixels in words, the same meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pass_harness import agree, extents, kernels_in, module_of, var
from tunefarm.compiler.build import build_module
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.extract import extract_tasks
from tunefarm.compiler.ir import Constant, Expr, IRModule, Tuple, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import optimize
from tunefarm.compiler.transform.convert_layout import convert_layout
from tunefarm.compiler.transform.lower_precision import allow_precision
from tunefarm.compiler.transform.pixels_in_words import pixels_in_words

TILES = Target("llvm -mcpu=emeraldrapids -num-cores=1")


def first_layer(
    shape: tuple[int, ...],
    window: tuple[int, int] = (7, 7),
    strides: tuple[int, int] = (2, 2),
    padding: Any = ((3, 3), (3, 3)),
    outputs: int = 16,
    precision: str = "bf16",
    scale: float = 1.0,
    **attrs: Any,
) -> IRModule:
    x = var("x", *shape)
    weights = np.random.default_rng(1).integers(-3, 4, (outputs, shape[1], *window))
    constant = Constant((scale * weights).astype(np.float32))
    body = call("conv", x, constant, strides=strides, padding=padding, **attrs)
    return allow_precision(module_of([x], call("relu", body)), precision)


def in_words(module: IRModule, target: Target = TILES) -> IRModule:
    return pixels_in_words(convert_layout(module, target), target)


def test_the_fewest_words_of_a_row_are_taken() -> None:
    # Two pixels are three words where windows begin at every second one, else one is two.
    assert extents(in_words(first_layer((1, 3, 32, 32)))) == [(1, 32, 48, 2), (7, 12, 2, 16)]
    odd = first_layer((1, 3, 33, 33), strides=(1, 1))
    assert extents(in_words(odd)) == [(1, 33, 66, 2), (7, 14, 2, 16)]
    wide = first_layer((1, 4, 32, 32), strides=(3, 3))
    assert extents(in_words(wide)) == [(1, 32, 64, 2), (7, 14, 2, 16)]


@pytest.mark.parametrize(
    "module",
    [
        first_layer((1, 1, 32, 32)),  # a pixel is a word
        first_layer((1, 3, 32, 32), (7, 11)),  # a row more words than a step takes
        first_layer((1, 3, 32, 32), (3, 3)),  # few terms
        first_layer((1, 3, 32, 32), outputs=8),
        first_layer((1, 3, 32, 32), dilations=(2, 2)),
        first_layer((1, 32, 32, 32)),
        first_layer((1, 3, 32, 32), scale=1.133e38),  # weights beyond what bfloat16 has
        first_layer((1, 3, 32, 32), precision="f32"),
    ],
    ids=["one", "wide", "short", "outputs", "dilated", "channels", "large", "float32"],
)
def test_what_stays(module: IRModule) -> None:
    before = convert_layout(module, TILES)
    assert pixels_in_words(before, TILES) is before


def test_what_other_processors_keep() -> None:
    for target in (Target("llvm -mcpu=znver5"), Target("cuda -arch=sm_90a")):
        before = convert_layout(first_layer((1, 3, 32, 32)), target)
        assert pixels_in_words(before, target) is before


def test_random_ones_keep_their_meaning() -> None:
    rng, changed = np.random.default_rng(0), 0
    for _ in range(80):
        channels = int(rng.integers(2, 9))
        shape = (2, channels, *(int(e) for e in rng.integers(9, 20, 2)))
        padding = tuple((int(rng.integers(0, 4)), int(rng.integers(0, 4))) for _ in "hw")
        window = tuple(int(t) for t in rng.integers(2, 8, 2))
        strides = tuple(int(s) for s in rng.integers(1, 5, 2))
        module = first_layer(shape, window, strides, padding)  # type: ignore[arg-type]
        after = in_words(module)
        x = rng.integers(-3, 4, shape).astype(np.float32)
        agree(after, module, [x], rtol=0, atol=0)
        changed += channels > 2 and extents(after)[0][-1] == 2
    assert changed > 15


def test_the_unit_sums_them_and_maxima_are_of_what_is_rounded() -> None:
    x = var("x", 2, 3, 64, 48)
    rng = np.random.default_rng(1)
    weights = Constant(rng.standard_normal((32, 3, 7, 7)).astype(np.float32))
    more = Constant(rng.standard_normal((32, 32, 1, 1)).astype(np.float32))
    body = call("conv", x, weights, strides=(2, 2), padding=((3, 3), (3, 3)))
    body = call(
        "max_pool", call("relu", body), kernel=(3, 3), strides=(2, 2), padding=((1, 1),) * 2
    )
    module = allow_precision(module_of([x], call("conv", body, more)), "bf16")
    first, *_ = [t for t in extract_tasks(module, TILES) if "conv" in t.workload.summary]
    assert tensor_type(first.workload.function.body).dtype == "bfloat16"
    assert config_space(first.workload, TILES).default["sketch"] == "matrix_tiles"
    value = rng.standard_normal((2, 3, 64, 48)).astype(np.float32)
    (exact,) = evaluate(module, [value])
    (found,) = build_module(module, Target.host(1)).run({"x": value}).values()
    assert np.abs(found - exact).max() < 2e-2 * np.abs(exact).max()


def test_maxima_that_others_read_too_are_cast_once() -> None:
    """As behind the first layer of a ResNet-18, where a sum reads them as well."""
    x = var("x", 1, 3, 64, 64)
    rng = np.random.default_rng(1)

    def layer(value: Expr, inputs: int, taps: int, stride: int) -> Expr:
        weights = Constant(rng.standard_normal((64, inputs, taps, taps)).astype(np.float32))
        pad = (taps // 2, taps // 2)
        return call("conv", value, weights, strides=(stride, stride), padding=(pad, pad))

    pool = call(
        "max_pool", call("relu", layer(x, 3, 7, 2)), kernel=(3, 3), strides=(2, 2),
        padding=((1, 1), (1, 1)),
    )  # fmt: skip
    summed = call("add", layer(pool, 64, 1, 1), pool)
    shown = Tuple((layer(pool, 64, 1, 1), pool))
    for body, casts in ((summed, []), (shown, ["cast"])):
        kernels = kernels_in(optimize(allow_precision(module_of([x], body), "bf16"), TILES))
        assert kernels.count("max_pool") == 1
        assert [k for k in kernels[1:] if k.startswith("cast")] == casts
