"""The name under which layouts ask for an element of each channel at all pixels of a row."""

from __future__ import annotations

_NAME = "repeat "
THEN = ", "
"""Stands between transforms of a layout that follow each other."""


def repetition(count: int) -> str:
    """The transform of a layout that repeats the last dimension ``count`` times."""
    return f"{_NAME}{count}"


def repeated(transform: str, count: int) -> str:
    """The transforms of a layout with ``count`` repetitions instead of those that it asks for."""
    *others, _ = transform.split(THEN)
    return THEN.join((*others, repetition(count)))


def repetitions(transform: str) -> int:
    """How often a layout's transform repeats the last dimension; 0 for another transform."""
    return int(transform.removeprefix(_NAME)) if transform.startswith(_NAME) else 0
