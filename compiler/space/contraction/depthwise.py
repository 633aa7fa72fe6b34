"""Cycles of a depthwise window whose taps a register tile has all at once, by what its loads wait
for; and whether tiles take the panels of a block in turn."""

from __future__ import annotations

from math import gcd, prod

import numpy as np
from tunefarm.compiler.space.analysis import Contraction
from tunefarm.compiler.space.columns import Numbers, unevenness, whole
from tunefarm.compiler.space.config import Columns
from tunefarm.compiler.space.contraction.shape import (
    FEW_SUMS,
    FEW_TAPS,
    begins_inside_lines,
    bytes_apart,
    is_strided,
    padded,
    row_axes,
    row_by_row,
    step_of,
    taps,
    waits_for_stores,
    whole_window,
)
from tunefarm.compiler.target import LINE_BYTES, SAME_SET_BYTES, Target, dtype_bytes
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Intrinsic
from tunefarm.compiler.tir.visit import expressions, walk_expr

BY_ROW, ROW, ROW_OF_A_MESH, OTHERWISE = 0.85, 0.1, 0.02, 1.3  # ``_row_by_row_factor``
HELD_SHARE = 0.55  # of the second levels of two cores, which hold an image and its results
SMALL = 7  # rows of results: too few for that, most tiles are at a border
# Cycles of two FMAs where rows wait for stores, of a vector of results and of each that it reads:
NEAR_READS, FAR_READS = (2.0, 0.6), (1.1, 1.43)
FAR_BYTES = 1536  # from pixel to pixel, from where on the latter hold
APART_BYTES = 1024  # from pixel to pixel, from where on rows that wait are best by flat tiles
CROWD = 0.075  # of a vector of results, for each pixel read, and KiB to the next beyond its vectors
MANY_SUMS = 12  # of a tile: more take 1.1 × the time, fewer than ``FEW_SUMS`` wait for each other
# Of a window that waits for lines, image and results over the second level of cache: up to where
# multiply-adds bound it, rows of pixels two apart are best, and from where on panels come in turn.
KEPT, KEPT_APART, IN_TURN = 0.65, 2.5, 4.0
# Where lines are shared: what half of the first level has to hold, in distances of two results'
# pixels; sums of a tile, beyond which it takes ``MANY`` times as long; what the cycles of a sum are
# beside those of rows of images (``image_rows``), of a pixel read, of each further vector, and of
# tiles of other widths.
TILE_PIXELS, MOST_SUMS, MANY = 40, 16, 1.1
SEVERAL = 3  # tiles of rows of a core, beyond which shares count as even
TWO_LINES, PIXEL_READ, FURTHER, OTHER_WIDTH = 1.4, 0.4, 0.1, 1.8
BEGIN, READ = 0.5, 0.25  # cycles of a tap of a tile, and of a vector that it reads
RELOADED = 1.2  # of a kernel's time, where weights and sums exceed the registers
# Registers beside them that GELU needs, or LLVM moves sums to the stack: of 28² × 64 a vector of
# results takes 20 clocks by 3 × 2 pixels of two vectors, 12 by 2 × 2 (Zen 5).
OF_ERF, SPILLED = 5, 1.3
MEETING_ROWS, MEETS = 4, 0.1  # rows of a tile that fit where they meet, and what each more takes


def panels_in_turn(c: Contraction, target: Target) -> bool:
    """Whether tiles of a depthwise window take the panels of a block in turn.

    Rows that wait for stores do, or wait for each other's lines. So do images of several times the
    second level, of which a pixel's lines come one after another: 112² × 96 takes 0.87 × the time
    of a panel after the other (Zen 5). Of pixels that share lines those of several cores do: on two
    56² × 120 takes 0.76 × the time, but 7² × 504 to × 1260 and 14² × 300 to × 680, whose tiles
    exceed half of the first level while the second ones hold the image, 1.4 to 1.6 × (more cores
    were not timed).
    """
    if shares_lines(c, target):
        last = row_axes(c)[1]
        near = last is None or TILE_PIXELS * bytes_apart(c, last) <= target.l1_bytes // 2
        held = _moved_bytes(c) <= HELD_SHARE * 2 * target.l2_bytes and not is_strided(c)
        return near or target.num_cores > (2 if held else 1)
    if not _waits_for_lines(c, target):
        return waits_in_turn(c, target)
    if _is_far(c, target):
        return _moved_bytes(c) <= target.l2_bytes
    least = KEPT if waits_for_stores(c, target) else IN_TURN
    flat = is_strided(c) or _is_flat(c, target)
    return not flat and _moved_bytes(c) > least * target.l2_bytes


