"""Turn operators that do nothing or little at inference into less.

batch_norm(x, scale, bias, mean, variance)  ->  x * s + t       (s, t constants)
dropout(x), identity(x)                     ->  x
"""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.ir import Call, Constant, Expr, IRModule, tensor_type
from tunefarm.compiler.ops import OPS, call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.constants import constant, reshape
from tunefarm.compiler.transform.rewrite import Uses, rewrite_main


def simplify_inference(module: IRModule, target: Target) -> IRModule:
    return rewrite_main(module, [_batch_norm, _identity])


def _batch_norm(node: Call, uses: Uses) -> Expr | None:
    if node.op != "batch_norm":
        return None
    x, *parameters = node.args
    axis, epsilon = node.attrs["axis"], node.attrs["epsilon"]
    assert isinstance(axis, int)
    assert isinstance(epsilon, (int, float))
    rank = len(tensor_type(x).shape)
    shape = (-1, *[1] * (rank - 1 - axis % rank))
    if all(isinstance(p, Constant) for p in parameters):
        scale, bias, mean, variance = (p.data.astype(np.float64) for p in parameters)  # type: ignore[union-attr]
        factor = scale / np.sqrt(variance + epsilon)
        s: Expr = constant(factor.reshape(shape), x, node.name)
        t: Expr = constant((bias - mean * factor).reshape(shape), x, node.name)
    else:
        s, t = _scale_and_shift(parameters, float(epsilon))
        extent = tensor_type(s).shape[0]
        s, t = reshape(s, (extent, *shape[1:])), reshape(t, (extent, *shape[1:]))
    return call("add", call("multiply", x, s), t, name=node.name)


def _scale_and_shift(parameters: list[Expr], epsilon: float) -> tuple[Expr, Expr]:
    scale, bias, mean, variance = parameters
    shifted = call("add", variance, constant(np.array(epsilon), variance))
    factor = call("divide", scale, call("sqrt", shifted))
    return factor, call("subtract", bias, call("multiply", mean, factor))


def _identity(node: Call, uses: Uses) -> Expr | None:
    is_identity = node.op in ("identity", "dropout") and node.op in OPS
    return node.args[0] if is_identity else None
