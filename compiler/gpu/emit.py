"""Loop IR → LLVM text of kernels: the entry point.

The emitter is that of CPUs with more layers: ``swizzle``, where elements of shared arrays lie,
``threads``, what one thread does, ``shuffles``, what those of a warp tell each other, ``warps``,
what they multiply together, ``warpgroups``, what four warps do, ``clusters``, what the blocks of a
cluster combine, and ``rings``, how tiles reach them that are copied as boxes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tunefarm.compiler.codegen.builder import FunctionBuilder
from tunefarm.compiler.codegen.statements import Module
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.dialects import NVPTX, Dialect
from tunefarm.compiler.gpu.intrinsics import (
    BOXED,
    CLUSTER_REDUCTIONS,
    HELD_PRODUCTS,
    JOINED,
    SENT,
)
from tunefarm.compiler.gpu.launches import Launch, Part, check_limits, parts_of
from tunefarm.compiler.gpu.mma import MMAS
from tunefarm.compiler.gpu.rings import RingEmitter, registers_of
from tunefarm.compiler.gpu.tensor_maps import MAP_ALIGN, MAP_BYTES, TensorMap
from tunefarm.compiler.gpu.threads import BASE_ALIGN
from tunefarm.compiler.gpu.warpgroups import CONVERGENT
from tunefarm.compiler.gpu.warps import holds_fragments
from tunefarm.compiler.gpu.wgmma import WGMMAS
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.ir import Buffer, Intrinsic, PrimFunc, Store
from tunefarm.compiler.tir.visit import walk_expr, walk_stmt

NVIDIAS = frozenset({BOXED, JOINED, SENT, *CLUSTER_REDUCTIONS, *HELD_PRODUCTS, *MMAS, *WGMMAS})
"""Intrinsics that other makers' GPUs have no instruction for."""


_FETCH_MAP = "\\0A".join((
    "{",
    ".reg .pred p;",
    ".reg .b32 x, y, z;",
    "mov.u32 x, %tid.x;",
    "mov.u32 y, %tid.y;",
    "mov.u32 z, %tid.z;",
    "or.b32 x, x, y;",
    "or.b32 x, x, z;",
    "setp.eq.u32 p, x, 0;",
    "@p prefetch.tensormap [$0];",
    "}",
))  # fmt: skip
"""Descriptors of tensors are asked for before all else: a cold one costs up to a microsecond."""


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
    registers indexed by what is not constant, NVIDIA's instructions in other dialects), BuildError
    for a dtype without code.
    """
    parts, places, workspace_bytes = parts_of(program)
    module = Module(program.name, target)
    launches = []
    for number, part in enumerate(parts):
        check_limits(part, target.gpu)
        _check_words(part, dialect)
        name = program.name if len(parts) == 1 else f"{program.name}_{number}"
        text, maps = _kernel(program, part, name, module, places, dialect)
        module.functions.append(text)
        dynamic_bytes = 0 if dialect.shared_bytes else part.dynamic_bytes
        launches.append(Launch(name, part.grid, part.block, dynamic_bytes, maps))
    attributes = [
        f"attributes #{n} = {{ {_attributes(dialect, part)} }}" for n, part in enumerate(parts)
    ]
    text = "\n".join([*module.functions, *sorted(module.declares), *attributes, "!0 = !{}", ""])
    if dialect.own is not None:
        made = rf"  \1.own = alloca \2, addrspace({dialect.own})\n"
        cast = rf"  \1 = addrspacecast ptr addrspace({dialect.own}) \1.own to ptr"
        text = re.sub(r"^ *(%\w+) = alloca (.*)$", made + cast, text, flags=re.MULTILINE)
    if dialect.flat:
        if "@llvm.masked." in text:
            raise ScheduleError(
                f"LLVM 22 has no code for lanes under a mask on {dialect.triple}; take a config "
                "without vectors"
            )
        text = re.sub(r"\bptr\b(?! addrspace\()", f"ptr addrspace({dialect.flat})", text)
    return GpuCode(program.name, text, tuple(launches), workspace_bytes)


def _check_words(part: Part, dialect: Dialect) -> None:
    """ScheduleError for what a dialect has no words for, or no memory."""
    if dialect is NVPTX:
        return
    values = [s.value for s in walk_stmt(part.body) if isinstance(s, Store)]
    used = {e.name for v in values for e in walk_expr(v) if isinstance(e, Intrinsic)}
    if own := sorted(used & NVIDIAS):
        raise ScheduleError(f"{own[0]} is an instruction of NVIDIA's, not of {dialect.triple}")
    if part.shared_bytes > dialect.shared_bytes:
        raise ScheduleError(
            f"a block shares {part.shared_bytes} bytes; {dialect.triple} has {dialect.shared_bytes}"
        )


def _attributes(dialect: Dialect, part: Part) -> str:
    x, y, z = part.block
    attributes = dialect.attributes.format(x=x, y=y, z=z, n=x * y * z)
    if part.cluster > 1:
        attributes += f' "nvvm.cluster_dim"="{part.cluster},1,1"'
    if dialect is NVPTX and holds_fragments(part.body):
        attributes += ' "nvvm.minctasm"="1"'  # else ptxas spills, for blocks that do not fit beside
    given = registers_of(part)
    return attributes if given is None else f'{attributes} "nvvm.maxnreg"="{given[0]}"'


def _kernel(
    program: PrimFunc,
    part: Part,
    name: str,
    module: Module,
    places: dict[Buffer, int],
    dialect: Dialect,
) -> tuple[str, tuple[TensorMap, ...]]:
    """The text of one kernel and its shared array, and what it takes beside pointers."""
    builder = FunctionBuilder()
    emitter = RingEmitter(module, builder, dialect, part, name)
    emitter.params = program.params
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
    emitter.begin()
    emitter.statement(part.body)
    emitter.end()
    builder.line("ret void")
    for number in range(len(emitter.maps)):
        call = f'call void asm sideeffect "{_FETCH_MAP}", "l"(ptr %m{number}) {CONVERGENT}'
        builder.entry.append(f"  {call}")
        kind = f"ptr byval([{MAP_BYTES} x i8]) align {MAP_ALIGN}"
        arguments.append(f'{kind} "nvvm.grid_constant" %m{number}')
    body = "\n".join(builder.body())
    head = f"define {dialect.convention} void @{name}({', '.join(arguments)})"
    head = f"{head} #{len(module.functions)} {dialect.metadata}".rstrip()
    text = f"{emitter.shared_array()}{head} {{\n{body}\n}}\n"
    return text, tuple(emitter.maps)
