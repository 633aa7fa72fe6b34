"""Converters of shape operators; what is known at import is computed here."""

from __future__ import annotations

from itertools import pairwise
from math import ceil, isfinite, prod

import numpy as np
from tunefarm.compiler.frontend.onnx.node import (
    MOST_FOLDED,
    Converter,
    Malformed,
    Node,
    Unsupported,
    axis_of,
    broadcast_to,
    cast,
    check_extents,
    concat,
    constant,
    dimension,
    dtype_name,
    dtype_of,
    emit,
    expand_dims,
    like,
    rank_of,
    reshape,
    shape_of,
    take_range,
    take_slice,
    transpose,
)
from tunefarm.compiler.ir import Constant, Expr


def _reshape(node: Node) -> Expr:
    old = shape_of(node.x)
    wanted = list(node.ints(1, "the shape"))
    if not node.attr("allowzero", 0):
        for d, extent in enumerate(wanted):
            if extent == 0:
                if d >= len(old):
                    raise Unsupported(f"shape {tuple(wanted)} copies dimension {d} of {old}")
                wanted[d] = old[d]
    if min(wanted, default=0) < -1:
        raise Malformed(f"shape {tuple(wanted)} has an extent below -1")
    if wanted.count(-1) > 1:
        raise Unsupported(f"shape {tuple(wanted)} has -1 twice")
    if -1 in wanted:
        known = prod(e for e in wanted if e != -1)
        wanted[wanted.index(-1)] = prod(old) // known if known else 0
    return reshape(node.x, wanted, node.name)


