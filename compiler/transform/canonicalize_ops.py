"""One spelling for what can be written in several ways.

x / c -> x * (1/c)        x - c -> x + (-c)        c + x -> x + c        x * 1, x + 0 -> x
(x * c1) * c2 -> x * c3   x ** 2 -> x * x          maximum(x, 0), clip(x, 0) -> relu(x)
x * sigmoid(x) -> silu(x)                          x * 0.5 * (1 + erf(x / √2)) -> gelu(x)
cast(cast(x)) -> cast(x)  reshape(reshape(x)) -> reshape(x)
x * broadcast_to(y) -> x * y, where x is as large
conv(pad(x)) -> conv[padding](x)                   avg_pool over the whole map -> mean
"""

from __future__ import annotations

import math

import numpy as np
from tunefarm.compiler.dtypes import is_float
from tunefarm.compiler.ir import Call, Constant, Expr, IRModule, tensor_type
from tunefarm.compiler.ops import OPS, call
from tunefarm.compiler.ops.conv import pairs
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.constants import constant, reshape, scalar_of, strip_unit_dims
from tunefarm.compiler.transform.group_norm import GROUP_NORM_RULES
from tunefarm.compiler.transform.lower_einsum import EINSUM_RULES
from tunefarm.compiler.transform.push_transposes import compose, unit_transpose
from tunefarm.compiler.transform.rewrite import Rule, Uses, is_call, rewrite_main
from tunefarm.compiler.transform.scatter_boxes import SCATTER_RULES

_LOSSLESS = {
    ("float16", "float32"), ("float16", "float64"), ("float32", "float64"),
    ("bfloat16", "float32"), ("bfloat16", "float64"),
    ("int8", "int16"), ("int8", "int32"), ("int8", "int64"), ("int16", "int32"),
    ("int16", "int64"), ("int32", "int64"), ("uint8", "int16"), ("uint8", "int32"),
    ("uint8", "int64"), ("uint8", "float32"), ("int8", "float32"), ("int16", "float32"),
    ("bool", "int8"), ("bool", "uint8"), ("bool", "int32"), ("bool", "int64"),
    ("bool", "float32"),
}  # fmt: skip
_BROADCASTING = frozenset({
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "where", "equal",
    "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or",
})  # fmt: skip


def canonicalize_ops(module: IRModule, target: Target) -> IRModule:
    return rewrite_main(module, RULES)


def _is_float_call(node: Call, *ops: str) -> bool:
    return node.op in ops and is_float(tensor_type(node).dtype)


def constant_second(node: Call, uses: Uses) -> Expr | None:
    """add(c, x)  ->  add(x, c)"""
    if not isinstance(node.op, str) or not OPS[node.op].commutative or len(node.args) != 2:
        return None
    a, b = node.args
    if not isinstance(a, Constant) or isinstance(b, Constant):
        return None
    return call(node.op, b, a, name=node.name, **node.attrs)


def divide_by_constant(node: Call, uses: Uses) -> Expr | None:
    if not _is_float_call(node, "divide") or not isinstance(node.args[1], Constant):
        return None
    c = node.args[1]
    if isinstance(node.args[0], Constant) or not bool(np.all(c.data != 0)):
        return None
    inverse = constant(1.0 / c.data.astype(np.float64), c, c.name)
    return call("multiply", node.args[0], inverse, name=node.name)


def subtract_constant(node: Call, uses: Uses) -> Expr | None:
    if not _is_float_call(node, "subtract") or not isinstance(node.args[1], Constant):
        return None
    c = node.args[1]
    if isinstance(node.args[0], Constant):
        return None
    return call("add", node.args[0], Constant(-c.data, c.name), name=node.name)


def neutral_element(node: Call, uses: Uses) -> Expr | None:
    """x * 1, x + 0, x / 1, x - 0, x ** 1  ->  x"""
    neutral = {"add": 0, "subtract": 0, "multiply": 1, "divide": 1, "power": 1}
    if node.op not in neutral or len(node.args) != 2:
        return None
    x, c = node.args
    same = scalar_of(c) == neutral[str(node.op)] and tensor_type(x) == tensor_type(node)
    return x if same else None


