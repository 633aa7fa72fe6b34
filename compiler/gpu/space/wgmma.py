"""Products on the tensor cores of ``sm_90a`` by warpgroups: float16 and bfloat16.

blocks of (groups · 64) × columns elements of the result, four warps a group:
  each group: 64 × columns sums, in registers
  for steps of 64, 32 or 16 terms:          rows of so many bytes as the ``swizzle`` has
    the threads fill tiles of A and B       shared, swizzled, copied asynchronously, ``stages``
    sums += A[64, 16] · B[16, columns]      up to four instructions, which end before the next step
                                            begins, or if they ``overlap`` before the one after
  if ``wide``: the four threads of a row exchange parts of four tiles, as in ``gpu_mma``
  epilogue → out

**No GPU has run any of this**: a target asks for it by ``-wgmma=untested``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import gcd

import numpy as np
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu import wgmma as w
from tunefarm.compiler.gpu.archs import MAX_GRID, REGISTERS, WARP
from tunefarm.compiler.gpu.intrinsics import QUAD
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

NAME, VERSION = "gpu_wgmma", 4
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
FED_BYTES = 42  # that a multiprocessor gets a clock from the second-level cache, all of them at work
LATENCY = 1200  # clocks until a step's tiles are there
BEGIN = 1800  # clocks of a block before its first product
COMBINE = 3000  # clocks of the kernel that adds parts, beside its traffic
KNOBS = (
    Knob("groups", (1, 2, 3)),
    Knob("columns", w.COLUMNS),
    Knob("stages", (2, 3, 4, 5, 6)),
    Knob("overlap", (0, 1)),
    Knob("swizzle", tuple(w.SWIZZLES)),
    Knob("split", SPLITS),
)


def wide_of(p: Product) -> Knob:
    """Whether threads exchange what they hold, where their rows are long enough for that."""
    return Knob("wide", (0, 1) if p.result_vector >= 4 else (0,))


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

    @property
    def rows(self) -> int:
        return self.groups * w.ROWS

    @property
    def depth(self) -> int:
        """Terms of a step, and elements of a row of a tile."""
        return self.swizzle // w.ITEM_BYTES

    @property
    def chunk(self) -> int:
        """Columns of a row of B's tile, where they stand side by side."""
        return gcd(self.columns, self.depth)


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs; None for GPUs without such instructions, and for other dtypes."""
    p = computed(function, target)
    if p is None:
        return None
    constraints = constraints_of(p, target)
    knobs = (*KNOBS, wide_of(p))
    fixed = {"overlap": 1, "swizzle": max(w.SWIZZLES), "wide": int(knobs[-1].choices[-1])}
    choices = {k.name: [int(c) for c in k.choices] for k in knobs if k.name not in fixed}
    found, _ = cheapest(choices, fixed, constraints, lambda k: cost_of(p, target, k))
    default: Config = {"sketch": NAME, **found}
    return SketchSpace(NAME, VERSION, knobs, constraints, default, lambda k: nest_of(p, target, k))


def computed(function: Function, target: Target) -> Product | None:
    """The product that a function is, if warpgroups of a target compute it."""
    p = product(function) if target.kind == "cuda" and target.takes_wgmma else None
    return p if p is not None and computes(p) and p.columns >= w.COLUMNS[0] else None


def computes(p: Product) -> bool:
    """True if there is an instruction for the dtypes of a product."""
    operands = {m.operand for m in w.WGMMAS.values()}
    return p.dtypes[0] == p.dtypes[1] and p.dtypes[0] in operands and p.sum_dtype == "float32"


def tile_of(k: Columns) -> tuple[Numbers, Numbers]:
    return whole(k, "groups") * w.ROWS, whole(k, "columns")


def footprint_of(k: Columns) -> Footprint:
    """Sums in registers, tiles of all stages in shared memory. Warps that only fill give registers
    away where they are too few: a thread's are the mean then."""
    rows, columns = tile_of(k)
    groups, own = whole(k, "groups"), columns // 2 + OTHER_REGISTERS
    filling = whole(k, "producer") if "producer" in k else 0
    threads = (groups + filling) * w.GROUP * WARP
    mean = -(-(groups * own + filling * OTHER_REGISTERS) // (groups + filling))
    return Footprint(
        threads,
        np.where(own * threads > REGISTERS, mean, own),
        whole(k, "stages") * (rows + columns) * whole(k, "swizzle"),
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
        fits_grid(p, tile_of),
    )


def stages_overlap(k: Columns) -> Mask:
    """Products that overlap keep two tiles, while another is filled."""
    return (whole(k, "overlap") == 0) | (whole(k, "stages") >= 3)


def parts_of(p: Product, target: Target) -> Constraint:
    """Terms are shared out where the tiles alone are too few for a GPU, two steps to a block."""

    def holds(k: Columns) -> Mask:
        split = whole(k, "split")
        few = split * blocks_of(p, tile_of(k)) <= 2 * target.num_cores
        long = 2 * split * (whole(k, "swizzle") // w.ITEM_BYTES) <= p.depth
        return (split == 1) | (few & long & (p.batch * split <= MAX_GRID[2]))

    return Constraint("parts", holds)


def cost_of(p: Product, target: Target, k: Columns) -> Numbers:
    """The clocks of the busiest multiprocessor: products, or the bytes that they wait for.

    Measured on an H200: 4096³ of float16 in tiles of 128 × 256 takes 194 µs, of 128 × 128 247 and
    of 128 × 64 287, which is what the second-level cache gives.
    """
    rows, columns = tile_of(k)
    split, stages, overlap = (whole(k, name) for name in ("split", "stages", "overlap"))
    cluster = whole(k, "cluster") if "cluster" in k else 1
    row_bytes = whole(k, "swizzle")
    part = -(-p.depth * w.ITEM_BYTES // (row_bytes * split))  # steps of a block
    multiplied = rows * columns * row_bytes / w.RATE_BYTES
    fed = (rows + columns / cluster) * row_bytes / FED_BYTES
    waited = LATENCY / np.maximum(stages - 1 - overlap, 1)
    step = np.maximum(np.maximum(multiplied, fed), waited) + 0.2 * multiplied * (1 - overlap)
    each = -(-split * blocks_of(p, (rows, columns)) // target.num_cores)
    at_once = np.minimum(footprint_of(k).resident(target), each)
    turns = -(-each // at_once)
    begun = np.where(whole(k, "resident") > 0, 1, turns) if "resident" in k else turns
    size = dtype_bytes(p.contraction.program.params[-1].dtype)
    boxes = whole(k, "store_boxes") if "store_boxes" in k else 0
    stored = np.where(split > 1, 4.0, size * (2.0 - np.maximum(whole(k, "wide"), boxes)))
    end = rows * columns * stored / FED_BYTES
    added = 4.0 * p.batch * p.rows * p.columns * split / (target.num_cores * FED_BYTES)
    combined = np.where(split > 1, COMBINE + added, 0.0)
    return each * part * step + begun * BEGIN + turns * end + combined


def nest_of(
    p: Product,
    target: Target,
    k: Columns,
    cost: Callable[[Product, Target, Columns], Numbers] = cost_of,
) -> Nest:
    own = np.full(len(whole(k, "groups")), w.ROWS), whole(k, "columns")
    steps = {**k, "bk": whole(k, "swizzle") // w.ITEM_BYTES}
    more = footprint_of(k).columns(target)
    return tiled.nest_of(p, steps, Tiling(tile_of(k), own, cost(p, target, k), more))


# --- the kernel ---------------------------------------------------------------------------------


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if no such instruction computes the function."""
    p = product(function)
    if p is None or not computes(p):
        raise ScheduleError("the workload is no product that warpgroups compute")
    k = Knobs(**{name: int(value) for name, value in config.items() if name != "sketch"})
    check_stages(k)
    return WgmmaKernel(p, k).whole_program(target)


def check_stages(k: Knobs) -> None:
    """ScheduleError if there are too few stages for products that overlap."""
    if k.overlap and k.stages < 3:
        raise ScheduleError(f"products overlap where there are 3 stages or more, not {k.stages}")


class WgmmaKernel:
    """Writes the kernel of a product whose operands are gathered as ``product_program`` says.

    ``slot`` is the index of what a step uses of the tiles, if they are arrays of several.
    """

    slot: tuple[Expr, ...] = ()

    def __init__(self, p: Product, k: Knobs) -> None:
        self.p, self.k = p, k
        along = "k" if p.along[1] == "k" else "n"
        vectors = p.vector(0, w.CHUNK), p.vector(1, w.CHUNK)
        self.width = exchange_width(p, QUAD) if k.wide and k.split == 1 else 1
        together = 2 * self.width if k.split > 1 or p.columns % 2 == 0 else 1
        self.steps = -(-p.depth // (k.depth * k.split))  # of a block
        depth = k.depth * self.steps * k.split
        self.tiles = Tiles(k.rows, k.columns, depth, *vectors, together)
        self.source = product_program(p, self.tiles)
        self.by_terms = along == "k"
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
        if k.split > 1:
            self.parts = Parts(p, k.split, (k.rows, k.columns))
            self.z, self.share = self.number // k.split, self.number % k.split
            self.now = self.share * self.steps + self.step
        copies = k.stages if self.steps > 1 else 1
        by_columns = (k.columns // k.chunk, k.depth, k.chunk)
        shape = (k.columns, k.depth) if self.by_terms else by_columns
        self.a = Buffer("A", (k.rows, k.depth), p.dtypes[0], "shared", 0, copies)
        self.b = Buffer("B", shape, p.dtypes[1], "shared", 0, copies)
        self.c = Buffer("C", (k.columns // 2,), "float32", "register")
        self.turned = Buffer("T", (2 * self.width,), "float32", "register")

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
        return (self.c, self.turned) if self.width > 1 else (self.c,)

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
        for var, extent, axis in (*threads, *self.grid(), (self.number, self.p.batch * self.k.split, "blockIdx.z")):
            body = For(var, Const(extent), body, LoopKind.THREAD, axis=axis)
        return replace(self.source, body=body, buffers=buffers)

    def grid(self) -> tuple[tuple[Var, int, str], ...]:
        """The loops over blocks of rows and columns, from the inside out: variables, how many there
        are, axes."""
        assert isinstance(self.y, Var)
        return (
            (self.x, -(-self.p.columns // self.k.columns), "blockIdx.x"),
            (self.y, -(-self.p.rows // self.k.rows), "blockIdx.y"),
        )

    def node(self, name: str) -> Block:
        return find_block(self.source, name)

    # --- tiles ---------------------------------------------------------------------------------

    def fill(self, name: str) -> Stmt:
        """Fill a tile, the threads side by side along its rows."""
        k, node = self.k, self.node(name)
        vector = self.tiles.a_vector if name == "A" else self.tiles.b_vector
        rows = {"A": k.rows, "B": k.columns if self.by_terms else k.depth}[name]
        row_length = k.columns if name == "B" and not self.by_terms else k.depth
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
        term = self.now * self.k.depth + (element if name == "A" or self.by_terms else row)
        places: dict[str, Expr] = {"b": self.z, "k": term}
        if name == "A":
            places["m"] = self.y * self.k.rows + row
        else:
            places["n"] = self.column * self.k.columns + (row if self.by_terms else element)
        store = store_of(node)
        value = substitute(store.value, {i.var: places[i.var.name] for i in node.iters})
        if name == "A" or self.by_terms:
            tile = self.a if name == "A" else self.b
            return Store(tile, (row, w.swizzled(row % 8, element, self.k.depth)), value)
        in_row = self.k.chunk // vector
        inside = w.swizzled(row % 8, number % in_row * vector + part, self.k.chunk)
        return Store(self.b, (number // in_row, row, inside), value)

    def multiply(self) -> Stmt:
        """C += A · B, 16 terms at a time: all elements of a thread by one instruction."""
        g, t = self.lane // 4, self.lane % 4
        depth, chunk = self.k.depth, self.k.chunk

        def left(e: Expr, term: Expr) -> Load:
            row = self.group * w.ROWS + self.warp * 16 + e % 4 // 2 * 8 + g
            return Load(self.a, (*self.slot, row, w.swizzled(g, term, depth)))

        def right(e: Expr, term: Expr) -> Load:
            inside = t * 2 + e % 2  # of eight columns
            column = e // 4 * 8 + inside
            if self.by_terms:
                return Load(self.b, (*self.slot, column, w.swizzled(inside, term, depth)))
            place = (column // chunk, term, w.swizzled(term % 8, column % chunk, chunk))
            return Load(self.b, (*self.slot, *place))

        def product(k: Expr, e: Expr) -> Stmt:
            terms = [k * w.DEPTH + n for n in range(w.DEPTH)]
            factors = [left(e, n) for n in terms] + [right(e, n) for n in terms]
            value = Intrinsic(self.instruction.name, (Load(self.c, (e,)), *factors), "float32")
            return Store(self.c, (e,), value)

        count = self.instruction.elements
        return loop(
            "k",
            depth // w.DEPTH,
            lambda k: loop("e", count, lambda e: product(k, e), LoopKind.VECTORIZED),
        )

    # --- the result ----------------------------------------------------------------------------

    def store(self) -> Stmt:
        """The epilogue, for each row of a thread's and each group of tiles of columns."""
        groups = self.k.columns // COLUMNS // self.width
        return loop("h", 2, lambda h: loop("j", groups, lambda j: self.part(h, j)))

    def part(self, h: Expr, j: Expr) -> Stmt:
        """What a thread stores at once."""
        width, quad, t = self.width, self.lane // QUAD, self.lane % QUAD
        first = self.y * self.k.rows + self.group * w.ROWS + self.warp * ROWS

        def held(e: Expr) -> list[Expr]:
            return [Load(self.c, ((j * width + n) * 4 + h * 2 + e % 2,)) for n in range(width)]

        def exchange(e: Expr) -> Stmt:
            return Store(self.turned, (e,), exchanged(held(e), t, e))

        def element(e: Expr) -> Stmt:
            if width == 1:
                row, column = fragment_place(Const(0), j, quad, t, h * 2 + e)
            else:
                row, column = square_place(width, Const(0), j, h, quad, t, e)
            value = held(e)[0] if width == 1 else Load(self.turned, (e,))
            return self.told(first + row, self.column * self.k.columns + column, value)

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
