"""Fold scales of single channels into the weights of a contraction.

multiply(conv(x, w), s)          ->  conv(x, w * s)       s one number an output channel
conv(multiply(x, s), w)          ->  conv(x, w * s)       s one number an input channel
multiply(add(x, b), s)           ->  add(multiply(x, s), b * s)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.dtypes import is_float
from tunefarm.compiler.ir import Call, Constant, Expr, IRModule, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.canonicalize_ops import merge_constants
from tunefarm.compiler.transform.constants import constant
from tunefarm.compiler.transform.rewrite import Uses, is_call, rewrite_main, with_args


def fold_scale_axis(module: IRModule, target: Target) -> IRModule:
    """Weights must be constant and the contraction's result used by the scale alone."""
    return rewrite_main(module, [_distribute, merge_constants, _scale_outputs, _scale_inputs])


def _constant_factor(node: Expr) -> tuple[Expr, Constant] | None:
    """(x, s) of multiply(x, s) with a constant s."""
    if not is_call(node, "multiply"):
        return None
    assert isinstance(node, Call)
    x, s = node.args
    if isinstance(x, Constant):
        x, s = s, x
    return (x, s) if isinstance(s, Constant) and not isinstance(x, Constant) else None


def _distribute(node: Call, uses: Uses) -> Expr | None:
    """multiply(add(x, b), s)  ->  add(multiply(x, s), b * s), on the way to another factor."""
    found = _constant_factor(node)
    if found is None or not is_call(found[0], "add") or uses.get(found[0], 1) > 1:
        return None
    added, s = found
    assert isinstance(added, Call)
    x, b = added.args
    if isinstance(x, Constant):
        x, b = b, x
    if not isinstance(b, Constant) or not is_call(x, "conv", "matmul", "multiply"):
        return None
    if is_call(x, "multiply") and _constant_factor(x) is None:
        return None
    if np.broadcast_shapes(b.data.shape, s.data.shape) not in (b.data.shape, s.data.shape):
        return None
    shift = constant(b.data * s.data, b, b.name)
    return call("add", call("multiply", x, s), shift, name=added.name)


def _scale_outputs(node: Call, uses: Uses) -> Expr | None:
    found = _constant_factor(node)
    if found is None or not is_call(found[0], "conv", "matmul") or uses.get(found[0], 1) > 1:
        return None
    anchor, s = found
    assert isinstance(anchor, Call)
    x, w = anchor.args
    kind = tensor_type(anchor)
    if kind != tensor_type(node) or not isinstance(w, Constant) or not is_float(kind.dtype):
        return None
    axis = len(kind.shape) - 1
    if anchor.op == "conv" and anchor.attrs["data_layout"] == "NCS":
        axis = 1
    factor = factors_along(s.data, axis, len(kind.shape))
    if factor is None or (factor.size > 1 and w.data.ndim == 1):
        return None
    return with_args(anchor, [x, _scaled(w, factor, _output_axis(anchor))])


def _scale_inputs(node: Call, uses: Uses) -> Expr | None:
    if node.op not in ("conv", "matmul"):
        return None
    found = _constant_factor(node.args[0])
    w = node.args[1]
    if found is None or not isinstance(w, Constant) or uses.get(node.args[0], 1) > 1:
        return None
    x, s = found
    kind = tensor_type(node.args[0])
    if tensor_type(x) != kind or not is_float(kind.dtype):
        return None
    if node.op == "conv" and node.attrs["groups"] != 1:
        return None
    axis = len(kind.shape) - 1
    if node.op == "conv" and node.attrs["data_layout"] == "NCS":
        axis = 1
    if node.op == "matmul" and node.attrs["transpose_a"]:
        axis -= 1
    factor = factors_along(s.data, axis, len(kind.shape))
    if factor is None:
        return None
    return with_args(node, [x, _scaled(w, factor, _input_axis(node))])


def factors_along(factors: NDArray[Any], axis: int, rank: int) -> NDArray[Any] | None:
    """The factors if they vary along ``axis`` of a rank-``rank`` tensor alone, else None."""
    shape = (1,) * (rank - factors.ndim) + factors.shape
    varies = [d for d, extent in enumerate(shape) if extent != 1]
    return factors.reshape(-1) if varies in ([], [axis]) else None


def _output_axis(anchor: Call) -> int:
    if anchor.op == "conv":
        return -1 if anchor.attrs["kernel_layout"] == "SIO" else 0
    return -2 if anchor.attrs["transpose_b"] else -1


def _input_axis(anchor: Call) -> int:
    if anchor.op == "conv":
        return -2 if anchor.attrs["kernel_layout"] == "SIO" else 1
    return -1 if anchor.attrs["transpose_b"] else -2


def _scaled(w: Constant, factor: NDArray[Any], axis: int) -> Constant:
    shape = [1] * w.data.ndim
    shape[axis] = factor.size
    return Constant(np.multiply(w.data, factor.reshape(shape), dtype=w.data.dtype), w.name)
