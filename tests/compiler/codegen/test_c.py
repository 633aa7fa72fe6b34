"""The C text compiles and computes what the interpreter does."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tir_harness as h
from hypothesis import Phase, given, settings
from random_expressions import Case, cases
from tunefarm.compiler import te
from tunefarm.compiler.codegen.c import emit_c
from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import Constant, Function, IRModule, TensorType, Tuple, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.packing import pack
from tunefarm.compiler.runtime.arrays import aligned_bytes
from tunefarm.compiler.space import config_space, schedule_workload
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Binary, PackedLayout, PrimFunc
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.workload import Workload

import tunefarm

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


def compiled(text: str, folder: Path) -> ctypes.CDLL:
    """The functions of a C text."""
    (folder / "f.c").write_text(text)
    flags = ["-std=c99", "-O1", "-fwrapv", "-ffp-contract=off", "-fopenmp", "-Wall", "-Werror"]
    flags += ["-Wno-unknown-pragmas", "-Wno-bool-compare", "-Wno-type-limits", "-shared", "-fPIC"]
    flags += ["-Wno-tautological-compare"]
    subprocess.run(["cc", *flags, "f.c", "-o", "f.so", "-lm"], cwd=folder, check=True, timeout=60)
    return ctypes.CDLL(str(folder / "f.so"))


def pointers(arrays: list[Any]) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(a.ctypes.data) for a in arrays]


def run(program: PrimFunc, arrays: list[Any], folder: Path) -> list[Any]:
    """Compile the program's C text and run it."""
    every = [np.ascontiguousarray(a) for a in h.operands(program, arrays)]
    getattr(compiled(emit_c(program), folder), program.name)(*pointers(every))
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


@needs_cc
@settings(max_examples=16, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
@given(cases)
def test_random_expressions_compute_what_numpy_says(case: Case) -> None:
    program = lower(replace(case.program, name="f"))
    with tempfile.TemporaryDirectory() as folder:
        h.same(run(program, case.arrays, Path(folder)), case.want, emit_c(program))


def test_the_text_shows_the_schedule() -> None:
    text = emit_c(lower(scheduled_matmul(4, 8, 5)[1]))
    assert "void matmul(const float *restrict A, const float *restrict double_1, float" in text
    assert "    #pragma omp parallel for\n    for (int32_t i_0_j_0 = 0; i_0_j_0 < 4;" in text
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


def test_offsets_beyond_32_bits_are_wide_in_the_text() -> None:
    x = te.placeholder((70_000, 40_000), name="x")
    y = te.compute((70_000, 400), lambda i, j: x[i, j * 100], name="y")
    text = emit_c(lower(te.create_prim_func([x, y], "sampled")))
    assert "for (int32_t i = 0; i < 70000; ++i)" in text
    assert "y[(i * 400) + j] = x[(((int64_t)i) * 40000) + ((int64_t)(j * 100))];" in text


@needs_cc
def test_whole_numbers_as_data_stay_wide(tmp_path: Path) -> None:
    x = te.placeholder((9,), "int64", "x")
    outputs = [
        te.compute((9,), lambda i: i * 3_000_000_000, "a"),
        te.compute((9,), lambda i: te.if_then_else(i < 4, i + 2_147_483_647, x[i]), "b"),
        te.compute((9,), lambda i: x[(i * 10_000_000_000 + 7) % 9], "c"),
    ]
    program = te.create_prim_func([x, *outputs], "wide")
    values, n = np.arange(9, dtype="int64") << 40, np.arange(9, dtype="int64")
    want = [n * 3_000_000_000, np.where(n < 4, n + 2_147_483_647, values)]
    want += [values[(n * 10_000_000_000 + 7) % 9]]
    h.same(run(lower(program), [values], tmp_path), want, emit_c(lower(program)))


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


HOST = Target.host(2)
F32 = "float32"
WINDOW = {"strides": (1, 1), "padding": ((1, 1), (1, 1)), "dilations": (1, 1)}


def params(*shapes: tuple[int, ...]) -> list[Var]:
    return [Var(f"p{i}", TensorType(shape, F32)) for i, shape in enumerate(shapes)]


def gemm(a: Var, b: Var, c: Var) -> Any:
    return call("relu", call("add", call("matmul", a, b), c))


def conv(x: Var, w: Var) -> Any:
    return call("relu", call("conv", x, w, **WINDOW, data_layout="NSC", kernel_layout="SIO"))


def softmax(x: Var) -> Any:
    return call("softmax", x, axis=-1)


def injective(x: Var, y: Var) -> Any:
    return call("tanh", call("add", call("transpose", x, axes=(1, 0)), y))


@needs_cc
@pytest.mark.parametrize(
    ("build", "shapes", "constants"),
    [
        (gemm, ((7, 19), (19, 37), (37,)), (1,)),
        (gemm, ((7, 19), (19, 37), (37,)), ()),
        (conv, ((1, 9, 7, 3), (3, 3, 3, 19)), (1,)),
        (conv, ((1, 14, 14, 64), (3, 3, 64, 64)), (1,)),  # by Winograd's method, in large tiles
        (softmax, ((5, 37),), ()),
        (injective, ((11, 5), (5, 11)), ()),
    ],
)
def test_default_schedules_compute_the_same(
    build: Any, shapes: tuple[tuple[int, ...], ...], constants: tuple[int, ...], tmp_path: Path
) -> None:
    made = params(*shapes)
    attrs = {"primitive": True, "constants": constants}
    workload = Workload.from_function(Function(tuple(made), build(*made), attrs))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(p.type.shape).astype(F32) for p in workload.function.params]
    (want,) = evaluate(workload.function, arrays)
    program = lower(schedule_workload(workload, HOST, config_space(workload, HOST).default))
    given = [pack(a, program.layouts.get(i), program.params[i].shape) for i, a in enumerate(arrays)]
    every = [np.ascontiguousarray(a) for a in given] + [np.full(want.shape, np.nan, F32)]
    getattr(compiled(emit_c(program), tmp_path), program.name)(*pointers(every))
    np.testing.assert_allclose(every[-1], want, rtol=1e-4, atol=1e-5 * max(1, want.max()))


