"""A config applied: parts of the sum, the sums of a block, and the epilogue behind them."""

from __future__ import annotations

from functools import lru_cache

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.analysis import Contraction
from tunefarm.compiler.space.config import Config
from tunefarm.compiler.space.contraction.apply import keep_sums, operand_axes, split_operand
from tunefarm.compiler.space.contraction.shape import panel_count
from tunefarm.compiler.space.deep.shape import deep_product_of, rows_of
from tunefarm.compiler.space.nests import own_loops
from tunefarm.compiler.space.tiles import in_parallel, in_registers, place_sums
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PackedLayout, PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Var


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError for another function, or if a knob misfits."""
    c = deep_product_of(function, target)
    if c is None:
        raise ScheduleError("the workload is no product with a long sum")
    lanes = target.lanes("float32")
    knob = {name: int(value) for name, value in config.items() if name != "sketch"}
    program, epilogue, part = _prepared(c, knob["part"], knob["nv"] * lanes)
    block = c.block
    loops = dict(zip("mnk", s.loops_of(program, block), strict=True))
    program, (n_block, panel, vector, lane) = s.split(
        program, loops["n"], knob["nb"], knob["nv"], lanes
    )
    tiles = min(knob["mb"], panel_count(rows_of(c).extent, knob["rw"]))
    program, (m_block, tile, row) = s.split(program, loops["m"], tiles, knob["rw"])
    step = loops["k"]
    program = s.reorder(program, n_block, m_block, step, panel, tile, row, vector, lane)
    program = in_registers(program, (row, vector), lane)
    program = s.compute_at(program, part, tile)
    *rows, column, term = own_loops(program, part, tile)
    program, _ = place_sums(program, part, rows, column, term, (lanes, knob["ku"]))
    program = s.reverse_compute_at(program, epilogue, m_block)
    program = _in_vectors(program, epilogue, m_block, lanes)
    program = s.decompose_reduction(program, block, step)
    program = _in_vectors(program, f"{block}_init", m_block, lanes)
    program, top = s.fuse(program, n_block, m_block)
    flops = 2 * rows_of(c).extent * c.vector.extent * c.reduce[0].extent
    return in_parallel(program, top, flops, target)


@lru_cache(maxsize=64)
def _prepared(c: Contraction, part: int, width: int) -> tuple[PrimFunc, str, str]:
    """What many configs have in common: the program with its weights packed and the sum in parts;
    the block behind the sum, and the block of a part."""
    block = c.block
    program, epilogue = keep_sums(c.program, c, "local")
    assert c.rhs.param is not None
    program = s.transform_layout(program, c.rhs.param, _layout(c, part, width))
    loops = s.loops_of(program, block)
    m, n, k = (loops[a.position] for a in (rows_of(c), c.vector, c.reduce[0]))
    program, (parts, term) = s.split(program, k, part)
    program = s.reorder(program, parts, m, n, term)
    program, name = s.rfactor(program, block, parts)
    return program, epilogue, name


def _layout(c: Contraction, part: int, width: int) -> PackedLayout:
    """[part][panel][term][width]."""
    axes = operand_axes(c)
    pieces = {c.reduce[0].position: (part,), c.vector.position: (width,)}
    factors, starts = split_operand(c, pieces)
    start = dict(zip(axes, starts, strict=True))
    others = [at for a, at in zip(axes, starts, strict=True) if a not in pieces]
    term, column = start[c.reduce[0].position], start[c.vector.position]
    return PackedLayout(factors, (*others, term, column, term + 1, column + 1))


def _in_vectors(program: PrimFunc, block: str, loop: Var, lanes: int) -> PrimFunc:
    """A block's own loops inside another, the last one in vectors."""
    own = own_loops(program, block, loop)
    if not own:
        return program
    program, (_, lane) = s.split(program, own[-1], lanes)
    return s.vectorize(program, lane)
