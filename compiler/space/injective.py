"""Chains of elementwise operators and of operators that move elements: one nest a result.

    parallel over tasks
      for outer axes:
        for vectors of the lane axis:      nv of them unrolled
          out[lanes] = f(in[lanes], …)

The lanes lie along the axis on which most accesses are contiguous, or a tile of what lies along
another is transposed in registers (``turned.py``). Tensors that are stepped through alike are
viewed as vectors first (``flatten.py``), so a short last axis costs nothing.
"""

from __future__ import annotations

import functools
from math import prod

import numpy as np
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.columns import Mask, whole
from tunefarm.compiler.space.config import (
    Columns,
    Config,
    Constraint,
    Knob,
    Nest,
    SketchSpace,
)
from tunefarm.compiler.space.flatten import flatten
from tunefarm.compiler.space.nests import (
    accesses_of,
    busy_cores,
    cost_of,
    default_tasks,
    fitting_lanes,
    inline_all,
    lane_cost,
    lanes_of,
    own_loops,
    share_out,
    strides,
    task_choices,
)
from tunefarm.compiler.space.program import create_program
from tunefarm.compiler.space.turned import schedule_turn, side_vectors, turn_of
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Block, IterVar
from tunefarm.compiler.tir.schedule.tree import blocks, store_of

NAME, VERSION = "injective", 2
VECTORS = (1, 2, 4, 8)
MAX_CODE = 400.0  # vector instructions of one unrolled body


@functools.lru_cache(maxsize=64)
def injective_program(function: Function) -> PrimFunc | None:
    """The flat program with everything inlined into its results; None if a reduction is left."""
    program = inline_all(create_program(function))
    nodes = list(blocks(program.body))
    results = program.params[len(program.params) - program.outputs :]
    if any(b.init is not None or store_of(b).buffer not in results for b in nodes):
        return None
    return flatten(program)


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of an injective function; None if the function is not one."""
    program = injective_program(function) if target.kind == "llvm" else None
    if program is None:
        return None
    nodes = list(blocks(program.body))
    cost = max(cost_of(store_of(b).value) for b in nodes)
    lanes = lanes_of(nodes, target)
    turns = any(turn_of(b) is not None for b in nodes) and lanes * cost <= MAX_CODE
    knobs = (
        Knob("lane", tuple(range(max(1, *(len(lane_axes(b, target)) for b in nodes))))),
        Knob("nv", tuple(v for v in VECTORS if v == 1 or v <= most_vectors(nodes, target))),
        Knob("turn", (0, 1) if turns else (0,)),
        Knob("tasks", task_choices(nodes, target)),
    )

    def small_code(k: Columns) -> Mask:
        vectors = whole(k, "nv") * np.where(whole(k, "turn") > 0, lanes, 1)
        return (vectors == 1) | (vectors * cost <= MAX_CODE)

    def turns_first_lane(k: Columns) -> Mask:
        return (whole(k, "turn") == 0) | (whole(k, "lane") == 0)

    choice = 0 if turns else _default_lane(nodes, target)
    chosen = [(b, lane_axes(b, target)[: choice + 1]) for b in nodes]
    most = 1 if any(_partner(b, a[-1]) for b, a in chosen if a) else 4
    limit = 100.0
    if turns:
        turned = [(b, turn_of(b)) for b in nodes]
        most = max(side_vectors(b, turn, target) for b, turn in turned if turn is not None)
        limit = MAX_CODE / lanes
    small = [int(v) for v in knobs[1].choices if int(v) <= most and int(v) * cost <= limit]
    default: Config = {
        "sketch": NAME,
        "lane": choice,
        "nv": max(small, default=1),
        "turn": int(turns),
        "tasks": default_tasks(nodes, target),
    }
    constraints = (
        Constraint("code size", small_code),
        Constraint("turned lanes", turns_first_lane),
    )
    return SketchSpace(
        NAME, VERSION, knobs, constraints, default, lambda k: _nest(program, target, k)
    )


def lane_axes(node: Block, target: Target) -> list[IterVar]:
    """The best axes for the lanes, at most two; none for a single element. A last axis that repeats
    the one before it comes behind them, if it is not among them: both together fill vectors."""
    lanes = lanes_of([node], target)
    spatial = [i for i in node.iters if i.kind == "spatial"]
    ranked = sorted(spatial, key=lambda i: (lane_cost(node, i, lanes), -node.iters.index(i)))
    axes = [
        i for i in ranked[:2] if lane_cost(node, i, lanes) < 4 * lane_cost(node, ranked[0], lanes)
    ]
    repeats = axes and spatial[-1] not in axes and _repeats(node, spatial[-1], lanes)
    return [*axes, spatial[-1]] if repeats else axes


def _default_lane(nodes: list[Block], target: Target) -> int:
    """The lane axis by default: the best one, or one that repeats another."""
    node = max(nodes, key=lambda b: prod(i.extent for i in b.iters))
    axes, lanes = lane_axes(node, target), lanes_of([node], target)
    return next((n for n, axis in enumerate(axes) if _repeats(node, axis, lanes)), 0)


def most_vectors(nodes: list[Block], target: Target) -> int:
    """Vectors of the longest lane axis, rounded up to a power of two."""
    most = 1
    for node in nodes:
        lanes = lanes_of([node], target)
        for axis in lane_axes(node, target):
            while most * lanes < axis.extent:
                most *= 2
    return most


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the function holds a reduction."""
    program = injective_program(function)
    if program is None:
        raise ScheduleError("the workload holds a reduction; it is not injective")
    lane, vectors, tasks = (int(config[knob]) for knob in ("lane", "nv", "tasks"))
    for node in list(blocks(program.body)):
        turn = turn_of(node) if int(config["turn"]) else None
        if turn is None:
            program = schedule_nest(program, node, target, lane, vectors, tasks)
        else:
            program = schedule_turn(program, node, turn, target, vectors, tasks)
    return program


