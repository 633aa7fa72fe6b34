"""Writing ELF: many objects as one relocatable object, which any linker takes.

    objects ─read_object─► their sections as they are ─► one table of symbols ─► .o

Nothing is moved or patched, so every instruction set will do. What is not offered becomes local:
two models fit into one program. The weights are a section of their own at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.runtime.elf_object import (
    EHDR,
    RELA,
    SHDR,
    SHF_ALLOC,
    SHF_EXECINSTR,
    SHF_WRITE,
    SHT_PROGBITS,
    SHT_RELA,
    SHT_STRTAB,
    SHT_SYMTAB,
    STB_GLOBAL,
    STB_LOCAL,
    STB_WEAK,
    STT_FILE,
    STT_OBJECT,
    SYM,
    ObjectFile,
    Section,
    Symbol,
    read_object,
)

PAGE = 4096
_ET_REL = 1
_NAMES = {SHF_EXECINSTR: ".text", SHF_WRITE: ".data", 0: ".rodata"}


@dataclass(frozen=True, slots=True)
class RelocatableObject:
    """The bytes of an object around its weights: ``head``, the weights, ``tail``."""

    head: bytes
    tail: bytes


@dataclass(slots=True)
class _Tables:
    """Sections from number 1, and symbols: local ones first, then those of ``names``."""

    sections: list[Section] = field(default_factory=list)
    local: list[Symbol] = field(default_factory=list)
    offered: list[Symbol] = field(default_factory=list)
    wanted: list[Symbol] = field(default_factory=list)
    names: dict[str, Symbol] = field(default_factory=dict)


def merge_objects(
    objects: Sequence[bytes],
    exports: Mapping[str, str],
    *,
    constants: Mapping[str, bytes],
    weights_symbol: str,
    weight_bytes: int,
    aliases: Mapping[str, str],
) -> RelocatableObject:
    """Lay objects out as one, with the arguments of ``link_library``.

    What neither the objects nor ``aliases`` define stays undefined, for the linker to find.
    Raises BuildError for a symbol that is defined twice or offered without being defined.
    """
    files = [read_object(code) for code in objects]
    if len({file.machine for file in files}) != 1:
        raise BuildError("the objects are for several ELF machines")
    tables = _Tables()
    starts = []
    for file in files:
        starts.append(_add_sections(tables, file))
    for file, numbers in zip(files, starts, strict=True):
        _define(tables, file, numbers)
    for name, data in constants.items():
        tables.sections.append(Section(SHF_ALLOC, data, 64, ()))
        _define_one(tables, Symbol(name, len(tables.sections), 0, len(data), 0, STT_OBJECT))
    size = max(weight_bytes, 1)
    tables.sections.append(Section(SHF_ALLOC, b"", PAGE, ()))
    _define_one(tables, Symbol(weights_symbol, len(tables.sections), 0, size, 0, STT_OBJECT))
    tables.offered = [_offered(tables, new, old) for new, old in exports.items()]
    moves = [_relocations(tables, f, n, aliases) for f, n in zip(files, starts, strict=True)]
    relocations = {number: data for found in moves for number, data in found.items()}
    return _written(tables, relocations, files[0], weight_bytes)


def _add_sections(tables: _Tables, file: ObjectFile) -> dict[int, int]:
    """Take a file's sections over; their new numbers."""
    numbers = {}
    for number, section in file.sections.items():
        tables.sections.append(section)
        numbers[number] = len(tables.sections)
    return numbers


def _define(tables: _Tables, file: ObjectFile, numbers: Mapping[int, int]) -> None:
    """Enter the global symbols of a file; those of sections that are left out are not."""
    for symbol in file.symbols:
        if symbol.binding != STB_LOCAL and symbol.section in numbers:
            assert symbol.section is not None
            _define_one(tables, replace(symbol, section=numbers[symbol.section]))


def _define_one(tables: _Tables, symbol: Symbol) -> None:
    known = tables.names.get(symbol.name)
    if known is not None and STB_WEAK not in (known.binding, symbol.binding):
        raise BuildError(f"symbol {symbol.name} is defined twice; rename one of the two")
    if known is None or known.binding == STB_WEAK:
        tables.names[symbol.name] = symbol


def _offered(tables: _Tables, new: str, old: str) -> Symbol:
    if old not in tables.names:
        raise BuildError(f"no object defines {old}, which the object is to export")
    return replace(tables.names[old], name=new, binding=STB_GLOBAL)


def _relocations(
    tables: _Tables, file: ObjectFile, numbers: Mapping[int, int], aliases: Mapping[str, str]
) -> dict[int, list[tuple[int, int, Symbol, int]]]:
    """By section: offset, kind, symbol and addend. The symbols that they use are entered."""
    found: dict[int, list[tuple[int, int, Symbol, int]]] = {}
    used: dict[int, Symbol] = {}
    for number, section in file.sections.items():
        rows = found.setdefault(numbers[number], [])
        for entry in section.relocations:
            if entry.symbol not in used:
                used[entry.symbol] = _used(tables, file.symbols[entry.symbol], numbers, aliases)
            rows.append((entry.offset, entry.kind, used[entry.symbol], entry.addend))
    return found


