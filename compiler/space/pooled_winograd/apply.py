"""A config applied to the stages of a convolution with the pooling behind it."""

from __future__ import annotations

from collections.abc import Mapping

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.config import Config
from tunefarm.compiler.space.nests import is_of_sum, loop_of, own_loops
from tunefarm.compiler.space.pooled_winograd.program import (
    Bands,
    Pooled,
    bands_of,
    blocked,
    create_pooled,
    pooled_of,
)
from tunefarm.compiler.space.tiles import in_parallel, in_registers
from tunefarm.compiler.space.winograd.apply import (
    hold_stages,
    is_rolled,
    place_columns,
    place_half,
    place_phases,
    place_products,
    place_tiles,
)
from tunefarm.compiler.space.winograd.memory import BY_COLUMN, tile_padding
from tunefarm.compiler.space.winograd.transforms import filter_transform
from tunefarm.compiler.summary import nominal_flops
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PackedLayout, PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Expr, Var, binary


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the function is no such pair or a knob misfits."""
    p = pooled_of(function)
    if p is None:
        raise ScheduleError("the workload is no 7x7 convolution of stride 2 with maxima behind it")
    lanes = target.lanes("float32")
    knob = {name: int(value) for name, value in config.items() if name != "sketch"}
    tile = (knob["tile_h"], knob["tile_w"])
    bands = bands_of(p, knob["rows"], tile[0])
    c = blocked(p, bands)
    program = create_pooled(p, bands, tile, lanes)
    value, result = s.remaining_blocks(program)[-2:]
    rolled = is_rolled(c, tile, target)
    program, write = hold_stages(
        program, tile_padding(c, lanes), knob["by_row"] == BY_COLUMN, rolled
    )
    width = knob["nv"] * lanes
    layout = PackedLayout(
        ((), (), (), (width,)), (3, 0, 1, 2, 4), filter_transform(tile, c.stride, c.taps)
    )
    program = s.transform_layout(program, c.filter_param, layout)

    program, outer, band = _place_maxima(program, result, p, bands, knob, lanes)
    tiles = _tiles_to_make(p, bands, outer)
    program = s.set_scope(program, value, "local")
    program = s.compute_at(program, value, band)
    program, row, panel, group, vector = _place_values(program, value, band, knob, lanes, rolled)
    if write is None:
        program = place_columns(program, c, group, knob, lanes)
    else:
        program = s.set_scope(program, write, "local")
        program, _ = place_half(program, "rows_out", vector, rolled)
        program = place_products(program, c, write, (panel, group), knob, None, target)
    program = place_tiles(program, c, row, (1, c.tiles(tile)[1]), target, rolled=rolled)
    program = place_phases(program, outer[-1])
    copied = own_loops(program, "phases", outer[-1])[0]
    program = s.limit(program, copied, tiles * tile[0] + c.transforms(tile[0]).points - tile[0])
    if row is not band:
        program = s.limit(program, row, tiles - band * bands.step)
    if bands.overlap:
        program = s.rolling_buffer(program, value, band)
    program, top = s.fuse(program, *outer)
    return in_parallel(program, top, nominal_flops(function), target)


def _place_maxima(
    program: PrimFunc, result: str, p: Pooled, bands: Bands, knob: Mapping[str, int], lanes: int
) -> tuple[PrimFunc, tuple[Var, ...], Var]:
    """Blocks of rows, bands of them, and maxima in registers; the loops over blocks and bands."""
    program, write = s.cache_write(program, result, "register")
    n, h, v, o = s.loops_of(program, write)
    outer: tuple[Var, ...] = (n,)
    if p.shape[1] % bands.rows:
        program, (block, h) = s.split(program, h, bands.rows)
        outer = (n, block)
    program, (band, h) = s.split(program, h, bands.height)
    program, (columns, v) = s.split(program, v, knob["pool_w"])
    program, (vectors, vector, lane) = s.split(program, o, knob["pool_v"], lanes)
    program = s.reorder(program, *outer, band, h, columns, vectors, v, vector, lane)
    program = in_registers(program, (v, vector), lane)
    program = s.compute_at(program, result, vectors)
    own = own_loops(program, result, vectors)
    taps = [loop for loop in own if is_of_sum(program, result, loop)]
    *rows, o = [loop for loop in own if loop not in taps]
    program, (vector, lane) = s.split(program, o, lanes)
    program = s.reorder(program, *taps, *rows, vector, lane)
    program = in_registers(program, (*rows, vector), lane)
    return s.decompose_reduction(program, result, taps[0]), outer, band


def _tiles_to_make(p: Pooled, bands: Bands, outer: tuple[Var, ...]) -> int | Expr:
    """Rows of tiles of a block, of which the last block of an image may have fewer."""
    if len(outer) == 1:
        return bands.tiles(bands.rows)
    rows = p.shape[1] - outer[-1] * bands.rows
    return bands.tiles(binary("min", rows, bands.rows))


def _place_values(
    program: PrimFunc,
    value: str,
    band: Var,
    knob: Mapping[str, int],
    lanes: int,
    rolled: bool,
) -> tuple[PrimFunc, Var, Var, Var, Var]:
    """Rows of tiles of a band, panels, groups of tiles, and the vectors of a tile's results: the
    loops over them (that over bands if it has one row of tiles)."""
    own = own_loops(program, value, band)
    axes = s.find_block(program, value).iters
    t, row, w, o = (loop_of(program, value, axis, own) for axis in axes[1:])
    assert row is not None
    assert w is not None
    assert o is not None
    program, (group, tile, column) = s.split(program, w, knob["rw"], knob["tile_w"])
    program, (panel, vector, lane) = s.split(program, o, knob["nv"], lanes)
    above = [] if t is None else [t]
    program = s.reorder(program, *above, panel, group, tile, vector, row, column, lane)
    program = in_registers(program, (column,) if rolled else (row, column), lane)
    return program, band if t is None else t, panel, group, vector
