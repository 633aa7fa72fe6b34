"""Two neighbouring iterators of a block become one where every access of the block steps through
them as through one, and two neighbouring dimensions of a buffer where every block does.

    T[i, j] = f(x[i·n + j]);  out[i·n + j] = T[i, j]   ->   T[ij] = f(x[ij]);  out[ij] = T[ij]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TypeAlias

from tunefarm.compiler.tir.affine import Affine, affine
from tunefarm.compiler.tir.ir import Block, Buffer, Const, Expr, IterVar, Load, Stmt, Store, Var
from tunefarm.compiler.tir.schedule.tree import store_of
from tunefarm.compiler.tir.visit import operands, transform_expr

Pair: TypeAlias = tuple[Var, Var]
Place: TypeAlias = Callable[[Buffer, tuple[Expr, ...]], tuple[Buffer, tuple[Expr, ...]]]
"""Where an access goes: of a buffer and indices the new ones."""


def merge_iterators(
    stages: Sequence[Block], buffers: Sequence[Buffer]
) -> tuple[list[Block], tuple[Buffer, ...]]:
    """Merge all pairs of neighbouring iterators and dimensions that every access allows."""
    pairs = {b.name: _neighbours(b) for b in stages}
    dims = {b: set(range(len(b.shape) - 1)) for b in buffers}
    changed = True
    while changed:
        changed = False
        for block in stages:
            bad = {p for p in pairs[block.name] if not _mergeable(block, p, dims)}
            pairs[block.name] -= bad
            changed |= bool(bad)
        for block in stages:
            for buffer, indices in _accesses(block):
                if buffer in dims:
                    wrong = {
                        d for d in dims[buffer] if not _pairs_at(indices, d, pairs[block.name])
                    }
                    dims[buffer] -= wrong
                    changed |= bool(wrong)
    small = {b: replace(b, shape=_merged_shape(b.shape, dims[b])) for b in buffers}
    merged = [_merge_block(b, pairs[b.name], dims, small) for b in stages]
    return merged, tuple(small.values())


def _neighbours(block: Block) -> set[Pair]:
    return {
        (a.var, b.var)
        for a, b in zip(block.iters, block.iters[1:], strict=False)
        if a.kind == b.kind
    }


def _accesses(block: Block) -> Iterator[tuple[Buffer, tuple[Expr, ...]]]:
    store = store_of(block)
    yield store.buffer, store.indices
    for expr in nodes_of(block):
        if isinstance(expr, Load):
            yield expr.buffer, expr.indices


def _mergeable(block: Block, pair: Pair, dims: Mapping[Buffer, set[int]]) -> bool:
    """True if every use of the two iterators steps through them as through one."""
    store = store_of(block)
    extent = next(i.extent for i in block.iters if i.var is pair[1])
    accesses = list(_accesses(block))
    if any(_uses(store.value, pair)):
        return False
    for buffer, indices in accesses:
        if buffer in dims:
            if not _adjacent(indices, pair, dims[buffer]):
                return False
        elif not _steps(indices[0], pair, extent):
            return False
    return True


def _uses(expr: Expr, pair: Pair) -> Iterator[Expr]:
    """Where the iterators stand outside the indices of loads."""
    if isinstance(expr, Load):
        return
    if isinstance(expr, Var) and expr in pair:
        yield expr
    for operand in operands(expr):
        yield from _uses(operand, pair)


def _steps(index: Expr, pair: Pair, extent: int) -> bool:
    form = affine(index)
    inside = [atom for _, atom in form.terms.values() if not isinstance(atom, Var)]
    if any(True for atom in inside for _ in _uses(atom, pair)):
        return False
    return form.coefficient(pair[0]) == extent * form.coefficient(pair[1])


def _adjacent(indices: Sequence[Expr], pair: Pair, dims: set[int]) -> bool:
    at = [d for d, i in enumerate(indices) if any(True for _ in _uses(i, pair))]
    if not at:
        return True
    first = at[0]
    return (
        at == [first, first + 1]
        and first in dims
        and indices[first] is pair[0]
        and indices[first + 1] is pair[1]
    )


def _pairs_at(indices: Sequence[Expr], d: int, pairs: set[Pair]) -> bool:
    a, b = indices[d], indices[d + 1]
    if isinstance(a, Const) and isinstance(b, Const):
        return True
    return isinstance(a, Var) and isinstance(b, Var) and (a, b) in pairs


def _merged_shape(shape: Sequence[int], dims: set[int]) -> tuple[int, ...]:
    merged: list[int] = []
    for d, extent in enumerate(shape):
        if d - 1 in dims:
            merged[-1] *= extent
        else:
            merged.append(extent)
    return tuple(merged)


def _merge_block(
    block: Block,
    pairs: set[Pair],
    dims: Mapping[Buffer, set[int]],
    small: Mapping[Buffer, Buffer],
) -> Block:
    chains = _chains(block, pairs)
    iters = {chain[-1].var: _whole(chain) for chain in chains}
    gone = {i.var for chain in chains for i in chain[:-1]}
    changed = {last: i for last, i in iters.items() if i.var is not last}

    def merged(index: Expr) -> Expr:
        form = affine(index)
        terms = {k: t for k, t in form.terms.items() if k not in gone and k not in changed}
        total = Affine(form.const, terms)
        for var, whole in changed.items():
            factor = form.coefficient(var)
            if factor:
                total = total + Affine(0, {whole.var: (factor, whole.var)})
        return total.expr()

    def place(buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        if buffer in dims:
            indices = _merged_indices(indices, buffer.shape, dims[buffer])
        return small.get(buffer, buffer), tuple(map(merged, indices)) if changed else indices

    return replace(map_accesses(block, place), iters=tuple(iters.values()))


def _merged_indices(
    indices: Sequence[Expr], shape: Sequence[int], dims: set[int]
) -> tuple[Expr, ...]:
    merged: list[Expr] = []
    for d, index in enumerate(indices):
        if d - 1 in dims:
            merged[-1] = merged[-1] * shape[d] + index
        else:
            merged.append(index)
    return tuple(merged)


def _whole(chain: Sequence[IterVar]) -> IterVar:
    """The iterator that takes the place of some; a single one stays."""
    if len(chain) == 1:
        return chain[0]
    name = "".join(i.var.name for i in chain)[:12]
    return IterVar(Var(name), prod(i.extent for i in chain), chain[0].kind)


def _chains(block: Block, pairs: set[Pair]) -> list[list[IterVar]]:
    chains: list[list[IterVar]] = []
    for axis in block.iters:
        if chains and (chains[-1][-1].var, axis.var) in pairs:
            chains[-1].append(axis)
        else:
            chains.append([axis])
    return chains


# --- accesses ----------------------------------------------------------------------------------


def map_accesses(block: Block, place: Place) -> Block:
    """Let every load and store of a block stand at ``place(buffer, indices)``."""

    def rule(expr: Expr) -> Expr | None:
        return Load(*place(expr.buffer, expr.indices)) if isinstance(expr, Load) else None

    def stored(stmt: Stmt) -> Store:
        assert isinstance(stmt, Store)
        indices = tuple(transform_expr(i, rule) for i in stmt.indices)
        buffer, indices = place(stmt.buffer, indices)
        return Store(buffer, indices, transform_expr(stmt.value, rule))

    init = None if block.init is None else stored(block.init)
    return replace(block, body=stored(block.body), init=init)


def nodes_of(block: Block) -> Iterator[Expr]:
    """The expressions that a block stores, and where it stores them, with all that is in them."""
    store = store_of(block)
    stack = [*store.indices, store.value]
    while stack:
        expr = stack.pop()
        yield expr
        stack.extend(operands(expr))