def schedule_nest(
    program: PrimFunc, node: Block, target: Target, choice: int, vectors: int, tasks: int
) -> PrimFunc:
    """Vectorize and share out one spatial block's own nest."""
    axes = lane_axes(node, target)
    if not axes:
        return program
    axis = axes[min(choice, len(axes) - 1)]
    loops = own_loops(program, node.name, None)
    lane_loop = loops[node.iters.index(axis)]
    partner = _partner(node, axis)
    inner = [] if partner is None else [loops[node.iters.index(partner)]]
    others = [v for v in loops if v is not lane_loop and v not in inner]
    full = lanes_of([node], target)
    lanes = fitting_lanes(full, axis.extent)
    if others and partner is None and _repeats(node, axis, full):
        program, lane_loop = s.fuse(program, others.pop(), lane_loop)
        lanes = full
    program, (outer, unrolled, lane) = s.split(program, lane_loop, vectors, lanes)
    program = s.reorder(program, *others, outer, *inner, unrolled, lane)
    program = s.unroll(program, unrolled)
    program = s.vectorize(program, lane)
    return share_out(program, [*others, outer, *inner], tasks, target)


def _repeats(node: Block, lane: IterVar, lanes: int) -> bool:
    """Whether the last iterator repeats what the one before it moves along, in a part of a vector:
    both together then fill it, and lanes share what they read.

    y[i, j] = x[i]  for j in 2   ->   y[p] = x[p // 2]
    """
    *_, before, last = node.iters if len(node.iters) > 1 else (lane, lane)
    if last is not lane or lane.extent >= lanes or lanes % lane.extent:
        return False
    pairs = zip(strides(node, before.var), strides(node, lane.var), strict=True)
    (across, along), *loads = pairs
    filled = before.extent * lane.extent % lanes == 0
    return filled and (across, along) == (lane.extent, 1) and set(loads) == {(1, 0)}


def _partner(node: Block, lane: IterVar) -> IterVar | None:
    """The axis that is contiguous where the lanes are scattered: it runs innermost, so that the
    cache lines that a vector's lanes touch are used up while they are near."""
    scattered = [n for n, step in enumerate(strides(node, lane.var)) if step not in (0, 1)]
    for axis in node.iters:
        steps = strides(node, axis.var)
        if axis is not lane and any(steps[n] == 1 for n in scattered):
            return axis
    return None


def _nest(program: PrimFunc, target: Target, k: Columns) -> Nest:
    """The largest result's nest."""
    node = max(blocks(program.body), key=lambda b: prod(i.extent for i in b.iters))
    names = {i.var: f"{i.var.name}.{n}" for n, i in enumerate(node.iters)}
    vectors = whole(k, "nv")
    one = np.ones(len(vectors), np.int64)
    axes = lane_axes(node, target)
    lanes = lanes_of([node], target)
    vector = {names[i.var]: one for i in node.iters}
    register = dict(vector)
    for choice, axis in enumerate(axes):
        mine = whole(k, "lane") == choice if len(axes) > 1 else one > 0
        fit = fitting_lanes(lanes, axis.extent)
        name = names[axis.var]
        vector[name] = np.where(mine, fit, vector[name])
        register[name] = np.where(mine, np.minimum(fit * vectors, axis.extent), register[name])
    turn, turned = turn_of(node), whole(k, "turn") > 0
    if turn is not None:
        fit = fitting_lanes(lanes, turn.lane.extent)
        tile = {turn.lane: fit * vectors, turn.other: fit * one}
        for axis in node.iters:
            name, side = names[axis.var], np.minimum(tile.get(axis, one), axis.extent)
            register[name] = np.where(turned, side, register[name])
            vector[name] = np.where(turned, fit if axis is turn.lane else 1, vector[name])
    total = prod(i.extent for i in node.iters)
    return Nest(
        {names[i.var]: i.extent for i in node.iters},
        frozenset(),
        tuple(accesses_of(node, program, names)),
        {"vector": vector, "register": register, "l1": register, "l2": register, "core": register},
        busy_cores(whole(k, "tasks"), target),
        np.full(len(vectors), total * cost_of(store_of(node).value)),
        {n: whole(k, n).astype(np.float64) for n in ("lane", "nv", "turn", "tasks")},
    )
