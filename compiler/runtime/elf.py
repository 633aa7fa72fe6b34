"""What is common to ELF files that are read and written: 64-bit, little-endian.

Format: System V ABI, chapters 4 and 5.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

MAGIC = b"\x7fELF\x02\x01"
IDENT = MAGIC + b"\x01" + bytes(9)
EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
SHDR = struct.Struct("<IIQQQQIIQQ")
SYM = struct.Struct("<IBBHQQ")
RELA = struct.Struct("<QQq")

SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB, SHT_RELA, SHT_HASH, SHT_DYNAMIC = 1, 2, 3, 4, 5, 6
SHT_NOBITS, SHT_DYNSYM = 8, 11
SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR = 1, 2, 4
STB_LOCAL, STB_GLOBAL, STB_WEAK = 0, 1, 2
STT_OBJECT, STT_FUNC, STT_FILE = 1, 2, 4
ET_REL, ET_DYN = 1, 3


@dataclass(frozen=True, slots=True)
class AroundWeights:
    """The bytes of a file around the model's weights: ``head``, the weights, ``tail``."""

    head: bytes
    tail: bytes


def string_table(names: Iterable[str]) -> tuple[bytes, dict[str, int]]:
    """Names one after the other, each once and with a zero behind it, and where each begins."""
    data, at = bytearray(1), {"": 0}
    for name in names:
        if name not in at:
            at[name] = len(data)
            data += name.encode() + b"\0"
    return bytes(data), at
