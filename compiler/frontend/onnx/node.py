"""What a converter sees: one node with its operands as expressions, and how it emits calls.

A converter is a function ``Node -> Expr | tuple[Expr | None, …]`` in one of the tables. It raises
``Unsupported`` with a reason, and the importer reports all such nodes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
from tunefarm.compiler.dtypes import DTYPES, is_float, numpy_dtype
from tunefarm.compiler.evaluate import call_reference
from tunefarm.compiler.ir import AttrValue, Constant, Expr, TensorType, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.base import Array

MOST_FOLDED = 1 << 31
"""Elements of what becomes of constants when a model is imported."""
_MOST_MADE = 1 << 28
"""Elements of what a few numbers ask for then: 2 GiB of int64."""


class Unsupported(Exception):
    """A node that cannot be imported, with the reason."""


class Malformed(Unsupported):
    """A node that is not valid, whatever we support; ONNX need not be asked."""


@dataclass(frozen=True, slots=True)
class Node:
    """One ONNX node. ``wanted`` tells which of its outputs anything reads."""

    op: str
    name: str
    inputs: tuple[Expr | None, ...]
    attrs: Mapping[str, Any]
    opset: int
    wanted: tuple[bool, ...] = (True,)

    def has(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] is not None

    def input(self, index: int) -> Expr:
        expr = self.inputs[index] if index < len(self.inputs) else None
        if expr is None:
            raise Unsupported(f"input {index} is missing")
        return expr

    @property
    def x(self) -> Expr:
        return self.input(0)

    @property
    def all(self) -> tuple[Expr, ...]:
        return tuple(self.input(i) for i in range(len(self.inputs)))

    def type(self, index: int = 0) -> TensorType:
        return tensor_type(self.input(index))

    def constant(self, index: int, what: str) -> Array:
        """The value of an input that must be known when the model is imported."""
        expr = self.input(index)
        if not isinstance(expr, Constant):
            raise Unsupported(f"{what} (input {index}) is computed at run time, not a constant")
        return expr.data

    def ints(self, index: int, what: str) -> tuple[int, ...]:
        """The value of such an input that holds integers."""
        values = self.constant(index, what)
        if values.dtype.kind not in "iu":
            raise Malformed(f"{what} (input {index}) is {values.dtype.name}, expected integers")
        return tuple(int(v) for v in values.reshape(-1))

    def integer(self, index: int, what: str) -> int:
        """The value of such an input that holds one integer."""
        values = self.ints(index, what)
        if len(values) != 1:
            raise Malformed(f"{what} (input {index}) is {values}, expected one number")
        return values[0]

    def number(self, index: int, what: str) -> Any:
        """The value of such an input that holds one number, in its own type."""
        values = self.constant(index, what)
        if values.size != 1:
            raise Malformed(f"{what} (input {index}) is {values.tolist()}, expected one number")
        return values.reshape(-1)[0]

    def ranked(self, index: int, *ranks: int) -> Expr:
        """An input that must have one of these numbers of dimensions."""
        expr = self.input(index)
        if rank_of(expr) not in ranks:
            allowed = " or ".join(map(str, ranks))
            raise Unsupported(
                f"input {index} has shape {shape_of(expr)}, and must have {allowed} dimensions"
            )
        return expr

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute, of the default's type if there is one."""
        value = self.attrs.get(name, default)
        if not _is_like(value, default):
            kind = _KINDS[type(default)]
            raise Malformed(f"attribute {name} is {_told(value)}, and must be {kind}")
        return value

    def required(self, name: str, example: Any = None) -> Any:
        """An attribute that must be there, of the example's type if there is one."""
        if name not in self.attrs:
            raise Malformed(f"attribute {name} is missing")
        return self.attr(name, example)

    def positive(self, name: str, default: int | None = None) -> int:
        """An attribute that must be a positive integer; without default it must be there."""
        value = self.required(name, 1) if default is None else self.attr(name, default)
        if value <= 0:
            raise Malformed(f"{name}={value}, and must be positive")
        return int(value)

    def wants(self, index: int) -> bool:
        return index < len(self.wanted) and self.wanted[index]

    def emit(self, op: str, *args: Expr, **attrs: AttrValue) -> Expr:
        """``emit`` with this node's name."""
        return emit(op, *args, name=self.name, **attrs)


Result: TypeAlias = "Expr | Sequence[Expr | None]"
Converter: TypeAlias = Callable[[Node], Result]


_KINDS: Mapping[type, str] = {
    int: "an integer", float: "a number", str: "a text", tuple: "a list of such",
}  # fmt: skip


def _is_like(value: object, example: object) -> bool:
    """Whether a value has the type of an example: a list, of its elements; None is like all."""
    if isinstance(example, tuple):
        return isinstance(value, tuple) and all(_is_like(v, e) for e in example[:1] for v in value)
    if isinstance(example, float):
        return isinstance(value, (int, float))
    return example is None or isinstance(value, type(example))


def _told(value: object) -> str:
    """An attribute's value, or what it is where that would be long."""
    return repr(value) if isinstance(value, (int, float, str, tuple)) else "of another kind"


