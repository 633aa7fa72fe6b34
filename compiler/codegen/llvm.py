"""Loop IR → LLVM IR text: the entry point, kernels and parallel bodies.

The schedule has decided everything; the text is clean SSA that LLVM's optimiser need not touch:
register buffers are SSA values (phis in loops), unrolled and vectorized loops are expanded here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tunefarm.compiler.codegen.builder import FunctionBuilder
from tunefarm.compiler.codegen.statements import ALIGN, Emitter, Module
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir.ir import PrimFunc

_ATTRIBUTES = 'attributes #0 = { nounwind "no-builtins" }'
_METADATA = "!0 = !{}"


@dataclass(frozen=True, slots=True)
class LlvmKernel:
    """One kernel as LLVM text: ``void @name(ptr pool, ptr workspace, ptr param…)``.

    ``functions`` are its own and the bodies of its parallel loops, ``declares`` what they name of
    others. ``workspace_bytes`` hold what does not fit stacks, once for each core of the target.
    """

    name: str
    functions: str
    declares: frozenset[str] = frozenset()
    workspace_bytes: int = 0
    parallel: bool = False

    @property
    def text(self) -> str:
        """The kernel as a module of its own."""
        return _module([self.functions], self.declares)


def emit_llvm(program: PrimFunc, target: Target) -> LlvmKernel:
    """The LLVM text of a lowered program.

    Raises ScheduleError if a register buffer is indexed by what is not constant after unrolling,
    or a tile does not fit the stack; BuildError for a dtype without code.
    """
    module = Module(program.name, target, any(b.ordered for b in program.params))
    builder = FunctionBuilder()
    emitter = Emitter(module, builder, "%workspace")
    names = []
    inputs = len(program.params) - program.outputs
    for index, param in enumerate(program.params):
        name = f"%p{index}"
        alone = "" if index in program.shared else "noalias "
        given = index < inputs and index not in program.constants  # by the caller of a model, maybe
        align = dtype_bytes(param.dtype) if given else ALIGN
        names.append(f"ptr {alone}align {align} {name}")
        emitter.pointers[param] = name
        if index in program.constants:
            emitter.constants.add(param)
    emitter.statement(program.body)
    emitter.configured()
    builder.line("ret void")
    arguments = ", ".join(["ptr %pool", "ptr noalias align 64 %workspace", *names])
    body = "\n".join(builder.body())
    main = f"define void @{program.name}({arguments}) #0 {{\n{body}\n}}\n"
    functions = "\n".join([*module.functions, main])
    declares = frozenset(module.declares)
    return LlvmKernel(program.name, functions, declares, emitter.scratch_bytes, module.parallel)


def join_kernels(kernels: Sequence[LlvmKernel]) -> tuple[str, list[str]]:
    """One module of kernels that may have the same name, and what each is called in it.

    Each begins a line of the cache, as it would in a module of its own.
    """
    names = [f"{kernel.name}_{index}" for index, kernel in enumerate(kernels)]
    declares = frozenset[str]().union(*(kernel.declares for kernel in kernels))
    return _module(list(_renamed(kernels, names)), declares), names


def _renamed(kernels: Sequence[LlvmKernel], names: Sequence[str]) -> Iterator[str]:
    for kernel, name in zip(kernels, names, strict=True):
        text = kernel.functions.replace(f"@{kernel.name}", f"@{name}")
        yield text.replace(" #0 {\n", f" #0 align {ALIGN} {{\n")


def _module(functions: Sequence[str], declares: frozenset[str]) -> str:
    return "\n".join([*functions, *sorted(declares), _ATTRIBUTES, _METADATA, ""])
