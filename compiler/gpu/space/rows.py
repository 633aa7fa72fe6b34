"""A team of threads a row: softmax, layer norm, and reductions over what stands side by side.

blocks of ``rows`` rows, ``team`` threads each:
  with ``kept``: the row, in registers          16 bytes a load, threads side by side
  for every reduction of the row:
    each thread: accumulators ∘= vectors of ``vec`` elements
    those of a warp, by shuffles; those of its warps, through shared memory
  the team stores the row
"""

from __future__ import annotations

from math import prod

import numpy as np
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.archs import MAX_REGISTERS, MAX_THREADS, REGISTERS, WARP
from tunefarm.compiler.gpu.intrinsics import WARP_REDUCTIONS
from tunefarm.compiler.gpu.space.common import block_nest, is_product
from tunefarm.compiler.gpu.space.row_kernel import RowKnobs, RowStages, row_kernel
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.columns import Mask, Numbers, whole
from tunefarm.compiler.space.config import Columns, Config, Constraint, Knob, Nest, SketchSpace
from tunefarm.compiler.space.nests import cost_of, strides
from tunefarm.compiler.space.stages import Stages, stages_of
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.ir import Binary, Block
from tunefarm.compiler.tir.schedule.tree import store_of

NAME, VERSION = "gpu_rows", 2
TEAMS = (8, 16, 32, 64, 128, 256, 512, 1024)
ROWS = (1, 2, 4, 8, 16)
VECTORS = (1, 2, 4, 8)
VECTOR_BYTES = 16
LEAST_TERMS = 16  # of a reduction that a team works on
MOST_KEPT = 64  # elements of a thread, in registers
OTHER_REGISTERS = 40  # of a thread, beside what it keeps
MAX_CODE = 4000.0  # instructions of one thread's unrolled loops
COMBINED = frozenset(WARP_REDUCTIONS.values())
DTYPES = frozenset({"float32", "float16", "bfloat16", "int32"})


def row_stages(function: Function) -> RowStages | None:
    """The stages of a function whose reductions a team can do; None for others."""
    stages = stages_of(function, keep=False)
    if stages is None:
        return None
    before = [stages.node(b) for b in stages.before]
    fits = bool(before) and all(_fits_team(stages, b) for b in before)
    return RowStages(stages) if fits else None


def _fits_team(stages: Stages, node: Block) -> bool:
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
    r = row_stages(function)
    if r is None:
        return None
    widest = r.vector(max(VECTORS))
    keeps = bool(r.kept_loads(widest))
    knobs = (
        Knob("vec", tuple(v for v in VECTORS if v <= widest)),
        Knob("team", tuple(t for t in TEAMS if t <= max(r.terms, WARP))),
        Knob("rows", tuple(n for n in ROWS if n == 1 or n <= r.rows)),
        Knob("kept", (0, 1) if keeps else (0,)),
    )
    constraints = constraints_of(r)
    node = r.stages.node(r.stages.before[0])

    def nest(k: Columns) -> Nest:
        wide = {**k, "threads": whole(k, "team")}
        program = r.stages.program
        return block_nest(program, node, wide, whole(k, "vec"), ("team", "rows", "vec", "kept"))

    return SketchSpace(NAME, VERSION, knobs, constraints, _default(r, knobs, constraints), nest)


def constraints_of(r: RowStages) -> tuple[Constraint, ...]:
    cost = sum(cost_of(store_of(n).value) for n in r.stages.nodes)

    def threads_fit(k: Columns) -> Mask:
        threads = whole(k, "team") * whole(k, "rows")
        return (threads % WARP == 0) & (threads <= MAX_THREADS)

    def registers_fit(k: Columns) -> Mask:
        words = sum(-(-dtype_bytes(d) // 4) for d in r.kept_dtypes)
        taken = each(k) * np.maximum(words, 1) + OTHER_REGISTERS + 4 * whole(k, "vec")
        threads = whole(k, "team") * whole(k, "rows")
        fits = (taken <= MAX_REGISTERS) & (taken * threads <= REGISTERS)
        return (whole(k, "kept") == 0) | (fits & (each(k) <= MOST_KEPT))

    def small_code(k: Columns) -> Mask:
        return (whole(k, "kept") == 0) | (each(k) * cost <= MAX_CODE)

    def each(k: Columns) -> Numbers:
        """Elements of a row that one thread has."""
        vectors = whole(k, "team") * whole(k, "vec")
        return -(-r.terms // vectors) * whole(k, "vec")

    return (
        Constraint("threads", threads_fit),
        Constraint("registers", registers_fit),
        Constraint("code size", small_code),
    )


def _default(r: RowStages, knobs: tuple[Knob, ...], constraints: tuple[Constraint, ...]) -> Config:
    """16 bytes of the row's main operand a load, some four loads a thread, 128 threads a block or
    more, the row kept if it fits."""
    choices = {k.name: [int(c) for c in k.choices] for k in knobs}
    vector = max(v for v in choices["vec"] if v * r.widest_bytes <= VECTOR_BYTES or v == 1)
    team = next((t for t in choices["team"] if t * vector * 4 >= r.terms), choices["team"][-1])
    team = max(team, min(WARP, choices["team"][-1]))
    rows = max((n for n in choices["rows"] if n == 1 or n * team <= 128), default=1)
    while team * rows % WARP:  # few rows of short teams
        team *= 2
    for kept in reversed(choices["kept"]):
        found = {"vec": vector, "team": team, "rows": rows, "kept": kept}
        columns = {name: np.array([value]) for name, value in found.items()}
        if all(c.holds(columns)[0] for c in constraints):
            break
    return {"sketch": NAME, **found}


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the function has no rows for a team."""
    r = row_stages(function)
    if r is None:
        raise ScheduleError("the workload has no rows whose reductions a team of threads can do")
    knobs = {name: int(value) for name, value in config.items() if name != "sketch"}
    return row_kernel(r, RowKnobs(**knobs))
