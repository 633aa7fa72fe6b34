"""A thread an element of the result, or a vector of them: chains of elementwise operators, moves,
windows (pooling, depthwise convolutions), and every other function as a last resort.

blocks of threads:
  each thread:                         ``each`` vectors of ``vec`` elements, threads side by side
    accumulators = neutral             registers; for reductions
    for reduced axes: accumulators = accumulators ∘ term
                                       long sums in parts: each rounding of a sum is of its size
    out[lanes] = …
"""

from __future__ import annotations

import functools
from dataclasses import replace
from math import isqrt, prod

import numpy as np
from tunefarm.compiler.codegen.types import is_float
from tunefarm.compiler.gpu.archs import WARP
from tunefarm.compiler.gpu.schedule import store_after, with_predicate
from tunefarm.compiler.gpu.space.common import (
    block_nest,
    contains_only_blocks,
    is_product,
    lane_axis,
    widest_vector,
)
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.columns import Mask, whole
from tunefarm.compiler.space.config import Columns, Config, Constraint, Knob, SketchSpace
from tunefarm.compiler.space.flatten import flatten
from tunefarm.compiler.space.nests import cost_of, inline_all
from tunefarm.compiler.space.program import create_program
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.facts import variables
from tunefarm.compiler.tir.ir import (
    Binary,
    Block,
    Buffer,
    Const,
    Expr,
    For,
    If,
    IterVar,
    Load,
    LoopKind,
    Stmt,
    Store,
    Var,
    binary,
)
from tunefarm.compiler.tir.schedule.tree import (
    blocks,
    constant_extent,
    find_loop,
    nest_around,
    path_to,
    replace_stmt,
    store_of,
    written_buffer,
)
from tunefarm.compiler.tir.visit import seq, substitute, substitute_stmt, transform_stmt

NAME, VERSION = "gpu_elements", 1
THREADS = (32, 64, 128, 256, 512, 1024)
EACH = (1, 2, 4, 8)
VECTORS = (1, 2, 4, 8, 16)
MAX_TAPS = 9  # iterations of a reduced axis that is unrolled
LONG_SUM = 4096  # terms; 65608 squares differ by 8e-6 if they are summed one after the other
MAX_CODE = 1200.0  # instructions of one thread's body


@functools.lru_cache(maxsize=64)
def elements_program(function: Function) -> PrimFunc:
    """The program with everything inlined, in the fewest dimensions that there are."""
    program = inline_all(create_program(function))
    return flatten(program) if contains_only_blocks(program) else program


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs; None for other targets, and for products, which have sketches of their own."""
    if target.kind != "cuda" or is_product(function):
        return None
    program = elements_program(function)
    nodes = [b for b in blocks(program.body) if 0 not in [i.extent for i in b.iters]]
    widest = max((widest_vector(b, target) for b in nodes), default=1)
    spatial = any(b.init is None for b in nodes)
    taps = any(_unrollable(i) for b in nodes for i in b.iters)
    cost = max((cost_of(store_of(b).value) for b in nodes), default=1.0)
    knobs = (
        Knob("vec", tuple(v for v in VECTORS if v <= widest)),
        Knob("threads", THREADS),
        Knob("each", EACH if spatial else (1,)),
        Knob("taps", (0, 1) if taps else (0,)),
    )

    def small_code(k: Columns) -> Mask:
        copies = whole(k, "vec") * whole(k, "each") * np.where(whole(k, "taps") > 0, MAX_TAPS, 1)
        return (copies == 1) | (copies * cost <= MAX_CODE)

    default: Config = {
        "sketch": NAME,
        "vec": max((int(v) for v in knobs[0].choices if int(v) * cost <= MAX_CODE), default=1),
        "threads": 256,
        "each": 1,
        "taps": 0,
    }
    node = max(nodes, key=lambda b: np.prod([i.extent for i in b.iters]), default=None)
    return SketchSpace(
        NAME,
        VERSION,
        knobs,
        (Constraint("code size", small_code),),
        default,
        lambda k: block_nest(program, node, k, whole(k, "vec") * whole(k, "each"), ("threads",)),
    )


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config: each block of the program becomes a kernel."""
    program = elements_program(function)
    program = replace(program, body=transform_stmt(program.body, _rows_on_threads))
    program, parts = sums_in_parts(program)
    for node in list(blocks(program.body)):
        made_of = node.name in parts.values()
        if node.iters and 0 not in [i.extent for i in node.iters] and not made_of:
            program = spread(program, node, target, config, part=parts.get(node.name, ""))
    return program


