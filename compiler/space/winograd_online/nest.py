"""The products of the method in numbers, for the features of the cost model."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.columns import whole
from tunefarm.compiler.space.config import Access, Columns, Nest
from tunefarm.compiler.space.winograd.convolution import Convolution
from tunefarm.compiler.space.winograd_online.default import cycles
from tunefarm.compiler.space.winograd_online.knobs import panels, products, tile_columns, tile_rows
from tunefarm.compiler.space.winograd_online.transforms import POINTS, TAPS
from tunefarm.compiler.target import Target


def nest_of(c: Convolution, target: Target, lanes: int, k: Columns) -> Nest:
    """All tiles count as if they took the products of every point."""
    one = np.ones(len(whole(k, "rt")), np.int64)
    rows, columns = tile_rows(c), tile_columns(c)
    axes = {"x": POINTS, "y": POINTS, "t": c.batch * rows * columns, "o": c.outputs, "c": c.inputs}
    vector = {**dict.fromkeys(axes, one), "o": lanes * one}
    register = {**vector, "y": POINTS * one, "t": columns * whole(k, "rt"), "c": whole(k, "ku")}
    l1 = {**register, "c": c.inputs // whole(k, "kb")}
    l2 = {**l1, "x": POINTS * one}
    core = {**l2, "t": axes["t"] * one, "c": c.inputs * one, "o": lanes * whole(k, "nb")}
    executed = np.full(len(one), 2.0 * products(c) * c.inputs * c.outputs)
    extra = {
        **{n: whole(k, n).astype(np.float64) for n in ("kb", "nb")},
        "cycles": cycles(c, target, lanes, k),
    }
    places = {"x": 1}, {"y": 1}, {"t": 1}
    return Nest(
        axes,
        frozenset({"c"}),
        (
            Access("tiles", 4, (POINTS, POINTS, axes["t"], c.inputs), (*places, {"c": 1})),
            Access(
                "weights", 4, (TAPS**2, c.inputs, c.outputs), ({}, {"c": 1}, {"o": 1}),
                constant=True,
            ),
            Access(
                "products", 4, (POINTS, POINTS, axes["t"], c.outputs), (*places, {"o": 1}),
                write=True,
            ),
        ),
        {"vector": vector, "register": register, "l1": l1, "l2": l2, "core": core},
        -(-panels(c, lanes) // whole(k, "nb")),
        executed,
        extra,
    )  # fmt: skip