def network() -> tuple[Any, dict[str, Any]]:
    """A convolution, a matrix product and a softmax, with weights; and an input."""
    rng = np.random.default_rng(1)

    def weight(*shape: int) -> Constant:
        return Constant(rng.standard_normal(shape).astype(F32))

    x = Var("data in", TensorType((1, 3, 9, 7), F32))
    y = call("relu", call("conv", x, weight(5, 3, 3, 3), **WINDOW))
    z = call("matmul", call("reshape", y, shape=(1, 5 * 9 * 7)), weight(5 * 9 * 7, 11))
    body = Tuple((call("softmax", z, axis=-1), y))
    module = IRModule({"main": Function((x,), body, {})}, ("class", "map"))
    return module, {"data in": rng.standard_normal((1, 3, 9, 7)).astype(F32)}


@needs_cc
def test_the_c_of_a_model_computes_what_the_model_does(tmp_path: Path) -> None:
    module, inputs = network()
    lib = tunefarm.build(module, HOST)
    text = lib.get_source("c")
    want = lib.run(inputs)
    got = [np.full(a.shape, np.nan, F32) for a in want.values()]
    arena = aligned_bytes(lib.plan.arena_bytes)
    every = [*(np.ascontiguousarray(a) for a in inputs.values()), *got, lib.weights, arena]
    compiled(text, tmp_path).model(*pointers(every))
    for have, expected in zip(got, want.values(), strict=True):
        np.testing.assert_allclose(have, expected, rtol=1e-4, atol=1e-5)


def test_the_c_of_a_model_shows_the_order_of_its_kernels() -> None:
    lib = tunefarm.build(network()[0], HOST)
    model = lib.get_source("c").partition("void model(")[2]
    assert model.startswith("const float *data_in_0, float *class_1, float *map_2, const char *w")
    places = [model.index(f" {name}(") for name in lib.plan.kernels]
    assert len(places) >= 3
    assert places == sorted(places)


def test_the_c_of_a_program_built_by_hand() -> None:
    x = te.placeholder((3,), name="x")
    f = tunefarm.build(te.create_prim_func([x, te.compute((3,), lambda i: x[i] + 1)], "more"), HOST)
    assert "void more(const float *restrict x" in f.get_source("c")
