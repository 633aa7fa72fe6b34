"""Machine code of single operations, loads and stores equals the interpreter's meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tir_harness as h
from tunefarm.compiler import te
from tunefarm.compiler.codegen.llvm import emit_llvm
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Binary, Cast, Const, Expr, PrimFunc
from tunefarm.compiler.tir.transform.lower import lower

FLOATS = ("float16", "bfloat16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
EVERY = (*FLOATS, *SIGNED, *UNSIGNED, "bool")
LANES = (1, 3, 8, 13)
AVX512 = Target("llvm -mcpu=znver4")


def last(program: PrimFunc) -> str:
    return s.remaining_blocks(program)[-1]


def in_lanes(program: PrimFunc, lanes: int) -> PrimFunc:
    """The last block's innermost loop in vectors of ``lanes``."""
    loop = s.loops_of(program, last(program))[-1]
    if lanes == 1:
        return program
    program, (_, inner) = s.split(program, loop, lanes)
    return s.vectorize(program, inner)


def agree(program: PrimFunc, arrays: list[Any], lanes: int) -> None:
    want = h.interpreted(program, arrays)
    lowered = lower(in_lanes(program, lanes))
    with np.errstate(all="ignore"):
        h.same(h.compiled(lowered, arrays), want, f"{lanes} lanes of\n{lowered}")


