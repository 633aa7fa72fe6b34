"""What an operator is, the table of all operators, and ``call``, which builds typed calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler import te
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.ir import (
    Attrs,
    AttrValue,
    Call,
    Expr,
    TensorType,
    TupleType,
    Type,
    tensor_type,
)

Array: TypeAlias = NDArray[Any]


class Pattern(IntEnum):
    """How an operator may fuse; a larger number is harder to fuse."""

    ELEMENTWISE = 0  # out[i] depends on in[i]
    BROADCAST = 1  # out[i] depends on in[i] of broadcast inputs
    INJECTIVE = 2  # out[i] depends on one element of each input: transpose, reshape, pad, slice
    REDUCTION = 3  # sums, pooling windows, softmax, normalisations: row operators
    OUT_FUSABLE = 4  # contractions: what follows elementwise joins their loop nest
    OPAQUE = 8  # stands alone


@dataclass(frozen=True, slots=True)
class Op:
    """One operator, all in one place.

    ``infer(types, attrs)`` gives the result's type, raising ShapeError with what does not fit.
    ``compute(tensors, attrs, type)`` gives the tensor expression(s); ``reference(arrays, attrs)``
    the NumPy meaning (in the inputs' dtype, float16/bfloat16 computed in float32), which is the
    oracle that measured candidates are checked against. ``flops(types, attrs, type)`` counts
    nominal operations (a multiply-add is two); by default one an output element.
    """

    name: str
    infer: Callable[[Sequence[TensorType], Attrs], Type]
    compute: Callable[[Sequence[te.Tensor], Attrs, Type], te.Tensor | tuple[te.Tensor, ...]]
    reference: Callable[[Sequence[Array], Attrs], Array | tuple[Array, ...]]
    pattern: Pattern = Pattern.ELEMENTWISE
    defaults: Mapping[str, AttrValue] = field(default_factory=dict)
    flops: Callable[[Sequence[TensorType], Attrs, Type], int] | None = None
    commutative: bool = False


OPS: dict[str, Op] = {}


def register(*ops: Op) -> None:
    """Add operators to the table; a name is registered once."""
    for op in ops:
        if op.name in OPS:
            raise ValueError(f"operator {op.name} is registered twice")
        OPS[op.name] = op


def find(name: str) -> Op | None:
    """The operator of this name, None if there is none; plug-ins are loaded to look for it."""
    if name not in OPS:
        from tunefarm.compiler import plugins

        plugins.loaded()
    return OPS.get(name)


def call(op: str, *args: Expr, name: str = "", **attrs: Any) -> Call:
    """A typed call of a registered operator; missing attributes take their defaults.

    Raises ShapeError if the arguments' types do not fit, TypeError for an unknown attribute.
    """
    definition = find(op) or OPS[op]
    unknown = attrs.keys() - definition.defaults.keys()
    if unknown:
        raise TypeError(f"{op} has no attribute {sorted(unknown)[0]}")
    merged = {**definition.defaults, **attrs}
    types = [tensor_type(a) for a in args]
    try:
        result = definition.infer(types, merged)
    except ShapeError as error:
        where = f"{op} {name!r}" if name else op
        raise ShapeError(f"{where}: {error}") from None
    return Call(op, tuple(args), merged, result, name)


def broadcast_shapes(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """NumPy's broadcasting of shapes; ShapeError if they do not fit."""
    listed = list(shapes)
    try:
        return tuple(np.broadcast_shapes(*listed))
    except ValueError:
        raise ShapeError(f"shapes {' and '.join(map(str, listed))} do not broadcast") from None


def flops_of(expr: Call) -> int:
    """Nominal operations of one operator call."""
    assert isinstance(expr.op, str)
    definition = OPS[expr.op]
    if definition.flops is not None:
        return definition.flops([tensor_type(a) for a in expr.args], expr.attrs, expr.type)
    fields = expr.type.fields if isinstance(expr.type, TupleType) else (expr.type,)
    return 0 if definition.pattern is Pattern.INJECTIVE else sum(f.size for f in fields)
