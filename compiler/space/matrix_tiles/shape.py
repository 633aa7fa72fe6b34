"""What the sketch of matrix tiles asks of a contraction: rows that fill tiles, and groups of terms
in whole steps."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.analysis import Axis
from tunefarm.compiler.space.columns import Numbers
from tunefarm.compiler.space.contraction.shape import row_axes
from tunefarm.compiler.space.dot.shape import DotProduct, in_groups, summed_by
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.affine import affine
from tunefarm.compiler.tir.tensor_intrinsics import TENSOR_INTRINSICS

NAME, VERSION = "matrix_tiles", 2
LANES, ROWS, REGISTERS = 16, 16, 8  # of a tile at most, and tiles that the unit holds
LEAST_ROWS = 4  # of a tile
LEAST_GROUPS = 4  # of terms that an instruction sums
WORTH_PADDING = 0.7  # share of a tile that must be filled without padding


@dataclass(frozen=True, slots=True)
class TiledProduct:
    """A contraction that a matrix unit computes. ``step`` groups of terms go into a tile, or the
    taps of the axis ``taps``, which lie side by side where each has a single group. ``rows`` is the
    axis along which a tile's rows lie, ``second`` the one before it. A copy of the left operand may
    have more rows than there are."""

    dot: DotProduct
    step: int
    rows: Axis
    second: Axis | None
    taps: Axis | None = None

    @property
    def groups(self) -> int:
        """Groups of terms, or taps of one, in a tile."""
        return self.step if self.taps is None else self.taps.extent

    @property
    def steps(self) -> int:
        """Tiles of terms that a tile of sums adds up."""
        return prod(a.extent for a in self.dot.words.reduce) // self.groups

    @property
    def blocked(self) -> Axis:
        """The axis of which a block has several tiles."""
        return self.second or self.rows


def tiled_product_of(function: Function, target: Target) -> TiledProduct | None:
    """The product that a fused function sums; None if no matrix unit does, or tiles stay empty."""
    units = [t for t in TENSOR_INTRINSICS.values() if t.rows]
    dot = summed_by(function, units, target)
    if dot is None or dot.widened or dot.contraction.vector.extent == 1:
        return None
    second, rows = row_axes(dot.contraction)
    if rows is None:
        return None
    groups = dot.words.reduce[-1].extent
    step = _step_of(groups, dot.instruction.groups)
    padded = -(-groups // step) * step
    if padded != groups:
        dot = in_groups(dot, padded)
    taps = _taps_of(dot, step)
    product = TiledProduct(dot, step, rows, second, taps)
    return product if product.groups >= LEAST_GROUPS and rows.extent >= LEAST_ROWS else None


def _taps_of(dot: DotProduct, step: int) -> Axis | None:
    """The axis of a window's taps that fill a tile where a tap has one group of terms: the last
    one, whose pixels follow each other in the copy of the left operand."""
    c = dot.contraction
    if step > 1 or not dot.copied or len(c.reduce) < 2 or dot.words.reduce[-1].extent > 1:
        return None
    axis, load = c.reduce[-2], c.lhs.load
    pixel = load.indices[-2] if len(load.indices) > 1 else None
    one = pixel is not None and affine(pixel).coefficient(c.node.iters[axis.position].var) == 1
    fits = one and load.indices[-1] is c.node.iters[dot.depth.position].var
    return axis if fits and axis.extent <= dot.instruction.groups else None


def _step_of(groups: int, most: int) -> int:
    """Groups of a tile: as many as it takes, or a part of the sum that divides it where that fills
    most of a tile."""
    if groups <= most:
        return groups
    divisor = max(n for n in range(1, most + 1) if groups % n == 0)
    filled = groups / (-(-groups // most) * most)
    return divisor if divisor / most >= max(filled, WORTH_PADDING) else most


def row_choices(extent: int, most: int = ROWS) -> tuple[int, ...]:
    """Rows of a tile that divide an extent."""
    return tuple(n for n in range(1, most + 1) if extent % n == 0)


def fullest_rows(extent: int) -> int:
    """Rows of as few tiles as an extent takes, the last of which may run on beyond it."""
    return -(-extent // -(-extent // ROWS))


def rows_of_axes(product: TiledProduct, rw: Numbers, rh: Numbers) -> list[tuple[Axis, Numbers]]:
    """How many of each axis that a macro tile cuts it has, if its tiles have ``rw`` rows and ``rh``
    of them stand in it."""
    if product.second is None:
        return [(product.rows, rw * rh)]
    return [(product.rows, rw), (product.second, rh)]
