"""Operands as functions that read and write registers, and what instructions may be made of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from tunefarm.compiler.gpu.emulator.errors import EmulatorError, Fault
from tunefarm.compiler.gpu.emulator.kinds import KINDS, UNSIGNED, Kind, Values
from tunefarm.compiler.gpu.emulator.parse import (
    Address,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Register,
    Special,
    Symbol,
    Vector,
)
from tunefarm.compiler.gpu.emulator.wave import Group, Wave

Step = Callable[[Wave, Group], None]
Read = Callable[[Wave], Values]  # values of all threads, or one that they share
Write = Callable[[Wave, Group, Values], None]
CLUSTER = "shared::cluster"  # the state space


@dataclass(frozen=True, slots=True)
class Place:
    """Where an array of a kernel begins: its state space, and its address there."""

    space: str
    address: int


@dataclass(frozen=True, slots=True)
class Scope:
    """What the names of a kernel stand for: registers' numbers, arrays' places, parameters'
    bytes."""

    registers: Mapping[str, int]
    places: Mapping[str, Place]
    parameters: Mapping[str, int]


Builder = Callable[[Instruction, Scope], Step]


def unknown(i: Instruction, why: str = "") -> NoReturn:
    reason = f": {why}" if why else ""
    raise EmulatorError(
        f"line {i.line} of the PTX: the emulator does not know the instruction {i.text!r}{reason}"
    )


def only(i: Instruction, modifiers: Sequence[str], allowed: Collection[str]) -> None:
    """EmulatorError if an instruction has modifiers beside those allowed."""
    for modifier in modifiers:
        if modifier not in allowed:
            unknown(i, f"modifier .{modifier}")


def kind_of(i: Instruction, name: str, allowed: Collection[Kind] = ()) -> Kind:
    """The type of that name; EmulatorError if it is none, or none that is allowed."""
    kind = KINDS.get(name)
    if kind is None or (allowed and kind not in allowed):
        unknown(i, f"type .{name}")
    return kind


def operands(i: Instruction, *counts: int) -> tuple[Operand, ...]:
    """The operands; EmulatorError if there are not as many."""
    if len(i.operands) not in counts:
        unknown(i, f"it has {len(i.operands)} operands")
    return i.operands


def parts_of(i: Instruction, operand: Operand) -> tuple[Operand | None, ...]:
    """The registers of ``{a, b}``, or the one."""
    return operand.parts if isinstance(operand, Vector) else (operand,)


def reads(i: Instruction, scope: Scope, operand: Operand | None, kind: Kind) -> Read:
    """A function that gives an operand's values. A wider register gives its lower bits."""
    match operand:
        case Register():
            return _register_read(i, scope, operand, kind)
        case Negated(register) if kind.bits == 1:
            number = scope.registers[register.name]
            return lambda wave: ~wave.registers[number]
        case Immediate(value):
            bits = np.full(1, value & (1 << kind.bits) - 1, kind.unsigned)
            constant = kind.decode(bits)
            return lambda wave: constant
        case Symbol(name) if name in scope.places:
            return _place_read(scope.places[name], kind)
        case Special(name):
            return lambda wave: kind.decode(wave.special(name).astype(kind.unsigned))
        case _:
            unknown(i, f"operand {operand}")


def _place_read(place: Place, kind: Kind) -> Read:
    at = np.full(1, place.address, np.uint64)
    if place.space == "shared":
        return lambda wave: kind.decode((wave.shared_at + at).astype(kind.unsigned))
    there = kind.decode(at.astype(kind.unsigned))
    return lambda wave: there


def _register_read(i: Instruction, scope: Scope, register: Register, kind: Kind) -> Read:
    number, decode = scope.registers[register.name], kind.decode
    if register.bits == kind.bits:
        if kind.decode is KINDS["b32"].decode:  # bits are the values
            return lambda wave: wave.registers[number]
        return lambda wave: decode(wave.registers[number])
    if register.bits < kind.bits or kind.bits == 1:
        unknown(i, f"{register.name} has {register.bits} bits, not {kind.bits}")
    return lambda wave: decode(wave.registers[number].astype(kind.unsigned))


def writes(i: Instruction, scope: Scope, operand: Operand | None, kind: Kind) -> Write:
    """A function that sets a register to values of all threads, for the group's alone. A wider
    register gets the sign or zeros above them."""
    number, encode = _written(i, scope, operand, kind)

    def write(wave: Wave, group: Group, values: Values) -> None:
        wave.write(group, number, encode(values))

    return write


