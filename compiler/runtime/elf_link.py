"""Writing ELF: objects laid out as a shared library, with no linker and no C compiler.

    objects ─read_object─► place sections ─► resolve symbols ─► relocate ─► tables ─► .so

The library imports nothing. Its parts, each on pages of its own:

    read              headers, .hash, .dynsym, .dynstr, constants
    read, execute     code
    read, write       data, addresses, .rela.dyn, .dynamic
    read              the weights: mapped from the file, never copied, shared by processes
    (not loaded)      section names and headers, for linkers and debuggers

File offsets equal addresses. Format: System V ABI, chapters 4 and 5.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.runtime.elf import (
    EHDR,
    ET_DYN,
    IDENT,
    RELA,
    SHDR,
    SHF_ALLOC,
    SHF_EXECINSTR,
    SHF_WRITE,
    SHT_DYNAMIC,
    SHT_DYNSYM,
    SHT_HASH,
    SHT_PROGBITS,
    SHT_RELA,
    SHT_STRTAB,
    STB_GLOBAL,
    STB_LOCAL,
    STB_WEAK,
    STT_FUNC,
    STT_OBJECT,
    SYM,
    AroundWeights,
    string_table,
)
from tunefarm.compiler.runtime.elf_object import ObjectFile, Relocation, read_object
from tunefarm.compiler.runtime.elf_relocations import Machine, machine_of

_PHDR = struct.Struct("<IIQQQQQQ")
_DYN = struct.Struct("<QQ")
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_READ, _READ_WRITE, _READ_EXECUTE = 4, 6, 5
_SEGMENTS = 6
_DT_NULL, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT = 0, 4, 5, 6, 10, 11
_DT_SONAME, _DT_RELA, _DT_RELASZ, _DT_RELAENT = 14, 7, 8, 9

_Extents: TypeAlias = Mapping[str, tuple[int, int]]

# The library's sections in order, from number 1: type, flags, link, info, entry size.
_SECTIONS = {
    ".hash": (SHT_HASH, SHF_ALLOC, 2, 0, 4),
    ".dynsym": (SHT_DYNSYM, SHF_ALLOC, 3, 1, SYM.size),
    ".dynstr": (SHT_STRTAB, SHF_ALLOC, 0, 0, 0),
    ".rodata": (SHT_PROGBITS, SHF_ALLOC, 0, 0, 0),
    ".text": (SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, 0, 0, 0),
    ".data": (SHT_PROGBITS, SHF_ALLOC | SHF_WRITE, 0, 0, 0),
    ".rela.dyn": (SHT_RELA, SHF_ALLOC, 2, 0, RELA.size),
    ".dynamic": (SHT_DYNAMIC, SHF_ALLOC | SHF_WRITE, 3, 0, _DYN.size),
    ".weights": (SHT_PROGBITS, SHF_ALLOC, 0, 0, 0),
}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a symbol came to lie."""

    address: int
    size: int
    kind: int


@dataclass(slots=True)
class _Image:
    """The library's bytes at their final addresses, and where each section of a file went."""

    data: bytearray = field(default_factory=bytearray)
    sections: dict[tuple[int, int], int] = field(default_factory=dict)
    extents: dict[str, tuple[int, int]] = field(default_factory=dict)

    @contextlib.contextmanager
    def extent(self, name: str, alignment: int = 8) -> Iterator[None]:
        """What is added inside the ``with`` block is the library's section ``name``."""
        start = self.align(alignment)
        yield
        self.extents[name] = (start, len(self.data))

    def align(self, alignment: int) -> int:
        self.data += bytes(-len(self.data) % alignment)
        return len(self.data)

    def add(self, data: bytes, alignment: int = 8) -> int:
        address = self.align(alignment)
        self.data += data
        return address

    def add_sections(self, files: Sequence[ObjectFile], wanted: Callable[[int], bool]) -> None:
        for number, file in enumerate(files):
            for index, section in file.sections.items():
                if wanted(section.flags):
                    address = self.add(section.data, section.alignment)
                    self.sections[number, index] = address

    def write(self, at: int, data: bytes) -> None:
        self.data[at : at + len(data)] = data


