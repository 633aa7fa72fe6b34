"""Elementary functions as straight-line vector code: no library, no branch, no optimiser.

Largest errors in ulp of the result, measured on two million arguments (bit patterns drawn at
random, and the regions where the method changes); the tests hold them on fewer:

    float32   log: 0.8; exp: 1.1; tanh: 1.4; log1p: 1.5; expm1: 1.7; erf: 5;
              exp_shifted: 3 + 1.5 |x|; others: 0.5 (made in float64)
    float64   exp, log, erf: 1; tanh: 1.4; asin, acos, atan, sinh, acosh: 3; tan: 4; others: 2;
              pow: |b · log a| + 2

for the whole range of arguments but sin, cos and tan: those are meaningless beyond |x| = 1e8.

Coefficients are Chebyshev fits made at 40 digits; the reductions are those of Cody & Waite,
"Software Manual for the Elementary Functions" (1980).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tunefarm.compiler.codegen.types import constant, suffix, vector_of
from tunefarm.compiler.errors import BuildError

Fresh = Callable[[], str]


def emit_math(
    name: str,
    lanes: int,
    dtype: str,
    args: Sequence[str],
    fresh: Fresh,
    scalef: bool = False,
    fused: bool = True,
) -> tuple[list[str], str, set[str]]:
    """Instructions that compute a function, the result's name, and the declarations they need.

    ``args`` are SSA names or literals of ``lanes`` lanes of float32 or float64. ``scalef`` allows
    AVX-512's multiplication by a power of two, ``fused`` the fused multiply-add and SSE4.1's
    rounding; without it errors grow by 0.6 ulp at most, and sin, cos and tan end at |x| = 1e6.
    """
    if name not in _FUNCTIONS or dtype not in ("float32", "float64"):
        raise BuildError(f"function {name} of {dtype} has no code")
    w = _Writer(lanes, dtype, fresh, scalef, fused)
    if dtype == "float32" and name not in _OWN_FLOAT32:
        wide = _Writer(lanes, "float64", fresh, scalef, fused, w.lines, w.declares)
        result = _FUNCTIONS[name](wide, *(w.convert(a, "float64") for a in args))
        return w.lines, wide.convert(result, "float32"), w.declares
    return w.lines, _FUNCTIONS[name](w, *args), w.declares


@dataclass
class _Writer:
    """Appends instructions of one dtype and lane count; values are strings."""

    lanes: int
    dtype: str
    fresh: Fresh
    scalef: bool = False
    fused: bool = True
    lines: list[str] = field(default_factory=list)
    declares: set[str] = field(default_factory=set)

    @property
    def single(self) -> bool:
        return self.dtype == "float32"

    @property
    def scalar(self) -> str:
        return "float" if self.single else "double"

    @property
    def kind(self) -> str:
        return vector_of(self.scalar, self.lanes)

    @property
    def bits(self) -> str:
        return vector_of("i32" if self.single else "i64", self.lanes)

    @property
    def test(self) -> str:
        return vector_of("i1", self.lanes)

    def put(self, text: str) -> str:
        name = self.fresh()
        self.lines.append(f"{name} = {text}")
        return name

    def c(self, value: float) -> str:
        """A constant in every lane."""
        literal = constant(value, self.dtype)
        return literal if self.lanes == 1 else f"splat ({self.scalar} {literal})"

    def i(self, value: int) -> str:
        integer = "i32" if self.single else "i64"
        return str(value) if self.lanes == 1 else f"splat ({integer} {value})"

    def add(self, a: str, b: str) -> str:
        return self.put(f"fadd {self.kind} {a}, {b}")

    def sub(self, a: str, b: str) -> str:
        return self.put(f"fsub {self.kind} {a}, {b}")

    def mul(self, a: str, b: str) -> str:
        return self.put(f"fmul {self.kind} {a}, {b}")

    def div(self, a: str, b: str) -> str:
        return self.put(f"fdiv {self.kind} {a}, {b}")

    def fma(self, a: str, b: str, c: str) -> str:
        return self.call("fma", a, b, c) if self.fused else self.add(self.mul(a, b), c)

    def abs(self, a: str) -> str:
        return self.call("fabs", a)

    def sqrt(self, a: str) -> str:
        return self.call("sqrt", a)

    def copysign(self, a: str, sign: str) -> str:
        return self.call("copysign", a, sign)

    def call(self, name: str, *args: str) -> str:
        full = f"llvm.{name}.{suffix(self.dtype, self.lanes)}"
        self.declares.add(f"declare {self.kind} @{full}({', '.join([self.kind] * len(args))})")
        return self.put(f"call {self.kind} @{full}({', '.join(f'{self.kind} {a}' for a in args)})")

    def compare(self, op: str, a: str, b: str) -> str:
        return self.put(f"fcmp {op} {self.kind} {a}, {b}")

    def choose(self, test: str, a: str, b: str) -> str:
        return self.put(f"select {self.test} {test}, {self.kind} {a}, {self.kind} {b}")

    def integer(self, op: str, a: str, b: str) -> str:
        return self.put(f"{op} {self.bits} {a}, {b}")

    def to_bits(self, a: str) -> str:
        return self.put(f"bitcast {self.kind} {a} to {self.bits}")

    def from_bits(self, a: str) -> str:
        return self.put(f"bitcast {self.bits} {a} to {self.kind}")

    def from_integer(self, a: str) -> str:
        return self.put(f"sitofp {self.bits} {a} to {self.kind}")

    def convert(self, a: str, dtype: str) -> str:
        to = vector_of("double" if dtype == "float64" else "float", self.lanes)
        return self.put(f"{'fpext' if dtype == 'float64' else 'fptrunc'} {self.kind} {a} to {to}")

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """Horner's rule, the leading coefficient first."""
        value = self.c(coefficients[0])
        for coefficient in coefficients[1:]:
            value = self.fma(value, x, self.c(coefficient))
        return value

    def short_polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """Four of Horner's chains side by side, for long polynomials (Estrin's scheme).

        One chain of 16 multiply-adds waits longer than a core looks ahead.
        """
        square = self.mul(x, x)
        fourth = self.mul(square, square)
        p3, p2, p1, p0 = (self.polynomial(fourth, coefficients[n::4]) for n in range(4))
        return self.fma(self.fma(p3, x, p2), square, self.fma(p1, x, p0))

    def scaled(self, a: str, power: str, kept: str) -> str:
        """a · 2^power of a whole 512-bit vector, rounded once; 0 where ``kept`` is false."""
        name = f"llvm.x86.avx512.mask.scalef.{'ps' if self.single else 'pd'}.512"
        kind, mask = self.kind, "i16" if self.single else "i8"
        self.declares.add(f"declare {kind} @{name}({kind}, {kind}, {kind}, {mask}, i32)")
        lanes = self.put(f"bitcast {self.test} {kept} to {mask}")
        operands = f"{kind} {a}, {kind} {power}, {kind} zeroinitializer, {mask} {lanes}, i32 4"
        return self.put(f"call {kind} @{name}({operands})")

    def clamp_high(self, a: str, high: float) -> str:
        """NaN stays NaN."""
        return self.choose(self.compare("ogt", a, self.c(high)), self.c(high), a)

    def clamp_low(self, a: str, low: float) -> str:
        return self.choose(self.compare("olt", a, self.c(low)), self.c(low), a)


