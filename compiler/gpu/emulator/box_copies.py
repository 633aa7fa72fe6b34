"""Copies of boxes of a tensor (``cp.async.bulk.tensor``), to shared memory and from it.

Those to it tell an mbarrier of their bytes. Those from it are made in groups that their thread
waits for; until then what they read must stay. Source: NVIDIA, "PTX ISA", ``cp.async.bulk.tensor``,
``cp.async.bulk.wait_group``.
"""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.gpu.emulator.clusters import block_and_address, block_of_rank
from tunefarm.compiler.gpu.emulator.errors import Fault
from tunefarm.compiler.gpu.emulator.kinds import KINDS, Values
from tunefarm.compiler.gpu.emulator.marks import Box, Mark, SentBox
from tunefarm.compiler.gpu.emulator.moves import PARAMETER_WINDOW
from tunefarm.compiler.gpu.emulator.operands import (
    Read,
    Scope,
    Step,
    addresses,
    located,
    operands,
    reads,
    unknown,
)
from tunefarm.compiler.gpu.emulator.parse import Address, Immediate, Instruction, TensorAddress
from tunefarm.compiler.gpu.emulator.tensor_maps import CHUNK, Tensor, decode
from tunefarm.compiler.gpu.emulator.wave import Group, Index, Wave


def copies_box(i: Instruction, scope: Scope) -> Step:
    """``cp.async.bulk.tensor.Nd.shared::cluster.global…bytes [d], [map, {c…}], [mbarrier]``, or
    with ``.multicast::cluster`` to all blocks of a cluster that a mask says."""
    rank = int(i.modifiers[3].removesuffix("d"))
    tail = ("shared", "cluster", "global", "mbarrier", "complete_tx", "bytes")
    several = i.modifiers[10:] == ("multicast", "cluster")
    d, source, mark, *masks = operands(i, 4 if several else 3)
    if i.modifiers[4:10] != tail or (i.modifiers[10:] and not several):
        unknown(i)
    map_at, corner = _corner(i, scope, source, rank)
    target, place = (addresses(i, scope, x, "shared") for x in (d, mark))
    chosen = [reads(i, scope, mask, KINDS["u16"]) for mask in masks]

    def blocks(wave: Wave, group: Group, position: int) -> list[int]:
        thread = int(group.index[position])
        if not chosen:
            return [int(wave.block_of[thread])]
        mask = int(group.own(chosen[0](wave))[position])
        ranks = [n for n in range(mask.bit_length()) if mask >> n & 1]
        return [block_of_rank(wave, thread, n) for n in ranks]

    def step(wave: Wave, group: Group) -> None:
        there, marks, maps = (group.own(x(wave)) for x in (target, place, map_at))
        at = [group.own(x(wave)) for x in corner]
        for position, thread in enumerate(group.index):
            address, own = int(marks[position]), [int(c[position]) for c in at]
            tensor = _tensor(wave, int(maps[position]), rank, position)
            try:
                targets = _targets(tensor, int(there[position]))
                values = _source(wave, int(thread), tensor, own)
                for block in blocks(wave, group, position):
                    found = wave.mbarriers.find(wave, 0, int(thread), block, address)
                    if not found.fenced:
                        raise Fault(0, "tells an mbarrier that was made after the last fence")
                    _begin(wave, Box(i, int(thread), block, address, targets, values), found)
            except Fault as fault:
                raise Fault(position, fault.problem) from None

    return located(i, step)


def fetches_map(i: Instruction, scope: Scope) -> Step:
    """``prefetch.tensormap [a]``: nothing but time, of a map that there is."""
    if i.modifiers != ("tensormap",):
        unknown(i)
    (map_at,) = operands(i, 1)
    there = addresses(i, scope, map_at, "generic")

    def step(wave: Wave, group: Group) -> None:
        for position, address in enumerate(group.own(there(wave))):
            data = wave.arguments.get(int(address) - PARAMETER_WINDOW)
            if data is None or decode(data) is None:
                raise Fault(position, f"there is no map of a tensor at {int(address):#x}")

    return located(i, step)


def _tensor(wave: Wave, address: int, rank: int, position: int) -> Tensor:
    data = wave.arguments.get(address - PARAMETER_WINDOW)
    tensor = decode(data) if data is not None else None
    if tensor is None or len(tensor.extents) != rank:
        raise Fault(position, f"there is no map of a tensor of {rank} axes at {address:#x}")
    return tensor


def _source(wave: Wave, thread: int, tensor: Tensor, at: list[int]) -> Values:
    """The chunks of a box, read now."""
    unit = tensor.unit(at)
    source, exists = tensor.sources(at, unit)
    values = np.zeros((len(source), unit), np.uint8)
    count = int(exists.sum())
    if count:
        asked = np.full(count, thread)
        places = source[exists].astype(np.uint64)
        values[exists] = wave.memory.load(asked, places, np.dtype(np.uint8), unit)
    return values.reshape(-1, CHUNK)


