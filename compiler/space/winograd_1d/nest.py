"""The products of Winograd's method along rows in numbers, for the features of the cost model."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.columns import whole
from tunefarm.compiler.space.config import Access, Columns, Nest
from tunefarm.compiler.space.winograd.counts import row_points, tile_columns
from tunefarm.compiler.space.winograd_1d.convolution import RowConvolution
from tunefarm.compiler.space.winograd_1d.default import cycles
from tunefarm.compiler.space.winograd_1d.knobs import (
    block_counts,
    input_rows,
    products_of_row,
    summed_rows,
)
from tunefarm.compiler.target import Target


def nest_of(c: RowConvolution, target: Target, lanes: int, k: Columns) -> Nest:
    """Rows are those of the result; tiles and points count as many as the widest tile has."""
    one = np.ones(len(whole(k, "rh")), np.int64)
    products, tiles = row_points(c, k), tile_columns(c, k)
    axes = {
        "x": int(np.max(products, initial=1)), "y": c.batch * c.height,
        "t": int(np.max(tiles, initial=1)), "o": c.outputs, "i": c.row_taps, "c": c.inputs,
    }  # fmt: skip
    vector = {**dict.fromkeys(axes, one), "o": lanes * one}
    register = {
        **vector, "y": whole(k, "rh"), "t": whole(k, "rt"), "o": lanes * whole(k, "nv"),
        "c": whole(k, "ku"),
    }  # fmt: skip
    l1 = {**register, "i": c.row_taps * one, "c": c.inputs * one}
    l2 = {**l1, "x": products, "t": tiles}
    core = {**l2, "o": np.minimum(register["o"] * whole(k, "nb"), c.outputs)}
    row_blocks, panel_blocks = block_counts(c, lanes, k)
    executed = 2.0 * summed_rows(c, k) * products_of_row(c, k) * c.inputs * c.outputs
    extra = {
        **{n: whole(k, n).astype(np.float64) for n in ("tile_w", "nb")},
        "input_rows": input_rows(c, k).astype(np.float64),
        "cycles": cycles(c, target, lanes, k),
    }
    height = c.image[0]
    place = ({"x": 1}, {"y": 1}, {"t": 1}, {"o": 1})
    return Nest(
        axes,
        frozenset({"i", "c"}),
        (
            Access(
                "tiles", 4, (axes["x"], c.batch * height, axes["t"], c.inputs),
                ({"x": 1}, {"y": c.row_stride, "i": 1}, {"t": 1}, {"c": 1}),
            ),
            Access(
                "weights", 4, (axes["x"], c.row_taps, c.inputs, c.outputs),
                ({"x": 1}, {"i": 1}, {"c": 1}, {"o": 1}), constant=True,
            ),
            Access(
                "products", 4, (axes["x"], axes["y"], axes["t"], c.outputs), place, write=True
            ),
        ),
        {"vector": vector, "register": register, "l1": l1, "l2": l2, "core": core},
        row_blocks * panel_blocks,
        executed,
        extra,
    )  # fmt: skip
