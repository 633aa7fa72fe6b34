"""Storage flattening: every buffer in one dimension, as memory is."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tunefarm.compiler.tir.affine import element_offset
from tunefarm.compiler.tir.ir import Allocate, Buffer, Expr, For, Load, PrimFunc, Stmt, Store
from tunefarm.compiler.tir.visit import transform_expr, transform_stmt


def flatten_buffers(program: PrimFunc) -> PrimFunc:
    """A lowered program whose buffers are rows of elements; parameters keep their place in memory.

    A: float32[4, 8], A[i, j + 1]   ->   A: float32[32], A[i * 8 + j + 1]
    """
    flat: dict[Buffer, Buffer] = {}

    def flattened(buffer: Buffer) -> Buffer:
        if buffer not in flat:
            flat[buffer] = replace(buffer, shape=(prod(buffer.shape),))
        return flat[buffer]

    def in_expr(expr: Expr) -> Expr | None:
        if not isinstance(expr, Load):
            return None
        return Load(flattened(expr.buffer), (element_offset(expr.buffer, expr.indices),))

    def in_stmt(stmt: Stmt) -> Stmt | None:
        match stmt:
            case Store(buffer, indices, value):
                return Store(flattened(buffer), (element_offset(buffer, indices),), value)
            case Allocate(buffer, body):
                return Allocate(flattened(buffer), body)
            case For() if stmt.prefetch:
                hints = tuple(replace(p, buffer=flattened(p.buffer)) for p in stmt.prefetch)
                return replace(stmt, prefetch=hints)
            case _:
                return None

    body = transform_stmt(program.body, in_stmt, lambda e: transform_expr(e, in_expr))
    return replace(program, params=tuple(map(flattened, program.params)), body=body)
