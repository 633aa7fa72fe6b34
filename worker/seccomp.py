"""The seccomp filter of a confined child (linux/filter.h, linux/seccomp.h).

A refused call fails with EPERM: libraries that try a call for its speed go on without it, and a
candidate that goes on is bounded by its budgets like any other.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

from tunefarm.worker.syscalls import (
    CONDITIONS,
    MACHINES,
    AnyBit,
    Command,
    Condition,
    Missing,
    NoBits,
    OneOf,
    Own,
    Zero,
    numbers,
)

Line: TypeAlias = tuple[int, int, int, int]
"""A BPF instruction: code, lines to skip if true, lines to skip if false, value."""

_EPERM, _ENOSYS = 1, 38
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
LOAD, AND, EQUAL, ANY_BIT, RETURN = 0x20, 0x54, 0x15, 0x45, 0x06
NUMBER, ARCH, ARGUMENTS = 0, 4, 16
AUDIT_ARCH: Mapping[str, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SECCOMP: Mapping[str, int] = {"x86_64": 317, "aarch64": 277}
_SET_MODE_FILTER, _GET_ACTION_AVAIL = 1, 2
_ALL_THREADS = 1
_DENY: Line = (RETURN, 0, 0, ERRNO | _EPERM)
_PASS: Line = (RETURN, 0, 0, ALLOW)
_SECOND_BYTE = 0xFF00


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls that are allowed beside those of any child (numbers by machine), and conditions that
    take the place of theirs."""

    numbers: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    conditions: Mapping[str, Condition | None] = field(default_factory=dict)


def filter_available() -> bool:
    """Whether this kernel has seccomp filters and this module knows the machine's calls."""
    machine = platform.machine()
    if machine not in MACHINES:
        return False
    action = struct.pack("<I", ERRNO)
    call = ctypes.CDLL(None, use_errno=True).syscall
    zero = ctypes.c_uint(0)
    return bool(call(_SECCOMP[machine], ctypes.c_uint(_GET_ACTION_AVAIL), zero, action) == 0)


def restrict_calls(without: Collection[str] = (), more: Calls | None = None) -> bool:
    """Refuse all threads of this process every call that is not allowed, and those ``without``.

    False where the kernel has no filters. Needs no privilege once no new ones can be had.
    """
    if not filter_available():
        return False
    return install(filter_program(platform.machine(), os.getpid(), without, more))


def install(program: Sequence[Line]) -> bool:
    """Have a filter on all threads of this process; whether the kernel took it."""
    code = b"".join(struct.pack("<HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(buffer))
    call = ctypes.CDLL(None, use_errno=True).syscall
    flags = ctypes.c_uint(_ALL_THREADS)
    number = _SECCOMP[platform.machine()]
    return bool(call(number, ctypes.c_uint(_SET_MODE_FILTER), flags, header) == 0)


def filter_program(
    machine: str, pid: int, without: Collection[str] = (), more: Calls | None = None
) -> list[Line]:
    """The filter: calls of another architecture (32-bit ones) and of the x32 kind are refused
    too, the one by the check in front, the other by their numbers."""
    more = more or Calls()
    conditions = {**CONDITIONS, **more.conditions}
    lines = [(LOAD, 0, 0, ARCH), (EQUAL, 1, 0, AUDIT_ARCH[machine]), _DENY, (LOAD, 0, 0, NUMBER)]
    for name, number in numbers(machine, more.numbers).items():
        if name in without:
            continue
        verdict = _verdict(conditions.get(name), pid)
        lines += [(EQUAL, 0, len(verdict), number), *verdict]
    return [*lines, _DENY]


def _verdict(condition: Condition | None, pid: int) -> list[Line]:
    """Lines that end the call in a verdict."""
    match condition:
        case None:
            return [_PASS]
        case Own(argument):
            return _verdict(OneOf(argument, (pid,)), pid)
        case OneOf(argument, values):
            tests = [(EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)]
            return [_load(argument), *tests, _DENY, _PASS]
        case NoBits(argument, mask):
            return [_load(argument), (ANY_BIT, 0, 1, mask), _DENY, _PASS]
        case AnyBit(argument, mask):
            return [_load(argument), (ANY_BIT, 1, 0, mask), _DENY, _PASS]
        case Command(argument, families, values):
            family = [(AND, 0, 0, _SECOND_BYTE), *_choice([f << 8 for f in families])]
            return [_load(argument), *family, _load(argument), *_choice(values), _DENY]
        case Missing():
            return [(RETURN, 0, 0, ERRNO | _ENOSYS)]
        case Zero(argument):
            low, high = _load(argument), _load(argument, high=True)
            return [low, (EQUAL, 0, 2, 0), high, (EQUAL, 1, 0, 0), _DENY, _PASS]
        case _:
            assert_never(condition)


def _choice(values: Sequence[int]) -> list[Line]:
    """Lines that let the call pass if what is loaded is one of these values, and else go on."""
    return [line for value in values for line in ((EQUAL, 0, 1, value), _PASS)]


def _load(argument: int, *, high: bool = False) -> Line:
    return LOAD, 0, 0, ARGUMENTS + 8 * argument + (4 if high else 0)
