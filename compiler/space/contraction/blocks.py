"""The default blocks of a contraction: what fits the caches, and what each core works on.

A network's kernels hand their results to one another. If all cut the rows of the image among the
cores, each core finds its part in its own cache; a kernel that cuts the channels fetches what the
others wrote, but reads each weight on one core only. The smaller of both is moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import gcd, log2, prod

from tunefarm.compiler.space.analysis import Contraction
from tunefarm.compiler.space.contraction.depthwise import (
    panels_in_turn,
    shares_lines,
    waits_in_turn,
)
from tunefarm.compiler.space.contraction.shape import (
    GROUPS_INSIDE,
    PACK_WHOLE,
    PANELS_INSIDE,
    bytes_apart,
    groups_of,
    is_strided,
    packed_at_build,
    panel_count,
    row_axes,
    shares_vector,
    taps,
    transposed,
)
from tunefarm.compiler.space.product_cycles import moved_cycles
from tunefarm.compiler.target import LINE_BYTES, SAME_SET_BYTES, Target, dtype_bytes

TASK_CYCLES = 300.0  # of the pool, for each block that it hands out
REREAD = 0.02  # of a kernel's time, for every halving of the blocks that its operands are read by
MIN_COPY_ROWS = 64  # fewer do not repay a copy of the right operand
RUN = 2  # panels of a block that tiles take in turn: the next tile reads other channels
LINES_OF_A_GROUP = 2  # groups whose channels take fewer are read together with their neighbours
AHEAD, FAR_AHEAD = 32, 128  # steps of a sum that hints within a panel ask ahead for
FAR_VECTORS = 4  # of a panel, of which the latter are at most 32 KB
FEW_ROWS, ONE_OR_TWO = 8, 2  # fewer wait for their weights; as few find them in good order
BEYOND = 2  # times the second level, from where on weights come from the third
LARGE_WEIGHTS = 1 << 18  # bytes of all groups that hints ask for; in 16 registers of one alone
UNEVEN = 1.1  # the work of the core that has most, over that of all alike
L2_WAY_BYTES = 1 << 16  # addresses so far apart meet in one set of the second level
EXPANSION = 4  # channels of a depthwise convolution over those of the block that it stands in


def default_blocks(
    c: Contraction,
    target: Target,
    lanes: int,
    choices: Mapping[str, tuple[int | str, ...]],
    register_tile: tuple[int, int, int],
    step_cycles: float,
    in_turn: bool = False,
) -> dict[str, int | str]:
    """The knobs beside the register tile (rw, rh, nv), whose every step takes ``step_cycles``;
    tiles take the panels of a block ``in_turn``, or where ``panels_in_turn`` does so."""
    kernel = _kernel_of(c, target, lanes, register_tile, step_cycles)
    in_turn = in_turn or panels_in_turn(c, target)
    inside = in_turn and PANELS_INSIDE in choices["order"]
    orders = [o for o in kernel.orders if o in choices["order"]] or map(str, choices["order"])
    candidates = [
        (order, int(mb), int(nb))
        for order in ((PANELS_INSIDE,) if inside else orders)
        for mb in choices["mb"]
        for nb in _blocks_of_panels(order, kernel, choices["nb"])
        if int(mb) <= max(1, 1.34 * kernel.fitting[order])
    ]
    order, mb, nb = max(candidates, key=lambda b: (kernel.value(*b), -b[1], -b[2]))
    if GROUPS_INSIDE in choices["order"]:
        order, mb, nb = _groups_in_turn(c, kernel, choices["mb"]) or (order, mb, nb)
    pack_rhs = _pack_rhs(c, kernel, choices["pack_rhs"], mb < kernel.tiles)
    packed = packed_at_build(c) or pack_rhs == PACK_WHOLE
    together = 1 if target.has_few_registers else prod(a.extent for a in groups_of(c))
    hints = packed and kernel.weight_bytes * together >= LARGE_WEIGHTS and kernel.rows >= FEW_ROWS
    ahead = hints and order != GROUPS_INSIDE and 1 in choices["next_panel"]
    nv = register_tile[2]
    return {
        "mb": mb,
        "nb": nb,
        "order": order,
        "pack_lhs": 0,
        "pack_rhs": pack_rhs,
        "prefetch": _steps_ahead(kernel, nv, ahead) if packed else 0,
        "next_panel": int(ahead),
    }


def _steps_ahead(kernel: _Kernel, vectors: int, next_panel: bool) -> int:
    """How many steps ahead hints within a panel of ``vectors`` ask for weights; 0 for none.

    Deep panels have them beside those for the next panel, but not in 16 registers, whose tiles read
    a panel faster than hints pay. Few rows leave no time between two panels: the processor's own
    prefetching does better, but on a Zen 5 from the third level. There 4 × 3072 × 768 takes 0.83 to
    0.89 × the time, of weights from memory 0.83. A row by 1000 × 2048 takes 69 µs with hints 24 KB
    ahead, and 69 to 82 without them; with nearer ones it takes 66, but 1.1 to 1.3 × as long in
    networks, where some lines come from memory. Two cores, or weights from memory, gain nothing by
    far ones.
    """
    target = kernel.target
    if kernel.rows >= FEW_ROWS or kernel.copies > 1:
        return AHEAD if next_panel and kernel.deep and not target.has_few_registers else 0
    own_bytes = kernel.weight_bytes / target.num_cores
    if not target.outruns_lines or own_bytes <= BEYOND * target.l2_bytes:
        return 0
    if kernel.rows > ONE_OR_TWO:
        return AHEAD
    gains = target.num_cores == 1 and not target.weights_in_memory
    return FAR_AHEAD if gains and vectors <= FAR_VECTORS else 0


def _groups_in_turn(
    c: Contraction, kernel: _Kernel, sizes: tuple[int | str, ...]
) -> tuple[str, int, int] | None:
    """Blocks of rows, of these ``sizes`` and as even as can be, whose tiles take all groups in
    turn; None where the cores would have uneven shares, weights leave the second level, or no lines
    are shared.

    Neighbours read what the other's lines have beside it, and pixels two apart what lies between
    them. 24 layers take 0.91 × the time on one core, 112² of 64 in 4 groups 0.54 (Zen 3).
    """
    cores, tiles = kernel.target.num_cores, kernel.tiles
    groups = prod(a.extent for a in groups_of(c))
    images = kernel.copies // groups
    inputs = c.reduce[-1].extent * dtype_bytes(c.lhs.load.dtype)
    shared = is_strided(c) or inputs < LINES_OF_A_GROUP * LINE_BYTES
    if not shared or kernel.weight_bytes * groups > kernel.target.l2_bytes:
        return None

    def longest(mb: int) -> int:
        return -(-images * panel_count(tiles, mb) // cores) * mb

    blocks = [int(m) for m in sizes if int(m) <= tiles]
    best = min(blocks, key=lambda mb: (longest(mb), -mb))
    even = longest(best) * cores <= UNEVEN * images * tiles
    return (GROUPS_INSIDE, best, 1) if even else None


def _blocks_of_panels(
    order: str, kernel: _Kernel, choices: tuple[int | str, ...]
) -> tuple[int, ...]:
    """The panels that a block may have: as far as there is a choice all, or where tiles take those
    of a block in turn a run of them, if the image stays in the second level and a run of vectors
    is long, else all or those of each core.

    Cores on a mesh have rows of their own: what one wrote of a pixel's channels, and the lines
    behind it, the other one fetches slowly (8² × 960 on two cores of a Granite Rapids takes 5 µs,
    by runs of two panels 12; 16² × 256 5.5 and 13).
    """
    if order != PANELS_INSIDE:
        return tuple(int(n) for n in choices) if order == "mn" else (1,)
    run, share = min(RUN, kernel.panels), panel_count(kernel.panels, kernel.target.num_cores)
    runs = kernel.kept and not kernel.target.has_few_registers
    cores = kernel.target.num_cores
    enough = cores <= kernel.copies * kernel.tiles
    if enough and (kernel.whole_pixels or (kernel.target.has_mesh and cores > 1)):
        least: tuple[int, ...] = (kernel.panels,)
    else:
        least = (run,) if runs else (kernel.panels, max(run, share))
    return tuple(next((int(n) for n in choices if int(n) >= m), int(choices[-1])) for m in least)


def _pack_rhs(
    c: Contraction, kernel: _Kernel, choices: tuple[int | str, ...], repeated: bool
) -> int:
    """Whether a variable right operand is copied: ``repeated`` if several blocks of rows read it.

    Each of them would copy its panels again, so one copy of all is made, unless L2 keeps it anyway.
    With AVX2 one is made also where its rows meet in few sets: 512×64×512 takes 0.87 × the time,
    2048×128×128 0.91 (two cores 0.93 and, left as it lies, 1.0; Zen 3).
    """
    copies = [int(choice) for choice in choices if choice]
    if not copies:
        return 0
    big = kernel.weight_bytes > kernel.target.l2_bytes // 2
    panel, whole = min(copies), max(copies)
    if transposed(c):
        return whole if repeated else panel
    if kernel.rows < MIN_COPY_ROWS:
        return 0
    meets = _meets_in_few_sets(c, kernel)
    if repeated:
        return whole if big or (meets and kernel.target.has_few_registers) else 0
    return panel if big or meets else 0


def _meets_in_few_sets(c: Contraction, kernel: _Kernel) -> bool:
    """Whether the rows of a panel of a variable right operand meet in few sets of the first level.

    With AVX2, whose panels are a line wide, rows that fill their sets are copied too where each
    core copies for itself: 128³ and 12 of 128×64×128 take 0.95 × the time (Zen 3).
    """
    apart, target = c.rhs.load.buffer.shape[-1] * dtype_bytes(c.rhs.load.dtype), kernel.target
    if apart % 2048 == 0:
        return True
    filled = prod(a.extent for a in c.reduce) * gcd(apart, SAME_SET_BYTES) >= target.l1_bytes
    return filled and target.has_few_registers and kernel.copies >= target.num_cores


@dataclass(frozen=True)
class _Kernel:
    """A contraction in numbers. ``tiles`` and ``panels`` are what blocks consist of, ``copies``
    what is repeated around them. ``whole_pixels`` tells whether blocks have all panels where tiles
    take them in turn, ``undivided`` whether those of one core have all rows: 56² × 144 of 5 × 5
    taps and stride 2 takes 0.87 × the time, 14² × 672 of 3 × 3 0.92 (Zen 5). ``gathered_bytes``
    counts the left operand once a tap, and ``cycles`` is the time of one core for everything."""

    target: Target
    depthwise: bool
    whole_pixels: bool
    undivided: bool
    rows: int
    channels: int
    tiles: int
    panels: int
    copies: int
    tile_bytes: float
    gathered_bytes: int
    input_bytes: int
    output_bytes: int
    weight_bytes: int
    cycles: float

    @property
    def orders(self) -> tuple[str, ...]:
        """The order that reads the larger operand once; both where cores share the work."""
        if self.depthwise:
            return ("mn",)
        best = "nm" if self.weight_bytes > self.gathered_bytes else "mn"
        if self.deep and self._read("nm") > self._read("mn"):
            best = "mn"
        other = "mn" if best == "nm" else "nm"
        return (best,) if self.target.num_cores == 1 else (best, other)

    @cached_property
    def fitting(self) -> Mapping[str, int]:
        """By order the tiles of rows whose operand stays in the second-level cache, or is read once
        anyway."""
        return {order: self._fitting(order) for order in ("mn", "nm", PANELS_INSIDE)}

    def _fitting(self, order: str) -> int:
        if order == PANELS_INSIDE and self._shared:
            return self.tiles
        if self.undivided and not self._shared:
            return self.tiles
        if self.kept and (order == PANELS_INSIDE or self._by_rows or not self._shared):
            return self.tiles
        if order == "nm" and self.gathered_bytes <= self.target.l2_bytes // 2:
            return self.tiles
        room = max(self.target.l2_bytes // 4, self._room if self.deep else 0)
        return max(1, int(room // max(1, self.tile_bytes)))

    @cached_property
    def kept(self) -> bool:
        """True of a depthwise window whose image and results stay in the second-level cache, and
        exceed the first by far."""
        touched, target = self.input_bytes + self.output_bytes, self.target
        return self.depthwise and 2 * target.l1_bytes < touched <= target.l2_bytes

    @property
    def _shared(self) -> bool:
        """True if several cores share the work."""
        return self.target.num_cores > 1

    @property
    def _by_rows(self) -> bool:
        """True if a depthwise convolution's neighbours in a network cut the rows."""
        return self.rows * EXPANSION > self.channels

    @property
    def _room(self) -> float:
        """Bytes of the second-level cache beside two panels: the present one, and the next."""
        return 0.85 * self.target.l2_bytes - 2 * self.weight_bytes / self.panels

    def _read(self, order: str) -> float:
        """Bytes that come from beyond the second-level cache."""
        if order == "nm":
            again = 0 if self.input_bytes <= self._room else self.panels * self.input_bytes
            return self.weight_bytes + again
        return self.weight_bytes * -(-self.tiles // self._fitting("mn")) + self.input_bytes

    @property
    def deep(self) -> bool:
        """True if a panel exceeds the first-level cache by far."""
        return self.weight_bytes / self.panels >= 4 * self.target.l1_bytes

    def value(self, order: str, mb: int, nb: int) -> float:
        """Cores kept busy, less the pool's work, what is read again, and what is moved."""
        row_sizes, panel_sizes = _sizes(self.tiles, mb), _sizes(self.panels, nb)
        fitting = self.fitting[order]
        in_turn = order == PANELS_INSIDE and self._shared and not self.kept
        again = 0.0 if in_turn else log2(min(fitting, self.tiles) / min(mb, fitting, self.tiles))
        if order == "mn" and not self.depthwise:
            again += log2(self.panels / min(nb, self.panels))
        count = len(row_sizes) * len(panel_sizes) * self.copies
        cores = self.target.num_cores
        lost = REREAD * again
        if cores > 1:
            by_rows = order != "nm" or len(panel_sizes) == 1
            lost += TASK_CYCLES * count / self.cycles
            moved = self._moved(order, by_rows and len(row_sizes) >= cores)
            lost += moved_cycles(moved, self.target) / self.cycles
        if count > 32 * cores:
            return 1.0 - lost
        outer, inner = (panel_sizes, row_sizes) if order == "nm" else (row_sizes, panel_sizes)
        tasks = [m * n for m in outer for n in inner] * self.copies
        own = moved_cycles(self.input_bytes + self.output_bytes, self.target)
        return _busy(tasks, cores, 1 + own / self.cycles) - lost

    def _moved(self, order: str, by_rows: bool) -> float:
        """Bytes that all cores fetch beyond their share.

        A core that writes a long run of each pixel's channels fetches the lines behind it too,
        which others write: 7² × 512 by halves of the channels takes as long on two cores as on one.
        """
        beyond = self.target.num_cores - 1
        exchanged = self.input_bytes + self.output_bytes
        if self.copies >= self.target.num_cores:
            return 0.0
        if order == PANELS_INSIDE and (by_rows or self.kept):
            return 0.0
        if self.depthwise and order != PANELS_INSIDE:
            return 0.0 if by_rows == self._by_rows else float(exchanged) * beyond
        weights = self.weight_bytes * self.target.reread_share
        return float(weights if by_rows else exchanged) * beyond


def _kernel_of(
    c: Contraction,
    target: Target,
    lanes: int,
    register_tile: tuple[int, int, int],
    step_cycles: float,
) -> _Kernel:
    rw, rh, nv = register_tile
    second, last = row_axes(c)
    axis, tile = (second, rh) if second else (last, rw)
    depth = prod(a.extent for a in c.reduce)
    element = dtype_bytes(c.rhs.load.dtype)
    copies = prod(a.extent for a in (*c.outer, *c.rows) if a not in (second, last))
    rows = prod(a.extent for a in c.rows)
    depthwise = shares_vector(c)
    return _Kernel(
        target,
        depthwise,
        whole_pixels=shares_lines(c, target),
        undivided=depthwise and target.outruns_lines and not waits_in_turn(c, target),
        rows=rows,
        channels=c.vector.extent,
        tiles=panel_count(axis.extent, tile) if axis else 1,
        panels=panel_count(c.vector.extent, nv * lanes),
        copies=copies,
        tile_bytes=tile * (_image_row_bytes(c) if depthwise else _left_row_bytes(c)),
        gathered_bytes=rows * depth * element,
        input_bytes=prod(c.lhs.load.buffer.shape) * element,
        output_bytes=rows * c.vector.extent * prod(a.extent for a in c.outer) * element,
        weight_bytes=depth * c.vector.extent * element,
        cycles=step_cycles * depth * copies,
    )


def _image_row_bytes(c: Contraction) -> float:
    """Bytes of the left operand for each row of the outermost axis of a tile, all lanes of it."""
    second, last = row_axes(c)
    inner = {a.position for a in (last if second else None, c.vector) if a is not None}
    around = prod(a.extent for a in (*c.outer, *c.rows) if a.position not in inner)
    shape = c.lhs.load.buffer.shape
    return prod(shape) / around * dtype_bytes(c.lhs.load.dtype)


def _left_row_bytes(c: Contraction) -> float:
    """Room in the second level for what a row of the outermost axis of a tile reads of the left
    operand; of images with a window for one pixel, as neighbours read what it read.

    Pixels of 1 KB that lie 2 KB apart meet in half of the sets: 56² × 256→512 of stride 2 takes
    0.96 × the time by blocks of a quarter as many rows (Zen 5).
    """
    pixel = prod(a.extent for a in c.reduce) * dtype_bytes(c.lhs.load.dtype)
    second, last = row_axes(c)
    if second is None or last is None or taps(c, second) * taps(c, last) > 1:
        return pixel
    apart = bytes_apart(c, last)
    return last.extent * max(pixel, gcd(apart, L2_WAY_BYTES) if apart else 0)


def _sizes(extent: int, block: int) -> list[int]:
    """The sizes of the blocks that an extent is cut into."""
    return [block] * (extent // block) + [extent % block] * (extent % block > 0)


def _busy(tasks: list[int], cores: int, taken: float) -> float:
    """The share of the cores' time that tasks fill: each core runs its part, then what is left.

    A task that another core takes lasts ``taken`` times as long: its data are in the first one's
    cache.
    """
    bounds = [len(tasks) * core // cores for core in range(cores + 1)]
    parts = [tasks[a:b][::-1] for a, b in pairwise(bounds)]
    until = [0.0] * cores
    for _ in tasks:
        core = min(range(cores), key=until.__getitem__)
        own = parts[core]
        until[core] += own.pop() if own else taken * max(parts, key=len).pop(0)
    return sum(tasks) / (cores * max(until))
