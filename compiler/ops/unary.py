"""Elementwise functions of one tensor: mathematics, rounding, tests, and activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tunefarm.compiler import te
from tunefarm.compiler.dtypes import DTYPES, FLOATS, INTEGERS, SIGNED, is_float, numpy_dtype, wide
from tunefarm.compiler.ir import Attrs, AttrValue, TensorType, Type
from tunefarm.compiler.ops.base import Array, Op, register
from tunefarm.compiler.ops.common import number, out_type, require_dtype, to_dtype, widen
from tunefarm.compiler.tir.ir import Expr

Scalar = Callable[[Expr, Attrs], Expr]
Vector = Callable[[Array, Attrs], Array]
NUMBERS = INTEGERS + FLOATS
_KIND = {
    FLOATS: "floating-point numbers",
    NUMBERS: "numbers",
    INTEGERS: "integers",
    ("bool",): "booleans",
    SIGNED + FLOATS: "signed numbers",
}


def _unary(
    name: str,
    scalar: Scalar,
    vector: Vector,
    allowed: tuple[str, ...] = FLOATS,
    result: str | None = None,
    **defaults: AttrValue,
) -> Op:
    """An operator whose every element is ``scalar`` of the input's; 16-bit floats in float32."""

    def infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
        require_dtype(types[0].dtype, allowed, _KIND[allowed])
        return TensorType(types[0].shape, result or types[0].dtype)

    def compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
        (x,), out = tensors, out_type(type)

        def element(*i: Expr) -> Expr:
            return te.cast(scalar(te.cast(x[i], wide(x.dtype)), attrs), out.dtype)

        return te.compute(out.shape, element, name, out.dtype)

    def reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
        (x,) = arrays
        with np.errstate(all="ignore"):
            return to_dtype(np.asarray(vector(widen(x), attrs)), result or x.dtype.name)

    return Op(name, infer, compute, reference, defaults=defaults)


def _intrinsic(name: str, vector: Callable[[Array], Array]) -> Op:
    return _unary(name, lambda x, _: te.intrinsic(name, x), lambda x, _: vector(x))


def _c(value: float, like: Expr) -> Expr:
    return te.const(value, like.dtype)


def _exp(x: Expr) -> Expr:
    return te.intrinsic("exp", x)


def _sigmoid(x: Expr) -> Expr:
    return 1.0 / (te.intrinsic("exp_within", -x) + 1.0)


def _softplus(x: Expr) -> Expr:
    """log(1 + eˣ), without overflow."""
    small = te.intrinsic("log1p_unit", _exp(-te.intrinsic("abs", x)))
    return te.maximum(x, _c(0.0, x)) + small


def _mish(x: Expr, attrs: Attrs) -> Expr:
    """x · tanh(log(1 + eˣ)) = x · w / (w + 2) for w = eˣ (eˣ + 2): one exponential. From 20 on
    the quotient is 1, in float64 too."""
    grown = _exp(te.minimum(x, _c(20.0, x)))
    w = grown * (grown + 2.0)
    return x * (w / (w + 2.0))


def _clamp(x: Expr, low: float, high: float) -> Expr:
    return te.minimum(te.maximum(x, _c(low, x)), _c(high, x))


def _abs(x: Expr, attrs: Attrs) -> Expr:
    if is_float(x.dtype):
        return te.intrinsic("abs", x)
    return x if x.dtype.startswith("uint") else te.maximum(x, -x)


def _sign(x: Expr, attrs: Attrs) -> Expr:
    zero, one = _c(0, x), _c(1, x)
    if x.dtype.startswith("uint"):
        return te.if_then_else(x > zero, one, zero)
    return te.if_then_else(x > zero, one, te.if_then_else(x < zero, -one, x))


def _clip(x: Expr, attrs: Attrs) -> Expr:
    low, high = attrs["min"], attrs["max"]
    if low is not None:
        x = te.maximum(x, te.const(low, x.dtype))  # type: ignore[arg-type]
    if high is not None:
        x = te.minimum(x, te.const(high, x.dtype))  # type: ignore[arg-type]
    return x


def _clip_array(x: Array, attrs: Attrs) -> Array:
    for bound, apply in ((attrs["min"], np.maximum), (attrs["max"], np.minimum)):
        if bound is not None:
            x = apply(x, np.asarray(bound, x.dtype))
    return x


def erf(x: Array) -> Array:
    """The error function of every element, by the C library's in float64."""
    values = np.fromiter(map(math.erf, x.ravel().tolist()), np.float64, x.size)
    return values.reshape(x.shape).astype(x.dtype)


def _erf(x: Expr) -> Expr:
    return te.intrinsic("erf", x)


def _gelu(x: Expr, attrs: Attrs) -> Expr:
    if attrs["approximate"]:
        # (1 + tanh t) / 2 is the sigmoid of 2t, which keeps its digits where tanh nears -1.
        return x * _sigmoid((x + x * x * x * 0.044715) * math.sqrt(8 / math.pi))
    return x * 0.5 * (_erf(x * math.sqrt(0.5)) + 1.0)


