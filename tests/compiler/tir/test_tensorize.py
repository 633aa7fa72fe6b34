"""Instructions of several terms a lane: matched, refused in words, and equal to NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tunefarm.compiler import te
from tunefarm.compiler.build import build_program
from tunefarm.compiler.codegen.c import emit_c
from tunefarm.compiler.codegen.llvm import emit_llvm
from tunefarm.compiler.codegen.llvm_compile import assembly
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.packing import pack
from tunefarm.compiler.runtime.kernel import load_kernel
from tunefarm.compiler.space.nests import own_loops
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PackedLayout, PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.interpreter import interpret
from tunefarm.compiler.tir.tensor_intrinsics import (
    TENSOR_INTRINSICS,
    TensorIntrinsic,
    register_tensor_intrinsic,
)
from tunefarm.compiler.tir.transform.lower import lower

Array = NDArray[Any]
HOST = Target.host(1)
OLD = Target("llvm -mcpu=skylake-avx512")  # without VNNI
VNNI = "x86.vpdpbusd.512"
LANES, TERMS = 16, 4
needs_vnni = pytest.mark.skipif(not HOST.has("avx512vnni"), reason="this CPU lacks avx512vnni")
needs_bf16 = pytest.mark.skipif(not HOST.has("avx512bf16"), reason="this CPU lacks avx512bf16")


def product(m: int, n: int, k: int, a: str = "uint8", b: str = "int8", acc: str = "int32") -> Any:
    x, y = te.placeholder((m, k), a, "a"), te.placeholder((k, n), b, "b")
    r = te.reduce_axis(k, "k")
    c = te.compute(
        (m, n), lambda i, j: te.sum(te.cast(x[i, r], acc) * te.cast(y[r, j], acc), [r]), "c"
    )
    return te.create_prim_func([x, y, c], "product")


def scheduled(
    program: PrimFunc, name: str = VNNI, rows: int = 4, vectors: int = 2, terms: int = TERMS
) -> PrimFunc:
    """Rows and vectors of sums in registers, b packed by terms, the innermost two tensorized."""
    width = LANES * vectors
    program, write = s.cache_write(program, "c", "register")
    program = s.transform_layout(program, 1, PackedLayout(((terms,), (width,)), (2, 0, 3, 1)))
    i, j = s.loops_of(program, write)
    program, (tile, row) = s.split(program, i, rows)
    program, (panel, vector, lane) = s.split(program, j, vectors, LANES)
    program = s.reorder(program, panel, tile, row, vector, lane)
    program = s.vectorize(s.unroll(s.unroll(program, row), vector), lane)
    program = s.compute_at(program, "c", tile)
    *row, j, k = own_loops(program, "c", tile)  # no loop of a single row
    program, (vector, lane) = s.split(program, j, LANES)
    program, (step, term) = s.split(program, k, terms)
    program = s.reorder(program, step, *row, vector, lane, term)
    for loop in (*row, vector):
        program = s.unroll(program, loop)
    program = s.decompose_reduction(program, "c", step)
    *outer, inner = own_loops(program, "c_init", tile)
    for loop in outer:
        program = s.unroll(program, loop)
    program = s.vectorize(program, inner)
    return s.tensorize(program, lane, name)


def draw(program: PrimFunc, rng: np.random.Generator) -> list[Array]:
    """Operands in their own shapes, over the whole range of their dtypes."""
    m, k = program.params[0].shape
    n = program.params[-1].shape[1]
    arrays = []
    for param, shape in zip(program.params, ((m, k), (k, n)), strict=False):
        if "int" in param.dtype:
            info = np.iinfo(param.dtype)
            arrays.append(rng.integers(info.min, info.max + 1, shape).astype(param.dtype))
        else:
            arrays.append(rng.standard_normal(shape).astype(ml_dtypes.bfloat16))
    return arrays


def interpreted(program: PrimFunc, arrays: list[Array], out: Array) -> Array:
    interpret(program, [*arrays, out])
    return out


def compiled(program: PrimFunc, arrays: list[Array], out: Array) -> Array:
    kernel = build_program(program, HOST, cache=False)
    function = load_kernel([kernel.object], kernel.name, kernel.params, kernel.outputs, target=HOST)
    (result,) = function(*arrays)
    return np.asarray(result)


def result_of(
    program: PrimFunc, arrays: list[Array], run: Callable[[PrimFunc, list[Array], Array], Array]
) -> Array:
    a, b = arrays
    packed = [a, pack(b, program.layouts[1], program.params[1].shape)]
    out = program.params[-1]
    return run(program, packed, np.zeros(out.shape, out.dtype))


def exact(arrays: list[Array]) -> Array:
    a, b = (x.astype(np.float64) for x in arrays)
    return np.asarray(a @ b)


def test_it_prints_as_one_operation() -> None:
    text = str(scheduled(product(8, 32, 8)))
    assert "for j_1 in vectorized(16):" in text
    assert "k = reduce(2, k_0)" in text
    assert "x86.vpdpbusd.512(c_register[i.1, j], a[i.1, k * 4], a[i.1, k * 4 + 1]," in text


def test_the_interpreter_and_c_take_its_meaning() -> None:
    program = scheduled(product(4, 32, 8))
    arrays = draw(program, np.random.default_rng(0))
    np.testing.assert_array_equal(result_of(program, arrays, interpreted), exact(arrays))
    lowered = lower(program, checked=True)
    np.testing.assert_array_equal(result_of(lowered, arrays, interpreted), exact(arrays))
    assert emit_c(lowered).count("* ((int32_t)b[") == TERMS


@needs_vnni
def test_the_instruction_is_in_the_code() -> None:
    program = scheduled(product(8, 32, 64))
    text = assembly(emit_llvm(lower(program), HOST).text, HOST)
    assert text.count("vpdpbusd") >= 4 * 2


@needs_vnni
@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(
    st.integers(1, 17), st.integers(1, 3), st.integers(1, 9), st.integers(1, 6),
    st.integers(1, 2), st.integers(0, 999),
)  # fmt: skip
def test_integer_products_are_exact(
    m: int, panels: int, steps: int, rows: int, vectors: int, seed: int
) -> None:
    """Also where rows leave a remainder, which lanes and terms must not."""
    program = product(m, panels * LANES * vectors, steps * TERMS)
    program = scheduled(program, rows=rows, vectors=vectors)
    arrays = draw(program, np.random.default_rng(seed))
    np.testing.assert_array_equal(result_of(program, arrays, compiled), exact(arrays))


@needs_vnni
def test_pairs_of_words() -> None:
    program = product(3, 32, 10, "int16", "int16")
    program = scheduled(program, "x86.vpdpwssd.512", terms=2)
    arrays = [x // 64 for x in draw(program, np.random.default_rng(1))]
    np.testing.assert_array_equal(result_of(program, arrays, compiled), exact(arrays))


def test_bytes_are_widened_by_a_copy() -> None:
    """Of the left operand; the right one stays bytes, which the instruction's code widens."""
    program = product(5, 32, 10)
    program, _ = s.cache_read(program, "c", program.params[0], "local", dtype="int16")
    program = scheduled(program, "x86.vpmaddwd.512", terms=2)
    assert "= int16(a[" in str(program)
    arrays = draw(program, np.random.default_rng(4))
    np.testing.assert_array_equal(result_of(program, arrays, interpreted), exact(arrays))
    lowered = lower(program, checked=True)
    np.testing.assert_array_equal(result_of(lowered, arrays, interpreted), exact(arrays))
    text = assembly(emit_llvm(lowered, OLD).text, OLD)
    assert "vpmovsxbw" in text
    assert "vpmaddwd" in text
    if HOST.has("avx512bw"):
        np.testing.assert_array_equal(result_of(program, arrays, compiled), exact(arrays))


