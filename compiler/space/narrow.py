"""Products of few columns: lanes along the terms of the sum, not along the columns.

    parallel over tasks of rows
      for tile of rows:
        sums of rh × rw rows × all columns = 0             a vector of terms each, in registers
        for steps of the sum:                              ku of them unrolled
          sums += lhs[row, terms] · rhs[column, terms]
        lanes of each sum combined, epilogue → result

Three columns of 64 terms are 12 multiply-adds a row here, and 64 of three lanes where lanes lie
along the columns. What it pays is to combine the lanes. Weights are packed with their terms last.

The taps of a convolution that lie across read pixels that lie side by side. Where channels leave
vectors half empty, they are one axis of terms: three pixels of 17 channels are four vectors instead
of six.

Results one above the other, rh of them, take all taps down of a vector of terms in one step, so
that rows of the image are read once for several taps: 6 for 4 results of three taps, instead of 12.
On one core of a Zen 4 4 × 2 results take 0.6 to 0.7 × the time of 1 × 16 where each load meets two
lines (17 and 33 channels on 14² to 56²), and 0.8 × where channels fill vectors (64).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.common import integers
from tunefarm.compiler.ops.conv import pairs
from tunefarm.compiler.space import contraction
from tunefarm.compiler.space.analysis import Axis, Contraction, analyse
from tunefarm.compiler.space.columns import Mask, Numbers, cheapest, whole
from tunefarm.compiler.space.config import Columns, Config, Constraint, Knob, Nest, SketchSpace
from tunefarm.compiler.space.contraction.apply import keep_sums, operand_axes
from tunefarm.compiler.space.contraction.default import config_cycles
from tunefarm.compiler.space.contraction.knobs import MAX_UNROLLED
from tunefarm.compiler.space.contraction.nest import accesses_of
from tunefarm.compiler.space.contraction.shape import (
    bytes_apart,
    contraction_of,
    lanes_of,
    packed_at_build,
    row_axes,
    shares_vector,
    step_of,
)
from tunefarm.compiler.space.nests import (
    busy_cores,
    default_tasks,
    fitting_lanes,
    loop_of,
    own_loops,
    share_out,
    task_choices,
    work_ns,
)
from tunefarm.compiler.space.product_cycles import LATENCY
from tunefarm.compiler.space.program import (
    Views,
    create_program,
    find_anchor,
    has_channels_last,
    view_contraction,
    viewed,
)
from tunefarm.compiler.space.tiles import in_registers
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PackedLayout, PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.affine import affine
from tunefarm.compiler.tir.ir import Block, Var
from tunefarm.compiler.tir.schedule.tree import store_of

NAME, VERSION = "narrow", 2
MAX_COLUMNS = 8
ROWS = (1, 2, 3, 4, 6, 8, 12, 16)
HEIGHTS = (1, 2, 3, 4)
UNROLLS = (1, 2, 4)
COMBINED = 1.6, 3.2  # clocks to combine the lanes of a sum, of many at once and of few
MANY_SUMS = 8
FAR = 0.6  # clocks of a vector of weights from the second level of cache
CROSSING = 1.6  # times the time of a load, if it meets two lines (1.8 to 1.15 on Zen 4)
FEW_ROWS = 4  # of a tile: fewer leave too few loads in flight
OUTSIDE = 4.0  # clocks of a tile beside its sums
LEAST_NS = 500.0  # of work for each core, to be shared over a mesh
WORTH = 1.1  # times fewer cycles than with lanes along the columns, to be a task's default


@lru_cache(maxsize=64)
def narrow_of(function: Function, lanes: int) -> Contraction | None:
    """A float32 product of few columns with constant weights, whose rows have their terms side by
    side; None for other functions. ``lanes`` are those of a vector of the target."""
    flat = _with_taps_as_terms(function, lanes) or view_contraction(function)
    c = analyse(create_program(flat), column=True)
    if c is None or c.outer or shares_vector(c) or c.vector.extent > MAX_COLUMNS:
        return None
    c = replace(c, reduce=tuple(a for a in c.reduce if a.extent > 1))
    dtypes = {c.lhs.load.dtype, c.rhs.load.dtype, store_of(c.node).buffer.dtype}
    terms = c.node.iters[c.reduce[-1].position].var if c.reduce else None
    sizes, places = c.lhs.load.buffer.shape, [affine(i) for i in c.lhs.load.indices]
    *others, last = [p for size, p in zip(sizes, places, strict=True) if size > 1] or places
    side_by_side = terms is not None and last.coefficient(terms) == 1
    apart = all(terms not in i.variables() for i in others)
    fits = dtypes == {"float32"} and row_axes(c)[1] is not None and packed_at_build(c)
    return c if fits and side_by_side and apart else None


def _with_taps_as_terms(function: Function, lanes: int) -> Function | None:
    """A convolution of rows of single numbers that reads the terms of all taps across; None where
    that fills no more lanes.

    conv(x[n, h, w, c], k[i, j, c, o])  ->  conv(x[n, h, w·c, 1], k[i, j·c, 1, o], stride c across)
    """
    anchor = find_anchor(function)
    if anchor is None or not has_channels_last(anchor) or len(tensor_type(anchor).shape) != 4:
        return None
    attrs, (data, kernel) = anchor.attrs, (tensor_type(a).shape for a in anchor.args)
    (down, across), (steps, dilation) = (integers(attrs, n) for n in ("strides", "dilations"))
    (n, h, w, c), (taps, taps_across, _, columns) = data, kernel
    fewer = -(-taps_across * c // lanes) < taps_across * -(-c // lanes)
    if attrs["groups"] != 1 or dilation != 1 or not fewer:
        return None
    above, (left, right) = pairs(attrs["padding"])
    windows: dict[str, Any] = {
        **attrs,
        "strides": (down, across * c),
        "padding": (above, (left * c, right * c)),
        "dilations": (steps, 1),
    }
    views = Views(
        (n, h, w * c, 1),
        (taps, taps_across * c, 1, columns),
        lambda shape: shape,
        lambda x, k: call("conv", x, k, **windows),
    )
    return viewed(function, anchor, views)


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of a product of few columns; None for others."""
    c = narrow_of(function, target.lanes("float32")) if target.kind == "llvm" else None
    lanes = target.lanes("float32")
    if c is None or not c.vector.extent < lanes <= 2 * c.reduce[-1].extent:
        return None
    node = c.node
    second, last = row_axes(c)
    assert last is not None
    high = second.extent if second is not None and taps_down(c) is not None else 1
    knobs = (
        Knob("rw", tuple(r for r in ROWS if r <= last.extent)),
        Knob("rh", tuple(r for r in HEIGHTS if r <= high)),
        Knob("ku", tuple(u for u in UNROLLS if u == 1 or u * lanes <= c.reduce[-1].extent)),
        Knob("tasks", task_choices([node], target)),
    )
    constraints = _constraints(c, target)
    found, cost = cheapest(
        {n.name: n.choices for n in knobs[:3]},
        {"tasks": _default_tasks(node, target)},
        (*constraints, Constraint("few sums of unrolled taps", _few_unrolled)),
        lambda k: cycles(c, target, k),
    )
    other = contraction_of(function)
    along_columns = (
        float("inf")
        if other is None
        else config_cycles(other, target, lanes_of(other, target), _default(function, target))
    )
    return SketchSpace(
        NAME,
        VERSION,
        knobs,
        constraints,
        {"sketch": NAME, **found},
        lambda k: _nest(c, target, lanes, k),
        preferred=WORTH * cost < along_columns,
    )


