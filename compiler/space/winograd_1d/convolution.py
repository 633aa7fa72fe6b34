"""The convolutions that Winograd's method can compute along rows, or along columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from tunefarm.compiler.ir import Call, Function, tensor_type
from tunefarm.compiler.ops.common import integers
from tunefarm.compiler.ops.conv import pairs
from tunefarm.compiler.space.program import find_anchor
from tunefarm.compiler.space.winograd.convolution import (
    Convolution,
    constant_filter,
    has_pixels,
    image_size,
    is_of_images,
    taps_inside,
)
from tunefarm.compiler.space.winograd.transforms import ROW_TILES, Transforms, transforms_of_rows

_T = TypeVar("_T")
STRIDED = (((3, 3), (2, 2)), ((1, 3), (1, 2)), ((3, 1), (2, 1)))
"""Kernels and strides of the convolutions that skip pixels."""
_LONG = 128  # results of a row that is not cut
_PARTS = (56, 48, 40, 32)  # of a part of one that is; of equals the longest


@dataclass(frozen=True, slots=True)
class RowConvolution(Convolution):
    """A fused convolution whose rows are transformed: ``taps`` are those of a row, and the taps of
    ``row_taps`` rows are summed as they are. If it is ``turned``, what are called rows are the
    image's columns. A single long row is ``cut``: its parts of ``width`` results are called rows,
    ``height`` of them. ``stride`` is that along rows, ``row_stride`` from row to row.
    """

    row_taps: int = 1
    row_stride: int = 1
    turned: bool = False
    cut: bool = False

    @property
    def kernel(self) -> tuple[int, int]:
        return self.row_taps, self.taps

    @property
    def tile_sizes(self) -> tuple[int, ...]:
        """Of seven taps in several rows, whose sums are long, the ones that err least."""
        sizes = ROW_TILES[self.taps]
        return sizes[:1] if self.taps == max(ROW_TILES) and self.row_taps > 1 else sizes

    @property
    def depth(self) -> int:
        return self.inputs

    def tile_channels(self, lanes: int) -> int:
        return self.inputs

    @property
    def image(self) -> tuple[int, int]:
        """Rows of the input, and how long they are; of a row that is cut its parts."""
        rows, length = in_order(image_size(self.anchor), self.turned)
        return (self.height, self.width * self.stride) if self.cut else (rows, length)

    @property
    def taps_inside(self) -> tuple[int, int]:
        strides = (self.row_stride, self.stride)
        extents = (self.height, self.width)
        return taps_inside(extents, self.padding, self.image, self.kernel, strides)

    def transforms(self, tile: int) -> Transforms:
        return transforms_of_rows(tile, self.stride, self.taps)


def in_order(pair: Sequence[_T], turned: bool) -> tuple[_T, _T]:
    """What there is of rows and of columns, in the other order if these are called rows."""
    first, second = pair
    return (second, first) if turned else (first, second)


@lru_cache(maxsize=64)
def row_convolution_of(function: Function) -> RowConvolution | None:
    """The convolution of a fused function; None if the method does not apply."""
    anchor = find_anchor(function)
    if anchor is None or not _fits(anchor):
        return None
    position = constant_filter(function, anchor)
    if position is None:
        return None
    batch, *extents, outputs = tensor_type(anchor).shape
    *kernel, inputs, _ = tensor_type(anchor.args[1]).shape
    turned = kernel[0] > kernel[1]
    height, width = in_order(extents, turned)
    row_taps, taps = in_order(kernel, turned)
    row_stride, stride = in_order(integers(anchor.attrs, "strides"), turned)
    above, left = in_order([before for before, _ in pairs(anchor.attrs["padding"])], turned)
    cut = height == row_taps == 1 and width > _LONG
    if cut:
        width, length = min(_PARTS, key=lambda n: -(-width // n) * n), width
        height = -(-length // width)
    return RowConvolution(
        function, anchor, position, batch, height, width, inputs, outputs, (above, left),
        stride, taps, row_taps=row_taps, row_stride=row_stride, turned=turned, cut=cut,
    )  # fmt: skip


def _fits(anchor: Call) -> bool:
    if anchor.op != "conv" or not is_of_images(anchor) or not has_pixels(anchor):
        return False
    kernel, strides = tensor_type(anchor.args[1]).shape[:2], anchor.attrs["strides"]
    return (strides == (1, 1) and max(kernel) in ROW_TILES) or (kernel, strides) in STRIDED
