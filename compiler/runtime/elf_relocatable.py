"""Writing ELF: many objects as one relocatable object, which any linker takes.

    objects ─read_object─► their sections as they are ─► one table of symbols ─► .o

Nothing is moved or patched, so every instruction set will do. What is not offered becomes local:
two models fit into one program. The weights are a section of their own at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.runtime.elf import (
    EHDR,
    ET_REL,
    IDENT,
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
    AroundWeights,
    string_table,
)
from tunefarm.compiler.runtime.elf_object import ObjectFile, Section, Symbol, read_object

PAGE = 4096
_NAMES = {SHF_EXECINSTR: ".text", SHF_WRITE: ".data", 0: ".rodata"}


@dataclass(slots=True)
class _Tables:
    """Sections from number 1, and symbols: local ones first, then those of ``names``."""

    sections: list[Section] = field(default_factory=list)
    local: list[Symbol] = field(default_factory=list)
    offered: list[Symbol] = field(default_factory=list)
    wanted: list[Symbol] = field(default_factory=list)
    names: dict[str, Symbol] = field(default_factory=dict)

    @property
    def symbols(self) -> list[Symbol]:
        """All of them, in the order of the file's table."""
        return [*self.local, *self.names.values(), *self.offered, *self.wanted]


def merge_objects(
    objects: Sequence[bytes],
    exports: Mapping[str, str],
    *,
    constants: Mapping[str, bytes],
    weights_symbol: str,
    weight_bytes: int,
    aliases: Mapping[str, str],
) -> AroundWeights:
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
) -> AroundWeights:
    """The file: header, sections, weights | tables, section headers."""
    *sections, weights = tables.sections
    file = _File(weight_bytes)
    for section in sections:
        file.add_section(section, _name_of(section.flags), len(section.data))
    file.add_section(weights, ".rodata.weights", weight_bytes)
    number_of = {id(symbol): number for number, symbol in enumerate(tables.symbols, 1)}
    symbols_at = len(file.rows) + sum(map(bool, relocations.values()))
    for number, moves in relocations.items():
        if moves:
            packed = (
                RELA.pack(at, number_of[id(s)] << 32 | kind, add) for at, kind, s, add in moves
            )
            row = _Row(f".rela{file.rows[number].name}", SHT_RELA, symbols_at, number, RELA.size)
            file.add_table(row, b"".join(packed))
    assert len(file.rows) == symbols_at
    symbols, strings = _symbol_table(tables)
    local = 1 + len(tables.local) + len(tables.names)
    file.add_table(_Row(".symtab", SHT_SYMTAB, symbols_at + 1, local, SYM.size), symbols)
    file.add_table(_Row(".strtab", SHT_STRTAB), strings)
    file.add_table(_Row(".note.GNU-stack", SHT_PROGBITS), b"")
    return file.finished(like)


@dataclass(frozen=True, slots=True)
class _Row:
    """A section header."""

    name: str
    kind: int
    link: int = 0
    info: int = 0
    entry: int = 0
    flags: int = 0
    offset: int = 0
    size: int = 0
    alignment: int = 0


@dataclass(slots=True)
class _File:
    """An object as it is written: ``head``, ``weight_bytes`` that are not here, ``tail``; ``rows``
    are the headers of what it has."""

    weight_bytes: int
    head: bytearray = field(default_factory=lambda: bytearray(EHDR.size))
    tail: bytearray = field(default_factory=bytearray)
    rows: list[_Row] = field(default_factory=lambda: [_Row("", 0)])

    def add_section(self, section: Section, name: str, size: int) -> None:
        """Append what is loaded, ``size`` bytes of it."""
        self.head += bytes(-len(self.head) % section.alignment)
        flags = section.flags & (SHF_ALLOC | SHF_WRITE | SHF_EXECINSTR)  # equal ones are not merged
        row = _Row(name, SHT_PROGBITS, flags=flags, offset=len(self.head), size=size)
        self.rows.append(replace(row, alignment=section.alignment))
        self.head += section.data

    def add_table(self, row: _Row, data: bytes) -> None:
        """Append what linkers read, behind the weights."""
        offset = self._align()
        self.rows.append(replace(row, offset=offset, size=len(data), alignment=8))
        self.tail += data

    def finished(self, like: ObjectFile) -> AroundWeights:
        """The bytes, with names and headers of all sections; ``like`` is for the same machine."""
        names, name_at = string_table([row.name for row in self.rows] + [".shstrtab"])
        self.add_table(_Row(".shstrtab", SHT_STRTAB), names)
        headers_at, count = self._align(), len(self.rows)
        for row in self.rows:
            self.tail += SHDR.pack(
                name_at[row.name], row.kind, row.flags, 0, row.offset, row.size, row.link,
                row.info, row.alignment, row.entry,
            )  # fmt: skip
        self.head[: EHDR.size] = EHDR.pack(
            IDENT, ET_REL, like.machine, 1, 0, 0, headers_at, like.flags, EHDR.size, 0, 0,
            SHDR.size, count, count - 1,
        )  # fmt: skip
        return AroundWeights(bytes(self.head), bytes(self.tail))

    def _align(self) -> int:
        """The next offset in the file that is a multiple of 8."""
        end = len(self.head) + self.weight_bytes + len(self.tail)
        self.tail += bytes(-end % 8)
        return end + -end % 8


def _name_of(flags: int) -> str:
    return _NAMES[flags & SHF_EXECINSTR or flags & SHF_WRITE]


def _symbol_table(tables: _Tables) -> tuple[bytes, bytes]:
    """The symbols, those that are not offered hidden, and their names."""
    strings, at = string_table([symbol.name for symbol in tables.symbols])
    hidden = len(tables.local) + len(tables.names)
    table = bytearray(SYM.size)
    for number, symbol in enumerate(tables.symbols):
        binding = STB_LOCAL if number < hidden else symbol.binding
        info = binding << 4 | (symbol.kind if symbol.kind != STT_FILE else 0)
        table += SYM.pack(at[symbol.name], info, 0, symbol.section or 0, symbol.value, symbol.size)
    return bytes(table), strings
