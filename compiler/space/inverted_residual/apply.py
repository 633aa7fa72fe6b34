"""A config applied to the stages of an inverted residual block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.config import Config
from tunefarm.compiler.space.inverted_residual.program import (
    InvertedResidual,
    Stage,
    create_stages,
    inverted_residual_of,
)
from tunefarm.compiler.space.nests import is_of_sum, loop_of, own_loops
from tunefarm.compiler.space.tiles import in_parallel, in_registers, place_sums
from tunefarm.compiler.summary import nominal_flops
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PackedLayout, PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Var

_Loops: TypeAlias = tuple[Var, Var, Var | None, Var | None, Var]


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the function is no such block or a knob misfits."""
    block = inverted_residual_of(function)
    made = None if block is None else create_stages(block)
    if block is None or made is None:
        raise ScheduleError("the workload is no expansion, depthwise convolution and projection")
    lanes = target.lanes("float32")
    knob = {name: int(value) for name, value in config.items() if name != "sketch"}
    program, stages = made
    for stage in stages:
        program = s.set_scope(program, stage.sum, "register")
    for stage in stages[:-1]:
        program = s.set_scope(program, stage.value, "local")
    program = _pack(program, block, knob, lanes)
    program, outer, depthwise, loops = _place_results(program, block, stages, knob, lanes)
    panel, vector, row, column, lane = loops
    rolls = knob["roll"] == 1 and row is not None
    outer_tiles = [row, vector] if rolls else [vector, row]
    program = _place_windows(program, depthwise, outer_tiles, column, lane, knob["dw"])
    if block.expand is not None:
        tile_knobs = (knob["ew"], knob["nv"], knob["eu"])
        place = row if rolls and row is not None else panel
        program = s.compute_at(program, stages[0].value, place)
        own = _loops_of_value(program, stages[0], place)
        program = _place_products(program, stages[0], own, tile_knobs, lanes)
        if rolls:
            program = s.rolling_buffer(program, stages[0].value, place)
    program, top = s.fuse(program, *outer)
    return in_parallel(program, top, nominal_flops(function), target)


def _place_results(
    program: PrimFunc,
    block: InvertedResidual,
    stages: Sequence[Stage],
    knob: Mapping[str, int],
    lanes: int,
) -> tuple[PrimFunc, list[Var], Stage, _Loops]:
    """Blocks of rows, and in them panels of channels of the depthwise convolution.

    Returns the loops over blocks, and of the depthwise stage: panel, vector, row, column, lane.
    """
    n, h, w, o = s.loops_of(program, stages[-1].value)
    program, (row_block, h) = s.split(program, h, knob["mb"])
    width = (knob["nv"], lanes)
    if block.project is None:
        program, (panels, panel, vector, lane) = s.split(program, o, knob["nb"], *width)
        program = s.reorder(program, n, row_block, panels, panel, vector, h, w, lane)
        return program, [n, row_block, panels], stages[-1], (panel, vector, h, w, lane)
    program = s.reorder(program, n, row_block, h, w, o)
    tile_knobs = (knob["pw"], knob["pv"], knob["pu"])
    program = _place_products(program, stages[-1], (h, w, o), tile_knobs, lanes)
    depthwise = stages[-2]
    program = s.compute_at(program, depthwise.value, row_block)
    row, column, o = _loops_of_value(program, depthwise, row_block)
    program, (panel, vector, lane) = s.split(program, o, *width)
    rest = [v for v in (row, column) if v is not None]
    program = s.reorder(program, panel, vector, *rest, lane)
    return program, [n, row_block], depthwise, (panel, vector, row, column, lane)


def _loops_of_value(
    program: PrimFunc, stage: Stage, place: Var
) -> tuple[Var | None, Var | None, Var]:
    """Loops over rows, columns and channels below ``place``; None for a single row or column."""
    own = own_loops(program, stage.value, place)
    axes = s.find_block(program, stage.value).iters
    row, column, channel = (loop_of(program, stage.value, a, own) for a in axes[1:])
    assert channel is not None
    return row, column, channel


def _pack(
    program: PrimFunc, block: InvertedResidual, knob: Mapping[str, int], lanes: int
) -> PrimFunc:
    """Weights as they are read: panel by panel all inputs, and vector by vector all taps."""
    if block.expand is not None:
        layout = PackedLayout(((), (), (), (knob["nv"] * lanes,)), (3, 0, 1, 2, 4))
        program = s.transform_layout(program, block.expand.param, layout)
    if block.project is not None:
        layout = PackedLayout(((), (), (), (knob["pv"] * lanes,)), (3, 0, 1, 2, 4))
        program = s.transform_layout(program, block.project.param, layout)
    layout = PackedLayout(((), (), (), (lanes,)), (3, 0, 1, 2, 4))
    return s.transform_layout(program, block.depthwise.param, layout)


def _place_windows(
    program: PrimFunc,
    stage: Stage,
    outer: Sequence[Var | None],
    column: Var | None,
    lane: Var,
    width: int,
) -> PrimFunc:
    """The depthwise convolution, columns of results in registers, a vector at a time."""
    tiles, inner = [v for v in outer if v is not None], []
    if column is not None:
        program, (tile, column) = s.split(program, column, width)
        tiles, inner = [*tiles, tile], [column]
    program = s.reorder(program, *tiles, *inner, lane)
    program = in_registers(program, inner, lane)
    program = s.compute_at(program, stage.sum, tiles[-1])
    *rows, lane, kh, kw = own_loops(program, stage.sum, tiles[-1])
    program = s.reorder(program, kh, kw, *rows, lane)
    program = in_registers(program, (kw, *rows), lane)
    return s.decompose_reduction(program, stage.sum, kh)


def _place_products(
    program: PrimFunc,
    stage: Stage,
    loops: Sequence[Var | None],
    tile: tuple[int, int, int],
    lanes: int,
) -> PrimFunc:
    """A pointwise convolution, register tile by register tile: columns by vectors."""
    h, w, o = loops
    width, vectors, unrolled = tile
    assert o is not None
    program, (panel, vector, lane) = s.split(program, o, vectors, lanes)
    outer, inner = [panel], [vector]
    if h is not None:
        outer.append(h)
    if w is not None:
        program, (columns, column) = s.split(program, w, width)
        outer, inner = [*outer, columns], [column, *inner]
    program = s.reorder(program, *outer, *inner, lane)
    program = in_registers(program, inner, lane)
    program = s.compute_at(program, stage.sum, outer[-1])
    own = own_loops(program, stage.sum, outer[-1])
    first = next(n for n, v in enumerate(own) if is_of_sum(program, stage.sum, v))
    (*rows, o), (*taps, k) = own[:first], own[first:]
    return place_sums(program, stage.sum, rows, o, k, (lanes, unrolled), taps)[0]
