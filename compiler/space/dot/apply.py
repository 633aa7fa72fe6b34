"""A config applied: loops, packing, copies, the instruction and the epilogue of dot products."""

from __future__ import annotations

from math import prod

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.config import Config
from tunefarm.compiler.space.contraction.apply import LINE_BYTES, SERIAL_FLOPS
from tunefarm.compiler.space.contraction.shape import row_axes
from tunefarm.compiler.space.dot.shape import DotProduct, dot_product_of
from tunefarm.compiler.space.nests import extent_of, fitting_lanes, own_loops
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir import PackedLayout, PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Const, Expr, Prefetch, Var
from tunefarm.compiler.tir.schedule.tree import written_buffer
from tunefarm.compiler.tir.visit import loads_of, substitute


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if there is no instruction or a knob misfits."""
    dot = dot_product_of(function, target)
    if dot is None:
        raise ScheduleError(f"no instruction of {target} computes the workload's dot products")
    c, lanes = dot.contraction, dot.instruction.lanes
    knob = {name: int(value) for name, value in config.items() if name not in ("sketch", "order")}
    second, last = row_axes(c)
    program, block = c.program, c.block
    program = _pack_constant(program, dot, knob["nv"] * lanes)
    copy = None
    if knob["pack_lhs"] or dot.copied:
        program, copy = _copy_rows(program, dot)
    if c.epilogue is None:
        program, epilogue = s.cache_write(program, block, "register")
    else:
        epilogue = c.epilogue
        program = s.set_scope(program, block, "register")
    width = knob["nv"] * lanes
    panels = -(-c.vector.extent // width)
    padded = {c.vector.position: panels * width, dot.depth.position: dot.padded_depth}
    program = s.pad_einsum(program, block, padded)

    loops = s.loops_of(program, block)
    if copy is not None:
        loops = own_loops(program, block, None)
    program, (panel, n_vec, n_lane) = s.split(program, loops[c.vector.position], knob["nv"], lanes)
    program, (n_block, n_panel) = s.split(program, panel, knob["nb"])
    row_tiles, row_inner, m_block = [], [], None
    for axis, tile, blocked in (
        (second, knob["rh"], True),
        (last, knob["rw"], second is None),
    ):
        if axis is None:
            continue
        if blocked:
            program, (m_block, outer, inner) = s.split(
                program, loops[axis.position], knob["mb"], tile
            )
        else:
            program, (outer, inner) = s.split(program, loops[axis.position], tile)
        row_tiles.append(outer)
        row_inner.append(inner)
    program, (group, term) = s.split(program, loops[dot.depth.position], dot.instruction.terms)
    program, (k_outer, k_inner) = s.split(program, group, knob["ku"])
    reduce = [*(loops[a.position] for a in c.reduce[:-1]), k_outer]
    blocks = [n_block, m_block] if config["order"] == "nm" else [m_block, n_block]
    rest = [loops[a.position] for a in (*c.outer, *c.rows) if a not in (second, last)]
    outermost = [*rest, *(b for b in blocks if b is not None)]
    inside = [*row_inner, n_vec, n_lane, term]
    program = s.reorder(program, *outermost, n_panel, *row_tiles, *reduce, k_inner, *inside)
    for loop in (k_inner, *row_inner, n_vec):
        program = s.unroll(program, loop)
    tile_loop = row_tiles[-1] if row_tiles else n_panel
    program = _place_epilogue(program, epilogue, tile_loop, lanes)
    program = s.decompose_reduction(program, block, reduce[0])
    program = _vectorize_init(program, f"{block}_init")
    program = _prefetch_weights(program, dot, knob, row_tiles, reduce, (k_inner, *inside))
    program = s.tensorize(program, n_lane, dot.instruction.name)
    program, top = s.fuse(program, *outermost)
    if copy is not None:
        program = _place_copy(program, copy, top, target)
    flops = 2 * prod(a.extent for a in (*c.outer, *c.rows, c.vector, *c.reduce))
    if target.num_cores > 1 and flops > SERIAL_FLOPS * dot.instruction.terms:
        program = s.parallel(program, top)
    return program


def _pack_constant(program: PrimFunc, dot: DotProduct, width: int) -> PrimFunc:
    """Pack the right operand to [outer …][panel][taps …][group][width][term]."""
    c = dot.contraction
    assert c.rhs.param is not None
    position = {i.var: n for n, i in enumerate(c.node.iters)}
    dims = [position.get(i, -1) if isinstance(i, Var) else -1 for i in c.rhs.load.indices]
    pieces = {c.vector.position: width, dot.depth.position: dot.instruction.terms}
    factors = tuple((pieces[p],) if p in pieces else () for p in dims)
    starts = [sum(1 + len(f) for f in factors[:d]) for d in range(len(dims))]
    start = dict(zip(dims, starts, strict=True))
    taps = [start[a.position] for a in c.reduce[:-1]]
    summed = {a.position for a in c.reduce}
    front = [at for p, at in zip(dims, starts, strict=True) if p not in pieces and p not in summed]
    lanes, depth = start[c.vector.position], start[dot.depth.position]
    order = (*front, lanes, *taps, depth, lanes + 1, depth + 1)
    return s.transform_layout(program, c.rhs.param, PackedLayout(factors, order))


def _copy_rows(program: PrimFunc, dot: DotProduct) -> tuple[PrimFunc, str]:
    """A copy of the left operand with the terms innermost, which the block reads instead."""
    c = dot.contraction
    padded = c.lhs.load.buffer
    program, copy = s.cache_read(program, c.block, padded, "local")
    var = c.node.iters[dot.depth.position].var
    inner = c.lhs.load.indices.index(var)
    dims = range(len(padded.shape))
    program = s.permute_buffer(program, copy, (*(d for d in dims if d != inner), inner))
    for name in s.remaining_blocks(program):
        if written_buffer(s.find_block(program, name)) is padded:
            program = s.compute_inline(program, name)
    return program, copy


def _place_copy(program: PrimFunc, copy: str, loop: Var, target: Target) -> PrimFunc:
    """What a block of rows reads, copied in vectors."""
    program = s.compute_at(program, copy, loop)
    own = own_loops(program, copy, loop)
    if own:
        dtype = written_buffer(s.find_block(program, copy)).dtype
        lanes = fitting_lanes(target.lanes(dtype), extent_of(program, own[-1]))
        program, (_, lane) = s.split(program, own[-1], lanes)
        program = s.vectorize(program, lane)
    return program


def _place_epilogue(program: PrimFunc, epilogue: str, loop: Var, lanes: int) -> PrimFunc:
    """The epilogue on one tile, unrolled and vectorized like the accumulators."""
    program = s.reverse_compute_at(program, epilogue, loop)
    own = own_loops(program, epilogue, loop)
    if not own:
        return program
    *rows, last = own
    program, (vectors, lane) = s.split(program, last, lanes)
    program = s.vectorize(program, lane)
    for row in (*rows, vectors):
        program = s.unroll(program, row)
    return program


def _vectorize_init(program: PrimFunc, block: str) -> PrimFunc:
    """The accumulators' first values; the loops around them are unrolled already."""
    return s.vectorize(program, s.loops_of(program, block)[-1])


