"""What a request may hold: how long its texts, how many its items, how great its numbers.

Everything that a caller sends ends in this process's memory or in the database, so all of it is
bounded here, field by field, whichever message it stands in.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from tunefarm.proto.errors import InvalidRequest

MAX_TEXT = 4096
"""Characters of a text that has no line in ``LONG``."""
LONG = {
    "tunefarm.v1.Workload.text": 4 << 20,
    "tunefarm.v1.SubmitRequest.WorkloadsEntry.value": 4 << 20,
    "tunefarm.v1.Job.OptionsEntry.value": 64 << 10,
    "tunefarm.v1.Job.message": 256 << 10,
    "tunefarm.v1.FinishJobRequest.message": 256 << 10,
    "tunefarm.v1.Trial.message": 256 << 10,
    "tunefarm.v1.Trial.stderr_tail": 64 << 10,
}
MAX_COUNT = 10_000
"""Items of a list, and entries of a map."""
MAX_NUMBER = 2**31 - 1
"""Magnitude of a whole number that has no line in ``GREAT``: that of a column."""
GREAT = frozenset(
    {
        "tunefarm.v1.Workload.flops",
        "tunefarm.v1.ConfigValue.number",
        "tunefarm.v1.CollectRequest.cursor",
        "tunefarm.v1.WatchRequest.cursor",
        "tunefarm.v1.HistoryRequest.cursor",
        "tunefarm.v1.LeaseCall.number",
    }
)
OPEN_ENDED = frozenset({"tunefarm.v1.Trial.predicted", "tunefarm.v1.TrialRequest.predicted"})
"""Numbers that may be infinite or none: what a model predicts."""

MAX_WAIT_S = 60.0
"""How long a call may wait for news."""

Check = Callable[[Any], None]


def wait_of(wait_s: float) -> float:
    """How long a call waits that asks for so long."""
    return min(max(wait_s, 0.0), MAX_WAIT_S)


def read(method: str, max_bytes: int, parse: Callable[[bytes], Message], content: bytes) -> Message:
    """The request in a call's bytes; InvalidRequest if it is too long, or none at all."""
    check_length(method, max_bytes, len(content))
    try:
        return parse(content)
    except DecodeError:
        raise InvalidRequest(f"the request of {method} is no message of tunefarm's") from None


def check_length(method: str, max_bytes: int, length: int) -> None:
    """InvalidRequest if a request of so many bytes is too long."""
    if length > max_bytes:
        raise InvalidRequest(f"the request of {method} has {length} bytes; {max_bytes} are allowed")


def check(message: Message) -> None:
    """InvalidRequest if a field of the message holds too much, with which and how much."""
    for name, look in _checks(message.DESCRIPTOR):
        value = getattr(message, name)
        if value:
            look(value)


def check_texts(texts: Mapping[str, str]) -> None:
    """InvalidRequest unless the workloads' keys are those of their texts: under another's key a
    text would take its place in the database."""
    for key, text in texts.items():
        if text and hashlib.sha256(text.encode()).hexdigest() != key:
            raise InvalidRequest(f"workload {key[:12]} is not the SHA-256 of the text sent with it")


@cache
def _checks(kind: Descriptor) -> tuple[tuple[str, Check], ...]:
    return tuple((field.name, _check_of(field)) for field in kind.fields if _is_bounded(field))


def _is_bounded(field: FieldDescriptor) -> bool:
    return field.type not in (FieldDescriptor.TYPE_BOOL, FieldDescriptor.TYPE_ENUM)


def _check_of(field: FieldDescriptor) -> Check:
    """What looks at a field of a message, a list or a map."""
    if not field.is_repeated:
        return _check_of_one(field)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return _check_of_map(field.full_name, _check_of_one(key), _check_of_one(value))
    each = _check_of_one(field)

    def look(items: Any) -> None:
        check_count(field.full_name, items)
        for item in items:
            each(item)

    return look


def _check_of_map(name: str, key: Check, value: Check) -> Check:
    def look(entries: Any) -> None:
        check_count(name, entries)
        for one, held in entries.items():
            key(one)
            value(held)

    return look


def _check_of_one(field: FieldDescriptor) -> Check:
    """What looks at one value of a field."""
    name = field.full_name
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_MESSAGE:
            return check
        case FieldDescriptor.CPPTYPE_STRING:
            most = LONG.get(name, MAX_TEXT)
            return lambda text: _check_text(name, most, text)
        case FieldDescriptor.CPPTYPE_DOUBLE:
            return _nothing if name in OPEN_ENDED else lambda number: _check_finite(name, number)
        case FieldDescriptor.CPPTYPE_INT64:
            return _nothing if name in GREAT else lambda number: _check_number(name, number)
        case _:
            return _nothing


def _nothing(_: object) -> None:
    pass


def check_count(name: str, items: Any) -> None:
    """InvalidRequest if a list or map of this name has too many items."""
    if len(items) > MAX_COUNT:
        raise InvalidRequest(f"{_short(name)} has {len(items)} items; {MAX_COUNT} are allowed")


def _check_text(name: str, most: int, text: str) -> None:
    if len(text) > most:
        raise InvalidRequest(f"{_short(name)} has {len(text)} characters; {most} are allowed")
    if "\0" in text:
        raise InvalidRequest(f"{_short(name)} has a character NUL, which is not allowed")


def _check_finite(name: str, number: float) -> None:
    if not math.isfinite(number):
        raise InvalidRequest(f"{_short(name)} is {number}; write a finite number")


def _check_number(name: str, number: int) -> None:
    if not -MAX_NUMBER <= number <= MAX_NUMBER:
        raise InvalidRequest(f"{_short(name)} is {number}; {MAX_NUMBER} is the most")


def _short(name: str) -> str:
    """The name of a field, as the .proto files say it, without the package."""
    return name.removeprefix("tunefarm.v1.").replace("Entry.", ".")
