"""Matrix products: ``matmul``, batched with broadcasting, and ``einsum``.

``out_dtype`` "int32" sums products of bytes (of either sign) or words in int32, "float32" those of
16-bit floats in float32; "" rounds to the operands' dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from tunefarm.compiler import te
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.ir import Attrs, TensorType, Type
from tunefarm.compiler.ops.base import Array, Op, Pattern, broadcast_shapes, register
from tunefarm.compiler.ops.common import (
    contracted,
    contracted_dtype,
    exact_operands,
    narrow,
    out_type,
    read,
    summed_dtype,
)
from tunefarm.compiler.tir.ir import Expr


def _matrix_dims(types: Sequence[TensorType], attrs: Attrs) -> tuple[int, int, int, int]:
    """(m, k of a, k of b, n)."""
    m, ka = types[0].shape[-2:]
    kb, n = types[1].shape[-2:]
    if attrs["transpose_a"]:
        m, ka = ka, m
    if attrs["transpose_b"]:
        kb, n = n, kb
    return m, ka, kb, n


def _matmul_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    dtype = contracted_dtype(types, attrs)
    a, b = types[0].shape, types[1].shape
    if len(a) < 2 or len(b) < 2:
        raise ShapeError(f"takes matrices, of at least 2 dimensions, not shapes {a} and {b}")
    m, ka, kb, n = _matrix_dims(types, attrs)
    if ka != kb:
        raise ShapeError(f"shapes {a} and {b} do not multiply: the inner extents are {ka} and {kb}")
    return TensorType((*broadcast_shapes([a[:-2], b[:-2]]), m, n), dtype)


def _matmul_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (a, b), out = tensors, out_type(type)
    _, depth, _, _ = _matrix_dims([TensorType(t.shape, t.dtype) for t in tensors], attrs)
    k = te.reduce_axis(depth)
    dtype = summed_dtype(a.dtype, attrs)

    def element(*index: Expr) -> te.Reduce:
        *batch, i, j = index
        left = read(a, (*batch, k, i) if attrs["transpose_a"] else (*batch, i, k))
        right = read(b, (*batch, j, k) if attrs["transpose_b"] else (*batch, k, j))
        return te.sum(te.cast(left, dtype) * te.cast(right, dtype), [k])

    names = [*(f"b{d}" for d in range(len(out.shape) - 2)), "i", "j"]
    return narrow(te.compute(out.shape, element, "matmul", axis_names=names), out.dtype)


def _matmul_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    a, b = exact_operands(arrays, attrs)
    if attrs["transpose_a"]:
        a = np.swapaxes(a, -1, -2)
    if attrs["transpose_b"]:
        b = np.swapaxes(b, -1, -2)
    return contracted(np.matmul(a, b), str(attrs["out_dtype"] or arrays[0].dtype.name))


def _matmul_flops(types: Sequence[TensorType], attrs: Attrs, type: Type) -> int:
    return 2 * out_type(type).size * _matrix_dims(types, attrs)[1]


def _terms(attrs: Attrs) -> tuple[list[str], str]:
    """The operands' labels and the result's, of an equation without ellipsis: "ij,jk->ik"."""
    left, _, right = str(attrs["equation"]).partition("->")
    return left.split(","), right


def _extents(terms: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    extents: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        if len(term) != len(shape):
            raise ShapeError(f"the operand {term!r} has shape {shape}, of another rank")
        for label, extent in zip(term, shape, strict=True):
            if extents.setdefault(label, extent) != extent:
                raise ShapeError(f"index {label!r} has extents {extents[label]} and {extent}")
    return extents


def _einsum_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    terms, result = _terms(attrs)
    dtype = contracted_dtype(types, attrs)
    if len(terms) != len(types):
        raise ShapeError(f"equation {attrs['equation']!r} does not name {len(types)} operands")
    extents = _extents(terms, [t.shape for t in types])
    absent = set(result) - extents.keys()
    if absent or len(set(result)) != len(result):
        raise ShapeError(f"equation {attrs['equation']!r} has a result index twice or from nowhere")
    return TensorType(tuple(extents[label] for label in result), dtype)


def _product(
    tensors: Sequence[te.Tensor], terms: Sequence[str], at: Mapping[str, Expr], dtype: str
) -> Expr:
    value: Expr | None = None
    for tensor, term in zip(tensors, terms, strict=True):
        factor = te.cast(tensor[tuple(at[label] for label in term)], dtype)
        value = factor if value is None else value * factor
    assert value is not None
    return value


def _einsum_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    terms, result = _terms(attrs)
    out = out_type(type)
    extents = _extents(terms, [t.shape for t in tensors])
    summed = {c: te.reduce_axis(e, c) for c, e in extents.items() if c not in result}

    def element(*index: Expr) -> Expr | te.Reduce:
        at = {**dict(zip(result, index, strict=True)), **summed}
        value = _product(tensors, terms, at, summed_dtype(tensors[0].dtype, attrs))
        return te.sum(value, list(summed.values())) if summed else value

    return narrow(te.compute(out.shape, element, "einsum", axis_names=list(result)), out.dtype)


def _einsum_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    operands = exact_operands(arrays, attrs)
    value = np.einsum(str(attrs["equation"]), *operands, optimize=True)
    return contracted(np.asarray(value), str(attrs["out_dtype"] or arrays[0].dtype.name))


def _einsum_flops(types: Sequence[TensorType], attrs: Attrs, type: Type) -> int:
    terms, _ = _terms(attrs)
    return len(types) * prod(_extents(terms, [t.shape for t in types]).values())


register(
    Op(
        "matmul",
        _matmul_infer,
        _matmul_compute,
        _matmul_reference,
        Pattern.OUT_FUSABLE,
        {"transpose_a": False, "transpose_b": False, "out_dtype": ""},
        _matmul_flops,
    ),
    Op(
        "einsum",
        _einsum_infer,
        _einsum_compute,
        _einsum_reference,
        Pattern.OUT_FUSABLE,
        {"equation": "", "out_dtype": ""},
        _einsum_flops,
    ),
)
