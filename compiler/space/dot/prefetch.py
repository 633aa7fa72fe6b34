"""Hints that bring packed weights to the core before they are multiplied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tunefarm.compiler.space.contraction.apply import LINE_BYTES
from tunefarm.compiler.space.dot.shape import DotProduct
from tunefarm.compiler.space.nests import extent_of
from tunefarm.compiler.target import dtype_bytes
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Const, Expr, Prefetch, Var
from tunefarm.compiler.tir.visit import loads_of, substitute


def prefetch_weights(
    program: PrimFunc,
    dot: DotProduct,
    block: str,
    knob: Mapping[str, int],
    tiles: Sequence[Var],
    reduce: Sequence[Var],
    inside: Sequence[Var],
) -> PrimFunc:
    """Fetch packed weights before their use: some steps ahead, and the next panel bit by bit.

    ``tiles`` are the loops over the tiles of a panel, ``reduce`` those of the sum in ``block``,
    whose last one gets the hints, and ``inside`` the loops in that.
    """
    c = dot.contraction
    node = s.find_block(program, block)
    values = dict(zip((i.var for i in node.iters), node.bindings, strict=True))
    weights = program.params[c.rhs.param or 0]
    load = next(ld for ld in loads_of(node.body) if ld.buffer is weights)
    place: Expr = Const(0)
    for index, extent in zip(load.indices, weights.shape, strict=True):
        place = place * extent + index
    step = substitute(substitute(place, values), dict.fromkeys(inside, Const(0)))
    size = weights.shape[-2] * weights.shape[-1]  # of a group: nv vectors
    line = LINE_BYTES // dtype_bytes(weights.dtype)
    if knob["prefetch"]:
        lines = knob["ku"] * -(-size // line)
        hint = Prefetch(weights, step + knob["prefetch"] * size, lines)
        program = s.prefetch(program, reduce[-1], hint)
    if knob["next_panel"]:
        panel = prod(a.extent for a in dot.words.reduce) * size
        visits = [*tiles, *reduce]
        extents = [extent_of(program, v) for v in visits]
        share = -(-panel // prod(extents))
        visit: Expr = Const(0)
        for var, extent in zip(visits, extents, strict=True):
            visit = visit * extent + var
        start = substitute(step, dict.fromkeys(reduce, Const(0))) + panel
        hint = Prefetch(weights, start + visit * share, max(1, share // line), level=2)
        program = s.prefetch(program, reduce[-1], hint)
    return program
