"""Programs that write the rows of their result apart: into a part of each row of a wider array.

out[i, j] = …          of 10 × 16,  pitch 48   ->   the same into an array of 10 × 48
out[i * 16 + j] = …                            ->   out[i * 48 + j] = …
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.affine import Affine, Ranges, affine, interval_of
from tunefarm.compiler.tir.ir import Buffer, Expr
from tunefarm.compiler.tir.schedule.buffers import replace_buffer
from tunefarm.compiler.tir.schedule.tree import blocks

_Terms: TypeAlias = Mapping[object, tuple[int, Expr]]


@dataclass(frozen=True, slots=True)
class RowPitch:
    """A result is written as so many rows, ``pitch`` elements from the start of one to the next."""

    rows: int
    pitch: int


def with_row_pitch(program: PrimFunc, form: RowPitch) -> PrimFunc:
    """The scheduled program with the rows of its result written so far apart.

    Raises ScheduleError if the program does not write its result row by row.
    """
    old = program.params[-1]
    width = prod(old.shape) // form.rows
    wider = _wider(old, width, form)
    if wider is not None:
        return replace_buffer(program, old, wider)
    if len(old.shape) != 1:
        raise _unfit(program, width)
    ranges = {i.var: (0, i.extent - 1) for b in blocks(program.body) for i in b.iters}

    def place(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return (_apart(program, indices[0], width, form.pitch, ranges),)

    flat = replace(old, shape=(form.rows * form.pitch,))
    return replace_buffer(program, old, flat, place)


def _wider(buffer: Buffer, width: int, form: RowPitch) -> Buffer | None:
    """The buffer with a longer axis, if one of its axes begins where a row does."""
    for axis, extent in enumerate(buffer.shape):
        inner = prod(buffer.shape[axis + 1 :])
        if axis and extent * inner == width and form.pitch % inner == 0:
            shape = (*buffer.shape[:axis], form.pitch // inner, *buffer.shape[axis + 1 :])
            return replace(buffer, shape=shape)
    return None


def _apart(program: PrimFunc, index: Expr, width: int, pitch: int, ranges: Ranges) -> Expr:
    """``row · width + column`` as ``row · pitch + column``."""
    form = affine(index)
    rows, columns = _split(form.terms, width)
    row, column = divmod(form.const, width)
    rest = Affine(column, columns)
    low, high = interval_of(rest, ranges)
    if low < 0 or high >= width:
        raise _unfit(program, width)
    return (Affine(row, rows).scaled(pitch) + rest).expr()


def _unfit(program: PrimFunc, width: int) -> ScheduleError:
    return ScheduleError(f"{program.name} does not write its result in rows of {width}")


def _split(terms: _Terms, width: int) -> tuple[_Terms, _Terms]:
    """Terms that step through whole rows, counted in rows, and the others."""
    rows = {k: (c // width, a) for k, (c, a) in terms.items() if c % width == 0}
    return rows, {k: t for k, t in terms.items() if k not in rows}
