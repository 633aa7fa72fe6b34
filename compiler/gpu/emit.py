"""Loop IR → LLVM text of kernels: the entry point.

The emitter is that of CPUs with three more layers: ``threads``, what one thread does, ``warps``,
what those of a warp do together, and ``warpgroups``, what four warps do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tunefarm.compiler.codegen.builder import FunctionBuilder
from tunefarm.compiler.codegen.statements import Module
from tunefarm.compiler.gpu.dialects import NVPTX, Dialect
from tunefarm.compiler.gpu.launches import Launch, Part, check_limits, parts_of
from tunefarm.compiler.gpu.threads import BASE_ALIGN
from tunefarm.compiler.gpu.warpgroups import WarpgroupEmitter
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.ir import Buffer, PrimFunc


@dataclass(frozen=True, slots=True)
class GpuCode:
    """The LLVM text of a program's kernels, and how to run them.

    ``launches`` are to be made in order; ``workspace_bytes`` hold what passes between them.
    """

    name: str
    text: str
    launches: tuple[Launch, ...]
    workspace_bytes: int


def emit_gpu(program: PrimFunc, target: Target, dialect: Dialect = NVPTX) -> GpuCode:
    """The LLVM text of a program that ``lower_gpu`` lowered, for a target of kind "cuda", whose
    limits hold in other dialects too.

    Raises ScheduleError for what a GPU cannot run so (too many threads, too much shared memory,
    registers indexed by what is not constant), BuildError for a dtype without code.
    """
    parts, places, workspace_bytes = parts_of(program)
    module = Module(program.name, target)
    launches = []
    for number, part in enumerate(parts):
        check_limits(part, target.gpu)
        name = program.name if len(parts) == 1 else f"{program.name}_{number}"
        module.functions.append(_kernel(program, part, name, module, places, dialect))
        launches.append(Launch(name, part.grid, part.block, part.dynamic_bytes))
    attributes = [
        f"attributes #{n} = {{ {_attributes(dialect, part)} }}" for n, part in enumerate(parts)
    ]
    text = "\n".join([*module.functions, *sorted(module.declares), *attributes, "!0 = !{}", ""])
    if dialect.flat:
        text = re.sub(r"\bptr\b(?! addrspace\()", f"ptr addrspace({dialect.flat})", text)
    return GpuCode(program.name, text, tuple(launches), workspace_bytes)


def _attributes(dialect: Dialect, part: Part) -> str:
    x, y, z = part.block
    return dialect.attributes.format(x=x, y=y, z=z, n=x * y * z)


def _kernel(
    program: PrimFunc,
    part: Part,
    name: str,
    module: Module,
    places: dict[Buffer, int],
    dialect: Dialect,
) -> str:
    """The text of one kernel and its shared array."""
    builder = FunctionBuilder()
    emitter = WarpgroupEmitter(module, builder, dialect, part, name)
    arguments = []
    inputs = len(program.params) - program.outputs
    for index, param in enumerate(program.params):
        alone = "" if index in program.shared else "noalias "
        arguments.append(f"ptr addrspace(1) {alone}align {BASE_ALIGN['global']} %g{index}")
        builder.entry.append(f"  %p{index} = addrspacecast ptr addrspace(1) %g{index} to ptr")
        emitter.pointers[param] = f"%p{index}"
        if index < inputs and index not in program.shared:
            emitter.constants.add(param)
    arguments.append("ptr addrspace(1) noalias align 256 %workspace")
    if places:
        builder.entry.append("  %w = addrspacecast ptr addrspace(1) %workspace to ptr")
    for buffer, offset in places.items():
        pointer = f"getelementptr inbounds i8, ptr %w, i64 {offset}"
        emitter.pointers[buffer] = builder.pure(pointer)
    emitter.statement(part.body)
    builder.line("ret void")
    body = "\n".join(builder.body())
    head = f"define {dialect.convention} void @{name}({', '.join(arguments)})"
    number = len(module.functions)
    return f"{emitter.shared_array()}{head} #{number} {{\n{body}\n}}\n"