def _default(function: Function, target: Target) -> Config:
    other = contraction.space(function, target)
    assert other is not None
    return other.default


def _constraints(c: Contraction, target: Target) -> tuple[Constraint, ...]:
    columns = c.vector.extent

    def fits_registers(k: Columns) -> Mask:
        down, read = _shared(c, k)
        sums, tall = whole(k, "rw") * whole(k, "rh") * columns, whole(k, "rh") > 1
        return sums + down * columns + np.where(tall, read, 1) <= target.vector_registers

    def small_code(k: Columns) -> Mask:
        sums = whole(k, "rw") * whole(k, "rh") * columns
        return sums * (whole(k, "ku") * _shared(c, k)[0] + 4) <= MAX_UNROLLED

    return Constraint("registers", fits_registers), Constraint("code size", small_code)


def _few_unrolled(k: Columns) -> Mask:
    """Whether results one above the other, of which each border has code of its own, are few: twice
    as many take twice the text and no less time."""
    few = (whole(k, "rw") * whole(k, "rh") <= MANY_SUMS) & (whole(k, "ku") == 1)
    return (whole(k, "rh") == 1) | few


def taps_down(c: Contraction) -> Axis | None:
    """The taps along which rows of results one above the other read the same rows; None without."""
    second, iters = row_axes(c)[0], c.node.iters
    if second is None:
        return None
    forms = [affine(i) for i in c.lhs.load.indices]
    for axis in c.reduce[:-1]:
        pair = {iters[axis.position].var, iters[second.position].var}
        if step_of(c, second) < axis.extent and any(pair <= f.variables() for f in forms):
            return axis
    return None