def emit(op: str, *args: Expr, name: str = "", **attrs: AttrValue) -> Expr:
    """A call of one of our operators; on constants alone, its value."""
    expr = call(op, *args, name=name, **attrs)
    if min(shape_of(expr), default=0) < 0:
        raise Unsupported(f"a result of shape {shape_of(expr)}")
    if not all(isinstance(a, Constant) for a in args):
        return expr
    check_extents(shape_of(expr), MOST_FOLDED)
    try:
        value = call_reference(expr, [a.data for a in args if isinstance(a, Constant)])
    except IndexError as error:
        raise Unsupported(f"{op} of constants: {error}") from None
    assert not isinstance(value, tuple)
    return Constant(np.asarray(value), name)


def check_extents(shape: Sequence[int], most: int = _MOST_MADE) -> None:
    """Unsupported unless a tensor of this shape can be computed when a model is imported."""
    if min(shape, default=0) < 0 or len(shape) > 64 or prod(shape) > most:
        raise Unsupported(f"a constant of shape {tuple(shape)}; up to {most} elements can be made")


def constant(value: object, dtype: str, name: str = "") -> Constant:
    try:
        return Constant(np.asarray(value, numpy_dtype(dtype)), name)
    except (ValueError, OverflowError):
        raise Unsupported(f"{value} is not of type {dtype}") from None


def like(value: object, expr: Expr) -> Constant:
    """A constant of the expression's dtype."""
    return constant(value, dtype_of(expr))


def shape_of(expr: Expr) -> tuple[int, ...]:
    return tensor_type(expr).shape


def dtype_of(expr: Expr) -> str:
    return tensor_type(expr).dtype


def rank_of(expr: Expr) -> int:
    return len(shape_of(expr))


def weight(node: Node, index: int) -> Expr:
    """An operand, a constant of another floating-point dtype rounded to the first operand's:
    PyTorch's exporter joins batch normalisations to float32 weights of bfloat16 layers."""
    expr = node.input(index)
    dtypes = dtype_of(expr), dtype_of(node.x)
    rounds = isinstance(expr, Constant) and all(is_float(d) for d in dtypes)
    return cast(expr, dtypes[1]) if rounds else expr


def reshape(x: Expr, shape: Sequence[int], name: str = "") -> Expr:
    shape = tuple(int(e) for e in shape)
    return x if shape_of(x) == shape else emit("reshape", x, name=name, shape=shape)


def transpose(x: Expr, axes: Sequence[int], name: str = "") -> Expr:
    identity = list(axes) == list(range(rank_of(x)))
    return x if identity else emit("transpose", x, name=name, axes=tuple(int(a) for a in axes))


def cast(x: Expr, dtype: str, name: str = "") -> Expr:
    return x if dtype_of(x) == dtype else emit("cast", x, name=name, dtype=dtype)


def broadcast_to(x: Expr, shape: Sequence[int], name: str = "") -> Expr:
    shape = tuple(int(e) for e in shape)
    return x if shape_of(x) == shape else emit("broadcast_to", x, name=name, shape=shape)


def take_slice(
    x: Expr,
    begin: Sequence[int],
    size: Sequence[int],
    strides: Sequence[int] | None = None,
    name: str = "",
) -> Expr:
    steps = tuple(strides) if strides is not None else (1,) * rank_of(x)
    if tuple(size) == shape_of(x) and not any(begin) and all(s == 1 for s in steps):
        return x
    return emit("slice", x, name=name, begin=tuple(begin), size=tuple(size), strides=steps)


def take_range(x: Expr, axis: int, start: int, stop: int, name: str = "") -> Expr:
    """Elements [start, stop) along one axis."""
    begin, size = [0] * rank_of(x), list(shape_of(x))
    begin[axis], size[axis] = start, stop - start
    return take_slice(x, begin, size, name=name)


def concat(parts: Sequence[Expr], axis: int, name: str = "") -> Expr:
    return parts[0] if len(parts) == 1 else emit("concat", *parts, name=name, axis=axis)


def expand_dims(x: Expr, axes: Sequence[int]) -> Expr:
    """Dimensions of extent 1 at ``axes`` of the result."""
    rank = rank_of(x) + len(axes)
    places = {a % rank for a in axes}
    rest = iter(shape_of(x))
    return reshape(x, [1 if d in places else next(rest) for d in range(rank)])


def per_channel(x: Expr, rank: int, axis: int = 1) -> Expr:
    """A vector that broadcasts along ``axis`` of a tensor of ``rank``."""
    return reshape(x, (*shape_of(x), *(1 for _ in range(rank - axis - 1))))


def axis_of(axis: int, rank: int) -> int:
    if not -max(rank, 1) <= axis < max(rank, 1):
        raise Malformed(f"axis {axis} is not an axis of a tensor of {rank} dimensions")
    return axis % max(rank, 1)


def dimension(axis: int, x: Expr) -> int:
    """The axis counted from the front, of a tensor that is not a single number."""
    if not shape_of(x):
        raise Malformed(f"axis {axis} is not an axis of a single number")
    return axis_of(axis, rank_of(x))


def dtype_name(tensor_dtype: int) -> str:
    """The name of an ONNX element type; Unsupported if we have no such type."""
    import onnx

    name: str
    try:
        name = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor_dtype)).name
    except (KeyError, TypeError, ValueError):
        name = "?"
    if name not in DTYPES:
        known = onnx.TensorProto.DataType
        label = known.Name(tensor_dtype).lower() if tensor_dtype in known.values() else tensor_dtype
        raise Unsupported(f"element type {label} is not supported")
    return name
