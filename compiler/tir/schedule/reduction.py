"""Primitives on reductions: first values before their loops, accumulators of their own for some
iterations, shared reciprocals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir.affine import affine, conjunction, conjuncts, interval
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
    constant_extent,
    find_block,
    find_loop,
    fresh_name,
    is_reduction,
    path_to,
    replace_stmt,
    store_of,
)
from tunefarm.compiler.tir.visit import seq, substitute, transform_expr


def decompose_reduction(program: PrimFunc, block: str, loop: Var) -> PrimFunc:
    """Store the reduction's first value before ``loop`` instead of inside it.

    for i: for k: {if k == 0: C[i] = 0}; C[i] += …   ->   for i: C[i] = 0; for k: C[i] += …
    """
    node = find_block(program, block)
    if node.init is None:
        raise ScheduleError(f"block {block} has no init to decompose")
    target = find_loop(program, loop)
    path = path_to(target, node)
    if not path:
        raise ScheduleError(f"block {block} is not inside loop {loop.name}")
    inner = {s.var: s for s in path if isinstance(s, For)}
    _check_reduction_inside(program, node, inner, loop)
    spatial = [
        (i, b) for i, b in zip(node.iters, node.bindings, strict=True) if i.kind == "spatial"
    ]
    used = {v for _, b in spatial for v in affine(b).variables()}
    renamed: dict[Var, Expr] = {v: Var(v.name) for v in inner if v in used}
    predicate = _spatial_predicate(node, inner, used, renamed)
    init = Block(
        fresh_name(program, f"{block}_init"),
        tuple(i for i, _ in spatial),
        tuple(substitute(b, renamed) for _, b in spatial),
        node.init,
        None,
        predicate,
    )
    stmt: Stmt = init
    for var, for_node in reversed(inner.items()):
        if var in renamed:
            new = renamed[var]
            assert isinstance(new, Var)
            stmt = replace(for_node, var=new, body=stmt)
    changed = replace_stmt(program, node, replace(node, init=None))
    target = find_loop(changed, loop)
    return replace_stmt(changed, target, seq(stmt, target))


def _check_reduction_inside(
    program: PrimFunc, node: Block, inner: dict[Var, For], loop: Var
) -> None:
    around = {s.var for s in path_to(program.body, node) if isinstance(s, For)}
    for axis, binding in zip(node.iters, node.bindings, strict=True):
        outside = affine(binding).variables() & around - inner.keys()
        if axis.kind == "reduce" and outside:
            raise ScheduleError(
                f"loop {next(iter(outside)).name} of the reduction of {node.name} "
                f"is outside loop {loop.name}"
            )
    _check_visits_once(node, inner, loop)


def _check_visits_once(node: Block, inner: dict[Var, For], loop: Var) -> None:
    """ScheduleError if the loops from ``loop`` inwards reduce into an element more than once."""
    ranges: dict[Var, tuple[int, int]] = {v: (0, constant_extent(f) - 1) for v, f in inner.items()}
    used: set[Var] = set()
    for axis, binding in zip(node.iters, node.bindings, strict=True):
        form = affine(binding)
        used |= form.variables()
        if axis.kind == "reduce":
            continue
        reach = 0
        terms = [
            (abs(c), atom) for c, atom in form.terms.values() if variables(atom) & inner.keys()
        ]
        for step, atom in sorted(terms, key=lambda t: t[0]):
            low, high = interval(atom, ranges)
            if low == high:
                continue  # a loop of one iteration moves nothing
            if step <= reach:
                raise ScheduleError(
                    f"tiles of {node.name} overlap inside loop {loop.name}; "
                    "its first value must be stored in each"
                )
            reach += step * (high - low)
    again = [v.name for v, f in inner.items() if v not in used and constant_extent(f) > 1]
    if again:
        raise ScheduleError(f"loop {again[0]} repeats {node.name} inside loop {loop.name}")


def _spatial_predicate(
    node: Block, inner: dict[Var, For], used: set[Var], renamed: dict[Var, Expr]
) -> Expr | None:
    """The parts of the predicate that do not depend on reduction loops."""
    if node.predicate is None:
        return None
    parts = [
        substitute(c, renamed)
        for c in conjuncts(node.predicate)
        if variables(c).isdisjoint(inner.keys() - used)
    ]
    return conjunction(parts) if parts else None


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
    path = [p for p in path_to(program.body, node) if isinstance(p, For)]
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
    top = next(p for p in path_to(changed.body, part) if isinstance(p, For) and p.var is top.var)
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
            if variables(c).isdisjoint(extents)
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

    def rule(expr: Expr) -> Expr | None:
        if not isinstance(expr, Binary) or expr.op != "div" or "float" not in expr.dtype:
            return None
        if not variables(expr.b).isdisjoint(axes):
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
