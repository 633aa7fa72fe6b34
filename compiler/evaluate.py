"""Run a graph by its operators' NumPy meanings: the oracle of the compiler and of the workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.ir import (
    Call,
    Constant,
    Expr,
    Function,
    IRModule,
    Tuple,
    TupleGetItem,
    Var,
    children,
    post_order,
)
from tunefarm.compiler.ops import OPS
from tunefarm.compiler.ops.base import Array

Value = Array | tuple[Array, ...]


def evaluate(
    program: IRModule | Function, inputs: Mapping[str, Array] | Sequence[Array]
) -> tuple[Array, ...]:
    """The results of ``main`` (or of the function) for inputs by name or in parameter order.

    Raises ShapeError if an input is missing or does not have its parameter's shape and dtype.
    """
    function = program.main if isinstance(program, IRModule) else program
    values = _bind(function, inputs)
    result = _run(function.body, values)
    return result if isinstance(result, tuple) else (result,)


def _bind(function: Function, inputs: Mapping[str, Array] | Sequence[Array]) -> dict[Expr, Value]:
    if not isinstance(inputs, Mapping):
        if len(inputs) != len(function.params):
            raise ShapeError(f"takes {len(function.params)} inputs, got {len(inputs)}")
        inputs = {p.name: a for p, a in zip(function.params, inputs, strict=True)}
    values: dict[Expr, Value] = {}
    for param in function.params:
        if param.name not in inputs:
            raise ShapeError(f"input {param.name!r} ({param.type}) is missing")
        array = np.asarray(inputs[param.name])
        if array.shape != param.type.shape or array.dtype.name != param.type.dtype:
            got = f"{array.dtype.name}[{', '.join(map(str, array.shape))}]"
            raise ShapeError(f"input {param.name!r} is {got} and must be {param.type}")
        values[param] = array
    return values


def _run(root: Expr, values: dict[Expr, Value]) -> Value:
    """The value of ``root``; intermediate values are dropped after their last use."""
    order = post_order(root)
    uses: dict[Expr, int] = {}
    for node in order:
        for child in children(node):
            uses[child] = uses.get(child, 0) + 1
    for node in order:
        values[node] = _value(node, values)
        for child in children(node):
            uses[child] -= 1
            if uses[child] == 0 and child is not root:
                values.pop(child, None)
    return values[root]


def _value(node: Expr, values: Mapping[Expr, Value]) -> Value:
    match node:
        case Var():
            return values[node]
        case Constant():
            return node.data
        case Tuple():
            return tuple(_array(values[f]) for f in node.fields)
        case TupleGetItem():
            return values[node.value][node.index]
        case Call():
            return call_reference(node, [_array(values[a]) for a in node.args])


def call_reference(node: Call, arrays: Sequence[Array]) -> Value:
    """The result of one call, of an operator or of a primitive function, on arrays."""
    if isinstance(node.op, Function):
        return _run(node.op.body, dict(zip(node.op.params, arrays, strict=True)))
    return OPS[node.op].reference(arrays, node.attrs)


def _array(value: Value) -> Array:
    assert not isinstance(value, tuple)
    return value
