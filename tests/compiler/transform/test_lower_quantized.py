"""Quantised graphs become products of bytes, and every rule keeps the meaning it should."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pass_harness import calls, number, operators, var
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.extract import kernels_of
from tunefarm.compiler.ir import (
    Call,
    Constant,
    Expr,
    Function,
    IRModule,
    TensorType,
    Var,
    post_order,
    tensor_type,
)
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import PassContext, optimize
from tunefarm.compiler.transform.lower_quantized import lower_quantized

import tunefarm

TARGET = Target("llvm -mcpu=znver5 -num-cores=2")
RNG = np.random.default_rng(11)


def quantize(x: Expr, scale: float, zero: int, dtype: str = "uint8") -> Expr:
    return call("quantize", x, number(scale), number(zero), dtype=dtype)


def dequantize(q: Expr, scale: float | np.ndarray[Any, Any], zero: float = 0) -> Expr:
    return call("dequantize", q, Constant(np.asarray(scale, np.float32)), number(zero))


def weights(*shape: int, dtype: str = "int8") -> Constant:
    info = np.iinfo(dtype)
    return Constant(RNG.integers(info.min, info.max + 1, shape).astype(dtype))


def lowered(body: Expr) -> IRModule:
    params = tuple(n for n in post_order(body) if isinstance(n, Var))
    return lower_quantized(IRModule({"main": Function(params, body)}), TARGET)


def found(module: IRModule, op: str) -> Call:
    (node,) = (n for n in calls(module.main.body) if n.op == op)
    return node


def inputs_of(module: IRModule) -> list[np.ndarray[Any, Any]]:
    def draw(kind: TensorType) -> np.ndarray[Any, Any]:
        if kind.dtype == "float32":
            return (2 * RNG.standard_normal(kind.shape)).astype(np.float32)
        info = np.iinfo(kind.dtype)
        return RNG.integers(info.min, info.max + 1, kind.shape).astype(kind.dtype)

    return [draw(p.type) for p in module.main.params]


def assert_same(body: Expr, module: IRModule, atol: float = 0) -> None:
    inputs = inputs_of(module)
    (want,) = evaluate(Function(module.main.params, body), inputs)
    for program in (module, optimize(module, TARGET)):
        (got,) = evaluate(program, inputs)
        assert got.dtype == want.dtype
        if want.dtype == np.float32:
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
        else:
            distance = np.abs(got.astype(int) - want)
            assert distance.max() <= 1
            assert np.count_nonzero(distance) <= atol * distance.size


def test_a_long_chain_of_moves_becomes_unsigned() -> None:
    value = quantize(var("x", 1, 1501), 0.1, 0, "int8")
    for size in range(1500, 0, -1):
        value = call("slice", value, begin=(0, 1), size=(1, size), strides=(1, 1))
    body = lowered(dequantize(value, 0.1)).main.body
    moved = [tensor_type(n).dtype for n in calls(body) if n.op == "slice"]
    assert moved == ["uint8"] * 1500


@pytest.mark.parametrize("layer", ["uint8", "int8"])
@pytest.mark.parametrize("zero", [0, 37])
def test_a_padded_convolution_is_one_of_bytes(layer: str, zero: int) -> None:
    """Every tap counts: padding is the zero point's quantum, and its share is taken off again."""
    x, first = var("x", 1, 6, 9, 8), zero - 128 if layer == "int8" else zero
    steps = RNG.uniform(0.002, 0.004, (8, 1, 1, 1))
    data = dequantize(quantize(x, 0.02, first, layer), 0.02, first)
    y = call(
        "conv", data, dequantize(weights(8, 3, 3, 3), steps), padding=((1, 1), (2, 0)), groups=2
    )
    bias = dequantize(
        Constant(RNG.integers(-999, 999, (8, 1, 1)).astype(np.int32)), 0.02 * steps[:, 0]
    )
    body = quantize(call("relu", call("add", y, bias)), 0.05, 3)
    module = lowered(body)
    conv = found(module, "conv")
    assert conv.type == TensorType((1, 8, 9, 8), "int32")
    assert [tensor_type(a).dtype for a in conv.args] == ["uint8", "int8"]
    assert conv.attrs["pad_value"] == zero
    assert operators(module.main.body) == ["requantize", "conv", "add", "requantize", "clip"]
    assert_same(body, module, atol=0.005)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_keeps_scales_of_columns(transposed: bool) -> None:
    steps = RNG.uniform(0.01, 0.03, (10, 1) if transposed else (10,))
    x, w = var("x", 5, 7, dtype="uint8"), weights(*((10, 7) if transposed else (7, 10)))
    y = call("matmul", dequantize(x, 0.1, 90), dequantize(w, steps), transpose_b=transposed)
    body = call("add", y, Constant(RNG.standard_normal(10).astype(np.float32)))
    module = lowered(body)
    assert operators(module.main.body) == ["matmul", "add", "dequantize"]
    inputs = inputs_of(module)
    (want,), (got,) = evaluate(Function((x,), body), inputs), evaluate(module, inputs)
    np.testing.assert_allclose(got, want, atol=0.1 * 0.03 / 2 + 1e-4)  # the bias is in steps


