"""Convolutions of few channels on tensor cores: pixels padded, and neighbours taken as one.

conv[strides = 2](x[n, 3, h, w], k[7, 7, 3, o])
    ->  conv[strides = (2, 1)](packed(x)[n, h, w / 2, 8], k'[7, 4, 8, o])
        packed: channels last, 3 padded to 4, then two pixels as one of 8 channels

A tile's row of the implicit product is copied in vectors of as many bytes as a tap's channels have
side by side: 2 of three planes of float16, 8 of pixels of four channels, 16 of two such pixels.
Pixels are taken together that the stride never parts; the kernel gets taps of zeros in front, so
that its windows begin where such a group does, and behind. Constants are padded when the model is
built, and one kernel more packs the image. Zeros meet pixels that were in no window before: where
these are infinite, results beside them are NaN.

ResNet-50's first layer in float16 gathers 147 elements of 2 bytes a window, and 28 vectors of 16
bytes when it is packed, for an image that is written and read once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from tunefarm.compiler.gpu.mma import COLUMNS
from tunefarm.compiler.ir import Call, Constant, Expr, IRModule, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.common import integers
from tunefarm.compiler.ops.conv import channels_last, pairs, result_channels_last, split_shape
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.transform.constants import constant, reshape, transpose
from tunefarm.compiler.transform.convert_layout import to_channels_last
from tunefarm.compiler.transform.rewrite import Uses, rewrite_main

FEW = 8  # channels that are too few
VECTOR_BYTES = (8, 16)  # that are copied at once: as few as are worth an image, and at most


def pack_pixels(module: IRModule, target: Target) -> IRModule:
    """Runs on channels-last graphs, when the dtypes of products are settled."""
    if target.kind != "cuda" or not target.gpu.has_tensor_cores:
        return module
    dtypes = ("float16", "bfloat16", *(["float32"] if target.rounds_to_tf32 else []))

    def rule(node: Call, uses: Uses) -> Expr | None:
        return _in_vectors(node) if _fits(node, dtypes) else None

    return rewrite_main(module, [rule])


@dataclass(frozen=True, slots=True)
class Packing:
    """So many pixels side by side become one, each of so many channels."""

    pixels: int
    channels: int


def _fits(node: Call, dtypes: tuple[str, ...]) -> bool:
    """True for convolutions of constant weights, of few channels that no vectors hold."""
    if node.op != "conv" or not isinstance(node.args[1], Constant):
        return False
    x, weight = (tensor_type(a) for a in node.args)
    attrs = node.attrs
    if x.dtype not in dtypes or attrs["groups"] != 1 or attrs["kernel_layout"] != "SIO":
        return False
    _, channels, _ = split_shape(x.shape, channels_last(attrs))
    apart = not channels_last(attrs) or channels * dtype_bytes(x.dtype) % VECTOR_BYTES[0] > 0
    taps, outputs = prod(weight.shape[:-2]), weight.shape[-1]
    of_zeros = attrs["pad_value"] == 0 and tensor_type(node).size > 0
    return apart and channels < FEW and taps > 1 and outputs >= COLUMNS and of_zeros


def _packing(channels: int, stride: int, item_bytes: int) -> Packing:
    """The fewest channels of which vectors are made, then the longest vectors, then the fewest
    pixels."""

    def vector(p: Packing) -> int:
        own = p.pixels * p.channels * item_bytes
        return min(own & -own, VECTOR_BYTES[1])

    together = [g for g in range(1, stride + 1) if stride % g == 0]
    found = [Packing(g, c) for c in range(channels, FEW + 1) for g in together]
    worth = [p for p in found if vector(p) >= VECTOR_BYTES[0]]
    return min(worth, key=lambda p: (p.channels, -vector(p), p.pixels))


def _in_vectors(node: Call) -> Call | None:
    """The convolution of pixels packed into vectors; None where its windows would be others."""
    x = tensor_type(node.args[0])
    _, channels, _ = split_shape(x.shape, channels_last(node.attrs))
    return packed(node, _packing(channels, together(node), dtype_bytes(x.dtype)))


def together(node: Call) -> int:
    """The most pixels side by side that windows never part."""
    dilated = integers(node.attrs, "dilations")[-1] != 1
    return 1 if dilated else integers(node.attrs, "strides")[-1]


def front_taps(node: Call, packing: Packing) -> int:
    """Taps of zeros before a window's own, so that it begins where packed pixels do."""
    low, _ = pairs(node.attrs["padding"])[-1]
    return -low % packing.pixels


def packed(node: Call, packing: Packing) -> Call | None:
    """The convolution of packed pixels; None where its windows would be others. ``packing`` takes
    no more pixels together than divide ``together``."""
    (x, weight), attrs = node.args, node.attrs
    last = channels_last(attrs)
    batch, channels, spatial = split_shape(tensor_type(x).shape, last)
    strides, padding = integers(attrs, "strides"), pairs(attrs["padding"])
    pixels, width = packing.pixels, -(-spatial[-1] // packing.pixels)
    low, front = padding[-1][0], front_taps(node, packing)
    assert isinstance(weight, Constant)
    kernel = _packed_weights(weight, packing, front)
    taps, first, stride = kernel.data.shape[-3], (low + front) // pixels, strides[-1] // pixels
    _, _, made = split_shape(tensor_type(node).shape, result_channels_last(attrs))
    behind = max((made[-1] - 1) * stride + taps - first - width, 0)
    image = x if last else _moved_last(x)
    missing = (width * pixels - spatial[-1], packing.channels - channels)
    if any(missing):
        by = tuple((0, m) for m in (*[0] * len(spatial), *missing))
        image = call("pad", image, padding=by)
    image = reshape(image, (batch, *spatial[:-1], width, pixels * packing.channels))
    changed = {
        "strides": (*strides[:-1], stride),
        "padding": (*padding[:-1], (first, behind)),
        "data_layout": "NSC",
        "out_layout": "NSC" if result_channels_last(attrs) else "NCS",
    }
    made_of_packed = call("conv", image, kernel, name=node.name, **{**attrs, **changed})
    return made_of_packed if made_of_packed.type == node.type else None


def _moved_last(x: Expr) -> Expr:
    """The planes of an image as channels."""
    shape = tensor_type(x).shape
    if shape[1] == 1:
        return reshape(x, (shape[0], *shape[2:], 1))
    return transpose(x, to_channels_last(len(shape)))


def _packed_weights(weight: Constant, packing: Packing, front: int) -> Constant:
    """The taps of a kernel as those of packed pixels, behind so many taps of zeros."""
    *others, taps, channels, outputs = weight.data.shape
    groups = -(-(front + taps) // packing.pixels)
    behind = groups * packing.pixels - front - taps
    by = [*[(0, 0)] * len(others), (front, behind), (0, packing.channels - channels), (0, 0)]
    shape = (*others, groups, packing.pixels * packing.channels, outputs)
    return constant(np.pad(weight.data, by).reshape(shape), weight, weight.name)
