"""Products on the tensor cores of ``sm_90a`` by warpgroups: float16, bfloat16, and float32 where a
target allows TF32.

blocks of (groups · 64) × columns elements of the result, four warps a group:
  each group: 64 × columns sums, in registers
  for steps of 128, 64 or 32 bytes of terms:   the ``swizzle``, and the bytes of a tile's row
    the threads fill tiles of A and B       shared, swizzled, copied asynchronously, ``stages``
    sums += A[64, 16] · B[16, columns]      up to four instructions, which end before the next step
                                            begins, or if they ``overlap`` before the one after
  if ``wide``: the four threads of a row exchange parts of four tiles, as in ``gpu_mma``
  epilogue → out

The instruction for TF32 takes 8 terms, and wants them side by side in shared memory. Where columns
of B stand so it computes outᵀ = Bᵀ · Aᵀ, and the threads load Bᵀ as fragments.

Several blocks may ``split`` the terms of a tile: their sums are parts, which another kernel adds
(``parts.py``). Or they are a cluster, whose sums are ``joined``: each block gets those of its share
of the tile, some columns of the upper or lower eight of 16 rows, and stores their sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import gcd

import numpy as np
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu import wgmma as w
from tunefarm.compiler.gpu.archs import MAX_CLUSTER, MAX_GRID, REGISTERS, WARP
from tunefarm.compiler.gpu.intrinsics import JOINED, QUAD
from tunefarm.compiler.gpu.launches import LINE
from tunefarm.compiler.gpu.mma import COLUMNS, ROWS, exchanged, fragment_place, square_place
from tunefarm.compiler.gpu.space import tiled
from tunefarm.compiler.gpu.space.common import loop
from tunefarm.compiler.gpu.space.parts import Parts
from tunefarm.compiler.gpu.space.product import Product, Tiles, product_program
from tunefarm.compiler.gpu.space.tiled import (
    OTHER_REGISTERS,
    Footprint,
    Tiling,
    blocks_of,
    exchange_width,
    fits_grid,
    product,
)
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.columns import Mask, Numbers, cheapest, whole
from tunefarm.compiler.space.config import Columns, Config, Constraint, Knob, Nest, SketchSpace
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.ir import (
    CLUSTER_AXIS,
    Block,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Intrinsic,
    Load,
    LoopKind,
    Stmt,
    Store,
    Var,
    binary,
)
from tunefarm.compiler.tir.schedule import find_block
from tunefarm.compiler.tir.schedule.tree import store_of
from tunefarm.compiler.tir.visit import seq, substitute, transform_expr

NAME, VERSION = "gpu_wgmma", 5
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
# Fitted to 560 kernels of 14 products on an H200; bytes and clocks are those of a multiprocessor.
FED_BYTES = 44  # that it gets a clock from the second-level cache, when all of them ask
STORED_BYTES = 11  # of results that it stores in a clock
LATENCY = 1300  # clocks until the tiles of a step are there
BEGIN = 2000  # clocks of a block before its first product
COMBINE = 4000  # clocks of the kernel that adds parts, beside its traffic
THREE_GROUPS = 1.25  # how much longer products take in three groups
CLUSTERED = 0.3  # how much longer a step takes for each more block of a cluster
JOINED_BYTES = 40  # that it gets a clock from others' shared memory
MEET = 1400  # clocks until the threads of all blocks of a cluster have met
MOST_JOINED = 3 * 192  # groups · columns of a tile whose sums are joined
CLUSTER_ROOM = 7 / 8  # of the multiprocessors, that clusters of more than two blocks find at once
KNOBS = (
    Knob("groups", (1, 2, 3)),
    Knob("columns", w.COLUMNS),
    Knob("stages", (2, 3, 4, 5, 6)),
    Knob("overlap", (0, 1)),
    Knob("swizzle", tuple(w.SWIZZLES)),
    Knob("split", SPLITS),
    Knob("joined", (0, 1)),
)


def wide_of(p: Product) -> Knob:
    """Whether threads exchange what they hold, where their rows are long enough for that."""
    return Knob("wide", (0, 1) if p.result_vector >= 4 and not turned(p) else (0,))


def turned(p: Product) -> bool:
    """Whether warpgroups compute the transposed product, their A the operand B in registers: its
    columns stand side by side, and the instruction for its dtype reads only terms so from shared
    memory. Then ``groups`` are those of columns, and ``columns`` counts rows."""
    return p.dtypes[1] == "float32" and p.along[1] != "k"


@dataclass(frozen=True, slots=True)
class Knobs:
    """A config of the sketch."""

    groups: int
    columns: int
    stages: int
    overlap: int = 0
    wide: int = 0
    swizzle: int = max(w.SWIZZLES)
    split: int = 1
    joined: int = 0


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs; None for GPUs without such instructions, and for other dtypes."""
    p = computed(function, target)
    if p is None:
        return None
    default: Config = {"sketch": NAME, **cheapest_of(p, target)[0]}
    return SketchSpace(
        NAME, VERSION, knobs_of(p), constraints_of(p, target), default,
        lambda k: nest_of(p, target, k),
    )  # fmt: skip


