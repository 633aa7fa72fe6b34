"""Strassen's seven products of two matrices of 2 × 2 blocks ("Gaussian elimination is not optimal",
1969)."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Blocks of the operands and of the result: 11, 12, 21, 22.
LEFT = (
    (1, 0, 0, 1),
    (0, 0, 1, 1),
    (1, 0, 0, 0),
    (0, 0, 0, 1),
    (1, 1, 0, 0),
    (-1, 0, 1, 0),
    (0, 1, 0, -1),
)
RIGHT = (
    (1, 0, 0, 1),
    (1, 0, 0, 0),
    (0, 1, 0, -1),
    (-1, 0, 1, 0),
    (0, 0, 0, 1),
    (1, 1, 0, 0),
    (0, 0, 1, 1),
)
RESULT = (
    (1, 0, 0, 1, -1, 0, 1),
    (0, 0, 1, 0, 1, 0, 0),
    (0, 1, 0, 1, 0, 0, 0),
    (1, -1, 1, 0, 0, 1, 0),
)
PRODUCTS = len(LEFT)
LANES = (4, 8, 16)  # of targets' vectors, by whole numbers of which columns are divided
LEVELS = {"strassen": 1, "strassen_2": 2}  # of each sketch: the seven products by the method again


def transform_name(lanes: int, levels: int) -> str:
    """The name under which layouts ask for the right operands."""
    return f"strassen{lanes}" if levels == 1 else f"strassen{lanes} {levels} levels"


def part_extents(depth: int, columns: int, lanes: int, levels: int) -> tuple[int, int]:
    """Terms and columns of one product, the latter by whole vectors."""
    return -(-depth >> levels), -(-columns // (lanes << levels)) * lanes


def transform_weights(weights: NDArray[Any], lanes: int, levels: int) -> NDArray[Any]:
    """The right operands of the products, ``[7^levels, terms, columns]`` of weights ``[…, K, N]``
    of one tap, padded with zeros."""
    depth, width = weights.shape[-2:]
    terms, columns = part_extents(depth, width, lanes, levels)
    whole = np.zeros((terms << levels, columns << levels), weights.dtype)
    whole[:depth, :width] = weights.reshape(depth, width)
    return np.stack(_right_operands(whole, levels))


def _right_operands(matrix: NDArray[Any], levels: int) -> list[NDArray[Any]]:
    if not levels:
        return [matrix]
    blocks = [block for half in np.split(matrix, 2) for block in np.split(half, 2, axis=1)]
    operands: list[NDArray[Any]] = []
    for row in RIGHT:
        total = reduce(np.add, [sign * blocks[n] for n, sign in enumerate(row) if sign])
        operands += _right_operands(total, levels - 1)
    return operands
