"""Runs scheduled workloads for GPUs through the interpreter, and their PTX through ``ptxas``."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.gpu.emit import GpuCode, emit_gpu
from tunefarm.compiler.gpu.lower import lower_gpu
from tunefarm.compiler.gpu.ptx import ptx_of
from tunefarm.compiler.gpu.ptxas import Assembled, assemble, find_ptxas
from tunefarm.compiler.ir import Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import Config, config_space, schedule_workload
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.interpreter import interpret
from tunefarm.compiler.workload import Workload

Array = NDArray[Any]
HOPPER = Target("cuda -arch=sm_90a")
ARCHS = ("sm_80", "sm_90a", "sm_100")
F32 = "float32"
_RTOL = {"float16": 3e-3, "bfloat16": 1.6e-2, "float32": 3e-5, "float64": 1e-12}
needs_ptxas = pytest.mark.skipif(
    find_ptxas() is None, reason="no ptxas here: pip install tunefarm[ptxas]"
)


def function_of(op: Any, *types: tuple[Sequence[int], str], **attrs: Any) -> Function:
    """A fused function of one operator, or of a callable that builds the body."""
    params = tuple(Var(f"p{i}", TensorType(tuple(s), d)) for i, (s, d) in enumerate(types))
    body = op(*params) if callable(op) else call(op, *params, **attrs)
    return Function(params, body, {"primitive": True})


def operator_cases() -> ModuleType:
    """The module with a list of ``CASES`` that covers every operator."""
    path = Path(__file__).parents[1] / "ops" / "test_compute.py"
    spec = importlib.util.spec_from_file_location("operator_cases", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def inputs_of(workload: Workload, seed: int = 0) -> list[Array]:
    """Random operands: small whole numbers for integers."""
    rng = np.random.default_rng(seed)
    arrays: list[Array] = []
    for param in workload.function.params:
        kind = numpy_dtype(param.type.dtype)
        if "float" in param.type.dtype:
            arrays.append(rng.standard_normal(param.type.shape).astype(kind))
        else:
            arrays.append(
                rng.integers(0, 2 if kind.kind == "b" else 7, param.type.shape).astype(kind)
            )
    return arrays


def lowered(workload: Workload, config: Config | None = None, target: Target = HOPPER) -> PrimFunc:
    config = config or config_space(workload, target).default
    return lower_gpu(schedule_workload(workload, target, config), checked=True)


def check(
    workload: Workload,
    config: Config | None = None,
    arrays: Sequence[Array] | None = None,
    target: Target = HOPPER,
) -> PrimFunc:
    """The lowered program, run in lock step, agrees with the operators' NumPy meaning."""
    given = list(arrays or inputs_of(workload))
    wanted = evaluate(workload.function, given)
    program = lowered(workload, config, target)
    inputs = [np.ascontiguousarray(a).reshape(p.shape) for a, p in zip(given, program.params)]  # noqa: B905
    outputs = [
        np.full(p.shape, 77).astype(numpy_dtype(p.dtype)) for p in program.params[len(given) :]
    ]
    interpret(program, [*inputs, *outputs])
    for got, want in zip(outputs, wanted, strict=True):
        compare(got.reshape(np.shape(want)), want, f"{workload.summary} {config}")
    return program


def compare(got: Array, want: Any, what: str) -> None:
    want = np.asarray(want)
    if want.dtype.name in _RTOL:
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), _RTOL[want.dtype.name], 1e-5,
            err_msg=what,
        )  # fmt: skip
    else:
        np.testing.assert_array_equal(got, want, err_msg=what)


def emitted(program: PrimFunc, target: Target = HOPPER) -> tuple[GpuCode, str]:
    """The code of a lowered program, and its PTX."""
    code = emit_gpu(program, target)
    return code, ptx_of(code.text, target.gpu.name)


def assembled(program: PrimFunc, arch: str) -> Assembled:
    """What ``ptxas`` makes of a lowered program, which has neither spills nor warnings."""
    _, ptx = emitted(program, Target(f"cuda -arch={arch}"))
    made = assemble(ptx, arch)
    assert not made.warnings
    for name, usage in made.kernels.items():
        assert usage.spilled_bytes == 0, name
    return made
