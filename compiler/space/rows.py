"""Row operators, pooling windows, and every other function with a reduction that is no product.

``rows`` takes softmax, normalisations, reductions and arg-reductions; ``window.py`` has the same
schedule with the knobs of pooling. Stages run together, a tile of rows at a time (``fused.py``).
"""

from __future__ import annotations

from math import prod

import numpy as np
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Call, Function, post_order
from tunefarm.compiler.ops import OPS, Pattern
from tunefarm.compiler.space import attention, contraction, inverted_residual
from tunefarm.compiler.space.columns import Mask, whole
from tunefarm.compiler.space.config import (
    Columns,
    Config,
    Constraint,
    Knob,
    Nest,
    SketchSpace,
)
from tunefarm.compiler.space.fused import MAX_TAPS, Tiling, schedule_stages
from tunefarm.compiler.space.nests import (
    accesses_of,
    busy_cores,
    cost_of,
    fitting_lanes,
    task_choices,
)
from tunefarm.compiler.space.row_choices import RowSpace
from tunefarm.compiler.space.row_default import allowed, default_of
from tunefarm.compiler.space.stages import (
    by_lines,
    inner_lane,
    kept_blocks,
    lane_choices,
    lane_width,
    row_bytes,
    stages_of,
)
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.schedule.tree import store_of

NAME, VERSION = "rows", 3
VECTORS = (1, 2, 3, 4, 5, 6, 7, 8)
TILES = (1, 2, 3, 4, 8)
MAX_ROW_BYTES = 1 << 19  # of a stage's rows that are kept on the stack
MAX_CODE = 900.0  # vector instructions of one unrolled body


def is_window(function: Function) -> bool:
    """True if a function slides a window over its data."""
    calls = [e for e in post_order(function.body) if isinstance(e, Call)]
    return any("kernel" in c.attrs and OPS[str(c.op)].pattern is Pattern.REDUCTION for c in calls)


def row_space(function: Function, target: Target) -> RowSpace | None:
    """The function's stages; None if it has no reduction, or is for the contraction sketch."""
    if target.kind != "llvm" or _is_contraction(function, target):
        return None
    stages, without = stages_of(function, keep=True), stages_of(function, keep=False)
    if stages is None or without is None:
        return None
    lanes, lanes_without = (lane_choices(s, target) for s in (stages, without))
    return RowSpace(stages, lanes, lanes_without, target)


