"""Nodes of ONNX's own operators that no runtime takes are refused with a sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tunefarm.compiler.errors import ModelError
from tunefarm.compiler.frontend.onnx import from_onnx

from tests.compiler.frontend.beside_onnxruntime import Array, model_of, normal
from tests.compiler.frontend.refusals import Inputs, Whole, assert_refused, changed_node

X = normal(1, 4, 6, 6)
ROWS = normal(3, 4)
DIMENSIONS = "and must have {} dimensions"
NUMBER = "expected one number"


def longs(*values: int) -> Array:
    return np.array(values, np.int64)


def one(value: Any) -> Array:
    return np.array(value, np.int64)


LSTM: Inputs = [
    normal(5, 2, 3), normal(1, 16, 3), normal(1, 16, 4), normal(1, 32), None, normal(1, 2, 4),
]  # fmt: skip
SCATTER: Inputs = [ROWS, np.zeros((2, 4), np.int64), normal(2, 4)]

WHOLE: dict[str, Whole] = {
    "ArgMax": ([ROWS], (), {"axis": 0}),
    "AveragePool": ([X], (), {"kernel_shape": [2, 2], "ceil_mode": 1}),
    "BitShift": ([np.ones(3, np.uint8)] * 2, (), {"direction": "LEFT"}),
    "Cast": ([ROWS], (), {"to": 7}),
    "Clip": ([ROWS, np.float32([0])[0], np.float32([1])[0]], (1, 2), {}),
    "Col2Im": ([normal(1, 8, 4), longs(4, 4), longs(2, 2)], (1, 2), {"strides": [2, 2]}),
    "Compress": ([ROWS, np.array([True, False])], (1,), {"axis": 0}),
    "Concat": ([ROWS, ROWS], (), {"axis": 1}),
    "ConstantOfShape": ([longs(2, 3)], (0,), {}),
    "Conv": ([X, normal(8, 4, 3, 3)], (), {"auto_pad": "SAME_UPPER"}),
    "ConvInteger": ([X.astype(np.uint8), np.ones((8, 4, 3, 3), np.uint8)], (), {}),
    "ConvTranspose": ([X, normal(4, 8, 3, 3)], (), {}),
    "CumSum": ([ROWS, one(0)], (1,), {}),
    "DepthToSpace": ([X], (), {"blocksize": 2}),
    "DequantizeLinear": (
        [np.ones((4, 6), np.int8), normal(2, 6)],
        (1,),
        {"axis": 0, "block_size": 2},
    ),
    "Det": ([normal(2, 3, 3)], (), {}),
    "Dropout": ([ROWS, np.float32([0.5])], (1,), {}),
    "DynamicQuantizeLinear": ([ROWS], (), {}),
    "Einsum": ([ROWS, ROWS], (), {"equation": "ij,ij->i"}),
    "EyeLike": ([ROWS], (), {}),
    "Flatten": ([X], (), {"axis": 2}),
    "Gather": ([ROWS, one(1)], (), {}),
    "GatherElements": ([ROWS, np.zeros((3, 1), np.int64)], (0, 1), {"axis": 1}),
    "GatherND": ([ROWS, np.zeros((3, 1), np.int64)], (), {"batch_dims": 1}),
    "GridSample": ([X, normal(1, 3, 3, 2)], (), {}),
    "GroupNormalization": ([X, normal(2), normal(2)], (), {"num_groups": 2}),
    "InstanceNormalization": ([X, normal(4), normal(4)], (), {}),
    "LRN": ([X], (), {"size": 3}),
    "LSTM": (LSTM, (), {"hidden_size": 4}),
    "LeakyRelu": ([ROWS], (), {"alpha": 0.1}),
    "Max": ([ROWS, ROWS], (), {}),
    "NonZero": ([ROWS], (0,), {}),
    "OneHot": ([longs(1, 2), one(3), normal(2)], (1,), {}),
    "Pad": ([ROWS, longs(0, 1, 0, 1), np.float32([0])[0]], (1, 2), {}),
    "Range": ([one(0), one(5), one(1)], (0, 1, 2), {}),
    "Relu": ([ROWS], (), {}),
    "Reshape": ([ROWS, longs(4, 3)], (1,), {}),
    "Resize": ([X, None, np.float32([1, 1, 2, 2])], (2,), {"mode": "linear"}),
    "ReverseSequence": ([ROWS, longs(1, 2, 2, 3)], (1,), {}),
    "STFT": ([normal(1, 16, 1), one(2), normal(8)], (1,), {}),
    "ScatterElements": (SCATTER, (), {}),
    "Slice": ([ROWS, longs(0, 1), longs(2, 3), longs(0, 1), longs(1, 1)], (1, 2, 3, 4), {}),
    "SpaceToDepth": ([X], (), {"blocksize": 2}),
    "Split": ([ROWS], (), {"num_outputs": 1}),
    "Squeeze": ([normal(1, 3), longs(0)], (1,), {}),
    "TopK": ([ROWS, longs(2)], (1,), {}),
    "Trilu": ([ROWS, one(1)], (1,), {}),
    "Unsqueeze": ([ROWS, longs(0)], (1,), {}),
}
"""Of each operator: inputs, those that are constants, and attributes that are imported."""

CASES: list[tuple[str, dict[int, Array | None], dict[str, Any], str]] = [
    ("Relu", {0: None}, {}, "input 0 is missing"),
    ("Relu", {1: ROWS}, {}, "input 1 is one too many: it takes 1"),
    ("Max", {0: None, 1: None}, {}, "input 0 is missing"),
    ("ScatterElements", {2: None}, {}, "input 2 is missing"),
    ("LeakyRelu", {}, {"alpha": "much"}, "attribute alpha is STRING, and must be FLOAT"),
    ("Concat", {}, {"axis": 1.5}, "attribute axis is FLOAT, and must be INT"),
    ("Conv", {}, {"pads": 1}, "attribute pads is INT, and must be INTS"),
    ("Conv", {}, {"strides": [0, 2]}, "strides is (0, 2), and must be 2 positive integers"),
    ("Conv", {}, {"group": 0}, "group=0, and must be positive"),
    ("Conv", {0: normal(1, 4, 6)}, {}, "do not have the same spatial dimensions"),
    ("ConvInteger", {1: np.uint8([1])[0], 3: np.uint8([0, 0])}, {}, "same spatial dimensions"),
    ("ConvTranspose", {0: normal(1, 4)}, {}, "do not have the same spatial dimensions"),
    ("ConvTranspose", {}, {"group": 0}, "group=0, and must be positive"),
    ("ConvTranspose", {}, {"output_shape": [9]}, "output_shape is (9,), and must be 2 integers"),
    ("AveragePool", {}, {"strides": [1, 0]}, "strides is (1, 0), and must be 2 positive integers"),
    ("InstanceNormalization", {0: normal(4)}, {}, "data of shape (4,) has no channels"),
    ("GroupNormalization", {0: normal(4)}, {}, "data of shape (4,) has no channels"),
    ("GroupNormalization", {}, {"num_groups": 0}, "num_groups=0, and must be positive"),
    ("LRN", {}, {"size": 0}, "size=0, and must be positive"),
    ("LRN", {}, {"size": 2**62}, "is more than any number of channels"),
    ("Dropout", {1: normal(0)}, {}, f"the ratio (input 1) is [], {NUMBER}"),
    ("LSTM", {0: normal(2, 3)}, {}, DIMENSIONS.format(3)),
    ("LSTM", {0: normal(0, 2, 3)}, {}, "no steps in data of shape (0, 2, 3)"),
    ("LSTM", {2: normal(16, 4)}, {}, DIMENSIONS.format(3)),
    ("LSTM", {1: normal(1, 12, 3)}, {}, "input 1 has shape (1, 12, 3), and must have (1, 16, 3)"),
    ("LSTM", {3: normal(1, 16)}, {}, "input 3 has shape (1, 16), and must have (1, 32)"),
    ("LSTM", {5: normal(1, 1, 4)}, {}, "input 5 has shape (1, 1, 4), and must have (1, 2, 4)"),
    ("DequantizeLinear", {1: np.float32([1])[0]}, {}, "in blocks of 2 along axis 0"),
    ("DequantizeLinear", {}, {"block_size": -1}, "in blocks of -1 along axis 0"),
    ("DequantizeLinear", {}, {"block_size": 4}, "in blocks of 4 along axis 0"),
    ("Det", {0: normal(3)}, {}, "a determinant of shape (3,), which is no matrix"),
    ("Det", {0: normal(2, 0, 0)}, {}, "a determinant of 0×0 matrices"),
    ("Einsum", {}, {"equation": "-ij,ij"}, "is not of letters for each operand"),
    ("Einsum", {}, {"equation": "ij,i..j"}, "is not of letters for each operand"),
    ("BitShift", {}, {"direction": "UP"}, "direction 'UP' is neither LEFT nor RIGHT"),
    ("Cast", {}, {"to": 99}, "element type 99 is not supported"),
    ("Clip", {1: normal(0)}, {}, "bound (input 1) is float32[0], expected one float32"),
    ("Clip", {2: longs(1)}, {}, "bound (input 2) is int64[1], expected one float32"),
    ("ArgMax", {0: normal(0, 4)}, {}, "shape (0, 4) has no elements along axis 0"),
    ("CumSum", {1: longs(0, 1)}, {}, f"the axis (input 1) is (0, 1), {NUMBER}"),
    ("CumSum", {1: np.float32([np.nan])}, {}, "the axis (input 1) is float32, expected integers"),
    ("TopK", {1: longs()}, {}, f"k (input 1) is (), {NUMBER}"),
    ("DynamicQuantizeLinear", {0: np.ones(3, np.int8)}, {}, "takes floating-point numbers, not"),
    ("STFT", {2: np.float32([1])[0]}, {}, DIMENSIONS.format(1)),
    ("GridSample", {1: np.float32([1])[0]}, {}, "a grid of () does not fit an image"),
    ("GridSample", {1: normal(2)}, {}, "a grid of (2,) does not fit an image"),
    ("Col2Im", {1: longs(4)}, {}, "which must be as many positive integers"),
    ("Col2Im", {2: longs(2, -1)}, {}, "which must be as many positive integers"),
    ("Col2Im", {2: longs(2, 2**40)}, {}, "0 blocks, and columns of shape (1, 8, 4)"),
    ("Col2Im", {}, {"strides": [2, 0]}, "which must be as many positive integers"),
    ("Compress", {0: np.float32([1])[0]}, {}, "axis 0 is not an axis of a single number"),
    ("ConstantOfShape", {0: longs(2, -1)}, {}, "a constant of shape (2, -1); up to"),
    ("ConstantOfShape", {0: longs(2**40, 2)}, {}, "a constant of shape (1099511627776, 2); up to"),
    ("DepthToSpace", {0: normal(4, 6, 6)}, {}, DIMENSIONS.format(4)),
    ("DepthToSpace", {}, {"blocksize": 0}, "blocksize=0, and must be positive"),
    ("DepthToSpace", {}, {"blocksize": 3}, "4 channels do not divide into blocks of 3 by 3"),
    ("SpaceToDepth", {}, {"blocksize": 4}, "6 by 6 does not divide into blocks of 4 by 4"),
    ("EyeLike", {0: normal(3)}, {}, DIMENSIONS.format(2)),
    ("Flatten", {}, {"axis": 5}, "axis 5 does not divide a tensor of 4 dimensions"),
    ("Gather", {0: np.float32([1])[0]}, {}, "axis 0 is not an axis of a single number"),
    ("GatherElements", {1: np.full((3, 1), 9)}, {}, "index 9 is out of bounds for axis 1"),
    ("GatherND", {}, {"batch_dims": -(2**31)}, "batch_dims=-2147483648 of shapes (3, 4) and (3"),
    ("NonZero", {0: np.float32([1])[0]}, {}, "a single number has no places"),
    ("OneHot", {1: longs()}, {}, f"the depth (input 1) is [], {NUMBER}"),
    ("OneHot", {1: np.float32(np.inf)}, {}, "a depth of inf for values of shape (2,)"),
    ("OneHot", {1: one(2**40)}, {}, "a constant of shape (1099511627776,); up to"),
    ("OneHot", {2: np.float32([1])[0]}, {}, "a depth of 3 for values of shape ()"),
    ("Pad", {1: longs(0, 1, 0)}, {}, "the padding is (0, 1, 0), and must be 4 integers"),
    ("Pad", {2: normal(0)}, {}, f"the value (input 2) is [], {NUMBER}"),
    ("Range", {1: longs()}, {}, f"limit (input 1) is [], {NUMBER}"),
    ("Range", {2: one(0)}, {}, "the numbers from 0 to 5 in steps of 0 have no end"),
    ("Range", {1: one(2**40)}, {}, "a constant of shape (1099511627776,); up to"),
    ("Reshape", {1: longs(4, -3)}, {}, "shape (4, -3) has an extent below -1"),
    ("Resize", {2: np.float32([2, 2])}, {}, "scales are [2.0, 2.0], and must be 4 positive"),
    ("Resize", {2: np.float32([1, 1, 2, 0])}, {}, "0.0], and must be 4 positive numbers"),
    ("Resize", {2: np.float32([1, 1, 2, np.nan])}, {}, "nan], and must be 4 positive numbers"),
    ("Resize", {2: np.float32([1, 1, 2, 1e12])}, {}, "a constant of shape ("),
    ("Resize", {2: None, 3: longs(1, 4, 9)}, {}, "sizes are [1, 4, 9], and must be 4 positive"),
    ("Resize", {2: None, 3: longs(1, 4, 9, -1)}, {}, "-1], and must be 4 positive integers"),
    ("Resize", {0: normal(1, 4, 0, 6)}, {}, "data of shape (1, 4, 0, 6) has no elements"),
    ("Resize", {0: X > 0}, {}, "mode 'linear' of bool is not supported"),
    ("Resize", {}, {"mode": "best"}, "mode 'best' of float32 is not supported"),
    ("ReverseSequence", {1: longs(1, 2)}, {}, "lengths (1, 2) do not fit data of shape (3, 4)"),
    ("ReverseSequence", {1: longs(1, 2, 2, 4)}, {}, "do not fit data of shape (3, 4)"),
    ("ReverseSequence", {0: normal(4)}, {}, "do not fit data of shape (4,)"),
    ("Slice", {4: longs(1, 0)}, {}, "which must be as many, and steps not 0"),
    ("Slice", {1: longs(0)}, {}, "which must be as many, and steps not 0"),
    ("Split", {}, {"num_outputs": 0}, "num_outputs=0 of 1 outputs"),
    ("Split", {0: np.float32([1])[0]}, {}, "axis 0 is not an axis of a single number"),
    ("Squeeze", {0: np.float32([1])[0]}, {}, "axis 0 is not an axis of a single number"),
    ("Trilu", {0: normal(3)}, {}, "data of shape (3,) is no matrix"),
    ("Unsqueeze", {1: longs(0, 0)}, {}, "axes (0, 0) name an axis of 4 dimensions twice"),
    ("Unsqueeze", {1: longs(7)}, {}, "axis 7 is not an axis of a tensor of 3 dimensions"),
]


@pytest.mark.parametrize("op", WHOLE)
def test_whole_nodes_are_imported(op: str) -> None:
    from_onnx(changed_node(op, WHOLE[op], {}, {}, ""))


@pytest.mark.parametrize("op, inputs, attrs, reason", CASES)
def test_malformed_nodes_are_refused(
    op: str, inputs: dict[int, Array | None], attrs: dict[str, Any], reason: str
) -> None:
    model = changed_node(op, WHOLE[op], inputs, attrs, "")
    assert_refused(model, op, reason)


def test_onnx_is_not_asked_of_an_axis_at_which_it_crashes() -> None:
    rows: Inputs = [normal(2, 3, 5), normal(4)]
    model = model_of("LayerNormalization", rows, (), (0, 1, 2), "", axis=2**31)[0]
    with pytest.raises(ModelError, match="axis 2147483648 is not an axis of a tensor of 3"):
        from_onnx(model)


def test_a_body_that_onnx_makes_is_no_fault_of_the_model() -> None:
    """onnxruntime runs it."""
    inputs: Inputs = [normal(1, 2, 3), longs(1, 1, 4, 4)]
    model = model_of("AffineGrid", inputs, (1,), (0,), "", 20)[0]
    with pytest.raises(ModelError, match="the model uses what is not supported"):
        from_onnx(model)
