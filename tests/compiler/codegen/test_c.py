"""The C text compiles and computes what the interpreter does."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tir_harness as h
from tunefarm.compiler import te
from tunefarm.compiler.codegen.c import emit_c
from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Binary, PackedLayout, PrimFunc
from tunefarm.compiler.tir.transform.lower import lower

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


def run(program: PrimFunc, arrays: list[Any], folder: Path) -> list[Any]:
    """Compile the program's C text and run it."""
    (folder / "f.c").write_text(emit_c(program))
    flags = ["-std=c99", "-O1", "-fwrapv", "-ffp-contract=off", "-fopenmp", "-Wall", "-Werror"]
    flags += ["-Wno-unknown-pragmas", "-Wno-bool-compare", "-Wno-type-limits", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, "f.c", "-o", "f.so", "-lm"], cwd=folder, check=True, timeout=60)
    every = h.operands(program, arrays)
    every = [np.ascontiguousarray(a) for a in every]
    getattr(ctypes.CDLL(str(folder / "f.so")), program.name)(
        *(ctypes.c_void_p(a.ctypes.data) for a in every)
    )
    return every[len(arrays) :]


def scheduled_matmul(m: int, n: int, k: int) -> tuple[PrimFunc, PrimFunc]:
    """relu(A · B) plain, and in packed tiles on threads, with a tile of its own."""
    a, b = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="double")
    r = te.reduce_axis(k)
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], [r]), name="C")
    d = te.compute((m, n), lambda i, j: te.maximum(c[i, j], 0), name="D")
    plain = te.create_prim_func([a, b, d], "matmul")
    program = s.transform_layout(plain, 1, PackedLayout(((), (4,)), (1, 0, 2)))
    i, j, r0 = s.loops_of(program, "C")
    program, (i0, i1) = s.split(program, i, 2)
    program, (j0, j1) = s.split(program, j, 4)
    program = s.reorder(program, i0, j0, r0, i1, j1)
    program = s.reverse_compute_at(program, "D", j0)
    program = s.decompose_reduction(program, "C", r0)
    program = s.set_scope(program, "C", "local")
    program = s.vectorize(s.unroll(program, i1), j1)
    program, fused = s.fuse(program, i0, j0)
    return plain, s.parallel(program, fused)


@needs_cc
@pytest.mark.parametrize("shape", [(4, 8, 5), (5, 7, 3), (1, 3, 1)])
def test_a_scheduled_matmul_computes_the_same(shape: tuple[int, int, int], tmp_path: Path) -> None:
    plain, program = scheduled_matmul(*shape)
    lowered = lower(program)
    arrays = h.whole_numbers(plain)
    h.same(run(lowered, arrays, tmp_path), h.interpreted(plain, arrays), emit_c(lowered))


def test_the_text_shows_the_schedule() -> None:
    text = emit_c(lower(scheduled_matmul(4, 8, 5)[1]))
    assert "void matmul(const float *restrict A, const float *restrict double_1, float" in text
    assert "    #pragma omp parallel for\n    for (int64_t i_0_j_0 = 0; i_0_j_0 < 4;" in text
    assert "// vectorized" in text
    assert "// unrolled" in text
    assert "float C[8];  // [2, 4]" in text


@needs_cc
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"])
def test_integers_wrap_and_divide(dtype: str, tmp_path: Path) -> None:
    info = np.iinfo(dtype)
    values = np.array([0, 1, 3, info.max, info.min, info.max - 1], dtype=dtype)
    if info.min < 0:
        values = np.append(values, np.array([-1, -3], dtype=dtype))
    a, b = (g.ravel().copy() for g in np.meshgrid(values, values))
    x, y = (te.placeholder(a.shape, dtype, name) for name in "xy")
    ops = ("add", "sub", "mul", "div", "floordiv", "floormod", "min", "max", "bitand", "bitxor")

    def made(op: str) -> te.Tensor:
        return te.compute(a.shape, lambda i: Binary(op, x[i], y[i], dtype), name=f"z_{op}")  # type: ignore[arg-type]

    program = te.create_prim_func([x, y, *map(made, ops)], "whole")
    want = h.interpreted(program, [a, b])
    h.same(run(lower(program), [a, b], tmp_path), want, emit_c(lower(program)))


@needs_cc
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_selects_and_casts(dtype: str, tmp_path: Path) -> None:
    x = te.placeholder((12,), dtype, "x")
    intrinsic = te.intrinsic
    outputs = [
        te.compute((12,), lambda i: intrinsic("tanh", x[i]) + intrinsic("erf", x[i]), name="f"),
        te.compute((12,), lambda i: intrinsic("rsqrt", intrinsic("abs", x[i]) + 1), name="r"),
        te.compute((12,), lambda i: te.if_then_else(i >= 3, x[i - 3], float("-inf")), name="s"),
        te.compute((12,), lambda i: te.cast(intrinsic("round", x[i]), "int32"), name="n"),
        te.compute((12,), lambda i: intrinsic("isnan", x[i], dtype="bool"), name="b"),
        te.compute((12,), lambda i: te.minimum(x[i], x[11 - i]), name="m"),
        te.compute((12,), lambda i: Binary("floormod", x[i], x[0], dtype), name="q"),
    ]
    program = te.create_prim_func([x, *outputs], "mixed")
    values = np.linspace(-2.2, 3.1, 12).astype(dtype)
    for got, want in zip(
        run(lower(program), [values], tmp_path), h.interpreted(program, [values]), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-6 if dtype == "float32" else 1e-14)


def test_a_program_called_main_is_no_entry_point() -> None:
    x = te.placeholder((3,), name="x")
    program = te.create_prim_func([x, te.compute((3,), lambda i: x[i])])
    assert program.name == "main"
    assert "\nvoid main_(const float *restrict x, float *restrict compute) {" in emit_c(
        lower(program)
    )


def test_a_dtype_that_c99_lacks_is_refused() -> None:
    x = te.placeholder((3,), "bfloat16", "x")
    program = te.create_prim_func([x, te.compute((3,), lambda i: x[i])])
    with pytest.raises(BuildError, match="dtype bfloat16 has no type in C99; known: float32"):
        emit_c(lower(program))