def extremes(dtype: str) -> Any:
    """The numbers at which an operation of the dtype may go wrong."""
    kind = numpy_dtype(dtype)
    if dtype == "bool":
        return np.array([False, True])
    if dtype in FLOATS:
        values = [0.0, -0.0, 1.0, -1.5, 2.5, 1e-3, 40.0, -77.0, np.inf, -np.inf, np.nan]
        return np.array(values).astype(kind)
    info = np.iinfo(kind)
    values = [0, 1, 2, 3, 7, info.max, info.max - 1, info.min, info.min + 1, info.max // 2 + 1]
    return np.array([*values, *([-1, -2, -7] if info.min < 0 else [])], dtype=kind)


def pairs(dtype: str) -> list[Any]:
    a, b = np.meshgrid(extremes(dtype), extremes(dtype))
    return [np.ascontiguousarray(a.ravel()), np.ascontiguousarray(b.ravel())]


def binary_program(op: str, dtype: str, size: int) -> PrimFunc:
    x, y = te.placeholder((size,), dtype, "x"), te.placeholder((size,), dtype, "y")
    out = "bool" if op in ("lt", "le", "gt", "ge", "eq", "ne") else dtype
    z = te.compute((size,), lambda i: Binary(op, x[i], y[i], out))  # type: ignore[arg-type]
    return te.create_prim_func([x, y, z])


ARITHMETIC = ("add", "sub", "mul", "div", "min", "max")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
WHOLE = (*ARITHMETIC, *COMPARISONS, "floordiv", "floormod", "bitand", "bitor", "bitxor")
CASES = [
    *((op, d) for d in FLOATS for op in (*ARITHMETIC, *COMPARISONS)),
    *((op, d) for d in (*SIGNED, *UNSIGNED) for op in WHOLE),
    *((op, "bool") for op in ("and", "or", "xor", "eq", "ne")),
]


@pytest.mark.parametrize("dtype", EVERY)
def test_operations_at_the_edges_of_a_dtype(dtype: str) -> None:
    arrays = pairs(dtype)
    for op in (op for op, kind in CASES if kind == dtype):
        for lanes in (1, 8):
            agree(binary_program(op, dtype, arrays[0].size), arrays, lanes)


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
@pytest.mark.parametrize("op", ["floordiv", "floormod"])
def test_division_by_a_power_of_two(op: str, dtype: str) -> None:
    """A shift, which rounds down below zero too, or a mask."""
    values = pairs(dtype)[0]
    x = te.placeholder(values.shape, dtype, "x")
    for divisor in (Const(n, dtype) for n in (1, 2, 8, 64)):
        z = te.compute(values.shape, lambda i, by=divisor: Binary(op, x[i], by, dtype))  # type: ignore[arg-type, misc]
        for lanes in (1, 8):
            agree(te.create_prim_func([x, z]), [values], lanes)


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize(("dtype", "bits"), [("float32", 32), ("float64", 64)])
def test_one_instruction_puts_nan_in_an_extremum(op: str, dtype: str, bits: int) -> None:
    """Vectors of AVX-512 and shorter ones, single numbers in 128 bits; other lengths, and other
    processors, test and choose."""
    arrays = pairs(dtype)
    program = binary_program(op, dtype, arrays[0].size)
    for lanes in (1, 2, 3, 4, 8, 16):
        agree(program, arrays, lanes)
        lowered = lower(in_lanes(program, lanes))
        length = lanes * bits if lanes > 1 else 128
        fixed = f".{length}(" if length in (128, 256, 512) else None
        text = emit_llvm(lowered, AVX512).text
        assert ("fixupimm" in text) is (fixed is not None)
        assert fixed is None or fixed in text
        assert "fixupimm" not in emit_llvm(lowered, Target("llvm -mcpu=haswell")).text


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
def test_shifts(dtype: str) -> None:
    values = extremes(dtype)
    amounts = np.arange(values.size).astype(values.dtype) % (8 * values.dtype.itemsize)
    for op in ("shl", "shr"):
        agree(binary_program(op, dtype, values.size), [values, amounts], 4)


@pytest.mark.parametrize("source", EVERY)
def test_casts_to_every_dtype(source: str) -> None:
    values = np.array([0, 1, 2, 3, 5, 7, 100, 127]).astype(numpy_dtype(source))
    if source in FLOATS:
        values = (values.astype(np.float32) + np.float32(0.5)).astype(numpy_dtype(source))
    if source in SIGNED:
        values[-4:] = -values[-4:]
    x = te.placeholder(values.shape, source, "x")
    for target in EVERY:
        y = te.compute(values.shape, lambda i, to=target: Cast(x[i], to))
        for lanes in (1, 8):
            agree(te.create_prim_func([x, y]), [values], lanes)


@pytest.mark.parametrize("lanes", LANES)
def test_a_select_makes_no_load_that_it_does_not_take(lanes: int) -> None:
    """The index of the branch not taken is far outside: the load would fault."""
    x = te.placeholder((20,), "float32", "x")
    far = 1 << 40
    y = te.compute(
        (20,),
        lambda i: te.if_then_else(i >= 4, x[i - 4], te.if_then_else(i < 20, 1.5, x[i + far])),
    )
    z = te.compute((20,), lambda i: te.if_then_else(x[i] < 0, x[i], x[i - i % 4]))
    agree(te.create_prim_func([x, y]), whole(x), lanes)
    agree(te.create_prim_func([x, z]), whole(x), lanes)


def test_a_condition_asks_what_is_open() -> None:
    """Of four comparisons one is not known; vectors that all lanes want need no mask."""
    x = te.placeholder((6, 16), "float32", "x")
    y = te.compute(
        (7, 16),
        lambda i, v: te.if_then_else((i >= 1) & (i < 7) & (v >= 0) & (v < 16), x[i - 1, v], 0.0),
    )
    program = te.create_prim_func([x, y])
    text = emit_llvm(lower(in_lanes(program, 16)), AVX512).text
    assert text.count("icmp") == 2  # with the loop's own
    assert "i1>" not in text
    agree(program, whole(x), 16)


@pytest.mark.parametrize("kind", [s.parallel, lambda program, loop: program])
def test_rows_of_a_tile_that_lie_inside_do_not_ask(kind: Callable[..., PrimFunc]) -> None:
    """The first row of each tile may be outside; whose tile it is does not matter to the others."""
    x = te.placeholder((8, 16), "float32", "x")
    y = te.compute((8, 16), lambda i, v: te.if_then_else(i >= 1, x[i - 1, v], 0.0) * 2)
    program = te.create_prim_func([x, y])
    i, v = s.loops_of(program, last(program))
    program, (outer, row) = s.split(program, i, 4)
    program = kind(s.vectorize(s.unroll(program, row), v), outer)
    text = emit_llvm(lower(program), Target(f"{AVX512} -num-cores=2")).text
    assert text.count("icmp") == 1 + (kind is not s.parallel)  # with a serial loop's own
    h.same(h.compiled(lower(program), whole(x)), h.interpreted(program, whole(x)), str(program))


def test_choices_of_unrolled_loops() -> None:
    """Some are decided where they are written, one while the code runs; of registers both ways."""
    x = te.placeholder((4, 3, 16), "float32", "x")
    t = te.compute((4, 3, 16), lambda i, j, v: x[i, j, v] * 2, name="T")

    def chosen(i: Expr, j: Expr, v: Expr) -> Expr:
        late = te.if_then_else(i < 2, t[i, j, v], t[i, 0, v] * 3)
        other = te.if_then_else(j.equal(1), t[i, te.if_then_else(j < 2, j, j * 0 + 2), v], late + 1)
        return te.if_then_else(j.equal(0), late, other)

    y = te.compute((4, 3, 16), chosen, name="Y")
    program = s.set_scope(te.create_prim_func([x, y]), "T", "register")
    i, j, _ = s.loops_of(program, "Y")
    program = s.unroll(s.compute_at(program, "T", i), j)
    for block in ("T", "Y"):
        *_, row, lane = s.loops_of(program, block)
        program = s.vectorize(s.unroll(program, row), lane)
    arrays = whole(x)
    h.same(h.compiled(lower(program), arrays), h.interpreted(program, arrays), str(program))


def whole(*tensors: Any, high: int = 4) -> list[Any]:
    rng = np.random.default_rng(5)
    return [
        rng.integers(0 if t.dtype[0] in "ub" else -3, high, t.shape).astype(numpy_dtype(t.dtype))
        for t in tensors
    ]


INDICES: dict[str, Callable[[Any], Expr]] = {
    "stride": lambda i: i * 3,
    "backwards": lambda i: -i + 14,
    "broadcast": lambda i: i * 0 + 2,
    "folded": lambda i: i // 4,
    "wrapped": lambda i: i % 4,
    "of a fused pair": lambda i: i % 5 * 3 + i // 5,
}


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("kind", sorted(INDICES))
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "float16"])
def test_loads_at_any_index(kind: str, dtype: str, lanes: int) -> None:
    x = te.placeholder((45,), dtype, "x")
    y = te.compute((15,), lambda i: x[INDICES[kind](i)])
    agree(te.create_prim_func([x, y]), whole(x, high=2), lanes)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", ["float32", "uint8", "bool", "bfloat16", "float64"])
