"""The default config: a closed-form model of a core, its caches and its neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, prod

import numpy as np
from tunefarm.compiler.processors import X86_64
from tunefarm.compiler.space.analysis import Contraction
from tunefarm.compiler.space.columns import Numbers, allows, cheapest, unevenness, whole
from tunefarm.compiler.space.config import Columns, Config, Constraint, Knob, Value
from tunefarm.compiler.space.contraction.blocks import default_blocks
from tunefarm.compiler.space.contraction.depthwise import (
    has_waiting_cycles,
    pixels_meet,
    waiting_cycles,
    waits_in_turn,
    window_cycles,
)
from tunefarm.compiler.space.contraction.shape import (
    FEW_TAPS,
    NAME,
    begins_inside_lines,
    bytes_apart,
    is_large_window,
    padded,
    panel_count,
    row_axes,
    row_by_row,
    shares_vector,
    step_of,
    takes_few_sums,
    taps,
    waits_for_stores,
    whole_window,
)
from tunefarm.compiler.space.product_cycles import LOADS, latency_of
from tunefarm.compiler.target import LINE_BYTES, SAME_SET_BYTES, Target, dtype_bytes

# Multiply-adds of an unrolled body: twice as many take LLVM twice as long and run no faster (28 of
# one step hide a loop's three instructions), and long ones it may spill.
MAX_BODY = 64
# Sums of a tile of whole rows of a window's results: of as many LLVM spills two terms.
WHOLE_ROW = 28
# Pixels of a tile that takes a row of taps at a time: registers hold its sums and inputs.
ROW_PIXELS, STRIDED_PIXELS = 14, 10
SPLIT_LINES = 0.2  # of a kernel's time, where each vector is a panel of its own
STREAM_CYCLES = 2.7  # of a vector of weights from the third level of cache (Zen 5: 97 GB/s a core)
SHORT_PANEL = 1.02  # of a kernel's time, where the last panel has fewer vectors
CONFLICT = 0.02  # of a kernel's time, for each row beyond half a set
# Of tiles of all taps in 16 registers: what columns, squares and rows take, also of neighbours that
# share lines of the cache; sums that hide a chain's latency behind the next tile's, and cycles in
# which a tile begins and ends.
READS, READS_INSIDE = (1.0, 1.02, 1.04), (1.05, 1.02, 1.0)
LEAST_SUMS, TILE_CYCLES = 3, 3.0
SHORT_SUMS = range(24, 65)  # terms, of which the end of a tile takes much of the time


def default_of(
    c: Contraction,
    target: Target,
    lanes: int,
    knobs: tuple[Knob, ...],
    constraints: tuple[Constraint, ...],
) -> Config:
    """The best config of a closed-form model of the core: FMA ports, load ports, padding waste."""
    choices = {k.name: k.choices for k in knobs}
    if takes_few_sums(c, target):
        return _of_few_sums(c, target, lanes, choices, constraints)
    # Where the left operand has the lanes, unrolled taps share its loads: leave registers for them.
    # Of 16 that are too few: multiply-adds take their operands from memory.
    spare = shares_vector(c) and not target.has_few_registers
    unrolled = 2 if spare and c.reduce[-1].extent > 1 else 1
    # Where multiply-adds take no operand from memory, all taps' weights would spill.
    window = whole_window(c) if spare and target.isa is X86_64 else 0
    tiles = [{n: choices[n] for n in ("rw", "rh", "nv")}]
    if _by_rows_of_taps(c, target, window):
        window = c.reduce[-1].extent
        tiles = _row_tiles(c, target, choices)
    none = dict.fromkeys(("pack_lhs", "pack_rhs", "prefetch", "next_panel"), 0)
    for kind in tiles:
        found, cycles = cheapest(
            kind,
            {"ku": window or unrolled, "mb": 1, "nb": 1, **none},
            constraints,
            lambda k: tile_cycles(c, target, lanes, k) * _unevenness(c, target, lanes, k),
        )
        if cycles < inf:
            break
    rw, rh, nv = found["rw"], found["rh"], found["nv"]
    choices["pack_rhs"] = tuple(
        p for p in choices["pack_rhs"] if allows(constraints, {**found, "pack_rhs": p})
    )
    second = row_axes(c)[0]
    config: dict[str, int | str] = {"sketch": NAME, "rw": rw, "rh": rh, "nv": nv}
    if second is not None and row_by_row(c, found):
        count = panel_count(second.extent, rh)
        # A block of fewer tiles than the others would ask for each row of them.
        choices["mb"] = tuple(m for m in choices["mb"] if count % int(m) == 0 or int(m) >= count)
    config |= default_blocks(c, target, lanes, choices, (rw, rh, nv), cycles)
    if window:
        return config | {"ku": window}
    depth, most = c.reduce[-1].extent, _most_unrolled(c, target, config)
    config["ku"] = max(
        int(u)
        for u in choices["ku"]
        if rw * rh * nv * int(u) <= most
        and (int(u) <= 2 or not config["prefetch"])  # many hints at once hold up the loads
        and depth % int(u) == 0
        and allows(constraints, {**config, "ku": u})
    )
    return config


def _row_tiles(
    c: Contraction, target: Target, choices: Mapping[str, tuple[Value, ...]]
) -> list[dict[str, tuple[Value, ...]]]:
    """Tiles of windows that run a row of their taps at a time, on a row of pixels: of one vector,
    or where rows wait for stores of two. On a Zen 5 such have four to seven pixels, 0.73 to 0.95 ×
    the time of eight by one vector, and of stride 2 three by four vectors, where these are allowed:
    what comes first is better.
    """
    last = row_axes(c)[1]
    strided = last is not None and step_of(c, last) > 1
    waits = waits_for_stores(c, target)

    def tiles(least: int, most: int, *vectors: int) -> dict[str, tuple[Value, ...]]:
        wide, deep = choices["rw"], choices["nv"]
        pixels = tuple(w for w in wide if min(least, int(wide[-1])) <= int(w) <= most)
        return {"rw": pixels, "rh": (1,), "nv": tuple(v for v in deep if int(v) in vectors)}

    most = STRIDED_PIXELS if strided else ROW_PIXELS
    found = [tiles(ROW_PIXELS // 2, most, 1, 2) if waits else tiles(1, most, 1)]
    if waits and target.outruns_lines and not waits_in_turn(c, target):
        best = tiles(3, 3, 4) if strided else tiles(4, 7, 2)
        found = [best, *found] if best["nv"] else found
    return found


def _most_unrolled(c: Contraction, target: Target, tile: Mapping[str, Value]) -> int:
    """Multiply-adds that a step of a tile may have."""
    sums, last = prod(int(tile[n]) for n in ("rw", "rh", "nv")), row_axes(c)[1]
    if _unrolls_a_row_of_taps(c, target):
        return sums * c.reduce[-1].extent
    whole_rows = last is not None and tile["rw"] == last.extent and taps(c, last) > 1
    return sums if whole_rows and sums >= WHOLE_ROW else MAX_BODY


def _unrolls_a_row_of_taps(c: Contraction, target: Target) -> bool:
    """True for a depthwise window too large for all of its taps to be unrolled, where a row of them
    is, if it has no more than 8: they share what they read. 7 × 7 on 56² and 28² takes 0.82 to 0.91
    of the time of a tap at a time, two pixels apart and where pixels of 2 KB meet in few sets 1.03
    to 1.1 (Zen 5)."""
    last = row_axes(c)[1]
    if not is_large_window(c) or target.isa is not X86_64 or target.has_few_registers:
        return False
    if last is None or step_of(c, last) > 1:
        return False
    return not pixels_meet(bytes_apart(c, last))


def _of_few_sums(
    c: Contraction,
    target: Target,
    lanes: int,
    choices: Mapping[str, tuple[Value, ...]],
    constraints: tuple[Constraint, ...],
) -> Config:
    """A depthwise window of two axes in 16 registers: all taps of four results at once, whose
    operands come from memory, or a tap of seven at a time: sums of 25 wait for each other.

    Tiles take all panels in turn, as a pixel's channels are what the caches fetch ahead. 20 layers
    take 0.78 × the time of a tap at a time, panel by panel, in the mean (Zen 3).
    """
    window, (second, last) = whole_window(c), row_axes(c)
    high, wide = (axis.extent if axis else 1 for axis in (second, last))
    inside = begins_inside_lines(c) and (last is None or step_of(c, last) == 1)

    def cost(k: Columns) -> Numbers:
        rw, rh = whole(k, "rw"), whole(k, "rh")
        sums, tiles = rw * rh, -(-wide // rw) * -(-high // rh)
        column, square, row = READS_INSIDE if inside else READS
        reads = np.select([rw == 1, rh > 1], [column, square], row)
        together = reads * (window * np.maximum(sums, LEAST_SUMS) / 2 + TILE_CYCLES)
        loads = LOADS * (sums + 1) / 2
        apart = window * np.maximum(np.maximum(sums / 2, loads), latency_of(target))
        return tiles * np.where(whole(k, "ku") > 1, together, apart)

    taps_at_once = (1, window) if window <= FEW_TAPS else (1,)
    tiles = {"rw": choices["rw"], "rh": choices["rh"], "ku": taps_at_once}
    none = dict.fromkeys(("pack_lhs", "pack_rhs", "prefetch", "next_panel"), 0)
    few = Constraint("few sums", lambda k: ~row_by_row(c, k))
    found, cycles = cheapest(tiles, {"nv": 1, "mb": 1, "nb": 1, **none}, (*constraints, few), cost)
    cycles *= panel_count(c.vector.extent, lanes) / window
    register_tile = (found["rw"], found["rh"], found["nv"])
    blocks = default_blocks(c, target, lanes, choices, register_tile, cycles, in_turn=True)
    return {"sketch": NAME, **found, **blocks}


def _by_rows_of_taps(c: Contraction, target: Target, window: int) -> bool:
    """True for a depthwise window that runs a row of its taps at a time, on a row of pixels.

    For 5 × 5 taps that takes 0.4 to 1.0 × the time of all of them unrolled, and a tenth to a
    twentieth of the text; of stride 2, where neighbours share fewer loads, 0.7 to 0.8 × on a Zen 5
    unless they wait for stores and tiles take panels in turn (a Zen 4 was not timed).
    """
    last = row_axes(c)[1]
    if window <= FEW_TAPS or last is None:
        return False
    return step_of(c, last) == 1 or (target.outruns_lines and not waits_in_turn(c, target))


def _unevenness(c: Contraction, target: Target, lanes: int, k: Columns) -> Numbers:
    """The panels of the busiest core over those of each if all had the same, for a single row of
    results: others have tiles enough."""
    if not _is_stream(c, target):
        return np.ones(len(whole(k, "nv")))
    panels, cores = -(-c.vector.extent // (whole(k, "nv") * lanes)), target.num_cores
    return unevenness(panels, cores)


def _is_stream(c: Contraction, target: Target) -> bool:
    """True for a single row by a matrix that exceeds the second level of cache."""
    weights = prod(c.rhs.load.buffer.shape) * dtype_bytes(c.rhs.load.dtype)
    return prod(a.extent for a in (*c.rows, *c.outer)) == 1 and weights > target.l2_bytes


def tile_cycles(
    c: Contraction, target: Target, lanes: int, k: Columns, whole_panels: bool = False
) -> Numbers:
    """Cycles of one step of all reductions: two FMAs and two loads a cycle, latency 4. A last panel
    of fewer vectors counts as one of all if ``whole_panels``, or in 16 registers (not timed)."""
    second, last = row_axes(c)
    rows, vectors = whole(k, "rw") * whole(k, "rh"), whole(k, "nv")
    row_tiles = np.ones(len(vectors))
    if last:
        row_tiles = row_tiles * -(-last.extent // whole(k, "rw"))
    if second:
        row_tiles = row_tiles * -(-second.extent // whole(k, "rh"))
    count = panel_count(c.vector.extent, lanes)
    tiles = row_tiles * -(-count // vectors)
    if not target.has_few_registers and has_waiting_cycles(c, target):
        return waiting_cycles(c, target, k, tiles)
    if whole_panels or shares_vector(c) or _is_stream(c, target) or target.has_few_registers:
        cycles = tiles * _step_cycles(c, target, lanes, rows, vectors)
    else:  # a last panel of fewer vectors takes fewer, by code of its own
        full, rest = np.divmod(count, vectors)
        short = np.where(rest > 0, _step_cycles(c, target, lanes, rows, rest), 0.0)
        cycles = row_tiles * (full * _step_cycles(c, target, lanes, rows, vectors) + short)
        cycles = cycles * np.where(rest > 0, SHORT_PANEL, 1.0)
    cycles = cycles * np.where((whole(k, "rh") > 1) & padded(c), 1.05, 1.0)
    cycles = cycles * _set_conflicts(c, target, k)
    if shares_vector(c):
        together = whole(k, "ku") > c.reduce[-1].extent
        # Bound by memory: lines beyond L1 come in pairs, and short rows keep more loads in flight.
        width = vectors * lanes * dtype_bytes(c.rhs.load.dtype)
        parts = np.log2(np.maximum(LINE_BYTES / width, 1.0))
        # Pixels that begin anywhere in a line: a panel of some of their vectors reads a line more.
        apart = c.vector.extent % lanes and vectors * lanes < c.vector.extent
        split = np.where(apart, SPLIT_LINES / vectors, 0.0)
        pairs = np.where(width % (2 * LINE_BYTES), 1.1 + 0.2 * parts, 1.0) + split
        by_tap = cycles * pairs * np.where(rows > 8, 1.05, 1.0)
        cycles = by_tap
        if whole_window(c):
            whole_cycles = window_cycles(c, target, lanes, k, tiles, pairs)
            cycles = np.where(together, whole_cycles, by_tap)
    elif target.has_few_registers:
        cycles = cycles * _beside_twelve_sums(c, rows, vectors)
    return cycles


def _step_cycles(
    c: Contraction, target: Target, lanes: int, rows: Numbers, vectors: Numbers
) -> Numbers:
    """Cycles of one step of a register tile."""
    loads = rows * np.where(shares_vector(c), vectors, 1) + vectors
    step = np.maximum(np.maximum(rows * vectors, 1.3 * loads) / 2, 4.0)
    if _is_stream(c, target):
        step = np.maximum(step, STREAM_CYCLES * vectors)
    panel = prod(a.extent for a in c.reduce) * vectors * lanes * dtype_bytes(c.rhs.load.dtype)
    from_l2 = np.where(panel > target.l1_bytes // 2, 0.6 * vectors, 0.0)
    return step + 0.02 * loads + from_l2


def _beside_twelve_sums(c: Contraction, rows: Numbers, vectors: Numbers) -> Numbers:
    """A factor of the time of tiles in 16 registers. Eight sums just cover the latency, and any
    delay shows; ten have more loads than twelve.

    The stores that end a tile of more than eight hold up the next one, which sums of few terms
    see: of 24 to 64 terms four rows of two vectors take 0.91 to 0.98 × the time of six, or of three
    vectors, in 12 of 13 layers (one 1.03; two rows of four 1.0; Zen 3). Of 16 they take 1.16.
    """
    sums, terms = rows * vectors, [a.extent for a in c.reduce if a.extent > 1]
    if len(terms) != 1 or terms[0] not in SHORT_SUMS:
        return np.select([sums <= 8, sums <= 10], [1.08, 1.02], 1.0)
    return np.select([(sums <= 8) & (rows >= 4), sums <= 8, sums <= 10], [1.01, 1.08, 1.05], 1.06)


def config_cycles(c: Contraction, target: Target, lanes: int, config: Config) -> float:
    """Cycles of the whole sum on one core; a last panel of fewer vectors takes fewer."""
    k = {n: np.array([config[n]]) for n in ("rw", "rh", "nv", "ku")}
    axes, vectors = row_axes(c), panel_count(c.vector.extent, lanes)
    others = prod(a.extent for a in (*c.rows, *c.outer) if a not in axes)
    steps = others * prod(a.extent for a in c.reduce)
    cycles = float(steps * tile_cycles(c, target, lanes, k, whole_panels=True)[0])
    return cycles * vectors / (panel_count(vectors, int(config["nv"])) * int(config["nv"]))


def _set_conflicts(c: Contraction, target: Target, k: Columns) -> Numbers:
    """A factor of the time of tiles whose rows fill more than half of a set of the first level.

    Beside another thread of its core a kernel has half of each set. Of 1024 numbers, 12 rows by 2
    vectors, which fill a set of 12 lines, then take 1.3 × the time that they take alone, 7 by 2 and
    6 by 4 take 1.04 and 1.03 × (alone 0.99 and 0.98 × that of 12; 14 rows 1.08 ×).
    """
    half = target.l1_bytes // SAME_SET_BYTES // 2
    beyond: Numbers = np.maximum(_rows_of_a_set(c, k) - half, 0)
    return 1 + CONFLICT * beyond


def _rows_of_a_set(c: Contraction, k: Columns) -> Numbers:
    """Rows of a tile that meet in one set of the first level, as far as their distance tells."""
    rows = np.ones_like(whole(k, "rw"))
    for axis, name in zip(row_axes(c), ("rh", "rw"), strict=True):
        if axis is None:
            continue
        apart = bytes_apart(c, axis)
        if apart and apart % SAME_SET_BYTES == 0:
            rows = rows * whole(k, name)
    return rows
