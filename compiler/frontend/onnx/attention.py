"""Converters of attention and rotary embeddings, in terms of matmul and softmax."""

from __future__ import annotations

from tunefarm.compiler.frontend.onnx.node import Converter

CONVERTERS: dict[str, Converter] = {}
