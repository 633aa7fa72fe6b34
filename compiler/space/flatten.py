"""A program in the fewest dimensions: a kernel sees pointers, so row-major tensors merge theirs.

    out[n, h, w, c] = x[n, h, w, c] + b[c]      ->   out[i·C + c] = x[i·C + c] + b[c]
    out[n, c, h, w] = max(x[n, c, h, w], 0)     ->   out[i] = max(x[i], 0)

Parameters become one-dimensional, unit dimensions vanish, and two neighbouring iterators of a
block become one where every access of the block steps through them as through one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.affine import Affine, affine, key_of
from tunefarm.compiler.tir.ir import (
    Binary,
    Block,
    Buffer,
    Const,
    Expr,
    IterVar,
    Load,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir.schedule.tree import blocks, nest_around, store_of
from tunefarm.compiler.tir.transform.simplify import simplify_expr
from tunefarm.compiler.tir.visit import operands, seq, substitute, transform_expr

Pair = tuple[Var, Var]


def flatten(program: PrimFunc) -> PrimFunc:
    """The unscheduled program with its dimensions merged; what it computes stays."""
    stages = [_without_units(b) for b in blocks(program.body)]
    squeezed = _squeezed(program, stages)
    views = {b: Buffer(b.name, (prod(b.shape),), b.dtype) for b in program.params}
    stages = [_flat_params(_simplified(b), views) for b in squeezed[0]]
    params = tuple(views[p] for p in program.params)
    stages = [_split_divided(b, set(params)) for b in stages]
    stages, buffers = _merge(stages, squeezed[1])
    body = seq(*(nest_around(b) for b in stages))
    return replace(program, params=params, body=body, buffers=buffers)


# --- unit dimensions ----------------------------------------------------------------------------


def _without_units(block: Block) -> Block:
    """The block without iterators of extent 1; a reduction of one term becomes that term."""
    zero: dict[Var, Expr] = {i.var: Const(0) for i in block.iters if i.extent == 1}
    kept = tuple(i for i in block.iters if i.extent != 1)
    store = store_of(block)
    init = block.init
    value = substitute(store.value, zero)
    if init is not None and not any(i.kind == "reduce" for i in kept):
        assert isinstance(value, Binary)
        value, init = value.b, None
    body = Store(store.buffer, _substituted(store.indices, zero), value)
    if init is not None:
        assert isinstance(init, Store)
        init = replace(init, indices=_substituted(init.indices, zero))
    return replace(block, iters=kept, bindings=(), body=body, init=init)


def _substituted(indices: Sequence[Expr], values: Mapping[Var, Expr]) -> tuple[Expr, ...]:
    return tuple(substitute(i, values) for i in indices)


def _squeezed(program: PrimFunc, stages: Sequence[Block]) -> tuple[list[Block], tuple[Buffer, ...]]:
    """Drop the unit dimensions of all buffers."""
    small = {b: replace_shape(b, [e for e in b.shape if e != 1]) for b in program.buffers}

    def place(buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        if buffer not in small:
            return buffer, indices
        kept = [i for i, e in zip(indices, buffer.shape, strict=True) if e != 1]
        return small[buffer], tuple(kept)

    return [_map_accesses(b, place) for b in stages], tuple(small.values())


def replace_shape(buffer: Buffer, shape: Sequence[int]) -> Buffer:
    return Buffer(buffer.name, tuple(shape), buffer.dtype, buffer.scope, buffer.padding)


def _map_accesses(block: Block, place) -> Block:  # type: ignore[no-untyped-def]
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


def _simplified(block: Block) -> Block:
    ranges = {i.var: (0, i.extent - 1) for i in block.iters}
    store = store_of(block)
    value = simplify_expr(store.value, ranges)
    return replace(block, body=Store(store.buffer, store.indices, value))


# --- parameters as vectors ----------------------------------------------------------------------


def _flat_params(block: Block, views: Mapping[Buffer, Buffer]) -> Block:
    def place(buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        if buffer not in views:
            return buffer, indices
        return views[buffer], (flat_index(indices, buffer.shape),)

    return _map_accesses(block, place)


def flat_index(indices: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """The row-major position; quotients and remainders of one index are put together again."""
    total: Expr = Const(0)
    extent = 1
    for index, size in zip(reversed(indices), reversed(shape), strict=True):
        total = _joined(index, total, extent)
        extent *= size
    return total


def _joined(outer: Expr, inner: Expr, extent: int) -> Expr:
    """``outer · extent + inner``, with quotient and remainder of one index joined.

    (e // n) · n + e % n   ->   e          (e // n % m) · n + e % n   ->   e % (m · n)
    """
    if isinstance(inner, Binary) and inner.op == "floormod" and isinstance(inner.b, Const):
        modulus = None
        whole = outer
        if isinstance(whole, Binary) and whole.op == "floormod" and isinstance(whole.b, Const):
            modulus, whole = int(whole.b.value), whole.a
        same = (
            isinstance(whole, Binary)
            and whole.op == "floordiv"
            and isinstance(whole.b, Const)
            and whole.b.value == inner.b.value == extent
            and key_of(whole.a) == key_of(inner.a)
        )
        if same:
            return inner.a if modulus is None else inner.a % (modulus * extent)
    return affine(outer * extent + inner).expr()


# --- iterators that stand in divisions ----------------------------------------------------------


def _split_divided(block: Block, params: set[Buffer]) -> Block:
    """Split an iterator that indexes by its quotient: c // 8 with c = 8·g + k becomes g.

    Only in a block that stores to a parameter, whose index is any expression.
    """
    if store_of(block).buffer not in params:
        return block
    for axis in block.iters:
        factor = _divisor(block, axis)
        if factor is not None:
            outer = IterVar(Var(f"{axis.var.name}q"), axis.extent // factor, axis.kind)
            inner = IterVar(Var(f"{axis.var.name}r"), factor, axis.kind)
            at = block.iters.index(axis)
            iters = (*block.iters[:at], outer, inner, *block.iters[at + 1 :])
            ranges = {i.var: (0, i.extent - 1) for i in iters}
            value: dict[Var, Expr] = {axis.var: outer.var * factor + inner.var}

            def rewrite(e: Expr, value: dict[Var, Expr] = value, ranges=ranges) -> Expr:  # type: ignore[no-untyped-def]
                return simplify_expr(substitute(e, value), ranges)

            return _split_divided(_rewritten(replace(block, iters=iters), rewrite), params)
    return block


def _divisor(block: Block, axis: IterVar) -> int | None:
    for expr in _nodes(block):
        if isinstance(expr, Binary) and expr.op in ("floordiv", "floormod"):
            factor = expr.b.value if isinstance(expr.b, Const) else 0
            if expr.a is axis.var and 1 < factor < axis.extent and axis.extent % factor == 0:
                return int(factor)
    return None


def _rewritten(block: Block, rewrite) -> Block:  # type: ignore[no-untyped-def]
    def stored(stmt: Stmt) -> Store:
        assert isinstance(stmt, Store)
        return Store(stmt.buffer, tuple(map(rewrite, stmt.indices)), rewrite(stmt.value))

    init = None if block.init is None else stored(block.init)
    return replace(block, body=stored(block.body), init=init)


def _nodes(block: Block) -> Iterator[Expr]:
    store = store_of(block)
    stack = [*store.indices, store.value]
    while stack:
        expr = stack.pop()
        yield expr
        stack.extend(operands(expr))


# --- merging iterators --------------------------------------------------------------------------


def _merge(
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
    small = {b: replace_shape(b, _merged_shape(b.shape, dims[b])) for b in buffers}
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
    for expr in _nodes(block):
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
            if not _adjacent(indices, pair, buffer.shape, dims[buffer]):
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


def _adjacent(indices: Sequence[Expr], pair: Pair, shape: Sequence[int], dims: set[int]) -> bool:
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


def _merged_shape(shape: Sequence[int], dims: set[int]) -> list[int]:
    merged: list[int] = []
    for d, extent in enumerate(shape):
        if d - 1 in dims:
            merged[-1] *= extent
        else:
            merged.append(extent)
    return merged


def _merge_block(
    block: Block,
    pairs: set[Pair],
    dims: Mapping[Buffer, set[int]],
    small: Mapping[Buffer, Buffer],
) -> Block:
    chains = _chains(block, pairs)
    last: dict[Var, IterVar] = {}  # the innermost iterator of a chain → the merged one
    gone: set[Var] = set()
    iters = []
    for chain in chains:
        if len(chain) == 1:
            iters.append(chain[0])
            continue
        name = "".join(i.var.name for i in chain)[:12]
        whole = IterVar(Var(name), prod(i.extent for i in chain), chain[0].kind)
        last[chain[-1].var] = whole
        gone.update(i.var for i in chain[:-1])
        iters.append(whole)

    def merged(index: Expr) -> Expr:
        form = affine(index)
        terms = {k: t for k, t in form.terms.items() if k not in gone and k not in last}
        total = Affine(form.const, terms)
        for var, whole in last.items():
            factor = form.coefficient(var)
            if factor:
                total = total + Affine(0, {whole.var: (factor, whole.var)})
        return total.expr()

    def place(buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        if buffer not in dims:
            return buffer, (merged(indices[0]) if last else indices[0],)
        flat: list[Expr] = []
        for d, index in enumerate(indices):
            if d - 1 in dims[buffer]:
                flat[-1] = flat[-1] * buffer.shape[d] + index
            else:
                flat.append(index)
        return small[buffer], tuple(merged(i) if last else i for i in flat)

    return replace(_map_accesses(block, place), iters=tuple(iters))


def _chains(block: Block, pairs: set[Pair]) -> list[list[IterVar]]:
    chains: list[list[IterVar]] = []
    for axis in block.iters:
        if chains and (chains[-1][-1].var, axis.var) in pairs:
            chains[-1].append(axis)
        else:
            chains.append([axis])
    return chains
