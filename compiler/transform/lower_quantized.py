"""Compute on integers what a model says of quantised tensors; products by ``integer_products``.

quantize(dequantize(y, s, 0), t, z)            ->  requantize(y, s / t, z)       y int32
quantize(dequantize(q, s, z), s, z)            ->  q
quantize(relu(x), s, z)                        ->  clip[min = z](quantize(x, s, z))
quantize(dequantize(a) + dequantize(b))        ->  add_quanta(a, b, …)
max_pool(dequantize(q))                        ->  dequantize(max_pool(q))       so for moves
quantize(reshape(x))                           ->  reshape(quantize(x))          so for concat
dequantize(quantize[int8](x, s, z))            ->  dequantize(quantize[uint8](x, s, z + 128))

Activations are unsigned bytes wherever nobody sees them, as dot products want them. What is
quantised besides stays ``dequantize``, arithmetic on numbers, ``quantize``: in one kernel, so that
tensors between kernels are bytes. Every result is onnxruntime's, but where a number lies next to
the middle between two quanta: there either may come out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tunefarm.compiler.ir import Call, Constant, Expr, IRModule, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.quantize import range_of
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.canonicalize_ops import global_pool, reshape_twice
from tunefarm.compiler.transform.constants import permutation, reshape, transpose
from tunefarm.compiler.transform.integer_products import (
    BYTES,
    PRODUCT_RULES,
    Quantised,
    dequantised,
    number,
    value_of,
)
from tunefarm.compiler.transform.rewrite import Rule, Uses, is_call, rewrite_main

_MOVES = ("reshape", "transpose", "slice", "max_pool", "tile", "broadcast_to", "max", "min")
_MOVED_AFTER = ("reshape", "transpose", "slice", "max_pool", "max")
_SIGN = 128
_LARGEST_FACTOR = 2.0**20  # of a byte, for a sum that fits int32


def lower_quantized(module: IRModule, target: Target) -> IRModule:
    """Runs before constants are folded, while weights are bytes."""
    module = rewrite_main(module, [_Unsigned().rule, *PRODUCT_RULES, *QUANTUM_RULES])
    return rewrite_main(module, [_sum_of_quanta, _constant_factor])


class _Unsigned:
    """Signed bytes as unsigned ones, 128 larger; each tensor is rewritten once."""

    def __init__(self) -> None:
        self.made: dict[Expr, Expr | None] = {}

    def rule(self, node: Call, uses: Uses) -> Expr | None:
        """dequantize(q, s, z)  ->  dequantize(q + 128, s, z + 128) where q is quantised here"""
        signed = _per_tensor(node)
        if signed is None or tensor_type(signed.q).dtype != "int8":
            return None
        unsigned = None if isinstance(signed.q, Constant) else self._shifted(signed.q)
        zero = value_of(signed.zero)
        if unsigned is None or zero is None:
            return None
        return call("dequantize", unsigned, node.args[1], number(zero + _SIGN), name=node.name)

    def _shifted(self, expr: Expr) -> Expr | None:
        stack = [expr]
        while stack:
            waiting = [a for a in _passed_on(stack[-1]) if a not in self.made]
            if waiting:
                stack += waiting
                continue
            node = stack.pop()
            if node not in self.made:
                self.made[node] = self._shift(node)
        return self.made[expr]

    def _shift(self, expr: Expr) -> Expr | None:
        if isinstance(expr, Constant):
            return Constant((expr.data.astype(np.int16) + _SIGN).astype(np.uint8), expr.name)
        if not isinstance(expr, Call) or not isinstance(expr.op, str):
            return None
        attrs: dict[str, Any] = dict(expr.attrs)
        if expr.op in ("quantize", "requantize"):
            x, scale, zero = expr.args
            if not isinstance(zero, Constant):
                return None
            moved = Constant(zero.data + np.float32(_SIGN))
            return call(expr.op, x, scale, moved, name=expr.name, dtype="uint8")
        for bound in ("min", "max", "value"):
            if isinstance(attrs.get(bound), (int, float)):
                attrs[bound] += _SIGN
        if expr.op == "pad" and attrs["mode"] != "constant":
            del attrs["value"]
        operands = [self.made[a] for a in _passed_on(expr)]
        if not operands or any(o is None for o in operands):
            return None
        return call(expr.op, *(o for o in operands if o is not None), name=expr.name, **attrs)


def _passed_on(expr: Expr) -> tuple[Expr, ...]:
    """The operands whose bytes an operator hands on, moved or clipped; none for other operators."""
    if not isinstance(expr, Call) or expr.op not in (*_MOVES, "concat", "clip", "pad"):
        return ()
    return expr.args


def _per_tensor(node: Expr) -> Quantised | None:
    """A ``dequantize`` of bytes with one scale and one zero point, whatever their rank."""
    found = dequantised(node, *BYTES)
    if found is None or found.scale is None:
        return None
    scale, zero = value_of(found.scale), value_of(found.zero)
    if scale is None or zero is None:
        return None
    return Quantised(found.q, number(scale), number(zero))


def _quantizing(node: Call) -> tuple[float, int] | None:
    """Scale and zero point of a ``quantize`` with one of each."""
    if node.op != "quantize":
        return None
    scale, zero = value_of(node.args[1]), value_of(node.args[2])
    return None if scale is None or zero is None else (scale, int(zero))


def requantize_sums(node: Call, uses: Uses) -> Expr | None:
    """Integers of a fine step become integers of a coarse one, without numbers in between."""
    if node.op != "quantize":
        return None
    sums = dequantised(node.args[0], "int32")
    scale, zero = node.args[1:]
    if sums is None or sums.scale is None or not isinstance(scale, Constant):
        return None
    if value_of(sums.zero) != 0:
        return None
    factor = Constant(sums.scale.data / scale.data)
    if factor.data.size > sums.scale.data.size or not np.all(factor.data <= 1):
        return None
    return call("requantize", sums.q, factor, zero, name=node.name, dtype=node.attrs["dtype"])


def same_quanta(node: Call, uses: Uses) -> Expr | None:
    """Quanta that are quantised again as they were."""
    target = _quantizing(node)
    source = _per_tensor(node.args[0]) if target is not None else None
    if source is None or source.scale is None or target is None:
        return None
    same = (value_of(source.scale), value_of(source.zero)) == target
    return source.q if same and tensor_type(source.q).dtype == node.attrs["dtype"] else None


def clip_quanta(node: Call, uses: Uses) -> Expr | None:
    """A clip before rounding is a clip to the quantum of the bound, or none at the type's own."""
    target = _quantizing(node)
    inner = node.args[0] if target is not None else None
    if target is None or not isinstance(inner, Call) or inner.op not in ("relu", "clip"):
        return None
    low, high = (0.0, None) if inner.op == "relu" else (inner.attrs["min"], inner.attrs["max"])
    least, largest = range_of(str(node.attrs["dtype"]))
    bounds: dict[str, int] = {}
    for name, bound, limit in (("min", low, least), ("max", high, largest)):
        if not isinstance(bound, (int, float)):
            continue
        quantum = _quantum(float(bound), *target, least, largest)
        if quantum != limit:
            bounds[name] = quantum
    q = call("quantize", inner.args[0], *node.args[1:], name=node.name, **node.attrs)
    return call("clip", q, name=inner.name, **bounds) if bounds else q


