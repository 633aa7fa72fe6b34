"""The default config of a depthwise convolution along rows, and whether it beats lanes along
channels: a closed-form model of the core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from tunefarm.compiler.space.analysis import Contraction
from tunefarm.compiler.space.columns import Mask, Numbers, allows, cheapest, unevenness, whole
from tunefarm.compiler.space.config import Columns, Config, Constraint, Knob, Value
from tunefarm.compiler.space.contraction.blocks import default_blocks
from tunefarm.compiler.space.contraction.knobs import MAX_UNROLLED
from tunefarm.compiler.space.contraction.shape import FEW_TAPS, panel_count, row_axes
from tunefarm.compiler.space.product_cycles import LATENCY
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir.affine import affine

LINES = 2  # that a load reads: pixels begin anywhere in a line
SHARED_LINES = 1  # of them with the vector beside it, on a mesh, where the second cache is slow
BOTH = 0.3  # of the shorter of loads and products that the longer does not hide
STORED = 1.0  # cycles of a vector of results
OUTSIDE = 8.0  # cycles of a tile beside its sums and results
WORTH = 1.05  # times fewer cycles than with lanes along the channels, to be a task's default


def default_of(
    c: Contraction,
    target: Target,
    lanes: int,
    knobs: tuple[Knob, ...],
    constraints: tuple[Constraint, ...],
) -> tuple[Config, float]:
    """The config of the fewest cycles in the model by columns of taps, and their number on one
    core; all taps are taken at once where that pays."""
    choices = {k.name: k.choices for k in knobs}

    def short(k: Columns) -> Mask:
        return _body(k) <= MAX_UNROLLED // 4

    def column(k: Columns) -> Mask:
        return whole(k, "ku") <= c.reduce[-1].extent

    none = dict.fromkeys(("pack_lhs", "pack_rhs", "prefetch", "next_panel"), 0)
    found, _ = cheapest(
        {n: choices[n] for n in ("rw", "nv", "ku")},
        {"rh": 1, "mb": 1, "nb": 1, **none},
        (*constraints, Constraint("short body", short), Constraint("a column of taps", column)),
        lambda k: cycles(c, target, lanes, k) * _unevenness(c, target, k),
    )
    estimate = float(cycles(c, target, lanes, {n: np.array([v]) for n, v in found.items()})[0])
    tile = (found["rw"], 1, found["nv"])
    steps = prod(a.extent for a in c.reduce)
    config: dict[str, int | str] = {n: found[n] for n in ("rw", "rh", "nv", "ku")}
    config |= default_blocks(c, target, lanes, choices, tile, estimate / steps)
    config |= _rows_of_a_block(c, target, choices, found["rw"], found["nv"] * lanes)
    return _with_all_taps(c, target, config, constraints), estimate


def _with_all_taps(
    c: Contraction, target: Target, config: Config, constraints: Sequence[Constraint]
) -> Config:
    """The config with all taps of a window at once, where images leave half of the second level and
    lines are what loads wait for: 56² × 24 and × 33 take 0.85 × the time, 28² level (Zen 5)."""
    window = prod(a.extent for a in c.reduce)
    whole_config = {**config, "ku": window}
    pays = target.outruns_lines and _is_large(c, target) and window <= FEW_TAPS
    return whole_config if pays and allows(constraints, whole_config) else config


def _rows_of_a_block(
    c: Contraction,
    target: Target,
    choices: Mapping[str, Sequence[Value]],
    rows: int,
    columns: int,
) -> dict[str, int]:
    """Blocks of whole rows of panels of ``columns`` for each core, if there are enough: halves of
    a row share lines.

    One tile of rows at a time where images leave the second level of cache: 112² of 17 channels
    took 1.7 × as long by columns of two tiles, which touch twice as many pages.
    """
    tiles = int(_tiles(c, rows))
    large = _is_large(c, target)
    cores = target.num_cores
    if cores == 1 or tiles < cores:
        return {"mb": 1} if large else {}
    share = panel_count(tiles, cores)
    block = 1 if large else max(int(m) for m in choices["mb"] if int(m) <= share)
    panels = panel_count(c.vector.extent, columns)
    wide = [int(n) for n in choices["nb"]]
    return {"mb": block, "nb": min((n for n in wide if n >= panels), default=max(wide))}


def _is_large(c: Contraction, target: Target) -> bool:
    """Whether images leave the second level of cache, with the results."""
    image_bytes = prod(c.lhs.load.buffer.shape) * dtype_bytes(c.lhs.load.dtype)
    return 2 * image_bytes > target.l2_bytes // 2


def _tiles(c: Contraction, rows: Numbers) -> Numbers:
    """What blocks of rows are made of: images of a batch, or tiles of ``rows``."""
    second, last = row_axes(c)
    return second.extent if second else -(-(last.extent if last else 1) // rows)


def _unevenness(c: Contraction, target: Target, k: Columns) -> Numbers:
    """``unevenness`` of the tiles of rows."""
    return unevenness(_tiles(c, whole(k, "rw")), target.num_cores)


def _body(k: Columns) -> Numbers:
    return whole(k, "rw") * whole(k, "nv") * whole(k, "ku")


def cycles(c: Contraction, target: Target, lanes: int, k: Columns) -> Numbers:
    """Cycles of the whole sum: two multiply-adds, or two lines of loads, a cycle.

    On a mesh 7 rows by 2 vectors take 0.70 to 0.90 × the time of 14 by 1, on 112² of 17 channels
    1.07 to 1.17 × (Emerald Rapids).
    """
    rows, vectors, unrolled = whole(k, "rw"), whole(k, "nv"), whole(k, "ku")
    across, down = (a.extent for a in c.reduce)
    axis = row_axes(c)[1]
    stride, dilation = steps_down(c)
    read = np.minimum(rows * unrolled, (rows - 1) * stride + (unrolled - 1) * dilation + 1)
    products = rows * vectors * unrolled / 2
    shared = SHARED_LINES if target.has_mesh and not _is_large(c, target) else 0
    lines = LINES * vectors - shared * (vectors - 1)
    loads = (lines * read + unrolled * vectors) / 2
    both = np.maximum(products, loads) + BOTH * np.minimum(products, loads)
    sums = across * -(-down // unrolled) * np.maximum(both, LATENCY * unrolled)
    tile = sums + STORED * rows * vectors + OUTSIDE
    others = prod(a.extent for a in c.rows if a is not axis)
    tiles = others * -(-c.vector.extent // (vectors * lanes))
    return tile * tiles * -(-(axis.extent if axis else 1) // rows)


def steps_down(c: Contraction) -> tuple[int, int]:
    """How many rows of the image lie between those of two results, and of two taps."""
    index, iters = affine(c.lhs.load.indices[1]), c.node.iters
    axis = row_axes(c)[1]
    stride = 1 if axis is None else index.coefficient(iters[axis.position].var)
    return max(stride, 1), max(index.coefficient(iters[c.reduce[-1].position].var), 1)
