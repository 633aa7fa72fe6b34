"""Activations of models in bfloat16 have fewer digits, unless they are results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pass_harness import module_of, operators, var
from tunefarm.compiler.accuracy import error_bounds
from tunefarm.compiler.build import build_module
from tunefarm.compiler.ir import Constant, Expr, Function, Tuple
from tunefarm.compiler.ops import OPS, call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.lower_precision import allow_precision, lower_precision
from tunefarm.compiler.transform.near_functions import near_functions

ZEN5 = Target("llvm -mcpu=znver5")
ACTIVATIONS: list[tuple[str, dict[str, Any]]] = [
    ("gelu", {"approximate": False}), ("gelu", {"approximate": True}),
    ("silu", {"alpha": 1.0}), ("silu", {"alpha": 1.702}),
]  # fmt: skip


@pytest.mark.parametrize("name, attrs", ACTIVATIONS)
def test_near_functions_are_near(name: str, attrs: dict[str, Any]) -> None:
    """1e-4 of GELU, 2^-12 of a SiLU's result, as built for the host, too."""
    x = np.concatenate([np.linspace(-12, 12, 4001), [-80, -30, 30, 1e4, -1e4]]).astype(np.float32)
    exact = OPS[name].reference([x.astype(np.float64)], attrs)
    data = var("x", x.size)
    body = call(f"near_{name}", data, **attrs)
    (found,) = build_module(module_of([data], body), Target.host(1)).run({"x": x}).values()
    most = 1e-4 if name == "gelu" else 2.0**-12 * np.abs(exact) + 1e-30
    assert (np.abs(found - exact) <= most + 1e-7 * np.abs(exact)).all()
    if name == "gelu":
        assert not found[x < -4.2].any()
        assert np.array_equal(found[x > 4.2], x[x > 4.2])
    (allowed,) = error_bounds(Function((data,), body), [x])
    assert (np.abs(found - OPS[f"near_{name}"].reference([x], attrs)) <= allowed).all()


def test_what_products_read_is_near_and_results_are_not() -> None:
    rng = np.random.default_rng(0)
    x = var("x", 64, 64)
    w = [Constant(rng.standard_normal((64, 64)).astype(np.float32)) for _ in "ab"]
    inner = call("gelu", call("matmul", x, w[0]))
    result = call("silu", call("matmul", inner, w[1]))
    for body in (result, Tuple((result, inner))):
        lowered = lower_precision(allow_precision(module_of([x], body), "bf16"), ZEN5)
        names = operators(lowered.main.body)
        assert ("near_gelu" in names) == (body is result)
        assert "silu" in names
        assert "near_silu" not in names


def test_strict_targets_and_other_dtypes_keep_theirs() -> None:
    x, y = var("x", 8), var("y", 8, dtype="float64")
    body = call("cast", call("relu", call("gelu", x)), dtype="bfloat16")
    assert near_functions(body, Target("llvm -mcpu=znver5 -precision=strict")) is body
    assert operators(near_functions(body, ZEN5)) == ["near_gelu", "relu", "cast"]
    wide = call("cast", call("gelu", y), dtype="bfloat16")
    assert near_functions(wide, ZEN5) is wide


@pytest.mark.parametrize(
    "seen",
    [
        lambda v: v,
        lambda v: call("reshape", v, shape=(4, 2)),
        lambda v: call("add", v, v),
        lambda v: call("mean", v, axes=(0,), keepdims=False),
        lambda v: Tuple((call("cast", v, dtype="bfloat16"), call("relu", v))),
    ],
    ids=["itself", "a view", "a sum", "a mean", "beside a product's"],
)
def test_what_a_result_shows_keeps_its_digits(seen: Callable[[Expr], Expr]) -> None:
    body = seen(call("silu", var("x", 8)))
    assert near_functions(body, ZEN5) is body
