"""Runs one scheduled workload through the interpreter and as machine code."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.accuracy import NEAR_SHARE, error_bounds, is_near
from tunefarm.compiler.codegen.llvm import emit_llvm
from tunefarm.compiler.codegen.llvm_compile import compile_llvm
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import Call, Function, TensorType, Var, post_order, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.packing import pack
from tunefarm.compiler.runtime.arrays import address, aligned_copy, aligned_empty
from tunefarm.compiler.runtime.jit import load_objects
from tunefarm.compiler.space import Config, ConfigSpace, schedule_workload
from tunefarm.compiler.space.config import Nest
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.interpreter import interpret
from tunefarm.compiler.tir.ir import For, LoopKind
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.tir.visit import walk_stmt
from tunefarm.compiler.workload import Workload

from tests.compiler.mismatch import mismatch

Array = NDArray[Any]


def parallel_loops(program: PrimFunc) -> list[For]:
    """The loops whose iterations cores share."""
    loops = (s for s in walk_stmt(program.body) if isinstance(s, For))
    return [loop for loop in loops if loop.kind is LoopKind.PARALLEL]


def operator_cases() -> ModuleType:
    """The module with a list of ``CASES`` that covers every operator."""
    path = Path(__file__).parents[1] / "ops" / "test_compute.py"
    spec = importlib.util.spec_from_file_location("operator_cases", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def function_of(op: Any, *types: tuple[Sequence[int], str], **attrs: Any) -> Function:
    """A fused function of one operator, or of a callable that builds the body."""
    params = tuple(Var(f"p{i}", TensorType(tuple(s), d)) for i, (s, d) in enumerate(types))
    body = op(*params) if callable(op) else call(op, *params, **attrs)
    return Function(params, body, {"primitive": True})


def configs(space: ConfigSpace, rng: np.random.Generator, count: int) -> list[Config]:
    """The default and up to ``count`` random valid configs."""
    rows = space.sample(rng, 8 * count)
    rows = rows[space.valid(rows)][:count]
    return [space.default, *(space.decode(r) for r in rows)]


def interpreted(program: PrimFunc, arrays: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Run on operands in their own shapes."""
    inputs = _operands(program, arrays)
    results = [
        np.empty(p.shape, a.dtype)
        for p, a in zip(program.params[len(arrays) :], outputs, strict=True)
    ]
    interpret(program, [*inputs, *results])
    for target, result in zip(outputs, results, strict=True):
        target[...] = result.reshape(target.shape)


def _operands(program: PrimFunc, arrays: Sequence[Array]) -> list[Array]:
    return [pack(a, program.layouts.get(i), program.params[i].shape) for i, a in enumerate(arrays)]


def executed(
    program: PrimFunc, target: Target, arrays: Sequence[Array], outputs: Sequence[Array]
) -> None:
    """Compile the lowered program and run it."""
    kernel = emit_llvm(program, target)
    code = compile_llvm(kernel.text, target, cache=False)
    library = load_objects([code], [kernel.name], target)
    workspace = aligned_empty(TensorType((kernel.workspace_bytes + 1,), "uint8"))
    inputs = [aligned_copy(a) for a in _operands(program, arrays)]
    results = [aligned_copy(a) for a in outputs]
    pointers = [0, address(workspace), *map(address, inputs), *map(address, results)]
    ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(pointers))(library[kernel.name])(*pointers)
    for into, result in zip(outputs, results, strict=True):
        into[...] = result


def check(
    workload: Workload, target: Target, config: Config, arrays: Sequence[Array], run: str = "both"
) -> None:
    """The scheduled program agrees with the operators' NumPy meaning."""
    wanted = evaluate(workload.function, arrays)
    program = lower(schedule_workload(workload, target, config))
    if run in ("both", "interpret"):
        outputs = [np.full(w.shape, 77).astype(w.dtype) for w in wanted]
        interpreted(program, arrays, outputs)
        compare(outputs, wanted, f"interpreted {workload.summary} {dict(config)}")
    if run in ("both", "execute"):
        outputs = [np.full(w.shape, 77).astype(w.dtype) for w in wanted]
        executed(program, target, arrays, outputs)
        compare(outputs, wanted, f"compiled {workload.summary} {dict(config)}", rtol_of(workload))


def draw(function: Function, rng: np.random.Generator) -> list[Array]:
    """Normally distributed float32 operands of a function."""
    kinds = [tensor_type(p) for p in function.params]
    return [rng.standard_normal(kind.shape).astype("float32") for kind in kinds]


def verify(
    function: Function, target: Target, config: Config, arrays: list[Array], run: str = "execute"
) -> float:
    """The kernel is within the bounds of the direct sum; its error over the largest result."""
    (wanted,) = evaluate(function, arrays)
    program = lower(schedule_workload(Workload.from_function(function), target, config))
    result = np.full(wanted.shape, 77, wanted.dtype)
    if run == "execute":
        executed(program, target, arrays, [result])
    else:
        interpreted(program, arrays, [result])
    assert mismatch([result], [wanted], error_bounds(function, arrays)) == "", dict(config)
    return float(np.abs(result - wanted).max() / np.abs(wanted).max())


def rtol_of(workload: Workload) -> float:
    """What a workload allows beyond its dtype's relative tolerance."""
    calls = [e for e in post_order(workload.function.body) if isinstance(e, Call)]
    return NEAR_SHARE if any(map(is_near, calls)) else 0.0


_RTOL = {"float16": 3e-3, "bfloat16": 1.6e-2, "float32": 3e-5, "float64": 1e-12}


def compare(
    outputs: Sequence[Array], wanted: Sequence[Array], what: str, least: float = 0.0
) -> None:
    for got, want in zip(outputs, wanted, strict=True):
        want = np.asarray(want)
        if want.dtype.name in _RTOL:
            np.testing.assert_allclose(
                got.astype(np.float64), want.astype(np.float64), max(_RTOL[want.dtype.name], least),
                3e-6, err_msg=what,
            )  # fmt: skip
        else:
            np.testing.assert_array_equal(got, want, err_msg=what)


def features_of_valid(space: ConfigSpace, count: int = 300) -> Nest:
    """The features of random configs of a space of one sketch, those that its constraints allow."""
    rows = space.sample(np.random.default_rng(0), count)
    rows = rows[space.valid(rows)]
    nest = space.sketches[0].nest(space.columns(rows, 0))
    assert len(rows)
    assert nest.operations.shape == nest.parallelism.shape == (len(rows),)
    assert all(len(t) == len(rows) for level in nest.tiles.values() for t in level.values())
    assert (nest.parallelism >= 1).all()
    assert (nest.extra["cycles"] > 0).all()
    return nest
