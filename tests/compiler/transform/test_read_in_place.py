"""Products read transposed operands and write transposed results without a copy."""

from collections.abc import Sequence

import numpy as np
import pytest
from pass_harness import kernels_in, module_of, var
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.extract import tasks_of
from tunefarm.compiler.ir import (
    Constant,
    Expr,
    IRModule,
    Var,
    tensor_type,
)
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import optimize
from tunefarm.compiler.transform.constants import factor_of

import tunefarm

TARGET = Target.host(1)
RNG = np.random.default_rng(5)


def const(*shape: int) -> Constant:
    return Constant(RNG.standard_normal(shape).astype(np.float32))


def turned(x: Expr, *axes: int) -> Expr:
    return call("transpose", x, axes=axes)


def reshaped(x: Expr, *shape: int) -> Expr:
    return call("reshape", x, shape=shape)


def kernels(params: Sequence[Var], body: Expr) -> list[str]:
    """The operators of each kernel; the compiled module agrees with the graph's meaning."""
    module = module_of(params, body)
    feeds = {p.name: RNG.standard_normal(p.type.shape).astype(np.float32) for p in params}
    (want,) = evaluate(module, feeds)
    (got,) = tunefarm.build(module, TARGET).run(feeds).values()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    return kernels_in(optimize(module, TARGET))


def attention(batch: int, tokens: int, keys: int, heads: int, size: int) -> tuple[list[Var], Expr]:
    q = var("q", batch, tokens, heads, size)
    k, v = var("k", batch, keys, heads, size), var("v", batch, keys, heads, size)
    scores = call("matmul", turned(q, 0, 2, 1, 3), turned(k, 0, 2, 3, 1))
    scaled = call("multiply", scores, Constant(np.array(size**-0.5, np.float32)))
    weights = call("softmax", scaled, axis=-1)
    mixed = call("matmul", weights, turned(v, 0, 2, 1, 3))
    return [q, k, v], reshaped(turned(mixed, 0, 2, 1, 3), batch, tokens, heads * size)


@pytest.mark.parametrize("sizes", [(1, 7, 7, 3, 16), (2, 5, 11, 3, 8), (1, 2, 9, 2, 32)])
def test_attention_has_no_transposes(sizes: tuple[int, int, int, int, int]) -> None:
    for kernel in kernels(*attention(*sizes)):
        assert "transpose" not in kernel


def test_a_single_query_transposes_its_scores_alone() -> None:
    """Keys are read once, in their order, and as they lie; scores are as much shorter as a head has
    elements."""
    assert kernels(*attention(1, 1, 19, 3, 32)) == [
        "multiply sum", "transpose multiply", "softmax", "einsum",
    ]  # fmt: skip


def test_attention_is_three_kernels() -> None:
    assert kernels(*attention(2, 6, 10, 3, 16)) == ["einsum multiply", "softmax", "einsum"]


def columns(x: Expr, first: int, count: int, axis: int = 2) -> Expr:
    shape = list(tensor_type(x).shape)
    begin = tuple(first if d == axis else 0 for d in range(len(shape)))
    shape[axis] = count
    return call("slice", x, begin=begin, size=tuple(shape), strides=(1,) * len(shape))


def mixed(q: Expr, k: Expr, v: Expr) -> Expr:
    """Attention of operands [batch, tokens, heads, size]."""
    scores = call("matmul", turned(q, 0, 2, 1, 3), turned(k, 0, 2, 3, 1))
    return turned(
        call("matmul", call("softmax", scores, axis=-1), turned(v, 0, 2, 1, 3)), 0, 2, 1, 3
    )


@pytest.mark.parametrize("batch, tokens, heads, size", [(1, 33, 2, 16), (2, 37, 3, 8)])
def test_parts_of_one_product_are_read_where_they_lie(
    batch: int, tokens: int, heads: int, size: int
) -> None:
    """Queries, keys and values by one projection, two with factors, as exporters cut them."""
    x = var("x", batch, tokens, 24)
    y = call("matmul", x, const(24, 3 * heads * size))
    parts = reshaped(y, batch, tokens, 3, heads, size)
    third = (batch, tokens, heads, size)
    q, k, v = (columns(parts, n, 1) for n in range(3))
    q, k = (call("multiply", p, Constant(np.array(0.4, np.float32))) for p in (q, k))
    body = mixed(*(reshaped(p, *third) for p in (q, k, v)))
    first, attention = kernels([x], body)
    assert first == "matmul"
    assert attention == "slice slice einsum multiply softmax slice einsum"


