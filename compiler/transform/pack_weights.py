"""Weights of a few bits stay so in products.

matmul(x, dequantize(w, s, z))                 ->  packed_matmul(x, w's bits, s, z)
matmul(x, reshape(dequantize(w[g, b, n], …)))  ->  the same with a scale for each block of b terms

Weights that no integer product took, nor one of these, are numbers from here on
(``plain_weights``). A matrix of four bits is read in an eighth of the time that its floats take,
where few rows wait for them, and takes an eighth of the memory. Where products of bytes are summed
those of many rows and large matrices take as long (``space/packed_product``). Elsewhere these are
made of floats, and so they are with AMX, which is faster by them, and where matrices are small.
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
from tunefarm.compiler.ops.packed import BITS, dequantized, pack_quanta, packed_product, sizes_of
from tunefarm.compiler.space.packed_product import has_whole_groups, sums_bytes
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.constants import permutation, reshape
from tunefarm.compiler.transform.rewrite import Uses, rewrite_main

Array = NDArray[Any]
LEAST_COLUMNS = 16
MOST_ROWS_AS_FLOATS = 4  # of products whose weights become floats on their way
# Of more rows floats are faster where they are near: 128 × 1024 × 1024 takes 0.79 × the time.
FEW_ROWS, NEAR_BYTES = 16, 1 << 23


def pack_weights(module: IRModule, target: Target) -> IRModule:
    """Runs when quantised activations have met their weights, before constants are folded."""
    return rewrite_main(module, [lambda node, uses: _packed(node, target)])


def plain_weights(module: IRModule, target: Target) -> IRModule:
    """Weights that are still quantised are numbers, or words, from here on, and so are packed ones
    that the target has no kernel for."""
    return rewrite_main(module, [lambda node, uses: _unpacked(node, target), _plain])


def _unpacked(node: Call, target: Target) -> Expr | None:
    if node.op != "packed_matmul" or _is_kept(node, target):
        return None
    x, *weights = node.args
    known = [a.data for a in weights if isinstance(a, Constant)]
    rows = np.zeros(tensor_type(x).shape, np.float32)
    matrix = Constant(dequantized([rows, *known], node.attrs), node.name)
    return call("matmul", x, matrix, name=node.name)


def _is_kept(node: Call, target: Target) -> bool:
    types = [tensor_type(a) for a in node.args]
    return _stays(types[0].shape[0], *sizes_of(types, node.attrs), target)


def _stays(rows: int, depth: int, columns: int, bits: int, block: int, target: Target) -> bool:
    """Whether a target has a kernel for weights that stay packed, and no faster one for floats."""
    most = MOST_ROWS_AS_FLOATS
    if sums_bytes(target):
        near = 4 * depth * columns <= NEAR_BYTES or target.has("amx-bf16")
        most = FEW_ROWS if near else rows
    enough = rows > 0 and min(depth, columns) >= LEAST_COLUMNS
    fits = target.kind == "llvm" and has_whole_groups(depth, bits, block)
    return fits and enough and rows <= most


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

    def fits(self, bits: int) -> bool:
        """Whether so many bits hold the numbers, and those of a block whole groups."""
        exact = int(self.numbers.max(initial=0)) < 2**bits
        return exact and has_whole_groups(len(self.numbers), bits, self.block)


def _packed(node: Call, target: Target) -> Expr | None:
    if node.op != "matmul" or node.attrs["transpose_a"] or node.attrs["out_dtype"]:
        return None
    x, weights = node.args
    shape = tensor_type(x).shape
    found = _quantised(weights, bool(node.attrs["transpose_b"]))
    if found is None or tensor_type(x).dtype != "float32":
        return None
    rows, bits = prod(shape[:-1]), next((b for b in BITS if found.fits(b)), BITS[-1])
    depth, columns = found.numbers.shape
    if not _stays(rows, depth, columns, bits, found.block, target):
        return None
    flat, quanta = reshape(x, (rows, shape[-1])), pack_quanta(found.numbers, bits)
    made = packed_product(
        flat, quanta, found.scales, found.zeros, bits=bits, block=found.block, name=node.name
    )
    return reshape(made, tensor_type(node).shape)


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
        least = _least(numbers)
        numbers = (numbers.astype(np.int16) - least).astype(np.uint8)
        parameters[1] = parameters[1] - least
    matrices = numbers.reshape(shape), *(p if p.ndim == 2 else p.squeeze(axis) for p in parameters)
    return _Quantised(*(np.ascontiguousarray(m.T if transposed else m) for m in matrices))


def _least(numbers: Array) -> int:
    """The least number of the fewest signed bits that hold them."""
    low, high = int(numbers.min(initial=0)), int(numbers.max(initial=0))
    halves = (1 << (bits - 1) for bits in BITS)
    return -next(half for half in halves if -half <= low and high < half)


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
