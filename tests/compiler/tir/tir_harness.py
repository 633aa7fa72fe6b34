"""Runs programs of the loop IR three ways: interpreted, lowered and interpreted, compiled."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.codegen.llvm import emit_llvm
from tunefarm.compiler.codegen.llvm_compile import compile_llvm
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.ir import TensorType
from tunefarm.compiler.packing import pack
from tunefarm.compiler.runtime.arrays import address, aligned_copy, aligned_empty
from tunefarm.compiler.runtime.jit import load_objects
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.interpreter import interpret, poisoned
from tunefarm.compiler.tir.ir import PrimFunc

Array = NDArray[Any]


def whole_numbers(program: PrimFunc, seed: int = 0) -> list[Array]:
    """Small whole numbers for each input, whose sums are exact in every dtype of 16 bits."""
    rng = np.random.default_rng(seed)
    inputs = program.params[: len(program.params) - program.outputs]
    return [
        rng.integers(0 if p.dtype[0] in "ub" else -3, 2 if p.dtype == "bool" else 4, p.shape)
        .astype(numpy_dtype(p.dtype))
        for p in inputs
    ]  # fmt: skip


def operands(program: PrimFunc, arrays: Sequence[Array]) -> list[Array]:
    """The inputs, packed where the program asks for it, and poisoned outputs."""
    count = len(program.params) - program.outputs
    packed = [
        pack(a, program.layouts.get(i), program.params[i].shape) for i, a in enumerate(arrays)
    ]
    return [*packed, *(poisoned(p.shape, p.dtype) for p in program.params[count:])]


def interpreted(program: PrimFunc, arrays: Sequence[Array]) -> list[Array]:
    """The outputs of the program's NumPy meaning."""
    every = operands(program, arrays)
    interpret(program, every)
    return every[len(arrays) :]


def compiled(
    program: PrimFunc, arrays: Sequence[Array], target: Target | None = None
) -> list[Array]:
    """The outputs of the lowered program's machine code; bytes behind them must stay."""
    target = target or Target.host()
    kernel = emit_llvm(program, target)
    code = compile_llvm(kernel.text, target, cache=False)
    library = load_objects([code], [kernel.name], target)
    workspace = aligned_empty(TensorType((kernel.workspace_bytes + 64,), "uint8"))
    workspace[:] = 0xCD
    guarded = [_with_guard(a) for a in operands(program, arrays)]
    pointers = [0, address(workspace), *(address(a) for a, _ in guarded)]
    ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(pointers))(library[kernel.name])(*pointers)
    assert (workspace[kernel.workspace_bytes :] == 0xCD).all(), "wrote behind the workspace"
    for buffer, size in guarded:
        assert (buffer[size:] == 0xCD).all(), "wrote behind an argument"
    return [
        buffer[:size].view(numpy_dtype(p.dtype)).reshape(p.shape).copy()
        for (buffer, size), p in list(zip(guarded, program.params, strict=True))[len(arrays) :]
    ]


def _with_guard(array: Array) -> tuple[Array, int]:
    """The array's bytes in aligned memory with 64 bytes of guard behind them, and their count."""
    size = array.nbytes
    raw = np.full(size + 64, 0xCD, np.uint8)
    raw[:size] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return aligned_copy(raw), size


def same(got: Sequence[Array], want: Sequence[Array], what: str) -> None:
    """Equal bit for bit, but for the sign of zero and the payload of NaN."""
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a.astype(_wide(a)), b.astype(_wide(b)), err_msg=what)


def _wide(array: Array) -> Any:
    return array.dtype if array.dtype.kind in "iub" else np.float64