def _is_contraction(function: Function, target: Target) -> bool:
    calls = [e for e in post_order(function.body) if isinstance(e, Call)]
    if not any(OPS[str(c.op)].pattern is Pattern.OUT_FUSABLE for c in calls):
        return False
    sketches = (contraction, attention, inverted_residual)
    return any(sketch.space(function, target) is not None for sketch in sketches)


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of a function with reductions; None if it has none, or slides a window."""
    r = None if is_window(function) else row_space(function, target)
    return None if r is None else make_space(r, NAME, VERSION, TILES, VECTORS)


def make_space(
    r: RowSpace, name: str, version: int, tiles: tuple[int, ...], vectors: tuple[int, ...]
) -> SketchSpace | None:
    """The knobs, with the given choices of rows and vectors a tile as far as there are so many.

    None if one row of a stage does not fit the stack.
    """
    most = max(r.vectors(c) for c in r.lanes)
    rows = max((a.extent for c in r.lanes if (a := r.tiled(c)) is not None), default=1)
    small = any(
        i.kind == "reduce" and 1 < i.extent <= MAX_TAPS for n in r.stages.nodes for i in n.iters
    )
    columns = [c for c in r.lanes if c.axis is not None]
    places = max(len(r.lanes), len(r.lanes_without))
    knobs = (
        Knob("lane", tuple(range(places))),
        Knob("nv", tuple(v for v in vectors if v == 1 or v < 2 * most)),
        Knob("tile", tuple(t for t in tiles if t == 1 or t <= rows)),
        Knob("keep", (0, 1) if kept_blocks(r.stages) else (0,)),
        Knob("taps", (0, 1) if small else (0,)),
        Knob("lanes_first", (0, 1) if columns and len(r.stages.rows) > 1 else (0,)),
        Knob("tasks", task_choices(r.stages.nodes, r.target)),
        *([Knob("lines", (0, 1))] if r.line_cost else []),
    )
    constraints = _constraints(r)
    default = default_of(r, name, knobs, constraints)
    if not allowed(default, constraints):
        return None
    return SketchSpace(name, version, knobs, constraints, default, lambda k: _nest(r, k))


def _constraints(r: RowSpace) -> tuple[Constraint, ...]:
    return *_tile_constraints(r), *_lane_constraints(r)


def _tile_constraints(r: RowSpace) -> tuple[Constraint, ...]:
    """What tiles hold in registers, and how much code they are."""
    reduced = (i.extent for n in r.stages.nodes for i in n.iters if i.kind == "reduce")
    taps = max((e for e in reduced if e <= MAX_TAPS), default=1)

    def accumulators(k: Columns) -> Mask:
        return whole(k, "nv") * whole(k, "tile") <= r.target.vector_registers - 2

    def small_code(k: Columns) -> Mask:
        copies = whole(k, "nv") * whole(k, "tile")
        copies = copies * np.where(whole(k, "taps") > 0, taps, 1)
        return (copies == 1) | (copies * r.cost <= MAX_CODE)

    return Constraint("accumulators", accumulators), Constraint("code size", small_code)


def _lane_constraints(r: RowSpace) -> tuple[Constraint, ...]:
    """Where lanes may lie, and what is kept of rows and read by lines with them there."""
    sizes = {b: row_bytes(r.stages, b) for b in r.stages.before}
    kept = max((sizes[b] for b in kept_blocks(r.stages)), default=0)
    always = max((n for b, n in sizes.items() if b not in kept_blocks(r.stages)), default=0)
    kinds = (r.lanes_without, r.lanes)  # by the value of ``keep``
    counts = np.array([len(lanes) for lanes in kinds])
    columns = np.zeros((2, counts.max()), np.bool_)
    for keep, lanes in enumerate(kinds):
        columns[keep, : len(lanes)] = [c.axis is not None for c in lanes]
    width = lane_width(r.stages, r.target)

    def place_exists(k: Columns) -> Mask:
        return whole(k, "lane") < counts[whole(k, "keep")]

    def rows_fit(k: Columns) -> Mask:
        size = np.maximum(np.where(whole(k, "keep") > 0, kept, 0), always)
        column = columns[whole(k, "keep"), whole(k, "lane")]
        vectors = np.where(column, whole(k, "nv") * width, 1)
        return size * vectors * whole(k, "tile") <= MAX_ROW_BYTES

    def few_lines(k: Columns) -> Mask:
        return whole(k, "lines") * whole(k, "tile") * r.line_cost <= MAX_CODE

    def along_rows(k: Columns) -> Mask:
        return (whole(k, "lines") == 0) | ~columns[whole(k, "keep"), whole(k, "lane")]

    lines = (Constraint("code of lines", few_lines), Constraint("lines along rows", along_rows))
    return (
        Constraint("place of the lanes", place_exists),
        Constraint("rows fit the stack", rows_fit),
        *(lines if r.line_cost else ()),
    )


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the function has no stages, or a knob misfits."""
    stages = stages_of(function, bool(int(config["keep"])))
    if stages is None:
        raise ScheduleError("the workload has no reduction with one result")
    choices = lane_choices(stages, target)
    lane = int(config["lane"])
    if int(config.get("lines", 0)):
        stages = by_lines(stages, lane_width(stages, target))
    if lane >= len(choices):
        raise ScheduleError(f"lane is {lane}, and the workload has {len(choices)} places for lanes")
    tiling = Tiling(
        choices[lane],
        int(config["nv"]),
        int(config["tile"]),
        bool(int(config["taps"])),
        bool(int(config["lanes_first"])),
        int(config["tasks"]),
    )
    return schedule_stages(stages, tiling, target)


# --- the nest, for features ---------------------------------------------------------------------


def _nest(r: RowSpace, k: Columns) -> Nest:
    """The nest of the largest stage, its axes named by block and place."""
    stages = r.stages
    node = max(stages.nodes, key=lambda n: prod(i.extent for i in n.iters))
    names = {i.var: f"{i.var.name}.{n}" for n, i in enumerate(node.iters)}
    nv, tile = whole(k, "nv"), whole(k, "tile")
    one = np.ones(len(nv), np.int64)
    vector = {names[i.var]: one for i in node.iters}
    register = dict(vector)
    for number, choice in enumerate(r.lanes):
        mine = whole(k, "lane") == number
        width = lane_width(stages, r.target)
        along = choice.axis and stages.along(node.name, choice.axis.var)
        axis = along if choice.axis is not None else inner_lane(stages, node, width)
        if axis is not None:
            name, fit = names[axis.var], fitting_lanes(width, axis.extent)
            vector[name] = np.where(mine, fit, vector[name])
            register[name] = np.where(mine, np.minimum(fit * nv, axis.extent), register[name])
        tiled = r.tiled(choice)
        row = stages.along(node.name, tiled.var) if tiled is not None else None
        if row is not None:
            name = names[row.var]
            register[name] = np.where(mine, np.minimum(tile, row.extent), register[name])
    reduced = {names[i.var] for i in node.iters if i.kind == "reduce"}
    extents = {names[i.var]: i.extent for i in node.iters}
    l1 = {a: extents[a] * one if a in reduced else register[a] for a in extents}
    operations = sum(
        prod(i.extent for i in n.iters) * cost_of(store_of(n).value) for n in stages.nodes
    )
    knobs = [name for name in k if name != "sketch"]
    return Nest(
        extents,
        frozenset(reduced),
        tuple(accesses_of(node, stages.program, names)),
        {"vector": vector, "register": register, "l1": l1, "l2": l1, "core": l1},
        busy_cores(whole(k, "tasks"), r.target),
        np.full(len(nv), float(operations)),
        {n: whole(k, n).astype(np.float64) for n in knobs},
    )
