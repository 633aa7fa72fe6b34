"""LLVM text of kernels → PTX, or object code of other GPUs, in this process, with llvmlite."""

from __future__ import annotations

import functools
import re
from typing import Any

from tunefarm.compiler.codegen.llvm_compile import _LOCK, _initialise
from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.gpu.dialects import NVPTX, SPIRV, Dialect

ST_ASYNC = "st.async"
_NEWER = "+ptx81"  # that it came with


def ptx_of(text: str, arch: str) -> str:
    """The PTX of a module for an architecture (``sm_90a``). BuildError with LLVM's message if the
    text is wrong."""
    with _LOCK:
        machine = _machine(NVPTX.triple, arch, _NEWER if ST_ASYNC in text else "")
        module = _module(text, NVPTX.triple, machine)
        try:
            return str(machine.emit_assembly(module))
        finally:
            module.close()


def cuda_for(ptx: str) -> tuple[int, int]:
    """The release of CUDA whose drivers are the first to compile a text, by the version that it
    names. LLVM names the oldest one that an architecture has: 7.0 for sm_80, 8.0 for sm_90a, 8.6
    for sm_100a. Source: NVIDIA, "PTX ISA", release history."""
    found = re.search(r"^\.version (\d+)\.(\d+)", ptx, re.MULTILINE)
    if found is None:
        raise BuildError("the text names no version of PTX; is it PTX?")
    major, minor = int(found[1]), int(found[2])
    if (major, minor) == (8, 6):
        return 12, 7
    return major + 4, minor


def object_of(text: str, dialect: Dialect, processor: str) -> bytes:
    """The object code of a module for a GPU of another maker. BuildError as for ``ptx_of``."""
    with _LOCK:  # SPIR-V's machines keep what they knew of a module, and fail on the next
        make = _machine.__wrapped__ if dialect is SPIRV else _machine
        machine = make(dialect.triple, processor)
        module = _module(text, dialect.triple, machine)
        try:
            return bytes(machine.emit_object(module))
        finally:
            module.close()


def _module(text: str, triple: str, machine: Any) -> Any:
    """The module, verified and optimised: indices to 32 bits, invariants out of loops."""
    from llvmlite import binding

    try:
        module = binding.parse_assembly(text)
        module.triple = triple
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise BuildError(f"LLVM cannot read the module: {' '.join(str(error).split())}") from None
    options = binding.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_interleaving = False
    options.loop_unrolling = False
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module


@functools.cache
def _machine(triple: str, processor: str, features: str = "") -> Any:
    from llvmlite import binding

    _initialise()
    return binding.Target.from_triple(triple).create_target_machine(
        cpu=processor, features=features, opt=3
    )
