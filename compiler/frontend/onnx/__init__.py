"""ONNX models become graph modules: ``from_onnx``."""

from tunefarm.compiler.frontend.onnx.model import from_onnx

__all__ = ["from_onnx"]