def shares_lines(c: Contraction, target: Target) -> bool:
    """Whether a pixel's last line is its neighbour's first, and lines are what a window waits for:
    then cores take whole rows, and tiles all panels of a pixel, unless ``panels_in_turn`` says
    otherwise.

    Cores that write panels of the same pixels write the same lines: 28² × 120 takes 2.1 × the time,
    14² × 200 3.1 × (two cores of a Zen 5); on one core panels in turn take 0.9 × the time.
    """
    return _is_bound_by_lines(c, target) and begins_inside_lines(c)


def has_waiting_cycles(c: Contraction, target: Target) -> bool:
    """Whether ``waiting_cycles`` tells the time of a depthwise window."""
    if _waits_for_lines(c, target):
        return _is_far(c, target)
    return waits_in_turn(c, target)


def window_cycles(
    c: Contraction, target: Target, lanes: int, k: Columns, tiles: Numbers, pairs: Numbers
) -> Numbers:
    """Cycles of one tap of a whole window: two FMAs a cycle, and the lines of images that exceed
    the second level of cache, where tall tiles read each line seldom; where lines bound it, by
    models of their own.

    Tiles of 7 rows by 1 column took 0.5 to 0.85 × the time of rows one tap at a time there, of
    7 columns by 1 row 0.7 to 1 elsewhere (MobileNetV2's layers on Zen 5, one and two cores). Where
    rows meet in one set of the first level, tall tiles took up to twice the time of flat ones.
    """
    if shares_lines(c, target):
        return _cycles_of_shared_lines(c, target, k, tiles)
    if _waits_for_lines(c, target):
        return _cycles_beside_lines(c, target, k, tiles, pairs)
    second, last = row_axes(c)
    wide, high, vectors = whole(k, "rw"), whole(k, "rh"), whole(k, "nv")
    meet = second is not None and bytes_apart(c, second) % SAME_SET_BYTES == 0
    sums = vectors * wide * high / 2
    crossing = bool(c.vector.extent % lanes)  # pixels begin anywhere in a line
    if _moved_bytes(c) > target.l2_bytes and not meet:
        columns = wide * (step_of(c, last) if last else 1)
        above = taps(c, second) - 1 if second else 0
        lines = vectors * columns * (high * (step_of(c, second) if second else 1) + above)
        if crossing:  # vectors side by side share the lines that both read a part of
            several = np.maximum(_registers_of_a_row(c, k) / target.vector_registers, 1.0)
            lines = lines * (0.5 + 1 / vectors)
        else:
            several = 1 + 0.15 * (vectors - 1)
        return tiles * (sums + lines / whole_window(c)) * several
    sums = sums + 1.0  # a tile begins and ends
    many = np.where(vectors * whole_window(c) > target.vector_registers, 1.1, 1.0)  # weights
    tall = np.where((high > 1) & padded(c), 1.15, 1.0) * (1 + 0.08 * (high - 1) * meet)
    crossed = 1.15 if crossing else 1.0
    tall = np.where(row_by_row(c, k), _row_by_row_factor(c, target, lanes, k), tall)
    few = whole_window(c) <= FEW_TAPS
    if target.has_mesh and few and is_strided(c) and begins_inside_lines(c):
        tall = tall * _unevenness_of_rows(c, target, high)
    return tiles * sums * pairs * many * tall * crossed