def test_weights_are_turned_with_their_scales() -> None:
    """As PyTorch exports a linear layer: the scales lie along its first axis."""
    w = dequantize(weights(10, 7), RNG.uniform(0.01, 0.03, (10, 1)))
    x = dequantize(var("x", 5, 7, dtype="uint8"), 0.1, 90)
    body = call("matmul", x, call("transpose", w, axes=(1, 0)))
    module = lowered(body)
    assert operators(module.main.body) == ["matmul", "add", "dequantize"]
    assert found(module, "matmul").args[1].type == TensorType((7, 10), "int8")
    assert_same(body, module)


def test_weights_of_one_scale_are_turned_and_then_have_fewer_axes() -> None:
    w = call("reshape", dequantize(weights(6, 20), 0.02), shape=(6, 4, 5))
    moved = call("reshape", call("transpose", w, axes=(2, 0, 1)), shape=(5, 24))
    x = var("x", 7, 5)
    body = call("matmul", x, moved)
    assert_same(body, lowered(body), 1e-5)


@pytest.mark.parametrize("options", [{"opt_level": 0}, {"disabled_pass": ("lower_quantized",)}])
def test_without_the_pass_a_quantised_graph_is_arithmetic_on_numbers(options: Any) -> None:
    x, w = var("x", 4, 6), weights(6, 8)
    body = call("matmul", dequantize(quantize(x, 0.05, 7), 0.05, 7), dequantize(w, 0.013))
    module = IRModule({"main": Function((x,), body)})
    inputs = inputs_of(module)
    with PassContext(**options):
        (got,) = tunefarm.build(module, Target.host(1)).run({"x": inputs[0]}).values()
    np.testing.assert_allclose(got, evaluate(module, inputs)[0], rtol=1e-4, atol=1e-4)


def test_weights_that_are_signed_bytes_less_their_zero_point_are_moved() -> None:
    x, w = var("x", 4, 6, dtype="uint8"), weights(6, 8, dtype="uint8")
    body = call("matmul", dequantize(x, 0.1), dequantize(w, 0.1, 128))
    module = lowered(body)
    product = found(module, "matmul")
    moved = product.args[1]
    assert isinstance(moved, Constant)
    np.testing.assert_array_equal(moved.data, (w.data.astype(int) - 128).astype(np.int8))
    assert_same(body, module)


@pytest.mark.parametrize("case", ["wide weights", "long sums", "scales along rows", "two inputs"])
def test_what_does_not_fit_stays_arithmetic_on_numbers(case: str) -> None:
    x: Expr = dequantize(var("x", 2, 6, dtype="uint8"), 0.1)
    w: Expr = dequantize(weights(6, 8), 0.1)
    if case == "wide weights":
        w = dequantize(Constant(np.array([[0, 255]] * 6, np.uint8)), 0.1, 100)
    elif case == "long sums":
        x = dequantize(var("x", 2, 70000, dtype="uint8"), 0.1)
        w = dequantize(Constant(np.full((70000, 1), 127, np.int8)), 0.1)
    elif case == "scales along rows":
        w = dequantize(weights(6, 8), RNG.uniform(0.1, 0.2, (6, 1)))
    else:
        w = dequantize(var("y", 6, 8, dtype="uint8"), 0.1)
    body = call("matmul", x, w)
    module = lowered(body)
    assert found(module, "matmul").type.dtype == "float32"  # type: ignore[union-attr]
    assert_same(body, module)


