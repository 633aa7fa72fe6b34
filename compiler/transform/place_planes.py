"""Transposed concatenations whose parts stand one behind the other: each is turned into its place.

transpose(concat(x, y))  ->  concat(transpose(x), transpose(y))    joined along the outermost axis

So a network that keeps channels last hands on maps of channels first. A kernel that turns rows into
columns and chooses between arrays reads each element by itself; parts turn tiles in registers, and
write them where they belong (``write_parts``): two of 55² × 64 248 → 70 µs (Zen 3).
"""

from __future__ import annotations

from math import prod

from tunefarm.compiler.ir import Call, Expr, IRModule, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.common import integer, normalize_axis
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.constants import permutation, transpose
from tunefarm.compiler.transform.rewrite import Uses, rewrite_main


def place_planes(module: IRModule, target: Target) -> IRModule:
    """Runs when transposes have found their places, and before operators are fused."""
    return rewrite_main(module, [_placed]) if target.kind == "llvm" else module


def _placed(node: Call, uses: Uses) -> Expr | None:
    if node.op != "transpose":
        return None
    whole, axes = node.args[0], permutation(node)
    if not isinstance(whole, Call) or whole.op != "concat" or uses.get(whole, 1) > 1:
        return None
    joined = normalize_axis(integer(whole.attrs, "axis"), len(axes))
    axis = axes.index(joined)
    if prod(tensor_type(node).shape[:axis]) != 1 or len(whole.args) < 2:
        return None
    return call("concat", *(transpose(a, axes) for a in whole.args), axis=axis, name=node.name)