def test_gathers_by_loaded_indices(dtype: str, lanes: int) -> None:
    x, at = te.placeholder((9,), dtype, "x"), te.placeholder((15,), "int64", "at")
    y = te.compute((15,), lambda i: x[at[i]])
    arrays = [whole(x, high=2)[0], np.arange(15, dtype=np.int64) * 7 % 9]
    agree(te.create_prim_func([x, at, y]), arrays, lanes)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", ["float32", "int16", "bool", "float64"])
def test_stores_across_rows(dtype: str, lanes: int) -> None:
    """The vectorized loop is the outer one: its lanes stand a row apart."""
    x = te.placeholder((13, 3), dtype, "x")
    y = te.compute((13, 3), lambda i, j: x[i, j])
    program = te.create_prim_func([x, y])
    arrays = whole(x, high=2)
    want = h.interpreted(program, arrays)
    if lanes > 1:
        program, (_, inner) = s.split(program, s.loops_of(program, "compute")[0], lanes)
        program = s.vectorize(program, inner)
    h.same(h.compiled(lower(program), arrays), want, str(program))


REDUCTIONS = {"sum": te.sum, "max": te.max, "min": te.min, "prod": te.prod}


@pytest.mark.parametrize("dtype", [*FLOATS, *SIGNED, *UNSIGNED])
def test_lanes_are_combined(dtype: str) -> None:
    """Numbers of lanes that are no power of two, remainders, and unsigned order."""
    for name, reduce in REDUCTIONS.items():
        for size, lanes in ((3, 3), (7, 7), (13, 4), (16, 16), (10, 6)):
            x, k = te.placeholder((2, size), dtype, "x"), te.reduce_axis(size)
            y = te.compute((2,), lambda i, f=reduce, x=x, k=k: f(x[i, k], [k]))
            program = te.create_prim_func([x, y])
            arrays = whole(x, high=3)
            if name in ("max", "min") and dtype not in FLOATS:
                arrays[0][0, 0] = np.iinfo(arrays[0].dtype).max
            want = h.interpreted(program, arrays)
            program = s.decompose_reduction(program, "compute", s.loops_of(program, "compute")[1])
            lowered = lower(in_lanes(program, lanes))
            h.same(h.compiled(lowered, arrays), want, f"{name}\n{lowered}")