def test_integers_of_a_zero_point_known_at_run_time() -> None:
    """What DynamicQuantizeLinear and MatMulInteger make; the sums of the weights are constant."""
    x, z, w = var("x", 3, 9, dtype="uint8"), var("z", dtype="uint8"), weights(9, 5)
    centred = call("subtract", call("cast", x, dtype="int32"), call("cast", z, dtype="int32"))
    body = call("matmul", centred, call("cast", w, dtype="int32"))
    module = lowered(body)
    product = found(module, "matmul")
    assert [tensor_type(a).dtype for a in product.args] == ["uint8", "int8"]
    assert_same(body, module)


def test_a_padded_convolution_needs_to_know_its_zero_point() -> None:
    x, z, w = var("x", 1, 3, 5, 5, dtype="uint8"), var("z", dtype="uint8"), weights(4, 3, 3, 3)
    centred = call("subtract", call("cast", x, dtype="int32"), call("cast", z, dtype="int32"))
    wide = call("cast", w, dtype="int32")
    for padding, dtype in ((0, "uint8"), (1, "int32")):
        body = call("conv", centred, wide, padding=((padding, padding),) * 2)
        module = lowered(body)
        assert tensor_type(found(module, "conv").args[0]).dtype == dtype
        assert_same(body, module)


@pytest.mark.parametrize(
    "move",
    [
        lambda x: call("reshape", x, shape=(4, 36)),
        lambda x: call("transpose", x, axes=(0, 2, 3, 1)),
        lambda x: call("slice", x, begin=(0, 1, 0, 0), size=(1, 2, 6, 3), strides=(1, 1, 1, 2)),
        lambda x: call("pad", x, padding=((0, 0), (0, 0), (1, 2), (0, 1))),
        lambda x: call("pad", x, padding=((0, 0), (0, 0), (1, 2), (0, 1)), mode="edge"),
        lambda x: call("max_pool", x, kernel=(3, 3), strides=(2, 2), padding=((1, 1), (1, 1))),
        lambda x: call("max", x, axes=(2, 3), keepdims=True),
        lambda x: call("concat", x, x, axis=1),
    ],
    ids=["reshape", "transpose", "slice", "pad", "edge", "max_pool", "max", "concat"],
)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_bytes_move_as_they_are(move: Any, dtype: str) -> None:
    x = quantize(var("x", 1, 4, 6, 6), 0.05, 7, dtype)
    body = call("negative", dequantize(quantize(move(dequantize(x, 0.05, 7)), 0.05, 7), 0.05, 7))
    if dtype == "int8":
        inner = quantize(move(dequantize(x, 0.05, 7)), 0.05, 7, "int8")
        body = call("negative", dequantize(inner, 0.05, 7))
    module = lowered(body)
    names = operators(module.main.body)
    assert (names[0], names[2:]) == ("requantize", ["dequantize", "negative"])
    kinds = [n.type for n in calls(module.main.body)]
    assert all(isinstance(k, TensorType) and k.dtype == "uint8" for k in kinds[:2])
    assert_same(body, module)


def test_operands_of_other_scales_are_quantised_before_they_are_joined() -> None:
    a = dequantize(quantize(call("tanh", var("a", 1, 4)), 0.01, 100), 0.01, 100)
    b = dequantize(quantize(call("exp", var("b", 1, 6)), 0.02, 0), 0.02, 0)
    body = quantize(call("concat", a, b, axis=1), 0.03, 50)
    module = lowered(body)
    assert [tensor_type(a).dtype for a in found(module, "concat").args] == ["uint8", "uint8"]
    assert_same(body, module, atol=0.1)