def implied_broadcast(node: Call, uses: Uses) -> Expr | None:
    """A repeated operand beside one as large repeats by itself: a gate stays one number a channel,
    whatever the layout of the image."""
    if node.op not in _BROADCASTING:
        return None
    for place, operand in enumerate(node.args):
        if isinstance(operand, Call) and operand.op == "broadcast_to":
            args = [*node.args[:place], operand.args[0], *node.args[place + 1 :]]
            shapes = (tensor_type(a).shape for a in args)
            if np.broadcast_shapes(*shapes) == tensor_type(node).shape:
                return call(str(node.op), *args, name=node.name, **node.attrs)
    return None


def merge_constants(node: Call, uses: Uses) -> Expr | None:
    """(x * c1) * c2  ->  x * (c1 * c2), and so for sums"""
    if not _is_float_call(node, "add", "multiply"):
        return None
    inner, c2 = node.args
    if not isinstance(c2, Constant) or not is_call(inner, str(node.op)) or uses.get(inner, 1) > 1:
        return None
    assert isinstance(inner, Call)
    x, c1 = inner.args
    if not isinstance(c1, Constant) or isinstance(x, Constant):
        return None
    apply = np.add if node.op == "add" else np.multiply
    merged = constant(apply(c1.data, c2.data), c1, c1.name)
    if merged.data.size > max(c1.data.size, c2.data.size):
        return None
    return call(str(node.op), x, merged, name=node.name)


def small_powers(node: Call, uses: Uses) -> Expr | None:
    if not _is_float_call(node, "power"):
        return None
    x, exponent = node.args
    if tensor_type(x) != tensor_type(node):
        return None
    match scalar_of(exponent):
        case 2.0:
            return call("multiply", x, x, name=node.name)
        case 3.0:
            return call("multiply", call("multiply", x, x), x, name=node.name)
        case 0.5:
            return call("sqrt", x, name=node.name)
        case _:
            return None


def as_relu(node: Call, uses: Uses) -> Expr | None:
    if not isinstance(node.op, str) or node.op not in ("maximum", "clip"):
        return None
    x = node.args[0]
    if tensor_type(x) != tensor_type(node):
        return None
    if node.op == "clip":
        is_relu = node.attrs["min"] == 0 and node.attrs["max"] is None
    else:
        is_relu = scalar_of(node.args[1]) == 0
    return call("relu", x, name=node.name) if is_relu else None


def as_silu(node: Call, uses: Uses) -> Expr | None:
    """x * sigmoid(x)  ->  silu(x)"""
    if not _is_float_call(node, "multiply"):
        return None
    for x, gate in (node.args, node.args[::-1]):
        if is_call(gate, "sigmoid") and isinstance(gate, Call) and gate.args[0] is x:
            return call("silu", x, name=node.name)
        if is_call(gate, "hard_sigmoid") and isinstance(gate, Call) and gate.args[0] is x:
            slope, offset = gate.attrs["alpha"], gate.attrs["beta"]
            if _close(slope, 1 / 6) and offset == 0.5:
                return call("hard_swish", x, name=node.name)
    return None


def as_gelu(node: Call, uses: Uses) -> Expr | None:
    """x * 0.5 * (1 + erf(x / √2))  ->  gelu(x), the factors in any order"""
    if not _is_float_call(node, "multiply"):
        return None
    scale, factors = _factors(node)
    if len(factors) != 2 or not _close(scale, 0.5):
        return None
    for x, gate in (factors, factors[::-1]):
        inner = _plus_one(gate)
        if inner is None or not is_call(inner, "erf"):
            continue
        assert isinstance(inner, Call)
        slope, operands = _factors(inner.args[0])
        if len(operands) == 1 and operands[0] is x and _close(slope, math.sqrt(0.5)):
            return call("gelu", x, name=node.name)
    return None


def _factors(expr: Expr) -> tuple[float, list[Expr]]:
    """A product as a number times expressions, two products deep."""
    scale, factors, todo = 1.0, [], [(expr, 0)]
    while todo:
        node, depth = todo.pop(0)
        value = scalar_of(node)
        if value is not None:
            scale *= value
        elif is_call(node, "multiply") and isinstance(node, Call) and depth < 2:
            todo.extend((a, depth + 1) for a in node.args)
        elif is_call(node, "divide") and isinstance(node, Call) and scalar_of(node.args[1]):
            scale /= scalar_of(node.args[1]) or 1.0
            todo.append((node.args[0], depth + 1))
        else:
            factors.append(node)
    return scale, factors


def _plus_one(expr: Expr) -> Expr | None:
    """y of 1 + y."""
    if not is_call(expr, "add") or not isinstance(expr, Call):
        return None
    a, b = expr.args
    return a if scalar_of(b) == 1 else b if scalar_of(a) == 1 else None


