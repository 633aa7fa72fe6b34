"""Converters of convolutions, pooling, normalisations, softmax and resizing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, prod

import numpy as np
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.frontend.onnx.node import (
    Converter,
    Node,
    Unsupported,
    axis_of,
    broadcast_to,
    cast,
    constant,
    dtype_of,
    like,
    per_channel,
    rank_of,
    reshape,
    shape_of,
    weight,
)
from tunefarm.compiler.ir import Expr

Pairs = tuple[tuple[int, int], ...]


def _pairs(pads: Sequence[int]) -> Pairs:
    """ONNX's (begin …, end …) as (before, after) pairs."""
    half = len(pads) // 2
    return tuple((int(a), int(b)) for a, b in zip(pads[:half], pads[half:], strict=True))


def _ints(node: Node, name: str, rank: int, default: int) -> tuple[int, ...]:
    values: tuple[int, ...] = node.attr(name, (default,) * max(rank, 1)) or (default,) * rank
    if len(values) != rank:
        raise Unsupported(f"{name} is {values}, and must be {rank} integers")
    return values


def _positives(node: Node, name: str, rank: int) -> tuple[int, ...]:
    values = _ints(node, name, rank, 1)
    if min(values, default=1) < 1:
        raise Unsupported(f"{name} is {values}, and must be {rank} positive integers")
    return values


def _kernel(x: Expr, w: Expr) -> tuple[int, ...]:
    """The spatial extents of a convolution's weights, as many as its data has."""
    if rank_of(x) != rank_of(w) or rank_of(x) < 3:
        raise Unsupported(
            f"data of shape {shape_of(x)} and weights of shape {shape_of(w)} do not have the same "
            "spatial dimensions"
        )
    return shape_of(w)[2:]


def _channels(node: Node) -> int:
    if rank_of(node.x) < 2:
        raise Unsupported(f"data of shape {shape_of(node.x)} has no channels")
    return shape_of(node.x)[1]


def _same_padding(spatial: int, span: int, stride: int, upper: bool) -> tuple[int, int]:
    total = max((ceil(spatial / stride) - 1) * stride + span - spatial, 0)
    small = total // 2
    return (small, total - small) if upper else (total - small, small)


