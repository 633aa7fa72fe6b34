"""Weights of whole vectors of columns, and behind them those of the last columns, terms last."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LANES = (4, 8, 16)  # of targets' vectors, by whole numbers of which columns are divided


def transform_name(lanes: int, turned: bool) -> str:
    """The name under which layouts ask for such weights."""
    return f"columns{lanes} turned" if turned else f"columns{lanes}"


def parted(weights: NDArray[Any], lanes: int, turned: bool) -> NDArray[Any]:
    """``[columns / lanes][terms][lanes]`` of the whole vectors of ``[…, K, N]`` of one tap, or of
    ``[N, K]`` if it is ``turned``, then ``[rest][terms]`` of the columns behind them."""
    shape: tuple[int, int] = weights.shape[-2:]
    matrix = weights.reshape(shape).T if turned else weights.reshape(shape)
    terms, columns = shape[::-1] if turned else shape
    whole = columns // lanes * lanes
    vectors = matrix[:, :whole].reshape(terms, whole // lanes, lanes).transpose(1, 0, 2)
    return np.concatenate([vectors.ravel(), matrix[:, whole:].T.ravel()])
