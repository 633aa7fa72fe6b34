"""exp and what is made of it."""

from __future__ import annotations

import math

import numpy as np
from tunefarm.compiler.codegen.math.rounding import round_to_integer
from tunefarm.compiler.codegen.math.writer import LN2_HIGH, LN2_LOW, Writer

_EXP32 = (
    0.0013941108433972674, 0.008375126398153335, 0.04166635289677516, 0.16666415514653277,
    0.5000000047117757, 1.0, 1.0,
)  # fmt: skip
_EXP2_32 = (
    0.0013269252376630902, 0.009671296924352646, 0.0555071160197258, 0.24022246897220612,
    0.6931470036506653, 1.0,
)  # fmt: skip
_EXP_NEAR = (0.16666739978132164, 0.500003665576346, 1.0)  # (exp(r) − 1) / r, |r| ≤ ln 2 / 64
_EXP2_NEAR = (0.24022768104942185, 0.6931539559837037)  # (2^r − 1) / r, |r| ≤ 1/64
_EXP2_FRACTION = (0.0780245447, 0.226067177, 0.695833504, 0.999925226)  # 2^f, 0 ≤ f < 1
_STEPS = 32  # of a table of powers of two
_STEP_BITS = 5
_EXP64 = (
    2.09215799649503e-09, 2.5114869528657765e-08, 2.7557251904174915e-07, 2.7557224958392624e-06,
    2.4801587350110797e-05, 0.000198412699092171, 0.001388888888887189, 0.008333333333309528,
    0.04166666666666669, 0.16666666666666702, 0.5, 1.0, 1.0,
)  # fmt: skip
_EXPM1_32 = (
    2.4882783223206865e-05, 0.00019922491624707885, 0.0013888820611130046, 0.008333265027310754,
    0.04166666681015813, 0.16666666810222097, 0.5,
)  # fmt: skip
_EXPM1_64 = (
    1.149688578599711e-11, 1.6100873883845007e-10, 2.0876702041185436e-09,
    2.505202045474959e-08, 2.75573192794145e-07, 2.755731931268968e-06, 2.4801587301560122e-05,
    0.00019841269841226346, 0.0013888888888888894, 0.008333333333333342, 0.041666666666666664,
    0.16666666666666666, 0.5,
)  # fmt: skip
_TANH32 = (
    -0.006096714165908197, 0.020997178999074752, -0.05385090957851358, 0.13332769736976327,
    -0.33333328944134255,
)  # fmt: skip
_TANH64 = (
    6.485163482793113e-06, -3.12011014257974e-05, 9.257116129556769e-05, -0.0002375906496055562,
    0.0005896606577757043, -0.0014557754120478055, 0.0035921217511549622, -0.008863235103240878,
    0.021869488519008305, -0.05396825396789699, 0.13333333333333042, -0.3333333333333333,
)  # fmt: skip


def exp(w: Writer, x: str, scale: int = 0) -> str:
    """2^scale · exp(x)."""
    return (_exp_by_table if w.looks_up("exp") else _exp_by_polynomial)(w, x, scale)


def _exp_by_polynomial(w: Writer, x: str, scale: int) -> str:
    """2^scale · exp(x) = 2ⁿ · exp(r), |r| ≤ ln 2 / 2; 2ⁿ in two factors, for denormals' sake.

    What rounds to 0 is not computed: underflow costs 150 cycles on Intel's processors, and scores
    under a mask are all of that kind.
    """
    kept = w.compare("uge", x, w.c(-((150 if w.single else 1075) + scale) * math.log(2)))
    x = w.clamp_high(x, 90.0 if w.single else 711.0)
    by_scalef = w.scalef and w.lanes == (16 if w.single else 8)
    if not by_scalef:
        x = w.choose(kept, x, w.c(0.0))
    power, n = round_to_integer(w, w.c(math.log2(math.e)), x)
    r = w.fma(power, w.c(-LN2_HIGH), x)
    r = w.fma(power, w.c(-LN2_LOW), r)
    p = w.polynomial(r, _EXP32 if w.single else _EXP64)
    if by_scalef:
        return w.scaled(p, w.add(power, w.c(float(scale))) if scale else power, kept)
    if scale:
        n = w.integer("add", n, w.i(scale))
    half = w.integer("ashr", n, w.i(1))
    product = w.mul(w.mul(p, _two_to(w, half)), _two_to(w, w.integer("sub", n, half)))
    return w.choose(kept, product, w.c(0.0))


