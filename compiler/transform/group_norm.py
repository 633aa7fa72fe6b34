"""Group normalisation: found where exporters spell it out, and computed channels last.

reshape(group_norm(reshape(x, [n, groups, -1])))  ->  group_norm[groups](x)
group_norm(x, s, b) * c + d                       ->  group_norm(x, s * c, b * c + d)
group_norm[NSC](x, s, b)                          ->  (x - mean) * a + b

The last has lanes along the channels: the mean and a = s / sqrt(variance + ε) are rows of channels,
made from sums over the pixels, which only then become those of groups.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tunefarm.compiler.ir import Call, Constant, Expr, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.conv import channels_last
from tunefarm.compiler.transform.constants import constant, contiguous, reshape
from tunefarm.compiler.transform.rewrite import Rule, Uses


def regrouped(node: Call, uses: Uses) -> Expr | None:
    """The norm of a view that has whole groups as its channels is one of the image itself."""
    if node.op != "reshape" or not isinstance(norm := node.args[0], Call):
        return None
    if not _is_planar(norm, uses) or not isinstance(view := norm.args[0], Call):
        return None
    x, shape = view.args[0], tensor_type(node).shape
    if view.op != "reshape" or tensor_type(x).shape != shape or len(shape) < 3 or 0 in shape:
        return None
    batch, rows = tensor_type(view).shape[:2]
    groups = norm.attrs["groups"]
    assert isinstance(groups, int)
    if batch != shape[0] or shape[1] % rows or not _has_constant_parameters(norm):
        return None
    scale, bias = (
        constant(np.repeat(p.data, shape[1] // rows), p, p.name)  # type: ignore[union-attr]
        for p in norm.args[1:]
    )
    return call("group_norm", x, scale, bias, name=norm.name, **norm.attrs)


def scaled_group_norm(node: Call, uses: Uses) -> Expr | None:
    """group_norm(x) * c, group_norm(x) + c  ->  group_norm(x), c in its scale and bias"""
    if node.op not in ("multiply", "add") or not isinstance(norm := node.args[0], Call):
        return None
    if not _is_planar(norm, uses) or not _has_constant_parameters(norm):
        return None
    row = _channel_row(node.args[1], tensor_type(norm).shape)
    if row is None:
        return None
    x, scale, bias = norm.args
    assert isinstance(scale, Constant)
    assert isinstance(bias, Constant)
    if node.op == "add":
        bias = constant(bias.data + row, bias, bias.name)
    else:
        scale, bias = (constant(p.data * row, p, p.name) for p in (scale, bias))
    return call("group_norm", x, scale, bias, name=norm.name or node.name, **norm.attrs)


GROUP_NORM_RULES: tuple[Rule, ...] = (regrouped, scaled_group_norm)


def _is_planar(norm: Call, uses: Uses) -> bool:
    return norm.op == "group_norm" and not channels_last(norm.attrs) and uses.get(norm, 1) == 1


def _has_constant_parameters(norm: Call) -> bool:
    return all(isinstance(p, Constant) for p in norm.args[1:])


def _channel_row(expr: Expr, shape: tuple[int, ...]) -> np.ndarray[Any, Any] | None:
    """A constant that is one number for each channel of an image NCS, or for all."""
    if not isinstance(expr, Constant) or expr.data.ndim > len(shape):
        return None
    extents = (1,) * (len(shape) - expr.data.ndim) + expr.data.shape
    if any(e != 1 for d, e in enumerate(extents) if d != 1):
        return None
    return contiguous(np.broadcast_to(expr.data.reshape(-1), (shape[1],)))


def lower_group_norm(node: Call, uses: Uses) -> Expr | None:
    """group_norm[NSC]  ->  (x - mean) * a + b, from means over the pixels of each channel."""
    if node.op != "group_norm" or not channels_last(node.attrs):
        return None
    x, scale, bias = node.args
    shape, groups = tensor_type(node).shape, node.attrs["groups"]
    if tensor_type(node).dtype not in ("float32", "float64") or 0 in shape:
        return None
    assert isinstance(groups, int)
    mean = _group_mean(x, groups)
    apart = call("subtract", mean, x)  # not x - mean, which would be stored for both its readers
    variance = _group_mean(call("multiply", apart, apart), groups)
    epsilon = constant(np.array(node.attrs["epsilon"]), x)
    factor = call("divide", scale, call("sqrt", call("add", variance, epsilon)))
    scaled = call("multiply", call("subtract", x, mean), factor)
    return call("add", scaled, bias, name=node.name)


def _group_mean(x: Expr, groups: int) -> Expr:
    """The mean of each group for each of its channels: [n, …, c] -> [n, 1…, c]."""
    batch, *pixels, channels = tensor_type(x).shape
    means = call("mean", x, axes=tuple(range(1, len(pixels) + 1)), keepdims=True)
    if groups == channels:
        return means
    apart = (batch, groups, channels // groups)
    of_groups = call("mean", reshape(means, apart), axes=(2,), keepdims=True)
    spread = call("broadcast_to", of_groups, shape=apart)
    return reshape(spread, tensor_type(means).shape)
