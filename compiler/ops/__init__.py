"""Operators, one file a family. Importing this package fills ``OPS``."""

from tunefarm.compiler.ops import binary as binary
from tunefarm.compiler.ops import conv as conv
from tunefarm.compiler.ops import gather as gather
from tunefarm.compiler.ops import group_conv as group_conv
from tunefarm.compiler.ops import lrn as lrn
from tunefarm.compiler.ops import matmul as matmul
from tunefarm.compiler.ops import normalize as normalize
from tunefarm.compiler.ops import packed as packed
from tunefarm.compiler.ops import pool as pool
from tunefarm.compiler.ops import quantize as quantize
from tunefarm.compiler.ops import reduce as reduce
from tunefarm.compiler.ops import sample as sample
from tunefarm.compiler.ops import shape as shape
from tunefarm.compiler.ops import topk as topk
from tunefarm.compiler.ops import unary as unary
from tunefarm.compiler.ops import unfold as unfold
from tunefarm.compiler.ops.base import OPS, Op, Pattern, call, find, flops_of

__all__ = ["OPS", "Op", "Pattern", "call", "find", "flops_of"]
