"""Instructions of the emulator against Python's whole numbers, fractions and floats."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from ptx_text import kernel_text, run_text

Array = NDArray[Any]
_PREFIX = {16: "rs", 32: "r", 64: "rd"}
_FIRST = {16: "rs", 32: "r1", 64: "rd1"}  # registers of operands: %rs0, %r10, %rd10 …
_DTYPES: dict[str, Any] = {
    "u16": np.uint16, "s16": np.int16, "u32": np.uint32, "s32": np.int32, "u64": np.uint64,
    "s64": np.int64, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32,
    "f64": np.float64, "f16x2": np.uint32, "s16x2": np.uint32,
}  # fmt: skip
_RANDOM = np.random.default_rng(11)


def apply(instruction: str, result: str, *operands: Array) -> Array:
    """An instruction of registers ``d, a, b…`` for one element of the operands in each thread."""
    count = len(operands[0])
    body, names = [], []
    for number, array in enumerate(operands):
        bits = 8 * array.dtype.itemsize
        name = f"%{_FIRST[bits]}{number}"
        body.append(f"mul.wide.u32 %rd9, %r1, {bits // 8};\nadd.s64 %rd9, %rd{number + 1}, %rd9;")
        body.append(f"ld.global.b{bits} {name}, [%rd9];")
        names.append(name)
    dtype = np.dtype(_DTYPES.get(result, np.uint32))
    bits = 8 * dtype.itemsize
    target = f"%{_PREFIX[bits]}8"
    words = ", ".join([target, *names])
    if result == "pred":
        words = ", ".join(["%p1", *names])
    body.append(instruction.replace("OPERANDS", words))
    if result == "pred":
        body.append(f"selp.b32 {target}, 1, 0, %p1;")
    last = len(operands) + 1
    body.append(f"mul.wide.u32 %rd9, %r1, {bits // 8};\nadd.s64 %rd9, %rd{last}, %rd9;")
    body.append(f"st.global.b{bits} [%rd9], {target};")
    text = kernel_text("\n".join(body), parameters=last)
    return run_text(text, operands, np.zeros(count, dtype), block=count)


def integers(kind: str, count: int = 60) -> Array:
    """Numbers of every size, and those at the ends."""
    dtype = np.dtype(_DTYPES[kind])
    limits = np.iinfo(dtype)
    ends = [limits.min, limits.max, 0, 1, limits.max - 1, limits.min + 1]
    drawn = [int(_RANDOM.integers(0, 2**63)) >> int(_RANDOM.integers(0, 62)) for _ in range(count)]
    signs = _RANDOM.integers(0, 2, count) if limits.min else np.zeros(count, int)
    values = [(-d if s else d) for d, s in zip(drawn, signs, strict=True)]
    return np.array(ends + [min(max(v, limits.min), limits.max) for v in values], dtype)


def wrapped(value: int, kind: str) -> int:
    """The number's lowest bits, as a number of that type."""
    bits = int(kind[1:])
    value &= (1 << bits) - 1
    return value - (1 << bits) if kind[0] == "s" and value >> (bits - 1) else value


def _truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


