"""Indexed reads and writes: gather, scatter, interpolation by tables.

An index counts from the end where it is negative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tunefarm.compiler import te
from tunefarm.compiler.dtypes import FLOATS, INTEGERS, wide
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.ir import Attrs, TensorType, Type
from tunefarm.compiler.ops.base import Array, Op, Pattern, register
from tunefarm.compiler.ops.common import (
    integer,
    narrow,
    normalize_axis,
    out_type,
    require_dtype,
    same_dtype,
    to_dtype,
    widen,
)
from tunefarm.compiler.ops.loops import along, every, every_row, with_index
from tunefarm.compiler.tir.ir import Expr, If, Seq, Stmt, Store, Var

INDEX_DTYPES = ("int32", "int64")


def _check_indices(type: TensorType) -> None:
    require_dtype(type.dtype, INDEX_DTYPES, "indices of dtype int32 or int64")


def _place(value: Expr, extent: int) -> Expr:
    """An index counted from the front."""
    index = te.cast(value, "int64")
    return te.if_then_else(index < 0, index + extent, index)


def _axis(types: Sequence[TensorType] | Sequence[te.Tensor], attrs: Attrs) -> int:
    return normalize_axis(integer(attrs, "axis"), len(types[0].shape))


def _gather_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    _check_indices(types[1])
    shape, axis = types[0].shape, _axis(types, attrs)
    return TensorType((*shape[:axis], *types[1].shape, *shape[axis + 1 :]), types[0].dtype)


def _gather_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x, indices), axis = tensors, _axis(tensors, attrs)
    end = axis + len(indices.shape)

    def element(*i: Expr) -> Expr:
        place = _place(indices[i[axis:end]], x.shape[axis])
        return x[(*i[:axis], place, *i[end:])]

    return te.compute(out_type(type).shape, element, "gather")


def _gather_elements_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    _check_indices(types[1])
    _check_elements(types[0].shape, types[1].shape, _axis(types, attrs))
    return TensorType(types[1].shape, types[0].dtype)


def _check_elements(shape: tuple[int, ...], indices: tuple[int, ...], axis: int) -> None:
    fits = len(shape) == len(indices) and all(
        i <= e for d, (e, i) in enumerate(zip(shape, indices, strict=True)) if d != axis
    )
    if not fits:
        raise ShapeError(f"indices of shape {indices} do not fit a tensor of shape {shape}")


def _gather_elements_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x, indices), axis = tensors, _axis(tensors, attrs)

    def element(*i: Expr) -> Expr:
        return x[(*i[:axis], _place(indices[i], x.shape[axis]), *i[axis + 1 :])]

    return te.compute(out_type(type).shape, element, "gather_elements")


def _cropped(x: Array, indices: Array, axis: int) -> Array:
    """The part of ``x`` that indices of its rank can name."""
    return x[tuple(slice(None) if d == axis else slice(e) for d, e in enumerate(indices.shape))]


def _gather_elements_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, indices = arrays
    axis = normalize_axis(integer(attrs, "axis"), x.ndim)
    at = np.where(indices < 0, indices + x.shape[axis], indices)
    return np.asarray(np.take_along_axis(_cropped(x, indices, axis), at, axis))


def _gather_nd_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    _check_indices(types[1])
    (x, indices), batch = types, integer(attrs, "batch_dims")
    depth = indices.shape[-1] if indices.shape else 0
    fits = (
        len(indices.shape) > batch
        and x.shape[:batch] == indices.shape[:batch]
        and 1 <= depth <= len(x.shape) - batch
    )
    if not fits:
        raise ShapeError(
            f"indices of shape {indices.shape} do not name elements of a tensor of shape {x.shape} "
            f"with {batch} batch dimensions"
        )
    return TensorType((*indices.shape[:-1], *x.shape[batch + depth :]), x.dtype)


def _gather_nd_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x, indices), batch = tensors, integer(attrs, "batch_dims")
    outer, depth = len(indices.shape) - 1, indices.shape[-1]

    def element(*i: Expr) -> Expr:
        places = [_place(indices[(*i[:outer], d)], x.shape[batch + d]) for d in range(depth)]
        return x[(*i[:batch], *places, *i[outer:])]

    return te.compute(out_type(type).shape, element, "gather_nd")


def _gather_nd_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    (x, indices), batch = arrays, integer(attrs, "batch_dims")
    outer = indices.shape[:-1]
    leading = np.ix_(*(np.arange(e) for e in outer[:batch])) if batch else ()
    leading = tuple(a.reshape(*a.shape, *(1,) * (len(outer) - batch)) for a in leading)
    places = tuple(indices[..., d] for d in range(indices.shape[-1]))
    return np.asarray(x[leading + places])


register(
    Op(
        "gather", _gather_infer, _gather_compute,
        lambda arrays, attrs: np.take(arrays[0], arrays[1], axis=integer(attrs, "axis")),
        Pattern.INJECTIVE, {"axis": 0},
    ),
    Op(
        "gather_elements", _gather_elements_infer, _gather_elements_compute,
        _gather_elements_reference, Pattern.INJECTIVE, {"axis": 0},
    ),
    Op(
        "gather_nd", _gather_nd_infer, _gather_nd_compute, _gather_nd_reference,
        Pattern.INJECTIVE, {"batch_dims": 0},
    ),
)  # fmt: skip

_COMBINE: dict[str, Callable[[Expr, Expr], Expr]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "max": te.maximum,
    "min": te.minimum,
}
_COMBINE_ARRAY = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _check_reduction(attrs: Attrs, dtype: str) -> None:
    reduction = attrs["reduction"]
    if reduction != "none" and reduction not in _COMBINE:
        raise ShapeError(f"reduction is {reduction!r}, and must be none, add, mul, max or min")
    if reduction != "none":
        require_dtype(dtype, FLOATS + INTEGERS, "numbers to combine")


def _scatter(
    tensors: Sequence[te.Tensor],
    reduction: str,
    updated: Sequence[int],
    place: Callable[[Sequence[Expr]], Sequence[Expr]],
    name: str,
    of_rows: bool = False,
) -> te.Tensor:
    """A copy of the data, then each update in turn, in row-major order: the last one stands.

    ``place(i)`` is where update ``i`` of shape ``updated`` falls; one that is outside is left out.
    Updates ``of_rows`` lie in rows of the data as they do in their own.
    """
    x, indices, updates = tensors
    dtype = x.dtype if reduction == "none" else wide(x.dtype)

    def build(y: te.Tensor) -> Stmt:
        def copy(i: list[Expr]) -> Stmt:
            return Store(y, tuple(i), te.cast(x[tuple(i)], dtype))

        def stored(i: Sequence[Expr]) -> Stmt:
            at = tuple(place(i))
            value = te.cast(updates[tuple(i)], dtype)
            if reduction != "none":
                value = _COMBINE[reduction](y[at], value)
            return Store(y, at, value)

        def update(i: list[Expr]) -> Stmt:
            return If(_inside(place(i), x.shape), stored(i))

        def update_row(i: list[Expr]) -> Stmt:
            inside = _inside(place([*i, Var("e")]), x.shape)
            return If(inside, along(updated[-1], lambda e: stored([*i, e])))

        copied = every_row(x.shape, copy)
        if 0 in updated:
            return copied
        rows = every(updated[:-1], update_row) if of_rows else every(updated, update)
        return Seq((copied, rows))

    if 0 in x.shape:
        return te.compute(x.shape, lambda *i: te.const(0, x.dtype), name)
    return narrow(te.extern(x.shape, dtype, [x, indices, updates], build, name), x.dtype)


def _inside(at: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """Whether a place is in a tensor; what is a loop's variable is."""
    inside: Expr = te.const(True, "bool")
    for position, extent in zip(at, shape, strict=True):
        if not isinstance(position, Var):
            inside = inside & (position >= 0) & (position < extent)
    return inside


