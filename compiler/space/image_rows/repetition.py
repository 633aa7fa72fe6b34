"""The name under which layouts ask for an element of each channel at all pixels of a row."""

from __future__ import annotations

_NAME = "repeat "


def repetition(count: int) -> str:
    """The transform of a layout that repeats the last dimension ``count`` times."""
    return f"{_NAME}{count}"


def repetitions(transform: str) -> int:
    """How often a layout's transform repeats the last dimension; 0 for another transform."""
    return int(transform.removeprefix(_NAME)) if transform.startswith(_NAME) else 0
