"""Logarithms, and the inverse hyperbolic functions."""

from __future__ import annotations

import math

from tunefarm.compiler.codegen.math.writer import LN2_HIGH, LN2_LOW, Writer

_LOG32 = (
    0.06971611471451178, -0.11479733846637635, 0.1168541992348674, -0.12425687331451106,
    0.1424905764569748, -0.16667802319501254, 0.200007157488921, -0.24999996957950882,
    0.33333331180030046,
)  # fmt: skip
_LOG64 = (
    0.05941313690548262, 0.0584402704713433, 0.06667820887000134, 0.07692287530280299,
    0.09090909297285235, 0.11111111109926232, 0.1428571428571769, 0.19999999999999996,
    0.3333333333333333,
)  # fmt: skip
_LOG1P_UNIT = (
    -0.00317605701843196, 0.005250270678070283, -0.006788016951938559, 0.011577685182382747,
    -0.020563182432163537, 0.03663523416633938, -0.06768818965399573, 0.13260901577718714,
    -0.28852710137197934, 0.8109302199132427,
)  # fmt: skip
_TINY = {"float32": 2.0**-126, "float64": 2.0**-1022}


def parts_of_normal(w: Writer, x: str) -> tuple[str, str]:
    """x = m · 2ᵉ with m in [√½, √2): (m − 1, e as a float)."""
    mantissa = 23 if w.single else 52
    bits = w.to_bits(x)
    root = 0x3F3504F3 if w.single else 0x3FE6A09E667F3BCD
    e = w.integer("ashr", w.integer("sub", bits, w.i(root)), w.i(mantissa))
    m = w.from_bits(w.integer("sub", bits, w.integer("shl", e, w.i(mantissa))))
    return w.sub(m, w.c(1.0)), w.from_integer(e)


def _log_parts(w: Writer, x: str) -> tuple[str, str]:
    """The same of any number: denormals are scaled first."""
    mantissa = 23 if w.single else 52
    tiny = w.compare("olt", x, w.c(_TINY[w.dtype]))
    scaled = w.choose(tiny, w.mul(x, w.c(2.0**mantissa)), x)
    f, e = parts_of_normal(w, scaled)
    return f, w.choose(tiny, w.sub(e, w.c(float(mantissa))), e)


def _log_special(w: Writer, x: str, y: str) -> str:
    infinity = w.c(math.inf)
    y = w.choose(w.compare("oeq", x, infinity), infinity, y)
    y = w.choose(w.compare("oeq", x, w.c(0.0)), w.c(-math.inf), y)
    return w.choose(w.compare("ult", x, w.c(0.0)), w.c(math.nan), y)


def _log_of_parts(w: Writer, f: str, e: str) -> str:
    if w.single:
        square = w.mul(f, f)
        p = w.mul(w.mul(w.polynomial(f, _LOG32), square), f)
        p = w.fma(e, w.c(LN2_LOW), p)
        p = w.fma(square, w.c(-0.5), p)
        return w.fma(e, w.c(LN2_HIGH), w.add(f, p))
    s = w.div(f, w.add(f, w.c(2.0)))
    z = w.mul(s, s)
    half = w.mul(w.mul(f, f), w.c(0.5))
    # log(1 + f) = f − (f²/2 − s·(f²/2 + 2·z·P(z)))
    p = w.mul(w.mul(w.c(2.0), z), w.polynomial(z, _LOG64))
    inner = w.fma(s, w.add(half, p), w.mul(e, w.c(LN2_LOW)))
    return w.fma(e, w.c(LN2_HIGH), w.sub(f, w.sub(half, inner)))


def log(w: Writer, x: str) -> str:
    return _log_special(w, x, _log_of_parts(w, *_log_parts(w, x)))


def log2(w: Writer, x: str) -> str:
    f, e = _log_parts(w, x)
    mantissa = _log_of_parts(w, f, w.c(0.0))
    y = w.fma(mantissa, w.c(1 / math.log(2)), e)
    return _log_special(w, x, y)


def log1p(w: Writer, x: str) -> str:
    """log(u) + (x − (u − 1)) / u with u = 1 + x: the second term is what rounding u lost."""
    u = w.add(x, w.c(1.0))
    lost = w.sub(x, w.sub(u, w.c(1.0)))
    y = w.add(_log_of_parts(w, *_log_parts(w, u)), w.div(lost, u))
    y = _log_special(w, u, y)
    return w.choose(w.compare("oeq", u, w.c(1.0)), x, y)


def log1p_unit(w: Writer, x: str) -> str:
    """log(1 + x) = x · P(x − ½) for 0 ≤ x ≤ 1 or NaN."""
    if not w.single:
        return log1p(w, x)
    return w.mul(x, w.polynomial(w.sub(x, w.c(0.5)), _LOG1P_UNIT))


def asinh(w: Writer, x: str) -> str:
    z = w.abs(x)
    square = w.mul(z, z)
    root = w.sqrt(w.add(square, w.c(1.0)))
    near = log1p(w, w.add(z, w.div(square, w.add(w.c(1.0), root))))
    far = w.add(log(w, z), w.c(math.log(2)))
    return w.copysign(w.choose(w.compare("olt", z, w.c(1e18)), near, far), x)


def acosh(w: Writer, x: str) -> str:
    t = w.sub(x, w.c(1.0))
    near = log1p(w, w.add(t, w.sqrt(w.mul(t, w.add(t, w.c(2.0))))))
    far = w.add(log(w, x), w.c(math.log(2)))
    y = w.choose(w.compare("ogt", x, w.c(1e18)), far, near)
    return w.choose(w.compare("olt", x, w.c(1.0)), w.c(math.nan), y)


def atanh(w: Writer, x: str) -> str:
    z = w.abs(x)
    y = log1p(w, w.div(w.mul(w.c(2.0), z), w.sub(w.c(1.0), z)))
    return w.copysign(w.mul(w.c(0.5), y), x)
