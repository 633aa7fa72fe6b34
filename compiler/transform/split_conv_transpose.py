"""Transposed convolutions of constant kernels become ordinary ones, without inserted zeros.

The outputs p ≡ c (mod stride) of one dimension read every (stride / gcd)-th tap, mirrored, with
stride 1: a class of outputs is a convolution of its own, of about k / stride taps.

conv_transpose[strides = (2, 2)](x, w)  ->  interleave(conv(x, w₀₀), conv(x, w₀₁), …)
                                        or  interleave(conv(x, [w₀₀ w₀₁ …]))

The second form, one convolution with the classes as output channels, multiplies where one class
reads what another does not; it is taken where its vectors hold more than they waste.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd, prod

import numpy as np
from tunefarm.compiler.ir import Call, Constant, Expr, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.base import Array
from tunefarm.compiler.ops.common import integer, integers
from tunefarm.compiler.ops.conv import pairs
from tunefarm.compiler.transform.constants import reshape, transpose
from tunefarm.compiler.transform.rewrite import Uses

_LANES = 16


@dataclass(frozen=True, slots=True)
class _Class:
    """Outputs of one residue along a dimension: y[v] = Σⱼ x[v + first + j · step] · w[taps[j]]."""

    taps: tuple[int, ...]
    first: int
    step: int

    @property
    def last(self) -> int:
        return self.first + (max(len(self.taps), 1) - 1) * self.step


def split_conv_transpose(node: Call, uses: Uses) -> Expr | None:
    """Runs on channels-last graphs; the kernel must be a constant."""
    if node.op != "conv_transpose" or node.attrs["data_layout"] != "NSC":
        return None
    x, weight = node.args
    if not isinstance(weight, Constant) or not tensor_type(node).size:
        return None
    strides = integers(node.attrs, "strides")
    extents = [-(-e // s) for e, s in zip(tensor_type(node).shape[1:-1], strides, strict=True)]
    axes = _classes(node, weight.data.shape[2:])
    classes = list(product(*axes))
    kernel = _grouped_kernel(weight.data, integer(node.attrs, "groups"))
    joined = [_union(axis) for axis in axes]
    windows = zip([*joined], [*axes], extents, tensor_type(x).shape[1:-1], strict=True)
    if any(not _reads(w, e, n) for j, own, e, n in windows for w in (j, *own)):
        return None
    if integer(node.attrs, "groups") == 1 and _prefers_one(classes, joined, kernel.shape[-1]):
        parts = np.stack([_joined_kernel(kernel, c, joined) for c in classes], -2)
        merged = parts.reshape(*parts.shape[:-2], -1)
        y = _conv(x, merged, joined, extents, node)
        y = reshape(y, (*tensor_type(y).shape[:-1], len(classes), kernel.shape[-1]))
    else:
        results = [_conv(x, _taken(kernel, c), c, extents, node) for c in classes]
        shape = (*tensor_type(results[0]).shape[:-1], 1, kernel.shape[-1])
        results = [reshape(r, shape) for r in results]
        y = call("concat", *results, axis=len(shape) - 2) if len(results) > 1 else results[0]
    return _interleaved(y, strides, tensor_type(node).shape)


def _classes(node: Call, kernel: Sequence[int]) -> list[list[_Class]]:
    """For each spatial dimension, the classes of its outputs."""
    return [
        [_class(c + lo, k, stride, dilation) for c in range(stride)]
        for k, stride, dilation, (lo, _) in zip(
            kernel, integers(node.attrs, "strides"), integers(node.attrs, "dilations"),
            pairs(node.attrs["padding"]), strict=True,
        )
    ]  # fmt: skip


def _class(place: int, kernel: int, stride: int, dilation: int) -> _Class:
    """Outputs at ``place``, ``place + stride``, … of the uncropped result.

    Tap t reads x[(place - t · dilation) / stride] for the first of them, where that is whole.
    """
    taps = [t for t in range(kernel) if (place - t * dilation) % stride == 0]
    step = dilation // gcd(dilation, stride)
    reads = [(place - t * dilation) // stride for t in reversed(taps)]
    return _Class(tuple(reversed(taps)), reads[0] if reads else 0, step)


def _union(classes: Sequence[_Class]) -> _Class:
    """A window that covers what all classes read; its taps are of no kernel."""
    used = [c for c in classes if c.taps]
    first, last = min(c.first for c in used), max(c.last for c in used)
    step = gcd(*(c.step for c in used if len(c.taps) > 1), *(c.first - first for c in used))
    step = step or 1
    return _Class(tuple(range((last - first) // step + 1)), first, step)


def _reads(window: _Class, outputs: int, length: int) -> bool:
    """Whether some output of the window reads some element of the data."""
    return max(window.first, 0) + max(length - outputs - window.last, 0) < length


def _prefers_one(
    classes: Sequence[Sequence[_Class]], joined: Sequence[_Class], channels: int
) -> bool:
    """Whether one convolution fills its vectors better than it wastes taps."""

    def lanes(n: int) -> int:
        return -(-n // _LANES) * _LANES

    apart = sum(prod(len(c.taps) for c in each) for each in classes) * lanes(channels)
    together = prod(len(c.taps) for c in joined) * lanes(len(classes) * channels)
    return len(classes) > 1 and together <= apart


def _grouped_kernel(weight: Array, groups: int) -> Array:
    """[groups · inner, outputs, …] as [… , inner, groups · outputs]."""
    inputs, outputs, *kernel = weight.shape
    split = weight.reshape(groups, inputs // groups, outputs, *kernel)
    moved = np.moveaxis(split, (1, 0, 2), (-3, -2, -1))
    return moved.reshape(*kernel, inputs // groups, groups * outputs)


def _taken(kernel: Array, classes: Sequence[_Class]) -> Array:
    """The taps of one class; a single zero where it has none."""
    if any(not c.taps for c in classes):
        return np.zeros((*(max(len(c.taps), 1) for c in classes), *kernel.shape[-2:]), kernel.dtype)
    return kernel[np.ix_(*(c.taps for c in classes))]


def _joined_kernel(kernel: Array, classes: Sequence[_Class], joined: Sequence[_Class]) -> Array:
    """The taps of one class in the window of all."""
    made = np.zeros((*(len(j.taps) for j in joined), *kernel.shape[-2:]), kernel.dtype)
    places = [
        [(c.first + i * c.step - j.first) // j.step for i in range(len(c.taps))]
        for c, j in zip(classes, joined, strict=True)
    ]
    if all(c.taps for c in classes):
        made[np.ix_(*places)] = _taken(kernel, classes)
    return made


def _conv(
    x: Expr, kernel: Array, classes: Sequence[_Class], extents: Sequence[int], node: Call
) -> Expr:
    """The stride-1 convolution whose output v reads x from v + first on; ``extents`` outputs."""
    begin, size, padding = [0], [tensor_type(x).shape[0]], []
    for window, out, length in zip(classes, extents, tensor_type(x).shape[1:-1], strict=True):
        low, high = -window.first, out - length + window.last
        begin.append(max(-low, 0))
        size.append(length - max(-low, 0) - max(-high, 0))
        padding.append((max(low, 0), max(high, 0)))
    begin.append(0)
    size.append(tensor_type(x).shape[-1])
    if tuple(size) != tensor_type(x).shape:
        x = call("slice", x, begin=tuple(begin), size=tuple(size), strides=(1,) * len(size))
    weight = np.ascontiguousarray(kernel)
    name = node.args[1].name if isinstance(node.args[1], Constant) else ""
    return call(
        "conv", x, Constant(weight, name), name=node.name, strides=(1,) * len(extents),
        padding=tuple(padding), dilations=tuple(c.step for c in classes),
        groups=node.attrs["groups"], data_layout="NSC", kernel_layout="SIO",
    )  # fmt: skip


def _interleaved(y: Expr, strides: Sequence[int], shape: tuple[int, ...]) -> Expr:
    """[n, v₁, …, s₁ · …, o]  ->  [n, v₁ · s₁, …, o], cropped to ``shape``."""
    rank = len(strides)
    batch, *extents, _, channels = tensor_type(y).shape
    split = reshape(y, (batch, *extents, *strides, channels))
    order = [a for d in range(rank) for a in (1 + d, 1 + rank + d)]
    moved = transpose(split, (0, *order, 2 * rank + 1))
    full = [e * s for e, s in zip(extents, strides, strict=True)]
    whole = reshape(moved, (batch, *full, channels))
    if tensor_type(whole).shape == shape:
        return whole
    return call("slice", whole, begin=(0,) * len(shape), size=shape, strides=(1,) * len(shape))
