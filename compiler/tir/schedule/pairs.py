"""Primitives that combine the terms of a reduction by pairs instead of one after the other."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir.facts import variables
from tunefarm.compiler.tir.ir import (
    Binary,
    Block,
    Buffer,
    Const,
    Expr,
    For,
    IterVar,
    Load,
    PrimFunc,
    Stmt,
    Store,
    Var,
    binary,
)
from tunefarm.compiler.tir.schedule.tree import (
    blocks,
    constant_extent,
    find_block,
    find_loop,
    fresh_name,
    path_to,
    replace_stmt,
    store_of,
)
from tunefarm.compiler.tir.visit import seq, substitute


def halve_reduction(program: PrimFunc, block: str, loop: Var) -> PrimFunc:
    """Combine each term with the one half as far on: a chain of so many takes their latencies one
    after the other.

    for v in 8: for l: y += p[v, l]
    ->  for v in 4: for l: q[v, l] = p[v, l] + p[v + 4, l];  for v in 4: for l: y += q[v, l]
    """
    node, outer, axis = _reduced_by(program, block, loop)
    half, odd = divmod(constant_extent(outer), 2)
    if odd:
        raise ScheduleError(f"loop {loop.name} of {block} has an odd number of iterations")
    inner = [p for p in path_to(outer, node) if isinstance(p, For)]
    renamed: dict[Var, Expr] = {p.var: Var(p.var.name) for p in inner}
    reduced = [(i, b) for i, b in zip(node.iters, node.bindings, strict=True) if i.kind == "reduce"]
    extents = tuple(half if i is axis else i.extent for i, _ in reduced)
    store = store_of(node)
    assert isinstance(store.value, Binary)
    op, term, places = store.value.op, store.value.b, tuple(i.var for i, _ in reduced)
    shape = (*store.buffer.shape, *extents)
    sums = Buffer(f"{store.buffer.name}_half", shape, store.buffer.dtype, "register")
    iters = tuple(
        replace(i, extent=half if i is axis else i.extent, kind="spatial") for i in node.iters
    )
    value = binary(op, term, substitute(term, {axis.var: axis.var + half}))
    stmt: Stmt = Block(
        fresh_name(program, f"{block}_half"),
        iters,
        tuple(substitute(b, renamed) for b in node.bindings),
        Store(sums, (*store.indices, *places), value),
        None,
        None if node.predicate is None else substitute(node.predicate, renamed),
    )
    for level in reversed(inner):
        var = renamed[level.var]
        assert isinstance(var, Var)
        extent = Const(half) if level is outer else level.extent
        stmt = replace(level, var=var, extent=extent, body=stmt, prefetch=())
    total = binary(op, store.value.a, Load(sums, (*store.indices, *places)))
    iters = tuple(replace(i, extent=half) if i is axis else i for i in node.iters)
    rest = replace_stmt(program, node, replace(node, iters=iters, body=replace(store, value=total)))
    later = find_loop(rest, loop)
    rest = replace_stmt(rest, later, seq(stmt, replace(later, extent=Const(half))))
    return replace(rest, buffers=(*rest.buffers, sums))


def write_out_reduction(program: PrimFunc, block: str, loop: Var) -> PrimFunc:
    """Write the iterations of a reduction's loop as one term, halves of them by pairs.

    for v in 6: for l: y += p[v, l]
    ->  for l: y += (p[0, l] + p[3, l]) + (p[1, l] + p[4, l]) + (p[2, l] + p[5, l])
    """
    node, outer, axis = _reduced_by(program, block, loop)
    if not any(i.kind == "reduce" and i is not axis for i in node.iters):
        raise ScheduleError(f"writing out {loop.name} must leave a reduction loop of {block}")
    store, count = store_of(node), constant_extent(outer)
    assert isinstance(store.value, Binary)
    op = store.value.op

    def both(a: Expr, b: Expr) -> Expr:
        return binary(op, a, b)

    terms = [substitute(store.value.b, {axis.var: Const(n)}) for n in range(count)]
    while len(terms) > 2 and len(terms) % 2 == 0:
        half = len(terms) // 2
        terms = list(map(both, terms[:half], terms[half:]))
    kept = [(i, b) for i, b in zip(node.iters, node.bindings, strict=True) if i is not axis]
    short = replace(
        node,
        iters=tuple(i for i, _ in kept),
        bindings=tuple(b for _, b in kept),
        body=replace(store, value=both(store.value.a, reduce(both, terms))),
    )
    changed = replace_stmt(program, node, short)
    outer = find_loop(changed, loop)
    return replace_stmt(changed, outer, outer.body)


def _reduced_by(program: PrimFunc, block: str, loop: Var) -> tuple[Block, For, IterVar]:
    """A reduction, a loop of its terms, and the iterator that is this loop's variable;
    ScheduleError if the loop decides more than the term."""
    node, outer = find_block(program, block), find_loop(program, loop)
    places = list(zip(node.iters, node.bindings, strict=True))
    axis = next((i for i, b in places if b is loop and i.kind == "reduce"), None)
    if axis is None or not path_to(outer, node) or not isinstance(store_of(node).value, Binary):
        raise ScheduleError(f"loop {loop.name} is no iterator of the reduction of {block}")
    others = [b for i, b in places if i is not axis]
    if any(loop in variables(e) for e in (*others, node.predicate) if e is not None):
        raise ScheduleError(f"loop {loop.name} decides more of {block} than which term it adds")
    if blocks(outer) != (node,):
        raise ScheduleError(f"loop {loop.name} has more in it than {block}")
    return node, outer, axis