def waiting_cycles(c: Contraction, target: Target, k: Columns, tiles: Numbers) -> Numbers:
    """Cycles of one tap of a whole window where rows wait, by tiles that take all panels in turn
    as far as the second level holds what these read.

    What a tile reads comes from the second level, for its rows meet in a few sets of the first:
    the further pixels are apart, the more small square tiles of many vectors gain. In clocks of a
    Zen 4 a vector of results, by tiles of columns × rows × vectors: 7² × 1024 takes 17 by 4 × 1 × 3
    and 21 by 3 × 3 × 1, 14² × 512 12 by 3 × 2 × 2 and 14 by 7 × 1 × 2, 28² × 256 9 by 2 × 2 × 2 and
    12 by 7 × 1 × 2.
    """
    second, last = row_axes(c)
    assert second is not None
    assert last is not None
    wide, high, vectors = whole(k, "rw"), whole(k, "rh"), whole(k, "nv")
    read = _pixels_read(c, k)
    pixel = bytes_apart(c, last)
    if _waits_for_lines(c, target):  # it reads every line of a pixel; a last tile ends early
        tiles = tiles * _share_of_results(c, k)
    else:
        pixel //= step_of(c, last)
    start, each = FAR_READS if pixel >= FAR_BYTES else NEAR_READS
    sums = np.maximum(whole_window(c) * wide * high / 2, start * wide * high + each * read)
    apart = gcd(pixel, SAME_SET_BYTES) / 1024
    crowded = CROWD * read * wide * high * np.maximum(apart - vectors, 0)
    few = np.maximum(FEW_SUMS / (wide * high * vectors), 1.0)
    many = np.where(wide * high * vectors > MANY_SUMS, 1.1, few) * np.where(high > wide, 1.05, 1.0)
    pairs = np.where(vectors * target.lanes("float32") * 4 % (2 * LINE_BYTES), 1.1, 1.0)
    cycles = tiles * vectors * (sums + crowded) * many * pairs / whole_window(c)
    return cycles * _spill_of_epilogue(c, target, k)


