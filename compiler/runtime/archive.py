"""Static archives (``ar``): objects in one file with an index of the symbols that they define.

Format: the one that System V and GNU share. Members begin at even offsets.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

_MAGIC = b"!<arch>\n"
_HEADER_BYTES = 60


@dataclass(frozen=True, slots=True)
class Member:
    """An object of ``size`` bytes and the global symbols that it defines."""

    name: str
    size: int
    symbols: tuple[str, ...]


def archive_head(members: Sequence[Member]) -> bytes:
    """The magic and the index. What follows is each member's ``member_header``, bytes and
    ``padding``."""
    names = b"".join(s.encode() + b"\0" for member in members for s in member.symbols)
    count = sum(len(member.symbols) for member in members)
    size = 4 + 4 * count + len(names)
    at = len(_MAGIC) + _HEADER_BYTES + size + size % 2
    offsets = []
    for member in members:
        offsets += [at] * len(member.symbols)
        at += _HEADER_BYTES + member.size + member.size % 2
    index = struct.pack(f">{count + 1}I", count, *offsets) + names
    return _MAGIC + _header("/", size) + index + padding(size)


def member_header(member: Member) -> bytes:
    return _header(f"{member.name}/", member.size)


def padding(size: int) -> bytes:
    return b"\n" * (size % 2)


def _header(name: str, size: int) -> bytes:
    """Time, owner and rights are left out, so that equal models make equal files."""
    return f"{name:<16}{0:<12}{0:<6}{0:<6}{'644':<8}{size:<10}`\n".encode()
