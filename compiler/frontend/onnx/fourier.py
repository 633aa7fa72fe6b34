"""DFT and STFT: products with constant matrices of cosines and sines.

A complex number is a pair in the last dimension, so that a transform of n numbers to m is one
product with a matrix of (2n, 2m), or of half of that where one side is real.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.dtypes import FLOATS
from tunefarm.compiler.frontend.onnx.node import (
    Converter,
    Node,
    Unsupported,
    axis_of,
    constant,
    dtype_of,
    like,
    reshape,
    shape_of,
    take_range,
    transpose,
)
from tunefarm.compiler.ir import Expr

_LARGEST_MATRIX = 1 << 25
"""Elements of a transform's matrix: 128 MiB of float32, a transform of 2896 numbers."""


def _parts_of(turns: NDArray[np.float64]) -> NDArray[np.float64]:
    """The matrix, shape (2n, 2m), that multiplies pairs by e^(2πi·turns), of shape (n, m)."""
    c, s = np.cos(2 * np.pi * turns), np.sin(2 * np.pi * turns)
    pairs = np.stack([np.stack([c, s], -1), np.stack([-s, c], -1)], 1)
    n, m = turns.shape
    return pairs.reshape(2 * n, 2 * m)


def _turns(n: int, m: int, length: int, sign: int) -> NDArray[np.float64]:
    """sign·jk / length for j < n and k < m, without whole turns, so that large angles are exact."""
    return sign * (np.outer(np.arange(n), np.arange(m)) % length) / length


def _matrix(n: int, length: int, inverse: bool, onesided: bool) -> NDArray[np.float64]:
    """The transform of ``n`` pairs, in rows, to all that it makes of them, in columns.

    Both a one-sided inverse and its columns are real: a number and its conjugate, which is left
    out, count twice but at 0 and, for an even length, in the middle.
    """
    if not inverse:
        return _parts_of(_turns(n, length // 2 + 1 if onesided else length, length, -1))
    full = _parts_of(_turns(n, length, length, 1)) / length
    if not onesided:
        return full
    twice = np.where((np.arange(n) == 0) | (2 * np.arange(n) == length), 1, 2)
    return np.repeat(twice, 2)[:, None] * full[:, ::2]


def _check(x: Expr) -> None:
    if dtype_of(x) not in FLOATS:
        raise Unsupported(f"transforms take floating-point numbers, not {dtype_of(x)}")
    if len(shape_of(x)) < 2 or shape_of(x)[-1] not in (1, 2):
        raise Unsupported(f"a signal of shape {shape_of(x)} does not end in 1 or 2 parts")


def _transform(node: Node, x: Expr, length: int, inverse: bool, onesided: bool) -> Expr:
    """The transform along the last axis but one, which holds ``length`` numbers, or of a one-sided
    inverse the half of them."""
    *outer, n, parts = shape_of(x)
    if onesided and not inverse and parts == 2:
        raise Unsupported("a one-sided transform takes real numbers")
    if 4 * n * length > _LARGEST_MATRIX:
        raise Unsupported(f"transforms of {length} numbers are not supported, of 2048 they are")
    matrix = _matrix(n, length, inverse, onesided)
    matrix = matrix if parts == 2 else matrix[::2]
    made = 1 if inverse and onesided else 2
    y = node.emit("matmul", reshape(x, (*outer, n * parts)), like(matrix, x))
    return reshape(y, (*outer, matrix.shape[1] // made, made))


def _cut_or_padded(node: Node, x: Expr, extent: int) -> Expr:
    """The last axis but one cut, or filled with zeros, to ``extent``."""
    shape = shape_of(x)
    axis, now = len(shape) - 2, shape[-2]
    if now >= extent:
        return take_range(x, axis, 0, extent)
    zeros = np.zeros((*shape[:axis], extent - now, shape[-1]))
    return node.emit("concat", x, like(zeros, x), axis=axis)


def _dft(node: Node) -> Expr:
    x = node.x
    _check(x)
    rank = len(shape_of(x))
    if node.opset < 20:
        axis = axis_of(node.attr("axis", 1), rank)
    else:
        axis = axis_of(node.integer(2, "the axis") if node.has(2) else -2, rank)
    if axis == rank - 1:
        raise Unsupported("the last dimension holds the parts of numbers and is no axis")
    inverse, onesided = bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    if node.has(1):
        length = node.integer(1, "the length")
    else:
        length = shape_of(x)[axis]
        length = 2 * (length - 1) if inverse and onesided else length
    order = [*(d for d in range(rank) if d not in (axis, rank - 1)), axis, rank - 1]
    x = _cut_or_padded(
        node, transpose(x, order), length // 2 + 1 if inverse and onesided else length
    )
    y = _transform(node, x, length, inverse, onesided)
    return transpose(y, [order.index(d) for d in range(rank)], node.name)


def _stft(node: Node) -> Expr:
    """Frames of the signal, each a window apart, multiplied by the window and transformed."""
    x = node.x
    _check(x)
    step, shape = node.integer(1, "the step"), shape_of(x)
    if node.has(3):
        length = node.integer(3, "the frame's length")
    else:
        length = shape_of(node.ranked(2, 1))[0] if node.has(2) else shape[1]
    if step < 1 or not 1 <= length <= shape[1]:
        raise Unsupported(f"frames of {length}, {step} apart, do not fit a signal of {shape[1]}")
    count = (shape[1] - length) // step + 1
    places = np.arange(count)[:, None] * step + np.arange(length)
    frames = node.emit("gather", x, constant(places, "int64"), axis=1)
    if node.has(2):
        frames = node.emit("multiply", frames, reshape(node.input(2), (length, 1)))
    return _transform(node, frames, length, False, bool(node.attr("onesided", 1)))


CONVERTERS: dict[str, Converter] = {"DFT": _dft, "STFT": _stft}
