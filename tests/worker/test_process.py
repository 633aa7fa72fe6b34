"""Frames and words of children that nobody should believe."""

from __future__ import annotations

import json

import pytest
from tunefarm.worker.wire import Frame, WireError, decode, plain_text


def frame_of(header: bytes, limit_bytes: int = 100) -> Frame:
    """What a reader makes of these bytes, as a header."""
    data = len(header).to_bytes(4, "little") + header
    decoder = decode(limit_bytes)
    buffer = next(decoder)
    try:
        while True:
            buffer[:], data = data[: len(buffer)], data[len(buffer) :]
            buffer = next(decoder)
    except StopIteration as done:
        frame: Frame = done.value
        return frame


@pytest.mark.parametrize(
    "header, message",
    [
        (b"[" * 100_000, "not JSON"),
        (b'{"a":' * 100_000, "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "not an object"),
        (b"{}", "sizes of its blobs"),
        (b'{"blobs": [-1]}', "sizes of its blobs"),
        (b'{"blobs": [true]}', "sizes of its blobs"),
        (b'{"blobs": [1e9]}', "sizes of its blobs"),
        (b'{"blobs": [101]}', "a frame of 101 bytes"),
        (b'{"blobs": [' + b"9" * 5000 + b"]}", "not JSON"),
        (b'{"blobs": [99999999999999999999]}', "a frame of"),
    ],
)
def test_a_header_that_means_harm_is_no_frame(header: bytes, message: str) -> None:
    with pytest.raises(WireError, match=message):
        frame_of(header)


def test_what_a_child_says_fits_every_database() -> None:
    said = json.loads('"a\\ud800\\u0000b\\u001b[31m\\tc\\n"')
    text = plain_text(said, 100)
    assert (
        text.encode().decode() == "a?\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}[31m\tc\n"
    )
    assert plain_text("é" * 10, 3) == "ééé"
    assert plain_text(None, 10) == "None"
