"""Frames between the worker and its children: one JSON header, then raw byte blobs.

    frame ::= u32 header length, header (UTF-8 JSON object), blobs
    header["blobs"] ::= byte length of each blob, in order

No pickle: a child may be controlled by the code it ran, so nothing that it says is executed.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

HEADER_LIMIT_BYTES = 1 << 20
_LENGTH = struct.Struct("<I")

Header: TypeAlias = Mapping[str, Any]
Blob: TypeAlias = bytes | bytearray | memoryview


class WireError(Exception):
    """Bytes that are not a frame, or a frame larger than its reader allows."""


@dataclass(frozen=True, slots=True)
class Frame:
    header: Header
    blobs: tuple[memoryview, ...] = ()


def encode(header: Header, blobs: Sequence[Blob] = ()) -> list[memoryview]:
    """The byte chunks of a frame, in order; blobs are not copied."""
    views = [memoryview(blob).cast("B") for blob in blobs]
    text = json.dumps({**header, "blobs": [view.nbytes for view in views]}).encode()
    if len(text) > HEADER_LIMIT_BYTES:
        raise WireError(f"a header of {len(text)} bytes; allowed: {HEADER_LIMIT_BYTES}")
    return [memoryview(_LENGTH.pack(len(text)) + text), *(v for v in views if v.nbytes)]


def decode(limit_bytes: int) -> Generator[memoryview, None, Frame]:
    """Yield each buffer that the caller must fill entirely; return the frame.

    Raises WireError for what is not a frame or whose blobs exceed ``limit_bytes`` together.
    """
    length = bytearray(_LENGTH.size)
    yield memoryview(length)
    (size,) = _LENGTH.unpack(length)
    if not 0 < size <= HEADER_LIMIT_BYTES:
        raise WireError(f"a header of {size} bytes; allowed: {HEADER_LIMIT_BYTES}")
    text = bytearray(size)
    yield memoryview(text)
    header, sizes = _parse_header(text)
    if sum(sizes) > limit_bytes:
        raise WireError(f"a frame of {sum(sizes)} bytes; allowed: {limit_bytes}")
    blobs = []
    for blob_size in sizes:
        blob = memoryview(bytearray(blob_size))
        if blob_size:
            yield blob
        blobs.append(blob)
    return Frame(header, tuple(blobs))


def _parse_header(text: bytearray) -> tuple[Header, list[int]]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError("a header that is not JSON") from error
    if not isinstance(header, dict):
        raise WireError("a header that is not an object")
    sizes = header.pop("blobs", None)
    if not isinstance(sizes, list) or not all(type(s) is int and s >= 0 for s in sizes):
        raise WireError("a header without the sizes of its blobs")
    return header, sizes


def plain_text(said: object, limit: int) -> str:
    """What a child said as text that every database and message can hold, ``limit`` characters of
    it: no lone surrogate, and no control character but tabs and line ends."""
    text = str(said)[:limit].encode("utf-8", "replace").decode()
    return "".join(
        c if c in "\t\n" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def send(sock: socket.socket, header: Header, blobs: Sequence[Blob] = ()) -> None:
    """Send one frame on a blocking socket."""
    for chunk in encode(header, blobs):
        sock.sendall(chunk)


def receive(sock: socket.socket, limit_bytes: int) -> Frame | None:
    """The next frame on a blocking socket; None when the other side has closed it."""
    decoder = decode(limit_bytes)
    buffer = next(decoder)
    while True:
        while buffer:
            count = sock.recv_into(buffer)
            if not count:
                return None
            buffer = buffer[count:]
        try:
            buffer = next(decoder)
        except StopIteration as done:
            frame: Frame = done.value
            return frame