def sums_in_parts(program: PrimFunc) -> tuple[PrimFunc, dict[str, str]]:
    """A program whose long sums are of parts, and the blocks that make these by the sums' names.

    for k in 65608: S += x[k]
    ->  for c in 257: for t in 256: P[c] += x[c · 256 + t];  for c in 257: S += P[c]
    """
    parts: dict[str, str] = {}
    if not contains_only_blocks(program):
        return program, parts
    for node in [b for b in blocks(program.body) if _is_long_sum(b)]:
        part, whole = _in_parts(node)
        parts[node.name] = part.name
        nest = seq(_nest(part), nest_around(whole))
        top = next(p for p in path_to(program.body, node) if isinstance(p, For | Block))
        program = replace_stmt(program, top, nest)
        program = replace(program, buffers=(*program.buffers, written_buffer(part)))
    return program, parts


def _nest(block: Block) -> Stmt:
    """A block in loops, of which its predicate speaks then."""

    def rule(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, Block) or stmt.predicate is None:
            return None
        loops = dict(zip((i.var for i in stmt.iters), stmt.bindings, strict=True))
        return replace(stmt, predicate=substitute(stmt.predicate, loops))

    return transform_stmt(nest_around(block), rule)


def _is_long_sum(node: Block) -> bool:
    value = store_of(node).value
    is_sum = isinstance(value, Binary) and value.op == "add" and is_float(value.dtype)
    terms = prod(i.extent for i in node.iters if i.kind == "reduce")
    return node.init is not None and is_sum and terms > LONG_SUM and node.predicate is None


