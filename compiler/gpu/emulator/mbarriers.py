"""Instructions on ``mbarrier`` objects, and ``setmaxnreg``.

Source of the meanings: NVIDIA, "PTX ISA", mbarrier, ``setmaxnreg``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from tunefarm.compiler.gpu.emulator.clusters import block_and_address
from tunefarm.compiler.gpu.emulator.errors import Fault
from tunefarm.compiler.gpu.emulator.kinds import KINDS, Values
from tunefarm.compiler.gpu.emulator.marks import Mark
from tunefarm.compiler.gpu.emulator.operands import (
    CLUSTER,
    Builder,
    Read,
    Scope,
    Step,
    addresses,
    located,
    operands,
    reads,
    unknown,
    writes,
)
from tunefarm.compiler.gpu.emulator.order import MOST_MARKS
from tunefarm.compiler.gpu.emulator.parse import Immediate, Instruction
from tunefarm.compiler.gpu.emulator.wave import Group, Index, Wave

_ALIGN = 8
_MOST_ARRIVALS = (1 << 20) - 1
_SHARED = ("shared", "cta")


def _mbarrier(i: Instruction, scope: Scope) -> Step:
    """``mbarrier.init`` and ``mbarrier.arrive``, on shared memory of the own block or another of
    its cluster."""
    match i.modifiers:
        case ("init", "shared", "cta", "b64"):
            place, count = operands(i, 2)
            return _makes(i, addresses(i, scope, place, "shared"), _number(i, scope, count))
        case ("arrive", "shared", "cta", "b64"):
            _, place = operands(i, 2)
            return _arrives(i, addresses(i, scope, place, "shared"), None)
        case ("arrive", "shared", "cluster", "b64"):
            _, place = operands(i, 2)
            return _arrives(i, addresses(i, scope, place, CLUSTER), None, of_cluster=True)
        case ("arrive", "expect_tx", "shared", "cta", "b64"):
            _, place, count = operands(i, 3)
            return _arrives(i, addresses(i, scope, place, "shared"), _number(i, scope, count))
    unknown(i)


def _number(i: Instruction, scope: Scope, operand: object) -> Read:
    return reads(i, scope, operand, KINDS["u32"])  # type: ignore[arg-type]


def _makes(i: Instruction, place: Read, count: Read) -> Step:
    def step(wave: Wave, group: Group) -> None:
        at, counts = group.own(place(wave)), group.own(count(wave))
        for position, thread in enumerate(group.index):
            block, address = int(wave.block_of[thread]), int(at[position])
            if address % _ALIGN or address + _ALIGN > wave.shared_bytes:
                raise Fault(position, f"there is no room for an mbarrier at {address:#x}")
            wanted = int(counts[position])
            if not 0 < wanted <= _MOST_ARRIVALS or (block, address) in wave.mbarriers.marks:
                raise Fault(position, f"makes an mbarrier for {wanted} arrivals, or again")
            number = sum(other == block for other, _ in wave.mbarriers.marks)
            if number == MOST_MARKS:
                raise Fault(position, f"makes more than {MOST_MARKS} mbarriers")
            told, maker = wave.order.told_by(int(thread)), wave.order.number_of(int(thread))
            number += block % wave.cluster * MOST_MARKS
            made = maker, int(told[maker])
            wave.mbarriers.marks[block, address] = Mark(wanted, number, wanted, told, told, made)

    return located(i, step)


def _arrives(i: Instruction, place: Read, count: Read | None, of_cluster: bool = False) -> Step:
    def step(wave: Wave, group: Group) -> None:
        at = group.own(place(wave))
        expected = None if count is None else group.own(count(wave))
        for position, thread in enumerate(group.index):
            block, address = int(wave.block_of[thread]), int(at[position])
            if of_cluster:
                try:
                    block, address = block_and_address(wave, int(thread), address)
                except Fault as fault:
                    raise Fault(position, fault.problem) from None
            mark = wave.mbarriers.find(wave, position, int(thread), block, address)
            if not mark.missing:
                raise Fault(position, f"is one more than the {mark.count} arrivals of a phase")
            told = wave.order.told_by(int(thread))
            if block != wave.block_of[thread]:
                own = wave.order.number_of(int(thread))
                wave.mbarriers.from_others.setdefault(block, []).append((own, int(told[own])))
            mark.told = np.maximum(mark.told, told)
            mark.missing -= 1
            mark.bytes += 0 if expected is None else int(expected[position])
            mark.close()

    return located(i, step)


@dataclass(frozen=True, slots=True)
class Waiting:
    """What ``mbarrier.try_wait.parity`` waits for: which threads can go on, what they find then,
    and why others cannot."""

    ready: Callable[[Wave, Group], Values]
    step: Step
    problem: Callable[[Wave, Group], str]


def waiting_of(i: Instruction, scope: Scope) -> Waiting:
    """The instruction, which here waits as long as it takes and is true then."""
    scopes = (), ("acquire", "cluster")
    if i.guard is not None or i.modifiers[2:] not in [(*s, *_SHARED, "b64") for s in scopes]:
        unknown(i)
    if i.modifiers[:2] != ("try_wait", "parity"):
        unknown(i)
    d, at, number = operands(i, 3)
    place, parity = addresses(i, scope, at, "shared"), _number(i, scope, number)
    write = writes(i, scope, d, KINDS["pred"])
    always = np.ones(1, np.bool_)

    def marks(wave: Wave, group: Group) -> tuple[list[Mark], Index]:
        return wave.mbarriers.find_all(wave, group.index, group.own(place(wave)))

    def ready(wave: Wave, group: Group) -> Values:
        try:
            found, which = marks(wave, group)
        except Fault as fault:
            raise wave.fault(i, int(group.index[fault.position]), fault.problem) from None
        ended = np.array([mark.phases & 1 for mark in found])[which]
        over: Values = ended != group.own(parity(wave))
        return over

    def step(wave: Wave, group: Group) -> None:
        found, which = marks(wave, group)
        for number, mark in enumerate(found):
            wave.order.tell(group.index[which == number], mark.heard)
        write(wave, group, always)

    def problem(wave: Wave, group: Group) -> str:
        found, which = marks(wave, group)
        mark = found[which[0]]
        came = f"{mark.bytes} bytes have to come that nothing brings"
        if mark.bytes <= 0:
            came = f"{-mark.bytes} bytes came that nobody expects" if mark.bytes else "no bytes"
        return (
            f"waits for an end of phase {mark.phases} of an mbarrier that never comes: "
            f"{mark.missing} of {mark.count} arrivals are missing, and {came}"
        )

    return Waiting(ready, step, problem)


def fence_all(wave: Wave) -> None:
    """All mbarriers that were made can be told of copies."""
    for mark in wave.mbarriers.marks.values():
        mark.fenced = True


def _setmaxnreg(i: Instruction, scope: Scope) -> Step:
    """``setmaxnreg.inc|dec.sync.aligned.u32 n``: what a thread may use, which changes no value."""
    (count,) = operands(i, 1)
    right = i.modifiers[0] in ("inc", "dec") and i.modifiers[1:] == ("sync", "aligned", "u32")
    if not right or not isinstance(count, Immediate):
        unknown(i)
    if count.value % 8 or not 24 <= count.value <= 256:
        unknown(i, "the number of registers")
    return lambda wave, group: None


BUILDERS: Mapping[str, Builder] = {"mbarrier": _mbarrier, "setmaxnreg": _setmaxnreg}
