"""A config applied to the stages of a depthwise convolution along rows, by Winograd's method."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.config import Config
from tunefarm.compiler.space.depthwise_winograd.program import TILE, Depthwise
from tunefarm.compiler.space.image_rows.periods import with_one_period
from tunefarm.compiler.space.image_rows.program import repeated_params
from tunefarm.compiler.space.image_rows.repetition import THEN
from tunefarm.compiler.space.image_rows_winograd.program import create_rows, rows_of
from tunefarm.compiler.space.nests import own_loops
from tunefarm.compiler.space.tiles import in_parallel, in_registers
from tunefarm.compiler.space.winograd.transforms import SUMMED, filter_transform
from tunefarm.compiler.summary import nominal_flops
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PackedLayout, PrimFunc
from tunefarm.compiler.tir import schedule as s


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the method does not apply or a knob misfits."""
    c = rows_of(function)
    if c is None:
        raise ScheduleError(
            "the workload is no depthwise 3x3 convolution of stride 1 with constant weights and "
            "rows of results as long as the image's"
        )
    lanes = target.lanes("float32")
    program, final = _prepared(c, lanes)
    n, h, p = s.loops_of(program, final)
    program, (rows, tile, row) = s.split(program, h, -(-int(config["rh"]) // TILE), TILE)
    program, (strip, lane) = s.split(program, p, lanes)
    program = s.reorder(program, n, rows, strip, tile, row, lane)
    program = in_registers(program, (tile, row), lane)
    program = s.compute_at(program, "product", tile)
    *points, lane, tap = own_loops(program, "product", tile)
    program = s.reorder(program, tap, *points, lane)
    program = in_registers(program, (tap, *points), lane)
    program = s.decompose_reduction(program, "product", tap)
    program, top = s.fuse(program, n, rows)
    program = with_one_period(program, c.filter_param, c.channels)
    return in_parallel(program, top, nominal_flops(function), target)


@lru_cache(maxsize=64)
def _prepared(c: Depthwise, lanes: int) -> tuple[PrimFunc, str]:
    """The stages with products in registers and weights as they are read: vector by vector the
    points of all taps across."""
    program = create_rows(c)
    layouts = dict(repeated_params(c.function))
    transform = filter_transform((TILE, SUMMED), 1) + THEN + layouts.pop(c.filter_param).transform
    packed = PackedLayout(((), (), (lanes,)), (2, 0, 1, 3), transform)
    program = s.transform_layout(program, c.filter_param, packed)
    program = replace(program, layouts={**program.layouts, **layouts})
    final = s.remaining_blocks(program)[-1]
    return s.set_scope(program, "product", "register"), final