def _targets(tensor: Tensor, there: int) -> Values:
    """Where the chunks of a box go; Fault for an address that no box may begin at."""
    align = 8 * tensor.swizzle if tensor.swizzle else 128
    if there % align:
        raise Fault(0, f"copies a box to {there:#x} of shared memory, no multiple of {align}")
    return tensor.targets(there)


def _begin(wave: Wave, box: Box, mark: Mark) -> None:
    """From now on the targets of a box are nobody's until it ends."""
    asking = np.full(len(box.targets), box.thread)
    placed = np.full(len(box.targets), box.block * wave.block_threads)
    wave.shared.begin_box(asking, box.targets, CHUNK, mark.number, placed)
    wave.mbarriers.boxes.append(box)


def begin_stores(
    wave: Wave,
    group: Group,
    i: Instruction,
    places: Values,
    placed: Index,
    marks: Values,
    rows: Values,
) -> None:
    """Let rows of bytes be stored some time later, one for each thread of a group, in the blocks of
    the threads ``placed``, to whose mbarriers at ``marks`` their bytes are told."""
    found: dict[tuple[int, int], list[int]] = {}
    for position, thread in enumerate(map(int, group.index)):
        block, mark = block_and_address(wave, thread, int(marks[position]))
        if block != wave.block_of[placed[position]]:
            raise Fault(position, "stores to a block, and tells another of it")
        found.setdefault((block, mark), []).append(position)
    for (block, mark), mine in found.items():
        told = wave.mbarriers.find(wave, mine[0], int(group.index[mine[0]]), block, mark)
        if not told.fenced:
            raise Fault(mine[0], "tells an mbarrier that was made after the last fence")
        threads = group.index[mine]
        wave.shared.begin_box(threads, places[mine], rows.shape[1], told.number, placed[mine])
        box = Box(i, int(threads[0]), block, mark, places[mine], rows[mine])
        wave.mbarriers.boxes.append(box)


def sends_box(i: Instruction, scope: Scope) -> Step:
    """``cp.async.bulk.tensor.Nd.global.shared::cta.bulk_group [map, {c…}], [a]``: what of the box
    lies in the tensor, whose rows end at whole 16 bytes."""
    rank = int(i.modifiers[3].removesuffix("d"))
    target, source = operands(i, 2)
    if i.modifiers[4:] != ("global", "shared", "cta", "bulk_group"):
        unknown(i)
    map_at, corner = _corner(i, scope, target, rank)
    there = addresses(i, scope, source, "shared")

    def step(wave: Wave, group: Group) -> None:
        places, maps = group.own(there(wave)), group.own(map_at(wave))
        at = [group.own(x(wave)) for x in corner]
        for position, thread in enumerate(map(int, group.index)):
            own = [int(c[position]) for c in at]
            tensor = _tensor(wave, int(maps[position]), rank, position)
            try:
                chunks = _targets(tensor, int(places[position]))
                if tensor.unit(own) != CHUNK:
                    raise Fault(0, "stores a box whose rows end within 16 bytes: not emulated")
                out, exists = tensor.sources(own, CHUNK)
                if exists.any():
                    values, read = wave.shared.send(thread, chunks[exists], CHUNK)
                    threads = np.full(len(values), thread)
                    wave.memory.store(threads, out[exists].astype(np.uint64), values)
                    sent = SentBox(i, thread, int(wave.sent.committed[thread]), read)
                    wave.sent.boxes.append(sent)
            except Fault as fault:
                raise Fault(position, fault.problem) from None

    return located(i, step)


def waits_for_sent(i: Instruction) -> Step:
    """``cp.async.bulk.commit_group`` and ``cp.async.bulk.wait_group{.read} n``."""
    if i.modifiers == ("async", "bulk", "commit_group"):

        def commit(wave: Wave, group: Group) -> None:
            wave.sent.committed[group.index] += 1

        return commit
    (allowed,) = operands(i, 1)
    if i.modifiers[2:] not in (("wait_group",), ("wait_group", "read")):
        unknown(i)
    if not isinstance(allowed, Immediate):
        unknown(i, "its number of groups")
    count = allowed.value
    return lambda wave, group: wave.sent.wait(wave.order, group.mask(wave.threads), count)


def _corner(i: Instruction, scope: Scope, operand: object, rank: int) -> tuple[Read, list[Read]]:
    """Where the map of ``[map, {c…}]`` lies, and the coordinates."""
    if not isinstance(operand, TensorAddress):
        unknown(i)
    if len(operand.coordinates) != rank:
        unknown(i, f"it has {len(operand.coordinates)} coordinates")
    place = addresses(i, scope, Address(operand.base, 0), "generic")
    return place, [reads(i, scope, c, KINDS["s32"]) for c in operand.coordinates]
