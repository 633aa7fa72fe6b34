"""Converters of the domain com.microsoft: what onnxruntime's quantizer and optimizers write."""

from __future__ import annotations

from tunefarm.compiler.frontend.onnx.microsoft import (
    attention,
    fused,
    grouped,
    normalize,
    packed,
    quantized,
    rotary,
)
from tunefarm.compiler.frontend.onnx.node import Converter

DOMAIN = "com.microsoft"
CONVERTERS: dict[str, Converter] = {
    **quantized.CONVERTERS,
    **fused.CONVERTERS,
    **normalize.CONVERTERS,
    **rotary.CONVERTERS,
    **attention.CONVERTERS,
    **grouped.CONVERTERS,
    **packed.CONVERTERS,
}
