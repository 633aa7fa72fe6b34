"""Row operators that a graph spells out become one operator, so one kernel.

exp(x - max(x)) / sum(exp(x - max(x)))               ->  softmax(x)
u - log(sum(exp(u))), log(softmax(x))                ->  log_softmax(x), u = x or x - max(x)
x / max(sqrt(sum(x²)), ε)                            ->  l2_normalize[least=ε](x)
x / sqrt(mean(x²) + ε)                               ->  rms_norm(x, 1)
(x - mean(x)) / sqrt(mean((x - mean(x))²) + ε)       ->  layer_norm(x, 1, 0)
rms_norm(x, s) * c                                   ->  rms_norm(x, s * c)
layer_norm(x, s, b) * c + d                          ->  layer_norm(x, s * c, b * c + d)

The means and sums are over the last axis. Equal subexpressions are one node by now, and divisions
by constants are products.
"""

from __future__ import annotations

import math

import numpy as np
from tunefarm.compiler.dtypes import is_float, numpy_dtype
from tunefarm.compiler.ir import Call, Constant, Expr, IRModule, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.canonicalize_ops import RULES
from tunefarm.compiler.transform.constants import constant, reshape, scalar_of
from tunefarm.compiler.transform.rewrite import Rule, Uses, rewrite_main

_NORMS = ("rms_norm", "layer_norm")
_POINTWISE = ("sqrt", "log", "reciprocal", "clip", "add", "multiply", "maximum")


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


def as_log_softmax(node: Call, uses: Uses) -> Expr | None:
    """log(softmax(x)), or u - log(sum(exp(u))) where u = x - s and s is one number a row.

    The same is x - (log(sum(exp(x - s))) + s). What is -∞ because its softmax underflows becomes
    the number that it is.
    """
    if node.op not in ("log", "subtract") or not is_float(tensor_type(node).dtype):
        return None
    if node.op == "log":
        inner = node.args[0]
        if not isinstance(inner, Call) or inner.op != "softmax" or uses.get(inner, 1) > 1:
            return None
        return call("log_softmax", *inner.args, name=node.name, **inner.attrs)
    x, taken = node.args
    sums = _args(taken, "add") or ()
    for total, shift in ((taken, None), *zip(sums, sums[::-1], strict=True)):
        summed = _log_sum_exp(total)
        if summed is None:
            continue
        u, axis = summed
        shifted = _args(u, "subtract")
        if shift is None and u is x:
            is_row = shifted is not None and _is_one_a_row(shifted[1], node)
            x = shifted[0] if shifted is not None and is_row else x
        elif shifted != (x, shift) or not _is_one_a_row(shifted[1], node):
            continue
        return call("log_softmax", x, axis=axis, name=node.name)
    return None


def as_l2_norm(node: Call, uses: Uses) -> Expr | None:
    """x / (max(sqrt(max(sum(x²) + ε, a²)), b) + c), each of ε, a, b, c if it is there"""
    parts = _quotient(node)
    if parts is None or tensor_type(node).dtype not in ("float32", "float64"):
        return None
    x, norm = parts
    spread = _args(norm, "broadcast_to")
    if spread is not None and _is_one_a_row(spread[0], node):
        norm = spread[0]
    norm, added = _parted(norm, "add")
    norm, least = _parted(norm, "maximum")
    root = _args(norm, "sqrt")
    if root is None:
        return None
    square, least_square = _parted(root[0], "maximum")
    total, epsilon = _parted(square, "add")
    axis = _row_axis(total, "sum")
    if axis is None or _args(_operand(total), "multiply") != (x, x) or x.type != node.type:
        return None
    attrs = {"epsilon": epsilon, "least": max(least, math.sqrt(least_square)), "added": added}
    return call("l2_normalize", x, axis=axis, name=node.name, **attrs)


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
    """reshape(f(mean[keepdims=False](x)))  ->  f(mean[keepdims=True](x)) where that is the shape"""
    kept = _kept(node.args[0], uses) if node.op == "reshape" else None
    return kept if kept is not None and kept.type == node.type else None


def _kept(expr: Expr, uses: Uses) -> Expr | None:
    """A reduction, or a function of one and of numbers, with the axes that it dropped."""
    if not isinstance(expr, Call) or uses.get(expr, 1) > 1:
        return None
    x, *numbers = expr.args
    if expr.op in ("mean", "sum", "max", "min") and not expr.attrs["keepdims"]:
        return call(str(expr.op), x, name=expr.name, **{**expr.attrs, "keepdims": True})
    if expr.op not in _POINTWISE or any(tensor_type(n).shape != () for n in numbers):
        return None
    below = _kept(x, uses)
    return (
        None if below is None else call(str(expr.op), below, *numbers, name=expr.name, **expr.attrs)
    )


ROW_RULES: tuple[Rule, ...] = (
    kept_reduction, as_softmax, as_log_softmax, as_l2_norm, as_norm, scaled_norm,
)  # fmt: skip


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
        inverse, quotient = _args(b, "reciprocal"), _args(b, "divide")
        if inverse is not None:
            return a, inverse[0]
        if quotient is not None and scalar_of(quotient[0]) == 1:
            return a, quotient[1]
    return None


def _log_sum_exp(expr: Expr) -> tuple[Expr, int] | None:
    """(u, axis) of log(sum(exp(u)))."""
    total = _args(expr, "log")
    axis = _row_axis(total[0], "sum") if total is not None else None
    if total is None or axis is None:
        return None
    powers = _args(_operand(total[0]), "exp")
    return (powers[0], axis) if powers is not None else None


def _is_one_a_row(expr: Expr, node: Call) -> bool:
    """Whether the expression is one number for each row of the node."""
    return tensor_type(expr).shape == (*tensor_type(node).shape[:-1], 1)


def _parted(expr: Expr, op: str) -> tuple[Expr, float]:
    """(x, c) of x + c or max(x, c), c > 0; (the expression, 0) of others."""
    if op == "maximum" and isinstance(expr, Call) and expr.op == "clip":
        least = expr.attrs["min"]
        is_bound = expr.attrs["max"] is None and isinstance(least, (int, float)) and least > 0
        return (expr.args[0], float(least)) if is_bound else (expr, 0.0)  # type: ignore[arg-type]
    parts = _args(expr, op)
    value = scalar_of(parts[1]) if parts is not None else None
    if parts is None or value is None or value <= 0:
        return expr, 0.0
    return parts[0], value


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