WHOLE: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "min": min,
    "max": max,
    "div": _truncated,
    "rem": lambda a, b: a - b * _truncated(a, b),
}


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("name", WHOLE)
def test_arithmetic_of_whole_numbers(name: str, kind: str) -> None:
    a, b = integers(kind), integers(kind)
    b = np.where((b == 0) & (name in ("div", "rem")), b.dtype.type(1), b)
    got = apply(f"{name}.{kind} OPERANDS;", kind, a, b)
    pairs = zip(a.tolist(), b.tolist(), strict=True)
    assert got.tolist() == [wrapped(WHOLE[name](x, y), kind) for x, y in pairs]


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_upper_halves_and_wide_products(kind: str) -> None:
    a, b = integers(kind), integers(kind)
    bits = int(kind[1:])
    products = [x * y for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    got = apply(f"mul.hi.{kind} OPERANDS;", kind, a, b)
    assert got.tolist() == [wrapped(p >> bits, kind) for p in products]
    c = integers(kind)
    got = apply(f"mad.lo.{kind} OPERANDS;", kind, a, b, c)
    assert got.tolist() == [wrapped(p + z, kind) for p, z in zip(products, c.tolist(), strict=True)]
    if bits < 64:
        wide = f"{kind[0]}{2 * bits}"
        got = apply(f"mul.wide.{kind} OPERANDS;", wide, a, b)
        assert got.tolist() == products
        c = integers(wide)
        got = apply(f"mad.wide.{kind} OPERANDS;", wide, a, b, c)
        sums = [wrapped(p + z, wide) for p, z in zip(products, c.tolist(), strict=True)]
        assert got.tolist() == sums


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_shifts_by_more_than_there_are_bits(kind: str) -> None:
    values, by = integers(kind), _RANDOM.integers(0, 80, 66).astype(np.uint32)
    bits = int(kind[1:])
    pairs = list(zip(values.tolist(), by.tolist(), strict=True))
    got = apply(f"shr.{kind} OPERANDS;", kind, values, by)
    assert got.tolist() == [x >> s for x, s in pairs]
    got = apply(f"shl.b{bits} OPERANDS;", kind, values, by)
    assert got.tolist() == [wrapped(x << s, kind) for x, s in pairs]


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bits_out_of_the_middle(kind: str) -> None:
    values = integers(kind)
    begin = _RANDOM.integers(0, 70, 66).astype(np.uint32)
    length = _RANDOM.integers(0, 70, 66).astype(np.uint32)
    got = apply(f"bfe.{kind} OPERANDS;", kind, values, begin, length)
    bits = int(kind[1:])

    def taken(value: int, first: int, count: int) -> int:
        """The manual's loop: above the last bit, the sign or zeros."""
        count_there = min(first + count - 1, bits - 1)
        sign = value >> count_there & 1 if kind[0] == "s" and count else 0
        result = 0
        for n in range(bits):
            bit = value >> (first + n) & 1 if n < count and first + n < bits else sign
            result |= bit << n
        return wrapped(result, kind)

    triples = zip(values.tolist(), begin.tolist(), length.tolist(), strict=True)
    assert got.tolist() == [taken(*each) for each in triples]


def test_bits_of_several_words() -> None:
    a, b, c = (integers("u32") for _ in range(3))
    words = list(zip(a.tolist(), b.tolist(), c.tolist(), strict=True))
    for table in (0x96, 0xE8, 0xCA, 0x01):
        got = apply(f"lop3.b32 OPERANDS, {table};", "u32", a, b, c)
        wanted = []
        for triple in words:
            places = [sum((w >> n & 1) << (2 - k) for k, w in enumerate(triple)) for n in range(32)]
            wanted.append(sum((table >> p & 1) << n for n, p in enumerate(places)))
        assert got.tolist() == wanted
    got = apply("prmt.b32 OPERANDS;", "u32", a, b, c)
    wanted = []
    for x, y, selector in words:
        each = (x | y << 32).to_bytes(8, "little")
        chosen = [(each[s & 7], s & 8) for s in (selector >> 4 * n & 15 for n in range(4))]
        signed = [(0xFF if byte & 0x80 else 0) if sign else byte for byte, sign in chosen]
        wanted.append(int.from_bytes(bytes(signed), "little"))
    assert got.tolist() == wanted
    for way in "lr":
        got = apply(f"shf.{way}.wrap.b32 OPERANDS;", "u32", a, b, c)
        turned = [(x | y << 32, s & 31) for x, y, s in words]
        down = [both << s >> 32 if way == "l" else both >> s for both, s in turned]
        assert got.tolist() == [wrapped(d, "u32") for d in down]


def test_ones_and_zeros_are_counted() -> None:
    for kind in ("u32", "u64"):
        values, bits = integers(kind), int(kind[1:])
        got = apply(f"popc.b{bits} OPERANDS;", "u32", values)
        assert got.tolist() == [v.bit_count() for v in values.tolist()]
        got = apply(f"clz.b{bits} OPERANDS;", "u32", values)
        assert got.tolist() == [bits - v.bit_length() for v in values.tolist()]


# --- floats -------------------------------------------------------------------------------------

SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 1e-40, 65504.0, 6e-8, 2.5, -3.5]


def floats(kind: str, count: int = 48) -> Array:
    drawn = _RANDOM.standard_normal(count) * 10.0 ** _RANDOM.integers(-4, 4, count)
    return np.array(SPECIAL + drawn.tolist()).astype(_DTYPES[kind])


