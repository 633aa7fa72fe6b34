"""Products on the tensor cores of ``sm_90a`` whose tiles are copied as boxes of their tensors.

blocks: a tile of (groups · 64) × columns elements of the result each; if they are ``resident``, so
many a multiprocessor, tile after tile; tiles by rows, of ``swath`` columns of them at a time
  a thread, of four warps of their own if there is a ``producer``:
    for steps of 64 terms: ask for boxes of A and B      shared, swizzled, a ring of ``stages``;
                                                         blocks of a ``cluster``, one below the
                                                         other, share out what they have of B
  each group: 64 × columns sums, in registers
    for steps of 64 terms: sums += A[64, 16] · B[16, columns]      as ``gpu_wgmma``
    epilogue → out                       while the boxes of the next tile arrive; as boxes
                                       too if ``store_boxes`` (``result_boxes.py``)

For operands that lie in memory as matrices, in rows of a multiple of 16 bytes; what else there is
(convolutions but those of 1 × 1, odd lengths) is left to ``gpu_wgmma``. Threads wait at mbarriers,
which are the emitter's (``gpu/rings.py``): the program says where they wait for all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu import wgmma as w
from tunefarm.compiler.gpu.archs import MAX_REGISTERS, REGISTERS
from tunefarm.compiler.gpu.boxes import Ring, TensorAxis, boxed
from tunefarm.compiler.gpu.space.common import loop
from tunefarm.compiler.gpu.space.product import Product, Tiles, product_program
from tunefarm.compiler.gpu.space.result_boxes import (
    ROW_BYTES,
    Places,
    ResultBoxes,
    result_axes,
    tile_bytes,
)
from tunefarm.compiler.gpu.space.tensors import Axes, axes_in_memory
from tunefarm.compiler.gpu.space.tiled import SPLITS, blocks_of, fits_grid, product
from tunefarm.compiler.gpu.space.wgmma import (
    cheapest_of,
    check_joined,
    check_stages,
    computed,
    computes,
    joins_of,
    nest_of,
    parts_of,
    stages_overlap,
    wide_of,
)
from tunefarm.compiler.gpu.space.wgmma_kernel import Knobs as WgmmaKnobs
from tunefarm.compiler.gpu.space.wgmma_kernel import WgmmaKernel
from tunefarm.compiler.gpu.space.wgmma_tiles import cost_of, footprint_of, tile_of, turned
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.columns import Mask, Numbers, cheapest, whole
from tunefarm.compiler.space.config import Columns, Config, Constraint, Knob, SketchSpace
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.ir import (
    CLUSTER_AXIS,
    Allocate,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Load,
    LoopKind,
    Select,
    Stmt,
    Store,
    Var,
    binary,
)
from tunefarm.compiler.tir.schedule import find_block
from tunefarm.compiler.tir.schedule.tree import store_of
from tunefarm.compiler.tir.visit import seq

NAME, VERSION = "gpu_tma", 8
LEAST_DEPTH = 64  # of a product: steps of 64 terms are several beyond
MOST_STAGES = 6
KNOBS = (
    Knob("groups", (1, 2, 3)),
    Knob("columns", w.COLUMNS),
    Knob("stages", tuple(range(2, MOST_STAGES + 1))),
    Knob("producer", (0, 1)),
    Knob("overlap", (0, 1)),
    Knob("swizzle", tuple(w.SWIZZLES)),
    Knob("cluster", (1, 2, 4)),
    Knob("resident", (0, 1, 2)),
    Knob("swath", (0, 4, 8, 16)),
    Knob("split", SPLITS),
    Knob("joined", (0, 1)),
)
FIXED = {"producer": 1, "overlap": 1, "swizzle": max(w.SWIZZLES), "cluster": 1}  # of defaults
LOOKED_UP = 500  # clocks until a block has its boxes' tensor maps; assumed
USUAL_SWATH = 8  # tiles of 256 columns: 132 tiles at once are about a square


@dataclass(frozen=True, slots=True)
class Knobs(WgmmaKnobs):
    """A config of the sketch."""

    producer: int = 1
    cluster: int = 1
    resident: int = 0
    swath: int = 0
    store_boxes: int = 0


@dataclass(frozen=True, slots=True)
class _Matrix:
    """Where an operand lies: parameter number ``param``, and the extents and strides of its axes
    "b", "m", "n", "k", that of stride 1 first."""

    param: int
    axes: Axes

    @property
    def along(self) -> str:
        return self.axes[0][0]


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs; None for GPUs without warpgroups' instructions, and where no box is a tile."""
    p = computed(function, target)
    if p is None or matrices_of(p) is None:
        return None
    constraints = _constraints_of(p, target)
    knobs = (*KNOBS, wide_of(p), stores_of(p))
    fixed = {**FIXED, "wide": int(knobs[-2].choices[-1])}
    choices = {k.name: [int(c) for c in k.choices] for k in knobs if k.name not in fixed}
    found, cost = cheapest(choices, fixed, constraints, lambda k: _cost_of(p, target, k))
    default: Config = {"sketch": NAME, **found}
    _, without = cheapest_of(p, target)
    return SketchSpace(
        NAME, VERSION, knobs, constraints, default,
        lambda k: nest_of(p, target, k, _cost_of), preferred=cost <= without,
    )  # fmt: skip


