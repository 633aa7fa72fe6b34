"""``topk_indices``: the places of the largest or smallest elements, in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tunefarm.compiler import te
from tunefarm.compiler.dtypes import FLOATS, INTEGERS, is_float, wide
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.ir import Attrs, TensorType, Type
from tunefarm.compiler.ops.base import Array, Op, Pattern, register
from tunefarm.compiler.ops.common import (
    integer,
    normalize_axis,
    out_type,
    require_dtype,
    widen,
)
from tunefarm.compiler.ops.loops import along, insert_best, over, sort_best, sort_room, with_index
from tunefarm.compiler.ops.selection import (
    Row,
    list_room,
    rank_best,
    select_best,
    whole_vectors,
)
from tunefarm.compiler.tir.ir import (
    Allocate,
    Buffer,
    Const,
    Expr,
    For,
    Seq,
    Stmt,
    Store,
    Var,
)

_INSERTED = 16  # at most: more take longer than by a pivot
_INSERTED_OF_MANY = 64  # where few come to be inserted; all in the worst order
_MANY = 512  # times as many
_SELECTED_OF = 128  # elements at least
_RANKED_OF = 512  # elements, above which to sort all takes less than to count what is before each


def _infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    (x,), axis, k = types, _axis(types, attrs), integer(attrs, "k")
    require_dtype(x.dtype, FLOATS + INTEGERS, "numbers")
    if not 0 <= k <= x.shape[axis]:
        raise ShapeError(f"k is {k}, and axis {axis} has {x.shape[axis]} elements")
    return TensorType((*x.shape[:axis], k, *x.shape[axis + 1 :]), "int64")


def _axis(types: Sequence[TensorType] | Sequence[te.Tensor], attrs: Attrs) -> int:
    return normalize_axis(integer(attrs, "axis"), len(types[0].shape))


def _compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    """Few by insertion into the list of the best so far, more by a pivot, by counting what is
    before each, or by sorting."""
    (x,), out, axis = tensors, out_type(type), _axis(tensors, attrs)
    extent, k = x.shape[axis], integer(attrs, "k")
    if 0 in out.shape:
        return te.compute(out.shape, lambda *i: te.const(0, "int64"), "topk_indices")
    largest = bool(attrs["largest"])
    few = _INSERTED_OF_MANY if extent >= _MANY * k else _INSERTED

    def build(y: te.Tensor) -> Stmt:
        def row(i: list[Expr]) -> Stmt:
            def before(a: Expr, b: Expr) -> Expr:
                return _is_before(x[with_index(i, axis, a)], x[with_index(i, axis, b)], largest)

            def best(place: Expr) -> Expr:
                return y[with_index(i, axis, place)]

            def put(place: Expr, index: Expr) -> Stmt:
                return Store(y, with_index(i, axis, place), index)

            if k <= few:
                return insert_best(extent, k, before, best, put, axis == len(x.shape) - 1)
            if extent >= max(_SELECTED_OF, list_room(extent, k)):
                return _on_copy(x, i, axis, largest, lambda row: select_best(row, k, put))
            if extent <= _RANKED_OF:
                return _on_copy(x, i, axis, largest, lambda row: rank_best(row, k, put))
            source, target = (
                Buffer(name, (sort_room(extent, k),), "int64", "local")
                for name in ("source", "target")
            )
            sort = sort_best(extent, k, before, put, (source, target))
            return Allocate(source, Allocate(target, sort))

        return over(x.shape, axis, row)

    return te.extern(out.shape, "int64", [x], build, "topk_indices")


def _on_copy(
    x: te.Tensor, i: list[Expr], axis: int, largest: bool, body: Callable[[Row], Stmt]
) -> Stmt:
    """``body`` of a copy of the row at ``i``, in a dtype of whole vectors."""
    extent = x.shape[axis]
    dtype = wide(x.dtype) if is_float(x.dtype) else _word(x.dtype)
    values = Buffer("row", (whole_vectors(extent),), dtype, "local")
    last = te.identity("max" if largest else "min", dtype)
    if is_float(dtype) and not largest:
        last = te.const(float("nan"), dtype)
    rest = Var("rest")

    def copy(at: Expr) -> Stmt:
        return Store(values, (at,), te.cast(x[with_index(i, axis, at)], dtype))

    pad = For(rest, Const(values.shape[0] - extent), Store(values, (rest + extent,), last))
    row = Row(values, extent, lambda a, b: _is_before(a, b, largest), last)
    return Allocate(values, Seq((along(extent, copy), pad, body(row))))


def _word(dtype: str) -> str:
    """An integer dtype that holds the values of another, of 4 bytes where that is shorter."""
    return dtype if dtype.endswith(("32", "64")) else "int32"


def _is_before(a: Expr, b: Expr, largest: bool) -> Expr:
    """The order of a sort in which NaN is the largest."""
    first = a > b if largest else a < b
    if not is_float(a.dtype):
        return first
    nan_a, nan_b = (te.intrinsic("isnan", v, dtype="bool") for v in (a, b))
    high, low = (nan_a, nan_b) if largest else (nan_b, nan_a)
    return first | (high & te.intrinsic("not", low, dtype="bool"))


def _reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x = widen(arrays[0])
    axis = normalize_axis(integer(attrs, "axis"), x.ndim)
    extent = x.shape[axis]
    if attrs["largest"]:
        order = extent - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis, kind="stable")
    return np.ascontiguousarray(np.take(order, np.arange(integer(attrs, "k")), axis))


register(
    Op(
        "topk_indices", _infer, _compute, _reference, Pattern.OPAQUE,
        {"axis": -1, "k": 1, "largest": True},
        lambda types, attrs, type: types[0].size,
    )
)  # fmt: skip