def _quantum(value: float, scale: float, zero: int, least: int, largest: int) -> int:
    with np.errstate(over="ignore"):
        steps = float(np.rint(np.float32(value) / np.float32(scale)))
    return int(min(max(steps + zero, least), largest))


def sink_dequantize(node: Call, uses: Uses) -> Expr | None:
    """move(dequantize(q))  ->  dequantize(move(q)), and so for the largest of a window"""
    if node.op not in (*_MOVES, "pad", "concat") or not node.args:
        return None
    first = _per_tensor(node.args[0])
    if first is None or first.scale is None:
        return None
    attrs: dict[str, Any] = dict(node.attrs)
    operands = [first.q]
    if node.op == "concat":
        found = [_per_tensor(a) for a in node.args]
        if any(f is None or not _alike(f, first) for f in found):
            return None
        operands = [f.q for f in found if f is not None]
    elif len(node.args) > 1:
        return None
    if node.op == "pad":
        value = _exact_quantum(first, attrs["value"])
        if attrs["mode"] == "constant" and value is None:
            return None
        attrs["value"] = value or 0
    moved = call(str(node.op), *operands, name=node.name, **attrs)
    return call("dequantize", moved, first.scale, first.zero)


def turn_weights(node: Call, uses: Uses) -> Expr | None:
    """transpose(dequantize(w, s, z))  ->  dequantize(w', s', z') of weights and their scales"""
    x = node.args[0] if node.op == "transpose" else None
    if not isinstance(x, Call) or x.op != "dequantize":
        return None
    if not all(isinstance(a, Constant) for a in x.args):
        return None
    axes, rank = permutation(node), len(tensor_type(x).shape)
    turned = []
    for operand in x.args:
        shape = tensor_type(operand).shape
        full = reshape(operand, (1,) * (rank - len(shape)) + shape)
        turned.append(transpose(full, axes))
    return call("dequantize", *turned, name=x.name)