def _prefetch_weights(
    program: PrimFunc,
    dot: DotProduct,
    knob: dict[str, int],
    tiles: list[Var],
    reduce: list[Var],
    inside: tuple[Var, ...],
) -> PrimFunc:
    """Fetch packed weights before their use: some steps ahead, and the next panel bit by bit."""
    c = dot.contraction
    node = s.find_block(program, c.block)
    values = dict(zip((i.var for i in node.iters), node.bindings, strict=True))
    weights = program.params[c.rhs.param or 0]
    load = next(ld for ld in loads_of(node.body) if ld.buffer is weights)
    place: Expr = Const(0)
    for index, extent in zip(load.indices, weights.shape, strict=True):
        place = place * extent + index
    step = substitute(substitute(place, values), dict.fromkeys(inside, Const(0)))
    size = weights.shape[-2] * weights.shape[-1]  # of a group: nv vectors
    line = LINE_BYTES // dtype_bytes(weights.dtype)
    if knob["prefetch"]:
        lines = knob["ku"] * -(-size // line)
        hint = Prefetch(weights, step + knob["prefetch"] * size, lines)
        program = s.prefetch(program, reduce[-1], hint)
    if knob["next_panel"]:
        panel = prod(a.extent for a in dot.words.reduce) * size
        visits = [*tiles, *reduce]
        extents = [extent_of(program, v) for v in visits]
        share = -(-panel // prod(extents))
        visit: Expr = Const(0)
        for var, extent in zip(visits, extents, strict=True):
            visit = visit * extent + var
        start = substitute(step, dict.fromkeys(reduce, Const(0))) + panel
        hint = Prefetch(weights, start + visit * share, max(1, share // line), level=2)
        program = s.prefetch(program, reduce[-1], hint)
    return program
