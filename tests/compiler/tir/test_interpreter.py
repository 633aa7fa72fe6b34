"""The interpreter gives each operation its dtype's meaning, at every level of a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tunefarm.compiler import te
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.tir.interpreter import interpret, poisoned
from tunefarm.compiler.tir.ir import (
    INTRINSICS,
    Allocate,
    Block,
    Buffer,
    Cast,
    Const,
    Expr,
    For,
    If,
    Intrinsic,
    IterVar,
    LoopKind,
    PrimFunc,
    Select,
    Seq,
    Stmt,
    Store,
    Var,
    binary,
)

I = Var("i")  # noqa: E741


def elementwise(f: Callable[..., Expr], *arrays: Any) -> Any:
    """``out[i] = f(a[i], b[i], …)`` by the interpreter; arrays keep their dtypes."""
    arrays = tuple(map(np.asarray, arrays))
    params = [Buffer(f"x{n}", a.shape, a.dtype.name) for n, a in enumerate(arrays)]
    value = f(*(p[I] for p in params))
    out = Buffer("out", arrays[0].shape, value.dtype)
    body = For(I, Const(len(arrays[0])), Store(out, (I,), value))
    result = poisoned(out.shape, out.dtype)
    interpret(PrimFunc("f", (*params, out), body), [*arrays, result])
    return result


def run(body: Stmt, *buffers: Buffer, given: Sequence[Any] = (), **rest: Any) -> Any:
    """The last buffer after a program over ``buffers``, the first of which hold ``given``."""
    outputs = len(buffers) - len(given)
    arrays = [np.asarray(g) for g in given]
    arrays += [poisoned(b.shape, b.dtype) for b in buffers[len(given) :]]
    interpret(PrimFunc("f", buffers, body, outputs, **rest), arrays)
    return arrays[-1]


def edges(dtype: str) -> Any:
    """Every pair of small values and the dtype's ends."""
    info = np.iinfo(dtype)
    values = {int(info.min), int(info.min) + 1, -7, -2, -1, 0, 1, 2, 3, 7, int(info.max)}
    inside = sorted(v for v in values if info.min <= v <= info.max)
    a, b = np.meshgrid(np.array(inside, dtype), np.array(inside, dtype))
    return a.ravel(), b.ravel()


def exact(op: str, a: int, b: int) -> int:
    """The operation on whole numbers of any size; division by zero is by one."""
    b = b or 1 if "div" in op or "mod" in op else b
    quotient = abs(a) // abs(b or 1)
    results = {
        "add": a + b, "sub": a - b, "mul": a * b, "min": min(a, b), "max": max(a, b),
        "div": quotient if (a < 0) == (b < 0) else -quotient,
        "floordiv": a // (b or 1), "floormod": a % (b or 1),
        "bitand": a & b, "bitor": a | b, "bitxor": a ^ b,
    }  # fmt: skip
    return results[op]


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint16", "uint64"])
@pytest.mark.parametrize(
    "op",
    ["add", "sub", "mul", "min", "max", "div", "floordiv", "floormod", "bitand", "bitor", "bitxor"],
)
def test_integers_wrap_in_their_own_width(op: Any, dtype: str) -> None:
    a, b = edges(dtype)
    got = elementwise(lambda x, y: binary(op, x, y), a, b)
    bits = 8 * np.dtype(dtype).itemsize
    wrapped = [exact(op, int(x), int(y)) % (1 << bits) for x, y in zip(a, b, strict=True)]
    assert got.view(f"uint{bits}").tolist() == wrapped


def test_int64_arithmetic_wraps_before_it_is_compared() -> None:
    top = np.array([2**63 - 1, 5])
    got = elementwise(lambda x: binary("gt", x + 1, x), top)
    assert got.tolist() == [False, True]


