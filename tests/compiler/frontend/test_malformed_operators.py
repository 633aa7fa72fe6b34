"""Nodes of onnxruntime's operators that no runtime takes are refused with a sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tunefarm.compiler.frontend.onnx import from_onnx

from tests.compiler.frontend.beside_onnxruntime import Array, ints, normal
from tests.compiler.frontend.refusals import Inputs, Whole, assert_refused, changed_node

WORDS = ints([1, 2, 3, 4, 5])
BYTES = np.ones((7, 2, 16), np.uint8)
ROWS = normal(1, 5, 12)
PAST = normal(1, 3, 4, 4)
DIMENSIONS = "and must have {} dimensions"

ATTENTION: Inputs = [ROWS, normal(12, 36), normal(36), None, None, None]
MULTI_HEAD: Inputs = [ROWS, ROWS, ROWS, None, None, None, None, None]
GROUPED: Inputs = [
    normal(1, 1, 64), normal(1, 1, 32), normal(1, 1, 32),
    normal(1, 2, 6, 16), normal(1, 2, 6, 16), ints(6), ints(7),
    normal(20, 8), normal(20, 8), np.array([[4]]), normal(1, 4, 1, 7),
]  # fmt: skip
ROTARY: Inputs = [normal(2, 5, 24), np.array([3]), normal(20, 4), normal(20, 4)]
NORM: Inputs = [normal(2, 3, 19), normal(2, 3, 19), normal(19)]
EMBEDDINGS: Inputs = [
    WORDS, WORDS, normal(11, 19), normal(9, 19), normal(9, 19), normal(19), normal(19),
]  # fmt: skip
PRODUCT: Inputs = [normal(3, 64), BYTES, normal(7, 2), np.ones((7, 1), np.uint8)]
TABLE: Inputs = [np.ones((11, 20), np.uint8), np.array([1, 2]), normal(11, 3)]

QUANTA = np.ones((3, 4), np.uint8)
STEP, ZERO = np.float32([0.5])[0], np.uint8([1])[0]

WHOLE: dict[str, Whole] = {
    "Attention": (ATTENTION, (), {"num_heads": 3}),
    "MultiHeadAttention": (MULTI_HEAD, (), {"num_heads": 3}),
    "GroupQueryAttention": (GROUPED, (6,), {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}),
    "RotaryEmbedding": (ROTARY, (), {"num_heads": 3, "rotary_embedding_dim": 8}),
    "SkipLayerNormalization": (NORM, (), {}),
    "SkipSimplifiedLayerNormalization": (NORM, (), {}),
    "EmbedLayerNormalization": (EMBEDDINGS, (2, 3, 4), {}),
    "FusedMatMul": ([normal(2, 3), normal(3, 5)], (), {}),
    "FusedConv": ([normal(1, 4, 7, 9), normal(6, 4, 3, 3)], (), {}),
    "MatMulNBits": (PRODUCT, (1, 2, 3), {"N": 7, "K": 64, "bits": 4, "block_size": 32}),
    "FusedGemm": ([normal(2, 3), normal(3, 5)], (), {"activation": "Relu"}),
    "QLinearConcat": ([STEP, ZERO, *[QUANTA, STEP, ZERO] * 2], (0, 1), {"axis": 1}),
    "QLinearAveragePool": (
        [np.ones((1, 2, 6, 6), np.uint8), *[STEP, ZERO] * 2],
        (),
        {"kernel_shape": [2, 2]},
    ),
    "MatMulIntegerToFloat": ([QUANTA, QUANTA.T, STEP, STEP], (), {}),
    "DynamicQuantizeMatMul": ([normal(3, 4), QUANTA.T, STEP], (), {}),
    "GatherBlockQuantized": (TABLE, (0, 2), {"bits": 4, "block_size": 16}),
}
"""Of each operator: inputs, those that are constants, and attributes that are imported."""

CASES: list[tuple[str, dict[int, Array | None], dict[str, Any], str]] = [
    ("Attention", {}, {"num_heads": 0}, "num_heads=0, and must be positive"),
    ("Attention", {}, {"num_heads": 5}, "12 columns do not divide into 5 heads"),
    ("Attention", {0: normal(5, 12)}, {}, DIMENSIONS.format(3)),
    ("Attention", {4: normal(2)}, {}, DIMENSIONS.format(5)),
    ("Attention", {5: normal(5, 5)}, {}, DIMENSIONS.format(4)),
    ("Attention", {}, {"qkv_hidden_sizes": [12, 24]}, "and must be 3 integers"),
    ("Attention", {}, {"qkv_hidden_sizes": 12}, "attribute qkv_hidden_sizes is 12, and must be a"),
    ("Attention", {}, {"num_heads": 1.5}, "attribute num_heads is 1.5, and must be an integer"),
    (
        "MultiHeadAttention",
        {i: ROWS.astype(np.int32) for i in range(3)},
        {"unidirectional": 1},
        "takes floating-point numbers, not int32",
    ),
    ("Attention", {}, {"qkv_hidden_sizes": [-12, 24, 24]}, "do not add up to 36"),
    ("MultiHeadAttention", {}, {"num_heads": 0}, "num_heads=0, and must be positive"),
    ("MultiHeadAttention", {0: normal(5, 12)}, {}, DIMENSIONS.format(3)),
    ("MultiHeadAttention", {1: normal(5, 12)}, {}, DIMENSIONS.format("3 or 4")),
    ("MultiHeadAttention", {5: np.float32([2])[0]}, {}, DIMENSIONS.format(4)),
    ("MultiHeadAttention", {6: PAST, 7: normal(2)}, {}, DIMENSIONS.format(4)),
    ("MultiHeadAttention", {7: PAST}, {}, "input 6 is missing"),
    ("GroupQueryAttention", {}, {"num_heads": 0}, "num_heads=0, and must be positive"),
    ("GroupQueryAttention", {}, {"kv_num_heads": 0}, "kv_num_heads=0, and must be positive"),
    ("GroupQueryAttention", {}, {"local_window_size": 0}, "local_window_size=0 leaves no key"),
    ("GroupQueryAttention", {0: normal(1, 64)}, {}, DIMENSIONS.format(3)),
    ("GroupQueryAttention", {3: normal(6)}, {}, DIMENSIONS.format(4)),
    ("GroupQueryAttention", {4: normal(2, 6)}, {}, DIMENSIONS.format(4)),
    ("GroupQueryAttention", {4: None}, {}, "input 4 is missing"),
    ("GroupQueryAttention", {6: ints()}, {}, "total_sequence_length is (), and must be one"),
    ("GroupQueryAttention", {6: ints(0)}, {}, "total_sequence_length=0 is less than 1 tokens"),
    ("GroupQueryAttention", {6: np.array(2**62)}, {}, "a constant of shape (4611686018427387904,)"),
    ("GroupQueryAttention", {7: normal(8)}, {}, DIMENSIONS.format(2)),
    ("GroupQueryAttention", {10: normal(7)}, {}, DIMENSIONS.format(4)),
    ("GroupQueryAttention", {10: normal(1, 7)}, {}, DIMENSIONS.format(4)),
    ("RotaryEmbedding", {}, {"num_heads": 0}, "num_heads=0, and must be positive"),
    ("RotaryEmbedding", {0: normal(5, 24)}, {}, DIMENSIONS.format("3 or 4")),
    ("RotaryEmbedding", {1: np.arange(5)}, {}, "position_ids of one dimension is one place"),
    ("RotaryEmbedding", {2: normal(4)}, {}, DIMENSIONS.format(2)),
    ("RotaryEmbedding", {2: normal(20, 0), 3: normal(20, 0)}, {}, "cosines and sines have shapes"),
    ("RotaryEmbedding", {0: normal(2, 5, 20)}, {}, "20 columns do not divide into heads of 6"),
    ("RotaryEmbedding", {0: normal(2, 5, 12)}, {}, "angles of 4 pairs for heads of 4 numbers"),
    ("SkipLayerNormalization", {1: None}, {}, "input 1 is missing"),
    ("SkipLayerNormalization", {2: None}, {}, "input 2 is missing"),
    ("SkipSimplifiedLayerNormalization", {1: None, 2: None}, {}, "input 1 is missing"),
    ("SkipSimplifiedLayerNormalization", {2: None}, {}, "input 2 is missing"),
    ("EmbedLayerNormalization", {0: ints(1, 2)}, {}, DIMENSIONS.format(2)),
    ("FusedMatMul", {1: None}, {}, "input 1 is missing"),
    ("FusedConv", {}, {"activation": "LeakyRelu"}, "activation_params is (), and must be alpha"),
    ("FusedConv", {}, {"pads": 1}, "attribute pads is 1, and must be a list"),
    ("FusedConv", {}, {"pads": [0.5] * 4}, "(0.5, 0.5, 0.5, 0.5), and must be a list"),
    ("FusedGemm", {}, {"activation": 1}, "attribute activation is 1, and must be a text"),
    ("QLinearConcat", dict.fromkeys(range(8)), {}, "input 2 is missing"),
    ("QLinearConcat", {}, {"axis": "1"}, "attribute axis is '1', and must be an integer"),
    ("QLinearAveragePool", {}, {"kernel_shape": 2}, "attribute kernel_shape is 2, and must be a"),
    ("MatMulIntegerToFloat", {3: None}, {}, "input 3 is missing"),
    ("DynamicQuantizeMatMul", {2: None}, {}, "input 2 is missing"),
    ("MatMulNBits", {}, {"N": 0}, "N=0, and must be positive"),
    ("MatMulNBits", {}, {"K": 0}, "K=0, and must be positive"),
    ("MatMulNBits", {}, {"K": 99}, "rows of 64 numbers, and of (64,) in the data, for K=99"),
    ("MatMulNBits", {0: normal(3, 48)}, {}, "and of (48,) in the data, for K=64"),
    ("MatMulNBits", {}, {"block_size": 0}, "block_size=0, and must be positive"),
    ("MatMulNBits", {1: BYTES.astype(np.int8)}, {}, "B of int8, and must be bytes (uint8)"),
    ("MatMulNBits", {3: np.ones((7, 2), np.int8)}, {}, "zero_points of int8 are not supported"),
    ("MatMulNBits", {3: np.ones((7, 0), np.uint8)}, {}, "zero_points of shape (7, 0) for numbers"),
    ("GatherBlockQuantized", {}, {"block_size": -1}, "block_size=-1, and must be positive"),
    ("GatherBlockQuantized", {2: normal(4, 3)}, {}, "scales of shape (4, 3) for numbers"),
    ("GatherBlockQuantized", {2: normal(11, 2)}, {}, "scales of shape (11, 2) for numbers"),
]


@pytest.mark.parametrize("op", WHOLE)
def test_whole_nodes_are_imported(op: str) -> None:
    from_onnx(changed_node(op, WHOLE[op], {}, {}, "com.microsoft"))


@pytest.mark.parametrize("op, inputs, attrs, reason", CASES)
def test_malformed_nodes_are_refused(
    op: str, inputs: dict[int, Array | None], attrs: dict[str, Any], reason: str
) -> None:
    model = changed_node(op, WHOLE[op], inputs, attrs, "com.microsoft")
    assert_refused(model, f"com.microsoft.{op}", reason)
