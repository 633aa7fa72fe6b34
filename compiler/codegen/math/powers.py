"""pow."""

from __future__ import annotations

import math

from tunefarm.compiler.codegen.math.exponential import exp
from tunefarm.compiler.codegen.math.logarithm import log, parts_of_normal
from tunefarm.compiler.codegen.math.rounding import round_to_integer, trunc
from tunefarm.compiler.codegen.math.writer import Writer

_LOG2 = (
    0.28288502340748234, 0.31990680380701336, 0.41220922406110433, 0.5770779426603044,
    0.9617966941122649, 2.885390081777851,
)  # fmt: skip
_EXP2 = (
    1.3255224878668817e-06, 1.5310079402249296e-05, 0.00015403455852453838, 0.0013333450568000645,
    0.009618129159402558, 0.05550410941205933, 0.2402265069581299, 0.6931471805459335, 1.0,
)  # fmt: skip


def power(w: Writer, a: str, b: str) -> str:
    """exp(b · log |a|), with IEEE 754's special cases."""
    return _with_special_cases(w, exp(w, w.mul(b, log(w, w.abs(a)))), a, b)


def power_in_float64(w: Writer, a: str, b: str) -> str:
    """The same in float32, by a float64 power with the digits that float32 asks for.

    The special cases are float32's, once for the lanes that take two vectors in float64.
    """
    z = w.abs(a)
    wide, operands = w.wide(), (w.convert(v, "float64") for v in (z, b))
    y = wide.convert(_power_of_positive(wide, *operands), "float32")
    infinity, zero = w.c(math.inf), w.c(0.0)
    falls = w.compare("olt", b, zero)
    y = w.choose(w.compare("oeq", z, infinity), w.choose(falls, zero, infinity), y)
    y = w.choose(w.compare("oeq", z, zero), w.choose(falls, infinity, zero), y)
    y = w.choose(w.compare("uno", z, b), w.c(math.nan), y)
    return _with_special_cases(w, y, a, b)


def _power_of_positive(w: Writer, a: str, b: str) -> str:
    """2^(b · log₂ a) for float64 numbers 0 < a < ∞ that float32 holds, to 2e-12 of its value where
    float32 holds that too: log₂ (m · 2ᵉ) = e + s · P(s²) with s = (m − 1) / (m + 1)."""
    f, e = parts_of_normal(w, a)
    s = w.div(f, w.add(f, w.c(2.0)))
    t = w.mul(b, w.fma(s, w.polynomial(w.mul(s, s), _LOG2), e))
    t = w.clamp_high(w.clamp_low(t, -200.0), 200.0)
    whole, n = round_to_integer(w, w.c(1.0), t)
    p = w.polynomial(w.sub(t, whole), _EXP2)
    return w.from_bits(w.integer("add", w.to_bits(p), w.integer("shl", n, w.i(52))))


def _with_special_cases(w: Writer, y: str, a: str, b: str) -> str:
    """a^b as IEEE 754 has it, from y = |a|^b."""
    whole = w.compare("oeq", trunc(w, b), b)
    half = w.mul(b, w.c(0.5))
    even = w.compare("oeq", trunc(w, half), half)
    negative = w.put(f"icmp slt {w.bits} {w.to_bits(a)}, {w.i(0)}")
    flipped = w.put(f"fneg {w.kind} {y}")
    signed = w.choose(even, y, flipped)
    below = w.compare("olt", a, w.c(0.0))
    finite = w.compare("one", w.abs(a), w.c(math.inf))
    bad = w.put(f"and {w.test} {below}, {finite}")
    invalid = w.choose(bad, w.c(math.nan), y)
    y = w.choose(negative, w.choose(whole, signed, invalid), y)
    y = w.choose(w.compare("oeq", b, w.c(0.0)), w.c(1.0), y)
    unit = w.compare("oeq", w.abs(a), w.c(1.0))
    endless = w.compare("oeq", w.abs(b), w.c(math.inf))
    y = w.choose(w.put(f"and {w.test} {unit}, {endless}"), w.c(1.0), y)
    return w.choose(w.compare("oeq", a, w.c(1.0)), w.c(1.0), y)