def _row_by_row_factor(c: Contraction, target: Target, lanes: int, k: Columns) -> Numbers:
    """A factor of the time of tiles that finish a row before the next, beside those of one row.

    Pixels two apart that nearly always cross lines, of two vectors both in the tile: 2 columns by 2
    rows take 0.82 to 0.95 × the time of 7 by 1 on 28² and 56². More rows take as long with most
    numbers of channels, and 1.2 × with 18; 7 rows on 14² level to 1.1 × (Zen 4). On a mesh 7 rows
    take 0.85 to 0.97 × the time of 2 (17 to 31 channels on 14² to 112², Emerald Rapids).
    """
    second, last = row_axes(c)
    apart = last is not None and step_of(c, last) > 1
    halves = c.vector.extent % max(lanes // 2, 1) == 0 and not target.has_mesh
    if second is None or not apart or halves:
        return OTHERWISE
    wide, high, vectors = whole(k, "rw"), whole(k, "rh"), whole(k, "nv")
    pays = (wide > 1) & (vectors > 1) & (vectors * lanes >= c.vector.extent)
    pays &= _registers_of_a_row(c, k) <= target.vector_registers
    if target.has_mesh:
        return np.where(pays, BY_ROW - ROW_OF_A_MESH * (high - 2), OTHERWISE)
    return np.where(pays & (second.extent > SMALL), BY_ROW + ROW * (high - 2), OTHERWISE)


def _registers_of_a_row(c: Contraction, k: Columns) -> Numbers:
    """Vectors of the weights, of the sums of a row of results, and of a row that these read."""
    last, wide = row_axes(c)[1], whole(k, "rw")
    read = (wide - 1) * step_of(c, last) + taps(c, last) if last else wide
    return whole(k, "nv") * (whole_window(c) + wide + read)


def _cycles_beside_lines(
    c: Contraction, target: Target, k: Columns, tiles: Numbers, pairs: Numbers
) -> Numbers:
    """Cycles of one tap of a window where multiply-adds are faster than the lines that they need.

    Of images that the second level keeps with their results small tiles of two vectors are best,
    as far as the registers have their weights too (3 × 2 takes 0.95 × the time of 7 × 1 on
    14² × 384). Larger ones wait for lines: seven rows by one column read them least often; where
    rows meet in one set, four rows by two columns stay in it (28² × 256 0.79 × the time, 56² × 128
    0.95). Pixels two apart take seven columns by two vectors (28² × 240 0.64 × the time of seven
    rows), as long as their lines come from the second level or close to it (Zen 5).
    """
    second, last = row_axes(c)
    wide, high, vectors = whole(k, "rw"), whole(k, "rh"), whole(k, "nv")
    levels, sums = _moved_bytes(c) / target.l2_bytes, wide * high * vectors
    weights, kept = whole_window(c) * vectors, levels <= KEPT
    if kept or _is_flat(c, target):
        whole_tiles = tiles * _share_of_results(c, k)
        held = weights + (sums + 1 if kept else 0) <= target.vector_registers
        square = np.select([high == 1, high > wide], [1.08, 1.02], 1.0)
        flat = np.where(high > 1, 1.15, 1.0)
        read = vectors * _pixels_read(c, k) / whole_window(c)
        cycles = whole_tiles * (sums / 2 + READ * read) + tiles * BEGIN
        many = np.where((sums > MANY_SUMS) & (high > 1), MANY, 1.0)
        shape = pairs * many * (square if kept else flat)
        return cycles * shape * np.where(held, 1.0, RELOADED) * _spill_of_epilogue(c, target, k)
    across = wide * (step_of(c, last) if last else 1)
    down = high * (step_of(c, second) if second else 1) + (taps(c, second) - 1 if second else 0)
    meet = second is not None and bytes_apart(c, second) % SAME_SET_BYTES == 0
    meet = meet and levels <= IN_TURN  # beyond, the last level's lines cost more
    beyond = MEETS * np.maximum(high - MEETING_ROWS, 0) if meet else 0.0
    shape = (1 + 0.15 * (vectors - 1)) * np.where(sums > FEW_SUMS, 1.03, 1.0) * (1 + beyond)
    return tiles * (sums / 2 + vectors * across * down / whole_window(c) + 0.1) * shape


def _cycles_of_shared_lines(c: Contraction, target: Target, k: Columns, tiles: Numbers) -> Numbers:
    """Cycles of one tap of a window whose loads meet two lines each: by the pixels that tiles read.

    Of 16 tiles in turn by 18 layers two columns by seven rows are best, of stride 2 by four: 1.03
    and 1.05 × the time of the best of each layer (Zen 5, one core and two). Panels one after the
    other have one column on one core, at a third of the code: that of two, 20 KB, takes a network
    3.5 µs to fetch, as long as 14² × 184 takes.
    """
    wide, high, vectors = whole(k, "rw"), whole(k, "rh"), whole(k, "nv")
    sums, strided = wide * high * vectors, is_strided(c)
    columns = 2 if strided or target.num_cores > 1 or panels_in_turn(c, target) else 1
    shape = np.where(wide == columns, 1.0, OTHER_WIDTH) * (1 + FURTHER * (vectors - 1))
    shape *= np.where(sums > (MANY_SUMS if strided else MOST_SUMS), MANY, 1.0)
    reads = (1 + PIXEL_READ * vectors * _pixels_read(c, k) / sums) / 2
    cycles = TWO_LINES * tiles * _share_of_results(c, k) * sums / 2 * reads * shape
    return cycles * _unevenness_of_rows(c, target, high)


def _unevenness_of_rows(c: Contraction, target: Target, high: Numbers) -> Numbers:
    """``unevenness`` of the tiles of rows; 1 where there are several for each core."""
    second, last = row_axes(c)
    images = prod(a.extent for a in (*c.rows, *c.outer) if a not in (second, last))
    tiles = images * -(-(second.extent if second else 1) // high)
    several = tiles > SEVERAL * target.num_cores
    return np.where(several, 1.0, unevenness(tiles, target.num_cores))


def _spill_of_epilogue(c: Contraction, target: Target, k: Columns) -> Numbers:
    """A factor of the time where a long function leaves no registers for weights and sums."""
    values = expressions(s.find_block(c.program, c.epilogue).body) if c.epilogue else ()
    names = {e.name for value in values for e in walk_expr(value) if isinstance(e, Intrinsic)}
    held = whole(k, "nv") * (whole_window(c) + whole(k, "rw") * whole(k, "rh")) + 1
    full = held + OF_ERF > target.vector_registers
    return np.where(full & (target.outruns_lines and "erf" in names), SPILLED, 1.0)


def _share_of_results(c: Contraction, k: Columns) -> Numbers:
    """Results over the room for them in all tiles."""
    share = np.ones(len(whole(k, "rw")))
    for axis, name in zip(row_axes(c), ("rh", "rw"), strict=True):
        if axis is not None:
            tile = whole(k, name)
            share = share * axis.extent / (-(-axis.extent // tile) * tile)
    return share


def _pixels_read(c: Contraction, k: Columns) -> Numbers:
    """Pixels of the image that a tile reads."""
    read = np.ones_like(whole(k, "rw"))
    for axis, name in zip(row_axes(c), ("rh", "rw"), strict=True):
        if axis is not None:
            read = read * (taps(c, axis) + (whole(k, name) - 1) * step_of(c, axis))
    return read


def _waits_for_lines(c: Contraction, target: Target) -> bool:
    """Whether lines are what a window on pixels of whole lines waits for."""
    return _is_bound_by_lines(c, target) and not begins_inside_lines(c)


def _is_bound_by_lines(c: Contraction, target: Target) -> bool:
    """Whether a window of few taps, along both axes of its rows, is bound by the lines it reads."""
    slides = all(axis is not None and taps(c, axis) > 1 for axis in row_axes(c))
    return target.outruns_lines and slides and 0 < whole_window(c) <= FEW_TAPS


def _is_far(c: Contraction, target: Target) -> bool:
    """Whether rows wait for stores, and pixels that neighbours read meet in one or two sets."""
    last = row_axes(c)[1]
    if last is None or not waits_for_stores(c, target):
        return False
    return pixels_meet(bytes_apart(c, last))


def _is_flat(c: Contraction, target: Target) -> bool:
    """Whether tiles of one row are best: rows wait for stores and pixels lie a KiB or more apart,
    or pixels that are read lie two apart, in an image of a few times the second level."""
    if is_strided(c):
        return _moved_bytes(c) <= KEPT_APART * target.l2_bytes
    last = row_axes(c)[1]
    apart = last is not None and bytes_apart(c, last) >= APART_BYTES
    return apart and waits_for_stores(c, target)


def waits_in_turn(c: Contraction, target: Target) -> bool:
    """Whether rows wait for stores, and less if tiles take panels in turn.

    Windows of more than nine taps, which run a row of them at a time, do not on a Zen 5 but where
    pixels meet in few sets, or of stride 2 where they are near (56² × 128): 24² × 768 by 5 × 5 taps
    takes 0.6 × the time panel by panel, 28² × 256 0.65, 14² × 512 1.06.
    """
    waits, last = waits_for_stores(c, target), row_axes(c)[1]
    if last is None or not waits or not target.outruns_lines or whole_window(c) <= FEW_TAPS:
        return waits
    apart, step = bytes_apart(c, last), step_of(c, last)
    return pixels_meet(apart // step) or (step > 1 and apart <= APART_BYTES)


def pixels_meet(apart: int) -> bool:
    """Whether pixels so many bytes apart meet in one or two sets of the first level."""
    return gcd(apart, SAME_SET_BYTES) >= FAR_BYTES


def _moved_bytes(c: Contraction) -> int:
    """Bytes of the image and of the results."""
    outputs = prod(a.extent for a in (*c.rows, c.vector, *c.outer))
    return (prod(c.lhs.load.buffer.shape) + outputs) * dtype_bytes(c.lhs.load.dtype)
