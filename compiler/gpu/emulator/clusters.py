"""Clusters of blocks: addresses of another block's shared memory, and barriers of all threads.

The window of a cluster's shared memory has that of block ``rank`` from ``rank`` times 2²⁴ on, and a
block finds its own there, too: the symbol of an array has its block's number in bits 24 and up,
zeros only in block 0. As on an H200, where ``ptxas`` makes such addresses of ``SR_CgaCtaId``. What
takes fewer bits of an address, as descriptors of ``wgmma``, has to be given them alone; and what
means the own block's memory (``.shared``, ``.shared::cta``) does not take another block's address.
Source: NVIDIA, "PTX ISA", ``mapa``, ``barrier.cluster``; the rest is measured.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from tunefarm.compiler.gpu.emulator.errors import Fault
from tunefarm.compiler.gpu.emulator.kinds import KINDS
from tunefarm.compiler.gpu.emulator.operands import (
    Builder,
    Scope,
    Step,
    located,
    operands,
    reads,
    unknown,
    writes_own,
)
from tunefarm.compiler.gpu.emulator.parse import Instruction
from tunefarm.compiler.gpu.emulator.wave import SPAN, Group, Wave


def block_and_address(wave: Wave, thread: int, address: int) -> tuple[int, int]:
    """The block of the wave that an address of the cluster's window lies in, and the address there;
    Fault if there is none."""
    rank, place = divmod(address, SPAN)
    return block_of_rank(wave, thread, rank), place


def block_of_rank(wave: Wave, thread: int, rank: int) -> int:
    """The block with a number in a thread's cluster; Fault if there is none, or it has ended."""
    own = int(wave.block_of[thread])
    if not rank < wave.cluster:
        raise Fault(0, f"there is no block {rank} in a cluster of {wave.cluster}")
    block = own // wave.cluster * wave.cluster + rank
    first = block * wave.block_threads
    if not wave.live[first : first + wave.block_threads].any():
        raise Fault(0, f"reaches the shared memory of block {rank} of its cluster, which has ended")
    return block


def _mapa(i: Instruction, scope: Scope) -> Step:
    """``mapa.shared::cluster.u32 d, a, rank``: an own address as that of another block."""
    if i.modifiers != ("shared", "cluster", "u32"):
        unknown(i)
    d, a, number = operands(i, 3)
    own, rank = (reads(i, scope, x, KINDS["u32"]) for x in (a, number))
    write = writes_own(i, scope, d, KINDS["u32"])

    def step(wave: Wave, group: Group) -> None:
        ranks = group.own(rank(wave)).astype(np.uint64)
        beyond = np.flatnonzero(ranks >= wave.cluster)
        if len(beyond):
            problem = f"there is no block {ranks[beyond[0]]} in a cluster of {wave.cluster}"
            raise Fault(int(beyond[0]), problem)
        there = group.own(own(wave)) % SPAN + ranks * np.uint64(SPAN)
        write(wave, group, there.astype(np.uint32))

    return located(i, step)


def _barrier(i: Instruction, scope: Scope) -> Step:
    """``barrier.cluster.arrive``: what a thread says before it waits. If it is relaxed, the others
    learn that what it did before is over, and not to read what it wrote."""
    if i.modifiers[:2] != ("cluster", "arrive") or i.modifiers[3:] not in ALIGNED:
        unknown(i)
    if i.modifiers[2:3] not in (("release",), ("relaxed",)):
        unknown(i)
    tells = i.modifiers[2] == "release"

    def step(wave: Wave, group: Group) -> None:
        again = np.flatnonzero(wave.arrived[group.index])
        if len(again):
            raise Fault(int(again[0]), "arrives again, and has not waited")
        wave.arrived[group.index] = True
        wave.order.arrive(group.index, tells)

    return located(i, step)


ALIGNED = ((), ("aligned",))
BUILDERS: Mapping[str, Builder] = {"mapa": _mapa, "barrier": _barrier}
