"""The products of a pooled convolution as a loop nest, for the features of the cost model."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.columns import whole
from tunefarm.compiler.space.config import Access, Columns, Nest
from tunefarm.compiler.space.pooled_winograd.default import cycles
from tunefarm.compiler.space.pooled_winograd.knobs import block_tiles, held_bytes, of_bands
from tunefarm.compiler.space.pooled_winograd.program import Pooled
from tunefarm.compiler.space.winograd.counts import points, tile_columns
from tunefarm.compiler.target import Target

EXTRA = ("tile_h", "tile_w", "rows", "by_row", "next_panel", "pool_w", "pool_v")


def nest_of(p: Pooled, target: Target, lanes: int, k: Columns) -> Nest:
    """Rows are tiles of the convolution's results, those of all blocks; the axis of points counts
    as many as the smallest tile has."""
    c, one = p.conv, np.ones(len(whole(k, "rw")), np.int64)
    tasks = c.batch * of_bands(p, k, lambda b: b.count)
    products, block = points(c, k), block_tiles(p, k) * tile_columns(c, k)
    count = int(np.max(tasks * block, initial=1))
    axes = {"x": int(np.max(products, initial=1)), "t": count, "o": c.outputs, "c": c.depth}
    vector = {"x": one, "t": one, "o": lanes * one, "c": one}
    register = {"x": one, "t": whole(k, "rw"), "o": lanes * whole(k, "nv"), "c": whole(k, "ku")}
    l1 = {**register, "x": products, "c": c.depth * one}
    l2 = {**l1, "t": tile_columns(c, k), "o": c.outputs * one}
    core = {**l2, "t": block}
    extra = {n: whole(k, n).astype(np.float64) for n in EXTRA}
    extra["cycles"] = cycles(p, target, lanes, k)
    extra["scratch_bytes"] = held_bytes(p, lanes, k).astype(np.float64)
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
        tasks,
        2.0 * tasks * block * products * c.depth * c.outputs,
        extra,
    )  # fmt: skip