def _flatten(node: Node) -> Expr:
    shape = shape_of(node.x)
    axis = node.attr("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise Malformed(f"axis {axis} does not divide a tensor of {len(shape)} dimensions")
    axis = axis + len(shape) if axis < 0 else axis
    return reshape(node.x, (prod(shape[:axis]), prod(shape[axis:])), node.name)


def _axes(node: Node, since: int = 13) -> tuple[int, ...] | None:
    """An axes list: an attribute before opset ``since``, then input 1."""
    if node.opset < since:
        axes = node.attr("axes")
        return None if axes is None else tuple(axes)
    return node.ints(1, "the axes") if node.has(1) else None


def _squeeze(node: Node) -> Expr:
    shape, axes = shape_of(node.x), _axes(node)
    if axes is None:
        return reshape(node.x, [e for e in shape if e != 1], node.name)
    gone = {dimension(a, node.x) for a in axes}
    if any(shape[a] != 1 for a in gone):
        raise Unsupported(f"axes {axes} of shape {shape} do not all have extent 1")
    return reshape(node.x, [e for d, e in enumerate(shape) if d not in gone], node.name)


def _unsqueeze(node: Node) -> Expr:
    axes = _axes(node)
    if axes is None:
        raise Unsupported("the axes are missing")
    rank = rank_of(node.x) + len(axes)
    if len({axis_of(a, rank) for a in axes}) != len(axes):
        raise Malformed(f"axes {axes} name an axis of {rank} dimensions twice")
    return expand_dims(node.x, axes)


def _transpose(node: Node) -> Expr:
    axes = node.attr("perm") or tuple(reversed(range(rank_of(node.x))))
    return transpose(node.x, axes, node.name)


def _expand(node: Node) -> Expr:
    wanted = node.ints(1, "the shape")
    try:
        shape = np.broadcast_shapes(shape_of(node.x), wanted)
    except ValueError:
        raise Unsupported(f"shape {shape_of(node.x)} does not expand to {wanted}") from None
    return broadcast_to(node.x, shape, node.name)


def _tile(node: Node) -> Expr:
    repeats = node.ints(1, "the repeats")
    return node.emit("tile", node.x, repeats=repeats) if any(r != 1 for r in repeats) else node.x


def _concat(node: Node) -> Expr:
    axis = axis_of(node.required("axis"), rank_of(node.x))
    return concat(node.all, axis, node.name)


def _split(node: Node) -> list[Expr | None]:
    axis = dimension(node.attr("axis", 0), node.x)
    extent = shape_of(node.x)[axis]
    sizes = node.attr("split")
    if node.opset >= 13 and node.has(1):
        sizes = node.ints(1, "the split")
    if sizes is None:
        count = len(node.wanted)
        if node.attr("num_outputs", count) != count or not count:
            raise Malformed(f"num_outputs={node.attr('num_outputs', 0)} of {count} outputs")
        size = -(-extent // count)
        sizes = [size] * (count - 1) + [extent - size * (count - 1)]
    if sum(sizes) != extent or min(sizes, default=0) < 0:
        raise Unsupported(f"the split {tuple(sizes)} does not add up to {extent}")
    ends = np.cumsum([0, *sizes]).tolist()
    return [take_range(node.x, axis, a, b, node.name) for a, b in pairwise(ends)]


def _slice(node: Node) -> Expr:
    shape = shape_of(node.x)
    if node.opset < 10:
        starts, ends = node.required("starts"), node.required("ends")
        axes, steps = node.attr("axes", tuple(range(len(starts)))), (1,) * len(starts)
    else:
        starts, ends = node.ints(1, "the starts"), node.ints(2, "the ends")
        axes = node.ints(3, "the axes") if node.has(3) else tuple(range(len(starts)))
        steps = node.ints(4, "the steps") if node.has(4) else (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise Malformed(
            f"starts {starts}, ends {ends}, axes {axes} and steps {steps}, which must be as many, "
            "and steps not 0"
        )
    begin, size, strides = [0] * len(shape), list(shape), [1] * len(shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        d = dimension(axis, node.x)
        places = range(*slice(start, end, step).indices(shape[d]))
        begin[d], size[d], strides[d] = places.start if places else 0, len(places), step
    return take_slice(node.x, begin, size, strides, node.name)


def _gather(node: Node) -> Expr:
    axis = dimension(node.attr("axis", 0), node.x)
    return gather(node.x, node.input(1), axis, node.name)


def gather(x: Expr, indices: Expr, axis: int, name: str = "") -> Expr:
    """``gather``; a slice where the indices are one constant."""
    extent = shape_of(x)[axis]
    if not isinstance(indices, Constant):
        return emit("gather", x, indices, name=name, axis=axis)
    given = indices.data.astype(np.int64)
    places = np.where(given < 0, given + extent, given)
    if places.size and not (places.min() >= 0 and places.max() < extent):
        raise Unsupported(f"indices reach {places.max()} along axis {axis}, of {extent}")
    if places.size == 1 and not isinstance(x, Constant):
        place = int(places.reshape(-1)[0])
        shape = shape_of(x)
        return reshape(
            take_range(x, axis, place, place + 1, name),
            (*shape[:axis], *places.shape, *shape[axis + 1 :]),
        )
    return emit("gather", x, Constant(places), name=name, axis=axis)


def _scatter_elements(node: Node) -> Expr:
    return node.emit(
        "scatter_elements",
        *node.all,
        axis=axis_of(node.attr("axis", 0), rank_of(node.x)),
        reduction=node.attr("reduction", "none"),
    )


def _pad(node: Node) -> Expr:
    x, rank = node.x, rank_of(node.x)
    mode = node.attr("mode", "constant")
    if node.opset < 11:
        pads, value = node.required("pads"), node.attr("value", 0.0)
    else:
        pads = node.ints(1, "the padding")
        value = node.number(2, "the value") if node.has(2) else 0
    axes = node.ints(3, "the axes") if node.opset >= 18 and node.has(3) else range(rank)
    if len(pads) != 2 * len(axes):
        raise Malformed(f"the padding is {tuple(pads)}, and must be {2 * len(axes)} integers")
    half = len(axes)
    padding = [(0, 0)] * rank
    for axis, lo, hi in zip(axes, pads[:half], pads[half:], strict=True):
        padding[axis_of(axis, rank)] = (int(lo), int(hi))
    return pad(x, padding, mode, float(value), node.name)


def pad(x: Expr, padding: list[tuple[int, int]], mode: str, value: float, name: str = "") -> Expr:
    """Pad by pairs; a negative number crops."""
    shape = shape_of(x)
    begin = [max(-lo, 0) for lo, _ in padding]
    size = [e - b - max(-hi, 0) for e, b, (_, hi) in zip(shape, begin, padding, strict=True)]
    x = take_slice(x, begin, size, name=name)
    grown = tuple((max(lo, 0), max(hi, 0)) for lo, hi in padding)
    if not any(p for pair in grown for p in pair):
        return x
    return emit("pad", x, name=name, padding=grown, mode=mode, value=value)


def _shape(node: Node) -> Expr:
    shape = shape_of(node.x)
    return constant(shape[slice(node.attr("start", 0), node.attr("end"))], "int64")


def _constant_of_shape(node: Node) -> Expr:
    value = node.attr("value")
    fill = np.zeros(1, np.float32) if value is None else value
    shape = node.ints(0, "the shape")
    check_extents(shape, MOST_FOLDED)
    if fill.size != 1:
        raise Malformed(f"attribute value has {fill.size} elements, and must have one")
    return Constant(np.broadcast_to(fill.reshape(-1)[0], shape), node.name)  # one element in memory


def _constant(node: Node) -> Expr:
    attrs = node.attrs
    if "value" in attrs:
        if not isinstance(attrs["value"], np.ndarray):
            raise Unsupported("the value is not a dense tensor")
        return Constant(attrs["value"], node.name)
    for name, dtype in (
        ("value_float", "float32"), ("value_floats", "float32"),
        ("value_int", "int64"), ("value_ints", "int64"),
    ):  # fmt: skip
        if name in attrs:
            return constant(attrs[name], dtype, node.name)
    raise Unsupported("sparse tensors and strings are not supported")


def _range(node: Node) -> Expr:
    values = [node.number(i, what) for i, what in enumerate(("start", "limit", "delta"))]
    start, limit, delta = (v.item() for v in values)
    if not all(map(isfinite, (start, limit, delta))) or delta == 0:
        raise Unsupported(f"the numbers from {start} to {limit} in steps of {delta} have no end")
    count = max(0, ceil((limit - start) / delta))
    check_extents([count])
    made = np.arange(*values, dtype=values[0].dtype) if count else np.empty(0, values[0].dtype)
    return Constant(made, node.name)


def _eye_like(node: Node) -> Expr:
    dtype = dtype_name(node.attr("dtype")) if "dtype" in node.attrs else dtype_of(node.x)
    rows, columns = shape_of(node.ranked(0, 2))
    check_extents((rows, columns))
    k = max(-rows, min(node.attr("k", 0), columns))
    return constant(np.eye(rows, columns, k=k), dtype, node.name)


def _one_hot(node: Node) -> Expr:
    indices, values = node.input(0), node.input(2)
    given = node.number(1, "the depth").item()
    if not isfinite(given) or given < 1 or shape_of(values) != (2,):
        raise Malformed(f"a depth of {given} for values of shape {shape_of(values)}")
    depth = int(given)
    check_extents([depth])
    rank = rank_of(indices) + 1
    axis = axis_of(node.attr("axis", -1), rank)
    at = cast(indices, "int64")
    at = node.emit(
        "where", node.emit("less", at, like(0, at)), node.emit("add", at, like(depth, at)), at
    )
    places = like(np.arange(depth), at)
    row = reshape(places, [depth if d == axis else 1 for d in range(rank)])
    hot = node.emit("equal", expand_dims(at, [axis]), row)
    off, on = (reshape(take_range(values, 0, i, i + 1), ()) for i in (0, 1))
    return node.emit("where", hot, on, off)


def _depth_to_space(node: Node) -> Expr:
    n, c, h, w = shape_of(node.ranked(0, 4))
    b = node.positive("blocksize")
    if c % b**2:
        raise Malformed(f"{c} channels do not divide into blocks of {b} by {b}")
    if node.attr("mode", "DCR") == "DCR":
        y = transpose(reshape(node.x, (n, b, b, c // b**2, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        y = transpose(reshape(node.x, (n, c // b**2, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return reshape(y, (n, c // b**2, h * b, w * b), node.name)


def _space_to_depth(node: Node) -> Expr:
    n, c, h, w = shape_of(node.ranked(0, 4))
    b = node.positive("blocksize")
    if h % b or w % b:
        raise Malformed(f"{h} by {w} does not divide into blocks of {b} by {b}")
    order = (0, 3, 5, 1, 2, 4) if node.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    y = transpose(reshape(node.x, (n, c, h // b, b, w // b, b)), order)
    return reshape(y, (n, c * b * b, h // b, w // b), node.name)


def _trilu(node: Node) -> Expr:
    if rank_of(node.x) < 2:
        raise Malformed(f"data of shape {shape_of(node.x)} is no matrix")
    rows, columns = shape_of(node.x)[-2:]
    k = max(-rows, min(node.integer(1, "k"), columns)) if node.has(1) else 0
    ones = np.ones((rows, columns), bool)
    kept = np.triu(ones, k) if node.attr("upper", 1) else np.tril(ones, k)
    return node.emit("where", constant(kept, "bool"), node.x, like(0, node.x))


def _reverse_sequence(node: Node) -> Expr:
    x, shape = node.x, shape_of(node.x)
    time, batch = node.attr("time_axis", 0), node.attr("batch_axis", 1)
    if {time, batch} != {0, 1}:
        raise Unsupported(f"time_axis {time} and batch_axis {batch} are not 0 and 1")
    lengths = node.ints(1, "the sequence lengths")
    fits = len(shape) > 1 and len(lengths) == shape[batch] > 0
    if not fits or not 0 <= min(lengths) <= max(lengths) <= shape[time]:
        raise Malformed(f"sequences of lengths {lengths} do not fit data of shape {shape}")
    steps = np.arange(shape[time])
    rows = [np.where(steps < n, n - 1 - steps, steps) for n in lengths]
    at = np.stack(rows, axis=1 - time)
    other = np.arange(shape[batch]).reshape((1, -1) if batch == 1 else (-1, 1))
    pair = [at, np.broadcast_to(other, at.shape)]
    places = np.stack(pair if time == 0 else pair[::-1], axis=-1)
    return node.emit("gather_nd", x, constant(places, "int64"))


def _nonzero(node: Node) -> Expr:
    if not isinstance(node.x, Constant):
        raise Unsupported("the number of results depends on values that are computed at run time")
    data = node.x.data
    if data.ndim == 0:
        raise Unsupported("a single number has no places")
    return constant(np.array(np.nonzero(data)).reshape(data.ndim, -1), "int64", node.name)


def _compress(node: Node) -> Expr:
    keep = np.nonzero(node.constant(1, "the condition").reshape(-1))[0]
    axis = node.attr("axis")
    if axis is None:
        return gather(reshape(node.x, (prod(shape_of(node.x)),)), constant(keep, "int64"), 0)
    return gather(node.x, constant(keep, "int64"), dimension(axis, node.x))


def _gather_elements(node: Node) -> Expr:
    axis = axis_of(node.attr("axis", 0), rank_of(node.x))
    return node.emit("gather_elements", *node.all, axis=axis)


def _gather_nd(node: Node) -> Expr:
    batch = node.attr("batch_dims", 0)
    if not 0 <= batch < min(rank_of(node.x), rank_of(node.input(1))):
        raise Malformed(
            f"batch_dims={batch} of shapes {shape_of(node.x)} and {shape_of(node.input(1))}"
        )
    return node.emit("gather_nd", *node.all, batch_dims=batch)


CONVERTERS: dict[str, Converter] = {
    "Identity": lambda node: node.x,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Expand": _expand,
    "Tile": _tile,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterElements": _scatter_elements,
    "Scatter": _scatter_elements,
    "ScatterND": lambda node: node.emit(
        "scatter_nd", *node.all, reduction=node.attr("reduction", "none")
    ),
    "Pad": _pad,
    "Shape": _shape,
    "Size": lambda node: constant(prod(shape_of(node.x)), "int64"),
    "ConstantOfShape": _constant_of_shape,
    "Constant": _constant,
    "Range": _range,
    "EyeLike": _eye_like,
    "OneHot": _one_hot,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Trilu": _trilu,
    "ReverseSequence": _reverse_sequence,
    "NonZero": _nonzero,
    "Compress": _compress,
}
