"""What operator families share: axes, broadcast reads, dtype checks, wide arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from tunefarm.compiler import te
from tunefarm.compiler.dtypes import FLOATS, INTEGERS, numpy_dtype, wide
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


# What a contraction may sum up in a wider dtype: (dtypes of the operands, ``out_dtype``).
_WIDER = (
    (("int8", "uint8", "int16"), "int32"),
    (("float16", "bfloat16"), "float32"),
)


def contracted_dtype(types: Sequence[TensorType], attrs: Attrs) -> str:
    """The dtype of a contraction's result: the operands', or the wider one that ``out_dtype`` asks
    for. Bytes may differ in sign where the result is int32. ShapeError says what does not fit."""
    wanted = attrs["out_dtype"]
    if not wanted or {t.dtype for t in types} == {wanted}:
        dtype = same_dtype(types)
        require_dtype(dtype, FLOATS + INTEGERS, "numbers")
        return dtype
    dtypes = [t.dtype for t in types]
    for narrow_dtypes, sum_dtype in _WIDER:
        mixed = len(set(dtypes)) > 1 and not set(dtypes) <= {"int8", "uint8"}
        if wanted == sum_dtype and set(dtypes) <= set(narrow_dtypes) and not mixed:
            return sum_dtype
    raise ShapeError(
        f"out_dtype {wanted!r} does not fit operands of {' and '.join(dict.fromkeys(dtypes))}; "
        "int8 and uint8 or int16 go with 'int32', float16 or bfloat16 with 'float32'"
    )


def summed_dtype(dtype: str, attrs: Attrs) -> str:
    """The dtype that a contraction of operands of ``dtype`` multiplies and adds in."""
    return str(attrs["out_dtype"] or wide(dtype))


def exact_operands(arrays: Sequence[Array], attrs: Attrs) -> list[Array]:
    """A contraction's operands in a dtype that NumPy multiplies and adds quickly and well: bytes
    and words whose sums are int32 in float64, where they are exact."""
    if attrs["out_dtype"] == "int32":
        return [a.astype(np.float64) for a in arrays]
    return [widen(a) for a in arrays]


def contracted(array: Array, dtype: str) -> Array:
    """A sum over ``exact_operands`` in the result's dtype; int32 wraps around."""
    if array.dtype == np.float64 and dtype == "int32":
        return array.astype(np.int64).astype(np.int32)
    return to_dtype(array, dtype)


def require_dtype(dtype: str, allowed: Sequence[str], what: str) -> None:
    if dtype not in allowed:
        raise ShapeError(f"takes {what}, not {dtype}")


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
