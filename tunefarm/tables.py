"""Tables that fit the terminal: columns are shortened or wrapped, then dropped.

Where the output is not a terminal, every column is there at its full width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

GAP = 2
PIPE_WIDTH = 10_000
FILLERS = ("", "–")
DEAR = 6
"""Columns of at least this rank are worth a second line of the names beside them."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column and its cells. Where the line is too narrow, columns with ``least`` are shortened
    to that many characters at least, then the columns of the lowest ``rank`` are left out. A column
    that ``wraps`` is not shortened: columns of ranks below ``DEAR`` leave it their room, and then
    it takes further lines."""

    name: str
    cells: Sequence[str]
    rank: int = 9
    least: int | None = None
    left: bool = False
    wraps: bool = False

    @property
    def width(self) -> int:
        from rich.cells import cell_len

        return max(map(cell_len, (self.name, *self.cells)))

    @property
    def is_empty(self) -> bool:
        return all(cell in FILLERS for cell in self.cells)


def console(stderr: bool = False) -> Console:
    """Standard output, or standard error: a terminal at its width, anything else with whole
    lines."""
    from rich.console import Console

    result = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not result.is_terminal:
        result = Console(
            stderr=stderr, highlight=False, markup=False, emoji=False, width=PIPE_WIDTH
        )
    return result


def fit(columns: Sequence[Column], width: int) -> list[tuple[Column, int]]:
    """The columns that stand in a line of ``width`` characters, each with its own width.

    A column that has nothing to say is left out.
    """
    kept = [c for c in columns if not c.is_empty]
    whole = sum(c.width - _least(c) for c in kept if c.wraps)
    while whole and _needed(kept) + whole > width and min(c.rank for c in kept) < DEAR:
        kept.remove(min(kept, key=lambda c: c.rank))
    while len(kept) > 1 and _needed(kept) > width:
        kept.remove(min(kept, key=lambda c: c.rank))
    spare = width - _needed(kept)
    widths = []
    for column in kept:
        extra = min(spare, column.width - _least(column))
        spare -= extra
        widths.append((column, max(1, min(_least(column) + extra, width))))
    return widths


def _least(column: Column) -> int:
    return column.width if column.least is None else min(column.least, column.width)


def _needed(columns: Sequence[Column]) -> int:
    return sum(map(_least, columns)) + GAP * (len(columns) - 1)


def print_table(out: Console, columns: Sequence[Column]) -> None:
    """Print a table of its own."""
    print_whole(out, table(columns, out.width))


def print_sentence(out: Console, text: str) -> None:
    """Print a sentence: broken between words on a terminal, a single line elsewhere."""
    out.print(text, soft_wrap=not out.is_terminal)


def print_whole(out: Console, content: RenderableType) -> None:
    """Print tables and texts; in a file or a pipe without blanks at the ends of lines."""
    if out.is_terminal:
        out.print(content)
        return
    with out.capture() as capture:
        out.print(content)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    out.print("\n".join(lines), soft_wrap=True)


def table(columns: Sequence[Column], width: int, title: str = "", caption: str = "") -> Table:
    """A table of one line a row, unless a column wraps, at most ``width`` characters wide."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    result = Table(
        title=Text(title, "bold") if title else None,
        caption=Text(caption) if caption else None,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, GAP - 1, 0, 0),
    )
    fitted = fit(columns, width)
    for column, space in fitted:
        result.add_column(
            column.name, justify="left" if column.left else "right",
            no_wrap=not column.wraps, overflow="fold" if column.wraps else "ellipsis", width=space,
        )  # fmt: skip
    for row in zip(*(column.cells for column, _ in fitted), strict=True):
        result.add_row(*map(Text, row))
    return result
