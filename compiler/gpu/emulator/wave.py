"""What the resident blocks of a launch hold: registers, shared and local memory, threads.

A register is one NumPy array over all threads of all resident blocks, or of one element where the
value is the same in each. Arrays are never changed once a register holds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.gpu.archs import WARP
from tunefarm.compiler.gpu.emulator.copies import Copies
from tunefarm.compiler.gpu.emulator.errors import KernelFault
from tunefarm.compiler.gpu.emulator.globals import GlobalMemory
from tunefarm.compiler.gpu.emulator.kinds import UNSIGNED, Values
from tunefarm.compiler.gpu.emulator.marks import Mbarriers, Sent
from tunefarm.compiler.gpu.emulator.order import BlockOrder
from tunefarm.compiler.gpu.emulator.parse import Instruction, Register
from tunefarm.compiler.gpu.emulator.races import BlockRaces
from tunefarm.compiler.gpu.emulator.scratch import LocalMemory, SharedMemory

if TYPE_CHECKING:
    from tunefarm.compiler.gpu.emulator.traffic import Traffic
    from tunefarm.compiler.gpu.emulator.warpgroups import Product

Index = NDArray[np.intp]
WARPGROUP = 128  # threads
SPAN = 1 << 24  # between the shared memory of a cluster's blocks: more than one of them has
_GARBAGE = 0xA5A5A5A5A5A5A5A5  # what registers hold that nobody wrote


class Group:
    """Threads that stand at the same instruction, by their numbers, which rise.

    ``whole`` are all threads that have not ended, ``every`` all there are.
    """

    __slots__ = ("_mask", "_warps", "count", "every", "index", "whole")

    def __init__(self, index: Index, whole: bool, every: bool) -> None:
        self.index, self.whole, self.every = index, whole, every
        self.count = len(index)
        self._mask: Values | None = None
        self._warps: bool | None = None

    def mask(self, threads: int) -> Values:
        """True for the group's threads, over all threads."""
        if self._mask is None:
            self._mask = np.zeros(threads, np.bool_)
            self._mask[self.index] = True
        return self._mask

    def own(self, values: Values) -> Values:
        """The values of the group's threads, of those of all threads."""
        if len(values) == 1:
            return np.broadcast_to(values, self.count)
        return values if self.every else values[self.index]

    def has_whole_warps(self, wave: Wave) -> bool:
        """True if no thread of a warp is missing from the group, ended or not."""
        if self._warps is None:
            self._warps = bool(wave.complete(self.index, False).all())
        return self._warps