_EXP32 = (
    0.0013941108433972674, 0.008375126398153335, 0.04166635289677516, 0.16666415514653277,
    0.5000000047117757, 1.0, 1.0,
)  # fmt: skip
_EXP2_32 = (
    0.0013269252376630902, 0.009671296924352646, 0.0555071160197258, 0.24022246897220612,
    0.6931470036506653, 1.0,
)  # fmt: skip
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
_TANH32 = (
    -0.006096714165908197, 0.020997178999074752, -0.05385090957851358, 0.13332769736976327,
    -0.33333328944134255,
)  # fmt: skip
_TANH64 = (
    6.485163482793113e-06, -3.12011014257974e-05, 9.257116129556769e-05, -0.0002375906496055562,
    0.0005896606577757043, -0.0014557754120478055, 0.0035921217511549622, -0.008863235103240878,
    0.021869488519008305, -0.05396825396789699, 0.13333333333333042, -0.3333333333333333,
)  # fmt: skip
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
_SIN64 = (
    -7.586697117706918e-13, 1.6058531618986147e-10, -2.5052106232447578e-08,
    2.7557319219339167e-06, -0.00019841269841265065, 0.008333333333333331, -0.16666666666666666,
)  # fmt: skip
_COS64 = (
    4.7458719020432915e-14, -1.1470460887609959e-11, 2.087675579108042e-09, -2.7557319221402824e-07,
    2.4801587301584645e-05, -0.0013888888888888887, 0.041666666666666664,
)  # fmt: skip
_ATAN64 = (
    -0.01391822929102443, 0.030635704112969498, -0.04104436265755082, 0.04719395030027433,
    -0.05258041554297779, 0.058819252531928636, -0.06666642020055166, 0.07692306736000173,
    -0.0909090906700999, 0.11111111110754729, -0.14285714285711518, 0.19999999999999993,
    -0.3333333333333333,
)  # fmt: skip
_LN2_HIGH = 0.693145751953125
_LN2_LOW = 1.4286068203094172321e-06
_TINY = {"float32": 2.0**-126, "float64": 2.0**-1022}


