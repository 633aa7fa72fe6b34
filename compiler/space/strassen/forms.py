"""Strassen's seven products of two matrices of 2 × 2 blocks ("Gaussian elimination is not optimal",
1969)."""

from __future__ import annotations

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
LANES = (4, 8, 16)  # of targets' vectors, by whole numbers of which columns are halved


def transform_name(lanes: int) -> str:
    """The name under which layouts ask for the right operands."""
    return f"strassen{lanes}"


def transform_weights(weights: NDArray[Any], lanes: int) -> NDArray[Any]:
    """The right operands of the products, ``[7, terms, columns]`` of weights ``[…, K, N]`` of one
    tap, padded with zeros: ⌈K/2⌉ terms, and the whole vectors that hold N/2 columns."""
    depth, width = weights.shape[-2:]
    terms, columns = -(-depth // 2), -(-width // (2 * lanes)) * lanes
    whole = np.zeros((2 * terms, 2 * columns), weights.dtype)
    whole[:depth, :width] = weights.reshape(depth, width)
    blocks = whole.reshape(2, terms, 2, columns).transpose(0, 2, 1, 3).reshape(4, terms, columns)
    return np.stack([sum(c * blocks[i] for i, c in enumerate(row) if c) for row in RIGHT])
