"""Evaluate what depends on constants alone, unless the result would be large.

add(constant, constant)  ->  constant
where(constant, x, y)    ->  x          (all true; y if all false)
"""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.evaluate import call_reference
from tunefarm.compiler.ir import Call, Constant, Expr, IRModule, Tuple, TupleType, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.transform.rewrite import Uses, rewrite_main

_ALWAYS_FOLDED_BYTES = 1 << 20


def fold_constants(module: IRModule, target: Target) -> IRModule:
    """A result above 1 MiB is folded if it is no larger than its operands together."""
    return rewrite_main(module, [fold_call, _chosen])


def fold_call(node: Call, uses: Uses) -> Expr | None:
    if not isinstance(node.op, str) or not all(isinstance(a, Constant) for a in node.args):
        return None
    arrays = [a.data for a in node.args if isinstance(a, Constant)]
    if _result_bytes(node) > max(_ALWAYS_FOLDED_BYTES, sum(a.nbytes for a in arrays)):
        return None
    result = call_reference(node, arrays)
    name = node.name or next((a.name for a in node.args if isinstance(a, Constant)), "")
    if isinstance(result, tuple):
        return Tuple(tuple(Constant(np.asarray(r), name) for r in result))
    return Constant(np.asarray(result), name)


def _chosen(node: Call, uses: Uses) -> Expr | None:
    """What a condition chooses that is the same everywhere, as a causal mask of one token is."""
    condition = node.args[0] if node.op == "where" else None
    if not isinstance(condition, Constant) or not condition.data.size:
        return None
    first = bool(condition.data.flat[0])
    if not (condition.data == first).all():
        return None
    value, whole = node.args[1 if first else 2], tensor_type(node)
    if tensor_type(value) == whole:
        return value
    return call("broadcast_to", value, shape=whole.shape, name=node.name)


def _result_bytes(node: Call) -> int:
    fields = node.type.fields if isinstance(node.type, TupleType) else (node.type,)
    return sum(f.size * dtype_bytes(f.dtype) for f in fields)
