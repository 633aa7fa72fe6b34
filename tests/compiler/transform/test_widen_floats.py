"""Models of 16-bit floats in float32: which processors, which products, and what stays as it is."""

from __future__ import annotations

import numpy as np
import pytest
from pass_harness import calls, kernels_in, module_of, operators, var
from tunefarm.compiler.build import build_module
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.extract import kernels_of
from tunefarm.compiler.ir import Call, Constant, Expr, IRModule, Tuple, post_order, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.pipeline import optimize
from tunefarm.compiler.transform.widen_floats import widen_floats

OLD = Target("llvm -mcpu=znver3")
HOST = Target.host(2)
# Code that this machine runs without arithmetic of float16.
PLAIN = Target("llvm -mcpu=haswell -num-cores=2") if HOST.has("avx512fp16") else HOST


def weights(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Constant:
    values = np.random.default_rng(seed).standard_normal(shape) / 8
    return Constant(values.astype(numpy_dtype(dtype)))


def layers(rows: int, dtype: str = "float16") -> IRModule:
    """Two products with a softmax and what is around them."""
    x = var("x", rows, 64, dtype=dtype)
    y: Expr = call("relu", call("matmul", x, weights((64, 64), dtype)))
    y = call("add", call("matmul", y, weights((64, 64), dtype, 1)), x)
    return module_of([x], call("softmax", y, axis=-1))


def dtypes_inside(module: IRModule) -> set[str]:
    """Of all values but the arguments and the results."""
    ends = {module.main.body, *module.main.params}
    return {tensor_type(e).dtype for e in post_order(module.main.body) if e not in ends}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_the_processor_does_not_multiply_is_float32(dtype: str) -> None:
    module = layers(8, dtype)
    wide = widen_floats(module, OLD)
    assert dtypes_inside(wide) == {"float32"}
    assert wide.main.params == module.main.params
    assert tensor_type(wide.main.body).dtype == dtype
    multiplies = {"float16": "sapphirerapids", "bfloat16": "znver4"}[dtype]
    assert widen_floats(module, Target(f"llvm -mcpu={multiplies}")) is module


def test_no_kernel_is_made_for_the_casts() -> None:
    assert kernels_in(optimize(layers(8), OLD)) == [
        "cast",
        "matmul relu",
        "matmul cast add",
        "softmax cast",
    ]


def test_products_of_few_rows_stay_as_they_are() -> None:
    """They wait for their weights, which would be twice as many bytes."""
    few = layers(2)
    assert widen_floats(few, OLD) is few
    x = var("x", 8, 64, dtype="float16")
    many = call("relu", call("matmul", x, weights((64, 64), "float16")))
    one = call("matmul", call("sum", many, axes=(0,), keepdims=True), weights((64, 9), "float16"))
    module = module_of([x], call("relu", one))
    wide = widen_floats(module, OLD)
    assert [tensor_type(p.args[1]).dtype for p in products(wide)] == ["float32", "float16"]
    value = np.random.default_rng(2).standard_normal((8, 64)).astype(np.float16)
    (got,) = build_module(module, HOST).run({"x": value}).values()
    (want,) = evaluate(module, {"x": value})
    np.testing.assert_allclose(got, want, rtol=3e-3, atol=2e-2)


@pytest.mark.parametrize("layout", ["NCS", "NSC"])
def test_rows_of_a_convolution_are_its_pixels(layout: str) -> None:
    def conv(side: int) -> IRModule:
        last = layout == "NSC"
        shape = (1, side, side, 64) if last else (1, 64, side, side)
        kernel = (1, 1, 64, 32) if last else (32, 64, 1, 1)
        layouts = {"data_layout": layout, "kernel_layout": "SIO" if last else "OIS"}
        x = var("x", *shape, dtype="float16")
        return module_of([x], call("conv", x, weights(kernel, "float16"), **layouts))

    one, many = conv(1), conv(4)
    assert widen_floats(one, OLD) is one
    assert widen_floats(many, OLD) is not many


def products(module: IRModule) -> list[Call]:
    return [c for c in calls(module.main.body) if c.op == "matmul"]


def test_a_model_without_slow_products_is_left_alone() -> None:
    x = var("x", 8, 64, dtype="float16")
    for body in (call("relu", x), call("softmax", call("add", x, x), axis=-1)):
        module = module_of([x], body)
        assert widen_floats(module, OLD) is module


def test_casts_of_the_model_vanish_and_several_results_keep_their_types() -> None:
    x = var("x", 4, 32)
    narrow = call("cast", x, dtype="float16")
    product = call("matmul", narrow, weights((32, 32), "float16"))
    largest = call("argmax", product, axis=1, keepdims=False)
    module = module_of([x], Tuple((product, call("cast", product, dtype="float32"), largest)))
    wide = widen_floats(module, OLD)
    assert wide.main.type == module.main.type
    assert operators(wide.main.body) == ["matmul", "cast", "argmax"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 2, 9])
def test_results_are_those_of_fewer_roundings(dtype: str, rows: int) -> None:
    module = layers(rows, dtype)
    x = np.random.default_rng(3).standard_normal((rows, 64)).astype(numpy_dtype(dtype))
    (got,) = build_module(module, HOST).run({"x": x}).values()
    (want,) = evaluate(module, {"x": x})
    assert got.dtype == want.dtype
    step = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    assert np.abs(got.astype(np.float64) - want.astype(np.float64)).max() < 8 * step


def test_convolutions_take_winograds_method_again() -> None:
    x = var("x", 1, 32, 28, 28, dtype="float16")
    body = call("conv", x, weights((32, 32, 3, 3), "float16"), padding=((1, 1), (1, 1)))
    module = module_of([x], call("relu", body))
    assert all(
        tensor_type(p).dtype == "float32"
        for kernel in kernels_of(optimize(module, OLD))
        for p in kernel.params[1:]
    )
    value = np.random.default_rng(1).standard_normal((1, 32, 28, 28)).astype(np.float16)
    (got,) = build_module(module, PLAIN).run({"x": value}).values()
    (want,) = evaluate(module, {"x": value})
    np.testing.assert_allclose(got, want, rtol=3e-3, atol=3e-3)
