"""Boxes of a tensor, which the tensor memory accelerator (TMA, from ``sm_90`` on) copies by itself.

    for r in 64: for c in 64: tile[slot, r, swizzled(r, c)] = boxed(x[…], column, 1000, 1, row, …)

One thread asks for a box by one instruction; its bytes arrive in shared memory later, zeros where
the tensor has no elements, and an ``mbarrier`` counts them. In a program a box is the serial loops
over its elements, each stored as ``boxed``: an ``Intrinsic`` of the element, and for each axis of
the tensor, the one that lies side by side first, of its coordinate, its extent and its stride in
elements. Tiles that boxes fill are a ring: their first axis says which of the slots.

    for r in 64: for c in 64: if row < 1000: y[…] = sent(tile[slot, r, swizzled(r, c)], column, …)

The other way round elements are ``sent``, those that the tensor has.

Source: NVIDIA, "PTX ISA", tensors and ``cp.async.bulk.tensor``; "CUDA Driver API",
``cuTensorMapEncodeTiled``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunefarm.compiler.gpu.intrinsics import BOXED, SENT
from tunefarm.compiler.tir.affine import conjunction, conjuncts
from tunefarm.compiler.tir.ir import (
    Binary,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Intrinsic,
    Load,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir.visit import walk_stmt

MAX_BOX = 256  # elements along an axis
MAX_EXTENT = 1 << 32  # of a tensor's axis
STRIDE_BYTES = 16  # what strides, but that of 1, are multiples of
MAX_RANK = 5
MARK_BYTES = 8  # of an mbarrier
_LINE = 128  # bytes that shared arrays are rounded up to


@dataclass(frozen=True, slots=True)
class TensorAxis:
    """An axis of a tensor: the coordinate of an element along it, how many there are, and how many
    elements one is from the next."""

    at: Expr
    extent: int
    stride: int


@dataclass(frozen=True, slots=True)
class Ring:
    """The ``stages`` of the tiles that boxes fill, and who fills them: the threads with number
    ``producer`` along z, which do nothing else; 0 if it is one of those that compute."""

    stages: int
    producer: int

    @property
    def marks_bytes(self) -> int:
        """Bytes of shared memory for two mbarriers a stage."""
        return -(-2 * self.stages * MARK_BYTES // _LINE) * _LINE


def boxed(buffer: Buffer, axes: Sequence[TensorAxis]) -> Intrinsic:
    """An element of a tensor that lies in a parameter from its first element on, zero outside."""
    return Intrinsic(BOXED, (Load(buffer, (_place(axes),)), *_told(axes)), buffer.dtype)


def sent(buffer: Buffer, axes: Sequence[TensorAxis], value: Load) -> Stmt:
    """Store an element of shared memory where it is one of a tensor in a parameter."""
    inside = conjunction([axis.at < axis.extent for axis in axes])
    value_sent = Intrinsic(SENT, (value, *_told(axes)), buffer.dtype)
    return If(inside, Store(buffer, (_place(axes),), value_sent))


def _place(axes: Sequence[TensorAxis]) -> Expr:
    place: Expr = Const(0)
    for axis in axes:
        place = place + axis.at * axis.stride
    return place


def _told(axes: Sequence[TensorAxis]) -> list[Expr]:
    return [e for axis in axes for e in (axis.at, Const(axis.extent), Const(axis.stride))]


def axes_of(expr: Intrinsic) -> list[TensorAxis]:
    """The axes of an element of a box."""
    found = []
    for at, extent, stride in zip(expr.args[1::3], expr.args[2::3], expr.args[3::3], strict=True):
        assert isinstance(extent, Const)
        assert isinstance(stride, Const)
        found.append(TensorAxis(at, int(extent.value), int(stride.value)))
    return found


def is_box(store: Store) -> bool:
    """True for what stores an element of a box."""
    return isinstance(store.value, Intrinsic) and store.value.name == BOXED


def boxes_below(stmt: Stmt) -> list[Store]:
    """What stores the boxes of a statement, one of each."""
    return [s for s in walk_stmt(stmt) if isinstance(s, Store) and is_box(s)]


def is_sent(store: Store) -> bool:
    """True for what stores an element of a box from shared memory."""
    return isinstance(store.value, Intrinsic) and store.value.name == SENT


def only_sends(stmt: Stmt) -> bool:
    """True if a statement stores elements of boxes from shared memory and nothing else."""
    stores = [s for s in walk_stmt(stmt) if isinstance(s, Store)]
    return bool(stores) and all(map(is_sent, stores))


def ring_of(body: Stmt) -> Ring | None:
    """The ring that a kernel's boxes fill; None if it has none."""
    boxes = boxes_below(body)
    if not boxes:
        return None
    groups = {s.var for s in walk_stmt(body) if isinstance(s, For) and s.axis == "threadIdx.z"}
    fills = [s for s in walk_stmt(body) if isinstance(s, If) and boxes_below(s)]
    parts = [part for fill in fills for part in conjuncts(fill.condition)]
    numbers = [_number(part, groups) for part in parts]
    return Ring(boxes[0].buffer.shape[0], max(numbers, default=0))


def _number(condition: Expr, variables: set[Var]) -> int:
    """n of the condition ``variable = n``; 0 of others."""
    match condition:
        case Binary("eq", Var() as var, Const(number), _) if var in variables:
            return int(number)
        case _:
            return 0
