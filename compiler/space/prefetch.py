"""Hints that bring packed weights to the core before they are multiplied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tunefarm.compiler.space.nests import extent_of
from tunefarm.compiler.target import LINE_BYTES, dtype_bytes
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Buffer, Const, Expr, Prefetch, Var
from tunefarm.compiler.tir.visit import loads_of, substitute


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """A buffer that is packed panel by panel: elements of one step of a sum, and of a panel."""

    buffer: Buffer
    step: int
    panel: int


def prefetch_weights(
    program: PrimFunc,
    block: str,
    weights: PackedWeights,
    knob: Mapping[str, int],
    tiles: Sequence[Var],
    reduce: Sequence[Var],
    inside: Sequence[Var],
) -> PrimFunc:
    """Fetch packed weights before their use: some steps ahead, and the next panel bit by bit.

    ``tiles`` are the loops over the tiles of a panel, ``reduce`` those of the sum in ``block``,
    whose last one gets the hints, and ``inside`` the loops in that.

    A panel from beyond the second cache would otherwise come in one burst, read by its first tile
    of rows: each tile asks for its share of the next one instead.
    """
    node, buffer = s.find_block(program, block), weights.buffer
    values = dict(zip((i.var for i in node.iters), node.bindings, strict=True))
    load = next(ld for ld in loads_of(node.body) if ld.buffer is buffer)
    place: Expr = Const(0)
    for index, extent in zip(load.indices, buffer.shape, strict=True):
        place = place * extent + index
    step = substitute(substitute(place, values), dict.fromkeys(inside, Const(0)))
    if knob["prefetch"]:
        program = prefetch_ahead(program, weights, step, knob["prefetch"], knob["ku"], reduce[-1])
    if knob["next_panel"]:
        start = substitute(step, dict.fromkeys(reduce, Const(0))) + weights.panel
        program = prefetch_shares(program, buffer, start, weights.panel, (*tiles, *reduce))
    return program


def prefetch_ahead(
    program: PrimFunc, weights: PackedWeights, place: Expr, ahead: int, terms: int, loop: Var
) -> PrimFunc:
    """Every iteration of ``loop``, ``terms`` steps of a sum whose weights begin at ``place``,
    fetches those that are used ``ahead`` steps later."""
    lines = terms * -(-weights.step // _line_elements(weights.buffer))
    hint = Prefetch(weights.buffer, place + ahead * weights.step, lines)
    return s.prefetch(program, loop, hint)


def prefetch_shares(
    program: PrimFunc,
    buffer: Buffer,
    start: Expr,
    elements: int,
    visits: Sequence[Var],
    always: Sequence[int] | None = None,
    level: int = 1,
) -> PrimFunc:
    """Every iteration of the nested loops ``visits`` fetches its share of the elements from
    ``start`` on, into the cache of ``level``. The first ``always`` of each loop fetch all of them,
    where later ones may be left out.

    Shares are whole lines, and the last one ends with the elements: the first iterations may ask
    for lines in front of ``start``, which are there. Hints for the second cache alone come late on
    Zen 5, where two or more follow each other: a 1×1 layer took 1.3 × the time. A Zen 4 gains by
    them where many products read a weight (``winograd_online``: 0.74 × the time from memory).
    """
    extents = [extent_of(program, loop) for loop in visits] if always is None else always
    visit: Expr = Const(0)
    for var, extent in zip(visits, extents, strict=True):
        visit = visit * extent + var
    lines = -(-elements // (prod(extents) * _line_elements(buffer)))
    share = lines * _line_elements(buffer)
    first = start + (elements - prod(extents) * share)
    hint = Prefetch(buffer, first + visit * share, lines, level)
    return s.prefetch(program, visits[-1], hint)


def _line_elements(buffer: Buffer) -> int:
    return LINE_BYTES // dtype_bytes(buffer.dtype)
