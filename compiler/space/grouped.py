"""Convolutions in groups whose outputs divide a vector: its lanes are of several groups, or one.

    parallel over tasks of tiles
      for tile of rw pixels of a row:
        for vector of channels:                            of lanes / outputs groups
          sums = 0                                         in registers
          for taps down:
            for a group's inputs, unrolled:                each lane takes that of its own group
              sums += x[pixels + taps across] · w[lanes]   unrolled, the taps or the pixels inside
          epilogue on the sums → result

Groups of four channels fill half of a vector of eight lanes if each group is a product of its own.
Here a pixel's vector is loaded once, and what the lanes take of it is a shuffle, which all taps
across share: rw + taps − 1 of them for rw · taps multiply-adds. A tile takes all channels in turn:
so lines of the image, whose channels are of several groups, are read by neighbours in time.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Call, Function, tensor_type
from tunefarm.compiler.space.analysis import Contraction, analyse
from tunefarm.compiler.space.columns import Mask, Numbers, cheapest, whole
from tunefarm.compiler.space.config import Columns, Config, Constraint, Knob, Nest, SketchSpace
from tunefarm.compiler.space.contraction.apply import keep_sums
from tunefarm.compiler.space.contraction.knobs import MAX_UNROLLED, up_to
from tunefarm.compiler.space.contraction.nest import accesses_of
from tunefarm.compiler.space.contraction.shape import packed_at_build, step_of
from tunefarm.compiler.space.nests import busy_cores, default_tasks, share_out, task_choices
from tunefarm.compiler.space.product_cycles import LATENCY
from tunefarm.compiler.space.program import create_program, find_anchor, is_float32_image
from tunefarm.compiler.space.tiles import in_registers, place_epilogue
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PackedLayout, PrimFunc
from tunefarm.compiler.tir import schedule as s

NAME, VERSION = "grouped", 1
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14)
TAPS, PIXELS = "taps", "pixels"  # what is innermost of what is unrolled
OPERANDS = 6  # registers beside the sums: weights of the taps across, and pixels
OUTSIDE = 20.0  # cycles of a tile beside its sums, and
READ = 1.2  # of each pixel that it reads
WEIGHTS = 2  # registers beside the sums and all pixels of a row, more of which would be spilled
SPILLED = 1.4  # times the cycles without these: 14 columns two apart took 1.5 × those of 7 (Zen 5)


@lru_cache(maxsize=64)
def grouped_of(function: Function, lanes: int) -> Contraction | None:
    """The sums over taps and a group's inputs, lanes along the channels of all groups; None if the
    function is no float32 convolution of images, channels last, with constant weights, in groups
    whose outputs divide ``lanes`` and fill vectors together."""
    anchor = find_anchor(function)
    if anchor is None or not is_float32_image(anchor) or not _fits(anchor, lanes):
        return None
    c = analyse(create_program(function))
    return c if c is not None and packed_at_build(c) else None


def _fits(image: Call, lanes: int) -> bool:
    groups, inputs, outputs = _of_groups(image)
    fills = lanes % outputs == 0 and groups * outputs % lanes == 0
    return fills and groups > 1 and inputs > 1


def _of_groups(image: Call) -> tuple[int, int, int]:
    """How many groups a convolution has, and the inputs and outputs of each."""
    groups, (*_, inputs, channels) = image.attrs["groups"], tensor_type(image.args[1]).shape
    assert isinstance(groups, int)
    return groups, inputs, channels // groups


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of a convolution in such groups; None for others."""
    lanes = target.lanes("float32")
    c = grouped_of(function, lanes) if target.kind == "llvm" else None
    if c is None:
        return None
    knobs = (
        Knob("rw", up_to(ROWS, c.rows[-1].extent)),
        Knob("inner", (TAPS, PIXELS)),
        Knob("tasks", task_choices([c.node], target)),
    )
    constraints = _constraints(c, target)
    found, cost = cheapest(
        {"rw": knobs[0].choices},
        {"tasks": default_tasks([c.node], target)},
        constraints,
        lambda k: cycles(c, target, k),
    )
    if np.isinf(cost):
        return None
    return SketchSpace(
        NAME,
        VERSION,
        knobs,
        constraints,
        {"sketch": NAME, **found, "inner": TAPS},
        lambda k: _nest(c, target, lanes, k),
        preferred=_is_preferred(function, target),
    )


