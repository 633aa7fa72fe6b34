"""Pages of lists by keyset: a cursor says after which row the next page begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Row = TypeVar("Row")
PAGE_ROWS = 50


class BadCursor(ValueError):
    """A cursor that no page gave out."""


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """``next`` is the cursor of the following page, empty on the last."""

    rows: tuple[Row, ...]
    next: str = ""


def page_of(
    found: Sequence[Row], limit: int, cursor_of: Callable[[Row], tuple[object, ...]]
) -> Page[Row]:
    """A page of the first ``limit`` rows of one more than that were asked for."""
    rows = tuple(found[:limit])
    if len(found) <= limit:
        return Page(rows)
    return Page(rows, "~".join(str(part) for part in cursor_of(rows[-1])))


def parse_cursor(text: str, *kinds: Callable[[str], object]) -> tuple[object, ...] | None:
    """The parts of a cursor, None for the first page; BadCursor if it is none."""
    if not text:
        return None
    parts = text.split("~", len(kinds) - 1)
    try:
        return tuple(kind(part) for kind, part in zip(kinds, parts, strict=True))
    except ValueError:
        raise BadCursor(
            f"{text[:40]!r} is no cursor of this list; leave cursor out for its first page"
        ) from None
