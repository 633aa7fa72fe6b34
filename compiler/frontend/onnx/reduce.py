"""Converters of reductions, positions of extremes, running sums and the largest elements."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
from tunefarm.compiler.dtypes import is_float
from tunefarm.compiler.frontend.onnx.nn import on_rows
from tunefarm.compiler.frontend.onnx.node import (
    Converter,
    Node,
    axis_of,
    cast,
    dtype_of,
    like,
    rank_of,
    reshape,
    shape_of,
)
from tunefarm.compiler.ir import Expr


def reduce_axes(node: Node, attr_until: int) -> tuple[int, ...] | None:
    """The axes of a reduction: an attribute before opset ``attr_until``, then input 1.

    None leaves the tensor as it is (an empty list with ``noop_with_empty_axes``).
    """
    rank = rank_of(node.x)
    if node.opset < attr_until or "axes" in node.attrs:
        axes = node.attr("axes")
    else:
        axes = node.ints(1, "the axes") if node.has(1) else None
    if axes is None or len(axes) == 0:
        if node.attr("noop_with_empty_axes", 0):
            return None
        return tuple(range(rank))
    return tuple(sorted({axis_of(int(a), rank) for a in axes}))


def _reduction(
    make: Callable[[Node, Expr, tuple[int, ...], bool], Expr],
    noop: Callable[[Node, Expr], Expr] = lambda node, x: x,
    attr_until: int = 18,
) -> Converter:
    def convert(node: Node) -> Expr:
        axes = reduce_axes(node, attr_until)
        if axes is None:
            return noop(node, node.x)
        return make(node, node.x, axes, bool(node.attr("keepdims", 1)))

    return convert


def _reduce(node: Node, op: str, x: Expr, axes: tuple[int, ...], keepdims: bool) -> Expr:
    return node.emit(op, x, axes=axes, keepdims=keepdims) if axes else x


def _extreme(op: str, on_bool: str) -> Callable[[Node, Expr, tuple[int, ...], bool], Expr]:
    return lambda node, x, axes, keep: _reduce(
        node, on_bool if dtype_of(x) == "bool" else op, x, axes, keep
    )


def _square(node: Node, x: Expr) -> Expr:
    return node.emit("multiply", x, x)


def _integer_mean(node: Node, x: Expr, axes: tuple[int, ...], keep: bool) -> Expr:
    if is_float(dtype_of(x)):
        return _reduce(node, "mean", x, axes, keep)
    total = _reduce(node, "sum", x, axes, keep)
    count = prod(shape_of(x)[a] for a in axes)
    return node.emit("divide", total, like(count, total))


def _sqrt(node: Node, x: Expr) -> Expr:
    dtype = dtype_of(x)
    if is_float(dtype):
        return node.emit("sqrt", x)
    return cast(node.emit("sqrt", cast(x, "float64")), dtype)


def _log_sum_exp(node: Node, x: Expr, axes: tuple[int, ...], keep: bool) -> Expr:
    """max + log Σ exp(x − max), without overflow."""
    if not axes:
        return x
    dtype = dtype_of(x)
    x = cast(x, dtype if is_float(dtype) else "float64")
    if 0 in shape_of(x):
        return cast(node.emit("log", _reduce(node, "sum", node.emit("exp", x), axes, keep)), dtype)
    top = node.emit("max", x, axes=axes, keepdims=True)
    finite = node.emit("where", node.emit("isinf", top), like(0, top), top)
    powers = node.emit("exp", node.emit("subtract", x, finite))
    total = node.emit("log", node.emit("sum", powers, axes=axes, keepdims=True))
    y = node.emit("add", total, finite)
    kept = [e for d, e in enumerate(shape_of(y)) if keep or d not in axes]
    return cast(reshape(y, kept), dtype)


def _log(node: Node, x: Expr) -> Expr:
    dtype = dtype_of(x)
    inner = dtype if is_float(dtype) else "float64"
    return cast(node.emit("log", cast(x, inner)), dtype)


def _arg_extreme(op: str) -> Converter:
    def convert(node: Node) -> Expr:
        return node.emit(
            op,
            node.x,
            axis=axis_of(node.attr("axis", 0), rank_of(node.x)),
            keepdims=bool(node.attr("keepdims", 1)),
            last=bool(node.attr("select_last_index", 0)),
        )

    return convert


def _running(op: str) -> Converter:
    def convert(node: Node) -> Expr:
        axis = node.integer(1, "the axis")
        return node.emit(
            op,
            node.x,
            axis=axis_of(axis, rank_of(node.x)),
            exclusive=bool(node.attr("exclusive", 0)),
            reverse=bool(node.attr("reverse", 0)),
        )

    return convert


def _topk(node: Node) -> tuple[Expr, Expr]:
    x = node.x
    axis = axis_of(node.attr("axis", -1), rank_of(x))
    k = node.required("k") if node.opset < 10 else node.integer(1, "k")
    places = node.emit(
        "topk_indices", x, axis=axis, k=int(k), largest=bool(node.attr("largest", 1))
    )
    return node.emit("gather_elements", x, places, axis=axis), places


def _hardmax(node: Node) -> Expr:
    def convert(x: Expr, axis: int) -> Expr:
        top = node.emit("argmax", x, axis=axis, keepdims=True)
        extent, rank = shape_of(x)[axis], rank_of(x)
        places = like(np.arange(extent), top)
        places_shaped = reshape(places, [extent if d == axis else 1 for d in range(rank)])
        return cast(node.emit("equal", places_shaped, top), dtype_of(x))

    return on_rows(node, convert)


CONVERTERS: dict[str, Converter] = {
    "ReduceSum": _reduction(
        lambda node, x, axes, keep: _reduce(node, "sum", x, axes, keep), attr_until=13
    ),
    "ReduceMean": _reduction(_integer_mean),
    "ReduceMax": _reduction(_extreme("max", "any")),
    "ReduceMin": _reduction(_extreme("min", "all")),
    "ReduceProd": _reduction(lambda node, x, axes, keep: _reduce(node, "prod", x, axes, keep)),
    "ReduceL1": _reduction(
        lambda node, x, axes, keep: _reduce(node, "sum", node.emit("abs", x), axes, keep),
        lambda node, x: node.emit("abs", x),
    ),
    "ReduceL2": _reduction(
        lambda node, x, axes, keep: _sqrt(node, _reduce(node, "sum", _square(node, x), axes, keep)),
        lambda node, x: node.emit("abs", x),
    ),
    "ReduceSumSquare": _reduction(
        lambda node, x, axes, keep: _reduce(node, "sum", _square(node, x), axes, keep), _square
    ),
    "ReduceLogSum": _reduction(
        lambda node, x, axes, keep: _log(node, _reduce(node, "sum", x, axes, keep)), _log
    ),
    "ReduceLogSumExp": _reduction(_log_sum_exp),
    "ArgMax": _arg_extreme("argmax"),
    "ArgMin": _arg_extreme("argmin"),
    "CumSum": _running("cumsum"),
    "CumProd": _running("cumprod"),
    "TopK": _topk,
    "Hardmax": _hardmax,
}