def exp_shifted(w: Writer, x: str) -> str:
    """exp(x) = 2ⁿ · 2^r with x · log₂ e = n + r, |r| ≤ ½, for x ≤ 0 or NaN.

    One step of reduction: a product that is rounded moves the result by |x| ulp at most, as far
    as the rounding of the difference x has moved it already. What is below 2^-125 may become less,
    down to 0: numbers below 2^-126 cost Intel's processors 150 cycles wherever one is read (scores
    under a mask of -100 made an attention take 25 times as long).
    """
    if not w.single:
        return exp(w, x)
    if w.looks_up("exp"):
        return _exp_shifted_by_table(w, x)
    log2e = w.c(math.log2(math.e))
    if w.scalef and w.lanes == 16:
        t = w.mul(x, log2e)
        kept = w.compare("uge", t, w.c(-126.0))
        power = w.call("roundeven", t)
        return w.scaled(w.polynomial(w.sub(t, power), _EXP2_32), power, kept)
    x = w.clamp_low(x, -127 * math.log(2))
    power, scale = _nearest_power(w, x)
    r = w.fma(x, log2e, w.put(f"fneg {w.kind} {power}"))
    return w.fma(w.mul(scale, r), w.polynomial(r, _EXP2_32[:-1]), scale)


def exp_within(w: Writer, x: str) -> str:
    """exp(x) for |x| ≤ 87 or NaN; below something up to e^-87, above it grows to infinity."""
    if _scales_at_once(w):
        return exp(w, x)
    large = w.compare("ogt", x, w.c(88.3))
    return _normal_exp(w, w.choose(large, w.c(89.0), w.clamp_low(x, -87.0)))


def near_sigmoid(w: Writer, x: str) -> str:
    """1 / (1 + exp(-x)) to 12 bits: with AVX-512 e^-x = 2^⌊y⌋ · 2^f, y = -x log₂ e, and what the
    processor gives for the quotient (14 bits) without dividing."""
    if not (w.single and w.scalef and w.lanes == 16):
        negative = w.put(f"fneg {w.kind} {x}")
        return w.div(w.c(1.0), w.add(exp_within(w, negative), w.c(1.0)))
    y = w.mul(x, w.c(-math.log2(math.e)))
    power = w.scaled(w.polynomial(w.fraction(y), _EXP2_FRACTION), y)
    return w.near_inverse(w.add(power, w.c(1.0)))


def _scales_at_once(w: Writer) -> bool:
    """Whether ``exp`` needs no second factor for denormal results; float64 always asks it."""
    return not w.single or w.looks_up("exp") or (w.scalef and w.lanes == 16)


def _normal_exp(w: Writer, x: str) -> str:
    """exp(x) = 2ⁿ · exp(r) in float32 for -87 ≤ x ≤ 88.3, where 2ⁿ is a number; infinity for 89."""
    power, scale = _nearest_power(w, x)
    r = w.fma(power, w.c(-LN2_HIGH), x)
    r = w.fma(power, w.c(-LN2_LOW), r)
    return w.fma(w.mul(scale, r), w.polynomial(r, _EXP32[:-1]), scale)


def _nearest_power(w: Writer, x: str) -> tuple[str, str]:
    """x · log₂ e rounded to an integer n in float32, and 2ⁿ for -126 ≤ n ≤ 127.

    1.5 · 2^23 leaves n in the low bits; with 127 more they are the exponent of 2ⁿ: 0 for n = -127,
    infinity for 128.
    """
    magic = w.c(1.5 * 2.0**23 + 127)
    shifted = w.fma(x, w.c(math.log2(math.e)), magic)
    power = w.sub(shifted, magic)
    return power, w.from_bits(w.integer("shl", w.to_bits(shifted), w.i(23)))