def stores_of(p: Product) -> Knob:
    """Whether results go out as boxes, where these are of what a group of warps holds in rows."""
    return Knob("store_boxes", (0, 1) if result_axes(p) and not turned(p) else (0,))


def matrices_of(p: Product) -> tuple[_Matrix, _Matrix] | None:
    """Where the operands of a product lie, if their tiles are boxes and there is more than one
    step of them."""
    if p.depth <= LEAST_DEPTH:
        return None
    program = product_program(p, Tiles(1, 1, 1, 1, 1, 1))
    a, b = _matrix(program, "A", ("k",)), _matrix(program, "B", ("n", "k"))
    return (a, b) if a is not None and b is not None else None


def _matrix(program: PrimFunc, name: Literal["A", "B"], inner: tuple[str, ...]) -> _Matrix | None:
    node = find_block(program, name)
    value = store_of(node).value
    if not isinstance(value, Load) or value.buffer not in program.params:
        return None
    axes = axes_in_memory(node, value.indices[0], dtype_bytes(value.dtype), inner)
    return None if axes is None else _Matrix(program.params.index(value.buffer), axes)


def _constraints_of(p: Product, target: Target) -> tuple[Constraint, ...]:
    length = ROW_BYTES // dtype_bytes(p.contraction.program.params[-1].dtype)  # of a box's row

    def registers_fit(k: Columns) -> Mask:
        f = footprint_of(k)
        return (f.registers <= MAX_REGISTERS) & (f.registers * f.threads <= REGISTERS)

    def shared_fits(k: Columns) -> Mask:
        return _shared_bytes(p, k) <= target.gpu.shared_bytes

    def runs_ahead(k: Columns) -> Mask:
        return (whole(k, "producer") == 1) | (whole(k, "stages") >= 3)

    def clusters_fit(k: Columns) -> Mask:
        rows, _ = tile_of(p, k)
        fits = whole(k, "producer") == 1
        if p.along[1] != "k":  # boxes of B have a row a term, and are shared out in whole patterns
            terms = whole(k, "swizzle") // dtype_bytes(p.dtypes[1])
            fits &= terms >= w.ROWS_TOGETHER * whole(k, "cluster")
        return (whole(k, "cluster") == 1) | (fits & (p.rows > rows))

    def stay(k: Columns) -> Mask:
        f, resident = footprint_of(k), whole(k, "resident")
        fit = resident * f.registers * f.threads <= REGISTERS
        fit &= resident * _shared_bytes(p, k) <= target.gpu.shared_bytes
        several = blocks_of(p, tile_of(p, k)) > resident * target.num_cores
        fit &= several & (whole(k, "split") == 1)
        return (resident == 0) | ((whole(k, "producer") == 1) & fit)

    def several_swaths(k: Columns) -> Mask:
        _, columns = tile_of(p, k)
        return whole(k, "swath") * columns < p.columns

    def boxes_go_out(k: Columns) -> Mask:
        """From groups that wait for one another apart from those who fill, in whole boxes."""
        _, columns = tile_of(p, k)
        fit = (whole(k, "producer") == 1) & (columns % length == 0) & (whole(k, "split") == 1)
        return (whole(k, "store_boxes") == 0) | fit

    return (
        Constraint("registers", registers_fit),
        Constraint("shared memory", shared_fits),
        Constraint("stages", runs_ahead),
        Constraint("resident", stay),
        Constraint("swath", several_swaths),
        Constraint("overlap", stages_overlap),
        Constraint("cluster", clusters_fit),
        Constraint("boxes", boxes_go_out),
        parts_of(p, target),
        joins_of(p),
        fits_grid(p, lambda k: tile_of(p, k)),
    )


