"""Give each intermediate buffer its place and the smallest shape that holds what is live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from types import MappingProxyType
from typing import TypeAlias

from tunefarm.compiler.target import LINE_BYTES, SAME_SET_BYTES, dtype_bytes
from tunefarm.compiler.tir.affine import Affine, affine, element_offset, interval, key_of
from tunefarm.compiler.tir.facts import KEPT, buffers_read, uses
from tunefarm.compiler.tir.ir import (
    THREAD_AXES,
    Allocate,
    Buffer,
    Expr,
    For,
    If,
    Load,
    LoopKind,
    Prefetch,
    PrimFunc,
    Ring,
    Seq,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir.schedule.regions import relax
from tunefarm.compiler.tir.schedule.tree import loop_ranges
from tunefarm.compiler.tir.visit import (
    children,
    loads_of,
    map_children,
    transform_accesses,
    transform_stmt,
    walk_stmt,
    with_body,
)

LEAST_SETS = 8  # of a first cache, that planes beside each other should be in

Threads: TypeAlias = Mapping[Var, tuple[int, int]]
"""The threads around that share a buffer, and their ranges."""

UNKNOWN = 1 << 40  # a region longer than this comes from an index of which nothing is known


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """What a buffer becomes: the smaller one, and where its elements begin in the larger."""

    buffer: Buffer
    bases: tuple[Affine, ...]
    ring: Ring | None

    def shifted(self, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Where the element at ``indices`` of the larger buffer stands."""
        places = [
            (affine(i) - b).expr() if b.terms or b.const else i
            for i, b in zip(indices, self.bases, strict=True)
        ]
        if self.ring is not None:
            places[self.ring.dim] = places[self.ring.dim] % self.ring.rows
        return tuple(places)


def compact_buffers(program: PrimFunc) -> PrimFunc:
    """Allocate every intermediate buffer inside the innermost loop that holds all its uses.

    for i: for j: T[i, j] = …; for j: C[i, j] = T[i, j]
    ->  for i: allocate T[1, n]: for j: T[0, j] = …
    """
    body, sizes = program.body, _sizes(program)
    places: dict[Buffer, _Place] = {}
    for buffer in program.buffers:
        body = _place(body, buffer, sizes[buffer], places)

    def load(old: Load) -> Load:
        place = places[old.buffer]
        return Load(place.buffer, place.shifted(old.indices))

    def store(old: Store) -> Store:
        place = places[old.buffer]
        return Store(place.buffer, place.shifted(old.indices), old.value)

    def hint(old: Prefetch) -> Prefetch:
        place = places.get(old.buffer)
        if place is None:
            return old
        if not old.first:
            return replace(old, buffer=place.buffer)
        first = element_offset(place.buffer, place.shifted(old.first))
        return replace(old, buffer=place.buffer, offset=first + old.offset, first=())

    def hints(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, For) or not stmt.prefetch:
            return None
        return replace(stmt, prefetch=tuple(map(hint, stmt.prefetch)))

    body = transform_accesses(body, places.keys(), load, store)
    if any(isinstance(stmt, For) and stmt.prefetch for stmt in walk_stmt(body)):
        body = transform_stmt(body, hints)
    return replace(program, body=body, buffers=())


def _sizes(program: PrimFunc) -> dict[Buffer, tuple[int, ...]]:
    """Each intermediate buffer's shape, or more: stores of padding lanes reach behind it."""
    ranges = loop_ranges(program.body)
    sizes = {b: b.shape for b in program.buffers}
    for stmt in walk_stmt(program.body):
        if isinstance(stmt, Store) and stmt.buffer in sizes:
            ends = [interval(i, ranges)[1] + 1 for i in stmt.indices]
            sizes[stmt.buffer] = tuple(
                end if size < end < UNKNOWN else size
                for size, end in zip(sizes[stmt.buffer], ends, strict=True)
            )
    return sizes


def _place(
    root: Stmt,
    buffer: Buffer,
    sizes: Sequence[int],
    places: dict[Buffer, _Place],
    threads: Threads = MappingProxyType({}),
) -> Stmt:
    """Wrap the smallest statement that holds all uses of ``buffer`` in the allocation of what it
    becomes, which ``places`` is told."""
    if isinstance(root, For) and root.axis in THREAD_AXES and buffer.scope == "shared":
        threads = {**threads, **loop_ranges(replace(root, body=Seq(())))}  # they use it together

    def allocated(body: Stmt) -> Stmt:
        places[buffer] = _place_in(body, buffer, sizes, threads)
        return Allocate(places[buffer].buffer, body)

    users = [s for s in children(root) if uses(s, buffer)]
    if buffer.ring is not None and isinstance(root, For) and root.var is buffer.ring.var:
        return allocated(root)  # rows outlive an iteration
    if isinstance(root, For) and root.kind is LoopKind.VECTORIZED:
        return allocated(root)  # an element a lane
    crosses = isinstance(root, For) and root.kind is LoopKind.UNROLLED and not _has_serial(root)
    if len(users) == 1 and not crosses and not _own_use(root, buffer):
        placed = _place(users[0], buffer, sizes, places, threads)
        return map_children(root, lambda s: placed if s is users[0] else s)
    if isinstance(root, For):
        return with_body(root, allocated(root.body))
    return allocated(root)