def _exp_by_table(w: Writer, x: str, scale: int) -> str:
    """2^scale · exp(x) = 2^(scale + n) · 2^(j/32) · exp(r), |r| ≤ ln 2 / 64: seven multiply-adds
    instead of ten, on a processor that starts one a clock and has other units for the table.

    Source: Tang, "Table-Driven Implementation of the Exponential Function" (1989).
    """
    x = w.clamp_high(w.clamp_low(x, -110.0), 90.0)
    power, bits = _in_steps(w, x)
    r = w.fma(power, w.c(-LN2_HIGH), x)
    r = w.fma(power, w.c(-LN2_LOW), r)
    root = w.lookup("roots_of_two", [2.0 ** (j / _STEPS) for j in range(_STEPS)], bits)
    p = w.fma(w.mul(root, r), w.polynomial(r, _EXP_NEAR), root)
    return w.scaled(p, w.add(power, w.c(float(scale))) if scale else power)


def _exp_shifted_by_table(w: Writer, x: str) -> str:
    """exp(x) = 2^(n + j/32) · 2^r, |r| ≤ 1/64, for x ≤ 0 or NaN.

    The table's bits lack j at the place where those of 32 n + j are added, shifted to the exponent.
    Below 2^-126 the bits are those of less, of 0 from 2^-127 on: the bits of 1 less 127 exponents.
    """
    x = w.clamp_low(x, -127 * math.log(2))
    power, bits = _in_steps(w, x)
    r = w.fma(x, w.c(math.log2(math.e)), w.put(f"fneg {w.kind} {power}"))
    root = w.to_bits(w.lookup("roots_of_two_less_steps", _roots_less_steps(), bits))
    shifted = w.integer("shl", bits, w.i(23 - _STEP_BITS))
    scale = w.from_bits(w.integer("add", root, shifted))
    return w.fma(w.mul(scale, r), w.polynomial(r, _EXP2_NEAR), scale)


def _in_steps(w: Writer, x: str) -> tuple[str, str]:
    """x · log₂ e rounded to 32nds: as a float, and as bits whose low ones count the 32nds."""
    magic = w.c(1.5 * 2.0 ** (23 - _STEP_BITS))
    shifted = w.fma(x, w.c(math.log2(math.e)), magic)
    return w.sub(shifted, magic), w.to_bits(shifted)


def _roots_less_steps() -> list[float]:
    """Floats with the bits of 2^(j/32) less those of j in front of 18 others."""
    roots = np.exp2(np.arange(_STEPS) / _STEPS).astype(np.float32).view(np.int32)
    less: np.ndarray = roots - (np.arange(_STEPS, dtype=np.int32) << (23 - _STEP_BITS))
    return [float(v) for v in less.view(np.float32)]


def _two_to(w: Writer, n: str) -> str:
    bias, mantissa = (127, 23) if w.single else (1023, 52)
    return w.from_bits(w.integer("shl", w.integer("add", n, w.i(bias)), w.i(mantissa)))


def expm1(w: Writer, x: str) -> str:
    p = w.polynomial(x, _EXPM1_32 if w.single else _EXPM1_64)
    near = w.fma(w.mul(x, x), p, x)
    far = w.sub(_exp_by_polynomial(w, x, 0), w.c(1.0))
    return w.choose(w.compare("olt", w.abs(x), w.c(0.41)), near, far)


def tanh(w: Writer, x: str) -> str:
    z = w.abs(x)
    square = w.mul(x, x)
    p = w.polynomial(square, _TANH32 if w.single else _TANH64)
    near = w.fma(w.mul(x, square), p, x)
    twice = w.mul(w.clamp_high(z, 10.0 if w.single else 22.0), w.c(2.0))
    e = exp(w, twice) if _scales_at_once(w) else _normal_exp(w, twice)
    far = w.sub(w.c(1.0), w.div(w.c(2.0), w.add(e, w.c(1.0))))
    return w.choose(w.compare("olt", z, w.c(0.625)), near, w.copysign(far, x))


def _half_exponentials(w: Writer, x: str) -> tuple[str, str]:
    """(e^|x| / 2, e^-|x| / 2), without overflow before the result overflows."""
    z = w.abs(x)
    return exp(w, z, -1), exp(w, w.put(f"fneg {w.kind} {z}"), -1)


def sinh(w: Writer, x: str) -> str:
    e = expm1(w, w.abs(x))
    near = w.mul(w.c(0.5), w.add(e, w.div(e, w.add(e, w.c(1.0)))))
    up, down = _half_exponentials(w, x)
    far = w.sub(up, down)
    return w.copysign(w.choose(w.compare("olt", w.abs(x), w.c(1.0)), near, far), x)


def cosh(w: Writer, x: str) -> str:
    return w.add(*_half_exponentials(w, x))
