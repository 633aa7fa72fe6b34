"""The ahead-of-time executor: a plan as one native function.

    i32 tunefarm_run(ptr pool, ptr memory, ptr weights, ptr inputs, ptr outputs)

``memory`` is the arena, ``inputs`` and ``outputs`` are arrays of pointers. It keeps no state, so
any number of threads may run it, each with memory of its own.

On x86-64 results that are too small for full precision are zeros in it, unless targets are strict:
an instruction that makes one, or reads one later, takes 150 cycles on Intel's processors. Inputs
are read as they are.

It returns 0. RISC-V's vector registers differ in length from one processor to the next, and code
for longer ones would compute half of its lanes: there it returns 1 and computes nothing.
"""

from __future__ import annotations

from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.processors import RISCV64
from tunefarm.compiler.runtime.native import FLOAT_MODE, flush_bits
from tunefarm.compiler.runtime.plan import Argument, Copy, ExecutionPlan, KernelCall, Step
from tunefarm.compiler.target import Target

RUN = "tunefarm_run"


def executor_text(plan: ExecutionPlan, target: Target) -> str:
    """The LLVM text of a plan: a straight line of calls."""
    checked, flushed = target.isa is RISCV64, flush_bits(target)
    lines = [
        f"define i32 @{RUN}(ptr %pool, ptr %memory, ptr %weights, ptr %inputs, ptr %outputs) #0 {{",
        *(_vector_check(target.vector_bytes) if checked else ()),
        *(_flush_begin(flushed) if flushed else ()),
        *_port_pointers("input", len(plan.inputs)),
        *_port_pointers("output", len(plan.outputs)),
    ]
    for number, step in enumerate(plan.steps):
        lines += _step_lines(step, number)
    lines += [*(_flush_end() if flushed else ()), "  ret i32 0", "}", ""]
    declared = _declarations(plan)
    if flushed:
        declared.append(f"declare i32 @{FLOAT_MODE}(i32)")
    if checked:
        declared.append("declare i64 @tunefarm_vector_bytes()")
    return "\n".join([*lines, *declared, 'attributes #0 = { nounwind "no-builtins" }\n'])


def _vector_check(vector_bytes: int) -> list[str]:
    return [
        "  %have = call i64 @tunefarm_vector_bytes()",
        f"  %long = icmp sge i64 %have, {vector_bytes}",
        "  br i1 %long, label %go, label %refuse",
        "refuse:",
        "  ret i32 1",
        "go:",
    ]


def _flush_begin(bits: int) -> list[str]:
    return [
        f"  %mode = call i32 @{FLOAT_MODE}(i32 0)",
        f"  %flushing = or i32 %mode, {bits}",
        f"  %before = call i32 @{FLOAT_MODE}(i32 %flushing)",
    ]


def _flush_end() -> list[str]:
    return [f"  %after = call i32 @{FLOAT_MODE}(i32 %mode)"]


def _port_pointers(place: str, count: int) -> list[str]:
    lines = []
    for index in range(count):
        lines.append(f"  %{place}.at.{index} = getelementptr ptr, ptr %{place}s, i64 {index}")
        lines.append(f"  %{place}.{index} = load ptr, ptr %{place}.at.{index}")
    return lines


def _step_lines(step: Step, number: int) -> list[str]:
    match step:
        case KernelCall():
            workspace = Argument("arena", step.workspace.offset)
            arguments = (workspace, *step.arguments)
            names = [f"%s{number}.{i}" for i in range(len(arguments))]
            passed = ", ".join(f"ptr {name}" for name in ("%pool", *names))
            pairs = zip(names, arguments, strict=True)
            pointers = [_pointer(name, argument) for name, argument in pairs]
            return [*pointers, f"  call void @{_quoted(step.kernel)}({passed})"]
        case Copy():
            source, destination = f"%s{number}.from", f"%s{number}.to"
            return [
                _pointer(source, step.source),
                _pointer(destination, step.destination),
                f"  call ptr @tunefarm_memcpy(ptr {destination}, ptr {source}, i64 {step.bytes})",
            ]


def _pointer(name: str, argument: Argument) -> str:
    match argument.place:
        case "arena":
            base = "%memory"
        case "weight":
            base = "%weights"
        case "input" | "output":
            base = f"%{argument.place}.{argument.index}"
    return f"  {name} = getelementptr i8, ptr {base}, i64 {argument.offset}"


def _declarations(plan: ExecutionPlan) -> list[str]:
    arity: dict[str, int] = {}
    for step in plan.steps:
        if isinstance(step, KernelCall):
            count = arity.setdefault(step.kernel, len(step.arguments))
            if count != len(step.arguments):
                raise BuildError(f"kernel {step.kernel} is called with {count} and other arguments")
    declare = [
        f"declare void @{_quoted(kernel)}({', '.join(['ptr'] * (count + 2))})"
        for kernel, count in arity.items()
    ]
    if any(isinstance(step, Copy) for step in plan.steps):
        declare.append("declare ptr @tunefarm_memcpy(ptr, ptr, i64)")
    return declare


def _quoted(kernel: str) -> str:
    """A kernel's name as LLVM spells it."""
    return kernel if kernel.replace("_", "a").replace(".", "a").isalnum() else f'"{kernel}"'