def _is_preferred(function: Function, target: Target) -> bool:
    """Not where a group's outputs are a vector of AVX-512, whose lanes all take the same input: a
    product of each group takes 0.85 to 0.99 × the time, with weights from memory 0.84 to 0.99
    (seven layers of 16 channels, Zen 5)."""
    anchor = find_anchor(function)
    assert anchor is not None
    return not target.has_avx512 or _of_groups(anchor)[2] < target.lanes("float32")


def _constraints(c: Contraction, target: Target) -> tuple[Constraint, ...]:
    *_, across, inputs = (axis.extent for axis in c.reduce)

    def fits_registers(k: Columns) -> Mask:
        return whole(k, "rw") + OPERANDS <= target.vector_registers

    def small_code(k: Columns) -> Mask:
        return whole(k, "rw") * across * inputs <= MAX_UNROLLED

    return Constraint("registers", fits_registers), Constraint("code size", small_code)


def cycles(c: Contraction, target: Target, k: Columns) -> Numbers:
    """Cycles of the whole convolution on one core: two multiply-adds a cycle, or as many as do not
    wait for each other."""
    wide, columns = whole(k, "rw"), c.rows[-1].extent
    down, across, inputs = (axis.extent for axis in c.reduce)
    of_row = across + (wide - 1) * step_of(c, c.rows[-1])
    read, held = down * of_row, wide + of_row + WEIGHTS
    spilled = (held > target.vector_registers) & (not target.has_few_registers)
    step = np.maximum(wide / 2, LATENCY / target.product_clocks)
    tile = down * across * inputs * step + OUTSIDE + READ * read
    tiles = prod(axis.extent for axis in c.rows[:-1]) * -(-columns // wide)
    vectors = c.vector.extent // target.lanes("float32")
    return tile * tiles * vectors * np.where(spilled, SPILLED, 1.0)


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the function is no such convolution."""
    lanes = target.lanes("float32")
    c = grouped_of(function, lanes)
    if c is None:
        raise ScheduleError(
            "the workload is no convolution whose groups fill vectors together, with constant "
            "weights"
        )
    program, epilogue = keep_sums(c.program, c)
    assert c.rhs.param is not None
    packed = PackedLayout(((), (), (), (lanes,)), (3, 0, 1, 2, 4))
    program = s.transform_layout(program, c.rhs.param, packed)
    image, row, column, channel, down, across, term = s.loops_of(program, c.block)
    program, (tile, pixel) = s.split(program, column, int(config["rw"]))
    program, (vector, lane) = s.split(program, channel, lanes)
    inside = (pixel, across) if config["inner"] == TAPS else (across, pixel)
    program = s.reorder(program, tile, vector, down, term, *inside, lane)
    program = in_registers(program, (term, *inside), lane)
    program = place_epilogue(program, epilogue, vector, lanes)
    program = s.decompose_reduction(program, c.block, down)
    return share_out(program, (image, row, tile), int(config["tasks"]), target)


def _nest(c: Contraction, target: Target, lanes: int, k: Columns) -> Nest:
    names = c.variables
    axes = {names[i.var]: i.extent for i in c.node.iters}
    one = np.ones(len(whole(k, "rw")), np.int64)
    down, across, inputs = c.reduce
    vector = dict.fromkeys(axes, one) | {c.vector.name: lanes * one}
    register = vector | {c.rows[-1].name: whole(k, "rw")}
    register |= {across.name: across.extent * one, inputs.name: inputs.extent * one}
    l1 = register | {down.name: down.extent * one}
    l2 = l1 | {c.vector.name: c.vector.extent * one}
    core = l2 | {a.name: a.extent * one for a in c.rows}
    extra = {"tasks": whole(k, "tasks").astype(np.float64)}
    extra["taps_inside"] = (np.asarray(k["inner"]) == TAPS).astype(np.float64)
    extra["cycles"] = cycles(c, target, k).astype(np.float64)
    return Nest(
        axes,
        frozenset(a.name for a in c.reduce),
        tuple(accesses_of(c)),
        {"vector": vector, "register": register, "l1": l1, "l2": l2, "core": core},
        busy_cores(whole(k, "tasks"), target),
        np.full(len(one), 2.0 * prod(axes.values())),
        extra,
    )