def _gelu_array(x: Array, attrs: Attrs) -> Array:
    if attrs["approximate"]:
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        return np.asarray(x * 0.5 * (1 + np.tanh(inner)))
    return np.asarray(x * 0.5 * (1 + erf(x * math.sqrt(0.5))))


# Of the error function of x / √2, and of what stands for it in GELU's approximation by tanh: an odd
# polynomial that just exceeds 1 at the limit, and is cut there. GELU by it is 1e-4 off at most
# (fitted by Lawson's method).
_NEAR_LIMIT = 4.1
_NEAR_ERF = (
    0.79682705, -0.130879049, 0.0184988951, -0.00187620528, 0.000130355718, -5.82068947e-06,
    1.49024187e-07, -1.65155239e-09,
)  # fmt: skip
_NEAR_TANH = (
    0.796991697, -0.131759108, 0.0190488025, -0.00201458263, 0.000148284323, -7.08838771e-06,
    1.95535272e-07, -2.34469755e-09,
)  # fmt: skip


def _near_gelu(x: Expr, attrs: Attrs) -> Expr:
    square = te.minimum(x * x, _c(_NEAR_LIMIT**2, x))
    series: Expr = _near_series(square, attrs)
    half = x * 0.5
    return half + half * _clamp(x * series, -1.0, 1.0)


def _near_gelu_array(x: Array, attrs: Attrs) -> Array:
    series = _near_series(np.minimum(x * x, _NEAR_LIMIT**2), attrs)
    half = 0.5 * x
    return np.asarray(half + half * np.clip(x * series, -1, 1))


def _near_series(square: Any, attrs: Attrs) -> Any:
    *lower, second, highest = _NEAR_TANH if attrs["approximate"] else _NEAR_ERF
    series = square * highest + second
    for factor in reversed(lower):
        series = series * square + factor
    return series


def _negative_part(f: Callable[[Expr, Attrs], Expr]) -> Scalar:
    """x where x is not negative, else ``f(x)``."""
    return lambda x, attrs: te.if_then_else(x < _c(0, x), f(x, attrs), x)


def _isinf(x: Expr, attrs: Attrs) -> Expr:
    infinite = te.intrinsic("isinf", x, dtype="bool")
    if attrs["negative"] and attrs["positive"]:
        return infinite
    if attrs["negative"]:
        return infinite & (x < _c(0.0, x))
    return infinite & (x > _c(0.0, x)) if attrs["positive"] else te.const(False, "bool")


def _isinf_array(x: Array, attrs: Attrs) -> Array:
    return (np.isneginf(x) & bool(attrs["negative"])) | (np.isposinf(x) & bool(attrs["positive"]))


def _shrink(x: Expr, attrs: Attrs) -> Expr:
    threshold, bias = _c(number(attrs, "threshold"), x), _c(number(attrs, "bias"), x)
    low = te.if_then_else(x < -threshold, x + bias, _c(0, x))
    return te.if_then_else(x > threshold, x - bias, low)


def _shrink_array(x: Array, attrs: Attrs) -> Array:
    threshold, bias = number(attrs, "threshold"), number(attrs, "bias")
    low = np.where(x < -threshold, x + bias, np.zeros_like(x))
    return np.where(x > threshold, x - bias, low)