def _shared_bytes(p: Product, k: Columns) -> Numbers:
    """Tiles of all stages, mbarriers, and those of the result."""
    size = dtype_bytes(p.contraction.program.params[-1].dtype)
    tiles = [tile_bytes(int(columns), size) for columns in w.COLUMNS]
    out = np.select([whole(k, "columns") == columns for columns in w.COLUMNS], tiles)
    out = out * whole(k, "groups") * (whole(k, "store_boxes") if "store_boxes" in k else 0)
    return footprint_of(k).shared_bytes + Ring(MOST_STAGES, 0).marks_bytes + out


def _cost_of(p: Product, target: Target, k: Columns) -> Numbers:
    """That of the products, a little less of each step; a block looks its boxes up first. Tiles
    next to one another in the grid are about a square."""
    order = 1.0 + 0.01 * abs(whole(k, "swath") / USUAL_SWATH - 1)
    producer = 1.0 - 0.03 * whole(k, "producer")
    return cost_of(p, target, k) * producer * order + LOOKED_UP


# --- the kernel ---------------------------------------------------------------------------------


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if boxes of the operands are no tiles of the product."""
    p = product(function)
    if p is None or not computes(p, target):
        raise ScheduleError("the workload is no product that warpgroups compute")
    matrices = matrices_of(p)
    if matrices is None:
        raise ScheduleError("the operands do not lie in memory as matrices of whole 16 bytes a row")
    k = Knobs(**{name: int(value) for name, value in config.items() if name != "sketch"})
    check_stages(k)
    check_joined(p, k)
    if k.joined and k.cluster > 1:
        raise ScheduleError("blocks of a cluster share out terms, or boxes of the same terms")
    if not k.producer and k.stages < 3:
        raise ScheduleError(f"threads that compute fill 3 stages or more ahead, not {k.stages}")
    if k.cluster > 1 and not k.producer:
        raise ScheduleError("blocks are a cluster where threads of their own ask for boxes")
    if k.resident and not k.producer:
        raise ScheduleError("blocks go from tile to tile where threads of their own ask for boxes")
    if k.store_boxes and (not k.producer or turned(p) or result_axes(p) is None):
        raise ScheduleError(
            "boxes are stored by blocks with threads of their own that ask for others, of a result "
            "in rows of whole 16 bytes"
        )
    if k.split > 1 and (k.resident or k.store_boxes):
        raise ScheduleError("blocks that share terms out stay for one tile, and store its sums")
    if k.store_boxes:
        k = replace(k, wide=0)  # pairs of elements meet no bank twice on their way
    return _Kernel(p, k, matrices, k.resident * target.num_cores).whole_program(target)


class _Kernel(WgmmaKernel):
    """Writes the kernel. With a producer the tiles are a ring from the outset; without one lowering
    makes it, as of other tiles in stages. No more than ``most`` blocks stay, if that is not 0."""

    def __init__(self, p: Product, k: Knobs, matrices: tuple[_Matrix, _Matrix], most: int) -> None:
        super().__init__(p, k)
        self.matrices = matrices
        self.producer = k.producer
        self.cluster = k.cluster
        rows, columns = -(-p.rows // (self.rows * k.cluster)), -(-p.columns // self.columns)
        count = rows * columns
        self.blocks = min(count, max(most // k.cluster, 1)) if most else count
        self.turns = -(-count // self.blocks)
        self.turn, self.block = Var("turn"), Var("number")
        number = self.turn * self.blocks + self.block if self.turns > 1 else self.block
        row, self.column = place_of(number, rows, columns, k.swath)
        self.y = row * k.cluster + self.member if k.cluster > 1 else row
        if k.producer:
            stages = min(k.stages, self.steps)
            now = self.turn * self.steps + self.step if self.turns > 1 else self.step
            self.slot = (now % stages,)
            self.a, self.b = (_ring(buffer, stages) for buffer in (self.a, self.b))
        self.boxes = self.result_boxes() if k.store_boxes else None

    def program(self) -> PrimFunc:
        k, buffers = self.k, [self.a, self.b, *self.own()]
        fill = If(self.fills(), seq(self.fill("A"), self.fill("B")))
        body: Stmt = For(self.step, Const(self.steps), seq(fill, self.computing(self.multiply())))
        out = self.computing(self.store())
        if self.boxes is not None:
            out = self.boxes.store(self.result)
        body = seq(self.computing(self.clear()), body, out)
        if self.turns > 1:
            body = For(self.turn, Const(self.turns), body)
        if self.producer:
            if self.boxes is not None:
                body = Allocate(self.boxes.tile, body)
            body, buffers = Allocate(self.a, Allocate(self.b, body)), [*self.own()]
        return self.on_threads(body, k.groups + self.producer, tuple(buffers))

    def grid(self) -> tuple[tuple[Var, int, str], ...]:
        """Blocks of a cluster are those of rows, side by side in the grid: they need the same of
        B. Those beyond the last row compute zeros that nobody stores, as do blocks that have gone
        through all tiles while others are at their last."""
        blocks = (self.block, self.blocks, "blockIdx.x")
        count = self.k.split if self.k.joined else self.cluster
        members = (self.member, count, CLUSTER_AXIS)
        return (members, blocks) if count > 1 else (blocks,)

    def result_boxes(self) -> ResultBoxes:
        k, axes = self.k, result_axes(self.p)
        assert axes is not None
        first = self.y * self.rows, self.column * self.columns
        at = Places(self.group, self.warp, self.lane, self.z, *first)
        out = store_of(self.node("out")).buffer
        return ResultBoxes(out, axes, k.groups, k.columns, self.c, at)

    def fills(self) -> Expr:
        """Which thread asks for the boxes."""
        group = self.group.equal(self.k.groups if self.producer else 0)
        return binary("and", binary("and", group, self.warp.equal(0)), self.lane.equal(0))

    def computing(self, stmt: Stmt) -> Stmt:
        """What the groups do that compute."""
        return If(self.group < self.k.groups, stmt) if self.producer else stmt

    def fill(self, name: str) -> Stmt:
        """The boxes of a tile: of B one for each row of columns, where these stand side by side."""
        if name == "A":
            return self.box(name, self.a, (), self.rows, 0)
        if self.matrices[1].along == "k":
            return self.box(name, self.b, (), self.columns, 0)
        count = self.columns // self.chunk
        return loop("j", count, lambda j: self.box(name, self.b, (j,), self.depth, j))

    def box(
        self, name: str, tile: Buffer, place: tuple[Expr, ...], rows: int, number: Expr | int
    ) -> Stmt:
        """A box of ``rows`` of a tile, number ``number`` along the tile's columns."""
        matrix = self.matrices["AB".index(name)]
        outer = "m" if name == "A" else "k" if matrix.along == "n" else "n"
        length = self.chunk if matrix.along == "n" else self.depth

        def element(row: Expr, column: Expr) -> Stmt:
            inside = {matrix.along: column, outer: row}
            at: dict[str, Expr] = {
                "b": self.z,
                "m": self.y * self.rows + inside.get("m", Const(0)),
                "n": self.column * self.columns + number * length + inside.get("n", Const(0)),
                "k": self.now * self.depth + inside.get("k", Const(0)),
            }
            axes = [TensorAxis(at[axis], extent, stride) for axis, extent, stride in matrix.axes]
            value = boxed(self.source.params[matrix.param], axes)
            where = (*self.slot, *place, row, self.swizzled(row, column, length))
            return Store(tile, where, value)

        return loop(
            "r",
            rows,
            lambda r: loop("c", length, lambda c: element(r, c), LoopKind.SERIAL),
            LoopKind.SERIAL,
        )


def place_of(number: Expr, rows: int, columns: int, swath: int) -> tuple[Expr, Expr]:
    """Row and column of a tile by its number: by rows, of ``swath`` columns at a time (0: of all),
    and in the last swath of those that are left. Numbers beyond are beyond the last row or column.

    3 rows of 5, swath 2:   0  1 |  6  7 | 12
                            2  3 |  8  9 | 13
                            4  5 | 10 11 | 14
    """
    if not 0 < swath < columns:
        return number // columns, number % columns
    this, inside, left = number // (rows * swath), number % (rows * swath), columns % swath
    row, column = inside // swath, inside % swath
    if left:
        is_last = this.equal(columns // swath)
        row = Select(is_last, inside // left, row, "int64")
        column = Select(is_last, inside % left, column, "int64")
    return row, this * swath + column


def _ring(buffer: Buffer, stages: int) -> Buffer:
    return Buffer(buffer.name, (stages, *buffer.shape), buffer.dtype, buffer.scope)
