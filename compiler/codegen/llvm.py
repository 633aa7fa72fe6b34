"""Loop IR → LLVM IR text: the entry point, kernels and parallel bodies.

The schedule has decided everything; the text is clean SSA that LLVM's optimiser need not touch:
register buffers are SSA values (phis in loops), unrolled and vectorized loops are expanded here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tunefarm.compiler.codegen.builder import FunctionBuilder
from tunefarm.compiler.codegen.statements import ALIGN, Emitter, Module
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir.ir import PrimFunc


@dataclass(frozen=True, slots=True)
class LlvmKernel:
    """One kernel as LLVM text: ``void @name(ptr pool, ptr workspace, ptr param…)``.

    ``workspace_bytes`` hold what does not fit stacks, once for each core of the target.
    """

    name: str
    text: str
    workspace_bytes: int = 0
    parallel: bool = field(default=False)


def emit_llvm(program: PrimFunc, target: Target) -> LlvmKernel:
    """The LLVM text of a lowered program.

    Raises ScheduleError if a register buffer is indexed by what is not constant after unrolling,
    or a tile does not fit the stack; BuildError for a dtype without code.
    """
    module = Module(program.name, target)
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
    builder.line("ret void")
    arguments = ", ".join(["ptr %pool", "ptr noalias align 64 %workspace", *names])
    body = "\n".join(builder.body())
    main = f"define void @{program.name}({arguments}) #0 {{\n{body}\n}}\n"
    attributes = 'attributes #0 = { nounwind "no-builtins" }'
    text = "\n".join(
        [*module.functions, main, *sorted(module.declares), attributes, "!0 = !{}", ""]
    )
    return LlvmKernel(program.name, text, emitter.scratch_bytes, module.parallel)