def _has_serial(stmt: Stmt) -> bool:
    """Whether a loop of a statement stays one. Copies of an unrolled body are one block of code
    else, whose registers are kept together; with loops inside each is a nest of its own."""
    return any(isinstance(s, For) and s.is_serial for s in walk_stmt(stmt))


def _own_use(stmt: Stmt, buffer: Buffer) -> bool:
    match stmt:
        case If():
            return buffer in buffers_read(stmt.condition)
        case Store():
            return True
        case _:
            return False


@lru_cache(KEPT)
def _accesses(stmt: Stmt) -> tuple[Load | Store, ...]:
    """The loads and stores of a statement and of all below it, in program order."""
    if isinstance(stmt, Store):
        return (stmt, *loads_of(stmt))
    found: tuple[Load | Store, ...] = loads_of(stmt.condition) if isinstance(stmt, If) else ()
    for child in children(stmt):
        found += _accesses(child)
    return found


def _on_lines(base: Affine, extent: int, dtype: str) -> tuple[Affine, int]:
    """Where a buffer's last dimension begins, and its extent: with room in front, if what is read
    begins before element 0, so that this element begins a line of the cache."""
    room = base.const % (LINE_BYTES // dtype_bytes(dtype))
    if base.terms or base.const >= 0 or not room:
        return base, extent
    return base + Affine(-room, {}), extent + room


def _apart(shape: Sequence[int], dtype: str) -> list[int]:
    """A shape of planes that do not meet in few sets of a first cache: with a row more, and if a
    row is so long that this changes nothing, a line more in each."""
    *outer, rows, row = shape
    line = LINE_BYTES // dtype_bytes(dtype)

    def meet(rows: int, row: int) -> bool:
        plane = rows * row * dtype_bytes(dtype)
        return gcd(plane, SAME_SET_BYTES) * LEAST_SETS > SAME_SET_BYTES

    choices = ((rows, row), (rows + 1, row), (rows + 1, row + line))
    return [*outer, *next((c for c in choices if not meet(*c)), choices[0])]


def _place_in(body: Stmt, buffer: Buffer, sizes: Sequence[int], threads: Threads) -> _Place:
    """The smallest buffer that holds what a statement uses of one."""
    ranges = loop_ranges(body) | dict(threads)
    accesses = [access.indices for access in _accesses(body) if access.buffer is buffer]
    bases: list[Affine] = []
    shape: list[int] = []
    for dim, size in enumerate(sizes):
        different = {key_of(indices[dim]): indices[dim] for indices in accesses}
        spans = [relax(index, ranges) for index in different.values()]
        base, extent = affine(spans[0][0]), spans[0][1]
        offsets = [affine(b) - base for b, _ in spans]
        if any(o.terms for o in offsets):
            base, extent = Affine(0, {}), size
        else:
            low = min(o.const for o in offsets)
            extent = max(o.const + e for o, (_, e) in zip(offsets, spans, strict=True)) - low
            base = base + Affine(low, {})
            whole = not base.terms and base.const >= 0 and buffer.scope == "global"
            if extent > UNKNOWN or (extent >= size and whole):
                base, extent = Affine(0, {}), size
        bases.append(base)
        shape.append(extent)
    if bases and buffer.scope == "local":
        bases[-1], shape[-1] = _on_lines(bases[-1], shape[-1], buffer.dtype)
    ring = buffer.ring
    if ring is not None:
        shape[ring.dim] = ring.rows
    if shape:
        shape[-1] += buffer.padding
        line = LINE_BYTES // dtype_bytes(buffer.dtype) if buffer.by_lines else 1
        shape[-1] = -(-shape[-1] // line) * line
    if buffer.planes_apart:
        shape = _apart(shape, buffer.dtype)
    whole = tuple(shape) == buffer.shape and not buffer.padding and ring is None
    if whole:
        return _Place(buffer, tuple(bases), ring)
    placed = replace(buffer, shape=tuple(shape), padding=0, planes_apart=False, ring=None)
    return _Place(placed, tuple(bases), ring)
