"""The execution plan: what a built model does, step by step, in terms of kernels and memory.

    plan     ::= ExecutionPlan(inputs, outputs, steps, arena and weight sizes)
    step     ::= KernelCall(kernel, arguments, workspace) | Copy(source, destination, bytes)
    argument ::= Argument(place, offset, index)     place: input | output | weight | arena

It is plain data with a JSON form. The ahead-of-time executor turns it into one native function,
the graph executor walks it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.ir import TensorType
from tunefarm.compiler.runtime.arrays import ALIGNMENT

PLAN_VERSION = 2

Place: TypeAlias = Literal["input", "output", "weight", "arena"]


@dataclass(frozen=True, slots=True)
class Argument:
    """A pointer: ``offset`` bytes into the arena, the weights, or input or output ``index``."""

    place: Place
    offset: int = 0
    index: int = 0


@dataclass(frozen=True, slots=True)
class Workspace:
    """``bytes`` bytes of the arena, from ``offset`` on, that a kernel needs while it runs."""

    offset: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class KernelCall:
    """``kernel(pool, workspace, *arguments)``; ``label`` names the node for people."""

    kernel: str
    arguments: tuple[Argument, ...]
    label: str = ""
    workspace: Workspace = Workspace()


@dataclass(frozen=True, slots=True)
class Copy:
    """``bytes`` bytes from source to destination, which do not overlap."""

    source: Argument
    destination: Argument
    bytes: int
    label: str = ""


Step: TypeAlias = KernelCall | Copy


@dataclass(frozen=True, slots=True)
class Port:
    """A named input or output of the model."""

    name: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """Everything but the code and the weights. Sizes in bytes; offsets are multiples of 64.

    ``arena_bytes`` is all that one run needs beside weights, inputs and outputs.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    steps: tuple[Step, ...]
    arena_bytes: int = 0
    weight_bytes: int = 0

    @property
    def kernels(self) -> tuple[str, ...]:
        """The distinct kernels in order of first use."""
        calls = (step.kernel for step in self.steps if isinstance(step, KernelCall))
        return tuple(dict.fromkeys(calls))

    def to_json(self) -> str:
        """The plan as JSON text, with its version."""
        return json.dumps({"version": PLAN_VERSION, **asdict(self)})

    @staticmethod
    def from_json(text: str) -> ExecutionPlan:
        """Read ``to_json``'s text; BuildError if it is of another version or malformed."""
        data = json.loads(text)
        if data.get("version") != PLAN_VERSION:
            raise BuildError(
                f"the plan has version {data.get('version')}, this tunefarm reads {PLAN_VERSION}; "
                "build the model again"
            )
        return verify_plan(
            ExecutionPlan(
                tuple(map(_port, data["inputs"])),
                tuple(map(_port, data["outputs"])),
                tuple(map(_step, data["steps"])),
                data["arena_bytes"],
                data["weight_bytes"],
            )
        )


def arguments_of(step: Step) -> Sequence[Argument]:
    """The pointers that a step takes."""
    return step.arguments if isinstance(step, KernelCall) else (step.source, step.destination)


def verify_plan(plan: ExecutionPlan) -> ExecutionPlan:
    """The plan itself; BuildError if a pointer is misaligned or outside its memory, a workspace
    meets what its kernel is given, or an output is never written."""
    written: set[int] = set()
    for number, step in enumerate(plan.steps):
        if isinstance(step, KernelCall):
            _verify_workspace(plan, number, step)
        for argument, size in _sized_arguments(plan, step):
            inside = size >= 0 and 0 <= argument.offset < max(size, 1)
            if argument.offset % ALIGNMENT or not inside:
                raise BuildError(
                    f"step {number} ({step.label}) points at byte {argument.offset} of "
                    f"{size} bytes of {argument.place} {argument.index}"
                )
            if argument.place == "output":
                written.add(argument.index)
    for index, port in enumerate(plan.outputs):
        if index not in written:
            raise BuildError(f"no step of the plan writes output {port.name!r}")
    return plan


def _verify_workspace(plan: ExecutionPlan, number: int, step: KernelCall) -> None:
    begin, end = step.workspace.offset, step.workspace.offset + step.workspace.bytes
    met = [a for a in step.arguments if a.place == "arena" and begin <= a.offset < end]
    if begin % ALIGNMENT or not 0 <= begin <= end <= plan.arena_bytes or met:
        raise BuildError(
            f"step {number} ({step.label}) has bytes {begin} to {end} of an arena of "
            f"{plan.arena_bytes} as its workspace"
            + (f", where byte {met[0].offset} is an argument" if met else "")
        )


def _sized_arguments(plan: ExecutionPlan, step: Step) -> Iterator[tuple[Argument, int]]:
    """Each pointer of a step with the bytes of the memory it points into (-1: no such memory)."""
    for argument in arguments_of(step):
        match argument.place:
            case "arena":
                yield argument, plan.arena_bytes
            case "weight":
                yield argument, plan.weight_bytes
            case "input" | "output":
                ports = plan.inputs if argument.place == "input" else plan.outputs
                known = 0 <= argument.index < len(ports)
                yield argument, nbytes(ports[argument.index].type) if known else -1


def nbytes(tensor: TensorType) -> int:
    """Bytes of a dense tensor."""
    from tunefarm.compiler.target import dtype_bytes

    return tensor.size * dtype_bytes(tensor.dtype)


def _port(data: dict[str, Any]) -> Port:
    return Port(data["name"], TensorType(tuple(data["type"]["shape"]), data["type"]["dtype"]))


def _step(data: dict[str, Any]) -> Step:
    if "kernel" in data:
        arguments, workspace = tuple(map(_argument, data["arguments"])), data["workspace"]
        place = Workspace(workspace["offset"], workspace["bytes"])
        return KernelCall(data["kernel"], arguments, data["label"], place)
    source, destination = _argument(data["source"]), _argument(data["destination"])
    return Copy(source, destination, data["bytes"], data["label"])


def _argument(data: dict[str, Any]) -> Argument:
    return Argument(data["place"], data["offset"], data["index"])
