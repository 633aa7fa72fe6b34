"""Small questions about constants and shapes that several passes ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.ir import Call, Constant, Expr, tensor_type
from tunefarm.compiler.ops import call


def scalar_of(expr: Expr) -> float | None:
    """The value of a constant that holds one number (or one number everywhere, up to 4096)."""
    if not isinstance(expr, Constant) or expr.data.dtype.name == "bool":
        return None
    data = expr.data.reshape(-1) if expr.data.size <= 4096 else expr.data.reshape(-1)[:0]
    if data.size == 0 or not bool((data == data[0]).all()):
        return None
    return float(data[0])


def factor_of(expr: Expr) -> float | None:
    """The constant number by which a call multiplies its first operand; None of another call, and
    where it repeats the operand too."""
    if not isinstance(expr, Call) or expr.op != "multiply":
        return None
    if tensor_type(expr.args[0]).size != tensor_type(expr).size:
        return None
    return scalar_of(expr.args[1])  # where constants stand


def constant(values: NDArray[Any], like: Expr, name: str = "") -> Constant:
    """A constant with the dtype of ``like``."""
    dtype = like.data.dtype if isinstance(like, Constant) else _dtype_of(like)
    return Constant(contiguous(values.astype(dtype, copy=False)).reshape(values.shape), name)


def contiguous(values: NDArray[Any]) -> NDArray[Any]:
    """The array in C order; a single number seen as a large array stays a view of that number."""
    return values if not any(values.strides) else np.ascontiguousarray(values)


def _dtype_of(expr: Expr) -> np.dtype[Any]:
    from tunefarm.compiler.dtypes import numpy_dtype

    return numpy_dtype(tensor_type(expr).dtype)


def reshape(expr: Expr, shape: Sequence[int]) -> Expr:
    """The expression in another shape: a view of a constant, the same if it has that shape."""
    if tensor_type(expr).shape == tuple(shape):
        return expr
    if isinstance(expr, Constant):
        return Constant(expr.data.reshape(tuple(shape)), expr.name)
    return call("reshape", expr, shape=tuple(shape))


def transpose(expr: Expr, axes: Sequence[int]) -> Expr:
    """The expression transposed: computed at once for a constant, the same for the identity."""
    if list(axes) == list(range(len(axes))):
        return expr
    if isinstance(expr, Constant):
        return Constant(contiguous(expr.data.transpose(tuple(axes))), expr.name)
    return call("transpose", expr, axes=tuple(axes))


def permutation(node: Call) -> tuple[int, ...]:
    """The axes of a transpose."""
    axes = node.attrs["axes"]
    assert isinstance(axes, tuple)
    return tuple(int(a) for a in axes)  # type: ignore[arg-type]


def inverse(axes: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes ``axes``."""
    result = [0] * len(axes)
    for position, axis in enumerate(axes):
        result[axis] = position
    return tuple(result)


def strip_unit_dims(expr: Expr, keep: int = 0) -> Expr:
    """The expression without leading dimensions of extent 1, at least ``keep`` dimensions left."""
    shape = tensor_type(expr).shape
    drop = 0
    while drop < len(shape) - keep and shape[drop] == 1:
        drop += 1
    return reshape(expr, shape[drop:])
