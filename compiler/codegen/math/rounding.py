"""Rounding to whole numbers, and what is left of a division."""

from __future__ import annotations

import math

from tunefarm.compiler.codegen.math.writer import Writer


def round_to_integer(w: Writer, factor: str, x: str) -> tuple[str, str]:
    """factor · x rounded to an integer: as a float, and as an integer.

    Adding 1.5 · 2^mantissa leaves the integer in the low bits, for NaN too.
    """
    magic = 12582912.0 if w.single else 6755399441055744.0
    bits = 0x4B400000 if w.single else 0x4338000000000000
    shifted = w.fma(x, factor, w.c(magic))
    return w.sub(shifted, w.c(magic)), w.integer("sub", w.to_bits(shifted), w.i(bits))


def nearest(w: Writer, x: str) -> str:
    """Ties to even: what is added and taken away leaves no bit behind the point."""
    if w.fused:
        return w.call("roundeven", x)
    large = w.c(2.0**23 if w.single else 2.0**52)
    z = w.abs(x)
    near = w.sub(w.add(z, large), large)
    return w.copysign(w.choose(w.compare("olt", z, large), near, z), x)


def floor(w: Writer, x: str) -> str:
    near = nearest(w, x)
    one_less = w.sub(near, w.c(1.0))
    return w.choose(w.compare("ogt", near, x), one_less, near)


def ceil(w: Writer, x: str) -> str:
    return w.put(f"fneg {w.kind} {floor(w, w.put(f'fneg {w.kind} {x}'))}")


def trunc(w: Writer, x: str) -> str:
    if w.fused:
        return w.call("trunc", x)
    return w.copysign(floor(w, w.abs(x)), x)


def fmod(w: Writer, a: str, b: str) -> str:
    """a − trunc(a / b) · b, with the sign of ``a``; exact while a / b has an exact whole part.

    A quotient that was rounded up to a whole number leaves a rest of the other sign.
    """
    quotient = trunc(w, w.div(a, b))
    rest = w.fma(w.put(f"fneg {w.kind} {quotient}"), b, a)
    over = w.compare("olt", w.mul(rest, w.copysign(w.c(1.0), a)), w.c(0.0))
    rest = w.choose(over, w.add(rest, w.copysign(b, a)), rest)
    endless = w.compare("oeq", w.abs(b), w.c(math.inf))
    finite = w.compare("one", w.abs(a), w.c(math.inf))
    rest = w.choose(w.put(f"and {w.test} {endless}, {finite}"), a, rest)
    return w.copysign(rest, a)
