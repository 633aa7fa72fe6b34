"""Primitives on reductions: accumulators of their own for some iterations, shared reciprocals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir.affine import affine, conjunction, conjuncts
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
    constant_extent,
    find_block,
    find_loop,
    fresh_name,
    is_reduction,
    path_to,
    replace_stmt,
    store_of,
)
from tunefarm.compiler.tir.visit import seq, substitute, transform_expr, walk_expr


def rfactor(
    program: PrimFunc, block: str, *loops: Var, scope: str = "register"
) -> tuple[PrimFunc, str]:
    """Give each iteration of some reduction loops its own accumulator, and combine them after.

    for k: for l in 16: S += x[k·16 + l]
    ->  for k: for l in 16: P[l] += x[k·16 + l];  for l in 16: S += P[l]

    Returns the program and the name of the new block, which makes the partial results; ``block``
    combines them, in loops of its own. Of its predicate it keeps what speaks of no reduction.
    """
    node = find_block(program, block)
    path = [p for p in path_to(program.body, lambda s: s is node) if isinstance(p, For)]
    reducing = _reduction_loops(node, path)
    for loop in loops:
        find_loop(program, loop)
    missing = [v.name for v in loops if v not in {p.var for p in reducing}]
    if missing:
        raise ScheduleError(f"loop {missing[0]} is not a reduction loop of {block}")
    if len(loops) == len(reducing):
        raise ScheduleError(f"rfactor must leave a reduction loop of {block} to accumulate over")
    store = store_of(node)
    extents = {p.var: constant_extent(p) for p in reducing}
    partial = Buffer(
        f"{store.buffer.name}_rf",
        (*store.buffer.shape, *(extents[v] for v in loops)),
        store.buffer.dtype,
        scope,
    )
    name = fresh_name(program, f"{block}_rf")
    part = _partial_block(node, name, partial, loops, extents)
    top = next(p for p in path if p in reducing)
    inner = path[path.index(top) :]
    combine = _combining_nest(
        node, partial, loops, extents, [p for p in inner if p not in reducing]
    )
    changed = replace_stmt(program, node, part)
    top = next(
        p for p in path_to(changed.body, lambda s: s is part)
        if isinstance(p, For) and p.var is top.var
    )  # fmt: skip
    changed = replace_stmt(changed, top, seq(top, combine))
    return replace(changed, buffers=(*changed.buffers, partial)), name


def _reduction_loops(node: Block, path: Sequence[For]) -> list[For]:
    """The loops that the reduce iterators run with; ScheduleError if one is shared."""
    used: dict[str, set[Var]] = {"reduce": set(), "spatial": set()}
    for axis, binding in zip(node.iters, node.bindings, strict=True):
        used[axis.kind] |= affine(binding).variables()
    loops = [p for p in path if p.var in used["reduce"]]
    if not is_reduction(node) or node.init is None or not loops:
        raise ScheduleError(f"block {node.name} is not a reduction with its first value")
    shared = [p.var.name for p in loops if p.var in used["spatial"]]
    if shared:
        raise ScheduleError(f"loop {shared[0]} is not of the reduction of {node.name} alone")
    return loops


def _partial_block(
    node: Block, name: str, partial: Buffer, loops: Sequence[Var], extents: dict[Var, int]
) -> Block:
    """The reduction into ``partial``; its iterators for the reduction are the loops themselves."""
    store = store_of(node)
    kept = [(i, b) for i, b in zip(node.iters, node.bindings, strict=True) if i.kind == "spatial"]
    inside = {v: Var(v.name) for v in extents}
    values: dict[Var, Expr] = {
        i.var: substitute(b, dict(inside))
        for i, b in zip(node.iters, node.bindings, strict=True)
        if i.kind == "reduce"
    }
    iters = [i for i, _ in kept]
    iters += [IterVar(inside[v], extents[v]) for v in loops]
    rest = [v for v in extents if v not in loops]
    iters += [IterVar(inside[v], extents[v], "reduce") for v in rest]
    indices = (*store.indices, *(inside[v] for v in loops))
    value = store.value
    assert isinstance(value, Binary)
    assert isinstance(node.init, Store)
    term = substitute(value.b, values)
    body = Store(partial, indices, binary(value.op, Load(partial, indices), term))
    init = Store(partial, indices, node.init.value)
    bindings = (*(b for _, b in kept), *loops, *rest)
    return Block(name, tuple(iters), bindings, body, init, node.predicate)


def _combining_nest(
    node: Block,
    partial: Buffer,
    loops: Sequence[Var],
    extents: dict[Var, int],
    spatial: Sequence[For],
) -> Stmt:
    """The reduction of ``partial``, in new loops."""
    store = store_of(node)
    assert isinstance(store.value, Binary)
    renamed: dict[Var, Expr] = {p.var: Var(p.var.name) for p in spatial}
    kept = [(i, b) for i, b in zip(node.iters, node.bindings, strict=True) if i.kind == "spatial"]
    inside = [Var(v.name) for v in loops]
    outside = [Var(v.name) for v in loops]
    iters = (
        *(i for i, _ in kept),
        *(IterVar(v, extents[o], "reduce") for v, o in zip(inside, loops, strict=True)),
    )
    bindings = (*(substitute(b, renamed) for _, b in kept), *outside)
    term = Load(partial, (*store.indices, *inside))
    body = Store(store.buffer, store.indices, binary(store.value.op, store.value.a, term))
    predicate = None
    if node.predicate is not None:
        parts = [
            substitute(c, renamed)
            for c in conjuncts(node.predicate)
            if not any(e in extents for e in walk_expr(c) if isinstance(e, Var))
        ]
        predicate = conjunction(parts) if parts else None
    stmt: Stmt = Block(node.name, iters, bindings, body, node.init, predicate)
    for var, old in reversed(list(zip(outside, loops, strict=True))):
        stmt = For(var, Const(extents[old]), stmt)
    for loop in reversed(spatial):
        new = renamed[loop.var]
        assert isinstance(new, Var)
        stmt = replace(loop, var=new, body=stmt)
    return stmt


def share_reciprocals(program: PrimFunc, block: str, *axes: Var) -> PrimFunc:
    """Divide once for all values of some of a block's iterators (the result may differ by an ulp).

    y[i, j] = x[i, j] / s[i]   ->   y[i, j] = x[i, j] * (1 / s[i])      for the iterator j
    """
    node = find_block(program, block)
    store = store_of(node)
    varying = set(axes)

    def rule(expr: Expr) -> Expr | None:
        if not isinstance(expr, Binary) or expr.op != "div" or "float" not in expr.dtype:
            return None
        if any(e in varying for e in walk_expr(expr.b) if isinstance(e, Var)):
            return None
        if isinstance(expr.a, Const):
            return None
        return binary("mul", expr.a, _reciprocal(expr.b))

    value = transform_expr(store.value, rule)
    return replace_stmt(program, node, replace(node, body=replace(store, value=value)))


def _reciprocal(value: Expr) -> Expr:
    if isinstance(value, Const) and value.value:
        return Const(1.0 / float(value.value), value.dtype)
    return binary("div", Const(1.0, value.dtype), value)
