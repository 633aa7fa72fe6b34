"""A whole model → C99, to read: its kernels, and one function that calls them in order.

void model(const float *x, float *y, const char *weights, char *arena) {
    // conv1: conv2d + add + relu
    tunefarm_0123456789abcdef(x, (const float *)(weights + 64), (float *)(arena + 0));
}
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tunefarm.compiler.codegen.c import c_type, emit_c
from tunefarm.compiler.runtime.plan import Argument, Copy, ExecutionPlan, KernelCall, Port
from tunefarm.compiler.tir.ir import PrimFunc


def emit_model_c(plan: ExecutionPlan, programs: Sequence[PrimFunc]) -> str:
    """C99 of the lowered programs that a plan calls, and ``model(inputs…, outputs…, weights,
    arena)``; ``weights`` and ``arena`` are the plan's bytes, each aligned to 64.

    Raises BuildError for a dtype that C99 lacks.
    """
    ports = [(p, True) for p in plan.inputs] + [(p, False) for p in plan.outputs]
    names = [f"{_identifier(port)}_{n}" for n, (port, _) in enumerate(ports)]
    places = {
        **{("input", n): name for n, name in enumerate(names[: len(plan.inputs)])},
        **{("output", n): name for n, name in enumerate(names[len(plan.inputs) :])},
    }
    params = [
        f"{'const ' if read else ''}{c_type(port.type.dtype)} *{name}"
        for (port, read), name in zip(ports, names, strict=True)
    ]
    sizes = f"// {plan.weight_bytes} bytes of weights, {plan.arena_bytes} bytes of arena"
    known = {p.name: p for p in programs}
    lines = [sizes, f"void model({', '.join([*params, 'const char *weights', 'char *arena'])}) {{"]
    for step in plan.steps:
        lines += [f"    {line}" for line in _step(step, known, places)]
    kernels = "#include <string.h>\n" + emit_c(*programs)
    return "\n".join([kernels, *lines, "}", ""])


def _step(
    step: KernelCall | Copy, programs: dict[str, PrimFunc], places: dict[tuple[str, int], str]
) -> list[str]:
    label = " ".join(step.label.split()).rstrip("\\ ")  # a last backslash would continue the line
    note = [f"// {label}"] if label else []
    if isinstance(step, Copy):
        to, source = (_bytes(a, places) for a in (step.destination, step.source))
        return [*note, f"memcpy({to}, {source}, {step.bytes});"]
    program = programs[step.kernel]
    inputs = len(program.params) - program.outputs
    arguments = [
        f"({'const ' if n < inputs else ''}{c_type(param.dtype)} *)({_bytes(argument, places)})"
        if argument.place in ("weight", "arena") or argument.offset
        else _bytes(argument, places)
        for n, (param, argument) in enumerate(zip(program.params, step.arguments, strict=True))
    ]
    return [*note, f"{program.name}({', '.join(arguments)});"]


def _bytes(argument: Argument, places: dict[tuple[str, int], str]) -> str:
    match argument.place:
        case "weight":
            return f"weights + {argument.offset}"
        case "arena":
            return f"arena + {argument.offset}"
        case place:
            name = places[place, argument.index]
            return f"(char *){name} + {argument.offset}" if argument.offset else name


def _identifier(port: Port) -> str:
    """The port's name as a part of a C identifier."""
    stem = re.sub(r"\W", "_", port.name, flags=re.ASCII)
    return stem if re.match(r"[A-Za-z]", stem) else f"v{stem}"