def _exp(w: _Writer, x: str, scale: int = 0) -> str:
    """2^scale · exp(x) = 2ⁿ · exp(r), |r| ≤ ln 2 / 2; 2ⁿ in two factors, for denormals' sake.

    What rounds to 0 is not computed: underflow costs 150 cycles on Intel's processors, and scores
    under a mask are all of that kind.
    """
    kept = w.compare("uge", x, w.c(-((150 if w.single else 1075) + scale) * math.log(2)))
    x = w.clamp_high(x, 90.0 if w.single else 711.0)
    by_scalef = w.scalef and w.lanes == (16 if w.single else 8)
    if not by_scalef:
        x = w.choose(kept, x, w.c(0.0))
    power, n = _round_to_integer(w, w.c(math.log2(math.e)), x)
    r = w.fma(power, w.c(-_LN2_HIGH), x)
    r = w.fma(power, w.c(-_LN2_LOW), r)
    p = w.polynomial(r, _EXP32 if w.single else _EXP64)
    if by_scalef:
        return w.scaled(p, w.add(power, w.c(float(scale))) if scale else power, kept)
    if scale:
        n = w.integer("add", n, w.i(scale))
    half = w.integer("ashr", n, w.i(1))
    product = w.mul(w.mul(p, _two_to(w, half)), _two_to(w, w.integer("sub", n, half)))
    return w.choose(kept, product, w.c(0.0))


def _exp_shifted(w: _Writer, x: str) -> str:
    """exp(x) = 2ⁿ · 2^r with x · log₂ e = n + r, |r| ≤ ½, for x ≤ 0 or NaN.

    One step of reduction: a product that is rounded moves the result by |x| ulp at most, as far
    as the rounding of the difference x has moved it already. May be 0 where exp(x) is denormal.
    """
    if not w.single:
        return _exp(w, x)
    log2e = w.c(math.log2(math.e))
    if w.scalef and w.lanes == 16:
        t = w.mul(x, log2e)
        kept = w.compare("uge", t, w.c(-150.0))
        power = w.call("roundeven", t)
        return w.scaled(w.polynomial(w.sub(t, power), _EXP2_32), power, kept)
    kept = w.compare("uge", x, w.c(-125.0 * math.log(2)))
    x = w.choose(kept, x, w.c(0.0))
    power, n = _round_to_integer(w, log2e, x)
    r = w.fma(x, log2e, w.put(f"fneg {w.kind} {power}"))
    product = w.mul(w.polynomial(r, _EXP2_32), _two_to(w, n))
    return w.choose(kept, product, w.c(0.0))


def _round_to_integer(w: _Writer, factor: str, x: str) -> tuple[str, str]:
    """factor · x rounded to an integer: as a float, and as an integer.

    Adding 1.5 · 2^mantissa leaves the integer in the low bits, for NaN too.
    """
    magic = 12582912.0 if w.single else 6755399441055744.0
    bits = 0x4B400000 if w.single else 0x4338000000000000
    shifted = w.fma(x, factor, w.c(magic))
    return w.sub(shifted, w.c(magic)), w.integer("sub", w.to_bits(shifted), w.i(bits))


