"""Weights of 2, 4 and 8 bits, which are numbers in the graph: onnxruntime's operators, and QDQ."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tunefarm.compiler.errors import ModelError
from tunefarm.compiler.frontend.onnx import from_onnx
from tunefarm.compiler.frontend.onnx.node import shape_of
from tunefarm.compiler.ir import Constant, post_order
from tunefarm.compiler.target import Target

import tunefarm
from tests.compiler.frontend.beside_onnxruntime import (
    RNG,
    Array,
    assert_alike,
    in_model,
    model_of,
    normal,
)


def packed(rows: int, numbers: int, bits: int) -> Array:
    return RNG.integers(0, 256, (rows, -(-numbers * bits // 8))).astype(np.uint8)


def product(
    shape: tuple[int, ...],
    bits: int,
    block: int,
    zeros: str = "",
    bias: bool = False,
    rows: int = 7,
    dtype: str = "float32",
    **attrs: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """MatMulNBits of data of this shape with so many rows of weights."""
    depth = shape[-1]
    blocks = -(-depth // block)
    scales = RNG.uniform(0.01, 0.1, (rows, blocks)).astype(dtype)
    zero = {"packed": packed(rows, blocks, bits), "numbers": 10 * scales}.get(zeros)
    weights = packed(rows, blocks * block, bits).reshape(rows, blocks, -1)
    inputs = [normal(*shape), weights, scales, zero, None, normal(rows) if bias else None]
    inputs = [a.astype(dtype) if a is not None and a.dtype == np.float32 else a for a in inputs]
    attrs = {"K": depth, "N": rows, "bits": bits, "block_size": block, **attrs}
    return model_of("MatMulNBits", inputs, (1, 2, 3), **attrs)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(
    "shape, block, zeros, bias",
    [
        ((3, 64), 32, "", False),
        ((2, 3, 80), 32, "packed", False),
        ((1, 48), 16, "packed", True),
        ((2, 3, 80), 16, "numbers", True),
    ],
)
def test_a_product_with_packed_weights(
    bits: int, shape: tuple[int, ...], block: int, zeros: str, bias: bool
) -> None:
    if bits == 8 and zeros == "numbers":
        pytest.skip("onnxruntime takes zero points of bytes in bytes alone")
    assert_alike(*product(shape, bits, block, zeros, bias))
    assert_alike(*product(shape, bits, block, zeros, bias, rows=37))


@pytest.mark.parametrize("signs", [1, -1])
def test_scales_of_either_sign(signs: int) -> None:
    model, feeds = product((3, 64), 4, 32, rows=37)
    scales = model.graph.initializer[1]
    turned = numpy_helper.to_array(scales) * RNG.choice([1, signs], (37, 2)).astype(np.float32)
    scales.CopyFrom(numpy_helper.from_array(turned, scales.name))
    assert_alike(model, feeds)


@pytest.mark.parametrize("level, tolerance", [(1, 1e-5), (2, 1e-4), (3, 1e-4), (4, 1e-2)])
def test_rows_may_be_rounded_as_the_model_says(level: int, tolerance: float) -> None:
    """Beside onnxruntime in float32."""
    model, feeds = product((5, 256), 4, 32, rows=37, accuracy_level=level)
    ours = tunefarm.build(from_onnx(model)).run(feeds)["o0"]
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "accuracy_level":
            attribute.i = 1
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (theirs,) = session.run(None, feeds)
    error = np.abs(ours - theirs).max() / np.abs(theirs).max()
    assert error < tolerance
    assert level != 4 or error > 1e-5 or not Target.host().has("avx512vnni")


@pytest.mark.parametrize("rows", [7, 37])
def test_a_product_of_float16(rows: int) -> None:
    model, feeds = product((3, 64), 4, 32, "packed", True, rows, "float16")
    assert_alike(model, feeds, tolerance=3e-3)


def test_flat_scales_and_zero_points() -> None:
    """As versions of onnxruntime's quantizer wrote them."""
    model, feeds = product((3, 80), 4, 32, "packed")
    for tensor in model.graph.initializer[1:]:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).ravel(), tensor.name))
    assert_alike(model, feeds)


