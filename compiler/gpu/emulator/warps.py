"""Instructions of the threads of a warp together: shuffles and votes.

Every thread of the warp comes to them at once. Source of the meanings: NVIDIA, "PTX ISA", parallel
synchronization and data movement instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from tunefarm.compiler.gpu.archs import WARP
from tunefarm.compiler.gpu.emulator.errors import Fault
from tunefarm.compiler.gpu.emulator.kinds import KINDS, Values
from tunefarm.compiler.gpu.emulator.operands import (
    Builder,
    Scope,
    Step,
    located,
    operands,
    parts_of,
    reads,
    unknown,
    writes_own,
)
from tunefarm.compiler.gpu.emulator.parse import Immediate, Instruction, Operand
from tunefarm.compiler.gpu.emulator.wave import Group, Wave

_ALL = 0xFFFFFFFF


def _shfl(i: Instruction, scope: Scope) -> Step:
    """``shfl.sync.mode.b32 d{|p}, a, b, c, members``: the value of another thread of the warp."""
    if len(i.modifiers) != 3 or i.modifiers[0] != "sync" or i.modifiers[2] != "b32":
        unknown(i)
    place = _LANES.get(i.modifiers[1])
    if place is None:
        unknown(i)
    d, a, b, c, members = operands(i, 5)
    _all_members(i, members)
    kind = KINDS["b32"]
    read = [reads(i, scope, operand, kind) for operand in (a, b, c)]
    targets = parts_of(i, d)
    write = writes_own(i, scope, targets[0], kind)
    also = writes_own(i, scope, targets[1], KINDS["pred"]) if len(targets) > 1 else None

    def step(wave: Wave, group: Group) -> None:
        values, by, limits = (group.own(each(wave)) for each in read)
        lane = wave.lane_of[group.index]
        segment = (limits >> np.uint32(8)).astype(np.intp) & WARP - 1
        other, inside = place(
            lane, by.astype(np.intp) & WARP - 1, limits.astype(np.intp) & WARP - 1, segment
        )
        other = np.where(inside, other, lane)
        write(wave, group, _from_lanes(wave, group, values, other))
        if also is not None:
            also(wave, group, inside)

    return located(i, step)


def _all_members(i: Instruction, members: Operand) -> None:
    if not isinstance(members, Immediate) or members.value & _ALL != _ALL:
        unknown(i, "only whole warps are emulated, whose members are -1")


def _from_lanes(wave: Wave, group: Group, values: Values, lanes: Values) -> Values:
    """The value that each thread's warp has in a lane; Fault where there is no such thread."""
    room = len(wave.warp_sizes) * WARP
    warps = wave.warp_of[group.index] * WARP
    held = np.zeros(room, values.dtype)
    there = np.zeros(room, np.bool_)
    own = warps + wave.lane_of[group.index]
    held[own], there[own] = values, True
    missing = ~there[warps + lanes]
    if missing.any():
        position = int(np.flatnonzero(missing)[0])
        raise Fault(position, f"its warp has no thread in lane {int(lanes[position])}")
    return held[warps + lanes]


Lanes = Callable[[Values, Values, Values, Values], tuple[Values, Values]]


def _highest(lane: Values, limit: Values, segment: Values) -> Values:
    return (lane & segment) | (limit & ~segment)


def _up(lane: Values, by: Values, limit: Values, segment: Values) -> tuple[Values, Values]:
    return lane - by, lane - by >= _highest(lane, limit, segment)


def _down(lane: Values, by: Values, limit: Values, segment: Values) -> tuple[Values, Values]:
    return lane + by, lane + by <= _highest(lane, limit, segment)


def _bfly(lane: Values, by: Values, limit: Values, segment: Values) -> tuple[Values, Values]:
    return lane ^ by, lane ^ by <= _highest(lane, limit, segment)


def _idx(lane: Values, by: Values, limit: Values, segment: Values) -> tuple[Values, Values]:
    other = (lane & segment) | (by & ~segment)
    return other, other <= _highest(lane, limit, segment)


_LANES: Mapping[str, Lanes] = {"up": _up, "down": _down, "bfly": _bfly, "idx": _idx}


def _vote(i: Instruction, scope: Scope) -> Step:
    """``vote.sync.all|any.pred p, a, members``, ``vote.sync.ballot.b32 d, a, members``."""
    if i.modifiers not in (("sync", "all", "pred"), ("sync", "any", "pred"),
                           ("sync", "ballot", "b32")):  # fmt: skip
        unknown(i)
    d, a, members = operands(i, 3)
    _all_members(i, members)
    read = reads(i, scope, a, KINDS["pred"])
    mode = i.modifiers[1]
    write = writes_own(i, scope, d, KINDS[i.modifiers[2]])

    def step(wave: Wave, group: Group) -> None:
        votes = group.own(read(wave))
        warps = wave.warp_of[group.index]
        bits = np.zeros(len(wave.warp_sizes), np.uint32)
        one = np.uint32(1) << wave.lane_of[group.index].astype(np.uint32)
        np.bitwise_or.at(bits, warps, np.where(votes, one, np.uint32(0)))
        if mode == "ballot":
            write(wave, group, bits[warps])
            return
        counts = np.bincount(warps, votes, len(bits))[warps]
        write(wave, group, counts == wave.warp_sizes[warps] if mode == "all" else counts > 0)

    return located(i, step)


BUILDERS: Mapping[str, Builder] = {"shfl": _shfl, "vote": _vote}
