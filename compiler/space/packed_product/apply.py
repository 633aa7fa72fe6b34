"""A config applied to the stages of a product with weights of a few bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.config import Config
from tunefarm.compiler.space.nests import extent_of, fitting_lanes, loop_of, own_loops
from tunefarm.compiler.space.packed_product.program import (
    BYTES,
    PRODUCT,
    SUMS,
    TOP,
    TOTAL,
    PackedProduct,
    create_stages,
    packed_product_of,
)
from tunefarm.compiler.space.tiles import in_parallel, in_registers, place_epilogue
from tunefarm.compiler.summary import nominal_flops
from tunefarm.compiler.target import LINE_BYTES, Target, dtype_bytes
from tunefarm.compiler.tir import PackedLayout, PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.affine import affine, element_offset
from tunefarm.compiler.tir.ir import Const, Prefetch, Var
from tunefarm.compiler.tir.tensor_intrinsics import TENSOR_INTRINSICS, TensorIntrinsic
from tunefarm.compiler.tir.visit import loads_of, substitute


def instruction_of(target: Target) -> TensorIntrinsic | None:
    """The instruction that sums bytes of rows times bytes of weights, where a target has one and
    rows may be rounded; None elsewhere."""
    found = [t for t in TENSOR_INTRINSICS.values() if t.turned and target.has(t.feature)]
    return None if target.strict else max(found, key=lambda t: t.lanes, default=None)


def form_of(function: Function, target: Target) -> PackedProduct | None:
    """The product that a function is, of rows of bytes or of floats; None if it is another one."""
    p = packed_product_of(function) if target.kind == "llvm" else None
    return p if p is None or instruction_of(target) is not None else replace(p, bytes=0)


def lanes_of(target: Target) -> int:
    """Columns of a vector."""
    instruction = instruction_of(target)
    return target.lanes("float32") if instruction is None else instruction.lanes


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the workload is no such product."""
    p = form_of(function, target)
    if p is None:
        raise ScheduleError("the workload is no product with weights of a few bits in whole groups")
    knob = {name: int(value) for name, value in config.items() if name != "sketch"}
    lanes, rows = lanes_of(target), knob["rh"]
    width = knob["nv"] * lanes
    whole = -(-p.rows // rows) * rows, -(-p.columns // width) * width
    program = _packed(create_stages(p, *whole), p, knob["nv"], lanes)
    final = s.remaining_blocks(program)[-1]
    for stage in p.stages:
        scope = "register" if stage in (PRODUCT, TOTAL) else "local"
        program = s.set_scope(program, stage, scope)
    program, panel, tile = _place_sums(program, p, target, knob)
    program = place_epilogue(program, final, tile, lanes)
    # Only now, as no vector must ask whether its panel is one of the last block's.
    program, (n_block, panel) = s.split(program, panel, knob["nb"])
    program, (m_block, tile) = s.split(program, tile, knob["mb"])
    program = s.reorder(program, n_block, m_block, panel, tile)
    program, top = s.fuse(program, n_block, m_block)
    program = _place_rows(program, p, top, target.lanes("float32"))
    return in_parallel(program, top, nominal_flops(function), target)


def _packed(program: PrimFunc, p: PackedProduct, vectors: int, lanes: int) -> PrimFunc:
    """Weights as [panel][group][vector][lane][byte], or for floats [panel][group][byte][vector]
    [lane], and their parameters as [panel][block][vector][lane]: all that a panel reads lies one
    behind the other."""
    columns = (vectors, lanes)
    layout = PackedLayout(((), columns, ()), (1, 0, 2, 3, 4) if p.bytes else (1, 0, 4, 2, 3))
    program = s.transform_layout(program, p.quanta, layout)
    for parameter in p.parameters:
        layout = PackedLayout(((), columns), (1, 0, 2, 3))
        program = s.transform_layout(program, parameter, layout)
    return program


def _place_sums(
    program: PrimFunc, p: PackedProduct, target: Target, knob: Mapping[str, int]
) -> tuple[PrimFunc, Var, Var]:
    """All sums by tiles, in registers; the loops over panels and over tiles of rows."""
    row, column, block = s.loops_of(program, TOTAL)
    program, (panel, vector, lane) = s.split(program, column, knob["nv"], lanes_of(target))
    program, (tile, row) = s.split(program, row, knob["rh"])
    program = s.reorder(program, panel, tile, block, row, vector, lane)
    program = in_registers(program, (row, vector), lane)
    program = s.decompose_reduction(program, TOTAL, block)
    program = s.vectorize(program, own_loops(program, f"{TOTAL}_init", tile)[-1])
    program, step = _sum_block(program, p, block, target, knob["ku"])
    if knob["prefetch"]:
        # A panel's weights and their parameters lie one behind the other, and so do panels.
        steps = 1 if step is block else p.block_terms // (p.group * knob["ku"])
        program = _ask(program, PRODUCT, p.quanta, step, knob["prefetch"] * steps)
        for number, parameter in enumerate(p.parameters):
            reader = PRODUCT if number and not p.bytes else TOTAL  # of zero points, or of scales
            program = _ask(program, reader, parameter, block, knob["prefetch"])
    return program, panel, tile


def _sum_block(
    program: PrimFunc, p: PackedProduct, block: Var, target: Target, unroll: int
) -> tuple[PrimFunc, Var]:
    """The sums of a tile's block of terms, some groups of them unrolled; the loop over steps of
    these, the block's where there is but one."""
    program = s.compute_at(program, PRODUCT, block)
    loops = _loops_by_name(program, PRODUCT, "qibjgst", block)
    program, (vector, lane) = s.split(program, loops.pop("j"), lanes_of(target))
    steps: list[Var] = []
    if "g" in loops:
        program, (step, loops["g"]) = s.split(program, loops["g"], unroll)
        steps = [step]
    term, loops["v"] = loops.pop("t"), vector
    if not p.bytes:
        loops["t"] = term
    inside = [loops[name] for name in "gtsviq" if name in loops]
    last = (lane, term) if p.bytes else (lane,)
    program = s.reorder(program, *steps, *inside, *last)
    for loop in inside:
        program = s.unroll(program, loop)
    program = s.decompose_reduction(program, PRODUCT, (*steps, *inside)[0])
    program = s.vectorize(program, own_loops(program, f"{PRODUCT}_init", block)[-1])
    instruction = instruction_of(target)
    if instruction is None:
        program = s.vectorize(program, lane)
    else:
        program = s.tensorize(program, lane, instruction.name)
    return program, (*steps, block)[0]


def _loops_by_name(program: PrimFunc, block: str, names: str, outer: Var) -> dict[str, Var]:
    """A block's loops inside another, by a letter for each of its iterators; none for those that
    are of one iteration."""
    own, iters = own_loops(program, block, outer), s.find_block(program, block).iters
    found = {n: loop_of(program, block, axis, own) for n, axis in zip(names, iters, strict=True)}
    return {name: loop for name, loop in found.items() if loop is not None}


def _ask(program: PrimFunc, block: str, param: int, loop: Var, ahead: int) -> PrimFunc:
    """Iterations of a loop ask for what is read of a packed parameter so many later."""
    buffer, node = program.params[param], s.find_block(program, block)
    values = dict(zip((i.var for i in node.iters), node.bindings, strict=True))
    load = next(ld for ld in loads_of(node.body) if ld.buffer is buffer)
    own = own_loops(program, block, loop)
    place = substitute(element_offset(buffer, load.indices), values)
    start = affine(substitute(place, dict.fromkeys(own, Const(0))))
    each = start.coefficient(loop)
    lines = -(-each * dtype_bytes(buffer.dtype) // LINE_BYTES)
    return s.prefetch(program, loop, Prefetch(buffer, start.expr() + ahead * each, lines))


def _place_rows(program: PrimFunc, p: PackedProduct, loop: Var, lanes: int) -> PrimFunc:
    """The rows of a block in parts, and what is asked of their blocks of terms."""
    for stage in reversed(p.stages):
        if stage in (PRODUCT, TOTAL):
            continue
        program = s.compute_at(program, stage, loop)
        own = own_loops(program, stage, loop)
        if not own:
            continue
        size = fitting_lanes(lanes, extent_of(program, own[-1]))
        program, (step, lane) = s.split(program, own[-1], size)
        if stage in (SUMS, TOP):
            program = _reduce(program, stage, loop, step, lane)
        elif stage == BYTES:
            program = _in_parts(program, p, loop, step, lane)
        else:
            program = s.vectorize(program, lane)
    return program


def _in_parts(program: PrimFunc, p: PackedProduct, loop: Var, step: Var, lane: Var) -> PrimFunc:
    """All parts of a vector of terms at once."""
    *outer, _, _ = own_loops(program, BYTES, loop)
    parts, rows = (outer[:1], outer[1:]) if p.parts > 1 else ([], outer)
    program = s.reorder(program, *rows, step, *parts, lane)
    return in_registers(program, parts, lane)


def _reduce(program: PrimFunc, stage: str, loop: Var, step: Var, lane: Var) -> PrimFunc:
    """A number for each block of terms: in vectors, then over their lanes."""
    program, partial = s.rfactor(program, stage, lane)
    program = s.decompose_reduction(s.vectorize(program, lane), partial, step)
    *_, lane = own_loops(program, stage, loop)
    return s.decompose_reduction(s.vectorize(program, lane), stage, lane)
