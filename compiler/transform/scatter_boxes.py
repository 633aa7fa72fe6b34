"""Scatters to places that are known and form a box, as exporters spell assignments to slices.

scatter_nd(x, every place of x, u)        ->  u
scatter_nd(x, the places of a slice, u)   ->  assign_slice(x, u)
scatter_nd[add](x, every place of x, u)   ->  x + u, and so for products, maxima and minima
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.ir import Call, Constant, Expr, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.transform.constants import reshape
from tunefarm.compiler.transform.rewrite import Rule, Uses

_COMBINE = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}


def scatter_to_box(node: Call, uses: Uses) -> Expr | None:
    """What the scatter to a box does, without its indices."""
    if node.op != "scatter_nd":
        return None
    x, indices, updates = node.args
    if not isinstance(indices, Constant):
        return None
    shape, reduction = tensor_type(x).shape, str(node.attrs["reduction"])
    box = _box_of(indices.data, shape)
    if box is None or (reduction != "none" and box.size != shape):
        return None
    new = reshape(updates, box.size)
    if reduction != "none":
        return call(_COMBINE[reduction], x, new, name=node.name)
    if box.size == shape:
        return new
    return call("assign_slice", x, new, begin=box.begin, strides=box.strides, name=node.name)


@dataclass(frozen=True, slots=True)
class _Box:
    """Elements ``begin + i * strides`` of an array, for each ``i`` of shape ``size``."""

    begin: tuple[int, ...]
    strides: tuple[int, ...]
    size: tuple[int, ...]


def _box_of(indices: NDArray[Any], shape: Sequence[int]) -> _Box | None:
    """The box of an array of ``shape`` whose elements the indices name, each once, in row-major
    order; None if they name others, or some outside."""
    depth = indices.shape[-1]
    places = indices.reshape(-1, depth)
    if not places.size:
        return None
    axes = [_progression(places[:, d], extent) for d, extent in enumerate(shape[:depth])]
    found = [a for a in axes if a is not None]
    if len(found) < depth or prod(len(a) for a in found) != len(places):
        return None
    grid = np.meshgrid(*found, indexing="ij", copy=False)
    for d, (extent, wanted) in enumerate(zip(shape, grid, strict=False)):
        named = places[:, d].reshape(wanted.shape)
        if not bool((np.where(named < 0, named + extent, named) == wanted).all()):
            return None
    rest = tuple(shape[depth:])
    return _Box(
        (*(a.start for a in found), *(0 for _ in rest)),
        (*(a.step for a in found), *(1 for _ in rest)),
        (*(len(a) for a in found), *rest),
    )


def _progression(column: NDArray[Any], extent: int) -> range | None:
    """The indices from the least to the greatest of a column, as far apart as the least two are;
    None if some are outside."""
    at = np.where(column < 0, column + extent, column)
    first, last = int(at.min()), int(at.max())
    if first < 0 or last >= extent:
        return None
    step = int(at[at > first].min()) - first if last > first else 1
    return range(first, last + 1, step)


SCATTER_RULES: tuple[Rule, ...] = (scatter_to_box,)
