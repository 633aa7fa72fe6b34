"""Exhaustive search in lexicographic order, for small spaces."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from tunefarm.compiler.space.config import ConfigSpace, Population
from tunefarm.tuner.search.base import Ledger, LedgerSearch, Proposal
from tunefarm.tuner.search.population import layout_of

_CHUNK = 4096


class GridSearch(LedgerSearch):
    """Every valid row once: sketch after sketch, the last knob fastest."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._chunks = _grid_chunks(ledger.space)
        self._waiting = ledger.rows[:0]
        self._returned = ledger.rows[:0]

    def propose(self, count: int) -> Proposal:
        self._waiting = self._ledger.fresh(np.concatenate([self._returned, self._waiting]))
        self._returned = self._returned[:0]
        while len(self._waiting) < count:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            self._waiting = np.concatenate([self._waiting, self._ledger.fresh(chunk)])
        rows, self._waiting = self._waiting[:count], self._waiting[count:]
        return self._claimed(rows, "grid")

    def forget(self, rows: Population) -> None:
        super().forget(rows)
        self._returned = np.concatenate([self._returned, rows])


def _grid_chunks(space: ConfigSpace) -> Iterator[Population]:
    """All rows of the space, ``_CHUNK`` at a time, constraints not applied."""
    layout = layout_of(space)
    for index in range(len(space.sketches)):
        columns = np.flatnonzero(layout.active[index])
        shape = tuple(int(n) for n in layout.choices[columns])
        total = int(np.prod(shape, dtype=object))
        for start in range(0, total, _CHUNK):
            number = np.arange(start, min(start + _CHUNK, total), dtype=np.int64)
            rows = np.zeros((len(number), len(layout.choices)), np.int32)
            rows[:, 0] = index
            for column, size in zip(columns[::-1], shape[::-1], strict=True):
                number, rows[:, column] = np.divmod(number, size)
            yield rows
