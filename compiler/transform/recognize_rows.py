"""Row operators that a graph spells out become one operator, so one kernel.

exp(x - max(x)) / sum(exp(x - max(x)))               ->  softmax(x)
x / sqrt(mean(x²) + ε)                               ->  rms_norm(x, 1)
(x - mean(x)) / sqrt(mean((x - mean(x))²) + ε)       ->  layer_norm(x, 1, 0)
rms_norm(x, s) * c                                   ->  rms_norm(x, s * c)
layer_norm(x, s, b) * c + d                          ->  layer_norm(x, s * c, b * c + d)

The means and sums are over the last axis. Equal subexpressions are one node by now, and divisions
by constants are products.
"""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.dtypes import is_float, numpy_dtype
from tunefarm.compiler.ir import Call, Constant, Expr, IRModule, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.canonicalize_ops import RULES
from tunefarm.compiler.transform.constants import constant, reshape, scalar_of
from tunefarm.compiler.transform.rewrite import Rule, Uses, rewrite_main

_NORMS = ("rms_norm", "layer_norm")


def recognize_rows(module: IRModule, target: Target) -> IRModule:
    return rewrite_main(module, [*ROW_RULES, *RULES])


def as_softmax(node: Call, uses: Uses) -> Expr | None:
    """e / sum(e), e = exp(x) or exp(x - max(x))"""
    parts = _quotient(node)
    if parts is None or not is_float(tensor_type(node).dtype):
        return None
    top, bottom = parts
    axis = _row_axis(bottom, "sum")
    if axis is None or _args(top, "exp") is None or _operand(bottom) is not top:
        return None
    x = _operand(top)
    shifted = _args(x, "subtract")
    if shifted is not None and _row_axis(shifted[1], "max") == axis:
        x = shifted[0] if _operand(shifted[1]) is shifted[0] else x
    return call("softmax", x, axis=axis, name=node.name)


def as_norm(node: Call, uses: Uses) -> Expr | None:
    """c / sqrt(mean(c²) + ε), a layer norm where c = x - mean(x)"""
    parts = _quotient(node)
    root = _args(parts[1], "sqrt") if parts else None
    if parts is None or root is None or tensor_type(node).dtype not in ("float32", "float64"):
        return None
    epsilon = _epsilon_of(root[0], parts[0])
    if epsilon is None:
        return None
    centred = _args(parts[0], "subtract")
    if centred is not None and _is_mean_of(centred[1], centred[0]):
        one, zero = (_filled(node, v) for v in (1, 0))
        return call("layer_norm", centred[0], one, zero, epsilon=epsilon, name=node.name)
    return call("rms_norm", parts[0], _filled(node, 1), epsilon=epsilon, name=node.name)


def scaled_norm(node: Call, uses: Uses) -> Expr | None:
    """norm(x) * c, norm(x) + c  ->  norm(x), c in its scale and bias"""
    if node.op not in ("multiply", "add"):
        return None
    for norm, factor in (node.args, node.args[::-1]):
        if not isinstance(norm, Call) or norm.op not in _NORMS or uses.get(norm, 1) > 1:
            continue
        row = _row_of(factor, norm)
        if row is not None and (node.op == "multiply" or norm.op == "layer_norm"):
            return _with_factor(norm, str(node.op), row, node.name)
    return None


def kept_reduction(node: Call, uses: Uses) -> Expr | None:
    """reshape(mean[keepdims=False](x))  ->  mean[keepdims=True](x) where that is the shape"""
    inner = node.args[0] if node.op == "reshape" else None
    if not isinstance(inner, Call) or inner.op not in ("mean", "sum", "max", "min"):
        return None
    if inner.attrs["keepdims"] or uses.get(inner, 1) > 1:
        return None
    kept = call(str(inner.op), *inner.args, name=inner.name, **{**inner.attrs, "keepdims": True})
    return kept if kept.type == node.type else None


ROW_RULES: tuple[Rule, ...] = (kept_reduction, as_softmax, as_norm, scaled_norm)


def _args(expr: Expr, op: str) -> tuple[Expr, ...] | None:
    return expr.args if isinstance(expr, Call) and expr.op == op else None


def _operand(expr: Expr) -> Expr:
    assert isinstance(expr, Call)
    return expr.args[0]


def _quotient(node: Call) -> tuple[Expr, Expr] | None:
    """(a, b) of a / b or a * (1 / b)."""
    if node.op == "divide":
        return node.args[0], node.args[1]
    if node.op != "multiply":
        return None
    for a, b in (node.args, node.args[::-1]):
        inverse = _args(b, "reciprocal")
        if inverse is not None:
            return a, inverse[0]
    return None


def _row_axis(expr: Expr, op: str) -> int | None:
    """The last axis, if the expression reduces it alone and keeps it."""
    if _args(expr, op) is None or not isinstance(expr, Call) or not expr.attrs["keepdims"]:
        return None
    rank = len(tensor_type(expr).shape)
    axes = expr.attrs["axes"]
    assert isinstance(axes, tuple)
    return rank - 1 if axes in ((rank - 1,), (-1,)) else None


def _is_mean_of(expr: Expr, x: Expr) -> bool:
    return _row_axis(expr, "mean") is not None and _operand(expr) is x


def _epsilon_of(expr: Expr, x: Expr) -> float | None:
    """ε of mean(x * x) + ε; 0 where nothing is added."""
    epsilon, mean = 0.0, expr
    sums = _args(expr, "add")
    if sums is not None:
        value = scalar_of(sums[1])
        if value is None or value < 0:
            return None
        epsilon, mean = value, sums[0]
    squares = _args(_operand(mean), "multiply") if _row_axis(mean, "mean") is not None else None
    return epsilon if squares == (x, x) else None


def _filled(node: Call, value: float) -> Constant:
    kind = tensor_type(node)
    return Constant(np.full(kind.shape[-1:], value, numpy_dtype(kind.dtype)))


def _row_of(expr: Expr, norm: Call) -> Expr | None:
    """The expression as one row of the norm, if it is the same for all rows."""
    shape, row = tensor_type(expr).shape, tensor_type(norm).shape[-1]
    if len(shape) > len(tensor_type(norm).shape):
        return None
    if isinstance(expr, Constant) and expr.data.size == 1:
        return constant(np.full((row,), expr.data.reshape(-1)[0]), expr)
    is_row = shape[-1:] == (row,) and tensor_type(expr).size == row
    return reshape(expr, (row,)) if is_row else None


def _with_factor(norm: Call, op: str, row: Expr, name: str) -> Expr:
    x, *parameters = norm.args
    scale, *bias = parameters
    if op == "add":
        bias = [_combined("add", bias[0], row)]
    else:
        scale, bias = (
            _combined("multiply", scale, row),
            [_combined("multiply", b, row) for b in bias],
        )
    return call(str(norm.op), x, scale, *bias, name=norm.name or name, **norm.attrs)


def _combined(op: str, a: Expr, b: Expr) -> Expr:
    """a * b or a + b of two rows, computed at once where both are constants."""
    if isinstance(a, Constant) and isinstance(b, Constant):
        made = a.data * b.data if op == "multiply" else a.data + b.data
        return constant(made, a, b.name)
    if isinstance(a, Constant) and scalar_of(a) == (1 if op == "multiply" else 0):
        return b
    return (
        a if isinstance(a, Constant) and op == "multiply" and scalar_of(a) == 0 else call(op, a, b)
    )
