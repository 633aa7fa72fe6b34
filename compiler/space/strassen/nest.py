"""The products of Strassen's method as a loop nest, for the features of the cost model."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.columns import whole
from tunefarm.compiler.space.config import Access, Columns, Nest
from tunefarm.compiler.space.strassen.default import cycles
from tunefarm.compiler.space.strassen.knobs import block_counts
from tunefarm.compiler.space.strassen.program import Product
from tunefarm.compiler.target import Target

EXTRA = ("mb", "nb", "by_tile", "next_panel")


def nest_of(p: Product, target: Target, k: Columns) -> Nest:
    """Rows are groups of rows of the result, columns and terms those of one product."""
    groups, terms, columns = p.extents
    one = np.ones(len(whole(k, "rw")), np.int64)
    axes = {"x": p.products, "t": groups, "o": columns, "c": terms}
    vector = {"x": one, "t": one, "o": p.lanes * one, "c": one}
    register = {"x": one, "t": whole(k, "rw"), "o": p.lanes * whole(k, "nv"), "c": whole(k, "ku")}
    l1 = {**register, "c": terms * one}
    rows = np.minimum(whole(k, "mb") * whole(k, "rw"), groups)
    l2 = {**l1, "x": p.products * one, "t": rows}
    core = {**l2, "o": np.minimum(register["o"] * whole(k, "nb"), columns)}
    row_blocks, panel_blocks = block_counts(p, k)
    executed = np.full(len(one), 2.0 * p.products * groups * terms * columns)
    extra = {n: whole(k, n).astype(np.float64) for n in EXTRA}
    extra["cycles"] = cycles(p, target, k)
    product, row, term, column = ({n: 1} for n in ("x", "t", "c", "o"))
    return Nest(
        axes,
        frozenset({"c"}),
        (
            Access("lefts", 4, (p.products, groups, terms), (product, row, term)),
            Access(
                "weights",
                4,
                (p.products, terms, columns),
                (product, term, column),
                constant=not p.variable,
            ),
            Access(
                "products", 4, (p.products, groups, columns), (product, row, column), write=True
            ),
        ),
        {"vector": vector, "register": register, "l1": l1, "l2": l2, "core": core},
        row_blocks * panel_blocks,
        executed,
        extra,
    )
