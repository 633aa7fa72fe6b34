"""From a fused function to its unscheduled program, ready for a sketch.

A kernel sees only pointers, so a sketch may view row-major tensors in another shape: pointwise
convolutions become matrix products over (positions, channels), unit dimensions vanish.
"""

from __future__ import annotations

from dataclasses import replace

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
from tunefarm.compiler.tir import PrimFunc


def create_program(function: Function, name: str = "kernel") -> PrimFunc:
    """The plain loops of a fused function: its parameters, then its results."""
    tensors: dict[int, te.Tensor | tuple[te.Tensor, ...]] = {}
    inputs = []
    for position, param in enumerate(function.params):
        kind = tensor_type(param)
        tensor = te.placeholder(kind.shape, kind.dtype, f"p{position}")
        tensors[id(param)] = tensor
        inputs.append(tensor)
    for expr in post_order(function.body):
        if id(expr) not in tensors:
            tensors[id(expr)] = _compute(expr, tensors)
    result = tensors[id(function.body)]
    outputs = list(result) if isinstance(result, tuple) else [result]
    outputs = [_own_result(t, outputs[:i]) for i, t in enumerate(outputs)]
    program = te.create_prim_func([*inputs, *outputs], name)
    constants = function.attrs.get("constants", ())
    return replace(program, constants=frozenset(constants))  # type: ignore[arg-type]


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


def _own_result(tensor: te.Tensor, earlier: list[te.Tensor]) -> te.Tensor:
    """A result that is a parameter, or stands twice, is copied: each output has its own buffer."""
    if tensor.value is not None and tensor not in earlier:
        return tensor
    return te.compute(tensor.shape, lambda *i: tensor[i], "copy")


def flatten_pointwise(function: Function) -> Function:
    """View a fused pointwise convolution as a matrix product; other functions stay.

    conv(x[n, h, w, i], k[1, 1, i, o]) + …   ->   matmul(x[n·h·w, i], k[i, o]) + …
    """
    anchor = find_anchor(function)
    if anchor is None or not _is_pointwise(anchor):
        return function
    shape = tensor_type(anchor).shape
    flat: dict[int, Expr] = {}
    params = []
    for param in function.params:
        kind = tensor_type(param)
        if param is anchor.args[1]:
            view = kind.shape[-2:]
        else:
            new = _flat_shape(kind.shape, shape)
            if param is anchor.args[0]:
                new = (shape[0] * int(np.prod(shape[1:-1])), kind.shape[-1])
            if new is None:
                return function
            view = new
        flat[id(param)] = Var(param.name, TensorType(view, kind.dtype))
        params.append(flat[id(param)])
    for expr in post_order(function.body):
        if id(expr) in flat:
            continue
        if isinstance(expr, Constant):
            new = _flat_shape(expr.type.shape, shape)
            if new is None:
                return function
            flat[id(expr)] = Constant(expr.data.reshape(new))
        elif expr is anchor:
            flat[id(expr)] = call("matmul", *(flat[id(a)] for a in expr.args))
        elif isinstance(expr, Call) and _is_elementwise(expr):
            flat[id(expr)] = call(str(expr.op), *(flat[id(a)] for a in expr.args), **expr.attrs)
        else:
            return function
    return Function(tuple(params), flat[id(function.body)], function.attrs)  # type: ignore[arg-type]


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


def _is_elementwise(expr: Call) -> bool:
    return isinstance(expr.op, str) and OPS[expr.op].pattern <= Pattern.BROADCAST


def _is_pointwise(anchor: Call) -> bool:
    if anchor.op != "conv" or not all(isinstance(a, Var) for a in anchor.args):
        return False
    attrs, kernel = anchor.attrs, tensor_type(anchor.args[1]).shape
    padding = attrs["padding"]
    return (
        attrs["data_layout"] == "NSC"
        and attrs["kernel_layout"] == "SIO"
        and attrs["groups"] == 1
        and all(s == 1 for s in attrs["strides"])  # type: ignore[union-attr]
        and all(k == 1 for k in kernel[:-2])
        and all(p == (0, 0) for p in padding)  # type: ignore[union-attr]
    )


def _flat_shape(shape: tuple[int, ...], full: tuple[int, ...]) -> tuple[int, ...] | None:
    """A shape that broadcasts to ``full``, with all but the last dimension merged; None if not."""
    padded = (1,) * (len(full) - len(shape)) + shape
    rows, channels = padded[:-1], padded[-1]
    if all(e == 1 for e in rows):
        return (1, channels)
    return (int(np.prod(rows)), channels) if rows == full[:-1] else None

