"""A warp a row: softmax, layer norm, and reductions over what stands side by side.

blocks of ``warps`` rows:
  each warp, for every reduction of its row:
    each thread: accumulator ∘= vectors of ``vec`` elements, the warp's side by side
    the accumulators of all threads, by shuffles
  the warp stores the row
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.archs import WARP
from tunefarm.compiler.gpu.intrinsics import WARP_REDUCTIONS
from tunefarm.compiler.gpu.schedule import combine_in_warp, enclose_threads
from tunefarm.compiler.gpu.space.common import block_nest, is_product
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.columns import whole
from tunefarm.compiler.space.config import Columns, Config, Knob, Nest, SketchSpace
from tunefarm.compiler.space.nests import lanes_of, own_loops, strides
from tunefarm.compiler.space.stages import Stages, stages_of
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Binary, Block, IterVar, Var, binary
from tunefarm.compiler.tir.schedule.tree import find_block, replace_stmt, store_of

NAME, VERSION = "gpu_rows", 1
WARPS = (1, 2, 4, 8, 16)
VECTORS = (1, 2, 4, 8)
LEAST_TERMS = 16  # of a reduction that a whole warp works on
COMBINED = frozenset(WARP_REDUCTIONS.values())
DTYPES = frozenset({"float32", "float16", "bfloat16", "int32"})


def row_stages(function: Function) -> Stages | None:
    """The stages of a function whose reductions a warp can do; None for others."""
    stages = stages_of(function, keep=False)
    if stages is None or not stages.rows:
        return None
    before = [stages.node(b) for b in stages.before]
    return stages if before and all(_fits_warp(stages, b) for b in before) else None


def _fits_warp(stages: Stages, node: Block) -> bool:
    """True for a reduction of one element a row, over terms that stand side by side."""
    value = store_of(node).value
    if node.init is None or not isinstance(value, Binary) or value.op not in COMBINED:
        return False
    rows = {a.var for a in stages.rows}
    links = stages.links[node.name]
    reduced = [i for i in node.iters if i.kind == "reduce"]
    free = [i for i in node.iters if i.kind == "spatial" and links.get(i.var) not in rows]
    apart = any(step not in (0, 1) for step in strides(node, reduced[-1].var))
    enough = prod(i.extent for i in reduced) >= LEAST_TERMS
    return not free and not apart and enough and value.dtype in DTYPES


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs; None for other targets and functions."""
    if target.kind != "cuda" or is_product(function):
        return None
    stages = row_stages(function)
    if stages is None:
        return None
    widest = max(_vector(stages, n, target, max(VECTORS)) for n in stages.nodes)
    knobs = (
        Knob("vec", tuple(v for v in VECTORS if v <= widest)),
        Knob("warps", WARPS),
    )
    rows = prod(a.extent for a in stages.rows)
    warps = max(w for w in WARPS if w == 1 or (w <= 4 and w <= rows))
    default: Config = {"sketch": NAME, "vec": widest, "warps": warps}

    def nest(k: Columns) -> Nest:
        node = stages.node(stages.before[0])
        wide = {**k, "threads": whole(k, "warps")}
        return block_nest(stages.program, node, wide, whole(k, "vec"), ("warps", "vec"))

    return SketchSpace(NAME, VERSION, knobs, (), default, nest)


def _vector(stages: Stages, node: Block, target: Target, wanted: int) -> int:
    """Elements that a thread takes at once along the last axis that a warp shares."""
    inner = _inner(stages, node)
    if not inner or any(step not in (0, 1) for step in strides(node, inner[-1].var)):
        return 1
    width = min(wanted, lanes_of([node], target))
    while inner[-1].extent % width:
        width //= 2
    return width


def _inner(stages: Stages, node: Block) -> list[IterVar]:
    """The axes of a block that a warp shares: those that are not of the rows."""
    rows = {a.var for a in stages.rows}
    links = stages.links[node.name]
    return [i for i in node.iters if links.get(i.var) not in rows]


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the function has no rows for a warp."""
    stages = row_stages(function)
    if stages is None:
        raise ScheduleError("the workload has no rows whose reductions a warp can do")
    program = stages.program
    final = stages.node(stages.final)
    loops = dict(zip((i.var for i in final.iters), s.loops_of(program, final.name), strict=True))
    rows = [loops[a.var] for a in stages.rows]
    inner = [loops[a.var] for a in stages.inner]
    program = s.reorder(program, *rows, *inner)
    row = rows[0]
    if len(rows) > 1:
        program, row = s.fuse(program, *rows)
    program, (grid, warp) = s.split(program, row, int(config["warps"]))
    program = s.bind(s.bind(program, grid, "blockIdx.x"), warp, "threadIdx.y")
    for block in reversed(stages.before):
        program = s.compute_at(program, block, warp)
    for block in stages.before:
        program = _reduce(program, stages, block, warp, target, config)
    vector = _vector(stages, final, target, int(config["vec"]))
    if inner:
        program, (_, lane, part) = _shared_out(program, inner, vector)
        program = s.bind(s.vectorize(program, part), lane, "threadIdx.x")
    program, thread = enclose_threads(program, warp, "threadIdx.x", WARP)
    return program if inner else _by_first(program, stages.final, thread)


def _shared_out(
    program: PrimFunc, loops: list[Var], vector: int
) -> tuple[PrimFunc, tuple[Var, Var, Var]]:
    """Directly nested loops as steps of a warp, its threads, and the elements of each."""
    flat = loops[0]
    if len(loops) > 1:
        program, flat = s.fuse(program, *loops)
    program, (vectors, part) = s.split(program, flat, vector)
    program, (step, lane) = s.split(program, vectors, WARP)
    return program, (step, lane, part)


def _reduce(
    program: PrimFunc, stages: Stages, block: str, warp: Var, target: Target, config: Config
) -> PrimFunc:
    """A reduction by the threads of a warp, combined by shuffles."""
    program = s.set_scope(program, block, "register")
    vector = _vector(stages, stages.node(block), target, int(config["vec"]))
    program, (step, lane, part) = _shared_out(program, own_loops(program, block, warp), vector)
    program = s.reorder(program, lane, step, part)
    program, partial = s.rfactor(program, block, lane)
    program = s.bind(s.vectorize(program, part), lane, "threadIdx.x")
    program = s.decompose_reduction(program, partial, step)
    return combine_in_warp(program, block, own_loops(program, block, warp)[-1])


def _by_first(program: PrimFunc, block: str, thread: Var) -> PrimFunc:
    """Let the first thread of a warp store what all of them have."""
    node = find_block(program, block)
    first = thread < 1
    both = first if node.predicate is None else binary("and", node.predicate, first)

    return replace_stmt(program, node, replace(node, predicate=both))