def same(got: Array, wanted: Array) -> None:
    np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(np.float64))
    numbers = ~np.isnan(wanted.astype(np.float64))
    np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(wanted)[numbers])


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "min", "max"])
def test_arithmetic_of_floats(name: str, kind: str) -> None:
    a, b = floats(kind), _RANDOM.permutation(floats(kind))
    rounding = "" if name in ("min", "max") else ".rn"
    got = apply(f"{name}{rounding}.{kind} OPERANDS;", kind, a, b)
    function = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.fmin,
                "max": np.fmax}[name]  # fmt: skip
    with np.errstate(all="ignore"):
        same(got, function(a, b))


def test_what_is_no_number_among_the_least_and_largest() -> None:
    a, b = np.float32([1, math.nan, 3]), np.float32([math.nan, 2, 4])
    assert apply("min.f32 OPERANDS;", "f32", a, b).tolist() == [1, 2, 3]
    assert np.isnan(apply("max.NaN.f32 OPERANDS;", "f32", a, b)).tolist() == [True, True, False]


def rounded(value: Fraction, kind: str) -> float:
    """The nearest float to a fraction, ties to even."""
    bits = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}[kind]
    if not value:
        return 0.0
    exponent = math.floor(math.log2(abs(value)))
    while abs(value) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (exponent - bits + 1)
    return float(round(value / unit) * unit)


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
def test_a_fused_sum_is_rounded_once(kind: str) -> None:
    a, b = ((_RANDOM.standard_normal(64) + 2).astype(_DTYPES[kind]) for _ in range(2))
    c = (-(a.astype(np.float64) * b.astype(np.float64))).astype(_DTYPES[kind])  # all but cancels
    got = apply(f"fma.rn.{kind} OPERANDS;", kind, a, b, c)
    exact = [
        Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        for x, y, z in zip(a, b, c, strict=True)
    ]
    assert got.astype(np.float64).tolist() == [rounded(e, kind) for e in exact]
    assert any(e and rounded(e, kind) != 0 for e in exact)


def test_doubles_that_overflow_when_they_are_split() -> None:
    huge = np.array([1e300, -1e300, math.inf, 2.0])
    got = apply("fma.rn.f64 OPERANDS;", "f64", huge, np.full(4, 2.0), np.full(4, 1.0))
    assert got.tolist() == [2e300, -2e300, math.inf, 5.0]


def test_sums_of_narrow_and_wide_floats() -> None:
    a, b = floats("f16", 20)[5:], floats("f16", 20)[5:]
    c = _RANDOM.standard_normal(len(a)).astype(np.float32)
    got = apply("fma.rn.f32.f16 OPERANDS;", "f32", a, b, c)
    same(got, (a.astype(np.float64) * b.astype(np.float64) + c).astype(np.float32))
    got = apply("sub.rn.f32.f16 OPERANDS;", "f32", a, c)
    same(got, a.astype(np.float32) - c)


def test_two_values_in_a_register() -> None:
    a, b = (_RANDOM.standard_normal(64).astype(np.float16) for _ in range(2))
    words = (a.view(np.uint32), b.view(np.uint32))
    got = apply("mul.rn.f16x2 OPERANDS;", "f16x2", *words)
    same(got.view(np.float16), a * b)
    x, y = (_RANDOM.integers(-9, 9, 64).astype(np.int16) for _ in range(2))
    got = apply("max.s16x2 OPERANDS;", "s16x2", x.view(np.uint32), y.view(np.uint32))
    assert got.view(np.int16).tolist() == np.maximum(x, y).tolist()
    p, q, r = (_RANDOM.standard_normal(64).astype(np.float32) for _ in range(3))
    pairs = [v.view(np.uint64) for v in (p, q, r)]
    got = apply("fma.rn.f32x2 OPERANDS;", "u64", *pairs)
    same(got.view(np.float32), (p.astype(np.float64) * q + r).astype(np.float32))


