"""Primitives on loops: ``split limit fuse reorder vectorize unroll parallel stagger prefetch``."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir.facts import loops_below, variables
from tunefarm.compiler.tir.ir import (
    Block,
    Const,
    Expr,
    For,
    LoopKind,
    Prefetch,
    PrimFunc,
    Stmt,
    Var,
    binary,
    changed,
)
from tunefarm.compiler.tir.schedule.tree import (
    blocks,
    constant_extent,
    find_loop,
    replace_stmt,
)
from tunefarm.compiler.tir.visit import map_children, substitute_stmt, with_body


def split(program: PrimFunc, loop: Var, *factors: int) -> tuple[PrimFunc, tuple[Var, ...]]:
    """Split a loop; the outermost new loop has ⌈extent / Π factors⌉ iterations.

    for i in 30: f(i)
    ->  split(i, 4)  ->  for i0 in 8: for i1 in 4: if i0*4+i1 < 30: f(i0*4+i1)
    """
    node = find_loop(program, loop)
    extent = constant_extent(node)
    if not factors or not all(hasattr(f, "__index__") and f >= 1 for f in factors):
        raise ScheduleError(
            f"split of {loop.name} needs positive whole numbers as factors, got {factors}"
        )
    extents = (-(-extent // prod(factors)), *factors)
    parts = tuple(Var(f"{loop.name}_{n}") for n in range(len(extents)))
    value: Expr = parts[0]
    for part, factor in zip(parts[1:], factors, strict=True):
        value = value * factor + part
    body = substitute_stmt(node.body, {loop: value})
    if prod(extents) != extent:
        body = _guard(body, binary("lt", value, Const(extent)))
    for part, size in reversed(list(zip(parts, extents, strict=True))):
        body = For(part, Const(size), body)
    return replace_stmt(program, node, body), parts


def _guard(stmt: Stmt, condition: Expr) -> Stmt:
    """Add a condition to the predicate of every block below."""

    if isinstance(stmt, Block):
        old = stmt.predicate
        both = condition if old is None else binary("and", old, condition)
        return changed(stmt, predicate=both)
    return map_children(stmt, lambda s: _guard(s, condition))


def limit(program: PrimFunc, loop: Var, extent: Expr | int) -> PrimFunc:
    """Leave out a loop's iterations from ``extent`` on, which make what nobody reads.

    for i in 8: f(i)   ->   for i in 6: f(i),   or where i < n: f(i)
    """
    node = find_loop(program, loop)
    if isinstance(extent, int):
        shorter = min(extent, constant_extent(node))
        return replace_stmt(program, node, replace(node, extent=Const(shorter)))
    body = _guard(node.body, binary("lt", loop, extent))
    return replace_stmt(program, node, replace(node, body=body))


def fuse(program: PrimFunc, *loops: Var) -> tuple[PrimFunc, Var]:
    """Make one loop of directly nested loops, outermost first.

    for i in 3: for j in 5: f(i, j)   ->   for ij in 15: f(ij // 5, ij % 5)
    """
    nodes = [find_loop(program, v) for v in loops]
    for outer, inner in pairwise(nodes):
        if outer.body is not inner:
            raise ScheduleError(f"loop {inner.var.name} is not directly inside {outer.var.name}")
    fused = Var("_".join(v.name for v in loops))
    extents = [constant_extent(n) for n in nodes]
    values: dict[Var, Expr] = {}
    rest: Expr = fused
    for var, extent in reversed(list(zip(loops, extents, strict=True))[1:]):
        values[var] = rest % extent if extent > 1 else Const(0)
        rest = rest // extent
    values[loops[0]] = rest
    body = substitute_stmt(nodes[-1].body, values)
    return replace_stmt(program, nodes[0], For(fused, Const(prod(extents)), body)), fused


def reorder(program: PrimFunc, *order: Var) -> PrimFunc:
    """Put loops of one perfect nest in the given order; loops not named keep their places."""
    nodes = {v: find_loop(program, v) for v in order}
    if len(nodes) < len(order):
        twice = next(v for n, v in enumerate(order) if v in order[:n])
        raise ScheduleError(f"loop {twice.name} is named twice")
    first = next(loop for loop in loops_below(program.body) if loop.var in nodes)
    chain: list[For] = []
    node: Stmt = first
    while isinstance(node, For):
        chain.append(node)
        if {n.var for n in chain} >= set(order):
            break
        node = node.body
    missing = [v.name for v in order if v not in {n.var for n in chain}]
    if missing:
        raise ScheduleError(f"loop {missing[0]} is not in one perfect nest with {order[0].name}")
    remaining = iter(order)
    slots = [nodes[next(remaining)] if n.var in nodes else n for n in chain]
    body = chain[-1].body
    for slot in reversed(slots):
        body = with_body(slot, body)
    return replace_stmt(program, first, body)


def set_kind(program: PrimFunc, loop: Var, kind: LoopKind) -> PrimFunc:
    node = find_loop(program, loop)
    return replace_stmt(program, node, changed(node, kind=kind))


def vectorize(program: PrimFunc, loop: Var) -> PrimFunc:
    """The loop's iterations become the lanes of vector instructions.

    Lanes may share an element that they reduce into, but only if all of them do.
    """
    node = find_loop(program, loop)
    constant_extent(node)
    for block in blocks(node):
        kinds = {
            axis.kind
            for axis, binding in zip(block.iters, block.bindings, strict=True)
            if loop in variables(binding)
        }
        if len(kinds) > 1:
            raise ScheduleError(
                f"loop {loop.name} carries spatial and reduction iterators of {block.name}; "
                "lanes must be all of one kind"
            )
    return set_kind(program, loop, LoopKind.VECTORIZED)


def tile(program: PrimFunc, loop: Var) -> PrimFunc:
    """The loop becomes a part of what one instruction of a matrix unit does, with the loops inside
    it: rows, lanes or groups of terms of a tile."""
    constant_extent(find_loop(program, loop))
    return set_kind(program, loop, LoopKind.TILED)


def unroll(program: PrimFunc, loop: Var) -> PrimFunc:
    """The loop's body is repeated for every value of its variable."""
    constant_extent(find_loop(program, loop))
    return set_kind(program, loop, LoopKind.UNROLLED)


def parallel(program: PrimFunc, loop: Var) -> PrimFunc:
    """The loop's iterations run on the threads of the pool; it must not carry a reduction."""
    node = find_loop(program, loop)
    for block in blocks(node):
        for axis, binding in zip(block.iters, block.bindings, strict=True):
            if axis.kind == "reduce" and loop in variables(binding):
                raise ScheduleError(
                    f"loop {loop.name} carries the reduction of {block.name}; "
                    "a parallel loop must be spatial"
                )
    return set_kind(program, loop, LoopKind.PARALLEL)


def stagger(program: PrimFunc, loop: Var) -> PrimFunc:
    """Run the stages of a serial loop's body a tile apart, where lowering finds that they can be.

    for i in 8: m = max(a[i]); b[i] = a[i] - m
    ->  for i in 9: if i >= 1: b[i - 1] = a[i - 1] - m;  if i < 8: m = max(a[i])
    """
    node = find_loop(program, loop)
    if node.kind is not LoopKind.SERIAL:
        raise ScheduleError(f"{loop.name} is {node.kind}; only a serial loop can be staggered")
    return set_kind(program, loop, LoopKind.STAGGERED)


def overlap(program: PrimFunc, loop: Var) -> PrimFunc:
    """Share what follows the tiles of a matrix unit in a serial loop's body out to the sums of the
    next iteration, or what fills their operands to those of the one before, where lowering finds
    that it can be.

    for t in 8: tile = Σ_k f(t, k); P = tile; y[t] = g(P)
    ->  for t in 9: for k: { if t < 8: tile += f(t, k); if t > 0: a share of y[t - 1] = g(P) }; …
    for t in 8: P = f(t); tile = Σ_k P[k]; …
    ->  P = f(0); for t in 8: for k: { tile += P[k]; if t < 7: a share of Q = f(t + 1) }; swap; …
    """
    node = find_loop(program, loop)
    if node.kind is not LoopKind.SERIAL:
        raise ScheduleError(f"{loop.name} is {node.kind}; only a serial loop can be overlapped")
    return set_kind(program, loop, LoopKind.OVERLAPPED)


def prefetch(program: PrimFunc, loop: Var, hint: Prefetch) -> PrimFunc:
    """Ask for cache lines at the start of each iteration of a serial, parallel or unrolled loop.

    The hint's offset counts elements from the start of the buffer's memory (as packed) in terms
    of ``loop`` and the loops around it. Splitting the loop afterwards drops it; of one that is
    unrolled each copy of the body asks.

    for k in 64: f(k)   ->   for k in 64: prefetch(B + k*32 + 512); f(k)
    """
    node = find_loop(program, loop)
    if node.kind not in (LoopKind.SERIAL, LoopKind.PARALLEL, LoopKind.UNROLLED):
        kinds = "a serial, parallel or unrolled loop"
        raise ScheduleError(f"{loop.name} is {node.kind}; only {kinds} can prefetch")
    if hint.lines < 1 or hint.level not in (1, 2):
        raise ScheduleError(f"prefetch of {hint.lines} lines into L{hint.level}: 1 or more, 1 or 2")
    return replace_stmt(program, node, replace(node, prefetch=(*node.prefetch, hint)))
