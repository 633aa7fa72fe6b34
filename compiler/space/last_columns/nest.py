"""A product with columns behind whole vectors as a loop nest, for the cost model's features."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.columns import whole
from tunefarm.compiler.space.config import Columns, Nest
from tunefarm.compiler.space.contraction.nest import accesses_of
from tunefarm.compiler.space.last_columns.default import cycles, heights
from tunefarm.compiler.space.last_columns.program import Product
from tunefarm.compiler.space.nests import busy_cores
from tunefarm.compiler.target import Target

EXTRA = ("ku", "mb", "lw", "lu", "tasks")


def nest_of(p: Product, target: Target, k: Columns) -> Nest:
    """Tiles are those of whole vectors; the operations of the last columns fill their lanes."""
    c, names = p.both, p.both.variables
    axes = {names[i.var]: i.extent for i in c.node.iters}
    rows, columns, terms = (a.name for a in (c.rows[-1], c.vector, c.reduce[-1]))
    one = np.ones(len(whole(k, "rw")), np.int64)
    vector = dict.fromkeys(axes, one) | {columns: p.lanes * one}
    register = vector | {rows: whole(k, "rw"), columns: p.lanes * whole(k, "nv")}
    register[terms] = whole(k, "ku")
    l1 = register | {terms: p.depth * one}
    l2 = l1 | {rows: heights(p, k), columns: p.columns * one}
    core = l2 | {rows: p.rows * one}
    height, width = heights(p, k), p.lanes * whole(k, "nv")
    blocks = -(-p.rows // height)
    tiles = blocks * -(-height // whole(k, "rw")) * whole(k, "rw") * -(-p.whole // width) * width
    last = blocks * -(-height // whole(k, "lw")) * whole(k, "lw") * p.rest
    padded = -(-p.depth // p.lanes) * p.lanes
    extra = {n: whole(k, n).astype(np.float64) for n in EXTRA}
    extra["cycles"] = cycles(p, target, k).astype(np.float64)
    return Nest(
        axes,
        frozenset({terms}),
        tuple(accesses_of(c)),
        {"vector": vector, "register": register, "l1": l1, "l2": l2, "core": core},
        busy_cores(whole(k, "tasks"), target),
        2.0 * (tiles * p.depth + last * padded),
        extra,
    )
