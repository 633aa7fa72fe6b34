"""A float32 as the sum of three bfloat16s, which hold all of its 24 bits, and the products of parts
that a product of two is made of."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.dtypes import numpy_dtype

PART, PARTS = "bfloat16", 3
IN_PARTS = "bfloat16 parts"  # the name under which layouts ask for them
DEPTH = 32  # terms that an instruction sums: those of weights are padded to whole ones

# Which part of each operand, 0 the highest, in the order in which they are summed. From one to the
# next one operand stays in its registers. What is left out is below 2^-23 of the product.
PAIRS = ((0, 2), (0, 1), (1, 1), (1, 0), (2, 0), (0, 0))


def split_weights(weights: NDArray[Any]) -> NDArray[Any]:
    """Weights ``[taps …, K, N]`` as ``[3, taps · K, N]`` of bfloat16, the K terms of a tap padded
    with zeros to whole instructions."""
    *taps, depth, columns = weights.shape
    whole = np.zeros((prod(taps), -(-depth // DEPTH) * DEPTH, columns), np.float32)
    whole[:, :depth] = weights.reshape(-1, depth, columns)
    rest = whole.reshape(-1, columns)
    parts = np.zeros((PARTS, *rest.shape), numpy_dtype(PART))
    with np.errstate(invalid="ignore", over="ignore"):
        for part in parts:
            part[...] = rest.astype(part.dtype)
            rest = rest - part.astype(np.float32)
    return parts
