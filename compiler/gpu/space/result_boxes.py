"""Results of warpgroups that go out as boxes, by way of shared memory.

each group of four warps, for every 128 bytes of its columns:
  a tile of 64 rows in shared memory, swizzled, one of two: epilogue of the sums → tile
  one thread: ask for the box of it to be stored

The threads go on with the next tile while the box is read; what lies beyond the last row or column
is not stored. Elements of 16 or 32 bits, in rows of a multiple of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tunefarm.compiler.gpu import wgmma as w
from tunefarm.compiler.gpu.boxes import TensorAxis, sent
from tunefarm.compiler.gpu.intrinsics import QUAD
from tunefarm.compiler.gpu.mma import COLUMNS, ROWS
from tunefarm.compiler.gpu.space.common import loop
from tunefarm.compiler.gpu.space.product import Product, Tiles, product_program
from tunefarm.compiler.gpu.space.tensors import Axes, axes_in_memory
from tunefarm.compiler.target import dtype_bytes
from tunefarm.compiler.tir.ir import Buffer, Const, Expr, If, Load, LoopKind, Stmt, Store, binary
from tunefarm.compiler.tir.schedule import find_block
from tunefarm.compiler.tir.schedule.tree import store_of
from tunefarm.compiler.tir.visit import seq

ROW_BYTES = max(w.SWIZZLES)
MOST_TILES = 2
SIZES = (2, 4)  # bytes of an element

Epilogue = Callable[[Expr, Expr, Expr], If]
"""Of the row, the column and the sum of an element: its store, if it exists."""


def result_axes(p: Product) -> Axes | None:
    """The axes of the result in memory; None if it is no tensor of which there are boxes."""
    program = product_program(p, Tiles(1, 1, 1, 1, 1, 1))
    node = find_block(program, "out")
    store = store_of(node)
    if dtype_bytes(store.buffer.dtype) not in SIZES or "float" not in store.buffer.dtype:
        return None
    return axes_in_memory(node, store.indices[0], dtype_bytes(store.buffer.dtype), ("n",))


def tile_bytes(columns: int, item_bytes: int) -> int:
    """Bytes of shared memory of one group's tiles."""
    return min(columns * item_bytes // ROW_BYTES, MOST_TILES) * w.ROWS * ROW_BYTES


@dataclass(frozen=True, slots=True)
class Places:
    """Where a thread stands: its group, warp and lane, and the numbers of its batch and of the
    first row and column of its block."""

    group: Expr
    warp: Expr
    lane: Expr
    batch: Expr
    row: Expr
    column: Expr


class ResultBoxes:
    """Writes what becomes of the sums of ``groups`` groups of 64 × ``columns``, in ``sums``."""

    def __init__(
        self, out: Buffer, axes: Axes, groups: int, columns: int, sums: Buffer, at: Places
    ) -> None:
        size = dtype_bytes(out.dtype)
        self.out, self.axes, self.groups, self.sums, self.at = out, axes, groups, sums, at
        self.chunk = w.CHUNK_BYTES // size  # elements of 16 bytes
        self.length = ROW_BYTES // size
        self.count = columns // self.length
        shape = (groups, min(self.count, MOST_TILES), w.ROWS, self.length)
        self.tile = Buffer("O", shape, out.dtype, "shared")

    def store(self, epilogue: Epilogue) -> Stmt:
        """All boxes, one after the other."""
        leads = binary("and", self.at.warp.equal(0), self.at.lane.equal(0))
        leads = binary("and", self.at.group < self.groups, leads)

        def box(number: Expr) -> Stmt:
            filled = If(self.at.group < self.groups, self._fill(number, epilogue))
            return seq(filled, If(leads, self._send(number)))

        return loop("box", self.count, box)

    def _fill(self, number: Expr, epilogue: Epilogue) -> Stmt:
        """What a thread has of a tile: two elements of each eight columns, of two rows."""
        quad, t = self.at.lane // QUAD, self.at.lane % QUAD
        tiles = self.length // COLUMNS

        def element(h: Expr, j: Expr, e: Expr) -> Stmt:
            row, own = self.at.warp * ROWS + h * 8 + quad, t * 2 + e
            held = Load(self.sums, (((number * tiles + j) * 4 + h * 2 + e),))
            column = self.at.column + number * self.length + j * COLUMNS + own
            stored = epilogue(self._row(row), column, held)
            assert isinstance(stored.then, Store)
            chunk: Expr = j  # of the row's, which changes with rows modulo 8, ``quad``
            if self.chunk < COLUMNS:
                chunk, own = j * 2 + t // 2, t % 2 * 2 + e
            place = binary("bitxor", chunk, quad) * self.chunk + own
            where = (self.at.group, self._slot(number), row, place)
            return If(stored.condition, Store(self.tile, where, stored.then.value))

        def pair(h: Expr, j: Expr) -> Stmt:
            return loop("e", 2, lambda e: element(h, j, e), LoopKind.VECTORIZED)

        return loop("h", 2, lambda h: loop("j", tiles, lambda j: pair(h, j)))

    def _send(self, number: Expr) -> Stmt:
        def element(row: Expr, column: Expr) -> Stmt:
            place = self.at.column + number * self.length + column
            at = {"b": self.at.batch, "m": self._row(row), "n": place}
            axes = [TensorAxis(at[axis], extent, stride) for axis, extent, stride in self.axes]
            inside = binary("bitxor", column // self.chunk, row % 8) * self.chunk
            where = (self.at.group, self._slot(number), row, inside + column % self.chunk)
            return sent(self.out, axes, Load(self.tile, where))

        serial = LoopKind.SERIAL
        return loop(
            "r",
            w.ROWS,
            lambda r: loop("c", self.length, lambda c: element(r, c), serial),
            serial,
        )

    def _row(self, row: Expr) -> Expr:
        return self.at.row + self.at.group * w.ROWS + row

    def _slot(self, number: Expr) -> Expr:
        return number % self.tile.shape[1] if self.tile.shape[1] > 1 else Const(0)
