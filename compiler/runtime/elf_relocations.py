"""What a relocation puts into the code, for each instruction set that a library is written for.

In the ABIs' words S is the symbol's address (or that of its entry in the table of addresses), A
the addend and P the place: ``value`` is S + A. Sources: System V ABI, AMD64 and RISC-V supplements;
ELF for the Arm 64-bit Architecture (AAELF64).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TypeAlias

from tunefarm.compiler.errors import BuildError

Upper: TypeAlias = MutableMapping[int, int]  # RISC-V: place of an upper half → what it reaches
Patch: TypeAlias = Callable[[int, bytes, int, int, Upper], bytes]


@dataclass(frozen=True, slots=True)
class Machine:
    """An ELF machine: its number, the alignment of segments in bytes, kinds of relocations.

    ``absolute`` is a 64-bit address, which the loader moves as a ``relative`` one; those of
    ``through_table`` take the address from a table. ``patch(kind, code, value, place, upper)``
    returns the bytes that replace ``code``; ``late`` ones want all others done before.
    """

    number: int
    page: int
    absolute: int
    relative: int
    through_table: frozenset[int]
    patch: Patch
    late: frozenset[int] = frozenset()


def machine_of(number: int) -> Machine:
    """BuildError for a machine that no library is written for."""
    if number not in _MACHINES:
        raise BuildError(f"no library is written for ELF machine {number}; export an object (.o)")
    return _MACHINES[number]


def _refuse(kind: int) -> BuildError:
    return BuildError(f"relocation {kind} needs a real linker; compile with reloc=pic")


def _signed(value: int, bits: int, what: str) -> int:
    """The low bits of a signed value; BuildError if it has more."""
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise BuildError(f"the code is larger than {what}, more than a library can address")
    return value & (1 << bits) - 1


def _word(code: bytes) -> int:
    return int(struct.unpack_from("<I", code)[0])


# --- x86-64 --------------------------------------------------------------------------------------

_X86_RELATIVE32 = frozenset({2, 4, 9, 41, 42})  # PC32, PLT32, GOTPCREL, GOTPCRELX, REX_GOTPCRELX
_X86_PC64 = 24


def _patch_x86(kind: int, code: bytes, value: int, place: int, upper: Upper) -> bytes:
    if kind in _X86_RELATIVE32:
        return struct.pack("<I", _signed(value - place, 32, "2 GB"))
    if kind == _X86_PC64:
        return struct.pack("<q", value - place)
    raise _refuse(kind)


# --- AArch64 -------------------------------------------------------------------------------------

_ARM_PREL64, _ARM_PREL32, _ARM_ADR = 260, 261, 274
_ARM_PAGE = frozenset({275, 311})  # ADR_PREL_PG_HI21, ADR_GOT_PAGE
_ARM_BRANCH = frozenset({282, 283})  # JUMP26, CALL26
# ADD_ABS_LO12_NC, LDST8 … LDST128_ABS_LO12_NC, LD64_GOT_LO12_NC: how far the offset is scaled.
_ARM_LOW12: Mapping[int, int] = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4, 312: 3}


def _patch_arm(kind: int, code: bytes, value: int, place: int, upper: Upper) -> bytes:
    if kind == _ARM_PREL64:
        return struct.pack("<q", value - place)
    if kind == _ARM_PREL32:
        return struct.pack("<I", _signed(value - place, 32, "2 GB"))
    word = _word(code)
    if kind in _ARM_BRANCH:
        word |= _signed(value - place >> 2, 26, "128 MB")
    elif kind in _ARM_PAGE or kind == _ARM_ADR:
        distance = value - place if kind == _ARM_ADR else (value >> 12) - (place >> 12)
        pages = _signed(distance, 21, "4 GB")
        word |= (pages & 3) << 29 | pages >> 2 << 5
    elif kind in _ARM_LOW12:
        word |= (value & 0xFFF) >> _ARM_LOW12[kind] << 10
    else:
        raise _refuse(kind)
    return struct.pack("<I", word)


# --- RISC-V --------------------------------------------------------------------------------------

_RISCV_CALL = frozenset({18, 19})  # CALL, CALL_PLT: auipc and jalr
_RISCV_HIGH = frozenset({20, 23})  # GOT_HI20, PCREL_HI20: auipc
_RISCV_LOW_LOAD, _RISCV_LOW_STORE = 24, 25  # PCREL_LO12_I, _S: their symbol is the auipc
_RISCV_SUMS: Mapping[int, tuple[int, str]] = {35: (1, "<I"), 36: (1, "<Q"), 39: (-1, "<I"),
                                              40: (-1, "<Q")}  # fmt: skip
_RISCV_NOTHING = frozenset({51})  # RELAX


def _patch_riscv(kind: int, code: bytes, value: int, place: int, upper: Upper) -> bytes:
    if kind in _RISCV_NOTHING:
        return b""
    if kind in _RISCV_SUMS:
        sign, form = _RISCV_SUMS[kind]
        size = struct.calcsize(form)
        old = struct.unpack_from(form, code)[0]
        return struct.pack(form, (old + sign * value) % (1 << 8 * size))
    word = _word(code)
    if kind in _RISCV_HIGH or kind in _RISCV_CALL:
        upper[place] = value - place
        high = _signed(value - place + 0x800, 32, "2 GB") & 0xFFFFF000
        first = struct.pack("<I", word | high)
        if kind in _RISCV_HIGH:
            return first
        jump = _word(code[4:]) | (value - place & 0xFFF) << 20
        return first + struct.pack("<I", jump)
    if kind in (_RISCV_LOW_LOAD, _RISCV_LOW_STORE):
        low = upper[value] & 0xFFF
        if kind == _RISCV_LOW_LOAD:
            return struct.pack("<I", word | low << 20)
        return struct.pack("<I", word | low >> 5 << 25 | (low & 31) << 7)
    raise _refuse(kind)


_MACHINES: Mapping[int, Machine] = {
    62: Machine(62, 4096, 1, 8, frozenset({9, 41, 42}), _patch_x86),
    # Kernels for AArch64 may have pages of 64 KB.
    183: Machine(183, 1 << 16, 257, 1027, frozenset({311, 312}), _patch_arm),
    243: Machine(
        243, 4096, 2, 3, frozenset({20}), _patch_riscv,
        late=frozenset({_RISCV_LOW_LOAD, _RISCV_LOW_STORE}),
    ),
}  # fmt: skip
