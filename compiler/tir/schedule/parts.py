"""Primitives on parts of a block: ``divide`` makes two of one, ``join`` runs two nests in turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, permutations
from typing import TypeAlias

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir.affine import interval
from tunefarm.compiler.tir.ir import (
    Block,
    Buffer,
    Expr,
    For,
    Load,
    LoopKind,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir.schedule.tree import (
    blocks,
    constant_extent,
    find_block,
    find_loop,
    fresh_name,
    nest_around,
    path_to,
    replace_stmt,
)
from tunefarm.compiler.tir.transform.simplify import simplify_stmt
from tunefarm.compiler.tir.visit import loads_of, seq, substitute_stmt

Box: TypeAlias = tuple[tuple[int, int], ...]


def divide(program: PrimFunc, block: str, axis: int, at: int) -> tuple[PrimFunc, str]:
    """Compute the elements of a block from ``at`` on, along its iterator number ``axis``, by a
    block of their own behind it. Its loops must be as they were made. Returns its name too.

    for i in 4: for j in 17: C[i, j] = f(i, j)
    ->  for i in 4: for j in 16: C[i, j] = f(i, j);  for i in 4: for j in 1: C[i, j + 16] = f(…)
    """
    node = find_block(program, block)
    divided = node.iters[axis]
    if divided.kind != "spatial" or not 0 < at < divided.extent:
        raise ScheduleError(
            f"block {block} is divided at {at}: it must be inside of the extent, "
            f"{divided.extent}, of a spatial iterator"
        )
    nest = _own_nest(program, node)
    name = fresh_name(program, f"{block}_rest")
    parts = [
        _part(node, axis, start, extent, name if start else block)
        for start, extent in ((0, at), (at, divided.extent - at))
    ]
    return replace_stmt(program, nest, seq(*map(nest_around, parts))), name


def _own_nest(program: PrimFunc, node: Block) -> For:
    """The loops of an unscheduled block; ScheduleError if they are others."""
    path = [s for s in path_to(program.body, node) if isinstance(s, For)]
    plain = [s.var for s in path] == list(node.bindings) and node.predicate is None
    serial = all(s.kind is LoopKind.SERIAL for s in path)
    if not plain or not serial or len(blocks(path[0])) > 1:
        raise ScheduleError(f"the loops of block {node.name} are scheduled; divide it before")
    return path[0]


def _part(node: Block, axis: int, start: int, extent: int, name: str) -> Block:
    """Some of a block's elements, its iterators anew, conditions decided where they can be."""
    iters = tuple(replace(i, var=Var(i.var.name)) for i in node.iters)
    shorter = replace(iters[axis], extent=extent)
    values: dict[Var, Expr] = {o.var: n.var for o, n in zip(node.iters, iters, strict=True)}
    if start:
        values[node.iters[axis].var] = shorter.var + start
    iters = (*iters[:axis], shorter, *iters[axis + 1 :])
    ranges = {i.var: (0, i.extent - 1) for i in iters}

    def part(stmt: Stmt) -> Stmt:
        simple = simplify_stmt(substitute_stmt(stmt, values), ranges)
        assert simple is not None
        return simple

    init = None if node.init is None else part(node.init)
    return Block(name, iters, (), part(node.body), init)


def join(program: PrimFunc, first: Var, second: Var) -> PrimFunc:
    """Run a loop's iterations each behind the same one of the loop in front of it.

    for i in 8: A(i);  for j in 8: B(j)   ->   for i in 8: { A(i); B(i) }

    What one of them writes the other must not touch.
    """
    loops = [find_loop(program, v) for v in (first, second)]
    around = path_to(program.body, loops[0])
    parent = around[-2] if len(around) > 1 else None
    follows = isinstance(parent, Seq) and any(
        a is loops[0] and b is loops[1] for a, b in pairwise(parent.stmts)
    )
    if not follows:
        raise ScheduleError(f"loop {second.name} does not follow loop {first.name}")
    extents = [constant_extent(loop) for loop in loops]
    plain = all(loop.kind is LoopKind.SERIAL and not loop.prefetch for loop in loops)
    if extents[0] != extents[1] or not plain:
        raise ScheduleError(
            f"loops {first.name} and {second.name} are not both serial, without hints, and of as "
            f"many iterations: {extents[0]} and {extents[1]}"
        )
    _check_apart(*loops)
    moved = substitute_stmt(loops[1].body, {second: first})
    joined = replace(loops[0], body=seq(loops[0].body, moved))
    removed = replace_stmt(program, loops[1], None)
    return replace_stmt(removed, find_loop(removed, first), joined)


def _check_apart(first: For, second: For) -> None:
    """ScheduleError if one of two loops may touch what the other writes."""
    for one, other in permutations((first, second)):
        touched = [*_accesses(other)]
        for buffer, writes, place in _accesses(one):
            others = (box for b, _, box in touched if b is buffer and writes)
            if any(_meet(place, box) for box in others):
                raise ScheduleError(
                    f"loop {one.var.name} writes {buffer.name}, and loop {other.var.name} may "
                    "touch the same elements"
                )


def _accesses(loop: For) -> Iterator[tuple[Buffer, bool, Box]]:
    """Each buffer that a loop's blocks touch, whether they write it, and between which indices."""
    for block in blocks(loop):
        ranges = {i.var: (0, i.extent - 1) for i in block.iters}
        accesses: list[Store | Load] = []
        for stmt in (block.body, block.init):
            if isinstance(stmt, Store):
                accesses += [stmt, *loads_of(stmt)]
        for access in accesses:
            box = tuple(interval(i, ranges) for i in access.indices)
            yield access.buffer, isinstance(access, Store), box


def _meet(one: Box, other: Box) -> bool:
    """Whether two boxes overlap in all dimensions."""
    return all(a[0] <= b[1] and b[0] <= a[1] for a, b in zip(one, other, strict=True))