@pytest.mark.parametrize(
    ("instruction", "function"),
    [
        ("ex2.approx.ftz.f32", np.exp2),
        ("lg2.approx.f32", np.log2),
        ("tanh.approx.f32", np.tanh),
        ("rsqrt.approx.f32", lambda x: 1 / np.sqrt(x)),
        ("rcp.rn.f32", lambda x: 1 / x),
        ("rcp.rn.f64", lambda x: 1 / x),
        ("sqrt.rn.f32", np.sqrt),
        ("sqrt.rn.f64", np.sqrt),
        ("abs.f32", np.abs),
        ("neg.f32", np.negative),
    ],
)
def test_functions_of_floats(instruction: str, function: Callable[[Array], Array]) -> None:
    kind = instruction[-3:]
    values = np.append(floats(kind), [130.0, -130.0, -140.0]).astype(_DTYPES[kind])
    got = apply(f"{instruction} OPERANDS;", kind, values)
    with np.errstate(all="ignore"):
        wanted = function(values.astype(np.float64)).astype(values.dtype)
    if "ftz" in instruction:
        values[np.abs(values) < 1.18e-38] = 0
        wanted[np.abs(wanted) < 1.18e-38] = 0
    same(got, wanted)


def test_divisions_and_signs() -> None:
    for kind in ("f32", "f64"):
        a, b = floats(kind), _RANDOM.permutation(floats(kind))
        with np.errstate(all="ignore"):
            same(apply(f"div.rn.{kind} OPERANDS;", kind, a, b), a / b)
        same(apply(f"copysign.{kind} OPERANDS;", kind, a, b), np.copysign(b, a))


# --- comparisons, choices, conversions, moves -----------------------------------------------------


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize("kind", ["f16", "f32", "f64"])
def test_comparisons_with_what_is_no_number(name: str, kind: str) -> None:
    a, b = floats(kind), _RANDOM.permutation(floats(kind))
    b[20:30] = a[20:30]
    function = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
                "gt": np.greater, "ge": np.greater_equal}[name]  # fmt: skip
    none = np.isnan(a) | np.isnan(b)
    ordered = apply(f"setp.{name}.{kind} OPERANDS;", "pred", a, b)
    assert ordered.tolist() == (function(a, b) & ~none).tolist()
    unordered = apply(f"setp.{name}u.{kind} OPERANDS;", "pred", a, b)
    assert unordered.tolist() == (function(a, b) | none).tolist()
    assert apply(f"setp.num.{kind} OPERANDS;", "pred", a, b).tolist() == (~none).tolist()


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_comparisons_of_whole_numbers(kind: str) -> None:
    a, b = integers(kind), integers(kind)
    b[:20] = a[:20]
    assert apply(f"setp.lt.{kind} OPERANDS;", "pred", a, b).tolist() == (a < b).tolist()
    assert apply(f"setp.ge.{kind} OPERANDS;", "pred", a, b).tolist() == (a >= b).tolist()
    positive = f"setp.gt.{kind} %p2, %{_FIRST[int(kind[1:])]}0, 0;\n"
    both = apply(f"{positive}setp.ne.and.{kind} OPERANDS, %p2;", "pred", a, b)
    assert both.tolist() == ((a != b) & (a > 0)).tolist()


