"""A config applied to the stages of a depthwise convolution by Winograd's method."""

from __future__ import annotations

from functools import lru_cache

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.config import Config
from tunefarm.compiler.space.depthwise_winograd.program import (
    TILE,
    Depthwise,
    create_depthwise,
    depthwise_of,
)
from tunefarm.compiler.space.nests import own_loops
from tunefarm.compiler.space.tiles import in_parallel, in_registers
from tunefarm.compiler.space.winograd.transforms import SUMMED, filter_transform
from tunefarm.compiler.summary import nominal_flops
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PackedLayout, PrimFunc
from tunefarm.compiler.tir import schedule as s


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the method does not apply or a knob misfits."""
    c = depthwise_of(function)
    if c is None:
        raise ScheduleError(
            "the workload is no depthwise 3x3 convolution of stride 1 with constant weights"
        )
    lanes = target.lanes("float32")
    program, final = _prepared(c, lanes)
    n, h, v, k = s.loops_of(program, final)
    program, (rows, row) = s.split(program, h, int(config["rh"]))
    program, (strip, column) = s.split(program, v, TILE)
    program, (panels, panel, lane) = s.split(program, k, int(config["nb"]), lanes)
    outer = (n, rows, panels)
    tiles = (strip, panel) if int(config["by_column"]) else (panel, strip)
    program = s.reorder(program, *outer, *tiles, row, column, lane)
    program = in_registers(program, (row, column), lane)
    program = s.compute_at(program, "product", row)
    *points, lane, tap = own_loops(program, "product", row)
    program = s.reorder(program, tap, *points, lane)
    program = in_registers(program, (tap, *points), lane)
    program = s.decompose_reduction(program, "product", tap)
    program, top = s.fuse(program, *outer)
    return in_parallel(program, top, nominal_flops(function), target)


@lru_cache(maxsize=64)
def _prepared(c: Depthwise, lanes: int) -> tuple[PrimFunc, str]:
    """The stages with products in registers and weights as they are read: vector by vector the
    points of all taps of rows."""
    program = create_depthwise(c)
    layout = PackedLayout(
        ((), (), (), (lanes,)), (3, 0, 1, 2, 4), filter_transform((SUMMED, TILE), 1)
    )
    program = s.transform_layout(program, c.filter_param, layout)
    final = s.remaining_blocks(program)[-1]
    return s.set_scope(program, "product", "register"), final
