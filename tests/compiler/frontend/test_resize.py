"""Resize where float32 decides: how many pixels there are, and which is the nearest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiler.frontend.beside_onnxruntime import assert_alike, model_of, normal


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    ("extent", "scale"),
    [(20, 1.4), (35, 1.4), (10, 2.3), (30, 0.7), (10, 0.9)],  # whole results of inexact scales
)
def test_results_are_counted_in_float32(extent: int, scale: float, mode: str) -> None:
    x = normal(1, 3, extent, 4)
    scales = np.float32([1, 1, scale, 1])
    assert extent * float(scales[2]) < round(extent * scale)
    model, feeds = model_of("Resize", [x, None, scales], (2,), domain="", mode=mode)
    assert_alike(model, feeds)


@pytest.mark.parametrize("transform", ["half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize("nearest", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize(("extent", "size"), [(20, 28), (23, 20), (14, 78), (34, 10), (13, 61)])
def test_the_nearest_pixel_is_told_in_float32(
    extent: int, size: int, nearest: str, transform: str
) -> None:
    attrs: dict[str, Any] = {"mode": "nearest", "nearest_mode": nearest}
    attrs["coordinate_transformation_mode"] = transform
    sizes = np.int64([1, 1, size, 4])
    model, feeds = model_of(
        "Resize", [normal(1, 1, extent, 4), None, None, sizes], (3,), domain="", **attrs
    )
    assert_alike(model, feeds)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("extent", [2, 3, 9])
def test_a_single_result_of_pytorch_is_the_first_pixel(extent: int, mode: str) -> None:
    sizes = np.int64([1, 2, 1, 5])
    model, feeds = model_of(
        "Resize", [normal(1, 2, extent, 5), None, None, sizes], (3,), domain="", mode=mode,
        coordinate_transformation_mode="pytorch_half_pixel",
    )  # fmt: skip
    assert_alike(model, feeds)
