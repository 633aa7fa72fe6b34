"""A float32 as the sum of bfloat16s, and the products of these that a product of two is made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.target import Target

PART = "bfloat16"
DEPTH = 32  # terms that an instruction sums: those of weights are padded to whole ones


@dataclass(frozen=True, slots=True)
class Parts:
    """How many parts a float32 has, and which part of each operand, 0 the highest, are multiplied,
    in the order in which they are summed. Layouts ask for weights in parts by ``name``, which is
    stored."""

    number: int
    pairs: tuple[tuple[int, int], ...]
    name: str

    @property
    def bytes(self) -> int:
        """Of all parts of a float32."""
        return 2 * self.number

    @property
    def first(self) -> int:
        """The first pair with the highest part of the weights."""
        return next(n for n, (_, part) in enumerate(self.pairs) if part == 0)

    @property
    def by_weights(self) -> Parts:
        """With the pairs of a part of weights side by side, all parts of the left operand first:
        where registers hold all of these, they are loaded once for all vectors of a step."""
        pairs = sorted(self.pairs, key=lambda pair: (pair[1], -pair[0]))
        return replace(self, pairs=tuple(pairs))

    @property
    def returns(self) -> int:
        """How often the left operand is a part that it was before, with another one between."""
        changes = sum(a != b for (a, _), (b, _) in pairwise(self.pairs))
        return 1 + changes - self.number


# From one pair to the next one operand stays in its registers.
# All 24 bits: what is left out is below 2^-23 of the product.
THREE = Parts(3, ((0, 2), (0, 1), (1, 1), (1, 0), (2, 0), (0, 0)), "bfloat16 parts")
# 16 bits: each operand is up to 2^-17 of itself off, and 2^-16 of the product may be left out.
TWO = Parts(2, ((1, 0), (0, 0), (0, 1)), "two bfloat16 parts")

# 8 bits, for functions that round their operands to them.
ONE = Parts(1, ((0, 0),), "bfloat16")


def parts_of(target: Target) -> Parts:
    """The parts that a target's precision asks for."""
    return TWO if target.rounds_to_tf32 else THREE


def split_weights(weights: NDArray[Any], parts: Parts = THREE) -> NDArray[Any]:
    """Weights ``[taps …, K, N]`` as ``[parts, taps · K, N]`` of bfloat16, the K terms of a tap
    padded with zeros to whole instructions."""
    *taps, depth, columns = weights.shape
    whole = np.zeros((prod(taps), -(-depth // DEPTH) * DEPTH, columns), np.float32)
    whole[:, :depth] = weights.reshape(-1, depth, columns)
    rest = whole.reshape(-1, columns)
    split = np.zeros((parts.number, *rest.shape), numpy_dtype(PART))
    with np.errstate(invalid="ignore", over="ignore"):
        for part in split:
            part[...] = rest.astype(part.dtype)
            rest = rest - part.astype(np.float32)
    return split


IN_PARTS = {parts.name: partial(split_weights, parts=parts) for parts in (THREE, TWO)}
