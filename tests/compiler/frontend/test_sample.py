"""GridSample and Col2Im, held to onnxruntime's and to loops over blocks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tunefarm.compiler.errors import ModelError
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.frontend.onnx import from_onnx

import tunefarm

Shape = tuple[int, ...]


def grid_sample(image: Shape, grid: Shape, opset: int = 20, **attrs: Any) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("GridSample", ["x", "grid"], ["y"], **attrs)],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, image),
            helper.make_tensor_value_info("grid", TensorProto.FLOAT, grid),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def drawn(image: Shape, grid: Shape) -> dict[str, np.ndarray[Any, Any]]:
    """An image, and places of which many lie outside of it."""
    rng = np.random.default_rng(0)
    return {
        "x": rng.standard_normal(image).astype(np.float32),
        "grid": (1.3 * rng.standard_normal(grid)).astype(np.float32),
    }


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    "image, grid",
    [
        ((2, 3, 5, 7), (2, 4, 3, 2)),
        ((1, 5, 1, 6), (1, 2, 9, 2)),
        ((2, 2, 3, 4, 5), (2, 3, 1, 4, 3)),
    ],
)
def test_every_mode_agrees_with_onnxruntime(
    image: Shape, grid: Shape, mode: str, padding: str, aligned: int
) -> None:
    if mode == "cubic" and len(image) > 4:
        pytest.skip("onnxruntime has cubic sampling of images alone")
    if padding == "reflection" and aligned and 1 in image[2:]:
        pytest.skip("an axis of one element reflects nothing; onnxruntime divides by its length, 0")
    model = grid_sample(image, grid, mode=mode, padding_mode=padding, align_corners=aligned)
    feeds = drawn(image, grid)
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    (got,) = evaluate(from_onnx(model), feeds)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_compiled_samples_agree_under_the_older_names(mode: str) -> None:
    image, grid = (2, 17, 9, 11), (2, 6, 7, 2)
    model, feeds = grid_sample(image, grid, opset=16, mode=mode), drawn(image, grid)
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    got = tunefarm.build(from_onnx(model)).run(feeds)["y"]
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_no_place_is_read_that_does_not_exist(mode: str, padding: str) -> None:
    image, grid = (1, 2, 3, 4), (1, 1, 5, 2)
    feeds = drawn(image, grid)
    feeds["grid"] = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30], np.float32)
    feeds["grid"] = np.broadcast_to(feeds["grid"][None, None, :, None], grid).copy()
    module = from_onnx(grid_sample(image, grid, mode=mode, padding_mode=padding))
    got = tunefarm.build(module).run(feeds)["y"][0, :, 0]
    if padding == "border" and mode != "cubic":
        np.testing.assert_allclose(got[:, [1, 3]], feeds["x"][0, :, [-1], -1].T.repeat(2, 1))


@pytest.mark.parametrize(
    "image, grid, attrs, reason",
    [
        ((1, 2, 3, 4), (1, 5, 5, 3), {}, "does not fit an image"),
        ((1, 2, 3, 4), (2, 5, 5, 2), {}, "does not fit an image"),
        ((1, 2, 3, 4), (1, 5, 5, 2), {"mode": "lanczos"}, "mode 'lanczos'"),
    ],
)
def test_what_does_not_fit_is_refused(
    image: Shape, grid: Shape, attrs: dict[str, str], reason: str
) -> None:
    with pytest.raises(ModelError, match=reason):
        from_onnx(grid_sample(image, grid, **attrs))


def col2im(
    columns: Shape, image: Sequence[int], block: Sequence[int], **attrs: Sequence[int]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Col2Im", ["x", "image", "block"], ["y"], **attrs)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, columns)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(np.array(image), "image"),
            numpy_helper.from_array(np.array(block), "block"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("image, block", [((7, 9), (3, 2)), ((6, 5), (1, 5)), ((5, 5), (3, 3))])
@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
@pytest.mark.parametrize("pads, dilations", [((0, 0, 0, 0), (1, 1)), ((1, 0, 2, 1), (2, 1))])
def test_blocks_are_added_up(
    image: Shape, block: Shape, strides: Shape, pads: Shape, dilations: Shape
) -> None:
    wide = [image[d] + pads[d] + pads[2 + d] for d in range(2)]
    reach = [dilations[d] * (block[d] - 1) + 1 for d in range(2)]
    starts = [range(0, wide[d] - reach[d] + 1, strides[d]) for d in range(2)]
    blocks = list(itertools.product(*starts))
    size = block[0] * block[1]
    x = np.random.default_rng(0).standard_normal((2, 3 * size, len(blocks))).astype(np.float32)
    padded = np.zeros((2, 3, *wide), np.float32)
    for n, (top, left) in enumerate(blocks):
        rows = slice(top, top + reach[0], dilations[0])
        columns = slice(left, left + reach[1], dilations[1])
        padded[:, :, rows, columns] += x[:, :, n].reshape(2, 3, *block)
    want = padded[:, :, pads[0] : wide[0] - pads[2], pads[1] : wide[1] - pads[3]]
    module = from_onnx(
        col2im(x.shape, image, block, strides=strides, pads=pads, dilations=dilations)
    )
    np.testing.assert_allclose(evaluate(module, {"x": x})[0], want, atol=1e-6)
    np.testing.assert_allclose(tunefarm.build(module).run({"x": x})["y"], want, atol=1e-6)


def test_columns_of_another_number_of_blocks_are_refused() -> None:
    with pytest.raises(ModelError, match=r"9 blocks, and columns of shape \(1, 4, 8\)"):
        from_onnx(col2im((1, 4, 8), (4, 4), (2, 2)))