@pytest.mark.parametrize("bits, zeros", [(2, True), (4, False), (4, True), (8, False), (8, True)])
def test_rows_of_a_packed_table(bits: int, zeros: bool) -> None:
    scales = RNG.uniform(0.01, 0.1, (11, 3)).astype(np.float32)
    rows = RNG.integers(0, 11, (2, 5))
    inputs = [packed(11, 40, bits), rows, scales, packed(11, 3, bits) if zeros else None]
    attrs = {"bits": bits, "block_size": 16}
    model, feeds = model_of("GatherBlockQuantized", inputs, (0, 2, 3), **attrs)
    assert_alike(model, feeds)
    constants = [n for n in post_order(from_onnx(model).main.body) if isinstance(n, Constant)]
    assert max(n.data.nbytes for n in constants) <= max(11 * 40 * bits // 8, 11 * 3 * 4)
    along = model_of("GatherBlockQuantized", inputs, (0, 2, 3), **attrs, gather_axis=1)
    assert shape_of(from_onnx(along[0]).main.body) == (11, 2, 5)


@pytest.mark.parametrize(
    "attrs, reason",
    [
        ({"bits": 3}, "weights of 3 bits are not supported, those of 2, 4 and 8 are"),
        ({"weight_prepacked": 1}, "weight_prepacked=1 is not supported"),
        ({"N": 5}, r"B of shape \(7, 2, 16\) does not divide into N=5 rows"),
        (
            {"block_size": 16},
            r"scales of shape \(7, 2\) for numbers of shape \(7, 64\) in blocks of 16",
        ),
    ],
)
def test_other_packed_weights_are_refused(attrs: dict[str, int], reason: str) -> None:
    model, _ = product((3, 64), 4, 32)
    node = model.graph.node[0]
    kept = [a for a in node.attribute if a.name not in attrs]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(n, v) for n, v in attrs.items())])
    with pytest.raises(ModelError, match=rf"MatMulNBits 'it'.*: {reason}$"):
        from_onnx(model)


def test_packed_weights_that_are_computed_are_refused() -> None:
    scales, weights = normal(7, 2), packed(7, 64, 4).reshape(7, 2, 16)
    model, _ = model_of("MatMulNBits", [normal(3, 64), weights, scales], K=64, N=7, block_size=32)
    with pytest.raises(ModelError, match=r"B \(input 1\) is computed at run time, not a constant"):
        from_onnx(model)


def four_bits(dtype: str, name: str, shape: tuple[int, ...]) -> onnx.TensorProto:
    values = RNG.integers(-8, 8, shape) + (8 if dtype == "UINT4" else 0)
    return helper.make_tensor(name, getattr(TensorProto, dtype), shape, values.ravel().tolist())


def by_dequantising(
    dtype: str, shape: tuple[int, int], scales: tuple[int, ...], zeros: bool, **attrs: int
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A product with weights of 4 bits in the form of QDQ."""
    scale = numpy_helper.from_array(RNG.uniform(0.01, 0.1, scales).astype(np.float32), "scale")
    weights = [four_bits(dtype, "q", shape), scale]
    weights += [four_bits(dtype, "zero", scales)] if zeros else []
    named = [t.name for t in weights] + ([] if zeros else [""])
    nodes = [
        helper.make_node("DequantizeLinear", named, ["w"], **attrs),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    ports = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
        for n, s in (("x", (3, shape[0])), ("y", (3, shape[1])))
    ]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    return in_model(graph, 21), {"x": normal(3, shape[0])}


@pytest.mark.parametrize("dtype", ["INT4", "UINT4"])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(
    "shape, scales, attrs",
    [
        ((33, 7), (), {}),
        ((33, 7), (7,), {"axis": 1}),
        ((33, 27), (27,), {"axis": 1}),
        ((48, 27), (3, 27), {"axis": 0, "block_size": 16}),
        ((40, 27), (3, 27), {"axis": 0, "block_size": 16}),
        ((48, 7), (3, 7), {"axis": 0, "block_size": 16}),
        ((7, 48), (7, 3), {"axis": 1, "block_size": 16}),
    ],
)
def test_weights_of_four_bits(
    shape: tuple[int, int], scales: tuple[int, ...], attrs: dict[str, int], zeros: bool, dtype: str
) -> None:
    assert_alike(*by_dequantising(dtype, shape, scales, zeros, **attrs))


@pytest.mark.parametrize("dtype", ["INT4", "UINT4"])
def test_four_bits_are_read_by_nothing_else(dtype: str) -> None:
    """A quantisation to four bits would give bytes."""
    model, _ = by_dequantising(dtype, (4, 4), (), True)
    more = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["z"])
    model.graph.node.append(more)
    reason = f"'zero': element type {dtype.lower()} is not supported but in DequantizeLinear$"
    with pytest.raises(ModelError, match=reason):
        from_onnx(model)


@pytest.mark.parametrize("dtype", ["INT4", "UINT4"])
def test_four_bits_are_no_output(dtype: str) -> None:
    model, _ = by_dequantising(dtype, (4, 4), (), False)
    kind = getattr(TensorProto, dtype)
    model.graph.output.append(helper.make_tensor_value_info("q", kind, (4, 4)))
    reason = f"'q': element type {dtype.lower()} is not supported but in DequantizeLinear$"
    with pytest.raises(ModelError, match=reason):
        from_onnx(model)