def test_float32_rounds_after_every_operation() -> None:
    x, y = np.float32([1.0]), np.float32([2.0**-24])
    assert elementwise(lambda a, b: a + b + b, x, y)[0] == 1.0
    assert elementwise(lambda a, b: a + (b + b), x, y)[0] > 1.0


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_narrow_floats_are_rounded_after_every_operation(kind: Any) -> None:
    rng = np.random.default_rng(1)
    a, b, c = rng.standard_normal((3, 200)).astype(kind)
    got = elementwise(lambda x, y, z: x * y + z, a, b, c)
    product = (a.astype("float32") * b.astype("float32")).astype(kind)
    want = (product.astype("float32") + c.astype("float32")).astype(kind)
    np.testing.assert_array_equal(got.astype("float32"), want.astype("float32"))


@pytest.mark.parametrize("op", ["min", "max"])
def test_extrema_of_nan_are_nan(op: Any) -> None:
    a, b = np.float32([np.nan, 1, 2]), np.float32([1, np.nan, 3])
    got = elementwise(lambda x, y: binary(op, x, y), a, b)
    assert np.isnan(got[:2]).all()
    assert got[2] == (2 if op == "min" else 3)


@pytest.mark.parametrize(
    ("source", "target", "values", "want"),
    [
        ("float32", "int32", [1.9, -1.9, -0.5], [1, -1, 0]),
        ("int32", "int8", [300, -129, 5], [44, 127, 5]),
        ("int32", "uint8", [-1, 256, 7], [255, 0, 7]),
        ("float32", "bool", [0.0, 0.25, -3.0], [False, True, True]),
        ("bool", "float32", [True, False], [1.0, 0.0]),
        ("float64", "float32", [1 + 2.0**-30, 1e300], [1.0, np.inf]),
        ("int64", "float32", [2**24 + 1, -3], [2.0**24, -3.0]),
    ],
)
def test_casts(source: str, target: str, values: list[Any], want: list[Any]) -> None:
    got = elementwise(lambda x: Cast(x, target), np.array(values, source))
    assert got.dtype == numpy_dtype(target)
    assert got.tolist() == want


MEANINGS: dict[str, Callable[..., Any]] = {
    "exp_shifted": np.exp, "exp_within": np.exp, "log1p_unit": np.log1p,
    "near_sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "asinh": np.arcsinh, "acosh": lambda x: np.arccosh(x), "atanh": np.arctanh, "pow": np.power,
    "round": np.rint, "abs": np.abs, "not": np.logical_not, "bitnot": np.invert,
    "fma": lambda a, b, c: a * b + c, "popcount": lambda x: np.array([3, 63]),
    "erf": lambda x: np.array([0.2763263902, 0.5204998778]),
}  # fmt: skip
ARITIES = {"pow": 2, "fmod": 2, "fma": 3}


@pytest.mark.parametrize("name", sorted(INTRINSICS))
def test_every_intrinsic_has_a_meaning(name: str) -> None:
    x: Any = np.array([0.25, 0.5])
    dtype = "bool" if name in ("not", "isnan", "isinf") else "float64"
    if name == "not":
        x = np.array([True, False])
    elif name in ("bitnot", "popcount"):
        x, dtype = np.array([7, -2]), "int64"
    elif name == "acosh":
        x = x + 1
    args = [x] * ARITIES.get(name, 1)
    got = elementwise(lambda *a: Intrinsic(name, a, dtype), *args)
    meaning = MEANINGS.get(name) or getattr(np, name)
    np.testing.assert_allclose(got, meaning(*args), rtol=1e-9)


def test_half_way_cases_round_to_even() -> None:
    x = np.float32([0.5, 1.5, 2.5, -0.5, -1.5])
    got = elementwise(lambda a: Intrinsic("round", (a,), "float32"), x)
    assert got.tolist() == [0, 2, 2, 0, -2]


def test_a_branch_not_taken_loads_nothing() -> None:
    a, out = Buffer("a", (3,)), Buffer("out", (4,))
    value = Select(I >= 1, a[I - 1], Const(9.0, "float32"), "float32")
    got = run(For(I, Const(4), Store(out, (I,), value)), a, out, given=[np.float32([1, 2, 3])])
    assert got.tolist() == [9, 1, 2, 3]


