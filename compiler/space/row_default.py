"""The config of row operators and pooling windows without a record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

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
COMBINED = 8  # rows whose lanes are combined together, where three quarters of registers hold them
LEAST_LINES = 12  # of rows that are read by lines, if nothing else is asked for
MOST_KEPT_LINES = 32  # of those whose values are stored between the stages
LEAST_PAIRED = 12  # vectors of rows that run two at a time

Fits: TypeAlias = Callable[[Config], bool]
"""Whether a config is in its space."""


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
    one or two vectors took 0.35 to 0.9 × the time of four, whose lanes are combined row by row, of
    three 0.37 to 1.0 × (Zen 4).
    """
    choices = {k.name: [int(c) for c in k.choices] for k in knobs}
    choice = r.lanes[0]

    def fits(config: Config) -> bool:
        known = all(config[knob] in values for knob, values in choices.items())
        return known and allowed(config, constraints)

    blocks = _blocks_of(r, choice, choices["nv"])
    config = _of_one_row(r, name, blocks.nv, choices, fits)
    config = _of_more_rows(r, config, blocks, choices["tile"], fits)
    for tile in (2, 1) if _gains_by_lines(r, choice) else ():
        lines = config | {"nv": WIDE_BLOCK, "tile": tile, "lines": 1}
        if fits(lines) and staggers(r.stages, choice, tile, r.target):
            return lines
    pair = config | {"nv": 4, "tile": 2}
    if fits(pair) and _gains_by_pairs(r, choice, config, pair):
        return pair
    if staggers(r.stages, choice, int(config["tile"]), r.target):
        return config
    return config | {"tile": 1} if staggers(r.stages, choice, 1, r.target) else config


@dataclass(frozen=True, slots=True)
class _Blocks:
    """``nv`` vectors of a row at a time, at most ``most`` of a tile of rows, whose lanes may be
    combined ``together``."""

    nv: int
    most: int
    together: bool = False


def _blocks_of(r: RowSpace, choice: LaneChoice, choices: Sequence[int]) -> _Blocks:
    vectors, many = r.vectors(choice), r.target.vector_registers >= 32
    if choice.axis is not None:
        return _Blocks(min(choices, key=lambda v: (-(-vectors // v) * v, -min(v, 4))), 8)
    kept = bool(kept_blocks(r.stages))
    if vectors <= (SHORT_STORED_ROW if kept and many else SHORT_ROW):
        nv = min(choices, key=lambda v: abs(v - vectors))
        together = COMBINED * nv <= r.target.vector_registers * 3 // 4
        return _Blocks(nv, (COMBINED if together else SHORT_TILE) * nv, together)
    whole_blocks = vectors % WIDE_BLOCK == 0 or vectors >= 4 * WIDE_BLOCK
    wide = whole_blocks and not (kept and vectors > WIDE_BLOCK) and many
    nv = max(v for v in choices if v <= (WIDE_BLOCK if wide else 4))
    return _Blocks(nv, 24 if wide else 16)


def _of_one_row(
    r: RowSpace, name: str, nv: int, choices: Mapping[str, Sequence[int]], fits: Fits
) -> dict[str, int | str]:
    """A config for a row at a time, of fewer vectors where the code of an epilogue is long."""
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
    fewer = [v for v in reversed(choices["nv"]) if v <= nv]
    starts = (config | {"nv": v, "keep": k} for v in fewer for k in reversed(choices["keep"]))
    return next(filter(fits, starts), config)


def _of_more_rows(
    r: RowSpace, config: dict[str, int | str], blocks: _Blocks, tiles: Sequence[int], fits: Fits
) -> dict[str, int | str]:
    """The config with the largest tile of rows that wastes little and fits the registers."""
    most, tiled = blocks.most, r.tiled(r.lanes[0])
    unrolled = config | {"taps": 1}
    if _shares_loads(r, tiled) and fits(unrolled):
        config, most = unrolled, 16
    for tile in sorted(tiles):
        if tile == COMBINED and config["sketch"] != WINDOW and not blocks.together:
            continue
        little_left = tiled is not None and (
            tiled.extent % tile == 0 or tiled.extent >= LITTLE_WASTE * tile
        )
        larger = config | {"tile": tile}
        if (little_left or config["taps"]) and int(config["nv"]) * tile <= most and fits(larger):
            config = larger
    return config


def _gains_by_lines(r: RowSpace, choice: LaneChoice) -> bool:
    """Whether rows may be read by lines, are not short, and not too long to be stored."""
    vectors = r.vectors(choice)
    stored_well = vectors <= MOST_KEPT_LINES or not kept_blocks(r.stages)
    return bool(r.line_cost) and vectors >= LEAST_LINES and stored_well


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
