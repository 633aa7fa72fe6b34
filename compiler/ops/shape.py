"""Operators that move elements: reshape, transpose, broadcast, slices and assignments to them,
concat, pad, tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np
from tunefarm.compiler import te
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.ir import Attrs, TensorType, Type
from tunefarm.compiler.ops.base import Array, Op, Pattern, broadcast_shapes, register
from tunefarm.compiler.ops.common import (
    integer,
    integers,
    normalize_axis,
    number,
    out_type,
    read,
    same_dtype,
)
from tunefarm.compiler.ops.conv import Pairs, pairs
from tunefarm.compiler.tir.ir import Expr, Operand

Dims = tuple[int, ...]


def _reshape_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    shape = integers(attrs, "shape")
    if prod(shape) != types[0].size or min(shape, default=0) < 0:
        raise ShapeError(f"shape {types[0].shape} does not hold as many elements as {shape}")
    return TensorType(shape, types[0].dtype)


def reshape_groups(old: Dims, new: Dims) -> Iterator[tuple[range, range]]:
    """Cut two shapes of equal size into the smallest runs of dimensions of equal products."""
    i = j = 0
    while i < len(old) or j < len(new):
        first_i, first_j = i, j
        left = right = 1
        while True:
            if left <= right and i < len(old):
                left, i = left * old[i], i + 1
            elif j < len(new):
                right, j = right * new[j], j + 1
            else:
                left, i = left * old[i], i + 1
            if left == right and (left != 1 or (i == len(old) and j == len(new))):
                break
        yield range(first_i, i), range(first_j, j)


def _unflatten(flat: Expr, extents: Sequence[int]) -> list[Operand]:
    """The indices of row-major element ``flat``; dimensions of extent 1 are at 0."""
    indices: list[Operand] = []
    rest = prod(extents)
    for position, extent in enumerate(extents):
        rest //= max(extent, 1)
        if extent == 1:
            indices.append(0)
            continue
        index = flat // rest
        outermost = prod(extents[:position]) == 1
        indices.append(index if outermost else index % extent)
    return indices


def _reshape_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x,), shape = tensors, out_type(type).shape
    if 0 in shape:
        return te.compute(shape, lambda *i: x[tuple(0 for _ in x.shape)], "reshape")
    groups = list(reshape_groups(x.shape, shape))

    def element(*i: Expr) -> Expr:
        at: list[Operand] = []
        for old, new in groups:
            flat: Expr = te.const(0, "int64")
            for d in new:
                flat = flat if shape[d] == 1 else flat * shape[d] + i[d]
            at += _unflatten(flat, [x.shape[d] for d in old])
        return x[tuple(at)]

    return te.compute(shape, element, "reshape")


def _permutation(attrs: Attrs, rank: int) -> Dims:
    axes = integers(attrs, "axes")
    if sorted(axes) != list(range(rank)):
        raise ShapeError(f"axes {axes} are not a permutation of the {rank} dimensions")
    return axes


def _transpose_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    axes = _permutation(attrs, len(types[0].shape))
    return TensorType(tuple(types[0].shape[a] for a in axes), types[0].dtype)


def _transpose_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x,), axes = tensors, integers(attrs, "axes")
    return te.compute(
        out_type(type).shape,
        lambda *i: x[tuple(i[axes.index(d)] for d in range(len(axes)))],
        "transpose",
    )


def _broadcast_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    shape = integers(attrs, "shape")
    if broadcast_shapes([types[0].shape, shape]) != shape:
        raise ShapeError(f"shape {types[0].shape} does not broadcast to {shape}")
    return TensorType(shape, types[0].dtype)


def _broadcast_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x,) = tensors
    return te.compute(out_type(type).shape, lambda *i: read(x, i), "broadcast_to")


def _slice_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    shape = types[0].shape
    begin, size, strides = (integers(attrs, n) for n in ("begin", "size", "strides"))
    if not len(shape) == len(begin) == len(size) == len(strides):
        raise ShapeError(f"begin {begin}, size {size} and strides {strides} do not fit {shape}")
    for d, (extent, first, count, step) in enumerate(zip(shape, begin, size, strides, strict=True)):
        last = first + (count - 1) * step
        if count and not (0 <= first < extent and 0 <= last < extent):
            raise ShapeError(f"reads elements {first} to {last} of dimension {d}, of {extent}")
    return TensorType(size, types[0].dtype)


def _slice_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x,) = tensors
    begin, strides = integers(attrs, "begin"), integers(attrs, "strides")
    return te.compute(
        out_type(type).shape,
        lambda *i: x[tuple(at * s + b for at, s, b in zip(i, strides, begin, strict=True))],
        "slice",
    )


def _slice_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    rows = zip(*(integers(attrs, n) for n in ("begin", "size", "strides")), strict=True)
    places = (b + s * np.arange(n) for b, n, s in rows)
    if not arrays[0].ndim:
        return arrays[0]
    return np.asarray(arrays[0][np.ix_(*places)])


def _assign_slice_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    x, updates = types
    same_dtype([x, updates])
    _slice_infer([x], {**attrs, "size": updates.shape})
    if min(integers(attrs, "strides"), default=1) < 1:
        raise ShapeError(f"strides are {attrs['strides']}, and must be 1 or more")
    return x


def _assign_slice_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    x, updates = tensors
    rows = list(
        zip(*(integers(attrs, n) for n in ("begin", "strides")), updates.shape, strict=True)
    )
    if 0 in updates.shape:
        return te.compute(x.shape, lambda *i: x[tuple(i)], "assign_slice")

    def element(*i: Expr) -> Expr:
        inside: Expr = te.const(True, "bool")
        at: list[Expr] = []
        for index, extent, (first, step, count) in zip(i, x.shape, rows, strict=True):
            inside = inside & (index >= first) if first else inside
            if extent >= first + count * step:
                inside = inside & (index < first + count * step)
            if step > 1:
                inside = inside & ((index - first) % step).equal(0)
            at.append((index - first) // step)
        return te.if_then_else(inside, updates[tuple(at)], x[tuple(i)])

    return te.compute(x.shape, element, "assign_slice")


def _assign_slice_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, updates = arrays
    y = x.copy()
    rows = zip(*(integers(attrs, n) for n in ("begin", "strides")), updates.shape, strict=True)
    y[tuple(slice(first, first + count * step, step) for first, step, count in rows)] = updates
    return y


_IN_TURN = 8  # parts of a concatenation that are asked for one after the other; more by halves


def _concat_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    if not types:
        raise ShapeError("takes at least one tensor")
    dtype, first = same_dtype(types), types[0].shape
    axis = normalize_axis(integer(attrs, "axis"), len(first))
    for t in types[1:]:
        if len(t.shape) != len(first) or any(
            a != b for d, (a, b) in enumerate(zip(first, t.shape, strict=True)) if d != axis
        ):
            raise ShapeError(f"shapes {first} and {t.shape} differ outside axis {axis}")
    total = sum(t.shape[axis] for t in types)
    return TensorType((*first[:axis], total, *first[axis + 1 :]), dtype)


def _concat_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    axis = normalize_axis(integer(attrs, "axis"), len(tensors[0].shape))
    parts = [t for t in tensors if t.shape[axis]] or list(tensors[:1])
    starts = np.cumsum([0, *(t.shape[axis] for t in parts)]).tolist()

    def element(*i: Expr) -> Expr:
        def part(p: int) -> Expr:
            return parts[p][(*i[:axis], i[axis] - starts[p], *i[axis + 1 :])]

        def one_of(first: int, end: int) -> Expr:
            if end - first == 1:
                return part(first)
            middle = first + 1 if end - first <= _IN_TURN else (first + end) // 2
            inside = i[axis] < starts[middle]
            return te.if_then_else(inside, one_of(first, middle), one_of(middle, end))

        return one_of(0, len(parts))

    return te.compute(out_type(type).shape, element, "concat")


PAD_MODES = ("constant", "edge", "reflect", "wrap")


def _pad_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    shape, padding, mode = types[0].shape, pairs(attrs["padding"]), attrs["mode"]
    if len(padding) != len(shape):
        raise ShapeError(f"padding {padding} does not have a pair for each dimension of {shape}")
    if mode not in PAD_MODES:
        raise ShapeError(f"mode is {mode!r}, and must be one of {PAD_MODES}")
    for d, (extent, by) in enumerate(zip(shape, padding, strict=True)):
        most = extent - 1 if mode == "reflect" else extent if extent == 0 else max(by)
        if min(by) < 0 or (mode != "constant" and max(by) > most):
            raise ShapeError(f"padding {by} does not fit dimension {d}, of {extent}, mode {mode}")
    return TensorType(
        tuple(e + lo + hi for e, (lo, hi) in zip(shape, padding, strict=True)), types[0].dtype
    )


def _pad_sources(mode: str, i: Expr, extent: int) -> tuple[Expr, Expr]:
    """Which elements coordinates in front of [0, extent) and behind it repeat."""
    if mode == "wrap":
        return i % extent, i % extent
    if mode == "edge":
        return te.const(0, "int64"), te.const(extent - 1, "int64")
    return te.const(0, "int64") - i, (2 * extent - 2) - i


def _pad_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x,), mode = tensors, str(attrs["mode"])
    padding: Pairs = pairs(attrs["padding"])
    if mode == "constant" or not padding:  # a scalar has no axis to repeat
        return _constant_pad(x, padding, te.const(_fill(attrs, x.dtype), x.dtype), type)

    def element(*i: Expr) -> Expr:
        at: list[Expr] = []
        for index, (lo, hi), extent in zip(i[:-1], padding, x.shape, strict=False):
            source = index - lo
            before, behind = _pad_sources(mode, source, extent)
            inside = te.if_then_else(source >= extent, behind, source) if hi else source
            at.append(te.if_then_else(source < 0, before, inside) if lo else inside)
        # Along the last axis the elements are chosen, not their places: loops over what lies side
        # by side are cut where the array begins and ends.
        (lo, hi), source, extent = padding[-1], i[-1] - padding[-1][0], x.shape[-1]
        before, behind = _pad_sources(mode, source, extent)
        value: Expr = x[(*at, source)]
        value = te.if_then_else(source < extent, value, x[(*at, behind)]) if hi else value
        return te.if_then_else(source < 0, x[(*at, before)], value) if lo else value

    return te.compute(out_type(type).shape, element, "pad")


def _constant_pad(x: te.Tensor, padding: Pairs, fill: Expr, type: Type) -> te.Tensor:
    def element(*i: Expr) -> Expr:
        inside: Expr = te.const(True, "bool")
        for index, (lo, hi), extent in zip(i, padding, x.shape, strict=True):
            inside = inside & (index >= lo) if lo else inside
            inside = inside & (index < lo + extent) if hi else inside
        at = tuple(index - lo for index, (lo, _) in zip(i, padding, strict=True))
        return te.if_then_else(inside, x[at], fill)

    return te.compute(out_type(type).shape, element, "pad")


def _fill(attrs: Attrs, dtype: str) -> float | int | bool:
    value = number(attrs, "value")
    return value if "float" in dtype else bool(value) if dtype == "bool" else int(value)


def _pad_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    (x,), padding, mode = arrays, pairs(attrs["padding"]), str(attrs["mode"])
    if not padding:
        return x
    if mode == "constant":
        fill = np.asarray(_fill(attrs, x.dtype.name)).astype(x.dtype)
        return np.pad(x, padding, constant_values=fill)
    return np.pad(x, padding, mode=mode)  # type: ignore[call-overload, no-any-return]


def _tile_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    repeats = integers(attrs, "repeats")
    if len(repeats) != len(types[0].shape) or min(repeats, default=0) < 0:
        raise ShapeError(f"repeats {repeats} do not fit a tensor of shape {types[0].shape}")
    return TensorType(
        tuple(e * r for e, r in zip(types[0].shape, repeats, strict=True)), types[0].dtype
    )


def _tile_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x,), repeats = tensors, integers(attrs, "repeats")

    def element(*i: Expr) -> Expr:
        rows = zip(i, repeats, x.shape, strict=True)
        return x[tuple(at if r == 1 else at % max(e, 1) for at, r, e in rows)]

    return te.compute(out_type(type).shape, element, "tile")


register(
    Op(
        "reshape", _reshape_infer, _reshape_compute,
        lambda arrays, attrs: arrays[0].reshape(integers(attrs, "shape")),
        Pattern.INJECTIVE, {"shape": ()},
    ),
    Op(
        "transpose", _transpose_infer, _transpose_compute,
        lambda arrays, attrs: np.ascontiguousarray(arrays[0].transpose(integers(attrs, "axes"))),
        Pattern.INJECTIVE, {"axes": ()},
    ),
    Op(
        "broadcast_to", _broadcast_infer, _broadcast_compute,
        lambda arrays, attrs: np.broadcast_to(arrays[0], integers(attrs, "shape")).copy(),
        Pattern.BROADCAST, {"shape": ()}, lambda types, attrs, type: 0,
    ),
    Op(
        "slice", _slice_infer, _slice_compute, _slice_reference, Pattern.INJECTIVE,
        {"begin": (), "size": (), "strides": ()},
    ),
    Op(
        "assign_slice", _assign_slice_infer, _assign_slice_compute, _assign_slice_reference,
        Pattern.INJECTIVE, {"begin": (), "strides": ()},
    ),
    Op(
        "concat", _concat_infer, _concat_compute,
        lambda arrays, attrs: np.concatenate(arrays, integer(attrs, "axis")),
        Pattern.INJECTIVE, {"axis": 0},
    ),
    Op(
        "pad", _pad_infer, _pad_compute, _pad_reference, Pattern.INJECTIVE,
        {"padding": (), "mode": "constant", "value": 0.0},
    ),
    Op(
        "tile", _tile_infer, _tile_compute,
        lambda arrays, attrs: np.tile(arrays[0], integers(attrs, "repeats")),
        Pattern.INJECTIVE, {"repeats": ()},
    ),
)  # fmt: skip
