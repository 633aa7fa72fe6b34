"""What values a parameter may take, derived from how the function uses it, and drawing such values.

A domain is one of "any", "positive", "nonzero", "unit" (the open interval from -1 to 1),
"2^a..2^b" (between powers of two, as factors of quantisation are) and "index<n" (whole numbers from
0 to n - 1). Two demands on one parameter are joined to the stricter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.dtypes import is_float, numpy_dtype
from tunefarm.compiler.ir import Attrs, Call, Expr, Function, TensorType, post_order, tensor_type
from tunefarm.compiler.ops.base import OPS, Pattern

_STRICTNESS = ("any", "nonzero", "positive", "unit")
_ZERO_POINT = "index<128"

Demand = Callable[[Sequence[TensorType], Attrs], Sequence[str]]
"""Operand types and attributes → the domain that each operand must lie in."""


def _all(domain: str) -> Demand:
    return lambda types, attrs: [domain] * len(types)


def _gather(types: Sequence[TensorType], attrs: Attrs) -> Sequence[str]:
    axis = attrs.get("axis", 0)
    assert isinstance(axis, int)
    return ["any", f"index<{types[0].shape[axis]}"]


def _gather_nd(types: Sequence[TensorType], attrs: Attrs) -> Sequence[str]:
    batch, depth = attrs.get("batch_dims", 0), types[1].shape[-1]
    assert isinstance(batch, int)
    named = types[0].shape[batch : batch + depth]
    return ["any", f"index<{min(named)}", *["any"] * (len(types) - 2)]


def _along_axis(types: Sequence[TensorType], attrs: Attrs) -> Sequence[str]:
    return [*_gather(types, attrs), *["any"] * (len(types) - 2)]


def _sample(types: Sequence[TensorType], attrs: Attrs) -> Sequence[str]:
    elements = types[0].shape[1 if attrs["data_layout"] == "NSC" else 2]
    return ["any", f"index<{elements}", "any"]


def _scaling(factors: Mapping[str, str]) -> Demand:
    """Factors, by what they scale, that make numbers of about unit size of bytes and their sums,
    and bytes that differ of all these: what is clipped tells nothing."""
    return lambda types, attrs: ["any", factors.get(types[0].dtype, "2^-7..2^-4"), _ZERO_POINT]


def _packed(types: Sequence[TensorType], attrs: Attrs) -> Sequence[str]:
    """Zero points are among the numbers that the bits can say."""
    bits = attrs["bits"]
    assert isinstance(bits, int)
    return ["any", "any", "any", *[f"index<{2**bits}"] * (len(types) - 3)]


_DEMANDS: Mapping[str, Demand] = {
    "sqrt": _all("positive"),
    "log": _all("positive"),
    "acosh": _all("positive"),
    "reciprocal": _all("nonzero"),
    "divide": lambda types, attrs: ["any", "nonzero"],
    "remainder": lambda types, attrs: ["any", "nonzero"],
    "modulo": lambda types, attrs: ["any", "nonzero"],
    "power": lambda types, attrs: ["positive", "any"],
    "asin": _all("unit"),
    "acos": _all("unit"),
    "atanh": _all("unit"),
    "gather": _gather,
    "gather_elements": _gather,
    "gather_nd": _gather_nd,
    "scatter_elements": _along_axis,
    "scatter_nd": _gather_nd,
    "interpolate": _along_axis,
    "sample": _sample,
    "quantize": lambda types, attrs: ["any", "2^-6..2^-4", _ZERO_POINT],
    "requantize": _scaling({"float32": "2^4..2^6", "int32": "2^-11..2^-8"}),
    "dequantize": _scaling({"int32": "2^-16..2^-13"}),
    "add_quanta": lambda types, attrs: ["any", "any", "positive", "positive", "any"],
    "packed_matmul": _packed,
    "batch_norm": lambda types, attrs: [*["any"] * (len(types) - 1), "positive"],
}

# Operators whose result is positive (or not zero) if their operands are.
_PRESERVING = frozenset({"add", "multiply", "divide", "maximum", "minimum", "relu", "abs"})


def param_domains(function: Function) -> tuple[str, ...]:
    """The domain of every parameter, in order."""
    demanded: dict[Expr, str] = {}
    for node in reversed(post_order(function.body)):
        if isinstance(node, Call) and isinstance(node.op, str):
            for operand, domain in zip(node.args, _operand_domains(node, demanded), strict=True):
                demanded[operand] = _stricter(demanded.get(operand, "any"), domain)
    return tuple(demanded.get(p, "any") for p in function.params)


def _operand_domains(node: Call, demanded: Mapping[Expr, str]) -> Sequence[str]:
    op = OPS[str(node.op)]
    own = _DEMANDS.get(op.name)
    wanted = demanded.get(node, "any")
    if own is not None:
        listed = own([tensor_type(a) for a in node.args], node.attrs)
        if len(listed) == len(node.args):
            passes = op.pattern is Pattern.INJECTIVE
            return [wanted if passes and d == "any" else d for d in listed]
    if op.pattern is Pattern.INJECTIVE or op.name == "cast":
        return [wanted] * len(node.args)
    if op.name == "where":
        return ["any", wanted, wanted]
    if op.name in _PRESERVING and not wanted.startswith("index<"):
        return [wanted] * len(node.args)
    return ["any"] * len(node.args)


def _stricter(a: str, b: str) -> str:
    if a.startswith("index<") and b.startswith("index<"):
        return min(a, b, key=lambda d: int(d[6:]))
    if a.startswith("index<") or b.startswith("index<"):
        return a if a.startswith("index<") else b
    if a.startswith("2^") or b.startswith("2^"):
        return a if a.startswith("2^") else b
    return max(a, b, key=_STRICTNESS.index)


def draw(type: TensorType, domain: str, rng: np.random.Generator) -> NDArray[Any]:
    """Random values of a type within a domain: about unit size, so that products stay finite."""
    dtype = numpy_dtype(type.dtype)
    if domain.startswith("index<"):
        return rng.integers(0, max(int(domain[6:]), 1), type.shape).astype(dtype)
    if type.dtype == "bool":
        return rng.integers(0, 2, type.shape).astype(dtype)
    if not is_float(type.dtype):
        return _draw_integers(type, domain, rng)
    if domain.startswith("2^"):
        low, high = (float(bound.removeprefix("2^")) for bound in domain.split(".."))
        return np.exp2(rng.uniform(low, high, type.shape)).astype(dtype)
    if domain == "unit":
        return rng.uniform(-0.99, 0.99, type.shape).astype(dtype)
    wide = np.float64 if type.dtype == "float64" else np.float32
    if domain == "positive":
        return (rng.random(type.shape, wide) * wide(1.5) + wide(0.5)).astype(dtype)
    values = np.asarray(rng.standard_normal(type.shape, wide))
    if domain == "nonzero":
        values = np.copysign(np.abs(values) + wide(0.5), values)
    return values.astype(dtype, copy=False)


def _draw_integers(type: TensorType, domain: str, rng: np.random.Generator) -> NDArray[Any]:
    low = 1 if domain in ("positive", "nonzero") else 0 if type.dtype.startswith("u") else -100
    return rng.integers(low, 101, type.shape).astype(numpy_dtype(type.dtype))
