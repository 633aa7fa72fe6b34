"""A block as the loop nest of its windows, for the features of the cost model."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.columns import whole
from tunefarm.compiler.space.config import Access, Columns, Nest
from tunefarm.compiler.space.inverted_residual.default import cycles
from tunefarm.compiler.space.inverted_residual.knobs import scratch_bytes
from tunefarm.compiler.space.inverted_residual.program import InvertedResidual
from tunefarm.compiler.summary import nominal_flops
from tunefarm.compiler.target import Target

EXTRA = ("mb", "nb", "nv", "roll", "ew", "eu", "dw", "pw", "pv", "pu")


def nest_of(b: InvertedResidual, target: Target, lanes: int, k: Columns) -> Nest:
    """Rows, columns and channels of the depthwise convolution; its operands are the block's."""
    batch, rows, columns, channels = b.depthwise.shape
    outputs = b.project.shape[-1] if b.project is not None else 1
    terms = b.expand.terms if b.expand is not None else 1
    one = np.ones(len(whole(k, "mb")), np.int64)
    panel = np.minimum(whole(k, "nv") * lanes, channels)
    panels = -(-channels // (whole(k, "nv") * lanes))
    axes = {"h": batch * rows, "w": columns, "c": channels, "k": terms, "o": outputs}
    vector = {"h": one, "w": one, "c": lanes * one, "k": one, "o": one}
    register = {**vector, "w": whole(k, "dw"), "k": whole(k, "eu")}
    l1 = {**register, "c": panel, "k": terms * one}
    l2 = {**l1, "h": np.minimum(whole(k, "mb"), rows), "w": columns * one}
    core = {**l2, "c": np.minimum(panel * whole(k, "nb"), channels)}
    if b.project is not None:
        core |= {"c": channels * one, "o": outputs * one}
    down, right = b.depthwise.strides
    first, last = b.expand or b.depthwise, b.project or b.depthwise
    _, height, *rest = first.data_shape
    data = {"c": 1} if b.expand is None else {"k": 1}
    results = {"c": 1} if b.project is None else {"o": 1}
    stored = last.shape[2:]
    extra = {n: whole(k, n).astype(np.float64) for n in EXTRA}
    extra["cycles"] = cycles(b, target, lanes, k)
    extra["scratch_bytes"] = scratch_bytes(b, lanes, k).astype(np.float64)
    return Nest(
        axes,
        frozenset({"k"}),
        (
            Access("data", 4, (batch * height, *rest), ({"h": down}, {"w": right}, data)),
            Access("weights", 4, (terms, channels), ({"k": 1}, {"c": 1}), constant=True),
            Access("out", 4, (axes["h"], *stored), ({"h": 1}, {"w": 1}, results), write=True),
        ),
        {"vector": vector, "register": register, "l1": l1, "l2": l2, "core": core},
        batch * -(-rows // whole(k, "mb")) * -(-channels // core["c"]),
        float(nominal_flops(b.function)) * panels * whole(k, "nv") * lanes / channels,
        extra,
    )  # fmt: skip