def _sigmoid_array(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _softplus_array(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _thresholded_relu(x: Expr, attrs: Attrs) -> Expr:
    return te.if_then_else(x > _c(number(attrs, "alpha"), x), x, _c(0, x))


def _scaled_elu(alpha: str, gamma: str) -> tuple[Scalar, Vector]:
    """gamma · x for x ≥ 0, else gamma · alpha · (eˣ − 1)."""

    def scalar(x: Expr, attrs: Attrs) -> Expr:
        below = te.intrinsic("expm1", x) * number(attrs, alpha)
        return te.if_then_else(x < _c(0, x), below, x) * number(attrs, gamma)

    def vector(x: Array, attrs: Attrs) -> Array:
        below = np.expm1(np.minimum(x, 0)) * number(attrs, alpha)
        return np.where(x < 0, below, x) * number(attrs, gamma)

    return scalar, vector


def _celu(x: Expr, attrs: Attrs) -> Expr:
    alpha = number(attrs, "alpha")
    return te.if_then_else(x < _c(0, x), te.intrinsic("expm1", x / alpha) * alpha, x)


def _celu_array(x: Array, attrs: Attrs) -> Array:
    alpha = number(attrs, "alpha")
    return np.where(x < 0, np.expm1(np.minimum(x, 0) / alpha) * alpha, x)


def _hard_sigmoid(x: Expr, attrs: Attrs) -> Expr:
    return _clamp(x * number(attrs, "alpha") + number(attrs, "beta"), 0.0, 1.0)


def _hard_sigmoid_array(x: Array, attrs: Attrs) -> Array:
    return np.clip(x * number(attrs, "alpha") + number(attrs, "beta"), 0, 1)


register(
    *(
        _intrinsic(name, getattr(np, numpy_name))
        for name, numpy_name in {
            "exp": "exp", "log": "log", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil",
            "round": "rint", "sin": "sin", "cos": "cos", "tan": "tan", "asin": "arcsin",
            "acos": "arccos", "atan": "arctan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh",
            "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh",
        }.items()
    ),
    _intrinsic("erf", erf),
    _unary("negative", lambda x, _: x * -1, lambda x, _: -x, SIGNED + FLOATS),
    _unary("abs", _abs, lambda x, _: np.abs(x), NUMBERS),
    _unary("sign", _sign, lambda x, _: np.sign(x), NUMBERS),
    _unary("reciprocal", lambda x, _: 1.0 / x, lambda x, _: 1 / x),
    _unary("sigmoid", lambda x, _: _sigmoid(x), lambda x, _: _sigmoid_array(x)),
    _unary("relu", lambda x, _: te.maximum(x, _c(0, x)), lambda x, _: np.maximum(x, 0), NUMBERS),
    _unary("clip", _clip, _clip_array, NUMBERS, min=None, max=None),
    _unary(
        "leaky_relu",
        _negative_part(lambda x, attrs: x * number(attrs, "alpha")),
        lambda x, attrs: np.where(x < 0, x * number(attrs, "alpha"), x),
        alpha=0.01,
    ),
    _unary("elu", *_scaled_elu("alpha", "gamma"), alpha=1.0, gamma=1.0),
    _unary("celu", _celu, _celu_array, alpha=1.0),
    _unary("gelu", _gelu, _gelu_array, approximate=False),
    _unary("near_gelu", _near_gelu, _near_gelu_array, approximate=False),
    _unary("hard_sigmoid", _hard_sigmoid, _hard_sigmoid_array, alpha=0.2, beta=0.5),
    _unary(
        "hard_swish",
        lambda x, _: x * _clamp(x * (1 / 6) + 0.5, 0.0, 1.0),
        lambda x, _: x * np.clip(x * (1 / 6) + 0.5, 0, 1),
    ),
    _unary(
        "silu",
        lambda x, attrs: x * _sigmoid(x * number(attrs, "alpha")),
        lambda x, attrs: x * _sigmoid_array(x * number(attrs, "alpha")),
        alpha=1.0,
    ),
    _unary(
        "near_silu",
        lambda x, attrs: x * te.intrinsic("near_sigmoid", x * number(attrs, "alpha")),
        lambda x, attrs: x * _sigmoid_array(x * number(attrs, "alpha")),
        alpha=1.0,
    ),
    _unary("mish", _mish, lambda x, _: x * np.tanh(_softplus_array(x))),
    _unary("softplus", lambda x, _: _softplus(x), lambda x, _: _softplus_array(x)),
    _unary(
        "softsign",
        lambda x, _: x / (te.intrinsic("abs", x) + 1.0),
        lambda x, _: x / (1 + np.abs(x)),
    ),
    _unary(
        "thresholded_relu",
        _thresholded_relu,
        lambda x, attrs: np.where(x > number(attrs, "alpha"), x, np.zeros_like(x)),
        alpha=1.0,
    ),
    _unary("shrink", _shrink, _shrink_array, threshold=0.5, bias=0.0),
    _unary(
        "logical_not",
        lambda x, _: te.intrinsic("not", x),
        lambda x, _: np.logical_not(x),
        ("bool",),
    ),
    _unary(
        "bitwise_not",
        lambda x, _: te.intrinsic("bitnot", x),
        lambda x, _: np.bitwise_not(x),
        INTEGERS,
    ),
    _unary(
        "isnan",
        lambda x, _: te.intrinsic("isnan", x, dtype="bool"),
        lambda x, _: np.isnan(x),
        result="bool",
    ),
    _unary("isinf", _isinf, _isinf_array, result="bool", negative=True, positive=True),
)  # fmt: skip


def _cast_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    dtype = attrs["dtype"]
    assert isinstance(dtype, str)
    require_dtype(dtype, DTYPES, f"one of the dtypes {', '.join(DTYPES)}")
    return TensorType(types[0].shape, dtype)


def _cast_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x,), out = tensors, out_type(type)

    def element(*i: Expr) -> Expr:
        value = x[i]
        if out.dtype == "bool" and x.dtype != "bool":
            return te.intrinsic("not", value.equal(te.const(0, x.dtype)))
        return te.cast(value, out.dtype)

    return te.compute(out.shape, element, "cast")


def _cast_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    with np.errstate(all="ignore"):
        return arrays[0].astype(numpy_dtype(str(attrs["dtype"])))


register(
    Op("cast", _cast_infer, _cast_compute, _cast_reference, defaults={"dtype": "float32"}),
)
