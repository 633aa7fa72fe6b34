"""A plan some of whose kernels run on the host: where values are copied from one side to the other.

    device: a = f(x)                    a = f(x)
    host:   b = g(a)            ->      a to the host; b = g(a); b to the device
    device: c = h(b)                    c = h(b)

Each value has one place, on both sides. It is copied when the other side reads it, and not again as
long as both have it: what passes between two kernels of one side stays there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tunefarm.compiler.kernel import Kernel
from tunefarm.compiler.runtime.plan import Argument, Copy, ExecutionPlan, KernelCall, Step, nbytes


@dataclass(frozen=True, slots=True)
class ToHost:
    """Bytes of a value are copied to its place on the host."""

    source: Argument
    bytes: int


@dataclass(frozen=True, slots=True)
class ToDevice:
    """Bytes of a value are copied from its place on the host."""

    destination: Argument
    bytes: int


@dataclass(frozen=True, slots=True)
class HostCall:
    """A kernel that runs on the host, on the values' places there."""

    call: KernelCall


DeviceStep: TypeAlias = KernelCall | Copy
PlacedStep: TypeAlias = DeviceStep | HostCall | ToHost | ToDevice
_Span: TypeAlias = tuple[Argument, int]


@dataclass(slots=True)
class _Ranges:
    """Bytes of places: disjoint (begin, end) of each."""

    held: dict[tuple[str, int], list[tuple[int, int]]] = field(default_factory=dict)

    def covers(self, span: _Span) -> bool:
        begin, end = _ends(span)
        return any(b <= begin and end <= e for b, e in self.held.get(_memory(span), ()))

    def meeting(self, span: _Span) -> list[_Span]:
        """The whole ranges that share bytes with a span."""
        (place, index), (begin, end) = _memory(span), _ends(span)
        met = [(b, e) for b, e in self.held.get((place, index), ()) if b < end and begin < e]
        return [(Argument(span[0].place, b, index), e - b) for b, e in met]

    def add(self, span: _Span) -> None:
        self.remove(span)
        self.held.setdefault(_memory(span), []).append(_ends(span))

    def remove(self, span: _Span) -> None:
        begin, end = _ends(span)
        kept = []
        for b, e in self.held.pop(_memory(span), ()):
            parts = [(b, e)] if e <= begin or end <= b else [(b, begin), (end, e)]
            kept += [(low, high) for low, high in parts if low < high]
        self.held[_memory(span)] = kept


def _memory(span: _Span) -> tuple[str, int]:
    return span[0].place, span[0].index


def _ends(span: _Span) -> tuple[int, int]:
    return span[0].offset, span[0].offset + span[1]


def placed_steps(
    plan: ExecutionPlan, kernels: Mapping[str, Kernel], host: Mapping[str, Kernel]
) -> tuple[PlacedStep, ...]:
    """The steps of a plan with the copies that the kernels of ``host`` need; both by the names of
    the plan."""
    return tuple(_placed(plan, kernels, host))


def _placed(
    plan: ExecutionPlan, kernels: Mapping[str, Kernel], host: Mapping[str, Kernel]
) -> Iterator[PlacedStep]:
    there = _Ranges()  # what the host has as the device does, or newer
    newer = _Ranges()  # what the device lacks
    for step in plan.steps:
        on_host = isinstance(step, KernelCall) and step.kernel in host
        reads, writes = _spans(step, host if on_host else kernels)
        for span in reads:
            if on_host and there.covers(span):
                continue
            for late in newer.meeting(span):
                yield ToDevice(*late)
                newer.remove(late)
            if on_host:
                yield ToHost(*span)
                there.add(span)
        if on_host:
            assert isinstance(step, KernelCall)
            yield HostCall(step)
        else:
            yield step
        for span in writes:
            there.remove(span)
            newer.remove(span)
            if on_host:
                there.add(span)
                newer.add(span)
    for index, port in enumerate(plan.outputs):
        for late in newer.meeting((Argument("output", 0, index), nbytes(port.type))):
            yield ToDevice(*late)


def _spans(step: Step, kernels: Mapping[str, Kernel]) -> tuple[list[_Span], list[_Span]]:
    """What a step reads, weights left out, and what it writes."""
    if isinstance(step, Copy):
        spans = [(step.source, step.bytes), (step.destination, step.bytes)]
        inputs = 1
    else:
        kernel = kernels[step.kernel]
        types = zip(step.arguments, kernel.params, strict=True)
        spans = [(argument, nbytes(tensor)) for argument, tensor in types]
        inputs = len(spans) - kernel.outputs
    return [s for s in spans[:inputs] if s[0].place != "weight"], spans[inputs:]