def _used(
    tables: _Tables, symbol: Symbol, numbers: Mapping[int, int], aliases: Mapping[str, str]
) -> Symbol:
    """The symbol of the new object that one of a file has become."""
    if symbol.section is not None and symbol.binding == STB_LOCAL:
        own = replace(symbol, section=numbers[symbol.section])
        tables.local.append(own)
        return own
    known = tables.names.get(symbol.name) or tables.names.get(aliases.get(symbol.name, ""))
    if known is not None:
        return known
    missing = next((w for w in tables.wanted if w.name == symbol.name), None)
    if missing is None:
        missing = replace(symbol, binding=STB_GLOBAL)
        tables.wanted.append(missing)
    return missing


def _written(
    tables: _Tables,
    relocations: Mapping[int, list[tuple[int, int, Symbol, int]]],
    like: ObjectFile,
    weight_bytes: int,
) -> RelocatableObject:
    """The file: header, sections, weights | tables, section headers."""
    hidden = [replace(s, binding=STB_LOCAL) for s in tables.names.values()]
    order = [*tables.local, *tables.names.values(), *tables.offered, *tables.wanted]
    number_of = {id(symbol): number for number, symbol in enumerate(order, 1)}
    local = 1 + len(tables.local) + len(hidden)
    head, rows = bytearray(EHDR.size), [_Row("", 0, 0, 0, 0)]
    for number, section in enumerate(tables.sections, 1):
        head += bytes(-len(head) % section.alignment)
        size = weight_bytes if number == len(tables.sections) else len(section.data)
        name = ".rodata.weights" if number == len(tables.sections) else _name_of(section.flags)
        flags = section.flags & (SHF_ALLOC | SHF_WRITE | SHF_EXECINSTR)  # equal ones are not merged
        row = _Row(name, SHT_PROGBITS, flags, len(head), size)
        rows.append(replace(row, alignment=section.alignment))
        head += section.data
    tail, end = bytearray(), len(head) + weight_bytes

    def place(row: _Row, data: bytes) -> None:
        tail.extend(bytes(-(end + len(tail)) % 8))
        rows.append(replace(row, offset=end + len(tail), size=len(data), alignment=8))
        tail.extend(data)

    symbols, strings = _symbol_table([*tables.local, *hidden, *tables.offered, *tables.wanted])
    table_number = 1 + len(tables.sections) + sum(map(bool, relocations.values()))
    for number, moves in relocations.items():
        packed = [
            RELA.pack(at, number_of[id(symbol)] << 32 | kind, addend)
            for at, kind, symbol, addend in moves
        ]
        if packed:
            name = f".rela{rows[number].name}"
            place(_Row(name, SHT_RELA, 0, 0, 0, table_number, number, RELA.size), b"".join(packed))
    assert len(rows) == table_number
    place(_Row(".symtab", SHT_SYMTAB, 0, 0, 0, table_number + 1, local, SYM.size), symbols)
    place(_Row(".strtab", SHT_STRTAB, 0, 0, 0), strings)
    place(_Row(".note.GNU-stack", SHT_PROGBITS, 0, 0, 0), b"")
    names, name_at = _strings([row.name for row in rows] + [".shstrtab"])
    place(_Row(".shstrtab", SHT_STRTAB, 0, 0, 0), names)
    tail.extend(bytes(-(end + len(tail)) % 8))
    headers_at = end + len(tail)
    for row in rows:
        tail += SHDR.pack(
            name_at[row.name], row.kind, row.flags, 0, row.offset, row.size, row.link, row.info,
            row.alignment, row.entry,
        )  # fmt: skip
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    head[: EHDR.size] = EHDR.pack(
        ident, _ET_REL, like.machine, 1, 0, 0, headers_at, like.flags, EHDR.size, 0, 0,
        SHDR.size, len(rows), len(rows) - 1,
    )  # fmt: skip
    return RelocatableObject(bytes(head), bytes(tail))


@dataclass(frozen=True, slots=True)
class _Row:
    """A section header."""

    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int = 0
    info: int = 0
    entry: int = 0
    alignment: int = 0


def _name_of(flags: int) -> str:
    return _NAMES[flags & SHF_EXECINSTR or flags & SHF_WRITE]


def _symbol_table(symbols: Sequence[Symbol]) -> tuple[bytes, bytes]:
    strings, at = _strings([symbol.name for symbol in symbols])
    table = bytearray(SYM.size)
    for symbol in symbols:
        info = symbol.binding << 4 | (symbol.kind if symbol.kind != STT_FILE else 0)
        table += SYM.pack(at[symbol.name], info, 0, symbol.section or 0, symbol.value, symbol.size)
    return bytes(table), strings


def _strings(names: Sequence[str]) -> tuple[bytes, dict[str, int]]:
    data, at = bytearray(1), {"": 0}
    for name in names:
        if name not in at:
            at[name] = len(data)
            data += name.encode() + b"\0"
    return bytes(data), at
