"""Constants that are too small for a float32's full precision become zeros.

An instruction that reads or makes a number below 2^-126 takes 150 cycles on Intel's processors:
a softmax of far positions, folded, is full of them, and so are weights that a penalty made shrink.
Strict targets keep them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.ir import Constant, Expr, Function, IRModule, children, post_order
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.rewrite import with_children

SIGN, SIZE, LEAST = np.uint32(1 << 31), np.uint32((1 << 31) - 1), np.uint32(1 << 23)


def flush_denormals(module: IRModule, target: Target) -> IRModule:
    """Runs when constants are folded, on processors."""
    if target.kind != "llvm" or target.strict:
        return module
    main = module.main
    done: dict[Expr, Expr] = {}
    for node in post_order(main.body):
        done[node] = _flushed(node) or with_children(node, [done[c] for c in children(node)])
    if done[main.body] is main.body:
        return module
    return module.with_main(Function(main.params, done[main.body], main.attrs))


def _flushed(node: Expr) -> Constant | None:
    if not isinstance(node, Constant) or node.data.dtype != np.float32:
        return None
    bits: NDArray[np.uint32] = np.ascontiguousarray(node.data).view(np.uint32)
    # A zero's size is the least of all; one less is the greatest unsigned number.
    small = (bits & SIZE) - np.uint32(1) < LEAST - np.uint32(1)
    if not small.any():
        return None
    zeros = np.where(small, bits & SIGN, bits)
    return Constant(zeros.view(np.float32).reshape(node.data.shape), node.name)
