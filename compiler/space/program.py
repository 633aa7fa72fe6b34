"""From a fused function to its unscheduled program, ready for a sketch.

A kernel sees only pointers, so a sketch may view row-major tensors in another shape: pointwise
convolutions become matrix products over (positions, channels), unit dimensions vanish.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
from tunefarm.compiler import te
from tunefarm.compiler.ir import (
    Call,
    Constant,
    Expr,
    Function,
    TensorType,
    Tuple,
    TupleGetItem,
    Var,
    post_order,
    tensor_type,
)
from tunefarm.compiler.ops import OPS, Pattern, call
from tunefarm.compiler.ops.conv import result_channels_last
from tunefarm.compiler.overwrite import overwritable
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.ir import Const, Store
from tunefarm.compiler.tir.schedule import compute_inline, remaining_blocks
from tunefarm.compiler.tir.schedule.tree import blocks, written_buffer


def create_program(
    function: Function,
    name: str = "kernel",
    computes: Mapping[Call, Callable[[Sequence[te.Tensor]], te.Tensor]] = MappingProxyType({}),
    shapes: Mapping[Var, tuple[int, ...]] = MappingProxyType({}),
    dtypes: Mapping[Var, str] = MappingProxyType({}),
) -> PrimFunc:
    """The plain loops of a fused function: its parameters, then its results.

    ``computes`` gives calls another meaning than their operator's, ``shapes`` and ``dtypes`` are
    those of parameters that it reads transformed. Constants stand where they are read.
    """
    tensors: dict[int, te.Tensor | tuple[te.Tensor, ...]] = {}
    inputs = []
    for position, param in enumerate(function.params):
        kind = tensor_type(param)
        shape, dtype = shapes.get(param, kind.shape), dtypes.get(param, kind.dtype)
        tensor = te.placeholder(shape, dtype, f"p{position}")
        tensors[id(param)] = tensor
        inputs.append(tensor)
    for expr in post_order(function.body):
        if isinstance(expr, Call) and expr in computes:
            tensors[id(expr)] = computes[expr]([_one(tensors[id(a)]) for a in expr.args])
        elif id(expr) not in tensors:
            tensors[id(expr)] = _compute(expr, tensors)
    result = tensors[id(function.body)]
    outputs = list(result) if isinstance(result, tuple) else [result]
    outputs = [_own_result(t, outputs[:i]) for i, t in enumerate(outputs)]
    program = _constants_inlined(te.create_prim_func([*inputs, *outputs], name))
    constants, overwritten = frozenset(function.constants), overwritable(function)
    return replace(program, constants=constants, overwritten=overwritten)


def fold_epilogue(program: PrimFunc, stages: Collection[str], results: int = 1) -> PrimFunc:
    """What is none of the ``stages`` computed in the last blocks, of which ``results`` are left: a
    sum's result, what follows it, and what that reads beside it. Raises ScheduleError if it cannot.
    """
    for block in remaining_blocks(program)[:-results]:
        if block not in stages:
            program = compute_inline(program, block)
    return program


def _compute(
    expr: Expr, tensors: dict[int, te.Tensor | tuple[te.Tensor, ...]]
) -> te.Tensor | tuple[te.Tensor, ...]:
    match expr:
        case Call():
            assert isinstance(expr.op, str)
            args = [_one(tensors[id(a)]) for a in expr.args]
            return OPS[expr.op].compute(args, expr.attrs, expr.type)
        case Constant():
            return _constant(expr)
        case Tuple(fields):
            return tuple(_one(tensors[id(f)]) for f in fields)
        case TupleGetItem(value, index):
            items = tensors[id(value)]
            assert isinstance(items, tuple)
            return items[index]
        case Var():
            raise AssertionError(f"{expr.name} is not a parameter of the function")


def _one(tensor: te.Tensor | tuple[te.Tensor, ...]) -> te.Tensor:
    assert isinstance(tensor, te.Tensor)
    return tensor


def _constant(expr: Constant) -> te.Tensor:
    value = np.asarray(expr.data).reshape(-1)
    if value.size != 1:
        raise ValueError("a fused function holds constants of one element only")
    return te.compute(
        expr.type.shape, lambda *_: te.const(value[0].item(), expr.type.dtype), "scalar"
    )


def _constants_inlined(program: PrimFunc) -> PrimFunc:
    """No blocks that hold a constant: sketches count those in front of a contraction."""
    for block in blocks(program.body):
        store = block.body
        is_constant = isinstance(store, Store) and isinstance(store.value, Const)
        if is_constant and written_buffer(block) not in program.params:
            program = compute_inline(program, block.name)
    return program


def _own_result(tensor: te.Tensor, earlier: list[te.Tensor]) -> te.Tensor:
    """A result that is a parameter, or stands twice, is copied: each output has its own buffer."""
    if tensor.value is not None and tensor not in earlier:
        return tensor
    return te.compute(tensor.shape, lambda *i: tensor[i], "copy")


def view_contraction(function: Function) -> Function:
    """View a fused convolution, channels last, in the form that tiles best; others stay.

    pointwise:  conv(x[n, h, w, i], k[1, 1, i, o]) + …   ->   matmul(x[n·h·w, i], k[i, o]) + …
    grouped:    conv(x[n, h, w, g·i], k[…, i, g·o]) + …  ->   group_conv(x[n, h, w, g, i], …) + …
    """
    anchor = find_anchor(function)
    if anchor is None or not has_channels_last(anchor):
        return function
    if is_pointwise(anchor):
        return viewed(function, anchor, _pointwise_views(anchor)) or function
    return view_groups(function)


def view_groups(function: Function) -> Function:
    """View a fused convolution in groups of several channels as ``group_conv``; others stay."""
    anchor = find_anchor(function)
    if anchor is None or not has_channels_last(anchor) or not _is_grouped(anchor):
        return function
    if not result_channels_last(anchor.attrs):
        return function
    return viewed(function, anchor, _grouped_views(anchor)) or function


@dataclass(frozen=True, slots=True)
class Views:
    """How the tensors of a fused convolution are viewed; ``result`` gives None if it cannot be."""

    data: tuple[int, ...]
    kernel: tuple[int, ...]
    result: Callable[[tuple[int, ...]], tuple[int, ...] | None]
    anchor: Callable[[Expr, Expr], Call]


def _pointwise_views(anchor: Call) -> Views:
    shape, kernel = tensor_type(anchor).shape, tensor_type(anchor.args[1]).shape
    rows = prod(shape[:-1])
    return Views(
        (rows, kernel[-2]),
        kernel[-2:],
        lambda s: flat_shape(s, shape),
        lambda x, w: call("matmul", x, w, out_dtype=anchor.attrs["out_dtype"]),
    )


def _grouped_views(anchor: Call) -> Views:
    data, kernel = (tensor_type(a).shape for a in anchor.args)
    shape, groups = tensor_type(anchor).shape, anchor.attrs["groups"]
    assert isinstance(groups, int)
    kept = ("strides", "padding", "dilations", "pad_value", "out_dtype")
    windows: dict[str, Any] = {k: anchor.attrs[k] for k in kept}

    def result(s: tuple[int, ...]) -> tuple[int, ...] | None:
        if not s or s[-1] == 1:
            return (*s, 1)
        return (*s[:-1], groups, shape[-1] // groups) if s[-1] == shape[-1] else None

    return Views(
        (*data[:-1], groups, data[-1] // groups),
        (*kernel[:-1], groups, kernel[-1] // groups),
        result,
        lambda x, w: call("group_conv", x, w, **windows),
    )


def viewed(function: Function, anchor: Call, views: Views) -> Function | None:
    """The function on viewed tensors; None if some operator or shape does not allow it."""
    flat: dict[int, Expr] = {}
    params: list[Var] = []
    for param in function.params:
        kind = tensor_type(param)
        is_data, is_kernel = param is anchor.args[0], param is anchor.args[1]
        view = views.data if is_data else views.kernel if is_kernel else views.result(kind.shape)
        if view is None or (is_data and _read_elsewhere(function, anchor, param)):
            return None
        params.append(Var(param.name, TensorType(view, kind.dtype)))
        flat[id(param)] = params[-1]
    for expr in post_order(function.body):
        if id(expr) in flat:
            continue
        if isinstance(expr, Constant):
            view = views.result(expr.type.shape)
            if view is None:
                return None
            flat[id(expr)] = Constant(expr.data.reshape(view))
        elif expr is anchor:
            flat[id(expr)] = views.anchor(*(flat[id(a)] for a in expr.args))
        elif isinstance(expr, Call) and is_elementwise(expr):
            attrs: dict[str, Any] = dict(expr.attrs)
            flat[id(expr)] = call(str(expr.op), *(flat[id(a)] for a in expr.args), **attrs)
        else:
            return None
    return Function(tuple(params), flat[id(function.body)], function.attrs)


def _read_elsewhere(function: Function, anchor: Call, param: Var) -> bool:
    """True if a parameter of the anchor is an operand of another operator too."""
    others = (e for e in post_order(function.body) if isinstance(e, Call) and e is not anchor)
    return any(a is param for e in others for a in e.args)


def find_anchor(function: Function) -> Call | None:
    """The contraction of a fused function, if it has exactly one."""
    found = [
        e
        for e in post_order(function.body)
        if isinstance(e, Call)
        and isinstance(e.op, str)
        and OPS[e.op].pattern is Pattern.OUT_FUSABLE
    ]
    return found[0] if len(found) == 1 else None


def is_elementwise(expr: Call) -> bool:
    """True for an operator that computes each element by itself, operands broadcast."""
    return isinstance(expr.op, str) and OPS[expr.op].pattern <= Pattern.BROADCAST


def has_channels_last(anchor: Call) -> bool:
    return (
        anchor.op == "conv"
        and all(isinstance(a, Var) for a in anchor.args)
        and anchor.attrs["data_layout"] == "NSC"
        and anchor.attrs["kernel_layout"] == "SIO"
    )


def is_float32_image(anchor: Call) -> bool:
    """True for a convolution of float32 images, channels last in data and result."""
    types = [tensor_type(v) for v in (*anchor.args, anchor)]
    return (
        has_channels_last(anchor)
        and result_channels_last(anchor.attrs)
        and all(t.dtype == "float32" and len(t.shape) == 4 for t in types)
    )


def is_pointwise(anchor: Call, strided: bool = False) -> bool:
    """True for a convolution of one tap that reads each pixel, or if ``strided`` some of them."""
    attrs, kernel = anchor.attrs, tensor_type(anchor.args[1]).shape
    return (
        attrs["groups"] == 1
        and (strided or all(s == 1 for s in attrs["strides"]))  # type: ignore[union-attr]
        and all(k == 1 for k in kernel[:-2])
        and all(p == (0, 0) for p in attrs["padding"])  # type: ignore[union-attr]
    )


def _is_grouped(anchor: Call) -> bool:
    """True for groups of several channels; depthwise convolutions have lanes over the groups."""
    return anchor.attrs["groups"] != 1 and tensor_type(anchor.args[1]).shape[-2] > 1


def flat_shape(shape: tuple[int, ...], full: tuple[int, ...]) -> tuple[int, ...] | None:
    """A shape that broadcasts to ``full``, with all but the last dimension merged; None if not."""
    padded = (1,) * (len(full) - len(shape)) + shape
    rows, channels = padded[:-1], padded[-1]
    if all(e == 1 for e in rows):
        return (1, channels)
    return (int(np.prod(rows)), channels) if rows == full[:-1] else None
