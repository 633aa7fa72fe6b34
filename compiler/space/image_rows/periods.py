"""Weights of a row of the image that repeat: panels are stored as far as they differ."""

from __future__ import annotations

from dataclasses import replace
from math import lcm, prod

from tunefarm.compiler.space.image_rows.repetition import repeated
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.ir import Expr
from tunefarm.compiler.tir.schedule.buffers import replace_buffer


def with_one_period(program: PrimFunc, param: int, channels: int) -> PrimFunc:
    """Read packed weights of a row from its first panels, those behind which all repeat.

    w[panel, …, lane]   ->   w[panel % 33, …, lane]      for 33 channels in panels of 16 lanes

    A row of 56 pixels has 116 panels of nine taps, 66 KB, and 33 of them are 19: what the first
    level of cache holds. A program whose rows are no longer than a period stays as it is.
    """
    layout, old = program.layouts[param], program.params[param]
    panel = prod(layout.factors[-1])
    period = lcm(channels, panel)
    if not layout.factors[-1] or period >= layout.shape[-1]:
        return program
    axis = layout.order.index(sum(1 + len(f) for f in layout.factors[:-1]))
    panels = period // panel

    def place(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return (*indices[:axis], indices[axis] % panels, *indices[axis + 1 :])

    new = replace(old, shape=(*old.shape[:axis], panels, *old.shape[axis + 1 :]))
    shorter = replace(
        layout,
        shape=(*layout.shape[:-1], period),
        transform=repeated(layout.transform, period // channels),
    )
    program = replace_buffer(program, old, new, place)
    return replace(program, layouts={**program.layouts, param: shorter})
