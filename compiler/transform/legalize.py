"""Rewrite operators into the forms that schedules are written for.

matmul(a[b, m, k], w[k, n])   ->  reshape(matmul(reshape(a, [b * m, k]), w), [b, m, n])
conv(x[n, l, c], w[k, i, o])  ->  reshape(conv(reshape(x, [n, 1, l, c]), w[1, k, i, o]))
conv(x[n, d, y, x, c], w[1, 3, 3, i, o])  ->  the same of n·d images; w[3, 1, 1, …] of rows of y·x
matmul(T(q), T(k))            ->  einsum(q, k), which reads both in place
conv_transpose[strides = s](x) ->  convolutions, one for each output modulo s, interleaved
conv[dilations = d](x)         ->  a plain convolution of the image's phases, where that pays
group_norm[channels last](x)  ->  (x - mean) * a + b
an empty result               ->  an empty constant
"""

from __future__ import annotations

from math import prod

import numpy as np
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.ir import AttrValue, Call, Constant, Expr, IRModule, TensorType, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.common import integers
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.canonicalize_ops import RULES
from tunefarm.compiler.transform.constants import reshape
from tunefarm.compiler.transform.group_norm import lower_group_norm
from tunefarm.compiler.transform.push_reshapes import RESHAPE_RULES
from tunefarm.compiler.transform.read_in_place import IN_PLACE_RULES
from tunefarm.compiler.transform.rewrite import Uses, rewrite_main
from tunefarm.compiler.transform.split_conv_transpose import split_conv_transpose
from tunefarm.compiler.transform.split_dilation import split_dilation

_ROW_OPERATORS = ("softmax", "log_softmax", "layer_norm", "rms_norm", "l2_normalize")
_WINDOWED = ("conv", "max_pool", "avg_pool", "lp_pool")
_ADDED: dict[str, AttrValue] = {
    "strides": 1, "dilations": 1, "kernel": 1, "padding": (0, 0), "counted": (0, 0),
}  # fmt: skip


def legalize(module: IRModule, target: Target) -> IRModule:
    """Runs on channels-last graphs; the reshapes it makes are moved out of the way of fusion."""
    forms = [
        _empty,
        *IN_PLACE_RULES,
        _rows_of_matmul,
        _rows_of_operator,
        split_conv_transpose,
        lambda node, uses: split_dilation(node, target),
        _flat_window,
        _flat_volume,
        *([lower_group_norm] if target.kind == "llvm" else []),
    ]
    return rewrite_main(module, [*forms, *RESHAPE_RULES, *RULES])


def _empty(node: Call, uses: Uses) -> Expr | None:
    if not isinstance(node.type, TensorType) or node.type.size:
        return None
    return Constant(np.zeros(node.type.shape, numpy_dtype(node.type.dtype)), node.name)


def _rows_of_matmul(node: Call, uses: Uses) -> Expr | None:
    """All leading dimensions are rows where the second operand is one matrix."""
    if node.op != "matmul" or node.attrs["transpose_a"]:
        return None
    a, b = node.args
    rows, matrix = tensor_type(a).shape, tensor_type(b).shape
    if len(rows) == 2 or prod(matrix[:-2]) != 1 or len(rows) < len(matrix):
        return None
    flat = reshape(a, (prod(rows[:-1]), rows[-1]))
    made = call("matmul", flat, reshape(b, matrix[-2:]), name=node.name, **node.attrs)
    return reshape(made, tensor_type(node).shape)


def _rows_of_operator(node: Call, uses: Uses) -> Expr | None:
    """All leading dimensions are rows of an operator on the last one."""
    if node.op not in _ROW_OPERATORS:
        return None
    x, *others = node.args
    shape = tensor_type(x).shape
    is_short = len(shape) < 3 and node.attrs["axis"] == -1
    if is_short or node.attrs["axis"] not in (-1, len(shape) - 1):
        return None
    flat = reshape(x, (prod(shape[:-1]), shape[-1]))
    rows = [reshape(a, tensor_type(a).shape[-1:]) for a in others]
    attrs = {**node.attrs, "axis": -1}
    return reshape(call(str(node.op), flat, *rows, name=node.name, **attrs), shape)


def _flat_window(node: Call, uses: Uses) -> Expr | None:
    """A window along one dimension is one of height 1 along two."""
    if node.op not in _WINDOWED or node.attrs["data_layout"] != "NSC":
        return None
    x, *others = node.args
    kind = tensor_type(x)
    if len(kind.shape) != 3 or (node.op == "conv" and node.attrs["kernel_layout"] != "SIO"):
        return None
    n, length, channels = kind.shape
    attrs = {name: _with_height(name, value) for name, value in node.attrs.items()}
    weights = [reshape(w, (1, *tensor_type(w).shape)) for w in others]
    image = reshape(x, (n, 1, length, channels))
    made = call(str(node.op), image, *weights, name=node.name, **attrs)
    return reshape(made, tensor_type(node).shape)


def _flat_volume(node: Call, uses: Uses) -> Expr | None:
    """Dimensions of a volume that a window does not reach along: the first one is one with the
    images, or the last two are one."""
    if node.op not in _WINDOWED or node.attrs["data_layout"] != "NSC":
        return None
    x, *others = node.args
    shape, attrs = tensor_type(x).shape, node.attrs
    if len(shape) != 5 or (node.op == "conv" and attrs["kernel_layout"] != "SIO"):
        return None
    kernel = tensor_type(others[0]).shape if others else integers(attrs, "kernel")
    edges = [attrs[n] for n in ("padding", "counted") if n in attrs]
    flat = [
        kernel[d] == integers(attrs, "strides")[d] == 1 and all(e[d] == (0, 0) for e in edges)  # type: ignore[index]
        for d in range(3)
    ]
    if all(flat):
        return None  # a product of pixels, in whatever dimensions
    if flat[0]:
        kept, places = slice(1, 3), (shape[0] * shape[1], *shape[2:])
    elif flat[1] and flat[2]:
        kept, places = slice(0, 2), (*shape[:2], shape[2] * shape[3], shape[4])
    else:
        return None
    fewer = {n: v[kept] if n in _ADDED and isinstance(v, tuple) else v for n, v in attrs.items()}
    weights = [reshape(w, (*tensor_type(w).shape[kept], *tensor_type(w).shape[3:])) for w in others]
    made = call(str(node.op), reshape(x, places), *weights, name=node.name, **fewer)
    return reshape(made, tensor_type(node).shape)


def _with_height(name: str, value: AttrValue) -> AttrValue:
    if name not in _ADDED:
        return value
    assert isinstance(value, tuple)
    return (_ADDED[name], *value)
