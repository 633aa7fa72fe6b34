"""Weights of a few bits stay so in products, on targets that sum products of bytes.

matmul(x, dequantize(w, s, z))                 ->  packed_matmul(x, w's bits, s, z)
matmul(x, reshape(dequantize(w[g, b, n], …)))  ->  the same with a scale for each block of b terms

Weights that no integer product took, nor one of these, are numbers from here on
(``plain_weights``). A matrix of four bits is read in an eighth of the time that its floats take,
where few rows wait for them, and takes an eighth of the memory; of many rows the product takes as
long (``space/packed_product``). With AMX those are faster by it, in floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.evaluate import call_reference
from tunefarm.compiler.ir import Call, Constant, Expr, IRModule, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.packed import BITS, pack_quanta, terms_of_group
from tunefarm.compiler.space import packed_product
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.constants import permutation, reshape
from tunefarm.compiler.transform.rewrite import Uses, rewrite_main

Array = NDArray[Any]
LEAST_TERMS, LEAST_COLUMNS = 16, 16
MOST_ROWS_BESIDE_AMX = 16
_SIGN = 128
_LARGEST_SUM = 2**31  # of a block's products of bytes


def pack_weights(module: IRModule, target: Target) -> IRModule:
    """Runs when quantised activations have met their weights, before constants are folded."""
    if not packed_product.applies(target):
        return module
    most = MOST_ROWS_BESIDE_AMX if target.has("amx-bf16") else None

    def rule(node: Call, uses: Uses) -> Expr | None:
        return _packed(node, most)

    return rewrite_main(module, [rule])


def plain_weights(module: IRModule, target: Target) -> IRModule:
    """Weights that are still quantised are numbers, or words, from here on."""
    return rewrite_main(module, [_plain])


def _plain(node: Call, uses: Uses) -> Expr | None:
    if node.op not in ("dequantize", "cast", "subtract"):
        return None
    if not all(isinstance(a, Constant) for a in node.args):
        return None
    made = call_reference(node, [a.data for a in node.args if isinstance(a, Constant)])
    assert not isinstance(made, tuple)
    return Constant(np.asarray(made), node.name)


@dataclass(frozen=True, slots=True)
class _Quantised:
    """Whole numbers ``[K, N]`` (uint8), scales and zero points ``[blocks, N]`` (float32)."""

    numbers: Array
    scales: Array
    zeros: Array

    @property
    def block(self) -> int:
        return len(self.numbers) // len(self.scales)


def _packed(node: Call, most_rows: int | None) -> Expr | None:
    if node.op != "matmul" or node.attrs["transpose_a"] or node.attrs["out_dtype"]:
        return None
    x, weights = node.args
    shape = tensor_type(x).shape
    rows = prod(shape[:-1])
    if tensor_type(x).dtype != "float32" or (most_rows is not None and rows > most_rows):
        return None
    found = _quantised(weights, bool(node.attrs["transpose_b"]))
    if found is None or min(found.numbers.shape) < LEAST_TERMS or rows == 0:
        return None
    bits = _bits_of(found)
    if bits is None:
        return None
    same = bool((found.zeros == found.zeros[0, 0]).all())
    operands = [Constant(pack_quanta(found.numbers, bits), node.name), Constant(found.scales)]
    if not same:
        operands.append(Constant(_in_bytes(found.zeros)))
    zero = float(found.zeros[0, 0]) if same else 0.0
    flat = reshape(x, (rows, shape[-1]))
    made = call(
        "packed_matmul", flat, *operands, name=node.name, bits=bits, block=found.block, zero=zero
    )
    return reshape(made, tensor_type(node).shape)


def _bits_of(weights: _Quantised) -> int | None:
    """The fewest bits that hold the numbers, of which a block's fill whole groups."""
    largest, block = int(weights.numbers.max()), weights.block
    alone = len(weights.scales) == 1
    for bits in BITS:
        whole = alone or block % terms_of_group(bits) == 0
        if largest < 2**bits and whole and (2**bits - 1) * _SIGN * block < _LARGEST_SUM:
            return bits
    return None


def _in_bytes(zeros: Array) -> Array:
    """Zero points as bytes, if they are such numbers."""
    whole = np.clip(np.rint(zeros), 0, 255).astype(np.uint8)
    return whole if bool((whole == zeros).all()) else zeros


def _quantised(weights: Expr, transposed: bool) -> _Quantised | None:
    """The matrix ``[K, N]`` that a product reads, or ``[N, K]`` where it is transposed."""
    shape = tensor_type(weights).shape
    if not isinstance(weights, Call) or len(shape) != 2:
        return None
    if weights.op == "transpose":
        turned = permutation(weights) == (1, 0)
        return _quantised(weights.args[0], transposed != turned)
    inner = weights.args[0] if weights.op == "reshape" else weights
    if not isinstance(inner, Call) or inner.op != "dequantize":
        return None
    numbers, scales, zeros = map(_known, inner.args)
    if numbers is None or scales is None or zeros is None:
        return None
    axis = _axis_of_blocks(numbers.shape, shape, transposed)
    if axis is None or numbers.dtype.name not in ("uint8", "int8"):
        return None
    parameters = [_of_blocks(p.astype(np.float32), numbers.shape, axis) for p in (scales, zeros)]
    if any(p.shape[axis] != 1 for p in parameters):
        return None
    if numbers.dtype == np.int8:
        numbers = (numbers.astype(np.int16) + _SIGN).astype(np.uint8)
        parameters[1] = parameters[1] + _SIGN
    matrices = numbers.reshape(shape), *(p if p.ndim == 2 else p.squeeze(axis) for p in parameters)
    return _Quantised(*(np.ascontiguousarray(m.T if transposed else m) for m in matrices))


def _known(expr: Expr) -> Array | None:
    """The array that an expression of a constant is; None where it is not known."""
    if isinstance(expr, Constant):
        return expr.data
    if isinstance(expr, Call) and expr.op in ("reshape", "transpose"):
        inner = _known(expr.args[0])
        return None if inner is None else np.asarray(call_reference(expr, [inner]))
    return None


def _axis_of_blocks(
    numbers: tuple[int, ...], matrix: tuple[int, ...], transposed: bool
) -> int | None:
    """The axis of numbers that the terms of a block lie along, of a matrix that they are or are
    seen as; behind that of the blocks, where there are several. None for other shapes."""
    along = 1 if transposed else 0
    if numbers == matrix:
        return along
    several = (*matrix[:along], *numbers[along : along + 2], *matrix[along + 1 :])
    is_split = numbers == several and prod(numbers) == prod(matrix)
    return along + 1 if is_split else None


def _of_blocks(parameter: Array, shape: tuple[int, ...], axis: int) -> Array:
    """A parameter of numbers of this shape for each of them, but along an axis as it is."""
    padded = parameter.reshape((1,) * (len(shape) - parameter.ndim) + parameter.shape)
    return np.broadcast_to(padded, (*shape[:axis], padded.shape[axis], *shape[axis + 1 :]))
