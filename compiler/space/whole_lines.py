"""Reductions over rows that begin inside lines of the cache, line by line.

    for k in 383: S[r] += x[383·r + k]
    ->  for k in 398: if a ≤ k < a + 383: S[r] += x[383·r + k − a]         a = 383·r mod 16

A load of a whole vector that begins anywhere reads two lines, which takes a core as long as two
loads. Counted from the beginning of the line in which its row begins, a vector of terms is a line:
only the first and the last two of a row have lanes that are none of its terms.
"""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.affine import Affine, affine, key_of
from tunefarm.compiler.tir.facts import loads_of
from tunefarm.compiler.tir.ir import Binary, Block, IterVar, Select, Store, Var
from tunefarm.compiler.tir.schedule.tree import blocks, nest_around, store_of
from tunefarm.compiler.tir.visit import seq, substitute

MAX_LINES = 64  # of a row, whose vectors are all written out


def in_whole_lines(program: PrimFunc, lanes: int) -> tuple[PrimFunc, frozenset[str]]:
    """A flat program whose reductions over rows of its parameters read lines of ``lanes`` elements,
    and the names of these reductions."""
    changed = {b.name: _by_lines(b, program, lanes) for b in blocks(program.body)}
    nests = [nest_around(changed[b.name] or b) for b in blocks(program.body)]
    found = frozenset(name for name, block in changed.items() if block is not None)
    return replace(program, body=seq(*nests)), found


def _by_lines(block: Block, program: PrimFunc, lanes: int) -> Block | None:
    """A reduction over rows counted from the beginnings of lines; None for another block."""
    axis, init, store = block.iters[-1] if block.iters else None, block.init, store_of(block)
    if axis is None or axis.kind != "reduce" or not isinstance(init, Store):
        return None
    start = _row_start(block, axis.var, program)
    short = axis.extent < lanes or axis.extent > MAX_LINES * lanes
    if short or start is None or all(c % lanes == 0 for c, _ in start.terms.values()):
        return None
    place = Var(axis.var.name)
    before = start.expr() % lanes
    inside = (place >= before) & (place < before + axis.extent)
    assert isinstance(store.value, Binary)
    term = substitute(store.value.b, {axis.var: place - before})
    value = replace(store.value, b=Select(inside, term, init.value, term.dtype))
    counted = IterVar(place, axis.extent + lanes - 1, axis.kind)
    return replace(block, iters=(*block.iters[:-1], counted), body=replace(store, value=value))


def _row_start(block: Block, axis: Var, program: PrimFunc) -> Affine | None:
    """The element of a parameter at which the row begins that a block reads along an axis; None if
    it reads something else along it too, or rows that begin elsewhere."""
    starts = {}
    for load in loads_of(store_of(block).value):
        forms = [affine(index) for index in load.indices]
        if all(axis not in form.variables() for form in forms):
            continue
        if load.buffer not in program.params or forms[0].coefficient(axis) != 1:
            return None
        start = forms[0] - Affine(0, {axis: (1, axis)})
        starts[key_of(start.expr())] = start
    return next(iter(starts.values())) if len(starts) == 1 else None
