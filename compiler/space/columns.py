"""Columns of knob values, an entry a candidate; and the candidate that costs least of a grid."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from tunefarm.compiler.space.config import Columns, Constraint, Value

Mask: TypeAlias = Any  # NumPy's stubs give comparisons and sums of arrays no single type
Numbers: TypeAlias = Any


def whole(columns: Columns, name: str) -> Numbers:
    """The values of a knob whose choices are whole numbers."""
    return np.asarray(columns[name], np.int64)


def unevenness(parts: Numbers, cores: int) -> Numbers:
    """The parts of the busiest core over those of each if all had the same."""
    return -(-parts // cores) * cores / parts


def allows(constraints: Iterable[Constraint], config: Mapping[str, Value]) -> bool:
    """Whether one config keeps all constraints."""
    columns = {name: np.array([value]) for name, value in config.items()}
    return all(limit.holds(columns)[0] for limit in constraints)


def cheapest(
    choices: Mapping[str, Sequence[Value]],
    fixed: Mapping[str, int],
    constraints: Iterable[Constraint],
    cost: Callable[[Columns], Numbers],
) -> tuple[dict[str, int], float]:
    """The combination of choices that costs least, with the ``fixed`` knobs, and its cost.

    Knobs with choices are whole numbers. Of equal combinations the first is taken, with the last
    knob changing fastest; the cost is infinite where the constraints allow none.
    """
    grid = np.array(np.meshgrid(*choices.values(), indexing="ij"), np.int64)
    k = dict(zip(choices, grid.reshape(len(choices), -1), strict=True))
    k |= {name: np.full(grid[0].size, value) for name, value in fixed.items()}
    allowed = np.all([c.holds(k) for c in constraints], axis=0)
    costs = np.where(allowed, cost(k), np.inf)
    best = int(np.argmin(costs))
    return {name: int(values[best]) for name, values in k.items()}, float(costs[best])