def _two_to(w: _Writer, n: str) -> str:
    bias, mantissa = (127, 23) if w.single else (1023, 52)
    return w.from_bits(w.integer("shl", w.integer("add", n, w.i(bias)), w.i(mantissa)))


def _log_parts(w: _Writer, x: str) -> tuple[str, str]:
    """x = m · 2ᵉ with m in [√½, √2): (m − 1, e as a float). Denormals are scaled first."""
    mantissa = 23 if w.single else 52
    tiny = w.compare("olt", x, w.c(_TINY[w.dtype]))
    scaled = w.choose(tiny, w.mul(x, w.c(2.0**mantissa)), x)
    bits = w.to_bits(scaled)
    root = 0x3F3504F3 if w.single else 0x3FE6A09E667F3BCD
    e = w.integer("ashr", w.integer("sub", bits, w.i(root)), w.i(mantissa))
    m = w.from_bits(w.integer("sub", bits, w.integer("shl", e, w.i(mantissa))))
    exponent = w.from_integer(e)
    exponent = w.choose(tiny, w.sub(exponent, w.c(float(mantissa))), exponent)
    return w.sub(m, w.c(1.0)), exponent


def _log_special(w: _Writer, x: str, y: str) -> str:
    infinity = w.c(math.inf)
    y = w.choose(w.compare("oeq", x, infinity), infinity, y)
    y = w.choose(w.compare("oeq", x, w.c(0.0)), w.c(-math.inf), y)
    return w.choose(w.compare("ult", x, w.c(0.0)), w.c(math.nan), y)


def _log_of_parts(w: _Writer, f: str, e: str) -> str:
    if w.single:
        square = w.mul(f, f)
        p = w.mul(w.mul(w.polynomial(f, _LOG32), square), f)
        p = w.fma(e, w.c(_LN2_LOW), p)
        p = w.fma(square, w.c(-0.5), p)
        return w.fma(e, w.c(_LN2_HIGH), w.add(f, p))
    s = w.div(f, w.add(f, w.c(2.0)))
    z = w.mul(s, s)
    half = w.mul(w.mul(f, f), w.c(0.5))
    # log(1 + f) = f − (f²/2 − s·(f²/2 + 2·z·P(z)))
    p = w.mul(w.mul(w.c(2.0), z), w.polynomial(z, _LOG64))
    inner = w.fma(s, w.add(half, p), w.mul(e, w.c(_LN2_LOW)))
    return w.fma(e, w.c(_LN2_HIGH), w.sub(f, w.sub(half, inner)))


def _log(w: _Writer, x: str) -> str:
    return _log_special(w, x, _log_of_parts(w, *_log_parts(w, x)))


def _log2(w: _Writer, x: str) -> str:
    f, e = _log_parts(w, x)
    mantissa = _log_of_parts(w, f, w.c(0.0))
    y = w.fma(mantissa, w.c(1 / math.log(2)), e)
    return _log_special(w, x, y)


def _log1p(w: _Writer, x: str) -> str:
    """log(u) + (x − (u − 1)) / u with u = 1 + x: the second term is what rounding u lost."""
    u = w.add(x, w.c(1.0))
    lost = w.sub(x, w.sub(u, w.c(1.0)))
    y = w.add(_log_of_parts(w, *_log_parts(w, u)), w.div(lost, u))
    y = _log_special(w, u, y)
    return w.choose(w.compare("oeq", u, w.c(1.0)), x, y)


def _expm1(w: _Writer, x: str) -> str:
    p = w.polynomial(x, _EXPM1_32 if w.single else _EXPM1_64)
    near = w.fma(w.mul(x, x), p, x)
    far = w.sub(_exp(w, x), w.c(1.0))
    return w.choose(w.compare("olt", w.abs(x), w.c(0.41)), near, far)


