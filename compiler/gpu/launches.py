"""A lowered program as the kernels that a GPU runs one after the other."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from itertools import chain
from math import prod
from typing import Any

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.archs import (
    MAX_GRID,
    MAX_THREADS,
    STATIC_SHARED_BYTES,
    WARP,
    GpuArch,
)
from tunefarm.compiler.gpu.boxes import ring_of
from tunefarm.compiler.gpu.intrinsics import CLUSTER_REDUCTIONS, JOINED
from tunefarm.compiler.gpu.tensor_maps import TensorMap, tensor_map_of
from tunefarm.compiler.target import dtype_bytes
from tunefarm.compiler.tir.facts import exchanges, uses
from tunefarm.compiler.tir.ir import (
    CLUSTER_AXIS,
    GRID_AXES,
    THREAD_AXES,
    Allocate,
    Buffer,
    Const,
    For,
    Intrinsic,
    PrimFunc,
    Seq,
    Stmt,
    Store,
)
from tunefarm.compiler.tir.visit import children, seq, walk_stmt

WORKSPACE_ALIGN = 256
LINE = 128  # bytes that shared arrays are rounded up to


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel of a program and how it is launched: numbers along x, y, z.

    Its arguments are pointers to the parameters of the program, one to the workspace, and then
    ``maps``, which are made of the pointers. ``dynamic_bytes`` of shared memory have to be asked
    for; beyond 48 KiB the function's attribute must allow them.
    """

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_bytes: int = 0
    maps: tuple[TensorMap, ...] = ()


def launch_to_json(launch: Launch) -> list[object]:
    """A launch as JSON's values."""
    maps = [list(astuple(each)) for each in launch.maps]
    return [launch.name, launch.grid, launch.block, launch.dynamic_bytes, maps]


def launch_from_json(fields: list[Any]) -> Launch:
    """What ``launch_to_json`` wrote; exported modules of format 1 have no maps."""
    name, grid, block, dynamic_bytes, *maps = fields
    made = tuple(tensor_map_of(*each) for each in chain.from_iterable(maps))
    return Launch(name, tuple(grid), tuple(block), dynamic_bytes, made)