@pytest.mark.parametrize(
    "limits, bounds",
    [
        ({"min": 0.0, "max": 6.0}, {"min": 100, "max": 220}),
        ({"min": 0.0, "max": 9.0}, {"min": 100, "max": None}),
        ({"min": -9.0, "max": None}, None),
    ],
)
def test_a_clip_is_one_of_quanta_or_none(limits: dict[str, Any], bounds: Any) -> None:
    body = quantize(call("clip", var("x", 300), **limits), 0.05, 100)
    module = lowered(body)
    if bounds is None:
        assert operators(module.main.body) == ["requantize"]
    else:
        clip = found(module, "clip")
        assert {name: clip.attrs[name] for name in bounds} == bounds
    assert_same(body, module, atol=0.01)


def test_a_mean_is_a_sum_of_integers() -> None:
    x = var("x", 2, 5, 7, 7, dtype="uint8")
    windows: dict[str, Any] = {"kernel": (7, 7), "strides": (1, 1)}
    body = quantize(call("avg_pool", dequantize(x, 0.1, 55), **windows), 0.02, 5)
    module = lowered(body)
    assert found(module, "sum").type == TensorType((2, 5, 1, 1), "int32")
    assert_same(body, module, atol=0.1)


@pytest.mark.parametrize("counted", [((0, 0), (0, 0)), ((1, 1), (1, 1))])
def test_an_average_pool_reads_bytes(counted: Any) -> None:
    x = var("x", 1, 9, 9, 20, dtype="uint8")
    windows: dict[str, Any] = {"kernel": (3, 3), "padding": ((1, 1), (1, 1)), "counted": counted}
    pooled = call("avg_pool", dequantize(x, 0.0371, 55), **windows, data_layout="NSC")
    module = lowered(quantize(pooled, 0.0213, 5))
    target = Target.host(1)
    kernels = kernels_of(optimize(module, target))
    assert all(tensor_type(f.body).dtype == "uint8" for f in kernels)
    inputs = inputs_of(module)
    (got,) = tunefarm.build(module, target).run({"x": inputs[0]}).values()
    want = evaluate(module, inputs)[0].astype(int)
    assert np.unique(want).size > 100
    assert np.abs(got - want).max() <= 1


def test_a_factor_above_one_is_left_to_numbers() -> None:
    """Of sums times more than one, the conversion to int32 might not hold."""
    x = var("x", 2, 6, dtype="uint8")
    body = quantize(call("matmul", dequantize(x, 1.0), dequantize(weights(6, 8), 1.0)), 0.5, 5)
    module = lowered(body)
    assert operators(module.main.body) == ["matmul", "dequantize", "requantize"]
    assert_same(body, module)


def test_a_signed_result_that_somebody_sees_stays_signed() -> None:
    body = quantize(call("exp", var("x", 40)), 0.05, -100, "int8")
    assert found(lowered(body), "requantize").type == TensorType((40,), "int8")


def conv(q: Expr) -> Expr:
    inputs = tensor_type(q).shape[1]
    return call("conv", dequantize(q, 0.05, 0), dequantize(weights(16, inputs, 1, 1), 0.00137))


def block(x: Expr) -> Expr:
    """A residual block: conv, relu, conv, add, relu, all quantised."""
    y = quantize(call("relu", conv(x)), 0.05, 0)
    y = quantize(conv(y), 0.1, 120)
    return quantize(
        call("relu", call("add", dequantize(y, 0.1, 120), dequantize(x, 0.05))), 0.05, 0
    )


def test_between_kernels_a_residual_network_is_bytes() -> None:
    """Its blocks are two kernels each: whether scales agree does not tell kernels apart."""
    x = var("x", 1, 3, 4, 4)
    y = quantize(conv(quantize(x, 0.05, 0)), 0.05, 0)
    for _ in range(3):
        y = block(y)
    module = lowered(y)
    optimized = optimize(module, TARGET)
    kernels = [
        n
        for n in post_order(optimized.main.body)
        if isinstance(n, Call) and isinstance(n.op, Function)
    ]
    assert {tensor_type(k).dtype for k in kernels} == {"uint8"}
    names = [str(f.attrs["name"]) for f in kernels_of(optimized)]
    residual = "conv_requantize_add_quanta"
    blocks = ["conv_requantize", residual] * 3
    assert names == ["requantize_transpose", "conv_requantize", *blocks, "transpose"]
    functions = {id(f) for f in kernels_of(optimized)}
    assert len(functions) == 5  # the stem has fewer channels
    assert_same(y, module)