def _scatter_elements_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    x, indices, updates = types
    _check_indices(indices)
    _check_reduction(attrs, same_dtype([x, updates]))
    _check_elements(x.shape, indices.shape, _axis(types, attrs))
    if indices.shape != updates.shape:
        raise ShapeError(f"indices have shape {indices.shape} and updates {updates.shape}")
    return x


def _scatter_elements_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x, indices, _), axis = tensors, _axis(tensors, attrs)

    def place(i: Sequence[Expr]) -> Sequence[Expr]:
        return with_index(i, axis, _place(indices[tuple(i)], x.shape[axis]))

    return _scatter(tensors, str(attrs["reduction"]), indices.shape, place, "scatter_elements")


def _combine_at(y: Array, at: tuple[Array, ...], updates: Array, reduction: str) -> None:
    if reduction == "none":
        for place in np.ndindex(at[0].shape):
            y[tuple(int(a[place]) for a in at)] = updates[place]
    else:
        _COMBINE_ARRAY[reduction].at(y, at, updates)


def _scatter_elements_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, indices, updates = arrays
    y = widen(x).copy()
    axis = normalize_axis(integer(attrs, "axis"), x.ndim)
    at: list[Array] = list(np.indices(indices.shape))
    at[axis] = np.where(indices < 0, indices + x.shape[axis], indices)
    if indices.size:
        _combine_at(y, tuple(at), widen(updates), str(attrs["reduction"]))
    return to_dtype(y, x.dtype.name)


