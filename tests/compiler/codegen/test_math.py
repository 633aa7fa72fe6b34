"""Elementary functions against float64 (or exact) references, over the whole range."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pytest
from tunefarm.compiler.codegen.math import emit_math
from tunefarm.compiler.target import Target

ULPS32 = {"log": 0.8, "exp": 1.1, "erf": 5, "tanh": 1.4, "log1p": 1.5, "expm1": 1.7}
ULPS64 = {
    "exp": 1, "log": 1, "erf": 1, "tanh": 1.4, "asin": 3, "acos": 3, "atan": 3, "sinh": 3,
    "acosh": 3, "tan": 4,
}  # fmt: skip
UNARY: dict[str, Any] = {
    "exp": np.exp, "log": np.log, "log2": np.log2, "log1p": np.log1p, "expm1": np.expm1,
    "tanh": np.tanh, "erf": np.vectorize(math.erf), "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
}  # fmt: skip
RANGES = {
    "sin": 1e8, "cos": 1e8, "tan": 1e8, "asin": 1.0, "acos": 1.0, "atanh": 1.0, "exp": 105.0,
    "expm1": 90.0, "sinh": 90.0, "cosh": 90.0, "tanh": 12.0, "erf": 6.0,
}  # fmt: skip
TABLES = ("exp", "erf")
WAYS: dict[str, dict[str, Any]] = {
    "tables": {"scalef": True, "tables": TABLES}, "scalef": {"scalef": True}, "fused": {},
    "plain": {"fused": False},
}  # fmt: skip
SPECIAL = (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-40, 3e38, -3e38)


def iter_names() -> Callable[[], str]:
    counter = iter(range(10**6))
    return lambda: f"%m{next(counter)}"


def run(
    name: str,
    dtype: str,
    *args: np.ndarray,
    scalef: bool = False,
    fused: bool = True,
    tables: Collection[str] = (),
) -> np.ndarray:
    """Compile ``out[i] = f(args[i])`` with 512-bit lanes, for plain x86-64 if not ``fused``."""
    from llvmlite import binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    lanes, scalar = {"float32": (16, "float"), "float64": (8, "double")}[dtype]
    names = [f"%a{n}" for n in range(len(args))]
    lines, result, declares = emit_math(
        name, lanes, dtype, names, iter_names(), scalef, fused, tables
    )
    kind = f"<{lanes} x {scalar}>"
    params = ", ".join(f"ptr %q{n}" for n in range(len(args)))
    loads = [f"{a} = load {kind}, ptr %q{n}, align 4" for n, a in enumerate(names)]
    body = "\n".join([*loads, *lines, f"store {kind} {result}, ptr %out, align 4", "ret void"])
    text = f"define void @f({params}, ptr %out) {{\n{body}\n}}\n" + "\n".join(declares)
    cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu if fused else "x86-64", features=features if fused else "", opt=2
    )
    module = llvm.parse_assembly(text)
    assembly = machine.emit_assembly(module)
    assert "call" not in assembly, "a kernel must import nothing"
    looked_up = "vpermi2ps" in assembly or "vpermt2ps" in assembly
    assert looked_up == (bool(tables) and dtype == "float32")
    engine = llvm.create_mcjit_compiler(module, machine)
    pointers = [ctypes.c_void_p] * (len(args) + 1)
    f = ctypes.CFUNCTYPE(None, *pointers)(engine.get_function_address("f"))
    size = -(-len(args[0]) // lanes) * lanes
    padded = [np.concatenate([a, np.zeros(size - len(a), a.dtype)]) for a in args]
    out = np.empty(size, dtype)
    for start in range(0, size, lanes):
        f(*(a[start:].ctypes.data for a in padded), out[start:].ctypes.data)
    return out[: len(args[0])]


def samples(name: str, dtype: str) -> np.ndarray:
    """Random bit patterns, magnitudes spread evenly, and the places where methods change."""
    reach = RANGES.get(name, 1e30)
    rng = np.random.default_rng(7)
    width = 8 * np.dtype(dtype).itemsize
    bits = rng.integers(0, 2**width, 8000, dtype=np.uint64).astype(f"uint{width}").view(dtype)
    spread = np.exp(rng.uniform(math.log(1e-30), math.log(reach), 4000))
    near = [rng.uniform(-1.5, 1.5, 16000), 1 + rng.uniform(-1e-3, 1e-3, 4000)]
    wide = rng.uniform(-min(reach, 20), min(reach, 20), 8000)
    x = np.concatenate([bits, *(v.astype(dtype) for v in (spread, -spread, *near, wide))])
    with np.errstate(over="ignore"):
        x = np.concatenate([x, np.asarray(SPECIAL).astype(dtype)])
    return x[~np.isfinite(x) | (np.abs(x) <= 1e8)] if name in ("sin", "cos", "tan") else x


def errors_in_ulp(got: np.ndarray, want: np.ndarray) -> Any:
    """|got − want| in units of the last place of ``want``; NaN and infinities must agree."""
    with np.errstate(over="ignore"):
        exact = want.astype(got.dtype)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
    finite = np.isfinite(exact) & np.isfinite(got)
    edge = ~finite & ~np.isnan(exact)
    np.testing.assert_array_equal(got[edge], exact[edge])
    unit = np.spacing(np.maximum(np.abs(exact[finite]), np.finfo(got.dtype).tiny))
    return np.abs(got[finite].astype(np.longdouble) - want[finite]) / unit


@pytest.mark.parametrize("name", sorted(UNARY))
def test_float32_stays_within_its_stated_ulps(name: str) -> None:
    x = samples(name, "float32")
    with np.errstate(all="ignore"):
        want: Any = UNARY[name](x.astype(np.float64))
    # Half an ulp, and what float64 may have lost before it was rounded.
    assert errors_in_ulp(run(name, "float32", x), want).max() <= ULPS32.get(name, 0.5) + 1e-6


@pytest.mark.parametrize("name", sorted(UNARY))
def test_float64_stays_within_its_stated_ulps(name: str) -> None:
    x = samples(name, "float64")
    with np.errstate(all="ignore"):
        want: Any = UNARY[name](x if name == "erf" else x.astype(np.longdouble))
    assert errors_in_ulp(run(name, "float64", x), want).max() <= ULPS64.get(name, 2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted(UNARY))
def test_plain_x86_loses_little(name: str, dtype: str) -> None:
    x = samples(name, dtype)
    if name in ("sin", "cos", "tan"):
        x = x[~np.isfinite(x) | (np.abs(x) <= 1e6)]
    with np.errstate(all="ignore"):
        exact = name == "erf" or dtype == "float32"
        want: Any = UNARY[name](x.astype("float64") if exact else x.astype(np.longdouble))
    limit = (ULPS32.get(name, 0.5) if dtype == "float32" else ULPS64.get(name, 2)) + 0.6
    assert errors_in_ulp(run(name, dtype, x, fused=False), want).max() <= limit


@pytest.mark.parametrize("way", ["tables", "fused", "plain"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_erf_ends_at_exactly_one(dtype: str, way: str) -> None:
    """Else gelu(-1e6), a million times 1 + erf, would be far from 0."""
    if way == "tables" and not (Target.host().has_avx512 and dtype == "float32"):
        pytest.skip("float32's tables need AVX-512")
    x = np.concatenate([np.linspace(6, 9, 300), np.geomspace(9, 1e30, 300), [math.inf]])
    values = run("erf", dtype, np.concatenate([x, -x]).astype(dtype), **WAYS[way])
    assert set(values[: len(x)]) == {1.0}
    assert set(values[len(x) :]) == {-1.0}
    near = run("erf", dtype, np.linspace(3, 6, 9999).astype(dtype), **WAYS[way])
    assert near.max() <= 1.0 + 3e-7


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["round", "floor", "ceil", "trunc"])
def test_rounding_is_exact(name: str, dtype: str, fused: bool) -> None:
    rng = np.random.default_rng(5)
    ties = np.arange(-9, 9) + 0.5
    big = np.array([2.0**22 + 0.5, 2.0**23 - 0.5, 2.0**52 - 0.5, -(2.0**51) - 0.5, 1e300, 1e-300])
    with np.errstate(over="ignore"):
        x = np.concatenate([ties, big, -big, rng.uniform(-99, 99, 999), SPECIAL]).astype(dtype)
    got, want = run(name, dtype, x, fused=fused), getattr(np, {"round": "rint"}.get(name, name))(x)
    np.testing.assert_array_equal(got, want)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]))


@pytest.mark.skipif(not Target.host().has_avx512, reason="needs AVX-512")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["exp", "expm1", "tanh", "sinh", "cosh"])
def test_scaling_by_avx512_changes_no_accuracy(name: str, dtype: str) -> None:
    x = samples(name, dtype)
    with np.errstate(all="ignore"):
        want: Any = UNARY[name](x.astype(np.float64 if dtype == "float32" else np.longdouble))
    bounds = ULPS32 if dtype == "float32" else ULPS64
    limit = bounds.get(name, 0.5 if dtype == "float32" else 2) + 1e-6
    assert errors_in_ulp(run(name, dtype, x, scalef=True), want).max() <= limit


@pytest.mark.skipif(not Target.host().has_avx512, reason="needs AVX-512")
@pytest.mark.parametrize("name", ["exp", "tanh", "erf"])
def test_tables_keep_the_stated_ulps(name: str) -> None:
    x = samples(name, "float32")
    with np.errstate(all="ignore"):
        want: Any = UNARY[name](x.astype(np.float64))
    got = run(name, "float32", x, scalef=True, tables=TABLES)
    assert errors_in_ulp(got, want).max() <= ULPS32[name]


def test_processors_look_up_what_their_multiplications_cost() -> None:
    cpus = ("znver4", "znver5", "emeraldrapids")
    looked_up = {cpu: Target(f"llvm -mcpu={cpu}").quick_tables for cpu in cpus}
    assert looked_up == {"znver4": {"exp", "erf"}, "znver5": {"erf"}, "emeraldrapids": {"erf"}}
    assert not Target("llvm -mcpu=graniterapids").quick_tables
    for name, found in (("erf", True), ("exp", False), ("tanh", False)):
        lines, _, _ = emit_math(name, 16, "float32", ["%x"], iter_names(), tables=("erf",))
        assert any("vpermi2var" in line for line in lines) == found, name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("way", ["tables", "scalef", "fused", "plain"])
def test_exp_where_results_are_normal(way: str, dtype: str) -> None:
    """Beyond, a sigmoid is 1, or exactly 0: silu(-1e38) is not far from 0."""
    if way in ("tables", "scalef") and not Target.host().has_avx512:
        pytest.skip("needs AVX-512")
    rng = np.random.default_rng(7)
    spread = [rng.uniform(-most, most, 4000) for most in (1e-6, 0.7, 20, 87)]
    x = np.concatenate([*spread, [0.0, -0.0, 1e-40, 87.0, -87.0]]).astype(dtype)
    want: Any = np.exp(x.astype(np.float64 if dtype == "float32" else np.longdouble))
    got = run("exp_within", dtype, x, **WAYS[way])
    assert errors_in_ulp(got, want).max() <= (1.3 if way == "plain" else 1.1)
    beyond = np.array([88.5, 1e30, math.inf, -88.5, -1e30, -math.inf], dtype)
    high, low = np.split(run("exp_within", dtype, beyond, **WAYS[way]), 2)
    assert high[0] >= math.exp(88.5) * (1 - 1e-6)
    assert np.isinf(high[1:]).all()
    assert (low <= math.exp(-87) * (1 + 1e-6)).all()
    assert (low >= 0).all()
    nan = np.copysign(np.full(3, np.nan), [1, -1, 1]).astype(dtype)
    assert np.isnan(run("exp_within", dtype, nan, **WAYS[way])).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("way", ["scalef", "fused", "plain"])
def test_near_sigmoid(way: str, dtype: str) -> None:
    if way == "scalef" and not Target.host().has_avx512:
        pytest.skip("needs AVX-512")
    rng = np.random.default_rng(8)
    spread = [rng.uniform(-most, most, 4000) for most in (1e-6, 1, 20, 87)]
    x = np.concatenate([*spread, [0.0, -0.0, 1e-40]]).astype(dtype)
    got, want = run("near_sigmoid", dtype, x, **WAYS[way]), 1 / (1 + np.exp(-x.astype(np.float64)))
    assert np.abs(got / want - 1).max() <= 2.0**-12
    ends = np.array([math.inf, 1e30, 200, -200, -1e30, -math.inf], dtype)
    found = run("near_sigmoid", dtype, ends, **WAYS[way])
    np.testing.assert_allclose(found, [1, 1, 1, 0, 0, 0], rtol=2.0**-12, atol=1e-37)
    assert np.isnan(run("near_sigmoid", dtype, np.full(3, np.nan, dtype), **WAYS[way])).all()


@pytest.mark.parametrize("way", ["tables", "scalef", "fused", "plain"])
def test_exp_of_a_rounded_difference_errs_with_it(way: str) -> None:
    if way in ("tables", "scalef") and not Target.host().has_avx512:
        pytest.skip("needs AVX-512")
    rng = np.random.default_rng(6)
    special = [0.0, -0.0, -1e-40, -1e30, -3e38, -math.inf]
    spread = [-rng.uniform(0, most, 4000) for most in (0.7, 20, 88, 110)]
    x = np.concatenate([*spread, special]).astype(np.float32)
    want: Any = np.exp(x.astype(np.float64))
    got = run("exp_shifted", "float32", x, **WAYS[way])
    denormal = want < 2.0**-125
    assert np.abs(got[denormal] - want[denormal]).max() <= 2.0**-125
    if way == "scalef":  # as others cost time wherever they are read
        assert not ((got > 0) & (got < 2.0**-126)).any()
    limit = 3 + 1.5 * np.abs(x[~denormal])
    assert (errors_in_ulp(got[~denormal], want[~denormal]) <= limit).all()
    assert (got[-6:] == [1, 1, 1, 0, 0, 0]).all()
    nan = np.copysign(np.full(3, np.nan, np.float32), [1, -1, 1]).astype(np.float32)
    assert np.isnan(run("exp_shifted", "float32", nan, **WAYS[way])).all()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_log1p_of_the_unit_interval(dtype: str, fused: bool) -> None:
    rng = np.random.default_rng(8)
    small = np.exp(rng.uniform(-100, 0, 5000))
    x = np.concatenate([rng.uniform(0, 1, 5000), small, [0.0, 0.5, 1.0]]).astype(dtype)
    want: Any = np.log1p(x.astype(np.float64 if dtype == "float32" else np.longdouble))
    limit = 1.9 if dtype == "float32" else 2.6
    assert errors_in_ulp(run("log1p_unit", dtype, x, fused=fused), want).max() <= limit
    assert np.isnan(run("log1p_unit", dtype, np.full(3, np.nan, dtype), fused=fused)).all()


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_float32_sines_near_their_zeros(name: str) -> None:
    x = (np.arange(-30000, 30000) * (math.pi / 2)).astype(np.float32)
    want: Any = UNARY[name](x.astype(np.float64))
    assert errors_in_ulp(run(name, "float32", x), want).max() <= 0.5 + 1e-6


def test_float32_pow_is_rounded_from_more_digits() -> None:
    rng = np.random.default_rng(4)
    a = np.concatenate([np.exp(rng.uniform(-103, 88, 9000)), rng.uniform(0.9, 1.1, 9000)])
    a, b = a.astype(np.float32), rng.uniform(-30, 30, 18000).astype(np.float32)
    b[9000:] *= 20
    with np.errstate(all="ignore"):
        want = np.power(a.astype(np.float64), b.astype(np.float64))
    for fused in (True, False):
        assert errors_in_ulp(run("pow", "float32", a, b, fused=fused), want).max() <= 0.501


def test_pow_follows_ieee_754() -> None:
    rng = np.random.default_rng(3)
    special = np.array([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, 3.0, -3.0, np.inf, -np.inf, np.nan])
    a, b = (g.ravel() for g in np.meshgrid(special, special))
    a = np.concatenate([a, rng.uniform(0, 50, 2000), rng.uniform(-9, 9, 500)]).astype("float32")
    b = np.concatenate([b, rng.uniform(-9, 9, 2000), rng.integers(-9, 9, 500)]).astype("float32")
    with np.errstate(all="ignore"):
        want = np.power(a.astype(np.float64), b.astype(np.float64))
    assert errors_in_ulp(run("pow", "float32", a, b), want).max() <= 1.0


def test_float64_pow_errs_with_its_exponent() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.uniform(1e-3, 50, 4000), rng.uniform(-150, 150, 4000)
    want = np.power(a.astype(np.longdouble), b)
    relative = np.abs(run("pow", "float64", a, b) / want - 1).astype(float)
    assert (relative <= 2.0**-52 * (np.abs(b * np.log(a)) + 2)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fmod_is_exact(dtype: str) -> None:
    """Near whole quotients too, where the division may round up."""
    rng = np.random.default_rng(3)
    b = rng.uniform(-30, 30, 3000).astype(dtype)
    whole = (b * rng.integers(-(2**19), 2**19, 3000)).astype(dtype)
    below = np.nextafter(whole, np.zeros(1, dtype))
    a = np.concatenate([rng.uniform(-1e4, 1e4, 3000).astype(dtype), whole, below])
    special = np.array([0.0, -0.0, 1.5, -1.5, np.inf, -np.inf, np.nan], dtype)
    edge_a, edge_b = (g.ravel() for g in np.meshgrid(special, special))
    a, b = np.concatenate([a, edge_a]), np.concatenate([b, b, b, edge_b])
    with np.errstate(all="ignore"):
        want = np.fmod(a, b)
    np.testing.assert_array_equal(run("fmod", dtype, a, b), want)