@pytest.mark.parametrize(
    ("dtype", "lanes"), [("float32", 16), ("float32", 8), ("float64", 4), ("float32", 2)]
)
def test_lanes_of_many_sums_are_combined_together(dtype: str, lanes: int) -> None:
    """As many vectors as there are lanes, fours of them, and what remains; pairs one by one."""
    for rows, reduce in ((8, te.sum), (13, te.max), (23, te.sum)):
        x, k = te.placeholder((rows, 3 * lanes), dtype, "x"), te.reduce_axis(3 * lanes)
        total = te.compute((rows,), lambda i, f=reduce, x=x, k=k: f(x[i, k], [k]), "total")
        y = te.compute((rows,), lambda i, t=total: t[i] * 2, "y")
        program = te.create_prim_func([x, y])
        arrays = whole(x, high=3)
        want = h.interpreted(program, arrays)
        program = s.set_scope(program, "total", "register")
        row, loop = s.loops_of(program, "total")
        program, (step, lane) = s.split(program, loop, lanes)
        program = s.unroll(s.vectorize(s.reorder(program, step, row, lane), lane), row)
        program, partial = s.rfactor(program, "total", lane)
        program = s.decompose_reduction(program, partial, step)
        combined = s.loops_of(program, "total")[-1]
        program = s.decompose_reduction(s.vectorize(program, combined), "total", combined)
        lowered = lower(s.unroll(program, s.loops_of(program, "y")[0]))
        h.same(h.compiled(lowered, arrays), want, str(lowered))
        text = emit_llvm(lowered, Target.host()).text
        assert text.count("shufflevector") < 4 * rows, "four for each sum of 16 lanes by itself"


@pytest.mark.parametrize("op", ["any", "all"])
def test_lanes_of_booleans_are_combined(op: str) -> None:
    x, k = te.placeholder((4, 6), "bool", "x"), te.reduce_axis(6)
    y = te.compute((4,), lambda i: getattr(te, op)(x[i, k], [k]))
    program = te.create_prim_func([x, y])
    arrays = [np.array([[0] * 6, [1] * 6, [0, 0, 1, 0, 0, 0], [1, 1, 1, 0, 1, 1]], dtype=bool)]
    want = h.interpreted(program, arrays)
    program = s.decompose_reduction(program, "compute", s.loops_of(program, "compute")[1])
    h.same(h.compiled(lower(in_lanes(program, 6)), arrays), want, str(program))


def test_every_lane_adds_what_all_lanes_agree_on() -> None:
    x, k = te.placeholder((5,), "float32", "x"), te.reduce_axis(8)
    y = te.compute((5,), lambda i: te.sum(x[i], [k]))
    program = te.create_prim_func([x, y])
    arrays = whole(x)
    program = s.decompose_reduction(program, "compute", s.loops_of(program, "compute")[1])
    h.same(h.compiled(lower(in_lanes(program, 8)), arrays), [8 * arrays[0]], str(program))


