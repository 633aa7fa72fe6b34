"""The ahead-of-time executor: a plan as one native function.

    i32 tunefarm_run(ptr pool, ptr memory, ptr weights, ptr inputs, ptr outputs)

``memory`` is the arena followed by the workspace, ``inputs`` and ``outputs`` are arrays of
pointers. It keeps no state, so any number of threads may run it, each with memory of its own.
"""

from __future__ import annotations

from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.runtime.plan import Argument, Copy, ExecutionPlan, KernelCall, Step

RUN = "tunefarm_run"


def executor_text(plan: ExecutionPlan) -> str:
    """The LLVM text of a plan: a straight line of calls."""
    lines = [
        f"define i32 @{RUN}(ptr %pool, ptr %memory, ptr %weights, ptr %inputs, ptr %outputs) #0 {{",
        f"  %workspace = getelementptr i8, ptr %memory, i64 {plan.workspace_offset}",
        *_port_pointers("input", len(plan.inputs)),
        *_port_pointers("output", len(plan.outputs)),
    ]
    for number, step in enumerate(plan.steps):
        lines += _step_lines(step, number)
    lines += ["  ret i32 0", "}", ""]
    return "\n".join([*lines, *_declarations(plan), 'attributes #0 = { nounwind "no-builtins" }\n'])


def _port_pointers(place: str, count: int) -> list[str]:
    lines = []
    for index in range(count):
        lines.append(f"  %{place}.at.{index} = getelementptr ptr, ptr %{place}s, i64 {index}")
        lines.append(f"  %{place}.{index} = load ptr, ptr %{place}.at.{index}")
    return lines


def _step_lines(step: Step, number: int) -> list[str]:
    match step:
        case KernelCall():
            names = [f"%s{number}.{i}" for i in range(len(step.arguments))]
            passed = ", ".join(f"ptr {name}" for name in ("%pool", "%workspace", *names))
            pairs = zip(names, step.arguments, strict=True)
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