def knobs_of(p: Product) -> tuple[Knob, ...]:
    return (*KNOBS, wide_of(p))


def cheapest_of(p: Product, target: Target) -> tuple[dict[str, int], float]:
    """The config that costs least by the model, and its clocks."""
    knobs = knobs_of(p)
    fixed = {"overlap": 1, "swizzle": max(w.SWIZZLES), "wide": int(knobs[-1].choices[-1])}
    choices = {k.name: [int(c) for c in k.choices] for k in knobs if k.name not in fixed}
    return cheapest(choices, fixed, constraints_of(p, target), lambda k: cost_of(p, target, k))


def computed(function: Function, target: Target) -> Product | None:
    """The product that a function is, if warpgroups of a target compute it."""
    p = product(function) if target.kind == "cuda" and target.takes_wgmma else None
    return p if p is not None and computes(p, target) and p.columns >= w.COLUMNS[0] else None


def computes(p: Product, target: Target) -> bool:
    """True if there is an instruction for the dtypes of a product; that of TF32 rounds float32,
    where that is allowed."""
    operands = {m.operand for m in w.WGMMAS.values()}
    allowed = p.dtypes[0] != "float32" or target.rounds_to_tf32
    same = p.dtypes[0] == p.dtypes[1] and p.sum_dtype == "float32"
    return same and allowed and p.dtypes[0] in operands


def tile_of(p: Product, k: Columns) -> tuple[Numbers, Numbers]:
    """Rows and columns of a block's tile of the result."""
    of_groups, others = whole(k, "groups") * w.ROWS, whole(k, "columns")
    return (others, of_groups) if turned(p) else (of_groups, others)


