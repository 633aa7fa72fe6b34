"""From kernels and a memory plan to an execution plan with its packed weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.ir import Call, Constant, Function, IRModule, TupleType, tensor_type
from tunefarm.compiler.packing import pack_into, packed_dtype
from tunefarm.compiler.runtime.arrays import ALIGNMENT, lasting_bytes
from tunefarm.compiler.runtime.plan import (
    Argument,
    Copy,
    ExecutionPlan,
    KernelCall,
    Port,
    Step,
    Workspace,
    verify_plan,
)
from tunefarm.compiler.tir import PackedLayout
from tunefarm.compiler.transform.plan_memory import MemoryPlan, Place, Store, stored_value

if TYPE_CHECKING:
    from tunefarm.compiler.kernel import Kernel

_SAMPLE = 64  # elements that are compared first
_Key: TypeAlias = tuple[tuple[int, ...], str, PackedLayout | None, tuple[int, ...]]
_PLACES: Mapping[Store, Any] = {
    Store.ARENA: "arena",
    Store.INPUT: "input",
    Store.OUTPUT: "output",
}


@dataclass(frozen=True, slots=True)
class Linked:
    """A plan and the bytes of its weights."""

    plan: ExecutionPlan
    weights: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A constant, how it is packed, and the byte where it begins."""

    data: NDArray[Any]
    layout: PackedLayout | None
    shape: tuple[int, ...]
    start: int


class _Weights:
    """Lays out constants as kernels read them, equal ones once; ``join`` packs them in place.

    Weights of hundreds of megabytes are written once: fresh memory costs more than the copy.
    """

    def __init__(self, alignment: int) -> None:
        self.size = 0
        self._alignment = alignment
        self._known: dict[_Key, list[_Chunk]] = {}

    def offset(
        self, constant: Constant, layout: PackedLayout | None, shape: tuple[int, ...]
    ) -> int:
        data = constant.data
        packed = shape if layout is not None else ()
        alike = self._known.setdefault((data.shape, data.dtype.str, layout, packed), [])
        for chunk in alike:
            if _equal(chunk.data, data):
                return chunk.start
        alike.append(_Chunk(data, layout, shape, self.size))
        itemsize = packed_dtype(data.dtype, layout).itemsize
        self.size += self._aligned(max(prod(shape) * itemsize, 1))
        return alike[-1].start

    def join(self) -> NDArray[np.uint8]:
        whole = lasting_bytes(self.size)
        for chunk in chain.from_iterable(self._known.values()):
            dtype = packed_dtype(chunk.data.dtype, chunk.layout)
            end = chunk.start + prod(chunk.shape) * dtype.itemsize
            part = whole[chunk.start : end].view(dtype).reshape(chunk.shape)
            whole[end : self._aligned(end)] = 0  # equal weights are equal bytes
            pack_into(part, chunk.data, chunk.layout)
        return whole

    def _aligned(self, size_bytes: int) -> int:
        return -(-size_bytes // self._alignment) * self._alignment


def _equal(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether two arrays of one shape and dtype hold the same bits; most differ at the start."""
    if a is b:
        return True
    if a.flat[:_SAMPLE].tobytes() != b.flat[:_SAMPLE].tobytes():
        return False
    first, second = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    return bool((first == second).all())


def link_model(
    module: IRModule,
    memory: MemoryPlan,
    kernels: Mapping[Call, Kernel],
    alignment: int = ALIGNMENT,
) -> Linked:
    """The plan of a fused module whose calls have these kernels, and room for their workspaces.

    Each weight begins at a multiple of ``alignment`` bytes.
    """
    weights = _Weights(alignment)
    steps: list[Step] = [_call_step(c, memory, kernels[c], weights) for c in memory.calls]
    for place, index in memory.copies:
        constant = memory.constants[place.at] if place.store is Store.CONSTANT else None
        source = _pointer(place, constant, weights)
        steps.append(Copy(source, Argument("output", 0, index), place.size_bytes, "copy"))
    main = module.main
    plan = ExecutionPlan(
        tuple(Port(p.name, tensor_type(p)) for p in main.params),
        tuple(_output_ports(module)),
        tuple(steps),
        memory.arena_bytes,
        weights.size,
    )
    return Linked(verify_plan(plan), weights.join())


def _output_ports(module: IRModule) -> list[Port]:
    kind = module.main.type
    types = kind.fields if isinstance(kind, TupleType) else (kind,)
    return [Port(n, t) for n, t in zip(module.output_names, types, strict=True)]


def _call_step(call: Call, memory: MemoryPlan, kernel: Kernel, weights: _Weights) -> KernelCall:
    arguments = []
    for index, operand in enumerate(call.args):
        place = memory.place(operand)
        source, _ = stored_value(operand)
        if isinstance(source, Constant):
            shape = kernel.params[index].shape
            at = weights.offset(source, kernel.layouts.get(index), shape)
            arguments.append(Argument("weight", at))
        else:
            arguments.append(_pointer(place, None, weights))
    arguments += [_pointer(place, None, weights) for place in memory.results(call)]
    scratch = memory.scratch.get(call)
    workspace = Workspace(scratch.at, scratch.size_bytes) if scratch else Workspace()
    return KernelCall(kernel.name, tuple(arguments), label_of(call), workspace)


def _pointer(place: Place, constant: Constant | None, weights: _Weights) -> Argument:
    if constant is not None:
        return Argument("weight", weights.offset(constant, None, constant.data.shape))
    name = _PLACES[place.store]
    return Argument(name, place.at) if name == "arena" else Argument(name, place.start, place.at)


def label_of(call: Call) -> str:
    """A node for people: its own name, if it has one, and a summary of what it fuses."""
    from tunefarm.compiler.summary import summarize

    text = summarize(call.op) if isinstance(call.op, Function) else str(call.op)
    return f"{call.name}: {text}" if call.name else text