@needs_bf16
def test_pairs_of_bfloat16() -> None:
    program = product(5, 32, 64, "bfloat16", "bfloat16", "float32")
    program = scheduled(program, "x86.vdpbf16ps.512", terms=2)
    arrays = draw(program, np.random.default_rng(2))
    wanted = exact(arrays)
    error = np.abs(result_of(program, arrays, compiled) - wanted).max() / np.abs(wanted).max()
    assert error < 1e-5
    assert "vdpbf16ps" in assembly(emit_llvm(lower(program), HOST).text, HOST)


@pytest.mark.parametrize(
    ("program", "name", "message"),
    [
        (product(4, 32, 8), "x86.nothing", "no tensor intrinsic 'x86.nothing'; there are"),
        (product(4, 32, 8, "int8", "int8"), VNNI, "multiplies int8 by int8"),
        (product(4, 32, 8, acc="int64"), VNNI, "the sum is int64"),
        (product(4, 32, 6), VNNI, "k has 6 terms, which 4 do not divide"),
        (product(4, 24, 8), VNNI, "has a remainder along"),
        (product(4, 32, 8, "int16", "int16"), "x86.vpdpwssd.512",
         r"loop k_1 runs 4 times, and it has 2 terms"),
    ],
)  # fmt: skip
def test_what_does_not_match_is_told(program: PrimFunc, name: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        scheduled(program, name)


def test_terms_that_lie_apart_are_refused() -> None:
    program = product(4, 16, 8)
    i, j, k = s.loops_of(program, "c")
    program, (step, term) = s.split(program, k, TERMS)
    program = s.reorder(program, step, j, term)
    with pytest.raises(ScheduleError, match="b moves by 1 elements a lane and 16 a term"):
        s.tensorize(program, j, VNNI)
    with pytest.raises(ScheduleError, match="holds no second loop around a block alone"):
        s.tensorize(program, i, VNNI)


def test_another_processor_is_refused() -> None:
    target = Target("llvm -mcpu=skylake-avx512")
    message = "x86.vpdpbusd.512 needs avx512vnni, which skylake-avx512 lacks"
    with pytest.raises(ScheduleError, match=message):
        build_program(scheduled(product(4, 32, 8)), target, cache=False)
    assert Target("llvm -mcpu=skylake-avx512 -mattr=+avx512vnni").has("avx512vnni")


@needs_vnni
def test_an_instruction_of_ones_own() -> None:
    """The saturating form, which is not among those that tunefarm knows."""
    mine = TensorIntrinsic(
        "mine.vpdpbusds", 16, 4, "int32", "uint8", "int8",
        "llvm.x86.avx512.vpdpbusds.512", "avx512vnni",
    )  # fmt: skip
    register_tensor_intrinsic(mine)
    try:
        with pytest.raises(ValueError, match="already registered"):
            register_tensor_intrinsic(mine)
        program = scheduled(product(4, 32, 8), mine.name)
        arrays = draw(program, np.random.default_rng(3))
        np.testing.assert_array_equal(result_of(program, arrays, compiled), exact(arrays))
    finally:
        del TENSOR_INTRINSICS[mine.name]
