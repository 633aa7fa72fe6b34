"""The config of row operators and pooling windows without a record."""

from __future__ import annotations

from math import prod

import numpy as np
from tunefarm.compiler.space.config import Config, Constraint, Knob
from tunefarm.compiler.space.fused import MAX_TAPS, staggers
from tunefarm.compiler.space.nests import default_tasks, strides
from tunefarm.compiler.space.row_choices import RowSpace
from tunefarm.compiler.space.stages import LaneChoice, kept_blocks
from tunefarm.compiler.target import dtype_bytes
from tunefarm.compiler.tir.ir import IterVar

WINDOW = "window"  # the sketch whose tiles are of columns
LITTLE_WASTE = 16  # tiles beside which an incomplete one does not count
WIDE_BLOCK = 8  # vectors of a row at a time, where they are as many
SHORT_ROW = 3  # vectors of a row that is taken at once
SHORT_STORED_ROW = 6  # and of one that is stored between the stages
SHORT_TILE = 4  # such rows at a time
COMBINED = 8  # rows whose lanes are combined together, where they fit half of the registers
LEAST_LINES = 12  # of rows that are read by lines, if nothing else is asked for
MOST_KEPT_LINES = 32  # of those whose values are stored between the stages
LEAST_PAIRED = 12  # vectors of rows that run two at a time


