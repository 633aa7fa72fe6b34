"""erf."""

from __future__ import annotations

from tunefarm.compiler.codegen.math.exponential import exp
from tunefarm.compiler.codegen.math.writer import Writer

_ERF32 = (
    -0.0006514946, 0.00171113759, -0.00136429141, 0.0019058719, -0.00669180835, 0.0127862487,
    -0.0188464746, 0.0284436923, -0.0419885404, 0.0572618805, -0.0734993815, 0.0907424167,
    -0.109965183, 0.135451153, -0.18215014, 0.364919424,
)  # fmt: skip
_ERF_ONE = 3.875  # where the polynomial is 1 to the last bit
_ERF64 = (
    -4.230945824295338e-12, 8.709045129053106e-11, -1.216456005728345e-09, 1.4792401209404813e-08,
    -1.6364642158167616e-07, 1.6462045441468418e-06, -1.4925647567519332e-05,
    0.00012055332902888736, -0.000854832702193483, 0.0052239776254232985, -0.02686617064512984,
    0.1128379167095512, -0.37612638903183754, 0.1283791670955126,
)  # fmt: skip
_ERFCX64 = (
    239.24359154423945, 1038.2508949218973, -438.5102656069081, -160.90014003060216,
    167.52525562562906, -3.947538803819015, -48.51447287032798, 11.794848984541204,
    14.875368063771987, -5.745848078964921, -6.587575754431922, 1.6743948250994356,
    4.944626961930125, 3.553742170384474, 1.5541782531938397, 0.22142954022993183,
)  # fmt: skip


def erf(w: Writer, x: str) -> str:
    """float32: x · P(x²), ±1 from ±3.875 on, by one polynomial without a branch or a division.

    float64: x + x · P(x²) for |x| < 1, else 1 − erfc(|x|) with the sign of ``x``.
    """
    if w.single:
        z = w.clamp_low(w.clamp_high(x, _ERF_ONE), -_ERF_ONE)
        t = w.fma(w.mul(z, z), w.c(2 / _ERF_ONE**2), w.c(-1.0))
        return w.mul(z, w.short_polynomial(t, _ERF32))
    near = w.fma(x, w.polynomial(w.mul(x, x), _ERF64), x)
    far = w.copysign(w.sub(w.c(1.0), _erfc(w, w.clamp_high(w.abs(x), 6.0))), x)
    return w.choose(w.compare("olt", w.abs(x), w.c(1.0)), near, far)


def _erfc(w: Writer, z: str) -> str:
    """exp(−z²) · R(1 / (z + 2)) in float64, for 1 ≤ z ≤ 6."""
    t = w.sub(w.div(w.c(1.0), w.add(z, w.c(2.0))), w.c(11 / 48))
    square = w.mul(w.put(f"fneg {w.kind} {z}"), z)
    return w.mul(exp(w, square), w.polynomial(t, _ERFCX64))
