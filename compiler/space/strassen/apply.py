"""A config applied to the stages of Strassen's method."""

from __future__ import annotations

from functools import lru_cache

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.config import Config
from tunefarm.compiler.space.nests import own_loops
from tunefarm.compiler.space.prefetch import is_large, prefetch_shares
from tunefarm.compiler.space.strassen.forms import transform_name
from tunefarm.compiler.space.strassen.program import Product, create_strassen, product_of
from tunefarm.compiler.space.tiles import in_parallel, in_registers, place_sums
from tunefarm.compiler.summary import nominal_flops
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PackedLayout, PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Buffer, Var
from tunefarm.compiler.tir.schedule.tree import written_buffer
from tunefarm.compiler.tir.visit import loads_of


def schedule(function: Function, target: Target, config: Config, levels: int) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the method does not apply or a knob misfits."""
    p = product_of(function, target.lanes("float32"), levels)
    if p is None:
        raise ScheduleError("the workload is no float32 product of rows and a matrix")
    knob = {name: int(value) for name, value in config.items() if name != "sketch"}
    program, final, write = _prepared(p, knob["nv"])

    program, outer, panel, tile = _place_results(program, p, final, knob)
    program, visits = _place_products(program, p, write, (outer[0], panel, tile), knob, target)
    program = _prefetch_rows(program, p, outer[-1], visits, knob, target)
    program = _place_lefts(program, p, outer[-1])
    program, top = s.fuse(program, *outer)
    if p.variable:
        program = in_parallel(
            program, s.loops_of(program, "rights")[0], p.depth * p.columns, target
        )
    return in_parallel(program, top, nominal_flops(function), target)


@lru_cache(maxsize=256)
def _prepared(p: Product, vectors: int) -> tuple[PrimFunc, str, str]:
    """What many configs have in common: the stages with their buffers and the packed weights; the
    program, and the blocks that make the result and write the products."""
    program = create_strassen(p)
    final = s.remaining_blocks(program)[-1]
    program, write = s.cache_write(program, "product", "register")
    # Planes and rows a power of two apart would meet in few sets of the first cache: the 49 left
    # operands of a group of rows are written at once.
    program = s.set_scope(program, "lefts", "local", padding=p.lanes, planes_apart=True)
    program = s.set_scope(program, write, "local")
    layout = PackedLayout(
        ((), (), (vectors * p.lanes,)), (2, 0, 1, 3), transform_name(p.lanes, p.levels)
    )
    if p.variable:
        return _place_rights(program, p, layout, vectors), final, write
    return s.transform_layout(program, p.weights, layout), final, write


def _place_rights(program: PrimFunc, p: Product, layout: PackedLayout, vectors: int) -> PrimFunc:
    """The right operands of a variable matrix, packed panel by panel before the products, all
    of a vector of columns at once."""
    program = s.pack_buffer(program, "rights", layout)
    number, term, column = s.loops_of(program, "rights")
    program, (panel, vector, lane) = s.split(program, column, vectors, p.lanes)
    program = s.reorder(program, panel, term, vector, number, lane)
    return in_registers(program, (number,), lane)


def _place_results(
    program: PrimFunc, p: Product, final: str, knob: dict[str, int]
) -> tuple[PrimFunc, tuple[Var, Var], Var, Var]:
    """Blocks of panels, whose weights stay in the caches, and of rows; in a block panels, tiles of
    rows, and the results of a group of rows and a vector: of all vectors of a panel at once, or
    one after the other where they are 16 of two levels."""
    rows, columns = s.loops_of(program, final)
    program, (row_block, tile, row, side) = s.split(program, rows, knob["mb"], knob["rw"], p.side)
    program, (part, column) = s.split(program, columns, p.extents[2])
    program, (panel_block, panel, vector, lane) = s.split(
        program, column, knob["nb"], knob["nv"], p.lanes
    )
    outer = (panel_block, row_block)
    program = s.reorder(program, *outer, panel, tile, row, vector, side, part, lane)
    unrolled = (side, part) if p.levels > 1 else (vector, side, part)
    return in_registers(program, unrolled, lane), outer, panel, tile


def _place_products(
    program: PrimFunc,
    p: Product,
    write: str,
    place: tuple[Var, Var, Var],
    knob: dict[str, int],
    target: Target,
) -> tuple[PrimFunc, tuple[Var, ...]]:
    """The products of a panel, register tile by register tile: of all rows of the block, or
    with ``by_tile`` of one tile. Returns the loops over products, tiles and steps of the sum too.
    """
    panel_block, panel, tile = place
    program = s.compute_at(program, write, tile if knob["by_tile"] else panel)
    number, *rows, column = own_loops(program, write, tile if knob["by_tile"] else panel)
    tiles: list[Var] = []
    if rows and not knob["by_tile"]:  # none where a block has a single group
        program, (own_tile, row) = s.split(program, rows[0], knob["rw"])
        tiles, rows = [own_tile], [row]
    program, (vector, lane) = s.split(program, column, p.lanes)
    program = s.reorder(program, number, *tiles, *rows, vector, lane)
    program = in_registers(program, (*rows, vector), lane)

    inner = [number, *tiles][-1]
    program = s.compute_at(program, "product", inner)
    *rows, column, term = own_loops(program, "product", inner)
    program, step = place_sums(program, "product", rows, column, term, (p.lanes, knob["ku"]))
    if knob["next_panel"]:
        weights, size = _rights_of(program, p), p.extents[1] * knob["nv"] * p.lanes
        following, block = panel * p.products + number + 1, knob["nb"] * p.products
        if knob["mb"] * knob["rw"] < p.extents[0]:  # the next block has the same panels
            following = following % block
        after = panel_block * block + following
        visits = (*([tile] if knob["by_tile"] else tiles), step)
        program = prefetch_shares(program, weights, after * size, size, visits, target)
    return program, (number, *tiles, step)


def _prefetch_rows(
    program: PrimFunc,
    p: Product,
    block: Var,
    visits: tuple[Var, ...],
    knob: dict[str, int],
    target: Target,
) -> PrimFunc:
    """The products of a block of rows ask for the next block's rows of a large left operand, which
    the sums and differences of its parts would wait for: 56² pixels of 256 channels to 128 take
    0.9 × the time by the median of five runs (Zen 4)."""
    rows = knob["mb"] * knob["rw"] * p.side
    operand = next(iter(loads_of(s.find_block(program, "lefts").body))).buffer
    whole = operand in program.params and operand.shape == (p.rows, p.depth)
    if not whole or not is_large(operand, target) or rows >= p.rows or knob["by_tile"]:
        return program
    size = rows * p.depth
    return prefetch_shares(program, operand, (block + 1) * size, size, visits, target, level=2)


def _rights_of(program: PrimFunc, p: Product) -> Buffer:
    """The packed right operands."""
    if p.variable:
        return written_buffer(s.find_block(program, "rights"))
    return program.params[p.weights]


def _place_lefts(program: PrimFunc, p: Product, block: Var) -> PrimFunc:
    """The left operands of a block of rows, all of a vector of terms at once."""
    program = s.compute_at(program, "lefts", block)
    number, *rows, term = own_loops(program, "lefts", block)
    program, (vector, lane) = s.split(program, term, p.lanes)
    program = s.reorder(program, *rows, vector, number, lane)
    return in_registers(program, (number,), lane)
