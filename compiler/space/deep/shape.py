"""Which products have long sums, and the parts that these may be cut into."""

from __future__ import annotations

from functools import lru_cache

from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.analysis import Axis, Contraction
from tunefarm.compiler.space.contraction.shape import (
    contraction_of,
    packed_at_build,
    padded,
    row_axes,
    shares_vector,
    sum_dtype,
)
from tunefarm.compiler.target import Target

PARTS = (128, 256, 384, 512, 768)  # terms of a part, about
LEAST_DEPTH = 2048  # of a sum: 49 to 196 rows of 2048 terms take as long by other sketches (Zen 3)
LEAST_ROWS = 16  # fewer wait for their weights, however they are read


@lru_cache(maxsize=64)
def deep_product_of(function: Function, target: Target) -> Contraction | None:
    """A product of float32 rows and constant weights with a long sum; None for others."""
    c = None if target.kind != "llvm" else contraction_of(function)
    if c is None or sum_dtype(c) != "float32" or c.rhs.load.dtype != "float32":
        return None
    plain = len(c.reduce) == 1 and not c.outer and not padded(c) and not shares_vector(c)
    second, last = row_axes(c)
    if not plain or second is not None or last is None or not packed_at_build(c):
        return None
    return c if last.extent >= LEAST_ROWS and parts_of(c) else None


def rows_of(c: Contraction) -> Axis:
    """The axis of the rows."""
    axis = row_axes(c)[1]
    assert axis is not None
    return axis


def parts_of(c: Contraction) -> tuple[int, ...]:
    """Terms that a part may have: those that divide the sum, near the wanted ones."""
    depth = c.reduce[0].extent
    if depth < LEAST_DEPTH:
        return ()
    divisors = [n for n in range(PARTS[0] // 2, 2 * PARTS[-1]) if depth % n == 0]
    near = {min(divisors, key=lambda n: abs(n - wanted)) for wanted in PARTS} if divisors else set()
    return tuple(sorted(near))
