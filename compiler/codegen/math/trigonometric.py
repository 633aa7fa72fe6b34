"""Sine, cosine, tangent, and their inverses."""

from __future__ import annotations

import math

from tunefarm.compiler.codegen.math.rounding import round_to_integer
from tunefarm.compiler.codegen.math.writer import Writer

_SIN64 = (
    -7.586697117706918e-13, 1.6058531618986147e-10, -2.5052106232447578e-08,
    2.7557319219339167e-06, -0.00019841269841265065, 0.008333333333333331, -0.16666666666666666,
)  # fmt: skip
_COS64 = (
    4.7458719020432915e-14, -1.1470460887609959e-11, 2.087675579108042e-09, -2.7557319221402824e-07,
    2.4801587301584645e-05, -0.0013888888888888887, 0.041666666666666664,
)  # fmt: skip
_SIN_HALF_TURN = (
    -7.40805488954261e-13, 1.6050972244135636e-10, -2.505197292154555e-08, 2.7557318055685783e-06,
    -0.00019841269836469024, 0.008333333333325933, -0.1666666666666665,
)  # fmt: skip
_PI_LOW = 1.2246467991473532e-16  # π less the nearest float64
_ATAN64 = (
    -0.01391822929102443, 0.030635704112969498, -0.04104436265755082, 0.04719395030027433,
    -0.05258041554297779, 0.058819252531928636, -0.06666642020055166, 0.07692306736000173,
    -0.0909090906700999, 0.11111111110754729, -0.14285714285711518, 0.19999999999999993,
    -0.3333333333333333,
)  # fmt: skip


def _sin_cos(w: Writer, x: str) -> tuple[str, str, str]:
    """(sin r, cos r, quadrant) with x = r + quadrant · π/2, |r| ≤ π/4, in three steps."""
    quarter, n = round_to_integer(w, w.c(2 / math.pi), x)
    r = w.fma(quarter, w.c(-1.5707963267341256), x)
    r = w.fma(quarter, w.c(-6.077100506303966e-11), r)
    r = w.fma(quarter, w.c(-2.0222662487959506e-21), r)
    z = w.mul(r, r)
    sine = w.fma(w.mul(w.polynomial(z, _SIN64), z), r, r)
    cosine = w.fma(w.mul(z, z), w.polynomial(z, _COS64), w.fma(z, w.c(-0.5), w.c(1.0)))
    return sine, cosine, n


def _bit(w: Writer, n: str, bit: int) -> str:
    masked = w.integer("and", n, w.i(bit))
    return w.put(f"icmp ne {w.bits} {masked}, {w.i(0)}")


def _quadrant(w: Writer, x: str, shift: int) -> str:
    sine, cosine, n = _sin_cos(w, x)
    n = w.integer("add", n, w.i(shift))
    value = w.choose(_bit(w, n, 1), cosine, sine)
    return w.choose(_bit(w, n, 2), w.put(f"fneg {w.kind} {value}"), value)


def sin(w: Writer, x: str) -> str:
    return _quadrant(w, x, 0)


def cos(w: Writer, x: str) -> str:
    return _quadrant(w, x, 1)


def sin_to_round(w: Writer, x: str) -> str:
    """sin x in float64 with the digits that float32 asks for: to 1e-15 of its value."""
    return _half_turns(w, x, 0.0) if w.fused else sin(w, x)


def cos_to_round(w: Writer, x: str) -> str:
    """cos x = sin(x + π/2) likewise."""
    return _half_turns(w, x, 0.5) if w.fused else cos(w, x)


def _half_turns(w: Writer, x: str, shift: float) -> str:
    """sin(x + shift · π) = (−1)ⁿ · sin r with x = r + (n − shift) · π, |r| ≤ π/2: one polynomial,
    where quarters of a turn take that of the cosine too."""
    turns = w.fma(x, w.c(1 / math.pi), w.c(shift))
    whole, n = round_to_integer(w, w.c(1.0), turns)
    away = w.sub(whole, w.c(shift)) if shift else whole
    r = w.fma(away, w.c(-math.pi), x)
    r = w.fma(away, w.c(-_PI_LOW), r)
    z = w.mul(r, r)
    sine = w.fma(w.mul(r, z), w.polynomial(z, _SIN_HALF_TURN), r)
    sign = w.integer("shl", n, w.i(63))
    return w.from_bits(w.integer("xor", w.to_bits(sine), sign))


def tan(w: Writer, x: str) -> str:
    sine, cosine, n = _sin_cos(w, x)
    odd = _bit(w, n, 1)
    negative = w.put(f"fneg {w.kind} {cosine}")
    return w.div(w.choose(odd, negative, sine), w.choose(odd, sine, cosine))


def atan(w: Writer, x: str) -> str:
    """Reduced to |t| ≤ √2 − 1 by 1/x and by atan t = π/4 + atan((t − 1)/(t + 1))."""
    z = w.abs(x)
    large = w.compare("ogt", z, w.c(1.0))
    t = w.choose(large, w.div(w.c(1.0), z), z)
    middle = w.compare("ogt", t, w.c(math.sqrt(2) - 1))
    t = w.choose(middle, w.div(w.sub(t, w.c(1.0)), w.add(t, w.c(1.0))), t)
    s = w.mul(t, t)
    y = w.fma(w.mul(w.polynomial(s, _ATAN64), s), t, t)
    y = w.choose(middle, w.add(y, w.c(math.pi / 4)), y)
    y = w.choose(large, w.sub(w.c(math.pi / 2), y), y)
    return w.copysign(y, x)


def asin(w: Writer, x: str) -> str:
    one = w.c(1.0)
    return atan(w, w.div(x, w.sqrt(w.mul(w.sub(one, x), w.add(one, x)))))


def acos(w: Writer, x: str) -> str:
    one = w.c(1.0)
    ratio = w.div(w.sub(one, x), w.add(one, x))
    return w.mul(w.c(2.0), atan(w, w.sqrt(ratio)))