def footprint_of(k: Columns) -> Footprint:
    """Sums in registers, tiles of all stages in shared memory. Warps that only fill give registers
    away where they are too few: a thread's are the mean then."""
    rows, columns = whole(k, "groups") * w.ROWS, whole(k, "columns")
    groups, own = whole(k, "groups"), columns // 2 + OTHER_REGISTERS
    filling = whole(k, "producer") if "producer" in k else 0
    threads = (groups + filling) * w.GROUP * WARP
    split = whole(k, "split")
    sums = 4 * rows * columns * whole(k, "joined") * (split - 1) // split  # of other blocks
    mean = -(-(groups * own + filling * OTHER_REGISTERS) // (groups + filling))
    return Footprint(
        threads,
        np.where(own * threads > REGISTERS, mean, own),
        np.maximum(whole(k, "stages") * (rows + columns) * whole(k, "swizzle"), sums)
        + LINE * whole(k, "joined"),
    )


def constraints_of(p: Product, target: Target) -> tuple[Constraint, ...]:
    def registers_fit(k: Columns) -> Mask:
        f = footprint_of(k)
        return f.registers * f.threads <= REGISTERS

    def shared_fits(k: Columns) -> Mask:
        return footprint_of(k).shared_bytes <= target.gpu.shared_bytes

    return (
        Constraint("registers", registers_fit),
        Constraint("shared memory", shared_fits),
        Constraint("overlap", stages_overlap),
        parts_of(p, target),
        joins_of(p),
        fits_grid(p, lambda k: tile_of(p, k)),
    )


def stages_overlap(k: Columns) -> Mask:
    """Products that overlap keep two tiles, while another is filled."""
    return (whole(k, "overlap") == 0) | (whole(k, "stages") >= 3)


def parts_of(p: Product, target: Target) -> Constraint:
    """Terms are shared out where the tiles alone are too few for a GPU, two steps to a block."""

    def holds(k: Columns) -> Mask:
        split = whole(k, "split")
        few = split * blocks_of(p, tile_of(p, k)) <= 2 * target.num_cores
        long = 2 * split * whole(k, "swizzle") <= p.depth * dtype_bytes(p.dtypes[0])
        return (split == 1) | (few & long & (p.batch * split <= MAX_GRID[2]))

    return Constraint("parts", holds)


def joins_of(p: Product) -> Constraint:
    """The blocks that share terms out are a cluster, and share the tile out in whole columns of
    eight; those of other rows do not share B then. Of the largest tiles threads have no registers
    left to choose among shares: they would spill 500 bytes each."""

    def holds(k: Columns) -> Mask:
        split, cluster = whole(k, "split"), whole(k, "cluster") if "cluster" in k else 1
        columns, groups = whole(k, "columns"), whole(k, "groups")
        _, across = shares_of(columns, split)
        fits = (split > 1) & (split <= MAX_CLUSTER) & (columns // COLUMNS % across == 0)
        fits &= groups * columns <= MOST_JOINED
        return (whole(k, "joined") == 0) | (fits & (cluster == 1) & (not turned(p)))

    return Constraint("joined", holds)


def shares_of(columns: Numbers, split: Numbers) -> tuple[Numbers, Numbers]:
    """Into how many rows of eight in 16, and into how many of columns, a tile is shared out: by
    columns alone where four threads that exchange have enough, whose sums go out as they lie."""
    whole_rows = columns % (QUAD * COLUMNS * split) == 0
    halves = np.where(whole_rows | (split % 2 == 1), 1, 2)
    return halves, split // halves


def cost_of(p: Product, target: Target, k: Columns) -> Numbers:
    """The clocks of the busiest multiprocessor: products, or the bytes that they wait for."""
    rows, columns = tile_of(p, k)
    split, stages, overlap = (whole(k, name) for name in ("split", "stages", "overlap"))
    cluster = whole(k, "cluster") if "cluster" in k else 1
    row_bytes = whole(k, "swizzle")
    part = -(-p.depth * dtype_bytes(p.dtypes[0]) // (row_bytes * split))  # steps of a block
    multiplied = rows * columns * row_bytes / w.RATE_BYTES
    multiplied = multiplied * np.where(whole(k, "groups") == 3, THREE_GROUPS, 1.0)
    fed = (rows + columns) * row_bytes / FED_BYTES
    waited = LATENCY / np.maximum(stages - 1 - overlap, 1)
    step = np.maximum(np.maximum(multiplied, fed), waited) + 0.2 * waited
    step = step + 0.2 * multiplied * (1 - overlap)
    step = step * (1.0 + CLUSTERED * (cluster - 1))
    large = whole(k, "joined") * split > 2  # clusters, which leave out some multiprocessors
    cores = np.where(large, max(int(target.num_cores * CLUSTER_ROOM), 1), target.num_cores)
    each = -(-split * blocks_of(p, (rows, columns)) // cores)
    at_once = np.minimum(footprint_of(k).resident(target), each)
    turns = -(-each // at_once)
    begun = np.where(whole(k, "resident") > 0, 1, turns) if "resident" in k else turns
    size = dtype_bytes(p.contraction.program.params[-1].dtype)
    boxes = whole(k, "store_boxes") if "store_boxes" in k else 0
    joined = whole(k, "joined")
    alone = (split > 1) & (joined == 0)
    stored = np.where(alone, 4.0, size * (2.0 - np.maximum(whole(k, "wide"), boxes)))
    end = rows * columns * stored / (STORED_BYTES * np.where(joined > 0, split, 1))
    end = end + joined * (rows * columns * 4.0 * (split - 1) / split / JOINED_BYTES + 2 * MEET)
    added = 8.0 * p.batch * p.rows * p.columns * split / (target.num_cores * FED_BYTES)
    combined = np.where(alone, COMBINE + added, 0.0)
    return each * part * step + begun * BEGIN + turns * end + combined


def nest_of(
    p: Product,
    target: Target,
    k: Columns,
    cost: Callable[[Product, Target, Columns], Numbers] = cost_of,
) -> Nest:
    own = np.full(len(whole(k, "groups")), w.ROWS), whole(k, "columns")
    own = own[::-1] if turned(p) else own
    steps = {**k, "bk": whole(k, "swizzle") // dtype_bytes(p.dtypes[0])}
    more = footprint_of(k).columns(target)
    return tiled.nest_of(p, steps, Tiling(tile_of(p, k), own, cost(p, target, k), more))


# --- the kernel ---------------------------------------------------------------------------------


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if no such instruction computes the function."""
    p = product(function)
    if p is None or not computes(p, target):
        raise ScheduleError("the workload is no product that warpgroups compute")
    k = Knobs(**{name: int(value) for name, value in config.items() if name != "sketch"})
    check_stages(k)
    check_joined(p, k)
    return WgmmaKernel(p, k).whole_program(target)


def check_stages(k: Knobs) -> None:
    """ScheduleError if there are too few stages for products that overlap."""
    if k.overlap and k.stages < 3:
        raise ScheduleError(f"products overlap where there are 3 stages or more, not {k.stages}")


def check_joined(p: Product, k: Knobs) -> None:
    """ScheduleError if the blocks that share terms out cannot be a cluster."""
    if not k.joined:
        return
    across = _shares_of(k)[1]
    if turned(p) or not 1 < k.split <= MAX_CLUSTER or k.columns // COLUMNS % across:
        raise ScheduleError(
            f"a cluster of {k.split} blocks cannot share out {k.columns} columns of a tile; let "
            f"2 to {MAX_CLUSTER} blocks have whole eights of them, of a product that is not turned"
        )


def _shares_of(k: Knobs) -> tuple[int, int]:
    """``shares_of`` a config; the whole tile of each block where sums are not joined."""
    if not k.joined:
        return 1, 1
    halves, across = shares_of(np.array(k.columns), np.array(k.split))
    return int(halves), int(across)


class WgmmaKernel:
    """Writes the kernel of a product whose operands are gathered as ``product_program`` says.

    ``slot`` is the index of what a step uses of the tiles, if they are arrays of several.
    """

    slot: tuple[Expr, ...] = ()

    def __init__(self, p: Product, k: Knobs) -> None:
        self.p, self.k = p, k
        self.turned, self.item_bytes = turned(p), dtype_bytes(p.dtypes[0])
        of_groups, others = k.groups * w.ROWS, k.columns
        self.rows, self.columns = (others, of_groups) if self.turned else (of_groups, others)
        self.depth = k.swizzle // self.item_bytes  # terms of a step, elements of a tile's row
        self.chunk = gcd(self.columns, self.depth)  # columns of a row, where they are side by side
        self.steps = -(-p.depth // (self.depth * k.split))  # of a block
        chunk = w.CHUNK_BYTES // self.item_bytes
        vectors = p.vector(0, chunk), p.vector(1, chunk)
        alone = k.split > 1 and not k.joined
        exchanges = k.wide and not alone and not self.turned
        self.halves, across = _shares_of(k)
        self.tiles_across = k.columns // COLUMNS // across
        self.width = exchange_width(p, gcd(QUAD, self.tiles_across)) if exchanges else 1
        together = 2 * self.width if alone or p.columns % 2 == 0 else 1
        depth = self.depth * self.steps * k.split
        self.tiles = Tiles(self.rows, self.columns, depth, *vectors, together)
        self.source = product_program(p, self.tiles)
        self.by_terms = p.along[1] == "k"
        self.instruction = next(
            m
            for m in w.WGMMAS.values()
            if (m.operand, m.columns, m.overlaps) == (p.dtypes[0], k.columns, k.overlap)
        )
        self.number, self.x = Var("batch"), Var("block_column")
        self.z: Expr = self.number
        self.y: Expr = Var("block_row")
        self.column: Expr = self.x
        self.group, self.warp, self.lane = Var("group"), Var("warp"), Var("lane")
        self.step = Var("step")
        self.now: Expr = self.step  # of all blocks'
        self.parts: Parts | None = None
        self.share: Expr = Const(0)
        if alone:
            self.parts = Parts(p, k.split, (self.rows, self.columns))
            self.z, self.share = self.number // k.split, self.number % k.split
        self.member = Var("block")
        if k.joined:
            self.share = self.member
        if k.split > 1:
            self.now = self.share * self.steps + self.step
        copies = k.stages if self.steps > 1 else 1
        by_columns = (self.columns // self.chunk, self.depth, self.chunk)
        shape = (self.columns, self.depth) if self.by_terms else by_columns
        self.a = Buffer("A", (self.rows, self.depth), p.dtypes[0], "shared", 0, copies)
        self.b = Buffer("B", shape, p.dtypes[1], "shared", 0, copies)
        self.c = Buffer("C", (k.columns // 2,), "float32", "register")
        self.joined = Buffer("J", (k.columns // 2 // k.split,), "float32", "register")
        self.exchanged = Buffer("T", (2 * self.width,), "float32", "register")

    def whole_program(self, target: Target) -> PrimFunc:
        """The program, with the kernel that adds its parts where its terms are shared out."""
        program = self.program()
        return self.parts.followed(program, target) if self.parts is not None else program

    def program(self) -> PrimFunc:
        step = seq(self.fill("A"), self.fill("B"), self.multiply())
        body = seq(self.clear(), For(self.step, Const(self.steps), step), self.store())
        return self.on_threads(body, self.k.groups, (self.a, self.b, *self.own()))

    def own(self) -> tuple[Buffer, ...]:
        """What each thread has of its own."""
        joined = (self.joined,) if self.k.joined else ()
        exchanged = (self.exchanged,) if self.width > 1 or self.turned else ()
        return (self.c, *joined, *exchanged)

    def clear(self) -> Stmt:
        zero = Const(0.0, "float32")
        return loop("e", self.k.columns // 2, lambda e: Store(self.c, (e,), zero))

    def on_threads(self, body: Stmt, groups: int, buffers: tuple[Buffer, ...]) -> PrimFunc:
        """The program that runs a body on every thread of every block."""
        threads = (
            (self.lane, WARP, "threadIdx.x"),
            (self.warp, w.GROUP, "threadIdx.y"),
            (self.group, groups, "threadIdx.z"),
        )
        alone = 1 if self.k.joined else self.k.split
        batches = (self.number, self.p.batch * alone, "blockIdx.z")
        for var, extent, axis in (*threads, *self.grid(), batches):
            body = For(var, Const(extent), body, LoopKind.THREAD, axis=axis)
        return replace(self.source, body=body, buffers=buffers)

    def grid(self) -> tuple[tuple[Var, int, str], ...]:
        """The loops over blocks of rows and columns, from the inside out: variables, how many there
        are, axes."""
        assert isinstance(self.y, Var)
        members = (self.member, self.k.split, CLUSTER_AXIS)
        return (
            *((members,) if self.k.joined else ()),
            (self.x, -(-self.p.columns // self.columns), "blockIdx.x"),
            (self.y, -(-self.p.rows // self.rows), "blockIdx.y"),
        )

    def node(self, name: str) -> Block:
        return find_block(self.source, name)

    # --- tiles ---------------------------------------------------------------------------------

    def fill(self, name: str) -> Stmt:
        """Fill a tile, the threads side by side along its rows."""
        k, node = self.k, self.node(name)
        vector = self.tiles.a_vector if name == "A" else self.tiles.b_vector
        rows = {"A": self.rows, "B": self.columns if self.by_terms else self.depth}[name]
        row_length = self.columns if name == "B" and not self.by_terms else self.depth
        in_row, threads = row_length // vector, k.groups * w.GROUP * WARP
        count = rows * in_row
        turns = -(-count // threads)

        def body(turn: Expr) -> Stmt:
            number = turn * threads + (self.group * w.GROUP + self.warp) * WARP + self.lane
            row, column = number // in_row % rows, number % in_row
            stmt = loop(
                "part",
                vector,
                lambda part: self.filled(name, node, row, column, vector, part),
                LoopKind.VECTORIZED,
            )
            return stmt if count % threads == 0 else If(number < count, stmt)

        return loop("turn", turns, body, LoopKind.UNROLLED if turns <= 16 else LoopKind.SERIAL)

    def filled(
        self, name: str, node: Block, row: Expr, number: Expr, vector: int, part: Expr
    ) -> Stmt:
        """An element of a vector of a tile: of A a row's terms, of B a column's terms or a term's
        columns."""
        element = number * vector + part
        term = self.now * self.depth + (element if name == "A" or self.by_terms else row)
        places: dict[str, Expr] = {"b": self.z, "k": term}
        if name == "A":
            places["m"] = self.y * self.rows + row
        else:
            places["n"] = self.column * self.columns + (row if self.by_terms else element)
        store = store_of(node)
        value = substitute(store.value, {i.var: places[i.var.name] for i in node.iters})
        if name == "A" or self.by_terms:
            tile = self.a if name == "A" else self.b
            return Store(tile, (row, self.swizzled(row, element, self.depth)), value)
        in_row = self.chunk // vector
        inside = self.swizzled(row, number % in_row * vector + part, self.chunk)
        return Store(self.b, (number // in_row, row, inside), value)

    def swizzled(self, row: Expr, element: Expr, length: int) -> Expr:
        """Where an element of a row of so many of a tile lies in it."""
        return w.swizzled(row % 8, element, length, self.item_bytes)

    def multiply(self) -> Stmt:
        """C += A · B, or Cᵀ += Bᵀ · Aᵀ, as many terms at a time as an instruction has: all elements
        of a thread by one."""
        g, t, depth = self.lane // 4, self.lane % 4, self.instruction.depth

        def row_terms(tile: Buffer, eight: Expr, row: Expr, term: Expr) -> Load:
            return Load(tile, (*self.slot, eight + row, self.swizzled(row, term, self.depth)))

        def term_columns(first: Expr, column: Expr, term: Expr) -> Load:
            place = (first + column // self.chunk, term)
            inside = self.swizzled(term, column % self.chunk, self.chunk)
            return Load(self.b, (*self.slot, *place, inside))

        def left(e: Expr, term: Expr) -> Load:
            if self.turned:
                column = self.warp * ROWS + g * 2 + e % 4 // 2
                return term_columns(self.group * (w.ROWS // self.chunk), column, term)
            first = self.group * w.ROWS + self.warp * ROWS
            return row_terms(self.a, first + e % 4 // 2 * 8, g, term)

        def right(e: Expr, term: Expr) -> Load:
            eight, inside = e // 4 * 8, t * 2 + e % 2
            if self.turned:
                return row_terms(self.a, eight, inside, term)
            if self.by_terms:
                return row_terms(self.b, eight, inside, term)
            return term_columns(Const(0), eight + inside, term)

        def product(k: Expr, e: Expr) -> Stmt:
            terms = [k * depth + n for n in range(depth)]
            factors = [left(e, n) for n in terms] + [right(e, n) for n in terms]
            value = Intrinsic(self.instruction.name, (Load(self.c, (e,)), *factors), "float32")
            return Store(self.c, (e,), value)

        count = self.instruction.elements
        return loop(
            "k",
            self.depth // depth,
            lambda k: loop("e", count, lambda e: product(k, e), LoopKind.VECTORIZED),
        )

    # --- the result ----------------------------------------------------------------------------

    def store(self) -> Stmt:
        """The epilogue, for each row of a thread's and each group of tiles of columns."""
        if self.turned:
            return self.store_turned()
        groups, rows = self.tiles_across // self.width, 2 // self.halves
        stores = loop("h", rows, lambda h: loop("j", groups, lambda j: self.part(h, j)))
        return seq(self.join(), stores) if self.k.joined else stores

    def join(self) -> Stmt:
        """The sums of this block's share of the tile: of all blocks of the cluster."""
        rows, count = 2 // self.halves, self.k.columns // 2 // self.k.split

        def held(share: int, e: Expr) -> Load:
            tile = share // self.halves * self.tiles_across + e // (2 * rows)
            h = share % self.halves if self.halves > 1 else e // 2 % 2
            return Load(self.c, (tile * 4 + h * 2 + e % 2,))

        def element(e: Expr) -> Stmt:
            shares = tuple(held(share, e) for share in range(self.k.split))
            return Store(self.joined, (e,), Intrinsic(JOINED, shares, "float32"))

        return loop("e", count, element, LoopKind.VECTORIZED)

    def part(self, h: Expr, j: Expr) -> Stmt:
        """What a thread stores at once."""
        width, quad, t = self.width, self.lane // QUAD, self.lane % QUAD
        first = self.y * self.rows + self.group * w.ROWS + self.warp * ROWS
        sums, rows, start = self.c, 2, self.column * self.columns
        if self.k.joined:
            sums, rows = self.joined, 2 // self.halves
            start += self.share // self.halves * (self.tiles_across * COLUMNS)
            first += self.share % self.halves * 8

        def held(e: Expr) -> list[Expr]:
            own = h * 2 + e % 2 if rows > 1 else e % 2
            return [Load(sums, ((j * width + n) * 2 * rows + own,)) for n in range(width)]

        def exchange(e: Expr) -> Stmt:
            return Store(self.exchanged, (e,), exchanged(held(e), t, e))

        def element(e: Expr) -> Stmt:
            if width == 1:
                row, column = fragment_place(Const(0), j, quad, t, h * 2 + e)
            else:
                row, column = square_place(width, Const(0), j, h, quad, t, e)
            value = held(e)[0] if width == 1 else Load(self.exchanged, (e,))
            return self.told(first + row, start + column, value)

        kind = LoopKind.VECTORIZED if self.tiles.out_vector > 1 else LoopKind.UNROLLED
        stores = loop("e", 2 * width, element, kind)
        if width == 1:
            return stores
        return seq(loop("e", 2 * width, exchange, LoopKind.VECTORIZED), stores)

    def told(self, row: Expr, column: Expr, value: Expr) -> Stmt:
        """What becomes of a sum: a part of it, or the result's element."""
        if self.parts is None:
            return self.result(row, column, value)
        return Store(self.parts.buffer, (self.share, self.z, row, column), value)

    def store_turned(self) -> Stmt:
        """The epilogue of a transposed product: a thread has two columns side by side of a row."""
        kind = LoopKind.VECTORIZED if self.tiles.out_vector > 1 else LoopKind.UNROLLED
        first = self.column * self.columns + self.group * w.ROWS + self.warp * ROWS
        column = first + self.lane // QUAD * 2

        def pair(j: Expr, c: Expr) -> Stmt:
            row = self.y * self.rows + j * COLUMNS + self.lane % QUAD * 2 + c

            def taken(h: Expr) -> Stmt:
                return Store(self.exchanged, (h,), Load(self.c, (j * 4 + h * 2 + c,)))

            def element(h: Expr) -> Stmt:
                return self.told(row, column + h, Load(self.exchanged, (h,)))

            return seq(loop("h", 2, taken), loop("h", 2, element, kind))

        tiles = self.k.columns // COLUMNS
        return loop("j", tiles, lambda j: loop("c", 2, lambda c: pair(j, c)))

    def result(self, row: Expr, column: Expr, value: Expr) -> If:
        """An element of the result whose sum is a value, if it exists."""
        p, node, vector = self.p, self.node("out"), self.tiles.out_vector
        store = store_of(node)
        total = next(b for b in self.source.buffers if b.name == "C")
        at: dict[str, Expr] = {"b": self.z, "m": row, "n": column}
        values = {i.var: at[i.var.name] for i in node.iters}

        def rule(e: Expr) -> Expr | None:
            return value if isinstance(e, Load) and e.buffer is total else None

        made = substitute(transform_expr(store.value, rule), values)
        place = tuple(substitute(i, values) for i in store.indices)
        inside = column // vector < p.columns // vector
        return If(binary("and", row < p.rows, inside), Store(store.buffer, place, made))