def _tanh(w: _Writer, x: str) -> str:
    z = w.abs(x)
    square = w.mul(x, x)
    p = w.polynomial(square, _TANH32 if w.single else _TANH64)
    near = w.fma(w.mul(x, square), p, x)
    e = _exp(w, w.mul(w.clamp_high(z, 10.0 if w.single else 22.0), w.c(2.0)))
    far = w.sub(w.c(1.0), w.div(w.c(2.0), w.add(e, w.c(1.0))))
    return w.choose(w.compare("olt", z, w.c(0.625)), near, w.copysign(far, x))


def _erf(w: _Writer, x: str) -> str:
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


def _erfc(w: _Writer, z: str) -> str:
    """exp(−z²) · R(1 / (z + 2)) in float64, for 1 ≤ z ≤ 6."""
    t = w.sub(w.div(w.c(1.0), w.add(z, w.c(2.0))), w.c(11 / 48))
    square = w.mul(w.put(f"fneg {w.kind} {z}"), z)
    return w.mul(_exp(w, square), w.polynomial(t, _ERFCX64))


def _sin_cos(w: _Writer, x: str) -> tuple[str, str, str]:
    """(sin r, cos r, quadrant) with x = r + quadrant · π/2, |r| ≤ π/4, in three steps."""
    quarter, n = _round_to_integer(w, w.c(2 / math.pi), x)
    r = w.fma(quarter, w.c(-1.5707963267341256), x)
    r = w.fma(quarter, w.c(-6.077100506303966e-11), r)
    r = w.fma(quarter, w.c(-2.0222662487959506e-21), r)
    z = w.mul(r, r)
    sine = w.fma(w.mul(w.polynomial(z, _SIN64), z), r, r)
    cosine = w.fma(w.mul(z, z), w.polynomial(z, _COS64), w.fma(z, w.c(-0.5), w.c(1.0)))
    return sine, cosine, n


def _bit(w: _Writer, n: str, bit: int) -> str:
    masked = w.integer("and", n, w.i(bit))
    return w.put(f"icmp ne {w.bits} {masked}, {w.i(0)}")


def _quadrant(w: _Writer, x: str, shift: int) -> str:
    sine, cosine, n = _sin_cos(w, x)
    n = w.integer("add", n, w.i(shift))
    value = w.choose(_bit(w, n, 1), cosine, sine)
    return w.choose(_bit(w, n, 2), w.put(f"fneg {w.kind} {value}"), value)


def _sin(w: _Writer, x: str) -> str:
    return _quadrant(w, x, 0)


def _cos(w: _Writer, x: str) -> str:
    return _quadrant(w, x, 1)


def _tan(w: _Writer, x: str) -> str:
    sine, cosine, n = _sin_cos(w, x)
    odd = _bit(w, n, 1)
    negative = w.put(f"fneg {w.kind} {cosine}")
    return w.div(w.choose(odd, negative, sine), w.choose(odd, sine, cosine))


def _atan(w: _Writer, x: str) -> str:
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


def _asin(w: _Writer, x: str) -> str:
    one = w.c(1.0)
    return _atan(w, w.div(x, w.sqrt(w.mul(w.sub(one, x), w.add(one, x)))))


def _acos(w: _Writer, x: str) -> str:
    one = w.c(1.0)
    ratio = w.div(w.sub(one, x), w.add(one, x))
    return w.mul(w.c(2.0), _atan(w, w.sqrt(ratio)))


def _half_exponentials(w: _Writer, x: str) -> tuple[str, str]:
    """(e^|x| / 2, e^-|x| / 2), without overflow before the result overflows."""
    z = w.abs(x)
    return _exp(w, z, -1), _exp(w, w.put(f"fneg {w.kind} {z}"), -1)


def _sinh(w: _Writer, x: str) -> str:
    e = _expm1(w, w.abs(x))
    near = w.mul(w.c(0.5), w.add(e, w.div(e, w.add(e, w.c(1.0)))))
    up, down = _half_exponentials(w, x)
    far = w.sub(up, down)
    return w.copysign(w.choose(w.compare("olt", w.abs(x), w.c(1.0)), near, far), x)


def _cosh(w: _Writer, x: str) -> str:
    return w.add(*_half_exponentials(w, x))


