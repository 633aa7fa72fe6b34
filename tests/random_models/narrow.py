"""Steps with numbers of fewer bits: bytes with scales, in QDQ form, and float16."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.random_models.draft import Array, Draft


def rounded_to_bytes(draft: Draft) -> str:
    return quantized(draft, draft.pick())


def quantized(draft: Draft, x: str) -> str:
    """The numbers rounded to bytes with a zero point, and made float32 again."""
    scale = draft.number(max(np.abs(draft.of(x)).max(), 0.1) / 100)
    if draft.chance(0.5):
        zero = draft.constant(np.uint8(draft.between(100, 140)))
    else:
        zero = draft.constant(np.int8(draft.between(-10, 10)))
    y = draft.node("QuantizeLinear", x, scale, zero)
    return draft.node("DequantizeLinear", y, scale, zero)


def quantized_layer(draft: Draft) -> str:
    """A convolution or a product of bytes."""
    x = draft.pick(least=2)
    rank = len(draft.shape(x))
    bytes_ = quantized(draft, x)
    if rank in (3, 4) and draft.chance(0.7):
        y = _conv(draft, bytes_)
    else:
        n = draft.any(3, 16, 33, 64)
        y = draft.node("MatMul", bytes_, _weights(draft, draft.normal(draft.shape(x)[-1], n), 1))
    if draft.chance(0.5):
        y = draft.node(draft.any("Relu", "HardSwish", "Sigmoid"), y)
    return quantized(draft, y) if draft.chance(0.8) else y


def _conv(draft: Draft, x: str) -> str:
    _, c, *space = draft.shape(x)
    groups = draft.any(1, 1, c)
    k = c if groups == c else draft.between(1, 48)
    taps = draft.any(1, 3)
    weights = _weights(draft, draft.normal(k, c // groups, *(taps for _ in space)), 0)
    strides = [draft.any(1, 1, 2)] * len(space)
    pads = [taps // 2] * 2 * len(space)
    return draft.node("Conv", x, weights, group=groups, pads=pads, strides=strides)


def _weights(draft: Draft, weights: Array, axis: int) -> str:
    """Constant weights of bytes, with a scale for all or for each of an axis; what they multiply
    keeps its size."""
    others = tuple(i for i in range(weights.ndim) if i != axis)
    each = draft.chance(0.6)
    scale = np.abs(weights).max(others, keepdims=True) / np.float32(127)
    if not each:
        scale = scale.max(keepdims=True)
    bytes_ = np.clip(np.round(weights / scale), -127, 127).astype(np.int8)
    fan = np.float32(np.sqrt(weights.size / weights.shape[axis]))
    scales = (scale / fan).reshape(-1) if each else (scale / fan).reshape(())
    zeros = np.zeros_like(scales, np.int8)
    operands = [draft.constant(array) for array in (bytes_, scales, zeros)]
    return draft.node("DequantizeLinear", *operands, axis=axis)


def rounded_to_halves(draft: Draft) -> str:
    y = draft.node("Cast", draft.pick(), to=TensorProto.FLOAT16)
    return draft.node("Cast", y, to=TensorProto.FLOAT)


def layer_of_halves(draft: Draft) -> str:
    """A product of float16."""
    x = draft.pick(least=2)
    k = draft.shape(x)[-1]
    weights = draft.normal(k, draft.any(8, 17, 32)) / np.float32(np.sqrt(k))
    y = draft.node("Cast", x, to=TensorProto.FLOAT16)
    y = draft.node("MatMul", y, draft.constant(weights.astype(np.float16)))
    y = draft.node("Relu", y) if draft.chance(0.5) else y
    return draft.node("Cast", y, to=TensorProto.FLOAT)
