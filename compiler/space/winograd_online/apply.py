"""A config applied to the stages of Winograd's method with filters transformed in registers."""

from __future__ import annotations

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.config import Config
from tunefarm.compiler.space.nests import is_of_sum, own_loops
from tunefarm.compiler.space.prefetch import prefetch_shares
from tunefarm.compiler.space.tiles import in_parallel, in_registers, place_sums
from tunefarm.compiler.space.winograd.apply import place_tiles
from tunefarm.compiler.space.winograd.convolution import Convolution, convolution_of
from tunefarm.compiler.space.winograd_online.program import create_winograd_online
from tunefarm.compiler.space.winograd_online.transforms import SCALED, TAPS, TILE
from tunefarm.compiler.summary import nominal_flops
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PackedLayout, PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Var


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the method does not apply or a knob misfits."""
    c = convolution_of(function)
    if c is None or (c.stride, c.taps) != (1, TAPS):
        raise ScheduleError("the workload is no 3x3 convolution of stride 1 with constant weights")
    lanes = target.lanes("float32")
    knob = {name: int(value) for name, value in config.items() if name != "sketch"}
    if c.inputs % knob["kb"]:
        raise ScheduleError(f"kb is {knob['kb']}, and does not divide the {c.inputs} inputs")
    program = create_winograd_online(c, knob["kb"], lanes)
    final = s.remaining_blocks(program)[-1]
    # panels of outputs, inputs, taps
    layout = PackedLayout(((), (), (), (lanes,)), (3, 2, 0, 1, 4), SCALED)
    program = s.transform_layout(program, c.filter_param, layout)

    n, h, w, o = s.loops_of(program, final)
    program, (group, tile_row, row) = s.split(program, h, knob["rt"], TILE)
    program, (tile, column) = s.split(program, w, TILE)
    program, (block, panel, lane) = s.split(program, o, knob["nb"], lanes)
    program = s.reorder(program, block, panel, n, group, tile_row, tile, row, column, lane)
    program = in_registers(program, (row, column), lane)
    program = _place_products(program, c, (block, panel, n, group), knob, target)
    program = s.set_scope(program, "rows_in", "register")
    program = s.set_scope(program, "window", "register")
    image = (None, c.tiles((TILE, TILE))[1])
    program = place_tiles(program, c, None, image, target, rolled=False)
    return in_parallel(program, block, nominal_flops(function), target)


def _place_products(
    program: PrimFunc,
    c: Convolution,
    place: tuple[Var, Var, Var, Var],
    knob: dict[str, int],
    target: Target,
) -> PrimFunc:
    """For a group of tiles the products of each column of points in registers, and from there, in
    the first cache, the column's part of the results."""
    lanes, (block, panel, image, group) = target.lanes("float32"), place
    program = s.set_scope(program, "rows_out", "local")
    for stage in ("product", "filter", "taps_in"):
        program = s.set_scope(program, stage, "register")
    program = s.compute_at(program, "rows_out", group)
    loops = own_loops(program, "rows_out", group)
    inputs = [v for v in loops if is_of_sum(program, "rows_out", v)]  # none in one block
    row, *tiles, column, output = (v for v in loops if v not in inputs)
    program = s.reorder(program, *inputs, column, row, *tiles, output)
    program = in_registers(program, (column, row, *tiles), output)
    for loop in inputs:
        program = s.decompose_reduction(program, "rows_out", loop)

    program = s.compute_at(program, "product", column)
    point, *tiles, output, term = own_loops(program, "product", column)
    sums = (point, *tiles)
    program, step = place_sums(program, "product", sums, output, term, (lanes, knob["ku"]))
    for stage in ("filter", "taps_in"):
        program = s.compute_at(program, stage, step)
        *points, lane = own_loops(program, stage, step)
        program = in_registers(program, points, lane)
    size = TAPS**2 * c.inputs // knob["kb"] * lanes
    number = block * knob["nb"] + panel
    for loop in inputs:
        number = number * knob["kb"] + loop
    visits, weights = (image, group, column, step), program.params[c.filter_param]
    return prefetch_shares(program, weights, (number + 1) * size, size, visits, target, level=2)
