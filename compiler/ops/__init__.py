"""Operators, one file a family. Importing this package fills ``OPS``."""

from tunefarm.compiler.ops.base import OPS, Op, Pattern, call, flops_of

__all__ = ["OPS", "Op", "Pattern", "call", "flops_of"]
