"""Reductions over axes, positions of extremes, and running sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
from tunefarm.compiler import te
from tunefarm.compiler.dtypes import FLOATS, INTEGERS, is_float, wide
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.ir import Attrs, TensorType, Type
from tunefarm.compiler.ops.base import Array, Op, Pattern, register
from tunefarm.compiler.ops.common import (
    integer,
    integers,
    narrow,
    normalize_axes,
    normalize_axis,
    out_type,
    require_dtype,
    to_dtype,
    widen,
)
from tunefarm.compiler.ops.loops import over, scan_place, with_index
from tunefarm.compiler.tir.ir import BinaryOp, Expr, For, Seq, Stmt, Store, Var, binary

NUMBERS = INTEGERS + FLOATS


def reduced_shape(shape: tuple[int, ...], axes: Sequence[int], keepdims: bool) -> tuple[int, ...]:
    kept = ((1 if d in axes else e) for d, e in enumerate(shape) if keepdims or d not in axes)
    return tuple(kept)


def reduce_stage(
    x: te.Tensor,
    axes: Sequence[int],
    keepdims: bool,
    reduce: Callable[[Expr, Sequence[Var]], te.Reduce],
    name: str,
    value: Callable[..., Expr] | None = None,
) -> te.Tensor:
    """``reduce`` over ``axes`` of ``value(*indices)``, by default the element of ``x``."""
    over = {a: te.reduce_axis(x.shape[a], f"k{a}") for a in axes}

    def element(*i: Expr) -> te.Reduce:
        rest = iter(i)
        at: list[Expr] = []
        for d in range(len(x.shape)):
            if d not in over:
                at.append(next(rest))
            else:
                at.append(over[d])
                if keepdims:
                    next(rest)
        return reduce(value(*at) if value else x[tuple(at)], list(over.values()))

    return te.compute(reduced_shape(x.shape, axes, keepdims), element, name)


def _axes(attrs: Attrs, rank: int) -> tuple[int, ...]:
    return normalize_axes(integers(attrs, "axes"), rank)


def _reduction(
    name: str,
    reduce: Callable[[Expr, Sequence[Var]], te.Reduce],
    vector: Callable[..., Array],
    allowed: tuple[str, ...] = NUMBERS,
    widens: bool = True,
) -> Op:
    def infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
        (x,) = types
        require_dtype(x.dtype, allowed, "booleans" if allowed == ("bool",) else "numbers")
        axes = _axes(attrs, len(x.shape))
        return TensorType(reduced_shape(x.shape, axes, bool(attrs["keepdims"])), x.dtype)

    def compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
        (x,), out = tensors, out_type(type)
        inner = wide(x.dtype) if widens else x.dtype
        axes = _axes(attrs, len(x.shape))
        if not axes:
            return te.compute(x.shape, lambda *i: x[i], name)
        stage = reduce_stage(
            x, axes, bool(attrs["keepdims"]), reduce, name, lambda *i: te.cast(x[i], inner)
        )
        return narrow(stage, out.dtype)

    def reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
        (x,) = arrays
        axes = _axes(attrs, x.ndim)
        y = vector(widen(x), axis=axes, keepdims=bool(attrs["keepdims"])) if axes else x
        return to_dtype(np.asarray(y), x.dtype.name)

    defaults: Attrs = {"axes": (), "keepdims": True}
    return Op(name, infer, compute, reference, Pattern.REDUCTION, defaults, _input_size)


def _input_size(types: Sequence[TensorType], attrs: Attrs, type: Type) -> int:
    return types[0].size


def _extreme(op: str) -> Callable[..., Array]:
    """NumPy's max or min, with the neutral element for a reduction of nothing."""
    apply = np.max if op == "max" else np.min

    def vector(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
        return np.asarray(
            apply(x, axis=axis, keepdims=keepdims, initial=te.identity(op, x.dtype.name).value)
        )

    return vector


def _exact_sum(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    return np.asarray(np.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype))


def _exact_prod(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    return np.asarray(np.prod(x, axis=axis, keepdims=keepdims, dtype=x.dtype))


def _mean_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x,), out = tensors, out_type(type)
    axes = _axes(attrs, len(x.shape))
    if not axes:
        return te.compute(x.shape, lambda *i: x[i], "mean")
    count = prod(x.shape[a] for a in axes)
    total = reduce_stage(
        x, axes, bool(attrs["keepdims"]), te.sum, "mean_sum",
        lambda *i: te.cast(x[i], wide(x.dtype)),
    )  # fmt: skip
    return te.compute(
        out.shape, lambda *i: te.cast(total[i] * (1.0 / max(count, 1)), out.dtype), "mean"
    )


def _mean_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    (x,) = arrays
    axes = _axes(attrs, x.ndim)
    y = np.mean(widen(x), axis=axes, keepdims=bool(attrs["keepdims"])) if axes else x
    return to_dtype(np.asarray(y), x.dtype.name)


def _mean_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    require_dtype(types[0].dtype, FLOATS, "floating-point numbers")
    shape = types[0].shape
    axes = _axes(attrs, len(shape))
    return TensorType(reduced_shape(shape, axes, bool(attrs["keepdims"])), types[0].dtype)


register(
    _reduction("sum", te.sum, _exact_sum),
    _reduction("prod", te.prod, _exact_prod),
    _reduction("max", te.max, _extreme("max"), widens=False),
    _reduction("min", te.min, _extreme("min"), widens=False),
    _reduction("any", te.any, np.any, ("bool",)),
    _reduction("all", te.all, np.all, ("bool",)),
    Op(
        "mean", _mean_infer, _mean_compute, _mean_reference, Pattern.REDUCTION,
        {"axes": (), "keepdims": True}, _input_size,
    ),
)  # fmt: skip


def _arg_extreme(name: str, op: str) -> Op:
    """The position of the extreme along an axis: the first of equals, or the last."""
    reduce = te.max if op == "max" else te.min
    position = np.argmax if op == "max" else np.argmin

    def infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
        (x,) = types
        require_dtype(x.dtype, NUMBERS, "numbers")
        axis = normalize_axis(integer(attrs, "axis"), len(x.shape))
        if x.shape[axis] == 0:
            raise ShapeError(f"shape {x.shape} has no elements along axis {axis}")
        return TensorType(reduced_shape(x.shape, (axis,), bool(attrs["keepdims"])), "int64")

    def compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
        (x,) = tensors
        axis = normalize_axis(integer(attrs, "axis"), len(x.shape))
        best = reduce_stage(x, (axis,), True, reduce, f"{name}_value")
        last = bool(attrs["last"])
        none = te.const(-1 if last else x.shape[axis], "int64")

        def place(*i: Expr) -> Expr:
            hit = x[i].equal(best[(*i[:axis], 0, *i[axis + 1 :])])
            if is_float(x.dtype):
                hit = hit | te.intrinsic("isnan", x[i], dtype="bool")
            return te.if_then_else(hit, i[axis], none)

        pick = te.max if last else te.min
        return reduce_stage(x, (axis,), bool(attrs["keepdims"]), pick, name, place)

    def reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
        (x,) = arrays
        axis, keepdims = integer(attrs, "axis"), bool(attrs["keepdims"])
        x = widen(x)
        if attrs["last"]:
            x = np.flip(x, axis)
            return np.asarray(x.shape[axis] - 1 - position(x, axis, keepdims=keepdims))
        return np.asarray(position(x, axis, keepdims=keepdims))

    defaults = {"axis": 0, "keepdims": True, "last": False}
    return Op(name, infer, compute, reference, Pattern.REDUCTION, defaults, _input_size)


def _running(
    name: str,
    op: BinaryOp,
    vector: Callable[..., Array],
    neutral: int,
) -> Op:
    """out[i] is the reduction of x[0] … x[i] (or up to x[i-1]; or from the other end)."""

    def infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
        require_dtype(types[0].dtype, NUMBERS, "numbers")
        normalize_axis(integer(attrs, "axis"), len(types[0].shape))
        return types[0]

    def compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
        (x,), out = tensors, out_type(type)
        axis = normalize_axis(integer(attrs, "axis"), len(x.shape))
        dtype, extent = wide(x.dtype), x.shape[axis]

        def step(y: te.Tensor, i: list[Expr], t: Expr) -> Stmt:
            """The element ``t`` steps from where the scan begins."""
            here, before = (scan_place(p, extent, bool(attrs["reverse"])) for p in (t, t - 1))
            at, earlier = with_index(i, axis, here), with_index(i, axis, before)
            fresh = te.cast(x[earlier if attrs["exclusive"] else at], dtype)
            return Store(y, at, binary(op, y[earlier], fresh))

        def build(y: te.Tensor) -> Stmt:
            def row(i: list[Expr]) -> Stmt:
                first = with_index(
                    i, axis, scan_place(te.const(0, "int64"), extent, bool(attrs["reverse"]))
                )
                start = te.const(neutral, dtype) if attrs["exclusive"] else te.cast(x[first], dtype)
                t = Var("t")
                rest = For(t, te.const(extent - 1, "int64"), step(y, i, t + 1))
                return Seq((Store(y, first, start), rest))

            return over(x.shape, axis, row)

        if 0 in x.shape:
            return te.compute(x.shape, lambda *i: te.const(0, out.dtype), name)
        scan = te.extern(x.shape, dtype, [x], build, name)
        return narrow(scan, out.dtype)

    def reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
        (x,) = arrays
        axis = normalize_axis(integer(attrs, "axis"), x.ndim)
        data = np.moveaxis(widen(x), axis, 0)
        data = data[::-1] if attrs["reverse"] else data
        if attrs["exclusive"]:
            data = np.concatenate([np.full_like(data[:1], neutral), data[:-1]])
        y = vector(data, axis=0, dtype=data.dtype)
        y = y[::-1] if attrs["reverse"] else y
        return to_dtype(np.ascontiguousarray(np.moveaxis(y, 0, axis)), x.dtype.name)

    defaults = {"axis": 0, "exclusive": False, "reverse": False}
    return Op(name, infer, compute, reference, Pattern.OPAQUE, defaults, _input_size)


register(
    _arg_extreme("argmax", "max"),
    _arg_extreme("argmin", "min"),
    _running("cumsum", "add", np.cumsum, 0),
    _running("cumprod", "mul", np.cumprod, 1),
)
