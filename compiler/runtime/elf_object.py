"""Reading ELF: relocatable objects as sections, symbols and relocations.

Format: System V ABI, chapter 4. Only what LLVM writes for kernels is understood.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.runtime.elf import (
    EHDR,
    ET_REL,
    MAGIC,
    RELA,
    SHDR,
    SHF_ALLOC,
    SHT_NOBITS,
    SHT_PROGBITS,
    SHT_RELA,
    SHT_SYMTAB,
    STT_FILE,
    SYM,
)

_SHN_ABS, _SHN_COMMON = 0xFFF1, 0xFFF2


@dataclass(frozen=True, slots=True)
class Relocation:
    """At ``offset`` of its section: symbol number ``symbol`` plus ``addend``, as ``kind`` says."""

    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass(frozen=True, slots=True)
class Section:
    """A section that occupies memory."""

    flags: int
    data: bytes
    alignment: int
    relocations: tuple[Relocation, ...]


@dataclass(frozen=True, slots=True)
class Symbol:
    """``section`` is None where the symbol is defined elsewhere."""

    name: str
    section: int | None
    value: int
    size: int
    binding: int
    kind: int


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """A relocatable object: its loaded sections by their number, its symbols in order.

    ``flags`` are the machine's own, such as RISC-V's registers for arguments.
    """

    machine: int
    flags: int
    sections: Mapping[int, Section]
    symbols: tuple[Symbol, ...]


def read_object(code: bytes) -> ObjectFile:
    """Read a 64-bit little-endian relocatable object; BuildError for anything else.

    Unwind tables are left out: kernels do not throw.
    """
    if not code.startswith(MAGIC) or struct.unpack_from("<H", code, 16)[0] != ET_REL:
        raise BuildError("the object code is not a 64-bit little-endian ELF object")
    header = EHDR.unpack_from(code)
    table, count, names_at = header[6], header[12], header[13]
    headers = [SHDR.unpack_from(code, table + i * SHDR.size) for i in range(count)]
    names = headers[names_at][4]
    symbols: tuple[Symbol, ...] = ()
    relocations: dict[int, tuple[Relocation, ...]] = {}
    for _, kind, _, _, offset, size, link, info, _, _ in headers:
        if kind == SHT_SYMTAB:
            symbols = tuple(_read_symbols(code, offset, size, headers[link][4]))
        elif kind == SHT_RELA:
            relocations[info] = tuple(_read_relocations(code, offset, size))
    sections = {}
    for number, (name, kind, flags, _, offset, size, _, _, alignment, _) in enumerate(headers):
        loaded = flags & SHF_ALLOC and kind in (SHT_PROGBITS, SHT_NOBITS)
        if loaded and _string(code, names + name) != ".eh_frame":
            data = bytes(size) if kind == SHT_NOBITS else code[offset : offset + size]
            moves = relocations.get(number, ())
            sections[number] = Section(flags, data, max(1, alignment), moves)
    return ObjectFile(header[2], header[7], sections, symbols)


def _read_symbols(code: bytes, offset: int, size: int, strings: int) -> Iterator[Symbol]:
    for at in range(offset, offset + size, SYM.size):
        name, info, _, section, value, length = SYM.unpack_from(code, at)
        text, kind = _string(code, strings + name), info & 15
        if section in (_SHN_ABS, _SHN_COMMON) and kind != STT_FILE:
            raise BuildError(f"symbol {text} is absolute or common, which a library cannot hold")
        home = None if section in (0, _SHN_ABS) else section
        yield Symbol(text, home, value, length, info >> 4, kind)


def _read_relocations(code: bytes, offset: int, size: int) -> Iterator[Relocation]:
    for at in range(offset, offset + size, RELA.size):
        place, info, addend = RELA.unpack_from(code, at)
        yield Relocation(place, info & 0xFFFFFFFF, info >> 32, addend)


def _string(code: bytes, at: int) -> str:
    return code[at : code.index(0, at)].decode()
