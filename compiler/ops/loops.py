"""Loops of operators that no element by element formula describes: scans, scatters, sorts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tunefarm.compiler.tir.ir import Const, Expr, For, LoopKind, Stmt, Var


def with_index(index: Sequence[Expr], axis: int, at: Expr) -> tuple[Expr, ...]:
    """The index with another place along one axis."""
    return (*index[:axis], at, *index[axis + 1 :])


def scan_place(step: Expr, extent: int, reverse: bool) -> Expr:
    """Where a scan of ``extent`` elements is after some steps, from the front or the back."""
    return Const(extent - 1) - step if reverse else step


def over(shape: Sequence[int], axis: int, body: Callable[[list[Expr]], Stmt]) -> Stmt:
    """``body(index)`` for every index along the axes but one, the first of them in parallel.

    The index holds 0 at the axis itself.
    """
    index: list[Expr] = [Const(0) if d == axis else Var(f"i{d}") for d in range(len(shape))]
    stmt = body(index)
    for d in reversed(range(len(shape))):
        place = index[d]
        if isinstance(place, Var):
            outermost = d == (0 if axis else 1)
            kind = LoopKind.PARALLEL if outermost and shape[d] > 1 else LoopKind.SERIAL
            stmt = For(place, Const(shape[d]), stmt, kind)
    return stmt


def every(shape: Sequence[int], body: Callable[[list[Expr]], Stmt]) -> Stmt:
    """``body(index)`` for every index in row-major order."""
    index = [Var(f"i{d}") for d in range(len(shape))]
    stmt = body([*index])
    for var, extent in reversed(list(zip(index, shape, strict=True))):
        stmt = For(var, Const(extent), stmt)
    return stmt
