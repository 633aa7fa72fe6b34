"""Code for AVX2, AArch64, RISC-V vectors and WebAssembly: what it is made of, and what it computes.

Foreign code runs in emulators: the tests that need one are skipped where it is not installed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import cross_harness as cross
import numpy as np
import pytest
import sketch_harness as sketches
from tunefarm.compiler.codegen.llvm_compile import assembly
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import Expr, Function
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

F32 = "float32"
OPERATORS = sketches.operator_cases()
AARCH64 = Target("llvm -mcpu=neoverse-n1")
RISCV64 = Target("llvm -mtriple=riscv64-linux-gnu -mattr=+zvl256b")
WASM32 = Target("llvm -mtriple=wasm32-unknown-unknown")
RELAXED = Target("llvm -mtriple=wasm32-unknown-unknown -mattr=+relaxed-simd")
AVX2 = Target("llvm -mcpu=haswell")
FOREIGN = {"aarch64": AARCH64, "riscv64": RISCV64, "wasm32": WASM32, "relaxed": RELAXED}

# A vector multiply-add of each instruction set, on whole registers of floats.
FUSED = {
    AVX2.text: r"vfmadd\d+ps\s.*%ymm\d+",
    AARCH64.text: r"fmla\s+v\d+\.4s, v\d+\.4s, v\d+",
    RISCV64.text: r"vfmacc\.v[fv]\s+v\d+",
    RELAXED.text: r"f32x4\.relaxed_madd",
    WASM32.text: r"f32x4\.mul[\s\S]{0,99}?f32x4\.add",
}


def _conv(
    image: tuple[int, ...], outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> Function:
    """A convolution of constant weights with its padding, a bias and a ReLU."""

    def body(x: Expr, weight: Expr, bias: Expr) -> Expr:
        value = call(
            "conv", x, weight, strides=(stride, stride), padding=((kernel // 2,) * 2,) * 2,
            groups=groups, data_layout="NSC", kernel_layout="SIO",
        )  # fmt: skip
        return call("relu", call("add", value, bias))

    inputs = image[-1] // groups
    made = sketches.function_of(
        body, (image, F32), ((kernel, kernel, inputs, outputs), F32), ((outputs,), F32)
    )
    return Function(made.params, made.body, {"primitive": True, "constants": (1, 2)})


def _matmul(a: tuple[int, ...], b: tuple[int, ...]) -> Function:
    made = sketches.function_of("matmul", (a, F32), (b, F32))
    return Function(made.params, made.body, {"primitive": True, "constants": (1,)})


CONTRACTIONS: dict[str, Function] = {
    "product": _matmul((31, 64), (64, 48)),
    "product of odd shapes": _matmul((13, 37), (37, 21)),
    "convolution 3x3": _conv((1, 9, 11, 16), 24, 3, stride=2),
    "convolution 3x3 of 17 channels": _conv((1, 7, 7, 17), 19, 3),
    "convolution by Winograd": _conv((1, 14, 14, 40), 36, 3),
    "convolution 1x1": _conv((2, 5, 5, 24), 40, 1),
    "first convolution": _conv((1, 16, 16, 3), 20, 7, stride=2),
    "depthwise": _conv((1, 9, 9, 37), 37, 3, groups=37),
}
ROWS: dict[str, Function] = {
    "softmax": sketches.function_of("softmax", ((5, 47), F32), axis=-1),
    "layer norm and gelu": sketches.function_of(
        lambda x, s, b: call("gelu", call("layer_norm", x, s, b, axis=-1)),
        ((5, 131), F32), ((131,), F32), ((131,), F32),
    ),
    "row of bytes": sketches.function_of("max", ((3, 101), "int8"), axes=(1,), keepdims=True),
    "bytes to floats": sketches.function_of(
        lambda x: call("cast", x, dtype=F32), ((1, 67), "uint8")
    ),
    "heads": sketches.function_of("transpose", ((2, 3, 17, 33), F32), axes=(0, 2, 1, 3)),
    "rows to columns": sketches.function_of("transpose", ((43, 21), F32), axes=(1, 0)),
    "bytes to columns": sketches.function_of("transpose", ((37, 45), "int8"), axes=(1, 0)),
    "short last axis": sketches.function_of(
        lambda a, b: call("sigmoid", call("add", a, b)), ((1, 11, 13, 3), F32), ((3,), F32)
    ),
}  # fmt: skip


def _arrays(workload: Workload, seed: int = 5) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [
        rng.integers(1, 100, p.type.shape).astype(p.type.dtype)
        if "int" in p.type.dtype
        else rng.standard_normal(p.type.shape).astype(p.type.dtype)
        for p in workload.function.params
    ]


def _agree(target: Target, given: list[tuple[Workload, list[Any]]], folder: Path) -> None:
    """All kernels of the default configs, run in one program, agree with NumPy."""
    wanted = [evaluate(w.function, arrays) for w, arrays in given]
    cases = [
        cross.case_of(w, target, config_space(w, target).default, arrays, like)
        for (w, arrays), like in zip(given, wanted, strict=True)
    ]
    keep = [not _crashes_qemu(case, target) for case in cases]
    cross.run_all(target, [case for case, kept in zip(cases, keep, strict=True) if kept], folder)
    for (workload, _), case, want in compress(zip(given, cases, wanted, strict=True), keep):
        _compare(case.outputs, want, f"{target}: {workload.summary}")


def _crashes_qemu(case: cross.Case, target: Target) -> bool:
    """QEMU 7.2 fails an assertion of its own at RISC-V's conversions that round towards zero."""
    return target is RISCV64 and ".rtz." in assembly(case.kernel.text, target)


