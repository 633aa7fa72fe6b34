"""Models of 16-bit floats in float32, where the processor does not multiply such numbers.

f(x: float16, w: float16)  ->  cast[float16](f(cast[float32](x), w in float32))

A multiply-add would convert both operands each time; as constants weights are converted when the
model is built, and what kernels hand on stays float32. Inputs and outputs keep their types, results
are those of fewer roundings. Products of a row or two wait for their weights, and half as many
bytes come in half of the time: they stay as they are.
"""

from __future__ import annotations

from math import prod

import numpy as np
from tunefarm.compiler.ir import (
    Call,
    Constant,
    Expr,
    IRModule,
    TensorType,
    Tuple,
    TupleGetItem,
    Var,
    post_order,
    tensor_type,
)
from tunefarm.compiler.ops import OPS, Pattern, call
from tunefarm.compiler.ops.conv import result_channels_last
from tunefarm.compiler.target import Target

WIDE = "float32"
FEATURES = {"float16": "avx512fp16", "bfloat16": "avx512bf16"}  # of processors that multiply them
FEW_ROWS = 2  # of a product: 2048 × 2048 takes 0.56 and 0.81 of the time, with four 1.1 (Zen 3)
_DTYPES = ("dtype", "out_dtype")  # attributes


def widen_floats(module: IRModule, target: Target) -> IRModule:
    """Compute in float32 what has products of floats that the target does not multiply."""
    if target.kind != "llvm":
        return module
    narrow = frozenset(dtype for dtype, feature in FEATURES.items() if not target.has(feature))
    nodes = post_order(module.main.body)
    if not any(_is_slow_product(node, narrow) for node in nodes):
        return module
    made: dict[Expr, Expr] = {}
    for node in nodes:
        made[node] = _widened(node, made, narrow)
    main = module.main
    body = _as(made[main.body], main.body)
    return module.with_body(body)


def _is_slow_product(node: Expr, narrow: frozenset[str]) -> bool:
    if not isinstance(node, Call) or OPS[str(node.op)].pattern is not Pattern.OUT_FUSABLE:
        return False
    types = [tensor_type(operand).dtype for operand in node.args]
    return not narrow.isdisjoint(types) and not _waits_for_weights(node)


def _waits_for_weights(node: Call) -> bool:
    """Whether a product has so few rows that its constant weights are read as fast as they come."""
    if node.op not in ("matmul", "conv") or not isinstance(node.args[1], Constant):
        return False
    shape = tensor_type(node).shape
    last = node.op == "matmul" or result_channels_last(node.attrs)
    columns = shape[-1] if last else shape[1]
    return prod(shape) <= FEW_ROWS * columns


def _widened(node: Expr, made: dict[Expr, Expr], narrow: frozenset[str]) -> Expr:
    """The node in float32; what keeps its type is cast behind it."""
    match node:
        case Var():
            return _in_float32(node, narrow)
        case Constant() if node.type.dtype in narrow:
            return Constant(np.asarray(node.data).astype(WIDE), node.name)
        case Constant():
            return node
        case Tuple(fields):
            return Tuple(tuple(made[f] for f in fields))
        case TupleGetItem(value, index):
            return TupleGetItem(made[value], index)
        case Call():
            return _call(node, [made[a] for a in node.args], narrow)


def _call(node: Call, args: list[Expr], narrow: frozenset[str]) -> Expr:
    if _waits_for_weights(node) and tensor_type(node.args[1]).dtype in narrow:
        kept = [_as(args[0], node.args[0]), *node.args[1:]]
        return _in_float32(Call(node.op, tuple(kept), node.attrs, node.type, node.name), narrow)
    attrs = dict(node.attrs)
    attrs |= {name: WIDE for name in _DTYPES if attrs.get(name) in narrow}
    if node.op == "cast" and tensor_type(args[0]).dtype == attrs["dtype"]:
        return args[0]
    return call(str(node.op), *args, name=node.name, **attrs)


def _in_float32(expr: Expr, narrow: frozenset[str]) -> Expr:
    is_narrow = isinstance(expr.type, TensorType) and expr.type.dtype in narrow
    return call("cast", expr, dtype=WIDE) if is_narrow else expr


def _as(expr: Expr, like: Expr) -> Expr:
    """An expression in the dtypes of another."""
    if isinstance(like, Tuple):
        assert isinstance(expr, Tuple)
        return Tuple(tuple(map(_as, expr.fields, like.fields)))
    dtype = tensor_type(like).dtype
    return expr if tensor_type(expr).dtype == dtype else call("cast", expr, dtype=dtype)
