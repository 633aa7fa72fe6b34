"""Blocks become plain loops: iterators are replaced by their bindings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tunefarm.compiler.tir.affine import (
    Ranges,
    at_least_zero,
    conjunction,
    conjuncts,
    decide,
    interval,
)
from tunefarm.compiler.tir.facts import loops_below, variables
from tunefarm.compiler.tir.ir import (
    Binary,
    Block,
    Buffer,
    Const,
    Expr,
    If,
    Load,
    LoopKind,
    PrimFunc,
    Select,
    Stmt,
    Store,
    Var,
    binary,
)
from tunefarm.compiler.tir.schedule.tree import loop_ranges
from tunefarm.compiler.tir.visit import loads_of, seq, substitute, substitute_stmt, transform_stmt


def blocks_to_loops(program: PrimFunc, keep: frozenset[Buffer] = frozenset()) -> PrimFunc:
    """Replace each block by its store under its predicate, and its init at the first values.

    A predicate that only guards padding lanes of a tile is dropped: the tile holds them, the
    packed operands are padded with zeros, and whoever reads the tile has the predicate too. One
    that leaves whole vectors out stays on a processor, for those alone: the last panel of 80
    columns has one of two.
    Tiles in ``keep`` have no such lanes: what stores to them keeps its whole predicate.
    """
    ranges = loop_ranges(program.body)
    outputs = {*program.params, *keep}
    kinds = {loop.var: loop.kind for loop in loops_below(program.body)}
    serves_threads = LoopKind.THREAD in kinds.values()

    def remaining(part: Expr, store: Store) -> Expr | None:
        if not _droppable(part, store, ranges):
            return part
        return None if serves_threads else _vectors_left_out(part, kinds, ranges)

    def rule(stmt: Stmt) -> Stmt | None:
        return _plain(stmt, remaining, outputs) if isinstance(stmt, Block) else None

    return replace(program, body=transform_stmt(program.body, rule))


def _plain(
    block: Block, remaining: Callable[[Expr, Store], Expr | None], params: set[Buffer]
) -> Stmt:
    values = dict(zip((i.var for i in block.iters), block.bindings, strict=True))
    body = substitute_stmt(block.body, values)
    assert isinstance(body, Store)
    reduced = [b for i, b in zip(block.iters, block.bindings, strict=True) if i.kind == "reduce"]
    parts = conjuncts(block.predicate) if block.predicate is not None else []
    fixed = frozenset().union(*map(variables, reduced))
    spatial = [b for i, b in zip(block.iters, block.bindings, strict=True) if i.kind == "spatial"]
    shared = fixed & frozenset().union(*map(variables, spatial))
    if body.buffer not in params:
        stay = fixed | _ring_loop(body.buffer)
        asked = (p if variables(p) & stay else remaining(p, body) for p in parts)
        parts = [p for p in asked if p is not None]
    stmt = _skip_neutral_terms(body) if reduced else body
    if block.init is not None:
        # An element without a term still has its first value: what a predicate says of the
        # loops of the reduction alone does not guard it.
        first = conjunction([binary("eq", b, Const(0)) for b in reduced])
        init = If(first, substitute_stmt(block.init, values))
        terms = [p for p in parts if variables(p) & fixed and not variables(p) & shared]
        parts = [p for p in parts if p not in terms]
        stmt = seq(init, _guarded(terms, stmt))
    return _guarded(parts, stmt)


def _ring_loop(buffer: Buffer) -> frozenset[Var]:
    """The loop over whose iterations a buffer keeps rows: what asks for it leaves rows out."""
    return frozenset() if buffer.ring is None else frozenset((buffer.ring.var,))


def _guarded(parts: list[Expr], stmt: Stmt) -> Stmt:
    condition = conjunction(parts)
    return stmt if isinstance(condition, Const) and condition.value else If(condition, stmt)


def _droppable(part: Expr, store: Store, ranges: Ranges) -> bool:
    """True if every load that depends on the part's variables stays in bounds without it."""
    for load in loads_of(store):
        for index, size in zip(load.indices, load.buffer.shape, strict=True):
            if load.buffer is store.buffer or variables(index).isdisjoint(variables(part)):
                continue
            low, high = interval(index, ranges)
            if low < 0 or high >= size:
                return False
    return True


def _vectors_left_out(part: Expr, kinds: Mapping[Var, LoopKind], ranges: Ranges) -> Expr | None:
    """What a part of a predicate says of the first lanes of a tile's vectors; None if it leaves no
    vector out: then all lanes may run."""
    form, found = at_least_zero(part), variables(part)
    if form is None or not all(type(atom) is Var for _, atom in form.terms.values()):
        return None
    lanes = [v for v in found if kinds.get(v) is LoopKind.VECTORIZED]
    unrolled = any(kinds.get(v) is LoopKind.UNROLLED for v in found)
    if not lanes or not unrolled or any(form.coefficient(lane) >= 0 for lane in lanes):
        return None
    first = substitute(part, dict.fromkeys(lanes, Const(0)))
    return None if decide(first, ranges) else first


_NEUTRAL = {"add": 0.0, "max": float("-inf"), "maxnum": float("-inf"), "min": float("inf")}


def _skip_neutral_terms(store: Store) -> Stmt:
    """Make a padded term of a reduction a condition of the store.

    C[i] = C[i] + select(c, a, 0) * w   ->   if c: C[i] = C[i] + a * w
    """
    value = store.value
    if not isinstance(value, Binary) or not isinstance(value.a, Load):
        return store
    if value.op not in _NEUTRAL or value.a.buffer is not store.buffer:
        return store
    condition, term = _split_select(value.b, _NEUTRAL[value.op], value.op == "add")
    if condition is None:
        return store
    return If(condition, replace(store, value=binary(value.op, value.a, term)))


def _split_select(expr: Expr, neutral: float, through_mul: bool) -> tuple[Expr | None, Expr]:
    match expr:
        case Select(condition, a, Const(value), _) if value == neutral:
            return condition, a
        case Binary("mul", a, b, _) if through_mul:
            left, x = _split_select(a, neutral, True)
            right, y = _split_select(b, neutral, True)
            found = [c for c in (left, right) if c is not None]
            return (conjunction(found) if found else None), binary("mul", x, y)
        case _:
            return None, expr
