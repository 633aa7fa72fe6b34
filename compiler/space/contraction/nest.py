"""The loop nest of a contraction in numbers, for the features of the cost model."""

from __future__ import annotations

from math import prod

import numpy as np
from tunefarm.compiler.space.analysis import Contraction
from tunefarm.compiler.space.columns import whole
from tunefarm.compiler.space.config import Access, Columns, Nest
from tunefarm.compiler.space.contraction.default import tile_cycles
from tunefarm.compiler.space.contraction.shape import (
    GROUPS_INSIDE,
    PANELS_INSIDE,
    constants,
    groups_of,
    row_axes,
)
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir.affine import affine
from tunefarm.compiler.tir.schedule.tree import store_of

EXTRA = ("ku", "mb", "nb", "pack_lhs", "pack_rhs", "prefetch", "next_panel")


def nest_of(c: Contraction, target: Target, lanes: int, k: Columns) -> Nest:
    second, last = row_axes(c)
    names = c.variables
    axes = {names[i.var]: i.extent for i in c.node.iters}
    count = len(whole(k, "rw"))
    one = np.ones(count, np.int64)
    vector = dict.fromkeys(axes, one) | {c.vector.name: lanes * one}
    register = dict(vector) | {c.vector.name: lanes * whole(k, "nv")}
    depth = c.reduce[-1].extent
    register[c.reduce[-1].name] = np.minimum(whole(k, "ku"), depth)
    for a in c.reduce[:-1]:
        register[a.name] = np.where(whole(k, "ku") > depth, a.extent, one)
    if last:
        register[last.name] = whole(k, "rw")
    if second:
        register[second.name] = whole(k, "rh")
    l1 = dict(register) | {a.name: a.extent * one for a in c.reduce}
    l2 = dict(l1)
    l2[c.vector.name] = np.minimum(register[c.vector.name] * whole(k, "nb"), c.vector.extent)
    blocked = second or last
    if blocked:
        l2[blocked.name] = np.minimum(register[blocked.name] * whole(k, "mb"), blocked.extent)
    if second and last:
        l2[last.name] = last.extent * one
    for a in groups_of(c):
        l2[a.name] = np.where(np.asarray(k["order"]) == GROUPS_INSIDE, a.extent, one)
    spatial = (*c.outer, *c.rows, c.vector)
    blocks = np.ones(count, np.int64)
    executed = 2.0 * prod(a.extent for a in c.reduce) * np.ones(count)
    for a in spatial:
        blocks = blocks * -(-a.extent // l2[a.name])
        tile = register[a.name]
        executed = executed * (-(-a.extent // tile) * tile)
    core = {a: np.maximum(l2[a], 1) for a in axes}
    extra = {n: whole(k, n).astype(np.float64) for n in EXTRA}
    extra["rows_outer"] = (np.asarray(k["order"]) != "nm").astype(np.float64)
    extra["panels_inside"] = np.isin(k["order"], (PANELS_INSIDE, GROUPS_INSIDE)).astype(np.float64)
    extra["cycles"] = tile_cycles(c, target, lanes, k)
    return Nest(
        axes,
        frozenset(a.name for a in c.reduce),
        tuple(accesses_of(c)),
        {"vector": vector, "register": register, "l1": l1, "l2": l2, "core": core},
        blocks,
        executed,
        extra,
    )


def accesses_of(c: Contraction) -> list[Access]:
    """What a contraction reads and writes, for the features."""
    names = c.variables
    store = store_of(c.node)
    found = []
    for label, buffer, indices, constant in (
        ("lhs", c.lhs.load.buffer, c.lhs.load.indices, False),
        ("rhs", c.rhs.load.buffer, c.rhs.load.indices, c.rhs.param in constants(c)),
        ("out", store.buffer, store.indices, False),
    ):
        dims = tuple(
            {names[v]: abs(n) for v, (n, _) in affine(i).terms.items() if v in names}
            for i in indices
        )
        element = dtype_bytes(buffer.dtype)
        found.append(Access(label, element, buffer.shape, dims, label == "out", constant))
    return found
