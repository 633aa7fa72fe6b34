"""Convolutions whose windows tile the image, as products: the same meaning, where a unit gains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pass_harness import agree, calls, module_of, operators, var
from tunefarm.compiler.build import build_module
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import Constant, IRModule, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.convert_layout import convert_layout
from tunefarm.compiler.transform.lower_precision import allow_precision
from tunefarm.compiler.transform.unfold_patches import unfold_patches

TILES = Target("llvm -mcpu=emeraldrapids -num-cores=1")


def embedding(
    shape: tuple[int, ...],
    window: tuple[int, ...] = (16, 16),
    outputs: int = 64,
    **attrs: Any,
) -> IRModule:
    """A convolution of planes with a bias."""
    x = var("x", *shape)
    rng = np.random.default_rng(1)
    weights = Constant(rng.integers(-3, 4, (outputs, shape[1], *window)).astype(np.float32))
    bias = Constant(rng.integers(-3, 4, (outputs, *[1] * len(window))).astype(np.float32))
    rank = len(window)
    given = {"strides": window, "dilations": (1,) * rank, "padding": ((0, 0),) * rank, **attrs}
    body = call("conv", x, weights, **given)
    return module_of([x], call("add", body, bias))


def unfolded(module: IRModule, target: Target = TILES) -> IRModule:
    return unfold_patches(convert_layout(module, target), target)


def makes_product(module: IRModule) -> bool:
    made = operators(module.main.body)
    assert ("matmul" in made) != ("conv" in made)
    return "matmul" in made


@pytest.mark.parametrize(
    ("shape", "window"),
    [
        ((1, 3, 112, 112), (16, 16)),
        ((2, 3, 96, 64), (16, 8)),
        ((3, 1, 64, 64), (8, 8)),
        ((2, 7, 40, 80), (5, 10)),  # too many channels to be read as planes
        ((2, 5, 640), (8,)),
        ((1, 2, 16, 16, 16), (4, 4, 4)),
    ],
)
def test_patches_keep_their_meaning(shape: tuple[int, ...], window: tuple[int, ...]) -> None:
    module = allow_precision(embedding(shape, window), "bf16")
    after = unfolded(module)
    assert makes_product(after)
    x = np.random.default_rng(0).integers(-3, 4, shape).astype(np.float32)
    agree(after, module, [x], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("mcpu", "precision"), [("znver5", "bf16"), ("znver4", "bf16"), ("sapphirerapids", "fp16")]
)
def test_patches_are_dot_products_of_16_bits(mcpu: str, precision: str) -> None:
    """Three channels would be words of two with a term of zeros."""
    module = allow_precision(embedding((1, 3, 112, 112)), precision)
    target = Target(f"llvm -mcpu={mcpu} -num-cores=1")
    assert makes_product(unfolded(module, target))
    assert not makes_product(unfolded(allow_precision(module, "f32"), Target("llvm -mcpu=znver5")))


@pytest.mark.parametrize(
    ("shape", "window", "outputs"),
    [
        ((1, 16, 112, 112), (2, 2), 32),  # whose channels fill words of two as they lie
        ((1, 3, 224, 224), (2, 2), 16),  # for which the copy would take longer
    ],
)
def test_patches_stay_convolutions_where_a_copy_gains_nothing(
    shape: tuple[int, ...], window: tuple[int, int], outputs: int
) -> None:
    module = allow_precision(embedding(shape, window, outputs), "bf16")
    assert not makes_product(unfolded(module, Target("llvm -mcpu=znver5 -num-cores=1")))


def test_a_vision_transformer_s_are_products_in_float32_too() -> None:
    module = embedding((1, 3, 224, 224), outputs=384)
    after = unfolded(module)
    (product,) = [n for n in calls(after.main.body) if n.op == "matmul"]
    assert [tensor_type(a).shape for a in product.args] == [(196, 768), (768, 384)]
    # No kernel for the bias alone.
    assert operators(after.main.body)[-4:] == ["matmul", "add", "reshape", "transpose"]
    strict = Target(f"{TILES} -precision=strict")
    few = allow_precision(embedding((1, 1, 64, 64), (2, 2), outputs=1), "bf16")
    assert not makes_product(unfolded(few))
    for other in (strict, Target("llvm -mcpu=znver5"), Target("cuda -arch=sm_90a")):
        assert not makes_product(unfolded(module, other))
    assert not makes_product(unfolded(embedding((1, 3, 8, 8), (4, 4))))  # four rows


@pytest.mark.parametrize(
    ("shape", "attrs"),
    [
        ((1, 3, 112, 112), {"strides": (8, 16)}),
        ((1, 3, 112, 112), {"strides": (17, 17)}),
        ((1, 3, 112, 112), {"padding": ((8, 8), (0, 0))}),
        ((1, 3, 112, 115), {}),
        ((1, 48, 112, 112), {}),
        ((1, 16, 56, 56), {"window": (1, 1), "strides": (1, 1)}),
    ],
    ids=["overlap", "gaps", "padded", "rest", "many channels", "pixels"],
)
def test_others_stay_convolutions(shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    module = allow_precision(embedding(shape, **attrs), "bf16")
    assert not makes_product(unfolded(module))


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_they_run(precision: str) -> None:
    module = embedding((2, 3, 48, 80))
    x = np.random.default_rng(0).standard_normal((2, 3, 48, 80)).astype(np.float32)
    (exact,) = evaluate(module, [x])
    built = build_module(allow_precision(module, precision), Target.host(1))
    (found,) = built.run({"x": x}).values()
    bound = {"f32": 1e-5, "bf16": 1e-2}[precision]
    assert np.abs(found - exact).max() < bound * np.abs(exact).max()