def test_an_access_out_of_bounds_names_the_place() -> None:
    a, out = Buffer("a", (3, 2)), Buffer("out", (4,))
    load = For(I, Const(4), Store(out, (I,), a[I, 1]))
    with pytest.raises(IndexError, match=r"a\[3, 1\] is outside \(3, 2\)"):
        run(load, a, out, given=[np.zeros((3, 2), "float32")])
    store = For(I, Const(2), Store(out, (I - 1,), Const(0.0, "float32")))
    with pytest.raises(IndexError, match=r"out\[-1\] is outside \(4,\)"):
        run(store, out)


def test_arrays_must_fit_the_parameters() -> None:
    out = Buffer("out", (4,))
    program = PrimFunc("f", (out,), Store(out, (Const(0),), Const(0.0, "float32")))
    with pytest.raises(ValueError, match="f takes 1 arrays, got 2"):
        interpret(program, [np.zeros(4, "float32")] * 2)
    with pytest.raises(ValueError, match=r"out is float32\[4\], got float64\[4\]"):
        interpret(program, [np.zeros(4)])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "uint8"])
def test_what_is_read_before_it_is_written_shows(dtype: str) -> None:
    out = Buffer("out", (1,), dtype)
    inner, whole = Buffer("t", (2,), dtype), Buffer("w", (1,), dtype)
    body = Allocate(inner, Store(out, (Const(0),), inner[1]))
    for got in (run(body, out), run(Store(out, (Const(0),), whole[0]), out, buffers=(whole,))):
        text = str(got[0])
        assert text == ("nan" if "float" in dtype else str(np.iinfo(dtype).max))


def test_an_allocation_starts_afresh_in_every_iteration() -> None:
    out, t = Buffer("out", (2,)), Buffer("t", (1,))
    one = Const(1.0, "float32")
    first = If(I < 1, Store(t, (Const(0),), one))
    loop = For(I, Const(2), Allocate(t, Seq((first, Store(out, (I,), t[0])))))
    assert str(run(loop, out)) == "[ 1. nan]"


@pytest.mark.parametrize("kind", list(LoopKind))
def test_loops_of_every_kind_run_from_their_start(kind: LoopKind) -> None:
    out = Buffer("out", (6,), "int64")
    c = Var("c")
    clear = For(c, Const(6), Store(out, (c,), Const(0)))
    loop = For(I, Const(3), Store(out, (I,), I * 10), kind, Const(2))
    assert run(Seq((clear, loop)), out).tolist() == [0, 0, 20, 30, 40, 0]


def test_a_program_may_nest_more_loops_than_python() -> None:
    out = Buffer("out", (1,), "int64")
    body: Stmt = Store(out, (Const(0),), out[0] + 1)
    total: Expr = Const(0)
    for n in range(40):
        var = Var(f"v{n}")
        total = total + var
        body = For(var, Const(2 if n % 8 == 0 else 1), body)
    assert run(Seq((Store(out, (Const(0),), Const(0)), body)), out).tolist() == [32]


def test_a_block_starts_its_reduction_where_the_predicate_spares_it() -> None:
    """Rows 0 and 1 sum k < i; row 0 has no term and keeps its first value."""
    out = Buffer("out", (3,), "int64")
    i, k, loop_i, loop_k = Var("i"), Var("k"), Var("i"), Var("k")
    block = Block(
        "sum",
        (IterVar(i, 3), IterVar(k, 4, "reduce")),
        (loop_i, loop_k),
        Store(out, (i,), out[i] + k),
        Store(out, (i,), Const(100)),
        binary("and", loop_k < loop_i, loop_i < 2),
    )
    body = For(loop_i, Const(3), For(loop_k, Const(4), block))
    got = run(body, out).tolist()
    assert got == [100, 100, np.iinfo("int64").max]


def test_scalars_have_no_indices() -> None:
    x = te.placeholder((), name="x")
    y = te.compute((), lambda: x[()] * 2, name="y")
    result = np.zeros((), "float32")
    interpret(te.create_prim_func([x, y]), [np.float32(3).reshape(()), result])
    assert result == 6
