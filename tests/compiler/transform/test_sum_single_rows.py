"""Products of a single row with rows that lie as they are summed become sums of products."""

from __future__ import annotations

import numpy as np
import pytest
from pass_harness import agree, kernels_in, module_of, var
from tunefarm.compiler.ir import Constant, Expr, IRModule
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import optimize
from tunefarm.compiler.transform.sum_single_rows import sum_single_rows

TARGET = Target("llvm -mcpu=haswell -num-cores=2")
RNG = np.random.default_rng(11)


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def check(module: IRModule) -> list[str]:
    """The kernels of the optimised module, whose results agree with the original's."""
    optimized = optimize(module, TARGET)
    inputs = {p.name: draw(*p.type.shape) for p in module.main.params}
    agree(optimized, module, inputs, rtol=2e-5, atol=2e-5)
    return kernels_in(optimized)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((1, 64), (17, 64)),
        ((3, 1, 37), (3, 19, 37)),
        ((2, 1, 1, 9), (1, 5, 8, 9)),  # batches that broadcast
        ((4, 1, 16), (8, 16)),
    ],
)
def test_a_row_meets_rows(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = var("a", *left), var("b", *right)
    kernels = check(module_of([a, b], call("matmul", a, b, transpose_b=True)))
    if len(right) > 2 or len(left) == 2:
        assert kernels == ["multiply sum"]
    else:
        assert kernels == ["matmul"]  # of one matrix: rows of all batches together


@pytest.mark.parametrize(
    ("equation", "left", "right"),
    [
        ("bqhd,bkhd->bhqk", (1, 1, 3, 16), (1, 19, 3, 16)),
        ("bqhd,bkhd->bhqk", (2, 1, 3, 16), (2, 9, 3, 16)),
        ("hqd,khd->qkh", (3, 1, 9), (21, 3, 9)),
        ("qde,kde->qk", (1, 5, 8), (23, 5, 8)),  # several terms
    ],
)
def test_whatever_the_order_of_batches(
    equation: str, left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    a, b = var("a", *left), var("b", *right)
    kernels = check(module_of([a, b], call("einsum", a, b, equation=equation)))
    assert "multiply sum" in kernels
    assert not any("einsum" in k or "matmul" in k for k in kernels)


def test_a_query_reads_a_cache_of_keys_once() -> None:
    q, k, v = var("q", 4, 1, 16), var("k", 4, 33, 16), var("v", 4, 33, 16)
    scores = call("matmul", q, call("transpose", k, axes=(0, 2, 1)))
    scaled = call("multiply", scores, Constant(np.array(0.25, np.float32)))
    kernels = check(module_of([q, k, v], call("matmul", call("softmax", scaled, axis=-1), v)))
    assert kernels == ["multiply sum multiply", "softmax", "matmul"]


def weights() -> Constant:
    return Constant(draw(24, 16))


def product(a: Expr, b: Expr, **attrs: bool) -> Expr:
    return call("matmul", a, b, **attrs)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (product(var("a", 1, 16), weights(), transpose_b=True), "weights are packed"),
        (product(var("a", 1, 16), var("b", 16, 24)), "columns lie side by side"),
        (product(var("a", 2, 16), var("b", 24, 16), transpose_b=True), "two rows"),
        (product(var("a", 16, 1), var("b", 24, 16), transpose_a=True, transpose_b=True),
         "a column"),
        (product(var("a", 1, 5), var("b", 24, 5), transpose_b=True), "short rows"),
        (product(var("a", 1, 16), var("b", 4, 16), transpose_b=True), "few rows"),
        (product(var("a", 1, 16, dtype="float16"), var("b", 24, 16, dtype="float16"),
                 transpose_b=True), "16 bits"),
        (call("einsum", var("a", 1, 16), var("b", 16, 24), equation="qd,dk->qk"), "terms apart"),
        (call("einsum", var("a", 2, 16), var("b", 24, 16), equation="qd,kd->qk"), "two rows"),
        (call("einsum", var("a", 1, 16), var("b", 24, 3, 16), equation="qd,ked->qk"),
         "terms of one operand"),
    ],
)  # fmt: skip
def test_others_stay_products(body: Expr, why: str) -> None:
    module = module_of([], body)
    assert sum_single_rows(module, TARGET) is module, why


def test_gpus_multiply_tiles() -> None:
    a, b = var("a", 1, 64), var("b", 32, 64)
    module = module_of([a, b], call("matmul", a, b, transpose_b=True))
    assert sum_single_rows(module, TARGET) is not module
    assert sum_single_rows(module, Target("cuda -arch=sm_90a")) is module