def _padding(
    node: Node, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Pairs:
    """The explicit padding, or what ``auto_pad`` asks for."""
    spatial = shape_of(node.x)[2:]
    match node.attr("auto_pad", "NOTSET"):
        case "NOTSET":
            return _pairs(_ints(node, "pads", 2 * len(spatial), 0))
        case "VALID":
            return ((0, 0),) * len(spatial)
        case mode:
            rows = zip(spatial, kernel, strides, dilations, strict=True)
            upper = mode == "SAME_UPPER"
            return tuple(_same_padding(e, d * (k - 1) + 1, s, upper) for e, k, s, d in rows)


def _add_bias(node: Node, y: Expr, index: int) -> Expr:
    if not node.has(index):
        return y
    return node.emit("add", y, per_channel(weight(node, index), rank_of(y)))


def _not_negative(padding: Pairs) -> Pairs:
    if any(p < 0 for pair in padding for p in pair):
        raise Unsupported(f"negative padding {padding}")
    return padding


def conv(node: Node, x: Expr, w: Expr) -> Expr:
    """A convolution with the node's attributes, without bias."""
    kernel = _kernel(x, w)
    rank = len(kernel)
    strides, dilations = (_positives(node, n, rank) for n in ("strides", "dilations"))
    return node.emit(
        "conv",
        x,
        w,
        strides=strides,
        padding=_not_negative(_padding(node, kernel, strides, dilations)),
        dilations=dilations,
        groups=node.positive("group", 1),
    )


def _conv(node: Node) -> Expr:
    return _add_bias(node, conv(node, node.x, weight(node, 1)), 2)


def _conv_transpose(node: Node) -> Expr:
    x, w = node.x, weight(node, 1)
    spatial, kernel = shape_of(x)[2:], _kernel(x, w)
    rank = len(kernel)
    strides, dilations = (_positives(node, n, rank) for n in ("strides", "dilations"))
    extra = _ints(node, "output_padding", rank, 0)
    padding = _pairs(_ints(node, "pads", 2 * rank, 0))
    mode, wanted = node.attr("auto_pad", "NOTSET"), node.attr("output_shape")
    if wanted is not None or mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(wanted or (e * s for e, s in zip(spatial, strides, strict=True)))[-rank:]
        if len(wanted) != rank:
            raise Unsupported(f"output_shape is {wanted}, and must be {rank} integers")
        full = (
            s * (e - 1) + d * (k - 1) + 1 + more
            for e, k, s, d, more in zip(spatial, kernel, strides, dilations, extra, strict=True)
        )
        totals = [f - o for f, o in zip(full, wanted, strict=True)]
        upper = mode == "SAME_UPPER"
        padding = tuple((t // 2, t - t // 2) if upper else (t - t // 2, t // 2) for t in totals)
    # Negative padding after the data is more output; before it is not expressible.
    extra = tuple(e - min(hi, 0) for e, (_, hi) in zip(extra, padding, strict=True))
    padding = tuple((lo, max(hi, 0)) for lo, hi in padding)
    y = node.emit(
        "conv_transpose",
        x,
        w,
        strides=strides,
        padding=_not_negative(padding),
        dilations=dilations,
        groups=node.positive("group", 1),
        output_padding=extra,
    )
    return _add_bias(node, y, 2)


def _window(node: Node) -> tuple[dict[str, tuple[int, ...] | Pairs], Pairs]:
    """The pooling attributes, padded for ``ceil_mode``, and the padding that the node names."""
    spatial = shape_of(node.x)[2:]
    rank = len(spatial)
    kernel, strides, dilations = (
        _positives(node, n, rank) for n in ("kernel_shape", "strides", "dilations")
    )
    named = _not_negative(_padding(node, kernel, strides, dilations))
    padding = named
    if node.attr("ceil_mode", 0) and node.attr("auto_pad", "NOTSET") == "NOTSET":
        rows = zip(spatial, kernel, strides, dilations, named, strict=True)
        padding = tuple(_ceil_padding(*row) for row in rows)
    window: dict[str, tuple[int, ...] | Pairs] = {
        "kernel": kernel,
        "strides": strides,
        "dilations": dilations,
        "padding": padding,
    }
    return window, named


def _ceil_padding(
    extent: int, kernel: int, stride: int, dilation: int, pad: tuple[int, int]
) -> tuple[int, int]:
    """Padding with which rounding down gives the count of windows that rounding up asks for."""
    lo, hi = pad
    span = dilation * (kernel - 1) + 1
    count = ceil((extent + lo + hi - span) / stride) + 1
    if (count - 1) * stride >= extent + lo:  # a window must start in the data or before it
        count -= 1
    return lo, max(hi, (count - 1) * stride + span - extent - lo)


def _max_pool(node: Node) -> list[Expr | None]:
    window, _ = _window(node)
    y = node.emit("max_pool", node.x, **window)
    if not node.wants(1):
        return [y]
    column_major = bool(node.attr("storage_order", 0))
    places = node.emit("max_pool_indices", node.x, **window, column_major=column_major)
    return [y, places]


def _average_pool(node: Node) -> Expr:
    window, named = _window(node)
    counted = named if node.attr("count_include_pad", 0) else ((0, 0),) * len(named)
    return node.emit("avg_pool", node.x, **window, counted=counted)


def _lp_pool(node: Node) -> Expr:
    window, _ = _window(node)
    return node.emit("lp_pool", node.x, **window, p=int(node.attr("p", 2)))


def _global(op: str, **attrs: int) -> Converter:
    def convert(node: Node) -> Expr:
        spatial = shape_of(node.x)[2:]
        ones, none = (1,) * len(spatial), ((0, 0),) * len(spatial)
        counted = {"counted": none} if op == "avg_pool" else {}
        p = {"p": int(node.attr("p", 2))} if op == "lp_pool" else {}
        return node.emit(
            op, node.x, kernel=spatial, strides=ones, dilations=ones, padding=none, **counted, **p
        )

    return convert


def _batch_norm(node: Node) -> list[Expr | None]:
    if node.opset < 9 and not node.attr("spatial", 1):
        raise Unsupported("spatial=0")
    epsilon = float(node.attr("epsilon", 1e-5))
    x, scale, bias, mean, variance = (node.input(i) for i in range(5))
    dtype = dtype_of(x)
    scale, bias = cast(scale, dtype), cast(bias, dtype)
    if not node.attr("training_mode", 0):
        mean, variance = cast(mean, dtype), cast(variance, dtype)
        return [node.emit("batch_norm", x, scale, bias, mean, variance, epsilon=epsilon)]
    axes = (0, *range(2, rank_of(x)))
    now = node.emit("mean", x, axes=axes, keepdims=False)
    centred = node.emit("subtract", x, per_channel(now, rank_of(x)))
    spread = node.emit("mean", node.emit("multiply", centred, centred), axes=axes, keepdims=False)
    y = node.emit("batch_norm", x, scale, bias, now, spread, epsilon=epsilon)
    momentum = node.attr("momentum", 0.9)

    def running(old: Expr, new: Expr) -> Expr:
        kept = node.emit("multiply", old, like(momentum, old))
        new = cast(new, dtype_of(old))
        return node.emit("add", kept, node.emit("multiply", new, like(1 - momentum, new)))

    return [y, running(mean, now), running(variance, spread)]


def _layer_norm(node: Node) -> list[Expr | None]:
    x, dtype = node.x, dtype_of(node.x)
    axis = axis_of(node.attr("axis", -1), rank_of(x))
    epsilon = float(node.attr("epsilon", 1e-5))
    rows = shape_of(x)[axis:]
    scale = node.input(1)
    bias = node.input(2) if node.has(2) else constant(np.zeros(rows), dtype)
    y = node.emit("layer_norm", x, scale, bias, axis=axis, epsilon=epsilon)
    if not (node.wants(1) or node.wants(2)):
        return [y]
    axes = tuple(range(axis, rank_of(x)))
    wide = cast(x, "float32" if node.attr("stash_type", 1) == 1 else dtype)
    mean = node.emit("mean", wide, axes=axes, keepdims=True)
    centred = node.emit("subtract", wide, mean)
    variance = node.emit("mean", node.emit("multiply", centred, centred), axes=axes, keepdims=True)
    root = node.emit("sqrt", node.emit("add", variance, like(epsilon, variance)))
    return [y, mean, node.emit("reciprocal", root)]


def _rms_norm(node: Node) -> Expr:
    """Also as onnxruntime calls it, SimplifiedLayerNormalization. It is computed in the wider type
    of data and scale, and has the scale's."""
    axis = axis_of(node.attr("axis", -1), rank_of(node.x))
    dtypes = dtype_of(node.x), dtype_of(node.input(1))
    wide = max(dtypes, key=lambda dtype: numpy_dtype(dtype).itemsize)
    x, scale = cast(node.x, wide), cast(node.input(1), wide)
    epsilon = float(node.attr("epsilon", 1e-5))
    return cast(node.emit("rms_norm", x, scale, axis=axis, epsilon=epsilon), dtypes[1])


def _instance_norm(node: Node) -> Expr:
    return node.emit(
        "group_norm",
        *node.all,
        groups=_channels(node),
        epsilon=float(node.attr("epsilon", 1e-5)),
    )


def _group_norm(node: Node) -> Expr:
    x, scale, bias = node.all
    groups, channels = node.positive("num_groups"), _channels(node)
    if shape_of(scale) == (groups,) and groups != channels:  # opset 18: a value for each group

        def repeated(v: Expr) -> Expr:
            wide = broadcast_to(reshape(v, (groups, 1)), (groups, channels // groups))
            return reshape(wide, (channels,))

        scale, bias = repeated(scale), repeated(bias)
    return node.emit(
        "group_norm", x, scale, bias, groups=groups, epsilon=float(node.attr("epsilon", 1e-5))
    )


def _lrn_size(node: Node) -> int:
    size = node.positive("size")
    if size >= 1 << 31:
        raise Unsupported(f"size={size} is more than any number of channels")
    return size


def _lrn(node: Node) -> Expr:
    return node.emit(
        "lrn",
        node.x,
        axis=1,
        size=_lrn_size(node),
        alpha=node.attr("alpha", 1e-4),
        beta=node.attr("beta", 0.75),
        bias=node.attr("bias", 1.0),
    )


def _lp_normalization(node: Node) -> Expr:
    x, axis = node.x, axis_of(node.attr("axis", -1), rank_of(node.x))
    if node.attr("p", 2) == 1:
        norm = node.emit("sum", node.emit("abs", x), axes=(axis,), keepdims=True)
    else:
        total = node.emit("sum", node.emit("multiply", x, x), axes=(axis,), keepdims=True)
        norm = node.emit("sqrt", total)
    zero = node.emit("equal", norm, like(0, norm))
    safe = node.emit("where", zero, like(1, norm), norm)
    return node.emit("divide", x, safe)


def on_rows(node: Node, convert: Callable[[Expr, int], Expr]) -> Expr:
    """``convert(x, axis)``; before opset 13, on the matrix of all dimensions from ``axis`` on."""
    x, shape = node.x, shape_of(node.x)
    if node.opset >= 13:
        return convert(x, axis_of(node.attr("axis", -1), len(shape)))
    axis = axis_of(node.attr("axis", 1), len(shape))
    if axis == len(shape) - 1 or all(e == 1 for e in shape[axis + 1 :]):
        return convert(x, axis)
    return reshape(convert(reshape(x, (prod(shape[:axis]), prod(shape[axis:]))), 1), shape)


def _softmax(op: str) -> Converter:
    return lambda node: on_rows(node, lambda x, axis: node.emit(op, x, axis=axis))


def _dropout(node: Node) -> list[Expr | None]:
    x = node.x
    training = node.has(2) and bool(node.number(2, "training_mode"))
    ratio = float(node.number(1, "the ratio")) if node.has(1) else 0.5
    if training and ratio:
        raise Unsupported("dropout in training mode is random")
    mask = constant(np.ones(shape_of(x)), "bool") if node.wants(1) else None
    return [x, mask]


CONVERTERS: dict[str, Converter] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "LpPool": _lp_pool,
    "GlobalAveragePool": _global("avg_pool"),
    "GlobalMaxPool": _global("max_pool"),
    "GlobalLpPool": _global("lp_pool"),
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "SimplifiedLayerNormalization": _rms_norm,
    "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm,
    "LRN": _lrn,
    "LpNormalization": _lp_normalization,
    "Softmax": _softmax("softmax"),
    "LogSoftmax": _softmax("log_softmax"),
    "Dropout": _dropout,
}
