"""A program in the fewest dimensions: a kernel sees pointers, so row-major tensors merge theirs.

    out[n, h, w, c] = x[n, h, w, c] + b[c]      ->   out[i·C + c] = x[i·C + c] + b[c]
    out[n, c, h, w] = max(x[n, c, h, w], 0)     ->   out[i] = max(x[i], 0)

Parameters become one-dimensional, unit dimensions vanish, and neighbouring iterators are merged
(``merge_iterators.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from tunefarm.compiler.space.merge_iterators import map_accesses, merge_iterators, nodes_of
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.affine import affine, key_of
from tunefarm.compiler.tir.ir import (
    Binary,
    Block,
    Buffer,
    Const,
    Expr,
    IterVar,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir.schedule.tree import blocks, nest_around, store_of
from tunefarm.compiler.tir.transform.simplify import simplify_expr
from tunefarm.compiler.tir.visit import seq, substitute


def flatten(program: PrimFunc) -> PrimFunc:
    """The unscheduled program with its dimensions merged; what it computes stays."""
    stages = [_without_units(b) for b in blocks(program.body)]
    squeezed = _squeezed(program, stages)
    views = {b: Buffer(b.name, (prod(b.shape),), b.dtype) for b in program.params}
    stages = [_flat_params(_simplified(b), views) for b in squeezed[0]]
    params = tuple(views[p] for p in program.params)
    stages = [_split_divided(b, set(params)) for b in stages]
    stages, buffers = merge_iterators(stages, squeezed[1])
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
    small = {b: replace(b, shape=tuple(e for e in b.shape if e != 1)) for b in program.buffers}

    def place(buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        if buffer not in small:
            return buffer, indices
        kept = [i for i, e in zip(indices, buffer.shape, strict=True) if e != 1]
        return small[buffer], tuple(kept)

    return [map_accesses(b, place) for b in stages], tuple(small.values())


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

    return map_accesses(block, place)


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
            values: dict[Var, Expr] = {axis.var: outer.var * factor + inner.var}
            return _split_divided(_substituted_in(replace(block, iters=iters), values), params)
    return block


def _divisor(block: Block, axis: IterVar) -> int | None:
    for expr in nodes_of(block):
        if isinstance(expr, Binary) and expr.op in ("floordiv", "floormod"):
            factor = expr.b.value if isinstance(expr.b, Const) else 0
            if expr.a is axis.var and 1 < factor < axis.extent and axis.extent % factor == 0:
                return int(factor)
    return None


def _substituted_in(block: Block, values: Mapping[Var, Expr]) -> Block:
    """The block with variables replaced by what its iterators now make of them."""
    ranges = {i.var: (0, i.extent - 1) for i in block.iters}

    def rewritten(expr: Expr) -> Expr:
        return simplify_expr(substitute(expr, values), ranges)

    def stored(stmt: Stmt) -> Store:
        assert isinstance(stmt, Store)
        return Store(stmt.buffer, tuple(map(rewritten, stmt.indices)), rewritten(stmt.value))

    init = None if block.init is None else stored(block.init)
    return replace(block, body=stored(block.body), init=init)