def _compare(outputs: Sequence[Any], wanted: Sequence[Any], what: str) -> None:
    """Winograd's method errs in proportion to the largest element."""
    for got, want in zip(outputs, wanted, strict=True):
        if want.dtype != F32:
            sketches.compare([got], [want], what)
            continue
        largest = np.max(np.abs(want), initial=0.1, where=np.isfinite(want))
        np.testing.assert_allclose(got, want, 3e-5, 1e-5 * largest, err_msg=what)


@pytest.mark.parametrize("target", [AVX2, *FOREIGN.values()], ids=lambda t: t.text[5:])
def test_the_sketches_make_vector_multiply_adds(target: Target) -> None:
    for name, function in CONTRACTIONS.items():
        workload = Workload.from_function(function)
        kernel = cross.build_kernel(workload, target, config_space(workload, target).default, False)
        text = assembly(kernel.text, target)
        assert len(re.findall(FUSED[target.text], text)) >= 4, name
        called = re.findall(r"^[ \t]*(?:callq?|bl|tail)[ \t]+([a-z]\w*)", text, re.MULTILINE)
        assert set(called) <= {"tunefarm_parallel"}, name


# A whole vector register that is put on the stack, or taken from it.
SPILLED = {
    AVX2.text: r"ymm\d+.*(?:Spill|Reload)",
    AARCH64.text: r"\bq\d+.*(?:Spill|Reload)",
    RISCV64.text: r"\bv[sl]\d?r?\d?.*(?:Spill|Reload)",
}


@pytest.mark.parametrize("target", [AVX2, AARCH64, RISCV64], ids=lambda t: t.text[5:])
def test_register_tiles_stay_in_registers(target: Target) -> None:
    functions = {
        "product": _matmul((384, 256), (256, 192)),
        "convolution 1x1": _conv((1, 28, 28, 64), 96, 1),
        "convolution 3x3": _conv((1, 14, 14, 64), 64, 3, stride=2),
        "depthwise": _conv((1, 28, 28, 96), 96, 3, groups=96),
    }
    for name, function in functions.items():
        workload = Workload.from_function(function)
        config = next(
            sketch.default
            for sketch in config_space(workload, target).sketches
            if sketch.sketch == "contraction"
        )
        kernel = cross.build_kernel(workload, target, config, False)
        text = assembly(kernel.text, target)
        assert not re.findall(SPILLED[target.text], text), name


@pytest.mark.parametrize("kind", FOREIGN)
def test_kernels_of_another_cpu_agree_with_numpy(kind: str, tmp_path: Path) -> None:
    functions = [*CONTRACTIONS.values(), *ROWS.values()]
    workloads = [Workload.from_function(f) for f in functions]
    _agree(FOREIGN[kind], [(w, _arrays(w)) for w in workloads], tmp_path)


@pytest.mark.parametrize("kind", ["aarch64", "riscv64", "wasm32"])
def test_every_operator_agrees_on_another_cpu(kind: str, tmp_path: Path) -> None:
    target, rng, given = FOREIGN[kind], np.random.default_rng(7), {}
    for case in OPERATORS.CASES:
        arrays = [np.asarray(OPERATORS.draw(case, i, rng)) for i in range(len(case.shapes))]
        types = [(a.shape, a.dtype.name) for a in arrays]
        workload = Workload.from_function(sketches.function_of(case.op, *types, **case.attrs))
        if re.search(r"\bfloat16", workload.text) and not target.has_float16:
            continue
        given[workload.key] = (workload, arrays)
    assert len(given) > 150
    _agree(target, list(given.values()), tmp_path)