@dataclass(slots=True)
class Wave:
    """Blocks that run at the same time: numbers ``first`` to ``first + blocks`` of the grid."""

    kernel: str
    memory: GlobalMemory
    parameters: Mapping[str, int]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    first: int
    blocks: int
    shared_bytes: int
    shared_granule: int  # the fewest bytes that an instruction reads or writes of it
    local_bytes: int
    registers: list[Values]
    arguments: Mapping[int, bytes]  # arrays of bytes, by their places
    has_mbarriers: bool
    cluster: int = 1  # blocks that reach each other's shared memory
    traffic: Traffic | None = None  # who counts accesses, if anybody does
    shared: SharedMemory = field(init=False)
    local: LocalMemory = field(init=False)
    copies: Copies = field(init=False)
    products: list[Product] = field(default_factory=list)  # of warpgroups, under way
    mbarriers: Mbarriers = field(init=False)
    sent: Sent = field(init=False)
    committed: Index = field(init=False)  # groups of these, of a thread
    block_of: Index = field(init=False)  # of a thread, from 0
    shared_at: Values = field(init=False)  # where a thread's block has its shared memory
    lane_of: Index = field(init=False)
    warp_of: Index = field(init=False)
    warp_sizes: Index = field(init=False)
    arrived: Values = field(init=False)  # at a barrier of the cluster, of a thread
    live: Values = field(init=False)
    living: int = field(init=False)

    def __post_init__(self) -> None:
        each = int(np.prod(self.block))
        own = np.arange(each)
        warps = -(-each // WARP)
        sizes = np.full(warps, WARP)
        sizes[-1] -= warps * WARP - each
        self.block_of = np.repeat(np.arange(self.blocks), each)
        ranks = self.block_of % self.cluster if self.cluster > 1 else np.zeros(1)
        self.shared_at = ranks.astype(np.uint64) * np.uint64(SPAN)
        self.lane_of = np.tile(own % WARP, self.blocks)
        self.warp_of = np.tile(own // WARP, self.blocks) + self.block_of * warps
        self.warp_sizes = np.tile(sizes, self.blocks)
        self.live = np.ones(self.threads, np.bool_)
        self.arrived = np.zeros(self.threads, np.bool_)
        self.living = self.threads
        self.copies = Copies(self.threads)
        self.committed = np.zeros(self.threads, np.intp)
        self.local = LocalMemory(np.arange(self.threads), self.local_bytes)
        alone = self.has_mbarriers
        ordered = partial(BlockOrder, cluster=self.cluster, together=not alone)
        kind = ordered if self.has_order else BlockRaces
        self.shared = SharedMemory(
            self.block_of, each, self.shared_bytes, self.shared_granule, kind
        )
        self.mbarriers = Mbarriers()
        self.sent = Sent(self.threads)

    @property
    def has_order(self) -> bool:
        """True if threads learn of each other by more than barriers of their block."""
        return self.has_mbarriers or self.cluster > 1

    @property
    def order(self) -> BlockOrder:
        """Who knows of what in shared memory, where threads learn of each other so."""
        assert isinstance(self.shared.races, BlockOrder)
        return self.shared.races

    @property
    def block_threads(self) -> int:
        x, y, z = self.block
        return x * y * z

    @property
    def threads(self) -> int:
        return self.blocks * self.block_threads

    def group(self, index: Index) -> Group:
        count = len(index)
        return Group(index, count == self.living, count == self.threads)

    def team_of(self, of_warpgroup: bool) -> Index:
        """The warp of each thread, or the warpgroup, where blocks are made of such."""
        if of_warpgroup and self.block_threads % WARPGROUP == 0:
            return np.arange(self.threads) // WARPGROUP
        return self.warp_of

    def complete(self, index: Index, of_warpgroup: bool) -> Values:
        """For each of some threads whether all of its warp, or warpgroup, are among them."""
        team = self.team_of(of_warpgroup)
        counts = np.bincount(team[index], minlength=len(self.warp_sizes))
        sizes = self.warp_sizes if team is self.warp_of else WARPGROUP
        found: Values = (counts == sizes)[team[index]]
        return found

    def end(self, index: Index) -> None:
        """The threads run no further."""
        self.live[index] = False
        self.living -= len(index)

    def write(self, group: Group, number: int, values: Values) -> None:
        """Set a register of the group's threads, by values of all threads."""
        if not group.whole:
            old = self.registers[number]
            values = np.where(group.mask(self.threads), values, old)
        self.registers[number] = values

    def write_own(self, group: Group, number: int, values: Values) -> None:
        """Set a register by values of the group's threads alone."""
        if not group.every:
            old = self.registers[number]
            fresh = np.empty(self.threads, old.dtype)
            fresh[:] = old
            fresh[group.index] = values
            values = fresh
        self.registers[number] = values

    def special(self, name: str) -> Values:
        """What the GPU says of a thread or block: ``%tid.x``."""
        base, _, axis = name.removeprefix("%").partition(".")
        number = "xyz".find(axis or "x")
        match base:
            case "ntid":
                return _uniform(self.block[number])
            case "nctaid":
                return _uniform(self.grid[number])
            case "laneid":
                return self.lane_of.astype(np.uint32)
            case "warpid":
                return (self.warp_of % -(-self.block_threads // WARP)).astype(np.uint32)
            case "tid":
                own = np.arange(self.block_threads)
                each = _along(own, self.block, number)
                return np.tile(each, self.blocks) if self.block[number] > 1 else _uniform(0)
            case _:
                blocks = np.arange(self.first, self.first + self.blocks)
                each = _along(blocks, self.grid, number)
                return each if self.blocks == 1 else np.repeat(each, self.block_threads)

    def fault(self, instruction: Instruction, thread: int, problem: str) -> KernelFault:
        """An error that names the kernel, block, thread and instruction."""
        return KernelFault(
            f"kernel {self.kernel}, {self.place(thread)}, line {instruction.line} of the PTX "
            f"({instruction.text}): {problem}"
        )

    def place(self, thread: int) -> str:
        """The numbers of a thread and of its block."""
        block = self.first + int(self.block_of[thread])
        own = thread % self.block_threads
        there = tuple(int(_along(np.array([block]), self.grid, n)[0]) for n in range(3))
        here = tuple(int(_along(np.array([own]), self.block, n)[0]) for n in range(3))
        return f"block {there}, thread {here}"


def unwritten(registers: Sequence[Register]) -> list[Values]:
    """The contents of registers that nobody wrote."""
    return [np.full(1, _GARBAGE & (1 << r.bits) - 1, UNSIGNED[r.bits]) for r in registers]


def _uniform(value: int) -> Values:
    return np.full(1, value, np.uint32)


def _along(numbers: NDArray[Any], extents: tuple[int, int, int], axis: int) -> Values:
    """The place along x, y or z of numbers that count along x first."""
    before = int(np.prod(extents[:axis]))
    return (numbers // before % extents[axis]).astype(np.uint32)