def _clamped(x: float, kind: str) -> int:
    limits = np.iinfo(_DTYPES[kind])
    if math.isnan(x):
        return 0
    return int(min(max(x, limits.min), limits.max)) if math.isinf(x) else min(
        max(int(x), limits.min), limits.max
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("source", ["f16", "f32", "f64"])
def test_floats_to_whole_numbers(kind: str, source: str) -> None:
    far = [] if source == "f16" else [3e9, -3e9, 1e19, -1e19, 4.5, 9.3e18]
    values = np.append(floats(source), far).astype(_DTYPES[source])
    roundings: dict[str, Callable[[float], float]] = {
        "rzi": math.trunc, "rni": round, "rmi": math.floor, "rpi": math.ceil,
    }  # fmt: skip
    for name, function in roundings.items():
        got = apply(f"cvt.{name}.{kind}.{source} OPERANDS;", kind, values)
        wanted = [
            _clamped(function(v) if math.isfinite(v) else v, kind) for v in map(float, values)
        ]
        assert got.tolist() == wanted


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("source", ["u16", "s16", "u32", "s32", "u64", "s64", "f32", "f64"])
def test_numbers_to_floats(kind: str, source: str) -> None:
    if kind == source or (kind, source) == ("bf16", "u64"):
        return
    values = floats(source) if source[0] == "f" else integers(source)
    rounding = "" if (kind, source) == ("f64", "f32") else ".rn"
    got = apply(f"cvt{rounding}.{kind}.{source} OPERANDS;", kind, values)
    with np.errstate(all="ignore"):
        same(got, values.astype(_DTYPES[kind]))


def test_whole_numbers_of_other_widths() -> None:
    values = integers("s32")
    assert apply("cvt.s64.s32 OPERANDS;", "s64", values).tolist() == values.tolist()
    assert apply("cvt.u64.u32 OPERANDS;", "u64", values).tolist() == [
        v & 0xFFFFFFFF for v in values.tolist()
    ]
    assert apply("cvt.s16.s8 OPERANDS;", "s16", values).tolist() == [
        wrapped(v, "s8") for v in values.tolist()
    ]
    assert apply("cvt.u16.u32 OPERANDS;", "u16", values).tolist() == [
        v & 0xFFFF for v in values.tolist()
    ]
    wanted = [min(max(v, -128), 127) for v in values.tolist()]
    assert apply("cvt.sat.s8.s32 OPERANDS;", "s32", values).tolist() == wanted


def test_halves_are_packed_with_the_first_operand_above() -> None:
    a, b = (_RANDOM.standard_normal(32).astype(np.float32) for _ in range(2))
    got = apply("cvt.rn.f16x2.f32 OPERANDS;", "f16x2", a, b).view(np.float16).reshape(-1, 2)
    same(got[:, 0], b.astype(np.float16))
    same(got[:, 1], a.astype(np.float16))
    got = apply("cvt.rn.bf16x2.f32 OPERANDS;", "f16x2", a, b).view(ml_dtypes.bfloat16)
    same(got.reshape(-1, 2)[:, 0], b.astype(ml_dtypes.bfloat16))


def test_words_are_taken_apart_and_put_together() -> None:
    values = integers("u32")
    swap = "mov.b32 {%rs1, %rs2}, %r10;\nmov.b32 %r8, {%rs2, %rs1};"
    got = apply(swap, "u32", values)
    assert got.tolist() == [(v >> 16 | v << 16) & 0xFFFFFFFF for v in values.tolist()]
    upper = "mov.b64 {_, %r8}, %rd10;"
    wide = integers("u64")
    assert apply(upper, "u32", wide).tolist() == [v >> 32 for v in wide.tolist()]


# --- a warp together ----------------------------------------------------------------------------

LANES = np.arange(32, dtype=np.uint32)


@pytest.mark.parametrize(
    ("mode", "by", "limits", "wanted"),
    [
        ("bfly", 5, 31, lambda n: n ^ 5),
        ("down", 3, 31, lambda n: n + 3 if n + 3 < 32 else n),
        ("up", 3, 0, lambda n: n - 3 if n >= 3 else n),
        ("idx", 6, 31, lambda n: 6),
        ("down", 3, 0x181F, lambda n: n + 3 if n % 8 + 3 < 8 else n),
        ("up", 3, 0x1800, lambda n: n - 3 if n % 8 >= 3 else n),
        ("idx", 6, 0x181F, lambda n: n // 8 * 8 + 6),
        ("bfly", 9, 0x181F, lambda n: n ^ 9 if (n ^ 9) <= n // 8 * 8 + 7 else n),
    ],
)
def test_shuffles(mode: str, by: int, limits: int, wanted: Callable[[int], int]) -> None:
    text = f"shfl.sync.{mode}.b32 %r8|%p1, %r10, {by}, {limits}, -1;"
    assert apply(text, "u32", LANES).tolist() == [wanted(n) for n in range(32)]


def test_votes() -> None:
    odd = "and.b32 %r3, %r10, 1;\nsetp.ne.b32 %p2, %r3, 0;\n"
    assert apply(odd + "vote.sync.ballot.b32 %r8, %p2, -1;", "u32", LANES)[0] == 0xAAAAAAAA
    assert apply(odd + "vote.sync.any.pred %p1, %p2, -1;", "pred", LANES).all()
    assert not apply(odd + "vote.sync.all.pred %p1, %p2, -1;", "pred", LANES).any()


# --- matrices -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a_kind", "b_kind", "shape", "turned"),
    [
        ("f16", "f16", "m16n8k16", True),
        ("f16", "f16", "m16n8k16", False),
        ("bf16", "bf16", "m16n8k16", True),
        ("bf16", "bf16", "m16n8k16", False),
        ("tf32", "tf32", "m16n8k8", False),
        ("s8", "s8", "m16n8k32", False),
        ("u8", "s8", "m16n8k32", False),
        ("s8", "u8", "m16n8k32", False),
    ],
)
def test_a_product_as_programs_load_and_store_it(
    a_kind: str, b_kind: str, shape: str, turned: bool
) -> None:
    """``ldmatrix`` gives what ``mma`` takes: rows of A, rows of B turned or of Bᵀ as they are."""
    whole = a_kind[-1] == "8"
    depth = int(shape[6:])
    dtypes = {"tf32": np.float32, "s8": np.int8, "u8": np.uint8, **_DTYPES}
    kinds = [np.dtype(dtypes[k]) for k in (a_kind, b_kind)]
    low = [0 if k == "u8" else -9 for k in (a_kind, b_kind)]
    a = _RANDOM.integers(low[0], 99, (16, depth)).astype(kinds[0])
    b = _RANDOM.integers(low[1], 99, (depth, 8)).astype(kinds[1])
    given = np.ascontiguousarray(b if turned else b.T)
    b_row, sums = 16 if turned else 32, "s32" if whole else "f32"
    text = kernel_text(
        f"""
        mov.b64 %rd4, k_shared;
        shl.b32 %r2, %r1, 4;
        cvt.u64.u32 %rd5, %r2;
        add.s64 %rd6, %rd4, %rd5;
        add.s64 %rd7, %rd1, %rd5;
        ld.global.v4.b32 {{%r3, %r4, %r5, %r6}}, [%rd7];
        st.shared.v4.b32 [%rd6], {{%r3, %r4, %r5, %r6}};
        setp.gt.u32 %p1, %r1, 15;
        @%p1 bra $filled;
        add.s64 %rd7, %rd2, %rd5;
        ld.global.v4.b32 {{%r3, %r4, %r5, %r6}}, [%rd7];
        st.shared.v4.b32 [%rd6+512], {{%r3, %r4, %r5, %r6}};
    $filled:
        bar.sync 0;
        and.b32 %r20, %r1, 15;
        shr.u32 %r21, %r1, 4;
        mul.lo.s32 %r22, %r20, 32;
        mad.lo.s32 %r22, %r21, 16, %r22;
        cvt.u64.u32 %rd7, %r22;
        add.s64 %rd7, %rd4, %rd7;
        ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r10, %r11, %r12, %r13}}, [%rd7];
        and.b32 %r23, %r1, {15 if turned else 7};
        mul.lo.s32 %r24, %r23, {b_row};
        shr.u32 %r25, %r20, 3;
        mad.lo.s32 %r24, %r25, {0 if turned else 16}, %r24;
        cvt.u64.u32 %rd8, %r24;
        add.s64 %rd8, %rd4, %rd8;
        ldmatrix.sync.aligned.m8n8.x2{".trans" if turned else ""}.shared.b16
            {{%r14, %r15}}, [%rd8+512];
        mov.b32 %r16, {"5" if whole else "0f40A00000"};
        mma.sync.aligned.{shape}.row.col.{sums}.{a_kind}.{b_kind}.{sums}
            {{%r30, %r31, %r32, %r33}}, {{%r10, %r11, %r12, %r13}}, {{%r14, %r15}},
            {{%r16, %r16, %r16, %r16}};
        shr.u32 %r26, %r1, 2;
        and.b32 %r27, %r1, 3;
        shl.b32 %r28, %r26, 3;
        mad.lo.s32 %r28, %r27, 2, %r28;
        mul.wide.u32 %rd9, %r28, 4;
        add.s64 %rd9, %rd3, %rd9;
        st.global.v2.b32 [%rd9], {{%r30, %r31}};
        st.global.v2.b32 [%rd9+256], {{%r32, %r33}};
        """,
        parameters=3,
        shared_bytes=1024,
    )  # fmt: skip
    result = np.zeros((16, 8), np.int32 if whole else np.float32)
    got = run_text(text, [a, given], result)
    wanted = a.astype(np.float64) @ b.astype(np.float64) + 5
    assert got.tolist() == wanted.tolist()
