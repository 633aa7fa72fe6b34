"""The largest product of a block as a loop nest, for the features of the cost model."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.config import Access, Columns, Nest
from tunefarm.compiler.space.contraction.knobs import whole
from tunefarm.compiler.space.inverted_residual.default import cycles
from tunefarm.compiler.space.inverted_residual.knobs import scratch_bytes
from tunefarm.compiler.space.inverted_residual.program import InvertedResidual
from tunefarm.compiler.summary import nominal_flops
from tunefarm.compiler.target import Target

EXTRA = ("mb", "nb", "nv", "ew", "eu", "dw", "pw", "pv", "pu")


def nest_of(b: InvertedResidual, target: Target, lanes: int, k: Columns) -> Nest:
    """Rows, columns and channels of the depthwise convolution; its operands are the block's."""
    batch, rows, columns, channels = b.depthwise.shape
    one = np.ones(len(whole(k, "mb")), np.int64)
    terms = b.expand.inputs if b.expand is not None else 1
    axes = {"h": batch * rows, "w": columns, "c": channels, "k": terms}
    vector = {"h": one, "w": one, "c": lanes * one, "k": one}
    register = {**vector, "w": whole(k, "dw"), "k": whole(k, "eu")}
    l1 = {**register, "c": np.minimum(whole(k, "nv") * lanes, channels), "k": terms * one}
    l2 = {**l1, "h": np.minimum(whole(k, "mb"), rows), "w": columns * one}
    panels = -(-channels // (whole(k, "nv") * lanes))
    core = dict(l2)
    if b.project is not None:
        core["c"] = channels * one
    else:
        core["c"] = np.minimum(l1["c"] * whole(k, "nb"), channels)
    tasks = batch * -(-rows // whole(k, "mb")) * -(-channels // core["c"])
    outputs = b.project.shape[-1] if b.project is not None else channels
    extra = {n: whole(k, n).astype(np.float64) for n in EXTRA}
    extra["cycles"] = cycles(b, target, lanes, k)
    extra["scratch_bytes"] = scratch_bytes(b, lanes, k).astype(np.float64)
    return Nest(
        axes,
        frozenset({"k"}),
        (
            Access("data", 4, (axes["h"], columns, terms), ({"h": 1}, {"w": 1}, {"k": 1})),
            Access("weights", 4, (terms, channels), ({"k": 1}, {"c": 1}), constant=True),
            Access("out", 4, (axes["h"], columns, outputs), ({"h": 1}, {"w": 1}, {}), write=True),
        ),
        {"vector": vector, "register": register, "l1": l1, "l2": l2, "core": core},
        tasks,
        float(nominal_flops(b.function)) * panels * whole(k, "nv") * lanes / channels,
        extra,
    )