def _alike(a: Quantised, b: Quantised) -> bool:
    assert a.scale is not None
    assert b.scale is not None
    same = value_of(a.scale) == value_of(b.scale) and value_of(a.zero) == value_of(b.zero)
    return same and tensor_type(a.q).dtype == tensor_type(b.q).dtype


def _exact_quantum(x: Quantised, value: object) -> int | None:
    """The byte that stands for a number, if one does so exactly."""
    zero = value_of(x.zero)
    if value != 0 or zero is None:
        return None
    low, high = range_of(tensor_type(x.q).dtype)
    return int(zero) if low <= zero <= high else None


def lift_quantize(node: Call, uses: Uses) -> Expr | None:
    """quantize(move(x))  ->  move(quantize(x)), so that bytes are moved"""
    inner = node.args[0] if _quantizing(node) is not None else None
    if not isinstance(inner, Call) or uses.get(inner, 1) > 1:
        return None
    if inner.op not in (*_MOVED_AFTER, "concat"):
        return None
    attrs: dict[str, Any] = dict(node.attrs)
    quanta = [call("quantize", a, *node.args[1:], **attrs) for a in inner.args]
    return call(str(inner.op), *quanta, name=inner.name, **inner.attrs)


QUANTUM_RULES: tuple[Rule, ...] = (
    same_quanta,
    requantize_sums,
    clip_quanta,
    turn_weights,
    sink_dequantize,
    lift_quantize,
    global_pool,
    reshape_twice,
)


def _sum_of_quanta(node: Call, uses: Uses) -> Expr | None:
    """quantize(dequantize(a, s, x) + dequantize(b, t, y), u, z), with f = s / u and g = t / u

    ->  add_quanta(a, b, f, g, z - f * x - g * y)
    """
    target = _quantizing(node)
    if target is None or not is_call(node.args[0], "add"):
        return None
    added = node.args[0]
    assert isinstance(added, Call)
    a, b = (_per_tensor(term) for term in added.args)
    if a is None or b is None or tensor_type(a.q).shape != tensor_type(b.q).shape:
        return None
    scale, zero = target
    factors = [(value_of(x.scale) or 0.0) / scale for x in (a, b) if x.scale is not None]
    points = [value_of(x.zero) or 0.0 for x in (a, b)]
    offset = zero - sum(f * p for f, p in zip(factors, points, strict=True))
    if max(*factors, abs(offset)) > _LARGEST_FACTOR:
        return None
    parameters = [number(v) for v in (*factors, offset)]
    dtype = node.attrs["dtype"]
    return call("add_quanta", a.q, b.q, *parameters, name=added.name or node.name, dtype=dtype)


def _constant_factor(node: Call, uses: Uses) -> Expr | None:
    """quantize(x, s, z)  ->  requantize(x, 1 / s, z)

    Means of few quanta lie right between two others so often that they are divided as written.
    """
    if node.op != "quantize" or not isinstance(node.args[1], Constant):
        return None
    if is_call(node.args[0], "avg_pool"):
        return None
    x, scale, zero = node.args
    assert isinstance(scale, Constant)
    factor = Constant((1 / scale.data.astype(np.float64)).astype(np.float32))
    return call("requantize", x, factor, zero, name=node.name, **node.attrs)