def _close(value: object, wanted: float) -> bool:
    return isinstance(value, (int, float)) and abs(value - wanted) < 1e-4 * abs(wanted)


def cast_twice(node: Call, uses: Uses) -> Expr | None:
    if node.op != "cast":
        return None
    x = node.args[0]
    if tensor_type(x).dtype == node.attrs["dtype"]:
        return x
    if is_call(x, "cast") and isinstance(x, Call):
        first = tensor_type(x.args[0]).dtype
        if (first, tensor_type(x).dtype) in _LOSSLESS:
            return call("cast", x.args[0], dtype=node.attrs["dtype"], name=node.name)
    return None


def reshape_twice(node: Call, uses: Uses) -> Expr | None:
    if node.op not in ("reshape", "broadcast_to", "slice", "concat", "pad", "tile"):
        return None
    x = node.args[0]
    unchanged = len(node.args) == 1 and tensor_type(x) == tensor_type(node)
    if unchanged and (node.op != "slice" or all(s == 1 for s in node.attrs["strides"])):  # type: ignore[union-attr]
        return x
    if node.op != "reshape":
        return None
    shape = tensor_type(node).shape
    if isinstance(x, Constant):
        return reshape(x, shape)
    return reshape(x.args[0], shape) if is_call(x, "reshape") and isinstance(x, Call) else None


def pad_into_window(node: Call, uses: Uses) -> Expr | None:
    """conv(pad(x, p), w)  ->  conv[padding + p](x, w), where zeros pad spatial dimensions alone, or
    bytes take their zero point."""
    if node.op != "conv" or not is_call(node.args[0], "pad"):
        return None
    padded = node.args[0]
    assert isinstance(padded, Call)
    value, exact = padded.attrs["value"], node.attrs["out_dtype"] == "int32"
    if padded.attrs["mode"] != "constant" or (value != 0 and not exact):
        return None
    by = pairs(padded.attrs["padding"])
    last = node.attrs["data_layout"] == "NSC"
    spatial, others = (by[1:-1], (by[0], by[-1])) if last else (by[2:], by[:2])
    if any(p != (0, 0) for p in others) or min(map(min, by)) < 0:
        return None
    own = pairs(node.attrs["padding"])
    if value != node.attrs["pad_value"] and any(p != (0, 0) for p in own):
        return None
    total = tuple((a + c, b + d) for (a, b), (c, d) in zip(own, spatial, strict=True))
    assert isinstance(value, (int, float))
    attrs = {**node.attrs, "padding": total, "pad_value": int(value)}
    return call("conv", padded.args[0], *node.args[1:], name=node.name, **attrs)


def global_pool(node: Call, uses: Uses) -> Expr | None:
    """avg_pool with a window of the whole map  ->  mean over the spatial axes"""
    if node.op not in ("avg_pool", "max_pool"):
        return None
    shape = tensor_type(node.args[0]).shape
    rank = len(shape)
    axes = tuple(range(1, rank - 1) if node.attrs["data_layout"] == "NSC" else range(2, rank))
    whole = node.attrs["kernel"] == tuple(shape[a] for a in axes)
    if not whole or any(p != (0, 0) for p in pairs(node.attrs["padding"])):
        return None
    reduction = "mean" if node.op == "avg_pool" else "max"
    return call(reduction, node.args[0], axes=axes, keepdims=True, name=node.name)


def short_constants(node: Call, uses: Uses) -> Expr | None:
    """add(x, c[1, 1, n])  ->  add(x, c[n]) where x has the result's shape"""
    if not isinstance(node.op, str) or len(node.args) != 2 or node.op == "prelu":
        return None
    x, c = node.args
    if not isinstance(c, Constant) or c.data.ndim < 2 or not OPS[node.op].commutative:
        return None
    if tensor_type(x).shape != tensor_type(node).shape or c.data.shape[0] != 1:
        return None
    return call(node.op, x, strip_unit_dims(c), name=node.name, **node.attrs)


RULES: tuple[Rule, ...] = (
    constant_second,
    divide_by_constant,
    subtract_constant,
    neutral_element,
    implied_broadcast,
    as_gelu,
    as_silu,
    merge_constants,
    small_powers,
    as_relu,
    cast_twice,
    reshape_twice,
    compose,
    unit_transpose,
    pad_into_window,
    global_pool,
    short_constants,
    *GROUP_NORM_RULES,
    *EINSUM_RULES,
    *SCATTER_RULES,
)
