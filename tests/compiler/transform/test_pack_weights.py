"""Weights that are dequantised for products stay in their bits where a target multiplies bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pass_harness import calls, operators, var
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import Call, Constant, Expr, Function, IRModule, Var, post_order
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import optimize
from tunefarm.compiler.transform.pack_weights import pack_weights, plain_weights

TARGET = Target("llvm -mcpu=znver5 -num-cores=2")
RNG = np.random.default_rng(5)
DEPTH, COLUMNS = 96, 20


def quantised(shape: tuple[int, ...], parameters: tuple[int, ...], low: int, high: int) -> Call:
    """Whole numbers from ``low`` to ``high - 1``, dequantised with zero points among them."""
    dtype = np.int8 if low < 0 else np.uint8
    numbers = RNG.integers(low, high, shape).astype(dtype)
    numbers.flat[:2] = low, high - 1
    scales = RNG.uniform(0.01, 0.1, parameters).astype(np.float32)
    zeros = RNG.integers(low, high, parameters).astype(np.float32)
    return call("dequantize", Constant(numbers), Constant(scales), Constant(zeros))


def module_of(body: Expr) -> IRModule:
    params = tuple(n for n in post_order(body) if isinstance(n, Var))
    return IRModule({"main": Function(params, body)})


def packed(module: IRModule, target: Target = TARGET) -> list[Call]:
    made = pack_weights(module, target)
    return [n for n in calls(made.main.body) if n.op == "packed_matmul"]


def in_rows(node: Call) -> Expr:
    return call("reshape", node, shape=(COLUMNS, DEPTH))


def in_columns(node: Call) -> Expr:
    return call("reshape", node, shape=(DEPTH, COLUMNS))


FORMS: dict[str, tuple[Any, bool, int]] = {
    "columns": (lambda: quantised((DEPTH, COLUMNS), (1, COLUMNS), 0, 256), False, DEPTH),
    "one scale": (lambda: quantised((DEPTH, COLUMNS), (), -128, 128), False, DEPTH),
    "rows": (lambda: quantised((COLUMNS, DEPTH), (COLUMNS, 1), -8, 8), True, DEPTH),
    "turned": (
        lambda: call("transpose", quantised((COLUMNS, DEPTH), (COLUMNS, 1), 0, 16), axes=(1, 0)),
        False,
        DEPTH,
    ),
    "blocks of rows": (
        lambda: in_rows(quantised((COLUMNS, 3, 32), (COLUMNS, 3, 1), 0, 16)), True, 32,
    ),
    "blocks of columns": (
        lambda: in_columns(quantised((6, 16, COLUMNS), (6, 1, COLUMNS), 0, 4)), False, 16,
    ),
    "blocks of one scale": (
        lambda: in_columns(quantised((3, 32, COLUMNS), (1,), 0, 16)), False, 32,
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(3, DEPTH), (1, 2, DEPTH)])
def test_what_is_packed(form: str, shape: tuple[int, ...]) -> None:
    make, transposed, block = FORMS[form]
    y = call("matmul", var("x", *shape), make(), transpose_b=transposed)
    module = module_of(call("add", y, Constant(RNG.standard_normal(COLUMNS).astype(np.float32))))
    (node,) = packed(module)
    assert node.attrs["block"] == block
    x = [RNG.standard_normal(shape).astype(np.float32)]
    (want,) = evaluate(module.main, x)
    made = optimize(module, TARGET)
    (function,) = (n.op for n in calls(made.main.body) if n.op != "reshape" and not _views(n))
    assert [n.op for n in calls(function.body)] == ["packed_matmul", "add"]  # type: ignore[union-attr]
    for program in (pack_weights(module, TARGET), made):
        (got,) = evaluate(program, x)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def _views(node: Call) -> bool:
    return isinstance(node.op, Function) and bool(node.op.attrs.get("view"))


def test_the_fewest_bits() -> None:
    ranges = (0, 4, 2), (0, 5, 4), (0, 16, 4), (0, 17, 8), (-8, 8, 4), (-2, 2, 2), (-9, 8, 8)
    for low, high, bits in ranges:
        made = quantised((DEPTH, COLUMNS), (1, COLUMNS), low, high)
        y = call("matmul", var("x", 3, DEPTH), made)
        (node,) = packed(module_of(y))
        assert node.attrs["bits"] == bits


def test_zero_points_that_are_no_whole_numbers() -> None:
    made = quantised((DEPTH, COLUMNS), (1, COLUMNS), 0, 16)
    halves = Constant(made.args[2].data + np.float32(0.5))  # type: ignore[union-attr]
    y = call("matmul", var("x", 3, DEPTH), call("dequantize", *made.args[:2], halves))
    (node,) = packed(module_of(y))
    assert [a.type.dtype for a in node.args[1:]] == ["uint8", "float32", "float32"]  # type: ignore[union-attr]


def test_one_zero_point_is_an_attribute() -> None:
    made = quantised((DEPTH, COLUMNS), (1, COLUMNS), 0, 16)
    eight = Constant(np.full((1, COLUMNS), 8, np.float32))
    y = call("matmul", var("x", 3, DEPTH), call("dequantize", *made.args[:2], eight))
    (node,) = packed(module_of(y))
    assert len(node.args) == 3
    assert node.attrs["zero"] == 8


@pytest.mark.parametrize(
    "body",
    [
        call("matmul", var("x", 3, DEPTH), quantised((DEPTH, COLUMNS), (DEPTH, 1), 0, 16)),
        call("matmul", var("x", 3, DEPTH), quantised((DEPTH, 9), (1, 9), 0, 16)),
        call("matmul", quantised((3, DEPTH), (3, 1), 0, 16), var("w", DEPTH, COLUMNS)),
        call(
            "matmul", var("x", DEPTH, 3), quantised((DEPTH, COLUMNS), (), 0, 16), transpose_a=True
        ),
        call(
            "matmul", var("x", 3, 40),
            call("reshape", quantised((4, 10, 20), (4, 1, 20), 0, 16), shape=(40, 20)),
        ),
    ],
    ids=["a scale a term", "few columns", "on the left", "turned rows", "no whole groups"],
)  # fmt: skip
def test_what_is_made_floats(body: Call) -> None:
    module = module_of(body)
    assert not packed(module)
    plain = plain_weights(pack_weights(module, TARGET), TARGET)
    assert "dequantize" not in operators(plain.main.body)
    x = [RNG.standard_normal(p.type.shape).astype(np.float32) for p in module.main.params]
    np.testing.assert_array_equal(evaluate(plain, x)[0], evaluate(module.main, x)[0])


@pytest.mark.parametrize(
    ("target", "rows", "count"),
    [
        ("llvm -mcpu=znver3", 4, 1),
        ("llvm -mcpu=znver3", 5, 0),
        ("llvm -mcpu=znver5 -precision=strict", 1, 1),
        ("llvm -mcpu=znver5 -precision=strict", 5, 0),
        ("llvm -mcpu=alderlake", 1, 1),
        ("llvm -mcpu=znver5", 16, 1),
        ("llvm -mcpu=znver5", 17, 0),
        ("llvm -mcpu=sapphirerapids", 16, 1),
        ("llvm -mcpu=sapphirerapids", 17, 0),
        ("cuda -arch=sm_90a", 1, 0),
    ],
)
def test_rows_and_targets(target: str, rows: int, count: int) -> None:
    y = call("matmul", var("x", rows, DEPTH), quantised((DEPTH, COLUMNS), (1, COLUMNS), 0, 16))
    assert len(packed(module_of(y), Target(target))) == count


@pytest.mark.parametrize(
    ("target", "count"),
    [("llvm -mcpu=znver5", 1), ("llvm -mcpu=sapphirerapids", 0), ("llvm -mcpu=znver3", 0)],
)
def test_many_rows_of_large_matrices(target: str, count: int) -> None:
    numbers = Constant(np.broadcast_to(np.uint8(3), (2048, 1040)).copy())
    one = Constant(np.float32([[1]]))
    y = call("matmul", var("x", 17, 2048), call("dequantize", numbers, one, one))
    assert len(packed(module_of(y), Target(target))) == count