@dataclass(frozen=True, slots=True)
class Part:
    """The statement that one kernel runs, and the numbers of its blocks and threads by axis."""

    body: Stmt
    extents: dict[str, int]

    @property
    def grid(self) -> tuple[int, int, int]:
        x, y, z = (self.extents.get(axis, 1) for axis in GRID_AXES)
        return x * self.cluster, y, z

    @property
    def cluster(self) -> int:
        """Blocks side by side along x that run at the same time and reach each other's memory."""
        return self.extents.get(CLUSTER_AXIS, 1)

    @property
    def block(self) -> tuple[int, int, int]:
        x, y, z = (self.extents.get(axis, 1) for axis in THREAD_AXES)
        return x, y, z

    @property
    def shared(self) -> list[Buffer]:
        """The arrays that the threads of a block share."""
        found = (s.buffer for s in walk_stmt(self.body) if isinstance(s, Allocate))
        return [b for b in found if b.scope == "shared"]

    @property
    def shared_bytes(self) -> int:
        ring = ring_of(self.body)
        marks_bytes = ring.marks_bytes if ring else 0
        return self.arrays_bytes + marks_bytes + self.combined_bytes + self.join_bytes

    @property
    def arrays_bytes(self) -> int:
        """Bytes of these arrays, and of what is told in their place once they have served."""
        return max(sum(map(shared_size, self.shared)), self.joined_bytes)

    @property
    def computing(self) -> int:
        """Threads of a block, but for those that only fill tiles."""
        ring = ring_of(self.body)
        return prod(self.block[:2]) * (self.block[2] - (ring is not None and ring.producer > 0))

    @property
    def joined(self) -> Store | None:
        """What joins the sums of the blocks of a cluster."""
        for store in walk_stmt(self.body):
            if not isinstance(store, Store) or not isinstance(store.value, Intrinsic):
                continue
            if store.value.name == JOINED:
                return store
        return None

    @property
    def joined_bytes(self) -> int:
        """Bytes of the sums that a block gets of the others: a share of 32 bits a thread's each."""
        store = self.joined
        others = self.cluster - 1
        return 4 * self.computing * others * prod(store.buffer.shape) if store else 0

    @property
    def join_bytes(self) -> int:
        """Bytes of the mbarrier that is told of them, a line."""
        return LINE if self.joined else 0

    @property
    def sharing(self) -> int:
        """Blocks that share boxes out: those of a cluster, unless they have other terms each."""
        return self.cluster if self.joined is None else 1

    @property
    def combined(self) -> int:
        """How often the blocks of a cluster combine values."""
        values = (s.value for s in walk_stmt(self.body) if isinstance(s, Store))
        return sum(bool(exchanges(value) & CLUSTER_REDUCTIONS.keys()) for value in values)

    @property
    def slots_bytes(self) -> int:
        """What the warps of all blocks tell each block, 32 bits each, in whole lines of 128."""
        return -(-self.cluster * prod(self.block) // WARP * 4 // LINE) * LINE

    @property
    def combined_bytes(self) -> int:
        """Bytes of shared memory for that, each time apart."""
        return self.combined * self.slots_bytes if self.cluster > 1 else 0

    @property
    def dynamic_bytes(self) -> int:
        """Bytes of shared memory that a launch asks for: all of them, beyond 48 KiB."""
        return self.shared_bytes if self.shared_bytes > STATIC_SHARED_BYTES else 0


def shared_size(buffer: Buffer) -> int:
    """Bytes that a shared array takes, whole lines of 128."""
    return -(-prod(buffer.shape) * dtype_bytes(buffer.dtype) // LINE) * LINE


def parts_of(program: PrimFunc) -> tuple[list[Part], dict[Buffer, int], int]:
    """The kernels of a lowered program, in order; where each intermediate array of it lies in the
    workspace, and the bytes of that.

    ScheduleError if threads of a kernel have no number in what they store.
    """
    places: dict[Buffer, int] = {}
    end = 0
    parts: list[Part] = []
    for stmt in _statements(program.body, places):
        parts.append(Part(stmt, _extents(stmt)))
        _check_covered(stmt, parts[-1].extents)
    for buffer in places:
        places[buffer] = end
        size = prod(buffer.shape) * dtype_bytes(buffer.dtype)
        end += -(-size // WORKSPACE_ALIGN) * WORKSPACE_ALIGN
    return parts, places, end


def _statements(stmt: Stmt, places: dict[Buffer, int]) -> list[Stmt]:
    """What each kernel runs: statements one after the other, those that share a thread's own
    arrays together."""
    match stmt:
        case Seq(stmts):
            return [part for each in stmts for part in _statements(each, places)]
        case Allocate() if stmt.buffer.scope == "global":
            places[stmt.buffer] = 0
            return _statements(stmt.body, places)
        case Allocate(buffer, Seq() | Allocate() as body):
            parts = _statements(body, places)
            using = [i for i, part in enumerate(parts) if uses(part, buffer)]
            if not using:
                return parts
            first, end = using[0], using[-1] + 1
            own = replace(stmt, body=seq(*parts[first:end]))
            return [*parts[:first], own, *parts[end:]]
        case _:
            return [stmt]


def _extents(stmt: Stmt) -> dict[str, int]:
    found: dict[str, int] = {}
    for loop in walk_stmt(stmt):
        if not isinstance(loop, For) or not loop.axis:
            continue
        assert isinstance(loop.extent, Const)
        extent = int(loop.extent.value)
        if found.setdefault(loop.axis, extent) != extent:
            raise ScheduleError(
                f"{loop.axis} has {found[loop.axis]} and {extent} iterations in one kernel, in "
                f"loop {loop.var.name}; split to the same"
            )
    return found


def _check_covered(
    stmt: Stmt, extents: dict[str, int], around: frozenset[str] = frozenset()
) -> None:
    """ScheduleError if something is stored outside of a loop over blocks or threads that there
    are: each of them would store it."""
    if isinstance(stmt, Store):
        missing = [a for a, n in extents.items() if n > 1 and a not in around]
        if missing:
            raise ScheduleError(
                f"{stmt.buffer.name} is stored outside of the loop over {missing[0]} of its kernel"
            )
    if isinstance(stmt, For) and stmt.axis:
        around = around | {stmt.axis}
    for child in children(stmt):
        _check_covered(child, extents, around)


def check_limits(part: Part, arch: GpuArch) -> None:
    """ScheduleError if a kernel is larger than an architecture allows."""
    if prod(part.block) > MAX_THREADS:
        raise ScheduleError(f"a block has {prod(part.block)} threads; at most {MAX_THREADS}")
    if part.cluster > arch.most_cluster:
        raise ScheduleError(
            f"a cluster has {part.cluster} blocks; {arch.name} allows {arch.most_cluster}"
        )
    for axis, size, most in zip("xyz", part.grid, MAX_GRID, strict=True):
        if size > most:
            raise ScheduleError(f"the grid has {size} blocks along {axis}; at most {most}")
    if part.shared_bytes > arch.shared_bytes:
        raise ScheduleError(
            f"a block shares {part.shared_bytes} bytes; {arch.name} has {arch.shared_bytes}"
        )
