"""Rules that make products of quantised operands products of bytes, summed up in int32.

conv(dequantize(x, s, z), dequantize(w, t, 0))  ->  dequantize(conv(x, w) - z * sum(w), s * t, 0)
matmul(cast(x) - z, cast(w))                    ->  matmul(x, w) - z * sum(w)
add(dequantize(y, s, 0), b)                     ->  dequantize(y + round(b / s), s, 0)
mean(dequantize(x, s, z))                       ->  dequantize(sum(x) - n * z, s / n, 0)

x are bytes, w constant; weights with a zero point of their own are moved by it where the result is
a signed byte still. A convolution pads x with z, so that every window holds all taps. All sums are
exact: a product whose sums could leave int32 stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.ir import Call, Constant, Expr, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.transform.constants import contiguous, strip_unit_dims
from tunefarm.compiler.transform.rewrite import Rule, Uses, is_call

BYTES = ("int8", "uint8")
_LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Quantised:
    """An operand ``(q - zero) * scale`` of a product: ``scale`` is None for plain integers."""

    q: Expr
    scale: Constant | None
    zero: Expr


def dequantised(expr: Expr, *dtypes: str) -> Quantised | None:
    """What a ``dequantize`` with constant parameters reads, if it has one of the dtypes."""
    if not is_call(expr, "dequantize") or not isinstance(expr, Call):
        return None
    q, scale, zero = expr.args
    if tensor_type(q).dtype not in dtypes or not isinstance(scale, Constant):
        return None
    return Quantised(q, scale, zero) if isinstance(zero, Constant) else None


def value_of(expr: Expr) -> float | None:
    """The number that a constant of one element holds."""
    if not isinstance(expr, Constant) or expr.data.size != 1:
        return None
    return float(expr.data.reshape(-1)[0])


def number(value: float) -> Constant:
    """A scale or a zero point for all of a tensor."""
    return Constant(np.array(value, np.float32))


def whole(data: NDArray[Any], name: str = "") -> Constant:
    """An int32 constant without leading dimensions of extent 1."""
    made = strip_unit_dims(Constant(contiguous(data.astype(np.int32)).reshape(data.shape), name))
    assert isinstance(made, Constant)
    return made


def integer_product(node: Call, uses: Uses) -> Expr | None:
    """A convolution or matmul of bytes and constant weights, from the numbers they stand for."""
    if node.op not in ("conv", "matmul") or node.attrs["out_dtype"]:
        return None
    x, w = (_operand(a) for a in node.args)
    if x is None or w is None or not isinstance(w.q, Constant):
        return None
    weights = _signed_weights(w)
    if weights is None or (x.scale is None) != (w.scale is None):
        return None
    if x.scale is not None and x.scale.data.size != 1:
        return None
    total = _exact_sum(node, x, weights)
    if total is None or x.scale is None or w.scale is None:
        return total
    steps = _steps(node, w.scale)
    if steps is None:
        return None
    scale = strip_unit_dims(Constant(x.scale.data.reshape(()) * steps))
    return call("dequantize", total, scale, number(0), name=node.name)


def _operand(expr: Expr) -> Quantised | None:
    """Bytes dequantised, or ``cast(q, int32) - zero`` with one zero point."""
    found = dequantised(expr, *BYTES)
    if found is not None or tensor_type(expr).dtype != "int32":
        return found
    zero: Expr = Constant(np.array(0, np.int32))
    if is_call(expr, "subtract") and isinstance(expr, Call):
        expr, zero = expr.args
    if not is_call(expr, "cast") or not isinstance(expr, Call):
        return None
    q = expr.args[0]
    return Quantised(q, None, zero) if tensor_type(q).dtype in BYTES else None


def _signed_weights(w: Quantised) -> Constant | None:
    """The weights less their zero point, if these are signed bytes."""
    assert isinstance(w.q, Constant)
    if not isinstance(w.zero, Constant):
        return None
    moved = w.q.data.astype(np.int32) - w.zero.data.astype(np.int32)
    if moved.shape != w.q.data.shape or moved.size == 0:
        return None
    if moved.min() < -128 or moved.max() > 127:
        return None
    return Constant(moved.astype(np.int8), w.q.name)


def _summed_axes(node: Call, rank: int) -> tuple[int, ...]:
    """The axes of the weights that a product sums over."""
    if node.op == "matmul":
        return (rank - 1 if node.attrs["transpose_b"] else rank - 2,)
    channels = rank - 1 if node.attrs["kernel_layout"] == "SIO" else 0
    return tuple(d for d in range(rank) if d != channels)


def _exact_sum(node: Call, x: Quantised, weights: Constant) -> Expr | None:
    """The product of bytes in int32, less what the zero point of ``x`` adds to it."""
    axes = _summed_axes(node, weights.data.ndim)
    wide = weights.data.astype(np.int64)
    zero = value_of(x.zero)
    attrs = {**node.attrs, "out_dtype": "int32"}
    if 256 * int(np.abs(wide).sum(axis=axes).max()) > _LARGEST:
        return None
    if node.op == "conv" and _pads(node):
        if zero is None:
            return None
        attrs["pad_value"] = int(zero)
    total = call(str(node.op), x.q, weights, name=node.name, **attrs)
    sums = _beside_result(node, wide.sum(axis=axes, keepdims=True))
    if zero is not None:
        return call("add", total, whole(-int(zero) * sums)) if zero else total
    point = call("multiply", x.zero, whole(sums)) if tensor_type(x.zero).size == 1 else None
    return None if point is None else call("subtract", total, point)


def _pads(node: Call) -> bool:
    return any(p != (0, 0) for p in node.attrs["padding"])  # type: ignore[union-attr]


def _beside_result(node: Call, sums: NDArray[Any]) -> NDArray[Any]:
    """Sums over the weights with extents of 1, in the shape that broadcasts to the result."""
    if node.op == "matmul":
        return np.swapaxes(sums, -1, -2) if node.attrs["transpose_b"] else sums
    flat = sums.reshape(-1)
    if node.attrs["data_layout"] == "NSC":
        return flat
    return flat.reshape(-1, *[1] * (sums.ndim - 2))


def _steps(node: Call, scale: Constant) -> NDArray[np.float32] | None:
    """The scales of the weights as they broadcast to the result; None if they do not."""
    rank = len(tensor_type(node.args[1]).shape)
    full = scale.data.reshape((1,) * (rank - scale.data.ndim) + scale.data.shape)
    axes = _summed_axes(node, rank)
    if any(full.shape[a] != 1 for a in axes):
        return None
    if full.size == 1:
        return full.reshape(())
    return np.asarray(_beside_result(node, full), np.float32)


def integer_bias(node: Call, uses: Uses) -> Expr | None:
    """A constant added to a product moves to its integers, rounded to their step."""
    if node.op != "add":
        return None
    for product, added in (node.args, node.args[::-1]):
        sums = dequantised(product, "int32")
        bias = _numbers(added)
        if sums is None or bias is None or tensor_type(product).shape != tensor_type(node).shape:
            continue
        assert sums.scale is not None
        if value_of(sums.zero) != 0 or bias.size > tensor_type(node).shape[-1] * 4096:
            continue
        whole_steps = np.rint(bias / sums.scale.data.astype(np.float64))
        if whole_steps.size > max(bias.size, sums.scale.data.size):
            continue
        if np.abs(whole_steps).max(initial=0) > _LARGEST // 4:
            continue
        total = _plus(sums.q, whole(whole_steps))
        return call("dequantize", total, sums.scale, number(0), name=node.name)
    return None


def _numbers(expr: Expr) -> NDArray[np.float64] | None:
    """The values of a constant, or of one dequantised, in float64."""
    if isinstance(expr, Constant):
        return expr.data.astype(np.float64)
    if is_call(expr, "reshape") and isinstance(expr, Call):
        inner = _numbers(expr.args[0])
        return None if inner is None else inner.reshape(tensor_type(expr).shape)
    found = dequantised(expr, *BYTES, "int32")
    if found is None or not isinstance(found.q, Constant) or found.scale is None:
        return None
    assert isinstance(found.zero, Constant)
    return np.asarray((found.q.data.astype(np.float64) - found.zero.data) * found.scale.data)


def _plus(total: Expr, added: Constant) -> Expr:
    """total + added, in one addition with a constant that ``total`` ends in."""
    if is_call(total, "add") and isinstance(total, Call) and isinstance(total.args[1], Constant):
        earlier = total.args[1].data.astype(np.int64)
        total, added = total.args[0], whole(earlier + added.data)
    return call("add", total, added)


def integer_mean(node: Call, uses: Uses) -> Expr | None:
    """The mean of bytes is their sum, in int32, with a smaller step."""
    x = dequantised(node.args[0], *BYTES) if node.op == "mean" else None
    if x is None or x.scale is None or x.scale.data.size != 1:
        return None
    zero = value_of(x.zero)
    count = tensor_type(x.q).size // max(tensor_type(node).size, 1)
    if zero is None or not 0 < count <= _LARGEST // 256:
        return None
    wide = call("cast", x.q, dtype="int32")
    total: Expr = call("sum", wide, name=node.name, **node.attrs)
    if zero:
        total = call("add", total, whole(np.array(-int(zero) * count)))
    scale = number(float(x.scale.data.reshape(())) / count)
    return call("dequantize", total, scale, number(0))


PRODUCT_RULES: tuple[Rule, ...] = (integer_product, integer_bias, integer_mean)