def link_library(
    objects: Sequence[bytes],
    exports: Mapping[str, str],
    *,
    soname: str,
    constants: Mapping[str, bytes],
    weights_symbol: str,
    weight_bytes: int,
    aliases: Mapping[str, str],
) -> AroundWeights:
    """Lay objects out as a shared library.

    ``exports`` maps each offered name to a symbol of the objects, a name in ``constants`` (bytes
    for the read-only part), or ``weights_symbol``. ``aliases`` says which symbol stands in for an
    undefined one. Raises BuildError for a symbol that is undefined or defined twice, and for a
    relocation that needs a real linker.
    """
    files = [read_object(code) for code in objects]
    machine = _machine_of(files)
    strings, string_at = string_table([soname, *exports])
    image = _Image()
    image.add(bytes(EHDR.size + _SEGMENTS * _PHDR.size))
    with image.extent(".hash"):
        image.add(_hash_table(list(exports)))
    with image.extent(".dynsym"):
        image.add(bytes(SYM.size * (len(exports) + 1)))
    with image.extent(".dynstr"):
        image.add(strings)
    with image.extent(".rodata", 64):
        places = _add_constants(image, constants)
        image.add_sections(files, lambda flags: not flags & (SHF_WRITE | SHF_EXECINSTR))
    with image.extent(".text", machine.page):
        image.add_sections(files, lambda flags: bool(flags & SHF_EXECINSTR))
    with image.extent(".data", machine.page):
        image.add_sections(files, lambda flags: bool(flags & SHF_WRITE))
        places |= _global_places(image, files)
        end = len(image.data) + _reserve(files, machine)
        weights_at = -(-end // machine.page) * machine.page
        places[weights_symbol] = _Place(weights_at, weight_bytes, STT_OBJECT)
        moved = _relocate(image, files, machine, places, aliases)
    with image.extent(".rela.dyn"):
        image.add(b"".join(RELA.pack(at, machine.relative, to) for at, to in moved))
    with image.extent(".dynamic", 16):
        image.add(_dynamic(image.extents, string_at[soname]))
    image.data += bytes(weights_at - len(image.data))
    image.extents[".weights"] = (weights_at, weights_at + max(weight_bytes, 1))
    image.write(image.extents[".dynsym"][0], _symbol_table(exports, places, string_at, image))
    tail, headers_at = _section_headers(image.extents)
    image.write(0, _headers(image.extents, headers_at, machine, files[0].flags))
    return AroundWeights(bytes(image.data), bytes(1 if weight_bytes == 0 else 0) + tail)


def _machine_of(files: Sequence[ObjectFile]) -> Machine:
    numbers = {file.machine for file in files}
    if len(numbers) > 1:
        raise BuildError(f"the objects are for several ELF machines: {sorted(numbers)}")
    return machine_of(numbers.pop())


def _reserve(files: Sequence[ObjectFile], machine: Machine) -> int:
    """The most bytes that addresses, .rela.dyn and .dynamic can take."""
    kinds = {machine.absolute, *machine.through_table}
    sections = (section for file in files for section in file.sections.values())
    count = sum(entry.kind in kinds for s in sections for entry in s.relocations)
    return (8 + RELA.size) * count + 16 * _DYN.size + 64


def _add_constants(image: _Image, constants: Mapping[str, bytes]) -> dict[str, _Place]:
    return {
        name: _Place(image.add(data, 64), len(data), STT_OBJECT) for name, data in constants.items()
    }


def _global_places(image: _Image, files: Sequence[ObjectFile]) -> dict[str, _Place]:
    """Every global symbol's place; a strong definition wins over a weak one."""
    places: dict[str, _Place] = {}
    strong: set[str] = set()
    for number, file in enumerate(files):
        for symbol in file.symbols:
            if symbol.section is None or symbol.binding == STB_LOCAL:
                continue
            if symbol.binding == STB_WEAK and symbol.name in places:
                continue
            if symbol.name in strong and symbol.binding != STB_WEAK:
                raise BuildError(f"symbol {symbol.name} is defined twice; rename one of the two")
            if symbol.binding != STB_WEAK:
                strong.add(symbol.name)
            base = image.sections.get((number, symbol.section))
            if base is not None:
                places[symbol.name] = _Place(base + symbol.value, symbol.size, symbol.kind)
    return places


def _relocate(
    image: _Image,
    files: Sequence[ObjectFile],
    machine: Machine,
    places: Mapping[str, _Place],
    aliases: Mapping[str, str],
) -> list[tuple[int, int]]:
    """Fill in every address; return the (place, value) pairs that the loader must move."""
    patches = _Patches(image, machine)
    later: list[tuple[Relocation, int, int]] = []
    for number, file in enumerate(files):
        for index, section in file.sections.items():
            base = image.sections[number, index]
            for entry in section.relocations:
                symbol = file.symbols[entry.symbol]
                if symbol.section is not None and symbol.binding == STB_LOCAL:
                    value = image.sections[number, symbol.section] + symbol.value
                else:
                    value = _global_value(symbol.name, places, aliases)
                at = base + entry.offset
                if entry.kind in machine.late:
                    later.append((entry, at, value))
                else:
                    patches.apply(entry, at, value, bool(section.flags & SHF_WRITE))
    for entry, at, value in later:
        patches.apply(entry, at, value, False)
    return patches.moved


def _global_value(name: str, places: Mapping[str, _Place], aliases: Mapping[str, str]) -> int:
    place = places.get(name) or places.get(aliases.get(name, ""))
    if place is None:
        raise BuildError(
            f"the code imports {name}, and an exported library imports nothing; "
            "generate code that does not call it"
        )
    return place.address


@dataclass(slots=True)
class _Patches:
    """Relocations as they are applied; ``slots`` is the table of addresses."""

    image: _Image
    machine: Machine
    slots: dict[int, int] = field(default_factory=dict)
    moved: list[tuple[int, int]] = field(default_factory=list)
    upper: dict[int, int] = field(default_factory=dict)

    def apply(self, entry: Relocation, at: int, value: int, writable: bool) -> None:
        """Patch one place."""
        target = value + entry.addend
        if entry.kind == self.machine.absolute and writable:  # in data, where the loader moves it
            self.image.write(at, struct.pack("<Q", target))
            self.moved.append((at, target))
            return
        if entry.kind in self.machine.through_table:
            target = self._slot(value) + entry.addend
        code = bytes(self.image.data[at : at + 8])
        self.image.write(at, self.machine.patch(entry.kind, code, target, at, self.upper))

    def _slot(self, value: int) -> int:
        """Where the table holds this address."""
        if value not in self.slots:
            self.slots[value] = self.image.add(struct.pack("<Q", value))
            self.moved.append((self.slots[value], value))
        return self.slots[value]


def _hash_table(names: Sequence[str]) -> bytes:
    """The ABI's hash table: bucket heads, and each symbol's successor. Symbol i + 1 is names[i]."""
    buckets = [0] * max(1, len(names))
    chain = [0] * (len(names) + 1)
    for number, name in enumerate(names, 1):
        bucket = _hash(name) % len(buckets)
        chain[number], buckets[bucket] = buckets[bucket], number
    words = [len(buckets), len(chain), *buckets, *chain]
    return struct.pack(f"<{len(words)}I", *words)


def _hash(name: str) -> int:
    h = 0
    for byte in name.encode():
        h = (h << 4) + byte
        high = h & 0xF0000000
        h = (h ^ high >> 24) & ~high & 0xFFFFFFFF
    return h


def _dynamic(extents: _Extents, soname: int) -> bytes:
    """What the loader reads first: where the tables are."""

    def start(name: str) -> int:
        return extents[name][0]

    def size(name: str) -> int:
        return extents[name][1] - extents[name][0]

    entries = [
        (_DT_SONAME, soname),
        (_DT_HASH, start(".hash")),
        (_DT_STRTAB, start(".dynstr")),
        (_DT_SYMTAB, start(".dynsym")),
        (_DT_STRSZ, size(".dynstr")),
        (_DT_SYMENT, SYM.size),
    ]
    if size(".rela.dyn"):
        entries += [
            (_DT_RELA, start(".rela.dyn")),
            (_DT_RELASZ, size(".rela.dyn")),
            (_DT_RELAENT, RELA.size),
        ]
    return b"".join(_DYN.pack(*entry) for entry in [*entries, (_DT_NULL, 0)])


def _symbol_table(
    exports: Mapping[str, str],
    places: Mapping[str, _Place],
    string_at: Mapping[str, int],
    image: _Image,
) -> bytes:
    table = bytearray(SYM.size)
    starts = [image.extents[name][0] for name in _SECTIONS]
    for offered, name in exports.items():
        if name not in places:
            raise BuildError(f"no object defines {name}, which the library is to export")
        place = places[name]
        section = max(i for i, start in enumerate(starts, 1) if start <= place.address)
        info = STB_GLOBAL << 4 | (place.kind or STT_FUNC)
        table += SYM.pack(string_at[offered], info, 0, section, place.address, place.size)
    return bytes(table)


def _section_headers(extents: _Extents) -> tuple[bytes, int]:
    """What follows the weights, padding, section names and headers; the headers' file offset."""
    names, name_at = string_table([*_SECTIONS, ".shstrtab"])
    end = extents[".weights"][1]
    names_at = -(-end // 8) * 8
    headers_at = -(-(names_at + len(names)) // 8) * 8
    headers = bytearray(SHDR.size)
    for name, (kind, flags, link, info, entry) in _SECTIONS.items():
        start, stop = extents[name]
        headers += SHDR.pack(
            name_at[name], kind, flags, start, start, stop - start, link, info, 1, entry
        )
    headers += SHDR.pack(name_at[".shstrtab"], SHT_STRTAB, 0, 0, names_at, len(names), 0, 0, 1, 0)
    tail = bytes(names_at - end) + names + bytes(headers_at - names_at - len(names)) + headers
    return tail, headers_at


def _headers(extents: _Extents, sections_at: int, machine: Machine, flags: int) -> bytes:
    """The ELF header and the program headers."""
    count = len(_SECTIONS) + 2
    header = EHDR.pack(
        IDENT, ET_DYN, machine.number, 1, 0, EHDR.size, sections_at, flags, EHDR.size, _PHDR.size,
        _SEGMENTS, SHDR.size, count, count - 1,
    )  # fmt: skip
    segments = [
        (_PT_LOAD, _READ, 0, extents[".rodata"][1]),
        (_PT_LOAD, _READ_EXECUTE, *extents[".text"]),
        (_PT_LOAD, _READ_WRITE, extents[".data"][0], extents[".dynamic"][1]),
        (_PT_LOAD, _READ, *extents[".weights"]),
        (_PT_DYNAMIC, _READ_WRITE, *extents[".dynamic"]),
        (_PT_GNU_STACK, _READ_WRITE, 0, 0),
    ]
    rows = [
        _PHDR.pack(kind, access, a, a, a, b - a, b - a, machine.page if kind == _PT_LOAD else 8)
        for kind, access, a, b in segments
    ]
    return header + b"".join(rows)