def test_columns_of_a_matrix_are_read_where_they_lie() -> None:
    tokens, heads, size = 35, 2, 16
    x = var("x", tokens, 24)
    y = call("relu", call("matmul", x, const(24, 100)))
    q, k, v = (columns(y, n * 32, 32, axis=1) for n in range(3))
    body = mixed(*(reshaped(p, 1, tokens, heads, size) for p in (q, k, v)))
    apart = ["matmul relu", *["slice"] * 3, "einsum softmax einsum"]
    assert kernels([x], body) == apart  # 100 columns are no heads of 16
    wide = call("relu", call("matmul", x, const(24, 112)))
    q, k, v = (columns(wide, n * 32 + 16, 32, axis=1) for n in range(3))
    body = mixed(*(reshaped(p, 1, tokens, heads, size) for p in (q, k, v)))
    assert len(kernels([x], body)) == 2


def test_factors_of_values_stay_before_them() -> None:
    x, z = var("x", 1, 33, 3, 2, 16), var("z", 1, 33, 2, 16)
    v = call("multiply", columns(x, 2, 1), Constant(np.array(0.4, np.float32)))
    body = mixed(z, reshaped(columns(x, 1, 1), 1, 33, 2, 16), reshaped(v, 1, 33, 2, 16))
    first, attention = kernels([x, z], body)
    assert first == "slice multiply"
    assert attention == "slice einsum softmax einsum"


def test_heads_may_be_joined_with_the_batch() -> None:
    """As exporters write it for a product of three-dimensional tensors."""
    q, k, v = (var(n, 2, 5, 3, 16) for n in "qkv")
    a, b, c = (reshaped(turned(x, 0, 2, 1, 3), 6, 5, 16) for x in (q, k, v))
    scores = call("softmax", call("matmul", a, turned(b, 0, 2, 1)), axis=-1)
    mixed = reshaped(call("matmul", scores, c), 2, 3, 5, 16)
    body = reshaped(turned(mixed, 0, 2, 1, 3), 2, 5, 48)
    assert kernels([q, k, v], body) == ["einsum", "softmax", "einsum"]


def test_a_result_of_joined_heads_is_written_in_place() -> None:
    a, b = var("a", 6, 5, 7), var("b", 6, 7, 16)
    mixed = reshaped(call("matmul", a, b), 2, 3, 5, 16)
    assert kernels([a, b], reshaped(turned(mixed, 0, 2, 1, 3), 2, 5, 48)) == ["einsum"]


def test_a_shared_operand_keeps_its_place_in_the_other_product() -> None:
    """The transpose vanishes only if every reader is a product."""
    x = var("x", 1, 6, 3, 16)
    heads = turned(x, 0, 2, 1, 3)
    scores = call("matmul", heads, heads, transpose_b=True)
    assert kernels([x], scores) == ["einsum"]
    body = call("concat", call("matmul", scores, heads), heads, axis=0)
    assert [k for k in kernels([x], body) if "einsum" in k] == ["einsum", "einsum"]


def test_axes_that_broadcast() -> None:
    """One matrix of the first operand for all of the second's."""
    a, b = var("a", 5, 1, 7), var("b", 4, 7, 3, 16)
    body = call("matmul", turned(a, 1, 0, 2), turned(b, 0, 2, 1, 3))
    assert kernels([a, b], body) == ["einsum"]


def test_windows_are_read_in_place() -> None:
    """A dense layer over windows of an image."""
    x = var("x", 2, 3, 4, 2, 5, 6)
    windows = reshaped(turned(x, 0, 1, 3, 2, 4, 5), 2 * 3 * 2, 20, 6)
    assert kernels([x], call("matmul", windows, const(6, 9))) == ["einsum"]


def test_a_transpose_that_puts_the_shared_axis_innermost_stays() -> None:
    a, b = var("a", 5, 7, 24), var("b", 7, 16, 24)
    body = call("matmul", turned(a, 2, 0, 1), turned(b, 2, 0, 1))
    assert kernels([a, b], body) == ["transpose", "transpose", "matmul"]


def test_a_result_whose_lanes_would_lie_apart_stays() -> None:
    a, b = var("a", 2, 5, 7), var("b", 2, 7, 16)
    body = turned(call("matmul", a, b), 1, 2, 0)
    assert kernels([a, b], body) == ["matmul", "transpose"]


def test_a_result_with_another_reader_stays() -> None:
    a, b = var("a", 2, 5, 7), var("b", 2, 7, 16)
    product = call("matmul", a, b)
    other = call("sum", product, axes=(2,), keepdims=True)
    body = call("add", turned(product, 1, 0, 2), turned(other, 1, 0, 2))
    assert "matmul" in kernels([a, b], body)


def test_short_windows_keep_their_copy() -> None:
    """Rows of two would leave the register tile empty."""
    x = var("x", 8, 8, 8, 2, 6)
    rows = reshaped(turned(x, 0, 2, 1, 3, 4), 8, 128, 6)
    assert tensor_type(rows).size
    assert kernels([x], call("matmul", rows, const(6, 9))) == ["transpose", "matmul"]


