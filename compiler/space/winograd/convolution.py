"""The convolutions that Winograd's method can compute, as a fused function has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tunefarm.compiler.ir import Call, Function, Tuple, Var, post_order, tensor_type
from tunefarm.compiler.ops.common import integers
from tunefarm.compiler.ops.conv import pad_value, pairs, result_channels_last
from tunefarm.compiler.space.program import find_anchor, is_elementwise, view_groups
from tunefarm.compiler.space.winograd.transforms import (
    FILTERS,
    TILES,
    Transforms,
    phases,
    transforms,
)


@dataclass(frozen=True, slots=True)
class Frames:
    """Images of a volume: each of the ``results`` reads ``taps`` of its ``extent``, the first of
    them the one at ``stride`` times its number less ``padding``, zeros beyond the ends."""

    extent: int
    results: int
    taps: int
    stride: int
    padding: int

    @property
    def reads(self) -> int:
        """How many frames all results read, those of each."""
        return sum(
            0 <= at * self.stride + tap - self.padding < self.extent
            for at in range(self.results)
            for tap in range(self.taps)
        )


@dataclass(frozen=True, slots=True)
class Convolution:
    """A fused convolution that Winograd's method can compute: one of ``FILTERS``, constant weights,
    channels last (of 7 × 7 in the result alone), in groups as ``group_conv``. Of a volume each
    frame of the result is an image, whose inputs are those of all ``frames`` that it reads.

    ``inputs`` are the channels that a result reads of a pixel: of several ``groups`` each has as
    many, and its part of the ``outputs``. ``padding`` is what the input lacks above and at the
    left. Of an image in ``parts`` each counts as an image, whose results read the input from
    ``part_rows`` rows further down than those of the part before.
    """

    function: Function
    anchor: Call
    filter_param: int
    batch: int
    height: int
    width: int
    inputs: int
    outputs: int
    padding: tuple[int, int]
    stride: int
    taps: int
    parts: int = 1
    part_rows: int = 0
    groups: int = 1
    frames: Frames | None = None

    @property
    def kernel(self) -> tuple[int, int]:
        """Taps of rows and of columns."""
        return self.taps, self.taps

    @property
    def tile_sizes(self) -> tuple[int, ...]:
        """Results that a tile may have in one dimension."""
        return TILES[self.taps]

    @property
    def depth(self) -> int:
        """Terms of a product: the input's channels, those of each phase or frame."""
        return self.inputs * phases(self.taps) ** 2 * self.frames_read

    @property
    def group_outputs(self) -> int:
        """Outputs that read the same inputs."""
        return self.outputs // self.groups

    @property
    def output_axes(self) -> tuple[int, ...]:
        """Outputs, or groups and outputs of a group."""
        return (self.outputs,) if self.groups == 1 else (self.groups, self.group_outputs)

    def fills_lanes(self, lanes: int) -> bool:
        """Whether no vector of terms would have inputs of two frames."""
        return self.frames is None or self.inputs % lanes == 0

    def tile_axes(self, lanes: int) -> tuple[int, ...]:
        """Channels of a transformed tile, or groups and channels of a group."""
        channels = self.tile_channels(lanes)
        return (channels,) if self.groups == 1 else (self.groups, channels)

    def tile_channels(self, lanes: int) -> int:
        """Channels of a transformed tile, of a group: those of phases fill whole vectors with
        zeros."""
        return self.depth if phases(self.taps) == 1 else -(-self.depth // lanes) * lanes

    def transforms(self, tile: int) -> Transforms:
        """The matrices for tiles of so many results in one dimension."""
        return transforms(tile, self.stride, self.taps)

    def tiles(self, tile: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of tiles of ``tile`` results in one image."""
        return -(-self.height // tile[0]), -(-self.width // tile[1])

    @property
    def taps_inside(self) -> tuple[int, int]:
        """How many taps of all rows, and of all columns of results read no padding."""
        extents = (self.height, self.width)
        windows = ((self.taps,) * 2, (self.stride,) * 2)
        return taps_inside(extents, self.padding, image_size(self.anchor), *windows)

    @property
    def frames_read(self) -> int:
        """Frames that a result reads, those beyond the ends too."""
        return 1 if self.frames is None else self.frames.taps

    @property
    def images_read(self) -> int:
        """How many images of the input all results read, those of each."""
        if self.frames is None:
            return self.batch
        return self.batch // self.frames.results * self.frames.reads

    @property
    def images(self) -> int:
        """Images of the input."""
        if self.frames is None:
            return self.batch
        return self.batch // self.frames.results * self.frames.extent


def taps_inside(
    extents: Sequence[int],
    padding: Sequence[int],
    image: Sequence[int],
    taps: Sequence[int],
    strides: Sequence[int] = (1, 1),
    dilations: Sequence[int] = (1, 1),
) -> tuple[int, int]:
    """How many taps of all rows, and of all columns of results read no padding; ``extents`` are
    those of the result, ``padding`` what the ``image`` lacks before its first row and column."""
    axes = zip(extents, padding, image, taps, strides, dilations, strict=True)
    above, across = (
        sum(0 <= at * step + tap * skip - before < size for at in range(count) for tap in range(n))
        for count, before, size, n, step, skip in axes
    )
    return above, across


@lru_cache(maxsize=64)
def convolution_of(function: Function, every: bool = False) -> Convolution | None:
    """The convolution of a fused function; None if the method does not apply. Those of several
    groups and of volumes only where the caller can compute ``every`` one."""
    if every:
        function = view_groups(function)
    anchor = find_anchor(function)
    if anchor is None or not (_fits(anchor) or (every and _fits_volume(anchor))):
        return None
    position = constant_filter(function, anchor)
    if position is None:
        return None
    frames = _frames_of(anchor)
    batch, *_ = shape = tensor_type(anchor).shape
    if frames is not None:
        batch, shape = batch * frames.results, shape[1:]
    _, height, width, *outputs = shape
    *_, (top, _), (left, _) = pairs(anchor.attrs["padding"])
    taps, _, inputs, *_ = tensor_type(anchor.args[1]).shape[frames is not None :]
    stride = integers(anchor.attrs, "strides")[-1]
    return Convolution(
        function, anchor, position, batch, height, width, inputs, prod(outputs), (top, left),
        stride, taps, groups=prod(outputs[:-1]), frames=frames,
    )  # fmt: skip


def _frames_of(anchor: Call) -> Frames | None:
    """Those of a volume."""
    if not is_volume(anchor):
        return None
    (_, extent, *_), (_, results, *_) = tensor_type(anchor.args[0]).shape, tensor_type(anchor).shape
    taps, stride = tensor_type(anchor.args[1]).shape[0], integers(anchor.attrs, "strides")[0]
    return Frames(extent, results, taps, stride, pairs(anchor.attrs["padding"])[0][0])


def constant_filter(function: Function, anchor: Call) -> int | None:
    """The number of the parameter that holds the weights; None if they vary, if another operator
    reads them, or if one is not elementwise."""
    kernel = anchor.args[1]
    calls = [e for e in post_order(function.body) if isinstance(e, Call) and e is not anchor]
    if isinstance(function.body, Tuple) or any(kernel in c.args for c in calls):
        return None
    if not all(is_elementwise(c) for c in calls):
        return None
    position = next(i for i, p in enumerate(function.params) if p is kernel)
    return position if position in function.constants else None


def image_size(anchor: Call) -> tuple[int, ...]:
    """Rows and columns of the input."""
    shape = tensor_type(anchor.args[0]).shape
    if is_volume(anchor):
        return shape[2:4]
    return shape[1:3] if has_pixels(anchor) else shape[2:]


def is_volume(anchor: Call) -> bool:
    """True for a convolution along three dimensions."""
    return anchor.op == "conv" and len(tensor_type(anchor).shape) == 5


def has_pixels(anchor: Call) -> bool:
    """True if the input's channels, or groups and channels, are last."""
    return anchor.op == "group_conv" or anchor.attrs["data_layout"] == "NSC"


def is_of_images(anchor: Call) -> bool:
    """True for convolutions of float32 images, results with their channels last, as ``conv`` of one
    group or as ``group_conv``, whose taps lie side by side."""
    rank = 4 + (anchor.op == "group_conv")
    return _is_plain(anchor) and len(tensor_type(anchor.args[1]).shape) == rank


def _is_plain(anchor: Call) -> bool:
    """The same of any number of dimensions."""
    return (
        (anchor.op == "group_conv" or _has_one_group(anchor))
        and all(isinstance(a, Var) for a in anchor.args)
        and all(tensor_type(a).dtype == "float32" for a in anchor.args)
        and all(d == 1 for d in integers(anchor.attrs, "dilations"))
        and pad_value(anchor.attrs) == 0
    )


def _fits(anchor: Call) -> bool:
    if not is_of_images(anchor):
        return False
    taps, strides = tensor_type(anchor.args[1]).shape[:2], anchor.attrs["strides"]
    apart = phases(taps[0]) > 1
    filters = [((taps, taps), (stride, stride)) for taps, stride in FILTERS]
    return (taps, strides) in filters and (anchor.op == "conv" if apart else has_pixels(anchor))


def _fits_volume(anchor: Call) -> bool:
    """True for convolutions of float32 volumes, channels last, of any taps in depth."""
    if not is_volume(anchor) or not _is_plain(anchor) or not has_pixels(anchor):
        return False
    _, *taps = tensor_type(anchor.args[1]).shape[:3]
    _, *strides = integers(anchor.attrs, "strides")
    return (taps, strides) in [([t, t], [s, s]) for t, s in FILTERS if phases(t) == 1]


def _has_one_group(anchor: Call) -> bool:
    attrs = anchor.attrs
    if anchor.op != "conv" or attrs["groups"] != 1:
        return False
    return attrs["kernel_layout"] == "SIO" and result_channels_last(attrs)