def writes_own(i: Instruction, scope: Scope, operand: Operand | None, kind: Kind) -> Write:
    """The same for values of the group's threads."""
    number, encode = _written(i, scope, operand, kind)

    def write(wave: Wave, group: Group, values: Values) -> None:
        wave.write_own(group, number, encode(values))

    return write


def _written(
    i: Instruction, scope: Scope, operand: Operand | None, kind: Kind
) -> tuple[int, Callable[[Values], Values]]:
    if not isinstance(operand, Register):
        unknown(i, f"it writes {operand}")
    number = scope.registers[operand.name]
    if operand.bits == kind.bits:
        return number, kind.encode
    if operand.bits < kind.bits or kind.bits == 1:
        unknown(i, f"{operand.name} has {operand.bits} bits, not {kind.bits}")
    wide = UNSIGNED[operand.bits]
    if kind.family == "signed":
        return number, lambda values: values.astype(f"int{operand.bits}").view(wide)
    return number, lambda values: kind.encode(values).astype(wide)


def addresses(i: Instruction, scope: Scope, operand: Operand, space: str) -> Read:
    """A function that gives the addresses of ``[base + offset]`` in a state space, as 64 bits.

    Those of shared memory are told as places in the own block's, in which an address of another's
    lies beyond the end. Those of a cluster's (``CLUSTER``) stay as they are.
    """
    if not isinstance(operand, Address):
        unknown(i, f"operand {operand} is no address")
    base = operand.base
    offset = np.uint64(operand.offset % (1 << 64))
    if isinstance(base, Symbol):
        place = scope.places.get(base.name)
        if place is None or place.space != ("shared" if space == CLUSTER else space):
            unknown(i, f"{base.name} is no array in {space} memory")
        there = np.full(1, place.address, np.uint64) + offset
        return lambda wave: wave.shared_at + there if space == CLUSTER else there
    if isinstance(base, Immediate):
        fixed = np.full(1, base.value % (1 << 64), np.uint64) + offset
        return lambda wave: own_places(wave, fixed) if space == "shared" else fixed
    number, bits = scope.registers[base.name], base.bits
    if bits not in (32, 64):
        unknown(i, f"{base.name} has {bits} bits and is no address")
    mask = np.uint64((1 << bits) - 1)

    def read(wave: Wave) -> Values:
        return (wave.registers[number].astype(np.uint64) + offset) & mask

    return (lambda wave: own_places(wave, read(wave))) if space == "shared" else read


def own_places(wave: Wave, addresses: Values, group: Group | None = None) -> Values:
    """Places in a thread's own shared memory, of addresses of all threads or a group's: none that
    its memory has, of another block's."""
    if wave.cluster == 1:
        return addresses
    own: Values = addresses ^ (group.own(wave.shared_at) if group else wave.shared_at)
    return own


def pure(
    i: Instruction,
    scope: Scope,
    function: Callable[..., Values],
    sources: Sequence[tuple[Operand | None, Kind]],
    target: tuple[Operand | None, Kind],
) -> Step:
    """The step that sets a register to a function of others."""
    read = [reads(i, scope, operand, kind) for operand, kind in sources]
    write = writes(i, scope, *target)
    if len(read) == 1:
        (one,) = read
        return lambda wave, group: write(wave, group, function(one(wave)))
    if len(read) == 2:
        first, second = read
        return lambda wave, group: write(wave, group, function(first(wave), second(wave)))
    if len(read) == 3:
        a, b, c = read
        return lambda wave, group: write(wave, group, function(a(wave), b(wave), c(wave)))
    return lambda wave, group: write(wave, group, function(*[each(wave) for each in read]))


def located(i: Instruction, step: Step) -> Step:
    """The step, whose faults say where they are."""

    def run(wave: Wave, group: Group) -> None:
        try:
            step(wave, group)
        except Fault as fault:
            thread = int(group.index[fault.position])
            raise wave.fault(i, thread, fault.problem) from None

    return run


def guarded(i: Instruction, scope: Scope, step: Step) -> Step:
    """The step for those threads alone whose guard holds."""
    if i.guard is None:
        return step
    holds = reads(i, scope, i.guard, KINDS["pred"])

    def run(wave: Wave, group: Group) -> None:
        mine = group.own(holds(wave))
        if mine.all():
            step(wave, group)
        elif mine.any():
            step(wave, wave.group(group.index[mine]))

    return run
