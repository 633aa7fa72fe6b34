"""What operator families share: axes, broadcast reads, dtype checks, wide arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tunefarm.compiler import te
from tunefarm.compiler.dtypes import numpy_dtype, wide
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.ir import Attrs, TensorType, Type
from tunefarm.compiler.ops.base import Array
from tunefarm.compiler.tir.ir import Expr, Operand

SPATIAL_NAMES = {1: ("x",), 2: ("y", "x"), 3: ("z", "y", "x")}


def out_type(type: Type) -> TensorType:
    """The result's type, of an operator that has one result."""
    assert isinstance(type, TensorType)
    return type


def integers(attrs: Attrs, name: str) -> tuple[int, ...]:
    """An attribute that is a tuple of integers."""
    value = attrs[name]
    assert isinstance(value, tuple)
    return tuple(int(v) for v in value)  # type: ignore[arg-type]


def integer(attrs: Attrs, name: str) -> int:
    value = attrs[name]
    assert isinstance(value, int)
    return value


def number(attrs: Attrs, name: str) -> float:
    value = attrs[name]
    assert isinstance(value, (int, float))
    return float(value)


def normalize_axis(axis: int, rank: int) -> int:
    """The axis counted from the front; ShapeError if there is no such axis."""
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} is not in [{-rank}, {rank}), the axes of {rank} dimensions")
    return axis % rank


def normalize_axes(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Sorted axes counted from the front; ShapeError on one that is absent or named twice."""
    normal = sorted(normalize_axis(a, rank) for a in axes)
    if len(set(normal)) != len(normal):
        raise ShapeError(f"axes {tuple(axes)} name an axis twice")
    return tuple(normal)


def same_dtype(types: Sequence[TensorType]) -> str:
    """The dtype that all operands share; ShapeError if they differ."""
    dtypes = [t.dtype for t in types]
    if len(set(dtypes)) != 1:
        raise ShapeError(f"operands have different dtypes, {' and '.join(dict.fromkeys(dtypes))}")
    return dtypes[0]


def require_dtype(dtype: str, allowed: Sequence[str], what: str) -> None:
    if dtype not in allowed:
        raise ShapeError(f"takes {what}, not {dtype}")


def require_rank(type: TensorType, rank: int, what: str) -> None:
    if len(type.shape) != rank:
        raise ShapeError(f"{what} has shape {type.shape}, and must have {rank} dimensions")


def read(tensor: te.Tensor, indices: Sequence[Operand]) -> Expr:
    """The element of ``tensor`` that broadcasts to ``indices`` of a larger or equal rank."""
    last = indices[len(indices) - len(tensor.shape) :]
    return tensor[tuple(0 if e == 1 else i for e, i in zip(tensor.shape, last, strict=True))]


def read_wide(tensor: te.Tensor, indices: Sequence[Operand]) -> Expr:
    """``read``, in the dtype that arithmetic is done in."""
    return te.cast(read(tensor, indices), wide(tensor.dtype))


def narrow(tensor: te.Tensor, dtype: str, name: str = "cast") -> te.Tensor:
    """A stage that rounds a wide result to the operator's dtype; none where it has it already."""
    if tensor.dtype == dtype:
        return tensor
    return te.compute(tensor.shape, lambda *i: te.cast(tensor[i], dtype), name)


def widen(array: Array) -> Array:
    """The array in the dtype that arithmetic is done in."""
    return array.astype(numpy_dtype(wide(array.dtype.name)), copy=False)


def to_dtype(array: Array, dtype: str) -> Array:
    return array.astype(numpy_dtype(dtype), copy=False)
