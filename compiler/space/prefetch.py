"""Hints that bring to the core what it is about to need: packed weights, and large arrays' parts
that the next tile reads and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod

from tunefarm.compiler.space.nests import extent_of, own_loops
from tunefarm.compiler.target import LINE_BYTES, Target, dtype_bytes
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.affine import affine, element_offset
from tunefarm.compiler.tir.ir import Buffer, Const, Expr, Load, Prefetch, Store, Var, binary
from tunefarm.compiler.tir.schedule.tree import store_of
from tunefarm.compiler.tir.visit import loads_of, substitute

LARGE_SHARE = 2  # of the second cache: arrays beyond it come from the third, or from memory
MIN_ITERATIONS = 32  # of a sum: in shorter ones hints take what they save
DENSE_SHARE = 0.5  # of hints, that ask for what is not there
MOST_ROWS_AT_ONCE = 6  # that are asked for together
LEAST_LINES = 1 / 16  # that an iteration waits for in the mean: hints for fewer cost more


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
    target: Target,
    level: int = 1,
    run: int = 1,
    first: Mapping[Var, int] | None = None,
) -> PrimFunc:
    """Fetch packed weights before their use: some steps ahead, and the next panel bit by bit, into
    the cache of ``level``.

    The knobs are ``next_panel``, of which ``run`` lines side by side are asked for, and
    ``prefetch`` and ``ku`` where steps are hinted at. ``tiles`` are the loops over the tiles of a
    panel, ``reduce`` those of the sum in ``block``, whose last one gets the hints, and ``inside``
    the loops in that; the weights of a step begin where these do, or at the values in ``first``.

    A panel from beyond the second cache would otherwise come in one burst, read by its first tile
    of rows: each tile asks for its share of the next one instead.
    """
    node, buffer = s.find_block(program, block), weights.buffer
    values = dict(zip((i.var for i in node.iters), node.bindings, strict=True))
    load = next(ld for ld in loads_of(node.body) if ld.buffer is buffer)
    place = substitute(element_offset(buffer, load.indices), values)
    begin = {**dict.fromkeys(inside, 0), **(first or {})}
    step = substitute(place, {loop: Const(value) for loop, value in begin.items()})
    if ahead := knob.get("prefetch", 0):
        program = prefetch_ahead(program, weights, step, ahead, knob["ku"], reduce[-1], level)
    if knob["next_panel"]:
        start = substitute(step, dict.fromkeys(reduce, Const(0))) + weights.panel
        visits = (*tiles, *reduce)
        program = prefetch_shares(
            program, buffer, start, weights.panel, visits, target, level=level, run=run
        )
    return program


def prefetch_ahead(
    program: PrimFunc,
    weights: PackedWeights,
    place: Expr,
    ahead: int,
    terms: int,
    loop: Var,
    level: int = 1,
) -> PrimFunc:
    """Every iteration of ``loop``, ``terms`` steps of a sum whose weights begin at ``place``,
    fetches those that are used ``ahead`` steps later."""
    lines = terms * -(-weights.step // _line_elements(weights.buffer))
    hint = Prefetch(weights.buffer, place + ahead * weights.step, lines, level)
    return s.prefetch(program, loop, hint)


def prefetch_shares(
    program: PrimFunc,
    buffer: Buffer,
    start: Expr,
    elements: int,
    visits: Sequence[Var],
    target: Target,
    always: Sequence[int] | None = None,
    level: int = 1,
    run: int = 1,
) -> PrimFunc:
    """Every iteration of the nested loops ``visits`` fetches its share of the elements from
    ``start`` on, into the cache of ``level``. The first ``always`` of each loop fetch all of them,
    where later ones may be left out.

    Shares are whole lines, and the last one ends with the elements: the first iterations may ask
    for lines in front of ``start``, which are there. Where most ask for others, they do so in each
    of the target's ``hint_streams`` parts in turn, or where their lines are as many, each in a part
    of its own, or ``run`` of them; where few do, memory has time enough.

    Hints for the second cache alone come late on Zen 5, where two or more follow each other: a 1×1
    layer took 1.3 × the time. A Zen 4 gains by them where many products read a weight
    (``winograd_online``: 0.74 × the time from memory).
    """
    extents = [extent_of(program, loop) for loop in visits] if always is None else always
    visit: Expr = Const(0)
    for var, extent in zip(visits, extents, strict=True):
        visit = visit * extent + var
    count = prod(extents)
    lines = -(-elements // (count * _line_elements(buffer)))
    share = lines * _line_elements(buffer)
    first = start + (elements - count * share)
    streams = gcd(target.hint_streams, count)
    if lines >= target.hint_streams > 1:
        run = gcd(run, lines)
        place, apart = first + visit * (run * _line_elements(buffer)), count * run
        hint = Prefetch(buffer, place, lines, level, apart=apart, run=run)
        return s.prefetch(program, visits[-1], hint)
    if streams > 1 and elements > DENSE_SHARE * count * share:
        visit = visit % streams * (count // streams) + visit // streams
    hint = Prefetch(buffer, first + visit * share, lines, level)
    return s.prefetch(program, visits[-1], hint)


def prefetch_next_rows(
    program: PrimFunc, block: str, operand: Buffer, tile: Var, rows: int, visit: Var
) -> PrimFunc:
    """The loop ``visit`` over a sum asks bit by bit for the ``rows`` of an intermediate operand of
    ``block`` that the next iteration of ``tile`` reads: they lie behind those of this one.

    They are in the second cache, and loads from there wait behind hints for weights from memory:
    products of 14² × 256 by Winograd's method take 0.84 × the time so (Emerald Rapids, in C).
    """
    node = s.find_block(program, block)
    values = dict(zip((i.var for i in node.iters), node.bindings, strict=True))
    load = next(ld for ld in loads_of(node.body) if ld.buffer is operand)
    start = {**dict.fromkeys(own_loops(program, block, tile), Const(0)), tile: tile + 1}
    first = tuple(substitute(substitute(i, values), start) for i in load.indices)
    elements = rows * (operand.shape[-1] + operand.padding)
    lines = -(-elements // (extent_of(program, visit) * _line_elements(operand)))
    offset = visit * (lines * _line_elements(operand))
    return s.prefetch(program, visit, Prefetch(operand, offset, lines, first=first))


def is_large(buffer: Buffer, target: Target, share: int = LARGE_SHARE) -> bool:
    """Whether a buffer takes more than this share of the second cache, which then holds little of
    it when another kernel has written it."""
    return prod(buffer.shape) * dtype_bytes(buffer.dtype) > target.l2_bytes // share


def prefetch_next_tile(
    program: PrimFunc, block: str, tile: Var, visits: Sequence[Var], target: Target, reads: int = 1
) -> PrimFunc:
    """The loops ``visits`` of a tile's sum ask bit by bit for what ``block`` reads and writes of
    large arrays in the next iteration of ``tile``, which comes to it ``reads`` times: all but the
    first time it is in the second cache.

    A tile's rows are a few lines each, too short for the processor to foresee what follows, and
    hints in one burst at a tile's start would wait as its loads do. A 1×1 layer of 56² pixels from
    64 channels to 256 with a residual takes 0.74 to 0.92 × the time so (Zen 4). Long sums have no
    need of them: 1024³ took 1.06 to 1.15 × the time with them (Zen 3).
    """
    node = s.find_block(program, block)
    values = dict(zip((i.var for i in node.iters), node.bindings, strict=True))
    store = store_of(node)
    own = {v: extent_of(program, v) for v in own_loops(program, block, tile)}
    accesses: list[Store | Load] = [store, *loads_of(store.value)]
    for access in accesses:
        buffer = access.buffer
        if buffer not in program.params or not is_large(buffer, target):
            continue
        place = affine(substitute(element_offset(buffer, access.indices), values))
        step = place.coefficient(tile)
        if not step or not place.variables() & own.keys() <= place.terms.keys():
            continue
        start = substitute(place.expr(), dict.fromkeys(own, Const(0))) + step
        steps = [(place.coefficient(v), extent) for v, extent in own.items()]
        hint = _shared_out(program, buffer, start, steps, visits, reads)
        program = s.prefetch(program, visits[-1], hint) if hint else program
    return program


def prefetch_later_strip(
    program: PrimFunc,
    block: str,
    buffer: Buffer,
    row: Var,
    strip: Var,
    ahead: int,
    lines: int = 1,
) -> PrimFunc:
    """Each iteration of ``row`` asks for the ``lines`` of a buffer up to the one that ``block``
    reads or writes last in it, ``ahead`` iterations of ``strip`` later.

    A strip is some lines of each of many rows, one below the other, too short for the processor to
    foresee what follows. Stores wait for their lines as loads do, and fill the queue of those that
    wait.
    """
    node = s.find_block(program, block)
    store = store_of(node)
    accesses: list[Store | Load] = [store, *loads_of(store.value)]
    access = next(a for a in accesses if a.buffer is buffer)
    values = dict(zip((i.var for i in node.iters), node.bindings, strict=True))
    place = substitute(element_offset(buffer, access.indices), values)
    own = own_loops(program, block, row)
    last: dict[Var, Expr] = {loop: Const(extent_of(program, loop) - 1) for loop in own}
    end = substitute(place, {**last, strip: strip + ahead})
    start = end - (lines - 1) * _line_elements(buffer)
    return s.prefetch(program, row, Prefetch(buffer, start, lines))


def prefetch_rows_below(
    program: PrimFunc, block: str, operand: Buffer, tiles: Sequence[Var], visit: Var
) -> PrimFunc:
    """The loop ``visit`` of a tile's sum asks bit by bit for the lines of an image's planes that
    ``block`` reads in the next iteration of the first of ``tiles``, and not yet in this one.

    A few lines of each of many rows are too short for the processor to foresee what follows: the
    first layer of a network, 3 × 3 / 2 of three planes of 224², takes 290 µs where the image comes
    from memory and 84 where it is near; by hints (Zen 5) 105 and 85.
    """
    node = s.find_block(program, block)
    values = dict(zip((i.var for i in node.iters), node.bindings, strict=True))
    own = {v: extent_of(program, v) for v in own_loops(program, block, tiles[-1])}
    load = next(ld for ld in loads_of(node.body) if ld.buffer is operand)
    first: list[Expr] = []
    counts = []
    for index in load.indices:
        place = affine(substitute(index, values))
        span = 1 + sum(abs(place.coefficient(v)) * (n - 1) for v, n in own.items())
        count = min(span, place.coefficient(tiles[0]) or span)
        below = {**dict.fromkeys(own, Const(0)), tiles[0]: tiles[0] + 1}
        first.append(substitute(place.expr(), below) + (span - count))
        counts.append(count)
    *rows, width = counts
    iterations, lines = extent_of(program, visit), -(-width // _line_elements(operand))
    each = -(-prod(rows) // iterations)
    if each > MOST_ROWS_AT_ONCE:
        return program
    for number in range(each):
        row: Expr = visit * each + number
        if each * iterations > prod(rows):
            row = binary("min", row, prod(rows) - 1)
        at = list(first)
        for dim in reversed(range(len(rows))):
            at[dim], row = at[dim] + row % rows[dim], row // rows[dim]
        hint = Prefetch(operand, element_offset(operand, at), lines)
        program = s.prefetch(program, visit, hint)
    return program


def _shared_out(
    program: PrimFunc,
    buffer: Buffer,
    start: Expr,
    steps: Sequence[tuple[int, int]],
    visits: Sequence[Var],
    reads: int,
) -> Prefetch | None:
    """What an iteration of ``visits`` asks for, of the elements from ``start`` on that loops of
    ``steps``, their distances and extents, go to; None if there are too few iterations, or too few
    lines that are not there."""
    run, rows = 1, []
    for step, extent in sorted(steps):
        if step <= run:
            run += step * (extent - 1)
        elif extent > 1:
            rows.append((step, extent))
    count = prod(extent for _, extent in rows)
    iterations = prod(extent_of(program, var) for var in visits)
    if iterations < max(MIN_ITERATIONS, count):
        return None
    visit: Expr = Const(0)
    for var in visits:
        visit = visit * extent_of(program, var) + var
    elements = _line_elements(buffer)
    lines = -(-run // elements)
    if lines * count < LEAST_LINES * iterations * reads:
        return None
    each = -(-lines // (iterations // count))
    parts = -(-lines // each)  # iterations of a row
    if iterations > parts * count:
        visit = binary("min", visit, parts * count - 1)
    if not rows:
        return Prefetch(buffer, start + visit * (each * elements), each)
    row, place = visit // parts, start + visit % parts * (each * elements)
    for step, extent in rows[:-1]:
        place, row = place + row % extent * step, row // extent
    return Prefetch(buffer, place + row * rows[-1][0], each)


def _line_elements(buffer: Buffer) -> int:
    return LINE_BYTES // dtype_bytes(buffer.dtype)