def default_of(
    r: RowSpace, name: str, knobs: tuple[Knob, ...], constraints: tuple[Constraint, ...]
) -> Config:
    """Enough independent accumulators to hide latencies, within the registers.

    Three rows of eight vectors took 0.8 to 0.95 × the time of four rows of four (Zen 5) where a row
    is whole blocks of eight and is not stored between the stages, or is one such block. Where so
    many rows are too long to run the stages a tile apart, single ones (0.75 to 0.85 ×). Rows that
    begin inside lines are read by lines, two at a time (0.78 to 0.91 ×), where they are not short:
    the masks of a row take as long as six of its vectors. All of a short row at once took 0.8 to
    0.95 × the time of blocks of four vectors, most of them empty (12 to 80 columns). Eight rows of
    one or two vectors took 0.35 to 0.9 × the time of four, whose lanes are combined row by row.
    """
    choices = {k.name: [int(c) for c in k.choices] for k in knobs}
    choice = r.lanes[0]
    vectors = r.vectors(choice)
    whole_blocks = vectors % WIDE_BLOCK == 0 or vectors >= 4 * WIDE_BLOCK
    stored = vectors > WIDE_BLOCK and bool(kept_blocks(r.stages))
    wide = whole_blocks and not stored and r.target.vector_registers >= 32
    nv = max(v for v in choices["nv"] if v <= (WIDE_BLOCK if wide else 4))
    most = 24 if wide else 16
    kept = bool(kept_blocks(r.stages)) and r.target.vector_registers >= 32
    together = False
    if vectors <= (SHORT_STORED_ROW if kept else SHORT_ROW):
        nv = min(choices["nv"], key=lambda v: abs(v - vectors))
        together = choice.axis is None and COMBINED * nv <= r.target.vector_registers // 2
        most = (COMBINED if together else SHORT_TILE) * nv
    if choice.axis is not None:
        nv = min(choices["nv"], key=lambda v: (-(-vectors // v) * v, -min(v, 4)))
        most = 8
    config: dict[str, int | str] = {
        "sketch": name,
        "lane": 0,
        "nv": nv,
        "tile": 1,
        "keep": 0,
        "taps": 0,
        "lanes_first": 0,
        "tasks": default_tasks(r.stages.nodes, r.target),
        **({"lines": 0} if r.line_cost else {}),
    }
    fewer = [v for v in reversed(choices["nv"]) if v <= nv]  # for code of a long epilogue
    starts = (config | {"nv": v, "keep": k} for v in fewer for k in reversed(choices["keep"]))
    config = next((c for c in starts if allowed(c, constraints)), config)
    nv = int(config["nv"])
    tiled = r.tiled(choice)
    unrolled = config | {"taps": 1}
    if 1 in choices["taps"] and _shares_loads(r, tiled) and allowed(unrolled, constraints):
        config, most = unrolled, 16
    for tile in sorted(choices["tile"]):
        if tile == COMBINED and name != WINDOW and not together:
            continue
        little_left = tiled is not None and (
            tiled.extent % tile == 0 or tiled.extent >= LITTLE_WASTE * tile
        )
        larger = config | {"tile": tile}
        if (little_left or config["taps"]) and nv * tile <= most and allowed(larger, constraints):
            config = larger
    for tile in (2, 1) if r.line_cost and vectors >= LEAST_LINES else ():
        lines = config | {"nv": WIDE_BLOCK, "tile": tile, "lines": 1}
        known = all(lines[name] in choices[name] for name in ("nv", "tile"))
        short = vectors <= MOST_KEPT_LINES or not kept_blocks(r.stages)
        if (
            known
            and short
            and allowed(lines, constraints)
            and staggers(r.stages, choice, tile, r.target)
        ):
            return lines
    pair = config | {"nv": 4, "tile": 2}
    known = all(pair[name] in choices[name] for name in ("nv", "tile"))
    if known and _gains_by_pairs(r, choice, config, pair) and allowed(pair, constraints):
        return pair
    alone = config | {"tile": 1}
    if not staggers(r.stages, choice, int(config["tile"]), r.target) and staggers(
        r.stages, choice, 1, r.target
    ):
        return alone
    return config


def _gains_by_pairs(r: RowSpace, choice: LaneChoice, config: Config, pair: Config) -> bool:
    """Whether two rows of four vectors at a time are better than the default elsewhere.

    On a Zen 4, which looks ahead less far than a tile of three or four rows is long: softmax, layer
    norm and log-softmax of 192 to 512 columns take 0.81 to 0.99 × the time of such a tile, layer
    and RMS norm of 576 to 768 0.84 to 0.97 × that of one row. Not taken: RMS norm of fewer columns
    takes 0.83 to 1.08 ×, softmax of more, whose values are stored, 1.02 to 1.04 ×, and sums and
    maxima alone 0.93 to 1.09 ×.
    """
    slow = r.target.product_clocks > 1 and r.target.vector_registers >= 32
    if not slow or choice.axis is not None or r.vectors(choice) < LEAST_PAIRED:
        return False
    if not r.stages.inner or not staggers(r.stages, choice, int(pair["tile"]), r.target):
        return False
    if not staggers(r.stages, choice, int(config["tile"]), r.target):
        return not kept_blocks(r.stages)
    sums = sum(r.stages.node(block).init is not None for block in r.stages.before)
    return int(config["tile"]) > 2 and sums > 1


def _shares_loads(r: RowSpace, tiled: IterVar | None) -> bool:
    """True if neighbours of a tile read what their neighbours' taps read: windows that overlap.

    Pooling of 3 × 3 pixels two apart takes 0.74 to 0.98 × the time by it (Zen 5). Larger images
    wait for memory, and lose by it (17² of 768 channels: 19%).
    """
    image = r.stages.program.params[0]
    if prod(image.shape) * dtype_bytes(image.dtype) > r.target.l2_bytes // 2:
        return False
    for node in r.stages.nodes:
        mine = r.stages.along(node.name, tiled.var) if tiled is not None else None
        taps = [i for i in node.iters if i.kind == "reduce"]
        if mine is not None and taps and 1 < taps[-1].extent <= MAX_TAPS:
            apart = zip(strides(node, mine.var), strides(node, taps[-1].var), strict=True)
            return any(a and b and a % b == 0 and a < b * taps[-1].extent for a, b in apart)
    return False


def allowed(config: Config, constraints: tuple[Constraint, ...]) -> bool:
    columns = {k: np.array([v]) for k, v in config.items()}
    return all(bool(c.holds(columns)[0]) for c in constraints)
