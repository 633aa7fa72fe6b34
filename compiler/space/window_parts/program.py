"""A convolution of float32 as stages: the image in parts, the products of parts, and what is fused.

    parts[q, n, e, f, g, k] = part q of the padded image at row S·(g // P) + e, column S·(g % P) + f
                              and channel k, 0 beyond the last channel
    product[n, r, t, o]     = Σ_p,i,j,k parts[a(p), n, D·i % S, D·j % S,
                                              P·(R·r + D·i // S) + t + D·j // S, k]
                                        · w[b(p), (i, j, k), o]
    y[n, h, v, o]           = product[n, h // R, P·(h % R) + v, o]

With rows and columns by their phases e and f in the stride S, and P pixels to a row, what a tap
reads for the next pixel lies behind what it reads for this one, from row to row too: the pixels of
R rows are one axis. Of each P those beyond the result's columns are of no use, nor are those that
fill up the last tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tunefarm.compiler import te
from tunefarm.compiler.ir import Call, Function, tensor_type
from tunefarm.compiler.ops.common import integers
from tunefarm.compiler.ops.conv import pad_value, pairs
from tunefarm.compiler.space.float_parts.forms import DEPTH, PART, Parts
from tunefarm.compiler.space.float_parts.program import part_of, parts_of_pair
from tunefarm.compiler.space.matrix_tiles.shape import LANES, ROWS
from tunefarm.compiler.space.program import (
    create_program,
    find_anchor,
    fold_epilogue,
    is_float32_image,
    is_pointwise,
)
from tunefarm.compiler.space.winograd.convolution import (
    constant_filter,
    image_size,
    taps_inside,
)
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.ir import Expr


@dataclass(frozen=True, slots=True)
class Windows:
    """A fused convolution of constant weights, channels last, with several taps.

    ``height`` and ``width`` are the result's, ``image`` the input's; ``padding`` is what that lacks
    above and at the left.
    """

    function: Function
    anchor: Call
    weights: int
    batch: int
    height: int
    width: int
    inputs: int
    outputs: int
    taps: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    padding: tuple[int, int]
    image: tuple[int, int]

    @property
    def channels(self) -> int:
        """Terms of a tap, with those of zeros behind them."""
        return -(-self.inputs // DEPTH) * DEPTH

    @property
    def depth(self) -> int:
        """Terms of a sum."""
        return self.taps[0] * self.taps[1] * self.channels

    @property
    def reach(self) -> tuple[int, int]:
        """How many rows and columns of pixels of a phase a window reads beyond its first."""
        down, across = (
            (taps - 1) * skip // stride
            for taps, skip, stride in zip(self.taps, self.dilations, self.strides, strict=True)
        )
        return down, across

    @property
    def pitch(self) -> int:
        """Pixels of a row of a phase: those that the result's columns read."""
        return self.width + self.reach[1]

    @property
    def taps_inside(self) -> int:
        """How many taps of all results read no padding."""
        extents = (self.height, self.width)
        windows = (self.taps, self.strides, self.dilations)
        return prod(taps_inside(extents, self.padding, self.image, *windows))


@lru_cache(maxsize=128)
def windows_of(function: Function) -> Windows | None:
    """The convolution that a fused function is; None if the method does not apply."""
    anchor = find_anchor(function)
    if anchor is None or not is_float32_image(anchor) or is_pointwise(anchor, strided=True):
        return None
    attrs, position = anchor.attrs, constant_filter(function, anchor)
    if position is None or attrs["groups"] != 1 or pad_value(attrs) != 0:
        return None
    batch, height, width, outputs = tensor_type(anchor).shape
    down, across, inputs, _ = tensor_type(anchor.args[1]).shape
    (top, _), (left, _) = pairs(attrs["padding"])
    strides, dilations = (integers(attrs, name) for name in ("strides", "dilations"))
    rows, columns = image_size(anchor)
    if inputs < DEPTH // 2 or outputs % LANES or height * width < ROWS:
        return None
    return Windows(
        function, anchor, position, batch, height, width, inputs, outputs, (down, across),
        (strides[0], strides[1]), (dilations[0], dilations[1]), (top, left), (rows, columns),
    )  # fmt: skip


@lru_cache(maxsize=64)
def create_parts(c: Windows, parts: Parts, rows: int, tile: int) -> PrimFunc:
    """The plain loops of the stages, of groups of so many rows in tiles of so many pixels, and of
    what is fused as one last block."""
    weights = c.function.params[c.weights]
    program = create_program(
        c.function,
        computes={c.anchor: lambda args: _stages(c, parts, rows, tile, args)},
        shapes={weights: (parts.number, c.depth, c.outputs)},
        dtypes={weights: PART},
    )
    return fold_epilogue(program, ("parts", "product"))


def _stages(c: Windows, parts: Parts, rows: int, tile: int, args: Sequence[te.Tensor]) -> te.Tensor:
    x, w = args
    pitch = c.pitch
    group = -(-rows * pitch // tile) * tile
    (down, across), (skip_down, skip_across) = c.strides, c.dilations
    below, behind = c.reach
    pixels = (c.height - rows + below) * pitch + behind + group

    def part(q: Expr, n: Expr, e: Expr, f: Expr, g: Expr, k: Expr) -> Expr:
        row, column = g // pitch * down + e, g % pitch * across + f
        value: Expr = x[n, row - c.padding[0], column - c.padding[1], k]
        conditions = [
            *_within(row, c.padding[0], c.image[0], -(-pixels // pitch) * down),
            *_within(column, c.padding[1], c.image[1], pitch * across),
            *_within(k, 0, c.inputs, c.channels),
        ]
        for condition in conditions:
            value = te.if_then_else(condition, value, te.const(0, "float32"))
        return part_of(parts, q, value)

    shape: tuple[int, ...] = (parts.number, c.batch, down, across, pixels, c.channels)
    split = te.compute(shape, part, "parts")
    pair, k = te.reduce_axis(len(parts.pairs), "pair"), te.reduce_axis(c.channels, "k")
    i, j = te.reduce_axis(c.taps[0], "i"), te.reduce_axis(c.taps[1], "j")

    def summed(n: Expr, r: Expr, t: Expr, o: Expr) -> te.Reduce:
        a, b = parts_of_pair(parts, pair)
        row, column = i * skip_down, j * skip_across  # of a tap, from the first one
        pixel = (r * rows + row // down) * pitch + t + column // across
        left = split[a, n, row % down, column % across, pixel, k]
        right = w[b, (i * c.taps[1] + j) * c.channels + k, o]
        factors = te.cast(left, "float32") * te.cast(right, "float32")
        return te.sum(factors, [pair, i, j, k])

    shape = (c.batch, c.height // rows, group, c.outputs)
    product = te.compute(shape, summed, "product")

    def result(n: Expr, h: Expr, v: Expr, o: Expr) -> Expr:
        return product[n, h // rows, h % rows * pitch + v, o]

    return te.compute((c.batch, c.height, c.width, c.outputs), result, "windows")


def _within(index: Expr, before: int, extent: int, reach: int) -> list[Expr]:
    """The conditions under which ``index``, of all below ``reach``, is one of the image's."""
    conditions = [index >= before] if before else []
    return conditions + ([index < before + extent] if reach > before + extent else [])