def test_scaled_queries_that_are_the_keys_too_stay_apart() -> None:
    x = var("x", 1, 33, 3, 2, 16)
    q = call("multiply", columns(x, 0, 1), Constant(np.array(0.4, np.float32)))
    q = reshaped(q, 1, 33, 2, 16)
    made = kernels([x], mixed(q, q, reshaped(columns(x, 2, 1), 1, 33, 2, 16)))
    assert made[0] == "slice multiply"


def test_values_may_be_the_first_operand() -> None:
    x = var("x", 1, 33, 3, 2, 16)
    q, k, v = (reshaped(columns(x, n, 1), 1, 33, 2, 16) for n in range(3))
    scores = call("einsum", q, k, equation="abcd,aecd->acbe")
    weights = call("softmax", scores, axis=-1)
    body = call("einsum", v, weights, equation="adbe,abcd->acbe")
    assert kernels([x], body) == ["slice slice einsum softmax slice einsum"]


@pytest.mark.parametrize("factor", [1e-23, 1e20])
def test_factors_without_which_scores_might_overflow_stay(factor: float) -> None:
    x = var("x", 1, 33, 3, 2, 16)
    q, k, v = (columns(x, n, 1) for n in range(3))
    q = call("multiply", q, Constant(np.array(factor, np.float32)))
    body = mixed(*(reshaped(p, 1, 33, 2, 16) for p in (q, k, v)))
    made = kernels_in(optimize(module_of([x], body), TARGET))
    assert made == ["slice multiply", "slice einsum softmax slice einsum"]


def test_a_factor_is_one_number_that_repeats_nothing() -> None:
    x, half = var("x", 3, 1), Constant(np.array(0.5, np.float32))
    assert factor_of(call("multiply", x, half)) == 0.5
    assert factor_of(call("multiply", x, Constant(np.full((1, 4), 0.5, np.float32)))) is None
    assert factor_of(call("multiply", x, const(3, 1))) is None
    assert factor_of(call("add", x, half)) is None


def test_a_strict_precision_multiplies_where_the_model_does() -> None:
    x = var("x", 1, 33, 3, 2, 16)
    q, k, v = (columns(x, n, 1) for n in range(3))
    q = call("multiply", q, Constant(np.array(0.5, np.float32)))
    body = mixed(*(reshaped(p, 1, 33, 2, 16) for p in (q, k, v)))
    strict = Target("llvm -mcpu=znver5 -precision=strict")
    assert kernels_in(optimize(module_of([x], body), strict))[0] == "slice multiply"


def test_little_of_an_array_is_cut_out_before_it_is_made_whole() -> None:
    x, z = var("x", 1, 33, 9, 2, 16), var("z", 1, 33, 2, 16)
    k = columns(call("relu", x), 4, 1)
    body = mixed(z, reshaped(k, 1, 33, 2, 16), z)
    assert kernels_in(optimize(module_of([x, z], body), TARGET))[0] != "relu"


def projected(tokens: int, dtype: str = "float32", scaled: str = "qk") -> IRModule:
    """Attention of two heads of 16 with a projection each for queries, keys and values."""
    x = var("x", tokens, 64, dtype=dtype)

    def operand(name: str) -> Expr:
        weights, bias = (Constant(c.data.astype(dtype)) for c in (const(64, 32), const(32)))
        made = call("add", call("matmul", x, weights), bias)
        made = reshaped(made, 1, tokens, 2, 16)
        half = Constant(np.array(0.5, dtype))
        return call("multiply", made, half) if name in scaled else made

    return module_of([x], mixed(*map(operand, "qkv")))


def test_projections_are_one_product_where_rows_are_split() -> None:
    """For AMX, and the attention reads its columns; by multiply-adds they stay apart."""
    module, tiles = projected(33), Target("llvm -mcpu=sapphirerapids -num-cores=1")
    feeds = {"x": RNG.standard_normal((33, 64)).astype(np.float32)}
    joined = optimize(module, tiles)
    assert kernels_in(joined) == ["matmul add", "slice slice einsum multiply softmax slice einsum"]
    assert tasks_of(joined, tiles)[1].workload.summary.endswith(
        "of parts +multiply +softmax +einsum"
    )
    (want,), (got,) = evaluate(module, feeds), evaluate(joined, feeds)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    for other in ("llvm -mcpu=sapphirerapids -precision=strict", "llvm -mcpu=znver5"):
        assert len(kernels_in(optimize(module, Target(other)))) == 4
    for module in (projected(4), projected(33, "float16"), projected(33, scaled="v")):
        assert not any("slice" in kernel for kernel in kernels_in(optimize(module, tiles)))
