"""Constants that are too small for a float32's full precision become zeros.

An instruction that reads or makes a number below 2^-126 takes 150 cycles on Intel's processors:
a softmax of far positions, folded, is full of them, and so are weights that a penalty made shrink.
Single numbers and short vectors, which may be what keeps a logarithm or a quotient finite, stay as
they are, and strict targets keep all of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.ir import Constant, Expr, IRModule, children, post_order
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.rewrite import with_children

LEAST_ELEMENTS = 256
BLOCK = 1 << 16  # elements that are looked at together
SIGN, SIZE, LEAST = np.uint32(1 << 31), np.uint32((1 << 31) - 1), np.uint32(1 << 23)


def flush_denormals(module: IRModule, target: Target) -> IRModule:
    """Runs when constants are folded, on processors."""
    if target.kind != "llvm" or target.strict:
        return module
    main = module.main
    done: dict[Expr, Expr] = {}
    for node in post_order(main.body):
        done[node] = _flushed(node) or with_children(node, [done[c] for c in children(node)])
    return module.with_body(done[main.body])


def _flushed(node: Expr) -> Constant | None:
    if not isinstance(node, Constant) or node.data.dtype != np.float32:
        return None
    data = node.data
    if data.size < LEAST_ELEMENTS or not data.flags.c_contiguous:  # a view, of one number perhaps
        return None
    bits = data.reshape(-1).view(np.uint32)
    blocks = (bits[start : start + BLOCK] for start in range(0, bits.size, BLOCK))
    if not any(_is_denormal(block).any() for block in blocks):
        return None
    zeros = np.where(_is_denormal(bits), bits & SIGN, bits)
    return Constant(zeros.view(np.float32).reshape(data.shape), node.name)


def _is_denormal(bits: NDArray[np.uint32]) -> NDArray[np.bool_]:
    # A zero's size is the least of all; one less is the greatest unsigned number.
    small: NDArray[np.bool_] = (bits & SIZE) - np.uint32(1) < LEAST - np.uint32(1)
    return small
