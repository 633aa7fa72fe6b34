"""What charts draw and people download: named columns of equal length, as JSON or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Cell = float | int | str | None


@dataclass(frozen=True, slots=True)
class Dataset:
    """``columns`` by name, units in the names; ``notes`` says what holds for all rows."""

    name: str
    columns: Mapping[str, tuple[Cell, ...]]
    notes: Mapping[str, Cell] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not any(self.columns.values())


def dataset(
    name: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    notes: Mapping[str, Cell] | None = None,
) -> Dataset:
    """A dataset of rows."""
    found = list(rows)
    turned = {column: tuple(row[i] for row in found) for i, column in enumerate(columns)}
    return Dataset(name, turned, notes or {})


def to_csv(data: Dataset) -> str:
    """A header and a line for each row; what a spreadsheet would take for a formula is quoted."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(data.columns)
    for row in zip(*data.columns.values(), strict=True):
        writer.writerow([_inert(cell) for cell in row])
    return out.getvalue()


def _inert(cell: Cell) -> Cell:
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@") else cell
