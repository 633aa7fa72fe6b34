"""The products of a Winograd convolution as a loop nest, for the features of the cost model."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.columns import whole
from tunefarm.compiler.space.config import Access, Columns, Nest
from tunefarm.compiler.space.winograd.convolution import Convolution
from tunefarm.compiler.space.winograd.counts import points, tile_columns, tile_rows
from tunefarm.compiler.space.winograd.default import cycles
from tunefarm.compiler.space.winograd.ends import multiplied_rows
from tunefarm.compiler.space.winograd.knobs import block_counts
from tunefarm.compiler.space.winograd.memory import tiles_of_block
from tunefarm.compiler.target import Target


def nest_of(c: Convolution, target: Target, lanes: int, k: Columns) -> Nest:
    """Rows are tiles of results; the axis of points counts as many as the smallest tile has."""
    one = np.ones(len(whole(k, "rw")), np.int64)
    products = points(c, k)
    count = int(c.batch * np.max(tile_rows(c, k) * tile_columns(c, k), initial=1))
    axes = {"x": int(np.max(products, initial=1)), "t": count, "o": c.outputs, "c": c.depth}
    vector = {"x": one, "t": one, "o": lanes * one, "c": one}
    register = {"x": one, "t": whole(k, "rw"), "o": lanes * whole(k, "nv"), "c": whole(k, "ku")}
    l1 = {**register, "c": c.depth * one}
    l2 = {**l1, "x": products, "t": tiles_of_block(c, k)}
    core = {**l2, "o": np.minimum(register["o"] * whole(k, "nb"), c.outputs)}
    row_blocks, panel_blocks = block_counts(c, lanes, k)
    executed = 2.0 * row_blocks * multiplied_rows(c, k) * c.depth * c.outputs
    extra = {
        n: whole(k, n).astype(np.float64)
        for n in ("tile_h", "tile_w", "mb", "nb", "by_row", "next_panel")
    }
    extra["cycles"] = cycles(c, target, lanes, k)
    return Nest(
        axes,
        frozenset({"c"}),
        (
            Access("tiles", 4, (axes["x"], count, c.depth), ({"x": 1}, {"t": 1}, {"c": 1})),
            Access(
                "weights", 4, (axes["x"], c.depth, c.outputs), ({"x": 1}, {"c": 1}, {"o": 1}),
                constant=True,
            ),
            Access(
                "products", 4, (axes["x"], count, c.outputs), ({"x": 1}, {"t": 1}, {"o": 1}),
                write=True,
            ),
        ),
        {"vector": vector, "register": register, "l1": l1, "l2": l2, "core": core},
        row_blocks * panel_blocks,
        executed,
        extra,
    )  # fmt: skip
