"""Scatters to known places: those of boxes become assignments, all others stay scatters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pass_harness import agree, module_of, operators, var
from tunefarm.compiler.ir import Constant, IRModule, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.canonicalize_ops import canonicalize_ops

SHAPE = (4, 5, 6)
RNG = np.random.default_rng(0)


def places(*axes: Sequence[int]) -> NDArray[np.int64]:
    """Indices of the elements that are at these places of the first axes."""
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).astype("int64")


def scattered(indices: NDArray[Any], reduction: str = "none", dtype: str = "float32") -> IRModule:
    x = var("x", *SHAPE, dtype=dtype)
    updates = var("u", *indices.shape[:-1], *SHAPE[indices.shape[-1] :], dtype=dtype)
    body = call("scatter_nd", x, Constant(indices), updates, reduction=reduction)
    return module_of((x, updates), body)


def rewritten(module: IRModule) -> list[str]:
    """The operators after the pass, which must not change the result."""
    after = canonicalize_ops(module, Target("llvm"))
    inputs = [
        RNG.integers(-9, 9, tensor_type(p).shape).astype(tensor_type(p).dtype)
        for p in module.main.params
    ]
    agree(after, module, inputs)
    return operators(after.main.body)


@pytest.mark.parametrize(
    ("indices", "expected"),
    [
        (places(range(4), range(5), range(6)), []),
        (places(range(4), range(5)), []),
        (places(range(-4, 0)), []),
        (places(range(4), range(5), range(6)).reshape(-1, 3), ["reshape"]),
        (places(range(1, 3), range(5), range(0, 6, 2)), ["assign_slice"]),
        (places([2]), ["assign_slice"]),
        (np.array([2, -1]), ["reshape", "assign_slice"]),
        (places([0, 1, 3]), ["scatter_nd"]),  # at no equal distances
    ],
)
def test_boxes_become_assignments(indices: NDArray[Any], expected: list[str]) -> None:
    assert rewritten(scattered(indices)) == expected


@pytest.mark.parametrize(
    "indices",
    [places([1, 3], [4, 0]), places([0, 0, 1]), np.array([[0, 0], [1, 1]]), np.zeros((0, 1), int)],
    ids=["backwards", "twice", "diagonal", "none"],
)
def test_other_places_stay_scatters(indices: NDArray[Any]) -> None:
    assert rewritten(scattered(indices)) == ["scatter_nd"]


@pytest.mark.parametrize("first", [[3, 4], [-5, -4]])
def test_places_outside_are_no_box(first: list[int]) -> None:
    after = canonicalize_ops(scattered(places(first)), Target("llvm"))
    assert operators(after.main.body) == ["scatter_nd"]


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [("add", "add"), ("mul", "multiply"), ("max", "maximum"), ("min", "minimum")],
)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_reductions_of_all_elements(reduction: str, expected: str, dtype: str) -> None:
    assert rewritten(scattered(places(range(4)), reduction, dtype)) == [expected]
    assert rewritten(scattered(places(range(3)), reduction, dtype)) == ["scatter_nd"]