def _scatter_nd_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    x, indices, updates = types
    _check_indices(indices)
    _check_reduction(attrs, same_dtype([x, updates]))
    depth = indices.shape[-1] if indices.shape else 0
    wanted = (*indices.shape[:-1], *x.shape[depth:])
    if not 1 <= depth <= len(x.shape) or updates.shape != wanted:
        raise ShapeError(
            f"updates of shape {updates.shape} do not fit indices of shape {indices.shape} into a "
            f"tensor of shape {x.shape}"
        )
    return x


def _scatter_nd_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    x, indices, updates = tensors
    outer, depth = len(indices.shape) - 1, indices.shape[-1]

    def place(i: Sequence[Expr]) -> Sequence[Expr]:
        found = [_place(indices[(*i[:outer], d)], x.shape[d]) for d in range(depth)]
        return [*found, *i[outer:]]

    reduction, of_rows = str(attrs["reduction"]), depth < len(x.shape)
    return _scatter(tensors, reduction, updates.shape, place, "scatter_nd", of_rows)


def _scatter_nd_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, indices, updates = arrays
    y, depth = widen(x).copy(), indices.shape[-1]
    extents = np.asarray(x.shape[:depth], indices.dtype)
    flat = np.where(indices < 0, indices + extents, indices).reshape(-1, depth)
    rows = widen(updates).reshape(len(flat), *x.shape[depth:])
    for place, row in zip(map(tuple, flat), rows, strict=True):
        if attrs["reduction"] == "none":
            y[place] = row
        else:
            y[place] = _COMBINE_ARRAY[str(attrs["reduction"])](y[place], row)
    return to_dtype(y, x.dtype.name)


register(
    Op(
        "scatter_elements", _scatter_elements_infer, _scatter_elements_compute,
        _scatter_elements_reference, Pattern.OPAQUE, {"axis": 0, "reduction": "none"},
    ),
    Op(
        "scatter_nd", _scatter_nd_infer, _scatter_nd_compute, _scatter_nd_reference,
        Pattern.OPAQUE, {"reduction": "none"},
    ),
)  # fmt: skip


def _interpolate_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    x, indices, weights = types
    _check_indices(indices)
    require_dtype(x.dtype, FLOATS, "floating-point numbers")
    if len(indices.shape) != 2 or weights.shape != indices.shape:
        raise ShapeError(f"the tables have shapes {indices.shape} and {weights.shape}, and must be "
                         "(output extent, taps)")  # fmt: skip
    axis = _axis(types, attrs)
    return TensorType((*x.shape[:axis], indices.shape[0], *x.shape[axis + 1 :]), x.dtype)


def _interpolate_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x, indices, weights), out = tensors, out_type(type)
    axis, taps = _axis(tensors, attrs), te.reduce_axis(indices.shape[1], "tap")

    def element(*i: Expr) -> te.Reduce:
        value = x[(*i[:axis], te.cast(indices[i[axis], taps], "int64"), *i[axis + 1 :])]
        weight = te.cast(weights[i[axis], taps], wide(x.dtype))
        return te.sum(te.cast(value, wide(x.dtype)) * weight, [taps])

    return narrow(te.compute(out.shape, element, "interpolate"), out.dtype)


def _interpolate_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, indices, weights = arrays
    data = np.moveaxis(widen(x), integer(attrs, "axis"), -1)
    y = np.sum(data[..., indices] * weights.astype(data.dtype), -1)
    return to_dtype(np.ascontiguousarray(np.moveaxis(y, -1, integer(attrs, "axis"))), x.dtype.name)


register(
    Op(
        "interpolate", _interpolate_infer, _interpolate_compute, _interpolate_reference,
        Pattern.REDUCTION, {"axis": 0},
        lambda types, attrs, type: 2 * out_type(type).size * types[1].shape[1],
    )
)  # fmt: skip