def _asinh(w: _Writer, x: str) -> str:
    z = w.abs(x)
    square = w.mul(z, z)
    root = w.sqrt(w.add(square, w.c(1.0)))
    near = _log1p(w, w.add(z, w.div(square, w.add(w.c(1.0), root))))
    far = w.add(_log(w, z), w.c(math.log(2)))
    return w.copysign(w.choose(w.compare("olt", z, w.c(1e18)), near, far), x)


def _acosh(w: _Writer, x: str) -> str:
    t = w.sub(x, w.c(1.0))
    near = _log1p(w, w.add(t, w.sqrt(w.mul(t, w.add(t, w.c(2.0))))))
    far = w.add(_log(w, x), w.c(math.log(2)))
    y = w.choose(w.compare("ogt", x, w.c(1e18)), far, near)
    return w.choose(w.compare("olt", x, w.c(1.0)), w.c(math.nan), y)


def _atanh(w: _Writer, x: str) -> str:
    z = w.abs(x)
    y = _log1p(w, w.div(w.mul(w.c(2.0), z), w.sub(w.c(1.0), z)))
    return w.copysign(w.mul(w.c(0.5), y), x)


def _round(w: _Writer, x: str) -> str:
    """Ties to even: what is added and taken away leaves no bit behind the point."""
    if w.fused:
        return w.call("roundeven", x)
    large = w.c(2.0**23 if w.single else 2.0**52)
    z = w.abs(x)
    near = w.sub(w.add(z, large), large)
    return w.copysign(w.choose(w.compare("olt", z, large), near, z), x)


def _floor(w: _Writer, x: str) -> str:
    near = _round(w, x)
    one_less = w.sub(near, w.c(1.0))
    return w.choose(w.compare("ogt", near, x), one_less, near)


def _ceil(w: _Writer, x: str) -> str:
    return w.put(f"fneg {w.kind} {_floor(w, w.put(f'fneg {w.kind} {x}'))}")


def _trunc(w: _Writer, x: str) -> str:
    if w.fused:
        return w.call("trunc", x)
    return w.copysign(_floor(w, w.abs(x)), x)


def _pow(w: _Writer, a: str, b: str) -> str:
    """exp(b · log |a|), with IEEE 754's special cases."""
    y = _exp(w, w.mul(b, _log(w, w.abs(a))))
    whole = w.compare("oeq", _trunc(w, b), b)
    half = w.mul(b, w.c(0.5))
    even = w.compare("oeq", _trunc(w, half), half)
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


def _fmod(w: _Writer, a: str, b: str) -> str:
    """a − trunc(a / b) · b, with the sign of ``a``; exact while a / b has an exact whole part.

    A quotient that was rounded up to a whole number leaves a rest of the other sign.
    """
    quotient = _trunc(w, w.div(a, b))
    rest = w.fma(w.put(f"fneg {w.kind} {quotient}"), b, a)
    over = w.compare("olt", w.mul(rest, w.copysign(w.c(1.0), a)), w.c(0.0))
    rest = w.choose(over, w.add(rest, w.copysign(b, a)), rest)
    endless = w.compare("oeq", w.abs(b), w.c(math.inf))
    finite = w.compare("one", w.abs(a), w.c(math.inf))
    rest = w.choose(w.put(f"and {w.test} {endless}, {finite}"), a, rest)
    return w.copysign(rest, a)


_FUNCTIONS: dict[str, Callable[..., str]] = {
    "exp": _exp, "exp_shifted": _exp_shifted,
    "log": _log, "log2": _log2, "log1p": _log1p, "expm1": _expm1, "tanh": _tanh,
    "erf": _erf, "sin": _sin, "cos": _cos, "tan": _tan, "asin": _asin, "acos": _acos,
    "atan": _atan, "sinh": _sinh, "cosh": _cosh, "asinh": _asinh, "acosh": _acosh,
    "atanh": _atanh, "pow": _pow, "fmod": _fmod, "round": _round, "floor": _floor, "ceil": _ceil,
    "trunc": _trunc,
}  # fmt: skip
_OWN_FLOAT32 = frozenset({
    "exp", "exp_shifted", "log", "log1p", "expm1", "tanh", "erf", "round", "floor", "ceil", "trunc",
})  # fmt: skip
