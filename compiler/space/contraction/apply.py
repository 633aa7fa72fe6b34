"""A config applied: loops, packing, epilogue, copies and prefetches of a contraction."""

from __future__ import annotations

from math import prod

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.analysis import Contraction, Operand
from tunefarm.compiler.space.config import Config
from tunefarm.compiler.space.contraction.shape import (
    contraction_of,
    lanes_of,
    packed_at_build,
    row_axes,
)
from tunefarm.compiler.space.nests import own_loops
from tunefarm.compiler.space.prefetch import PackedWeights, prefetch_weights
from tunefarm.compiler.space.tiles import in_parallel, in_registers, place_epilogue
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PackedLayout, PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.affine import affine
from tunefarm.compiler.tir.ir import Var


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the function is no contraction or a knob misfits."""
    c = contraction_of(function)
    if c is None:
        raise ScheduleError("the workload is not a contraction")
    lanes = lanes_of(c, target)
    knob = {k: config[k] for k in config}
    rw, rh, nv = int(knob["rw"]), int(knob["rh"]), int(knob["nv"])
    second, last = row_axes(c)
    program, block = c.program, c.block
    if c.epilogue is None:
        program, epilogue = s.cache_write(program, block, "register")
    else:
        epilogue = c.epilogue
        program = s.set_scope(program, block, "register")
    program = _pack_constant(program, c, nv * lanes)
    loops = s.loops_of(program, block)
    program, (n_block, n_panel, n_vec, n_lane) = s.split(
        program, loops[c.vector.position], int(knob["nb"]), nv, lanes
    )
    row_tiles, row_inner, m_block = [], [], None
    for axis, tile, blocked in ((second, rh, True), (last, rw, second is None)):
        if axis is None:
            continue
        if blocked:
            program, (m_block, outer, inner) = s.split(
                program, loops[axis.position], int(knob["mb"]), tile
            )
        else:
            program, (outer, inner) = s.split(program, loops[axis.position], tile)
        row_tiles.append(outer)
        row_inner.append(inner)
    reduce = [loops[a.position] for a in c.reduce]
    program, (k_outer, k_inner) = s.split(program, reduce[-1], int(knob["ku"]))
    reduce[-1:] = [k_outer]
    blocks = [n_block, m_block] if knob["order"] == "nm" else [m_block, n_block]
    rest = [loops[a.position] for a in (*c.outer, *c.rows) if a not in (second, last)]
    outermost = [*rest, *(b for b in blocks if b is not None)]
    inside = [*row_inner, n_vec, n_lane]
    program = s.reorder(program, *outermost, n_panel, *row_tiles, *reduce, k_inner, *inside)
    program = in_registers(program, (k_inner, *row_inner, n_vec), n_lane)
    tile_loop = row_tiles[-1] if row_tiles else n_panel
    program = place_epilogue(program, epilogue, tile_loop, lanes)
    program = s.decompose_reduction(program, block, reduce[0])
    if packed_at_build(c) is not None and c.rhs.param is not None:
        width = nv * lanes
        weights = PackedWeights(c.rhs.param, width, width * prod(a.extent for a in c.reduce))
        hints = {n: int(knob[n]) for n in ("ku", "prefetch", "next_panel")}
        visits = (row_tiles, reduce, (k_inner, *inside))
        program = prefetch_weights(program, block, weights, hints, *visits)
    program, top = s.fuse(program, *outermost)
    if int(knob["pack_lhs"]):
        program = _copy_rows(program, block, c.lhs, top, lanes)
    if int(knob["pack_rhs"]):
        program = _copy_panel(program, block, c, n_panel, lanes)
    flops = 2 * prod(a.extent for a in (*c.outer, *c.rows, c.vector, *c.reduce))
    return in_parallel(program, top, flops, target)


def _pack_constant(program: PrimFunc, c: Contraction, width: int) -> PrimFunc:
    """Pack a constant right operand to [outer …][panel][reduce …][width]."""
    if packed_at_build(c) is None or c.rhs.param is None:
        return program
    var_of = {i.var: n for n, i in enumerate(c.node.iters)}
    positions = [var_of.get(i, -1) if isinstance(i, Var) else -1 for i in c.rhs.load.indices]
    lanes_dim = positions.index(c.vector.position)
    factors = tuple((width,) if d == lanes_dim else () for d in range(len(positions)))
    # After the split the dimensions are numbered with the lanes' inner part behind its outer one.
    number = [d if d <= lanes_dim else d + 1 for d in range(len(positions))]
    reduced = {a.position for a in c.reduce}
    front = [number[d] for d, p in enumerate(positions) if d != lanes_dim and p not in reduced]
    summed = sorted((p, number[d]) for d, p in enumerate(positions) if p in reduced)
    order = (*front, number[lanes_dim], *(n for _, n in summed), lanes_dim + 1)
    return s.transform_layout(program, c.rhs.param, PackedLayout(factors, order))


def _copy_rows(program: PrimFunc, block: str, operand: Operand, loop: Var, lanes: int) -> PrimFunc:
    """Copy the rows of a block into a local tile whose row stride avoids cache conflicts."""
    buffer = operand.load.buffer
    program, copy = s.cache_read(program, block, buffer, "local", padding=lanes)
    program = s.compute_at(program, copy, loop)
    own = own_loops(program, copy, loop)
    if own:
        program, (_, lane) = s.split(program, own[-1], lanes)
        program = s.vectorize(program, lane)
    return program


def _copy_panel(program: PrimFunc, block: str, c: Contraction, loop: Var, lanes: int) -> PrimFunc:
    """Copy a panel of the right operand into a local tile with the lanes innermost."""
    buffer = c.rhs.load.buffer
    var = c.node.iters[c.vector.position].var
    dims = range(len(buffer.shape))
    lane_dim = next(d for d in dims if var in affine(c.rhs.load.indices[d]).terms)
    program, copy = s.cache_read(program, block, buffer, "local")
    order = tuple(d for d in dims if d != lane_dim) + (lane_dim,)
    program = s.permute_buffer(program, copy, order)
    program = s.compute_at(program, copy, loop)
    own = own_loops(program, copy, loop)
    lane_loop = next((v for v in own if v.name == f"i{lane_dim}"), None)
    if lane_loop is not None:
        program, (outer, lane) = s.split(program, lane_loop, lanes)
        rest = [v for v in own if v is not lane_loop]
        program = s.reorder(program, outer, *rest, lane)
        program = s.vectorize(program, lane)
    return program
