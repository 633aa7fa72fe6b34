"""Products of 16-bit floats where the caller allows them: which ones, and how far they are off."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pass_harness import defused
from tunefarm.compiler.build import build_module
from tunefarm.compiler.errors import TargetError, TunefarmError, UnusedPrecisionWarning
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.extract import extract_tasks, kernels_of
from tunefarm.compiler.ir import Constant, Expr, Function, IRModule, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.summary import summarize
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.lower_precision import allow_precision, target_of
from tunefarm.compiler.transform.pipeline import optimize

Array = NDArray[Any]
ZEN5 = Target("llvm -mcpu=znver5")
ROUNDING = 2.0**-8  # of a product of two factors that are rounded to 8 bits each


def weights(shape: tuple[int, ...], seed: int) -> Constant:
    rng = np.random.default_rng(seed)
    return Constant(rng.standard_normal(shape).astype(np.float32))


def module_of(param: Var, body: Expr) -> IRModule:
    return IRModule({"main": Function((param,), body)})


def layers(rows: int, width: int, count: int = 2) -> tuple[IRModule, list[Constant]]:
    """relu(relu(x · w) · w) …, with a residual around the first."""
    x = Var("x", TensorType((rows, width), "float32"))
    found = [weights((width, width), seed) for seed in range(count)]
    value: Expr = x
    for w in found:
        value = call("relu", call("matmul", value, w))
    return module_of(x, call("add", value, x)), found


def kernels(module: IRModule, target: Target) -> list[str]:
    return [f"{summarize(k)} -> {k.body.type}" for k in kernels_of(optimize(module, target))]


def test_only_what_is_allowed_is_rounded() -> None:
    module, _ = layers(32, 64)
    plain = kernels(module, ZEN5)
    allowed = allow_precision(module, "bf16")
    assert kernels(allow_precision(allowed, "f32"), ZEN5) == plain
    assert kernels(allow_precision(module, ""), ZEN5) == plain
    assert kernels(allowed, ZEN5) == [
        "cast 32x64 -> bfloat16[32, 64]",
        "matmul 32x64 @ 64x64 +relu +cast -> bfloat16[32, 64]",
        "matmul 32x64 @ 64x64 +relu +add -> float32[32, 64]",
    ]
    with pytest.raises(
        TunefarmError, match="precision 'int4' is unknown; known: 'f32', 'tf32', 'bf16'"
    ):
        allow_precision(module, "int4")


def test_a_processor_that_gains_nothing_keeps_float32() -> None:
    many, _ = layers(32, 64)
    old = Target("llvm -mcpu=skylake-avx512")
    slow = Target("llvm -mcpu=emeraldrapids -mattr=-amx-tile")
    for target in (old, slow):
        assert kernels(allow_precision(many, "bf16"), target) == kernels(many, target)
    one, _ = layers(1, 1024)  # takes as long as its weights take to come
    assert any("bfloat16" in k for k in kernels(allow_precision(one, "bf16"), slow))
    assert kernels(allow_precision(one, "bf16"), old) == kernels(one, old)


@pytest.mark.parametrize(
    ("window", "stride", "outputs", "rounds"), [(3, 2, 32, False), (7, 4, 96, True)]
)
def test_three_channels_are_rounded_where_words_with_zeros_gain(
    window: int, stride: int, outputs: int, rounds: bool
) -> None:
    x = Var("x", TensorType((1, 3, 224, 224), "float32"))
    weights = Constant(np.ones((window, window, 3, outputs), np.float32))
    layouts = {"data_layout": "NCS", "kernel_layout": "SIO", "out_layout": "NSC"}
    pad = (window // 2,) * 2
    body = call("conv", x, weights, strides=(stride,) * 2, padding=(pad, pad), **layouts)
    module = allow_precision(IRModule({"main": Function((x,), body)}), "bf16")
    assert any("bfloat16" in kernel for kernel in kernels(module, ZEN5)) == rounds


def test_a_matrix_unit_gains() -> None:
    many, _ = layers(32, 64)
    target = Target("llvm -mcpu=emeraldrapids")
    assert any("bfloat16" in k for k in kernels(allow_precision(many, "bf16"), target))


def test_attention_is_rounded_where_a_matrix_unit_or_dot_products_gain() -> None:
    """Inside of its kernel: what it reads and makes stays float32."""
    q, k, v = (Var(n, TensorType((1, 128, 4, 64), "float32")) for n in "qkv")
    scores = call("einsum", q, k, equation="abcd,aecd->acbe")
    mixed = call("einsum", call("softmax", scores, axis=-1), v, equation="acbe,aecd->abcd")
    module = IRModule({"main": Function((q, k, v), mixed)})
    unit, old = Target("llvm -mcpu=emeraldrapids"), Target("llvm -mcpu=znver3")
    plain = ["einsum 1x128x4x64→1x4x128x128 +softmax +einsum -> float32[1, 128, 4, 64]"]
    allowed = allow_precision(module, "bf16")
    assert kernels(module, unit) == kernels(module, ZEN5) == kernels(allowed, old) == plain
    rounded = [plain[0].replace(" +softmax", " in bfloat16 +softmax")]
    assert kernels(allowed, unit) == kernels(allowed, ZEN5) == rounded


def test_a_build_says_that_a_precision_changes_nothing() -> None:
    module, old = layers(8, 64)[0], Target("llvm -mcpu=skylake-avx512")
    told = f"precision bf16 changes nothing: {old} multiplies bfloat16 no faster than float32"
    with pytest.warns(UnusedPrecisionWarning, match=told):
        build_module(allow_precision(module, "bf16"), old)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_module(allow_precision(layers(32, 64)[0], "bf16"), ZEN5)


def test_tf32_is_the_target_s() -> None:
    """It changes no function, and what has no unit for it does without."""
    module, _ = layers(32, 64)
    allowed, tiles = allow_precision(module, "tf32"), Target("llvm -mcpu=emeraldrapids")
    assert kernels(allowed, tiles) == kernels(module, tiles)
    assert target_of(module, tiles) == tiles
    asked = Target(f"{tiles} -precision=tf32")
    assert target_of(allowed, tiles) == target_of(allowed, asked) == asked
    assert target_of(allow_precision(allowed, "f32"), tiles) == tiles
    assert {task.target for task in extract_tasks(allowed, tiles)} == {asked}
    assert target_of(allowed, Target("cuda -arch=sm_90")).rounds_to_tf32
    for other in (ZEN5, Target("cuda -arch=sm_75")):
        assert target_of(allowed, other) == other
    with pytest.raises(TargetError, match="the model allows tf32"):
        target_of(allowed, Target(f"{tiles} -precision=strict"))
    with pytest.warns(UnusedPrecisionWarning, match="tf32 changes nothing"):
        assert build_module(allowed, ZEN5).target == ZEN5


@pytest.mark.skipif(not Target.host().may_round_to_tf32, reason="this CPU has no tiles (AMX)")
def test_tf32_runs() -> None:
    module, _ = layers(64, 512)
    x = np.random.default_rng(4).standard_normal((64, 512)).astype(np.float32)
    (exact,) = evaluate(module, [x])
    built = build_module(allow_precision(module, "tf32"), Target.host(1))
    assert "precision=tf32" in str(built.target)
    (y,) = built.run({"x": x}).values()
    assert 0 < np.abs(y - exact).max() < 2e-5 * np.abs(exact).max()
    assert built.plan.weight_bytes < 1.1 * sum(w.data.nbytes for w in layers(64, 512)[1])


def test_a_cast_is_made_once_and_joins_what_is_behind_a_reshape() -> None:
    x = Var("x", TensorType((2, 16, 64), "float32"))
    flat = call("reshape", call("relu", x), shape=(32, 64))
    body = call("add", *(call("matmul", flat, weights((64, 64), seed)) for seed in range(2)))
    assert kernels(allow_precision(module_of(x, body), "bf16"), ZEN5) == [
        "relu 2x16x64 +cast -> bfloat16[2, 16, 64]",
        "reshape 2x16x64→32x64 -> bfloat16[32, 64]",
        "matmul 32x64 @ 64x64 +cast -> bfloat16[32, 64]",
        "matmul 32x64 @ 64x64 +cast +add -> float32[32, 64]",
    ]


def test_winograd_stays_where_it_saves_more() -> None:
    x = Var("x", TensorType((1, 56, 56, 64), "float32"))

    def conv(stride: int) -> IRModule:
        body = call(
            "conv", x, weights((3, 3, 64, 64), 0), strides=(stride,) * 2,
            padding=((1, 1), (1, 1)), data_layout="NSC", kernel_layout="SIO",
        )  # fmt: skip
        return allow_precision(module_of(x, body), "bf16")

    assert not any("bfloat16" in k for k in kernels(conv(1), ZEN5))
    assert any("bfloat16" in k for k in kernels(conv(2), ZEN5))


def test_the_error_is_that_of_rounded_operands() -> None:
    """|y - y32| ≤ 2⁻⁸ · |x| · |w|, and here about a tenth of it."""
    module, (w,) = layers(32, 256, count=1)
    x = np.random.default_rng(9).standard_normal((32, 256)).astype(np.float32)
    (exact,) = evaluate(module, [x])
    (rounded,) = evaluate(defused(optimize(allow_precision(module, "bf16"), ZEN5)), [x])
    error = np.abs(rounded - exact)
    assert (error <= 1.01 * ROUNDING * (np.abs(x) @ np.abs(w.data))).all()
    assert 0 < error.max() < 1e-2 * np.abs(exact).max()


@pytest.mark.skipif(
    not Target.host().has("avx512bf16"), reason="this CPU has no products of bfloat16"
)
def test_it_runs() -> None:
    module, _ = layers(1, 1024)
    x = np.random.default_rng(3).standard_normal((1, 1024)).astype(np.float32)
    target = Target.host(1)
    built = build_module(allow_precision(module, "bf16"), target)
    assert "vdpbf16ps" in built.get_source("asm")
    (exact,) = evaluate(module, [x])
    (y,) = built.run({"x": x}).values()
    assert np.abs(y - exact).max() < 1e-2 * np.abs(exact).max()
    assert built.plan.weight_bytes < 0.52 * build_module(module, target).plan.weight_bytes
