"""Row operators: softmax and the normalisations, but for ``lrn.py``."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from tunefarm.compiler import te
from tunefarm.compiler.dtypes import FLOATS
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.ir import Attrs, TensorType, Type
from tunefarm.compiler.ops.base import Array, Op, Pattern, broadcast_shapes, register
from tunefarm.compiler.ops.common import (
    integer,
    normalize_axis,
    number,
    out_type,
    read_wide,
    require_dtype,
    same_dtype,
    to_dtype,
    widen,
)
from tunefarm.compiler.ops.conv import channels_last, split_shape
from tunefarm.compiler.ops.reduce import reduce_stage
from tunefarm.compiler.tir.ir import Expr, Operand


def float_axis(types: Sequence[TensorType], attrs: Attrs) -> int:
    """The axis of an operator on floating-point numbers; ShapeError where it has none."""
    require_dtype(same_dtype(types), FLOATS, "floating-point numbers")
    return normalize_axis(integer(attrs, "axis"), len(types[0].shape))


def _softmax_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    float_axis(types, attrs)
    return types[0]


def _without(axis: int, i: Sequence[Expr]) -> tuple[Operand, ...]:
    """The indices of a row statistic, which has extent 1 along ``axis``."""
    return (*i[:axis], 0, *i[axis + 1 :])


def _row_peak(x: te.Tensor, axis: int) -> te.Tensor:
    """The largest element of each row. A row with a NaN is NaN by its sum, whatever this finds."""
    return reduce_stage(x, (axis,), True, te.maxnum, "softmax_max", lambda *i: read_wide(x, i))


def _softmax_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x,), out = tensors, out_type(type)
    axis = normalize_axis(integer(attrs, "axis"), len(x.shape))
    top = _row_peak(x, axis)
    powers = te.compute(
        x.shape,
        lambda *i: te.intrinsic("exp_shifted", read_wide(x, i) - top[_without(axis, i)]),
        "softmax_exp",
    )
    total = reduce_stage(powers, (axis,), True, te.sum, "softmax_sum")
    return te.compute(
        x.shape, lambda *i: te.cast(powers[i] / total[_without(axis, i)], out.dtype), "softmax"
    )


def _log_softmax_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x,), out = tensors, out_type(type)
    axis = normalize_axis(integer(attrs, "axis"), len(x.shape))
    top = _row_peak(x, axis)
    total = reduce_stage(
        x, (axis,), True, te.sum, "softmax_sum",
        lambda *i: te.intrinsic("exp_shifted", read_wide(x, i) - top[_without(axis, i)]),
    )  # fmt: skip

    def element(*i: Expr) -> Expr:
        row = _without(axis, i)
        value = read_wide(x, i) - top[row] - te.intrinsic("log", total[row])
        return te.cast(value, out.dtype)

    return te.compute(x.shape, element, "log_softmax")


def _softmax_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, axis = widen(arrays[0]), integer(attrs, "axis")
    powers = np.exp(x - np.max(x, axis, keepdims=True, initial=-np.inf))
    return to_dtype(powers / np.sum(powers, axis, keepdims=True), arrays[0].dtype.name)


def _log_softmax_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, axis = widen(arrays[0]), integer(attrs, "axis")
    shifted = x - np.max(x, axis, keepdims=True, initial=-np.inf)
    total = np.sum(np.exp(shifted), axis, keepdims=True)
    return to_dtype(shifted - np.log(total), arrays[0].dtype.name)


def _flops_each(count: int):  # type: ignore[no-untyped-def]
    """Nominal operations: so many for each element of the input."""
    return lambda types, attrs, type: count * types[0].size


register(
    Op(
        "softmax", _softmax_infer, _softmax_compute, _softmax_reference,
        Pattern.REDUCTION, {"axis": -1}, _flops_each(4),
    ),
    Op(
        "log_softmax", _softmax_infer, _log_softmax_compute, _log_softmax_reference,
        Pattern.REDUCTION, {"axis": -1}, _flops_each(4),
    ),
)  # fmt: skip


def _batch_norm_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    axis = float_axis(types, attrs)
    channels = types[0].shape[axis]
    for parameter, name in zip(types[1:], ("scale", "bias", "mean", "variance"), strict=True):
        if parameter.shape != (channels,):
            raise ShapeError(f"{name} has shape {parameter.shape}, and must be ({channels},)")
    return types[0]


def _batch_norm_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x, *parameters), out = tensors, out_type(type)
    axis = normalize_axis(integer(attrs, "axis"), len(x.shape))

    def element(*i: Expr) -> Expr:
        scale, bias, mean, variance = (read_wide(p, (i[axis],)) for p in parameters)
        root = te.intrinsic("sqrt", variance + number(attrs, "epsilon"))
        return te.cast((read_wide(x, i) - mean) * (scale / root) + bias, out.dtype)

    return te.compute(x.shape, element, "batch_norm")


def _batch_norm_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x = widen(arrays[0])
    axis = normalize_axis(integer(attrs, "axis"), x.ndim)
    shape = [x.shape[axis] if d == axis else 1 for d in range(x.ndim)]
    scale, bias, mean, variance = (widen(a).reshape(shape) for a in arrays[1:])
    y = (x - mean) * (scale / np.sqrt(variance + number(attrs, "epsilon"))) + bias
    return to_dtype(y, arrays[0].dtype.name)


def _check_affine(types: Sequence[TensorType], axis: int) -> None:
    rows = types[0].shape[axis:]
    for parameter, name in zip(types[1:], ("scale", "bias"), strict=False):
        if broadcast_shapes([rows, parameter.shape]) != rows:
            raise ShapeError(f"{name} has shape {parameter.shape}, and must broadcast to {rows}")


def _row_norm_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    _check_affine(types, float_axis(types, attrs))
    return types[0]


def _row(axis: int, i: Sequence[Expr]) -> tuple[Operand, ...]:
    """The indices of a statistic that has extent 1 from ``axis`` on."""
    return (*i[:axis], *(0 for _ in i[axis:]))


def _mean_stage(x: te.Tensor, axes: Sequence[int], name: str, value) -> te.Tensor:  # type: ignore[no-untyped-def]
    """The mean of ``value(*indices)`` over ``axes``, which keep extent 1."""
    count = max(prod(x.shape[a] for a in axes), 1)
    total = reduce_stage(x, axes, True, te.sum, f"{name}_sum", value)
    return te.compute(total.shape, lambda *i: total[i] * (1.0 / count), name)


def _layer_norm_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x, scale, bias), out = tensors, out_type(type)
    axis = normalize_axis(integer(attrs, "axis"), len(x.shape))
    axes = range(axis, len(x.shape))
    mean = _mean_stage(x, axes, "mean", lambda *i: read_wide(x, i))

    def squared(*i: Expr) -> Expr:
        centred = read_wide(x, i) - mean[_row(axis, i)]
        return centred * centred

    variance = _mean_stage(x, axes, "variance", squared)

    def element(*i: Expr) -> Expr:
        root = te.intrinsic("sqrt", variance[_row(axis, i)] + number(attrs, "epsilon"))
        y = (read_wide(x, i) - mean[_row(axis, i)]) / root
        return te.cast(y * read_wide(scale, i[axis:]) + read_wide(bias, i[axis:]), out.dtype)

    return te.compute(x.shape, element, "layer_norm")


def _layer_norm_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, scale, bias = map(widen, arrays)
    axes = tuple(range(normalize_axis(integer(attrs, "axis"), x.ndim), x.ndim))
    centred = x - np.mean(x, axes, keepdims=True)
    variance = np.mean(centred * centred, axes, keepdims=True)
    y = centred / np.sqrt(variance + number(attrs, "epsilon")) * scale + bias
    return to_dtype(y, arrays[0].dtype.name)


def _rms_norm_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x, scale), out = tensors, out_type(type)
    axis = normalize_axis(integer(attrs, "axis"), len(x.shape))
    square = _mean_stage(
        x, range(axis, len(x.shape)), "mean_square",
        lambda *i: read_wide(x, i) * read_wide(x, i),
    )  # fmt: skip

    def element(*i: Expr) -> Expr:
        root = te.intrinsic("sqrt", square[_row(axis, i)] + number(attrs, "epsilon"))
        return te.cast(read_wide(x, i) / root * read_wide(scale, i[axis:]), out.dtype)

    return te.compute(x.shape, element, "rms_norm")


def _rms_norm_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, scale = map(widen, arrays)
    axes = tuple(range(normalize_axis(integer(attrs, "axis"), x.ndim), x.ndim))
    root = np.sqrt(np.mean(x * x, axes, keepdims=True) + number(attrs, "epsilon"))
    return to_dtype(x / root * scale, arrays[0].dtype.name)


def _l2_normalize_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    """x / (max(√(Σ x² + epsilon), least) + added)"""
    (x,), out = tensors, out_type(type)
    axis = normalize_axis(integer(attrs, "axis"), len(x.shape))
    square = reduce_stage(
        x, (axis,), True, te.sum, "square_sum", lambda *i: read_wide(x, i) * read_wide(x, i)
    )
    epsilon, least, added = (number(attrs, name) for name in ("epsilon", "least", "added"))

    def element(*i: Expr) -> Expr:
        norm = te.intrinsic("sqrt", square[_without(axis, i)] + epsilon)
        norm = te.maximum(norm, te.const(least, norm.dtype)) if least else norm
        return te.cast(read_wide(x, i) / (norm + added), out.dtype)

    return te.compute(x.shape, element, "l2_normalize")


def _l2_normalize_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, axis = widen(arrays[0]), integer(attrs, "axis")
    norm = np.sqrt(np.sum(x * x, axis, keepdims=True) + number(attrs, "epsilon"))
    norm = np.maximum(norm, number(attrs, "least")) + number(attrs, "added")
    return to_dtype(x / norm, arrays[0].dtype.name)


def _group_norm_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    require_dtype(same_dtype(types), FLOATS, "floating-point numbers")
    if len(types[0].shape) < 3:
        raise ShapeError(f"takes data of at least 3 dimensions, not shape {types[0].shape}")
    _, channels, _ = split_shape(types[0].shape, channels_last(attrs))
    groups = integer(attrs, "groups")
    if groups < 1 or channels % groups:
        raise ShapeError(f"{channels} channels do not divide into {groups} groups")
    for parameter, name in zip(types[1:], ("scale", "bias"), strict=True):
        if parameter.shape != (channels,):
            raise ShapeError(f"{name} has shape {parameter.shape}, and must be ({channels},)")
    return types[0]


def _group_norm_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    """Statistics have shape (batch, groups)."""
    (x, scale, bias), out = tensors, out_type(type)
    last, groups = channels_last(attrs), integer(attrs, "groups")
    batch, channels, spatial = split_shape(x.shape, last)
    size = channels // groups
    count = max(size * prod(spatial), 1)

    def place(n: Expr, c: Expr, at: Sequence[Expr]) -> tuple[Expr, ...]:
        return (n, *at, c) if last else (n, c, *at)

    def mean_stage(name: str, value) -> te.Tensor:  # type: ignore[no-untyped-def]
        c = te.reduce_axis(size, "kc")
        at = [te.reduce_axis(e, f"k{d}") for d, e in enumerate(spatial)]
        total = te.compute(
            (batch, groups),
            lambda n, g: te.sum(value(n, g, place(n, g * size + c, at)), [c, *at]),
            f"{name}_sum",
        )
        return te.compute((batch, groups), lambda n, g: total[n, g] * (1.0 / count), name)

    mean = mean_stage("mean", lambda n, g, i: read_wide(x, i))

    def squared(n: Expr, g: Expr, i: Sequence[Expr]) -> Expr:
        centred = read_wide(x, i) - mean[n, g]
        return centred * centred

    variance = mean_stage("variance", squared)

    def element(*i: Expr) -> Expr:
        c = i[-1] if last else i[1]
        n, g = i[0], c // size
        root = te.intrinsic("sqrt", variance[n, g] + number(attrs, "epsilon"))
        y = (read_wide(x, i) - mean[n, g]) / root
        return te.cast(y * read_wide(scale, (c,)) + read_wide(bias, (c,)), out.dtype)

    return te.compute(x.shape, element, "group_norm")


def _group_norm_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, scale, bias = map(widen, arrays)
    x = np.moveaxis(x, -1, 1) if attrs["data_layout"] == "NSC" else x
    rows = x.reshape(x.shape[0], integer(attrs, "groups"), -1)
    centred = rows - np.mean(rows, 2, keepdims=True)
    variance = np.mean(centred * centred, 2, keepdims=True)
    y = (centred / np.sqrt(variance + number(attrs, "epsilon"))).reshape(x.shape)
    shape = (-1, *(1 for _ in x.shape[2:]))
    y = y * scale.reshape(shape) + bias.reshape(shape)
    y = np.moveaxis(y, 1, -1) if attrs["data_layout"] == "NSC" else y
    return to_dtype(np.ascontiguousarray(y), arrays[0].dtype.name)


register(
    Op(
        "batch_norm", _batch_norm_infer, _batch_norm_compute, _batch_norm_reference,
        Pattern.BROADCAST, {"axis": 1, "epsilon": 1e-5}, _flops_each(2),
    ),
    Op(
        "layer_norm", _row_norm_infer, _layer_norm_compute, _layer_norm_reference,
        Pattern.REDUCTION, {"axis": -1, "epsilon": 1e-5}, _flops_each(8),
    ),
    Op(
        "rms_norm", _row_norm_infer, _rms_norm_compute, _rms_norm_reference,
        Pattern.REDUCTION, {"axis": -1, "epsilon": 1e-5}, _flops_each(4),
    ),
    Op(
        "l2_normalize", _softmax_infer, _l2_normalize_compute, _l2_normalize_reference,
        Pattern.REDUCTION, {"axis": -1, "epsilon": 0.0, "least": 0.0, "added": 0.0},
        _flops_each(3),
    ),
    Op(
        "group_norm", _group_norm_infer, _group_norm_compute, _group_norm_reference,
        Pattern.REDUCTION, {"groups": 1, "epsilon": 1e-5, "data_layout": "NCS"}, _flops_each(8),
    ),
)  # fmt: skip
