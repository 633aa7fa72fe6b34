"""WebAssembly objects that hold data alone.

Format: WebAssembly core specification, 5.5, and its tool conventions, "Object file linking".
"""

from __future__ import annotations

from tunefarm.compiler.errors import BuildError

_MAGIC = b"\0asm\1\0\0\0"
_CUSTOM, _IMPORT, _DATA = 0, 2, 11
_SEGMENT_INFO, _SYMBOL_TABLE = 5, 8
_ALIGNMENT_BITS = 6  # 64 bytes
_MAX_BYTES = 1 << 31


def data_object(symbol: str, size: int) -> tuple[bytes, bytes]:
    """The bytes before and after ``size`` bytes of data that are called ``symbol``.

    Raises BuildError for more than 2 GB.
    """
    if size >= _MAX_BYTES:
        raise BuildError(f"{size} bytes of weights do not fit the memory of a 32-bit machine")
    held = max(size, 1)
    memory = _name("env") + _name("__linear_memory") + bytes([2, 0]) + _number(0)
    before = _number(1) + bytes([0, 0x41, 0, 0x0B]) + _number(held)  # at i32.const 0
    data = bytes([_DATA]) + _number(len(before) + held) + before
    table = _number(1) + bytes([1]) + _number(0) + _name(symbol)
    table += _number(0) + _number(0) + _number(held)
    segment = _number(1) + _name(".rodata.weights") + _number(_ALIGNMENT_BITS) + _number(0)
    linking = _name("linking") + _number(2)
    linking += _section(_SYMBOL_TABLE, table) + _section(_SEGMENT_INFO, segment)
    head = _MAGIC + _section(_IMPORT, _number(1) + memory) + data
    return head, bytes(held - size) + _section(_CUSTOM, linking)


def _section(kind: int, payload: bytes) -> bytes:
    return bytes([kind]) + _number(len(payload)) + payload


def _name(text: str) -> bytes:
    return _number(len(text.encode())) + text.encode()


def _number(value: int) -> bytes:
    """LEB128 without a sign."""
    out = bytearray()
    while True:
        low, value = value & 0x7F, value >> 7
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)
