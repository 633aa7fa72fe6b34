"""Weights of a row of the image, which repeat: panels are stored as far as they differ."""

from __future__ import annotations

from dataclasses import replace
from math import lcm, prod

from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.image_rows.program import (
    channels_of,
    image_rows_of,
    repeated_params,
)
from tunefarm.compiler.space.image_rows.repetition import repeated
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.ir import Expr
from tunefarm.compiler.tir.schedule.buffers import replace_buffer


def with_repeated(program: PrimFunc, function: Function, one_period: bool = True) -> PrimFunc:
    """Parameters with an element a channel, the weights among them, are repeated for each pixel of
    a row when a model is built; packed weights for ``one_period`` alone."""
    layouts = dict(program.layouts)
    for param, layout in repeated_params(function).items():
        packed = layouts.get(param, layout)
        layouts[param] = replace(packed, transform=layout.transform)
    program = replace(program, layouts=layouts)
    if not one_period:
        return program
    c = image_rows_of(function)
    assert c is not None
    assert c.rhs.param is not None
    return with_one_period(program, c.rhs.param, channels_of(function))


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
