"""How values look in a notebook: HTML that is readable on light and on dark pages.

Imported by every layer, in ``_repr_html_`` alone; needs the standard library only. Colours are the
page's own: what is beside the point is faint, lines are of a grey that any ground shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

MOST_ROWS = 30
_LINE = "border-bottom:1px solid rgba(128,128,128,0.35)"
_CELL = f"padding:0.2em 0.9em 0.2em 0;{_LINE};vertical-align:top"
_FAINT = "opacity:0.7"


@dataclass(frozen=True, slots=True)
class Table:
    """A table: the first ``texts`` columns are words, the others numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    texts: int = 1


def page(
    title: str, facts: Mapping[str, object], table: Table | None = None, note: str = ""
) -> str:
    """A title, what is known in a list, a table below; empty facts are left out."""
    told = [(name, str(value)) for name, value in facts.items() if str(value)]
    parts = [f"<strong>{escape(title)}</strong>"]
    if told:
        parts.append(f'<table style="border-collapse:collapse">{"".join(map(_fact, told))}</table>')
    if table is not None and table.rows:
        parts.append(_table(table))
    if note:
        parts.append(f'<div style="{_FAINT}">{escape(note)}</div>')
    return f'<div style="font-variant-numeric:tabular-nums">{"".join(parts)}</div>'


def text(content: str) -> str:
    """A program or another text, with its lines as they are."""
    return f'<pre style="overflow-x:auto">{escape(content)}</pre>'


def _fact(fact: tuple[str, str]) -> str:
    name, value = fact
    label = f'<th scope="row" style="text-align:left;font-weight:normal;{_FAINT};{_CELL}">'
    value_cell = f'<td style="text-align:left;overflow-wrap:anywhere;{_CELL}">'
    return f"<tr>{label}{escape(name)}</th>{value_cell}{escape(value)}</td></tr>"


def _table(table: Table) -> str:
    """The first rows of a table, and how many more there are."""
    head = "".join(
        f'<th style="text-align:{_side(i, table)};font-weight:normal;{_FAINT};{_CELL}">'
        f"{escape(name)}</th>"
        for i, name in enumerate(table.head)
    )
    body = "".join(f"<tr>{_cells(row, table)}</tr>" for row in table.rows[:MOST_ROWS])
    more = len(table.rows) - MOST_ROWS
    rest = f'<div style="{_FAINT}">… and {more} more</div>' if more > 0 else ""
    return (
        '<table style="border-collapse:collapse;margin-top:0.5em">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"
    )


def _cells(row: Iterable[object], table: Table) -> str:
    return "".join(
        f'<td style="text-align:{_side(i, table)};{_CELL}">{escape(str(cell))}</td>'
        for i, cell in enumerate(row)
    )


def _side(column: int, table: Table) -> str:
    return "left" if column < table.texts else "right"
