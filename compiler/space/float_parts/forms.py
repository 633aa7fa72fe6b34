"""A float32 as the sum of three bfloat16s, which hold all of its 24 bits, and the products of parts
that a product of two is made of."""

from __future__ import annotations

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
    """Weights ``[…, K, N]`` of one tap as ``[3, K, N]`` of bfloat16, K padded with zeros to whole
    instructions."""
    depth, columns = weights.shape[-2:]
    whole = np.zeros((-(-depth // DEPTH) * DEPTH, columns), np.float32)
    whole[:depth] = weights.reshape(depth, columns)
    parts = np.zeros((PARTS, *whole.shape), numpy_dtype(PART))
    rest = whole
    with np.errstate(invalid="ignore", over="ignore"):
        for part in parts:
            part[...] = rest.astype(part.dtype)
            rest = rest - part.astype(np.float32)
    return parts