def test_registers_do_not_cross_threads() -> None:
    x = te.placeholder((4,), name="x")
    t = te.compute((4,), lambda i: x[i] + 1, name="T")
    y = te.compute((4,), lambda i: t[i] * 2, name="Y")
    program = s.set_scope(te.create_prim_func([x, y]), "T", "register")
    program = s.unroll(program, s.loops_of(program, "T")[0])
    program = s.parallel(program, s.loops_of(program, "Y")[0])
    with pytest.raises(ScheduleError, match="registers of T are not shared by the threads"):
        emit_llvm(lower(program), Target.host())


def test_a_parallel_loop_in_lanes_is_serial() -> None:
    x = te.placeholder((4, 6), name="x")
    y = te.compute((4, 6), lambda i, j: x[i, j] * 2)
    program = te.create_prim_func([x, y])
    outer, inner = s.loops_of(program, "compute")
    program = s.vectorize(s.parallel(program, inner), outer)
    arrays = whole(x)
    h.same(h.compiled(lower(program), arrays), [2 * arrays[0]], str(program))


def test_float64_is_rounded_once_to_float16() -> None:
    """Numbers just off the middle of two neighbours, which float32 would round onto it."""
    neighbours = np.array([1.0, 1.5, -2.0, 1e-6, 300.0]).astype(np.float16)
    middles = neighbours.astype(np.float64) * (1 + 2.0**-11)
    values = np.concatenate([middles * (1 + d) for d in (0, 2.0**-40, -(2.0**-40))])
    values = np.concatenate([values, [0.0, np.inf, -np.inf, np.nan, 1e300, 1e-300]])
    x = te.placeholder(values.shape, "float64", "x")
    y = te.compute(values.shape, lambda i: Cast(x[i], "float16"))
    for lanes in (1, 8):
        agree(te.create_prim_func([x, y]), [values], lanes)


@pytest.mark.parametrize("lanes", [1, 8, 16, 32])
def test_bfloat16_is_rounded_by_the_instruction_for_whole_vectors(lanes: int) -> None:
    x = te.placeholder((64,), "float32", "x")
    program = te.create_prim_func([x, te.compute((64,), lambda i: Cast(x[i], "bfloat16"))])
    values = np.random.default_rng(lanes).standard_normal(64).astype(np.float32)
    values[:5] = 1.00390625, 3e38, np.inf, np.nan, -3.4e38
    agree(program, [values], lanes)
    lowered = lower(in_lanes(program, lanes))
    instruction = {16: "cvtneps2bf16", 32: "cvtne2ps2bf16"}
    text = emit_llvm(lowered, AVX512).text
    assert all((name in text) == (n == lanes) for n, name in instruction.items())
    assert "ps2bf16" not in emit_llvm(lowered, Target(f"{AVX512} -precision=strict")).text


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("lanes", [3, 5, 6, 7, 9, 15])
def test_narrow_floats_in_any_number_of_lanes(dtype: str, lanes: int) -> None:
    """Copied, splat and gathered without arithmetic, in vectors that no register fits."""
    x, z = te.placeholder((lanes, 4), dtype, "x"), te.placeholder((lanes,), dtype, "z")
    copied = te.compute((lanes,), lambda i: z[i], name="copied")
    strided = te.compute((lanes,), lambda i: x[i, 2], name="strided")
    spread = te.compute((lanes,), lambda i: te.if_then_else(i < 2, z[0], z[i]), name="spread")
    for output in (copied, strided, spread):
        agree(te.create_prim_func([x, z, output]), whole(x, z), lanes)


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize(
    "source, target",
    [("int32", "int16"), ("int32", "int8"), ("int64", "int32"), ("float32", "uint8")],
)
def test_a_remainder_of_one_lane_stores_one_element(source: str, target: str, lanes: int) -> None:
    size = lanes + 1
    x = te.placeholder((size,), source, "x")
    y = te.compute((size,), lambda i: Cast(x[i] + x[i], target))
    agree(te.create_prim_func([x, y]), [np.arange(size).astype(source)], lanes)
