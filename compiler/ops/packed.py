"""Products with weights of a few bits.

    packed_matmul(x, quanta, scales, zeros)   Σ_k x[m, k] · (w[k, n] - zeros[g, n]) · scales[g, n]

w has whole numbers of ``bits`` 2, 4 or 8, and g = k // ``block`` counts blocks of terms that share
a scale and a zero point; without ``zeros`` the attribute ``zero`` is that of all. ``quanta`` has w
in bytes [groups, N, 4]: a group is as many terms as four bytes hold, and its byte t those of number
t, 4 + t, 8 + t, …, the first in the lowest bits, so that one shift gives four neighbours of each
column.

A kernel may round the terms of a row that share a block to whole numbers of so many ``bytes``, the
largest of them to the largest of these: 3 keep 23 bits of it, 2 keep 15 and 1 keeps 7.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tunefarm.compiler import te
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.ir import Attrs, AttrValue, Call, Constant, TensorType, Type
from tunefarm.compiler.ir import Expr as Value
from tunefarm.compiler.ops.base import Array, Op, Pattern, call, register
from tunefarm.compiler.ops.common import out_type, require_dtype
from tunefarm.compiler.tir.ir import Expr, binary

BITS = (2, 4, 8)
LARGEST = {1: 127.0, 2: 32_639.0, 3: 8_355_000.0}  # that bytes hold which are from -128 to 127 each
NEIGHBOURS = 4  # terms side by side, a byte each
_WORDS_AT_ONCE = 1 << 16  # as the caches hold


def terms_of_group(bits: int) -> int:
    """How many terms of a column four bytes hold."""
    return NEIGHBOURS * 8 // bits


def pack_quanta(w: Array, bits: int) -> Array:
    """Whole numbers ``[K, N]`` (uint8) as bytes ``[groups, N, 4]``, the last group filled up with
    zeros."""
    depth, columns = w.shape
    planes = 8 // bits
    groups = -(-depth // (NEIGHBOURS * planes))
    whole = np.zeros((groups * NEIGHBOURS * planes, columns), np.uint8)
    whole[:depth] = w
    parts = whole.reshape(groups, planes, NEIGHBOURS, columns)
    packed = np.zeros((groups, NEIGHBOURS, columns), np.uint8)
    for plane in range(planes):
        packed |= parts[:, plane] << np.uint8(bits * plane)
    return np.ascontiguousarray(packed.transpose(0, 2, 1))


def regroup_quanta(rows: Array, bits: int) -> Array:
    """Numbers of each column in the bytes of a row, ``[N, bytes]``, the lowest bits first, as bytes
    ``[groups, N, 4]``; what the last group has beyond them is zeros."""
    columns, width = rows.shape
    groups = -(-width // NEIGHBOURS)
    if width % NEIGHBOURS:
        rows = np.pad(rows, ((0, 0), (0, groups * NEIGHBOURS - width)))
    words = np.ascontiguousarray(rows).view("<u4")
    moved = np.empty((groups, columns), "<u4")
    step = max(1, _WORDS_AT_ONCE // max(groups, 1))
    for start in range(0, columns, step):
        moved[:, start : start + step] = _regrouped(words[start : start + step], bits).T
    return moved.view(np.uint8).reshape(groups, columns, NEIGHBOURS)


def _regrouped(words: Array, bits: int) -> Array:
    """Words whose numbers lie one behind the other with those of a plane in the four bytes."""
    masks: dict[int, int] = {}  # of the bits that move as far
    for plane in range(8 // bits):
        for byte in range(NEIGHBOURS):
            place = bits * (NEIGHBOURS * plane + byte)
            by = 8 * byte + bits * plane - place
            masks[by] = masks.get(by, 0) | (2**bits - 1) << place
    result = np.zeros_like(words)
    for by, mask in masks.items():
        some = words & np.uint32(mask)
        result |= some << np.uint32(by) if by > 0 else some >> np.uint32(-by)
    return result


def unpack_quanta(quanta: Array, bits: int, depth: int) -> Array:
    """What ``pack_quanta`` packed: uint8 ``[depth, N]``."""
    groups, columns, _ = quanta.shape
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None, None]
    parts = (quanta.transpose(0, 2, 1)[:, None] >> shifts) & np.uint8(2**bits - 1)
    return parts.reshape(groups * terms_of_group(bits), columns)[:depth]


def bits_of(value: Expr, bits: int, plane: Expr) -> Expr:
    """The number of a plane in a byte, which may be in a wider type."""
    if bits == 8:
        return value
    shift = te.cast(plane * bits, value.dtype)
    return binary("bitand", binary("shr", value, shift), te.const(2**bits - 1, value.dtype))


def sizes_of(types: Sequence[TensorType], attrs: Attrs) -> tuple[int, int, int, int]:
    """Terms, columns, bits, and terms of a block."""
    bits, block = attrs["bits"], attrs["block"]
    assert isinstance(bits, int)
    assert isinstance(block, int)
    return types[0].shape[-1], types[1].shape[1], bits, block


def _infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    x, quanta, scales, *zeros = types
    require_dtype(x.dtype, ("float32",), "float32")
    require_dtype(quanta.dtype, ("uint8",), "bytes (uint8)")
    require_dtype(scales.dtype, ("float32",), "scales of float32")
    for kind in zeros:
        require_dtype(kind.dtype, ("uint8", "float32"), "zero points of uint8 or float32")
    if len(x.shape) != 2 or len(quanta.shape) != 3:
        raise ShapeError(f"takes rows and packed weights, not shapes {x.shape} and {quanta.shape}")
    depth, columns, bits, block = sizes_of(types, attrs)
    if bits not in BITS or block < 1 or attrs["bytes"] not in LARGEST:
        raise ShapeError(
            f"bits={bits}, block={block}, bytes={attrs['bytes']}; there are weights of 2, 4 and 8 "
            "bits, and rows of 1 to 3 bytes"
        )
    groups = -(-depth // terms_of_group(bits))
    if quanta.shape != (groups, columns, NEIGHBOURS):
        wanted = groups, columns, NEIGHBOURS
        raise ShapeError(f"weights of shape {quanta.shape} for {depth} terms, expected {wanted}")
    for kind in (scales, *zeros):
        if kind.shape != (-(-depth // block), columns):
            raise ShapeError(
                f"parameters of shape {kind.shape} for blocks of {block} of {depth} terms"
            )
    return TensorType((x.shape[0], columns), "float32")


def _compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    x, quanta, scales, *zeros = tensors
    depth, _, bits, block = sizes_of([TensorType(t.shape, t.dtype) for t in tensors], attrs)
    terms, k = terms_of_group(bits), te.reduce_axis(depth)

    def element(i: Expr, j: Expr) -> te.Reduce:
        place = k % terms
        w = bits_of(quanta[k // terms, j, place % NEIGHBOURS], bits, place // NEIGHBOURS)
        point = te.cast(zeros[0][k // block, j], "float32") if zeros else zero_of(attrs)
        weight = (te.cast(w, "float32") - point) * scales[k // block, j]
        return te.sum(x[i, k] * weight, [k])

    return te.compute(out_type(type).shape, element, "packed_matmul")


def zero_of(attrs: Attrs) -> Expr:
    """The zero point of all weights."""
    zero = attrs["zero"]
    assert isinstance(zero, (int, float))
    return te.const(float(zero), "float32")


def dequantized(arrays: Sequence[Array], attrs: Attrs) -> Array:
    """The weights ``[K, N]`` in float32, of the operands of a ``packed_matmul``."""
    _, quanta, scales, *zeros = arrays
    types = [TensorType(a.shape, a.dtype.name) for a in arrays]
    depth, _, bits, block = sizes_of(types, attrs)
    blocks = np.arange(depth) // block
    zero = attrs["zero"]
    assert isinstance(zero, (int, float))
    point = zeros[0].astype(np.float32)[blocks] if zeros else np.float32(zero)
    return (unpack_quanta(quanta, bits, depth).astype(np.float32) - point) * scales[blocks]


def largest_steps(arrays: Sequence[Array], attrs: Attrs) -> Array:
    """How far a kernel may round each term of the rows ``[M, K]``: half of a step of its block."""
    x, block, count = np.abs(arrays[0]), attrs["block"], attrs["bytes"]
    assert isinstance(block, int)
    assert isinstance(count, int)
    starts = np.arange(0, x.shape[1], block)
    tops = np.maximum.reduceat(x, starts, axis=1) if x.size else x[:, :0]
    return np.repeat(tops, block, axis=1)[:, : x.shape[1]] / np.float32(2 * LARGEST[count])


def _reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    return np.asarray(np.matmul(arrays[0], dequantized(arrays, attrs)))


def _flops(types: Sequence[TensorType], attrs: Attrs, type: Type) -> int:
    return 2 * out_type(type).size * types[0].shape[-1]


def packed_product(
    x: Value,
    quanta: Array,
    scales: Array,
    zeros: Array,
    *,
    bits: int,
    block: int,
    bytes: int = 3,
    name: str = "",
) -> Call:
    """The product of rows ``x [M, K]`` with packed weights, whose ``scales`` and ``zeros``
    ``[blocks, N]`` are float32."""
    same = bool((zeros == zeros[0, 0]).all())
    operands = [Constant(quanta, name), Constant(scales, name)]
    if not same:
        operands.append(Constant(_in_bytes(zeros), name))
    zero = float(zeros[0, 0]) if same else 0.0
    return call(
        "packed_matmul", x, *operands, name=name, bits=bits, block=block, zero=zero, bytes=bytes
    )


def _in_bytes(zeros: Array) -> Array:
    """Zero points as bytes, if they are such numbers."""
    whole = np.clip(np.rint(zeros), 0, 255).astype(np.uint8)
    return whole if bool((whole == zeros).all()) else zeros


DEFAULTS: dict[str, AttrValue] = {"bits": 4, "block": 32, "zero": 0.0, "bytes": 3}
register(Op("packed_matmul", _infer, _compute, _reference, Pattern.OUT_FUSABLE, DEFAULTS, _flops))