def _shared(c: Contraction, k: Columns) -> tuple[Numbers, Numbers]:
    """Taps down that a step of a tile takes at once, and rows of the image that it reads for them:
    all taps where a tile has results one above the other."""
    high, (second, _), down = whole(k, "rh"), row_axes(c), taps_down(c)
    if second is None or down is None:
        return np.ones_like(high), high
    tall, across = high > 1, (high - 1) * step_of(c, second)
    read = np.minimum(across + (down.extent - 1) * step_of(c, down) + 1, high * down.extent)
    return np.where(tall, down.extent, 1), np.where(tall, read, high)


def cycles(c: Contraction, target: Target, k: Columns) -> Numbers:
    """Cycles of the whole product on one core: two multiply-adds and two loads a cycle, beside
    which the rest is shorter where they take two clocks."""
    wide, columns, unrolled = whole(k, "rw"), c.vector.extent, whole(k, "ku")
    rows, (second, last), (down, read) = wide * whole(k, "rh"), row_axes(c), _shared(c, k)
    assert last is not None
    vectors = -(-c.reduce[-1].extent // target.lanes("float32"))
    taps = prod(a.extent for a in c.reduce[:-1])
    near = taps * vectors * columns * target.vector_bytes <= target.l1_bytes // 2
    clock = 1 / target.product_clocks
    crossing = CROSSING if bytes_apart(c, last) % target.vector_bytes else 1.0
    loads = crossing * wide * read + down * columns
    step = np.maximum(np.maximum(rows * columns * down, loads) / 2, LATENCY * clock * down)
    step = step * np.where(rows < FEW_ROWS, 1.3, 1.0)
    step = step + (0.0 if near else FAR * clock * columns * down)
    tile = taps / down * -(-vectors // unrolled) * (unrolled * step + clock)
    sums = rows * columns
    combined = np.where(sums < MANY_SUMS, COMBINED[1], COMBINED[0]) * sums
    tile = tile + (combined + OUTSIDE) * clock
    others = prod(a.extent for a in c.rows if a not in (second, last))
    high = second.extent if second else 1
    return tile * others * -(-high // whole(k, "rh")) * -(-last.extent // wide)


def _default_tasks(node: Block, target: Target) -> int:
    """On a mesh one a core, of short sums too: remainders of columns lie in lines that the cores
    have just written, and each adds to its own. One core alone takes 11.8 µs for what both take 3.4
    (1×1 of 17 channels on 28², two cores of an Emerald Rapids), and two tasks a core, which they
    take in turn, up to 1.25 × the time of one.
    """
    if not target.has_mesh:
        return default_tasks([node], target)
    enough = work_ns([node], target) >= LEAST_NS * target.num_cores
    return int(target.num_cores > 1 and enough)


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the function is no such product."""
    c = narrow_of(function, target.lanes("float32"))
    if c is None:
        raise ScheduleError("the workload is no product of few columns with constant weights")
    knob = {name: int(value) for name, value in config.items() if name != "sketch"}
    lanes = fitting_lanes(target.lanes("float32"), c.reduce[-1].extent)
    program, epilogue = keep_sums(c.program, c)
    assert c.rhs.param is not None
    program = s.transform_layout(program, c.rhs.param, _terms_last(c))
    loops = dict(enumerate(s.loops_of(program, epilogue)))
    rows: list[Var] = []
    for axis, name in zip(row_axes(c), ("rh", "rw"), strict=True):
        if axis is not None:
            program, (tiles, row) = s.split(program, loops[axis.position], knob[name])
            loops[axis.position] = tiles
            rows.append(row)
    outer, column = [loops[a.position] for a in c.rows], loops[c.vector.position]
    program = s.reorder(program, *outer, *rows, column)
    for loop in (*rows, column):
        program = s.unroll(program, loop)
    program = s.compute_at(program, c.block, outer[-1])
    program = _place_sums(program, c, outer[-1], lanes, knob)
    return share_out(program, outer, knob["tasks"], target)


def _place_sums(
    program: PrimFunc, c: Contraction, tile: Var, lanes: int, knob: Mapping[str, int]
) -> PrimFunc:
    """A vector of terms for each sum of a tile; then its lanes combined. Results one above the
    other take all taps down of a vector of terms, so that they share what they read."""
    own = own_loops(program, c.block, tile)
    iters = s.find_block(program, c.block).iters
    found = {a: loop_of(program, c.block, iters[a.position], own) for a in (*c.rows, c.vector)}
    inside = [loop for loop in found.values() if loop is not None]
    steps = [v for v in own if v not in inside]
    program, (step, unrolled, lane) = s.split(program, steps.pop(), knob["ku"], lanes)
    down, last = taps_down(c), row_axes(c)[1]
    if knob["rh"] > 1 and down is not None and last is not None:
        taps = loop_of(program, c.block, iters[down.position], steps)
        first = [v for v in (found[last], taps) if v is not None]
        steps = [v for v in steps if v is not taps]
        inside = [*first, *(v for v in inside if v not in first)]
    program = s.reorder(program, *steps, step, unrolled, *inside, lane)
    program = in_registers(program, (unrolled, *inside), lane)
    program, parts = s.rfactor(program, c.block, lane)
    program = s.decompose_reduction(program, parts, (*steps, step)[0])
    combined = own_loops(program, c.block, tile)[-1]
    program = s.vectorize(program, combined)
    return s.decompose_reduction(program, c.block, combined)


def _terms_last(c: Contraction) -> PackedLayout:
    """The right operand's dimensions with that of the vectorized terms behind the others."""
    axes = operand_axes(c)
    terms = axes.index(c.reduce[-1].position)
    order = [d for d in range(len(axes)) if d != terms]
    return PackedLayout(((),) * len(axes), (*order, terms))


def _nest(c: Contraction, target: Target, lanes: int, k: Columns) -> Nest:
    names = c.variables
    axes = {names[i.var]: i.extent for i in c.node.iters}
    one = np.ones(len(whole(k, "rw")), np.int64)
    second, last = row_axes(c)
    assert last is not None
    vector = dict.fromkeys(axes, one) | {c.reduce[-1].name: lanes * one}
    register = vector | {c.vector.name: c.vector.extent * one, last.name: whole(k, "rw")}
    register[c.reduce[-1].name] = lanes * whole(k, "ku")
    if second is not None:
        register[second.name] = whole(k, "rh")
    l1 = register | {a.name: a.extent * one for a in c.reduce}
    core = l1 | {a.name: a.extent * one for a in c.rows}
    terms = -(-c.reduce[-1].extent // lanes) * lanes
    executed = np.full(len(one), 2.0 * prod(axes.values()) / c.reduce[-1].extent * terms)
    extra = {n: whole(k, n).astype(np.float64) for n in ("rh", "ku", "tasks")}
    extra["cycles"] = cycles(c, target, k).astype(np.float64)
    return Nest(
        axes,
        frozenset(a.name for a in c.reduce),
        tuple(accesses_of(c)),
        {"vector": vector, "register": register, "l1": l1, "l2": core, "core": core},
        busy_cores(whole(k, "tasks"), target),
        executed,
        extra,
    )
