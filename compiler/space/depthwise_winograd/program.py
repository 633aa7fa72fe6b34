"""A depthwise convolution as the stages of Winograd's method along rows.

    point[n, y, t, j, c]   = Σ x[n, y, 2t + k − left, c] · Bᵀ[j, k]          0 beyond the border
    product[n, h, t, j, c] = Σ point[n, h + i − top, t, j, c] · w[i, j, c]   over the taps of rows
    y[n, h, v, c]          = Σ product[n, h, v / 2, j, c] · Aᵀ[v % 2, j]

The points are no stage of their own: each row of products has those that it reads in its text, and
LLVM computes once what neighbouring rows share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tunefarm.compiler import te
from tunefarm.compiler.ir import Call, Function, tensor_type
from tunefarm.compiler.ops.common import integers
from tunefarm.compiler.ops.conv import pairs
from tunefarm.compiler.space.program import (
    create_program,
    find_anchor,
    fold_epilogue,
    is_float32_image,
)
from tunefarm.compiler.space.winograd.convolution import constant_filter, taps_inside
from tunefarm.compiler.space.winograd.transforms import Matrix, transforms
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.ir import Expr

TAPS, TILE = 3, 2


@dataclass(frozen=True, slots=True)
class Depthwise:
    """A fused depthwise convolution of 3 × 3 taps and stride 1, constant weights, channels last.
    ``padding`` is what the input lacks above and at the left, one pixel at most: beside a result of
    a single tap, which may be as small as it likes, the error of its neighbours would be large."""

    function: Function
    anchor: Call
    filter_param: int
    batch: int
    height: int
    width: int
    channels: int
    padding: tuple[int, int]

    @property
    def image(self) -> tuple[int, ...]:
        """Rows and columns of the input."""
        return tensor_type(self.anchor.args[0]).shape[1:3]

    @property
    def tiles(self) -> int:
        """Tiles of a row of results."""
        return -(-self.width // TILE)

    @property
    def taps_inside(self) -> tuple[int, int]:
        """How many taps of all rows, and of all columns of results read no padding."""
        return taps_inside((self.height, self.width), self.padding, self.image, (TAPS, TAPS))


@lru_cache(maxsize=64)
def depthwise_of(function: Function) -> Depthwise | None:
    """The convolution of a fused function; None if the method does not apply."""
    anchor = find_anchor(function)
    position = None if anchor is None or not _fits(anchor) else constant_filter(function, anchor)
    if anchor is None or position is None:
        return None
    batch, height, width, channels = tensor_type(anchor).shape
    (top, _), (left, _) = pairs(anchor.attrs["padding"])
    return Depthwise(function, anchor, position, batch, height, width, channels, (top, left))


def _fits(anchor: Call) -> bool:
    attrs, types = anchor.attrs, [tensor_type(a) for a in anchor.args]
    return (
        is_float32_image(anchor)
        and types[1].shape[:2] == (TAPS, TAPS)
        and attrs["groups"] == types[0].shape[-1] == types[1].shape[-1]
        and integers(attrs, "strides") == integers(attrs, "dilations") == (1, 1)
        and max(p for pair in pairs(attrs["padding"]) for p in pair) <= 1
    )


@lru_cache(maxsize=64)
def create_depthwise(c: Depthwise) -> PrimFunc:
    """The plain loops of the stages and of what is fused behind them, as one last block."""
    across = transforms(TILE)
    program = create_program(
        c.function,
        computes={c.anchor: lambda args: _stages(c, args)},
        shapes={c.function.params[c.filter_param]: (TAPS, across.filters, 1, c.channels)},
    )
    return fold_epilogue(program, ("product",))


def _stages(c: Depthwise, args: Sequence[te.Tensor]) -> te.Tensor:
    x, w = args
    across, (height, width), (top, left) = transforms(TILE), c.image, c.padding
    i, zero = te.reduce_axis(TAPS, "i"), te.const(0, "float32")

    def point(n: Expr, y: Expr, t: Expr, j: Expr, k: Expr) -> Expr:
        def data(column: int) -> Expr:
            place = t * TILE + (column - left)
            inside = (place >= 0) & (place < width)
            return te.if_then_else(inside, x[n, y, place, k], zero)

        return combined(across.data, j, data)

    def term(n: Expr, h: Expr, t: Expr, j: Expr, k: Expr) -> te.Reduce:
        row = h + i - top
        inside = (row >= 0) & (row < height)
        factors = point(n, row, t, j, k) * w[i, j, 0, k]
        return te.sum(te.if_then_else(inside, factors, zero), [i])

    shape: tuple[int, ...] = (c.batch, c.height, c.tiles, across.points, c.channels)
    product = te.compute(shape, term, "product", axis_names=["n", "h", "t", "j", "k"])

    def result(n: Expr, h: Expr, v: Expr, k: Expr) -> Expr:
        return combined(across.result, v % TILE, lambda j: product[n, h, v // TILE, j, k])

    shape = (c.batch, c.height, c.width, c.channels)
    return te.compute(shape, result, "depthwise_winograd")


def combined(matrix: Matrix, row: Expr, value: Callable[[int], Expr]) -> Expr:
    """Row ``row`` of a matrix of 0, 1 and −1 times a vector: additions and subtractions alone."""
    sums = []
    for factors in matrix:
        first, *others = sorted((k for k, f in enumerate(factors) if f), key=lambda k: -factors[k])
        total = value(first)
        for k in others:
            total = total + value(k) if factors[k] > 0 else total - value(k)
        sums.append(total)
    return te.one_of(row, sums)
