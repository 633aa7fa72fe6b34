"""The two products of an attention as one loop nest, for the features of the cost model."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.attention.default import cycles
from tunefarm.compiler.space.attention.knobs import blocks_of, stack_bytes
from tunefarm.compiler.space.attention.program import Attention
from tunefarm.compiler.space.columns import whole
from tunefarm.compiler.space.config import Access, Columns, Nest
from tunefarm.compiler.target import Target


def nest_of(a: Attention, target: Target, lanes: int, k: Columns) -> Nest:
    """Axes: heads, queries, keys, and the sizes of a head's keys (d) and values (e)."""
    one = np.ones(len(whole(k, "nq")), np.int64)
    q, n, d, e = (axis.extent for axis in (a.query, a.key, a.depth, a.value))
    axes = {"h": a.heads, "q": q, "k": n, "d": d, "e": e}
    vector = {"h": one, "q": lanes * one, "k": one, "d": one, "e": lanes * one}
    register = {
        "h": one,
        "q": lanes * whole(k, "nq"),
        "k": whole(k, "rk"),
        "d": whole(k, "ku"),
        "e": lanes * whole(k, "nv"),
    }
    l1 = {**register, "d": d * one}
    l2 = {**l1, "k": n * one, "e": e * one}
    blocks = blocks_of(a, lanes, k)
    queries = blocks / a.heads * register["q"]
    executed = 2.0 * a.heads * queries * (-(-n // register["k"]) * register["k"] * d + n * e)
    extra = {name: whole(k, name).astype(np.float64) for name in ("ku", "rv", "nv")}
    extra["cycles"] = cycles(a, target, lanes, k)
    extra["stack"] = stack_bytes(a, lanes, k).astype(np.float64)
    return Nest(
        axes,
        frozenset({"k", "d"}),
        (
            Access("queries", 4, (a.heads, q, d), ({"h": 1}, {"q": 1}, {"d": 1})),
            Access("keys", 4, (a.heads, n, d), ({"h": 1}, {"k": 1}, {"d": 1})),
            Access("values", 4, (a.heads, n, e), ({"h": 1}, {"k": 1}, {"e": 1})),
            Access("out", 4, (a.heads, q, e), ({"h": 1}, {"q": 1}, {"e": 1}), write=True),
        ),
        {"vector": vector, "register": register, "l1": l1, "l2": l2, "core": l2},
        blocks,
        executed,
        extra,
    )