def _in_parts(node: Block) -> tuple[Block, Block]:
    """The block that makes the parts of a long sum, and the one that adds them."""
    store, init = store_of(node), node.init
    assert isinstance(store.value, Binary)
    assert isinstance(init, Store)
    spatial = [i for i in node.iters if i.kind == "spatial"]
    terms = prod(i.extent for i in node.iters if i.kind == "reduce")
    longest = max((i for i in node.iters if i.kind == "reduce"), key=lambda i: i.extent)
    length = max((1 << isqrt(terms).bit_length() - 1) * longest.extent // terms, 1)
    count = -(-longest.extent // length)
    fresh = {i.var: IterVar(Var(i.var.name), i.extent, i.kind) for i in node.iters}
    number = IterVar(Var("c"), count)
    term = fresh[longest.var] = IterVar(Var("t"), length, "reduce")
    place = number.var * length + term.var
    values: dict[Var, Expr] = {v: i.var for v, i in fresh.items()} | {longest.var: place}
    parts = Buffer(
        f"{node.name}_parts", (*(i.extent for i in spatial), count), store.value.dtype, "register"
    )
    at = (*(fresh[i.var].var for i in spatial), number.var)
    axes = (*(fresh[i.var] for i in spatial), number)
    axes += tuple(fresh[i.var] for i in node.iters if i.kind == "reduce")
    more = binary("add", Load(parts, at), substitute(store.value.b, values))
    exists = None if count * length == longest.extent else place < longest.extent
    part = Block(
        f"{node.name}_part", axes, (), Store(parts, at, more), Store(parts, at, init.value), exists
    )
    added = IterVar(Var("c"), count, "reduce")
    there = Load(parts, (*(i.var for i in spatial), added.var))
    body = replace(store, value=binary("add", store.value.a, there))
    return part, Block(node.name, (*spatial, added), (), body, init)


def _rows_on_threads(stmt: Stmt) -> Stmt | None:
    """A parallel loop of an operator that is loops of its own, a thread an iteration."""
    if not isinstance(stmt, For) or stmt.kind is not LoopKind.PARALLEL:
        return None
    extent = constant_extent(stmt)
    grid, thread = Var(f"{stmt.var.name}_0"), Var(f"{stmt.var.name}_1")
    number = grid * WARP + thread
    body: Stmt = substitute_stmt(stmt.body, {stmt.var: number})
    if extent % WARP:
        body = If(number < extent, body)
    body = For(thread, Const(WARP), body, LoopKind.THREAD, axis="threadIdx.x")
    return For(grid, Const(-(-extent // WARP)), body, LoopKind.THREAD, axis="blockIdx.x")


def _unrollable(axis: IterVar) -> bool:
    return axis.kind == "reduce" and 1 < axis.extent <= MAX_TAPS


def spread(
    program: PrimFunc,
    node: Block,
    target: Target,
    config: Config,
    write: str = "",
    part: str = "",
) -> PrimFunc:
    """Give the elements that a block computes to threads; those of a reduction are sums in
    registers, which the block ``write`` makes results of, or one that is added. ``part`` makes
    what a reduction adds."""
    loops = dict(zip((i.var for i in node.iters), s.loops_of(program, node.name), strict=True))
    reduces = node.init is not None
    if reduces and not write:
        program, write = s.cache_write(program, node.name, "register")
    vector = min(int(config["vec"]), widest_vector(node, target))
    reduced = [loops[i.var] for i in node.iters if i.kind == "reduce"]
    along = lane_axis(node, target)
    rest = [loops[i.var] for i in node.iters if i.kind == "spatial" and i is not along]
    inside: list[Var] = []
    if along is not None:
        program, (outer, lane) = s.split(program, loops[along.var], vector)
        program = s.vectorize(program, lane)
        rest.append(outer)
        inside.append(lane)
    if not rest:  # one element: one thread
        return _place_part(program, part, reduced[0]) if part else program
    program = s.reorder(program, *rest, *reduced, *inside)
    flat = rest[0]
    if len(rest) > 1:
        program, flat = s.fuse(program, *rest)
    threads = int(config["threads"])
    if reduces:
        program, (grid, thread) = s.split(program, flat, threads)
    else:
        program, (grid, turn, thread) = s.split(program, flat, int(config["each"]), threads)
        program = s.unroll(s.reorder(program, grid, thread, turn, *inside), turn)
    program = s.bind(s.bind(program, grid, "blockIdx.x"), thread, "threadIdx.x")
    if not reduces:
        return program
    program = _accumulate(program, node, write, thread, reduced, config)
    return _place_part(program, part, reduced[0]) if part else program


def _place_part(program: PrimFunc, part: str, loop: Var) -> PrimFunc:
    """Make the parts of a sum in registers, each in the iteration that adds it."""
    before = s.find_block(program, part)
    program = s.compute_at(program, part, loop)
    node, loops = s.find_block(program, part), s.loops_of(program, part)
    if before.predicate is not None:
        places = dict(zip(before.bindings, node.bindings, strict=True))
        moved = {loop: at for loop, at in places.items() if isinstance(loop, Var)}
        program = with_predicate(program, part, substitute(before.predicate, moved))
    bound = zip(node.iters, node.bindings, strict=True)
    reducing = {v for i, at in bound if i.kind == "reduce" for v in variables(at)}
    own = loops[loops.index(loop) + 1 :]
    lanes, reduced = [v for v in own if v not in reducing], [v for v in own if v in reducing]
    program = s.reorder(program, *reduced, *lanes)
    for lane in lanes:
        program = s.vectorize(program, lane)
    return s.decompose_reduction(program, part, reduced[0])


def _accumulate(
    program: PrimFunc, node: Block, write: str, thread: Var, reduced: list[Var], config: Config
) -> PrimFunc:
    """Sums in registers, which the block ``write`` stores when they are complete."""
    if int(config["taps"]):
        for loop in reduced:
            if constant_extent(find_loop(program, loop)) <= MAX_TAPS:
                program = s.unroll(program, loop)
    program = store_after(program, write, node.name, thread)
    own = s.loops_of(program, write)
    for loop in own[own.index(thread) + 1 :]:
        program = s.vectorize(program, loop)
    return s.decompose_reduction(program, node.name, reduced[0])
