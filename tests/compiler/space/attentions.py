"""Attentions of float32 operands, for the tests of their sketches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sketch_harness import Array, executed, interpreted
from tunefarm.compiler.accuracy import error_bounds
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import Constant, Expr, Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import Config, schedule_workload
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.workload import Workload

from tests.compiler.mismatch import mismatch

F32 = "float32"
HEADS_INSIDE = ("abcd,aecd->acbe", "abcd,adbe->acbe")  # [batch, tokens, heads, size]
HEADS_OUTSIDE = ("abcd,abed->abce", "abcd,abde->abce")  # [batch, heads, tokens, size]
OTHER_FORMS: list[dict[str, Any]] = [
    {"mask": "no", "scale": False},
    {"mask": "square"},
    {"keys": 50, "values": 20},
    {"batch": 3, "heads": 1},
    {"equations": HEADS_OUTSIDE},
    {"equations": HEADS_OUTSIDE, "batch": 2, "mask": "square"},
]


def self_attention(
    tokens: int,
    heads: int,
    size: int,
    keys: int = 0,
    values: int = 0,
    batch: int = 1,
    mask: str = "keys",
    scale: bool = True,
    equations: tuple[str, str] = HEADS_INSIDE,
    dtype: str = F32,
) -> Function:
    """softmax(q · kᵀ · size^-½ + mask) · v; the mask is of "keys", a "square", or "no"."""

    def operand(name: str, count: int, width: int) -> Var:
        inside = (batch, count, heads, width)
        shape = inside if equations is HEADS_INSIDE else (batch, heads, count, width)
        return Var(name, TensorType(shape, dtype))

    keys = keys or tokens
    q, k = operand("q", tokens, size), operand("k", keys, size)
    v = operand("v", keys, values or size)
    x: Expr = call("einsum", q, k, equation=equations[0])
    params = [q, k]
    if scale:
        x = call("multiply", x, Constant(np.array(1 / math.sqrt(size), numpy_dtype(dtype))))
    if mask != "no":
        shape = (1, 1, 1, keys) if mask == "keys" else (1, heads, tokens, keys)
        params.append(Var("mask", TensorType(shape, dtype)))
        x = call("add", x, params[-1])
    body = call("einsum", call("softmax", x, axis=-1), v, equation=equations[1])
    return Function((*params, v), body, {"primitive": True, "constants": ()})


def draw(function: Function, rng: np.random.Generator) -> list[Array]:
    """Normal values; half of a mask is -10000, as models have it."""
    return [
        np.where(rng.random(p.type.shape) < 0.5, 0, -1e4).astype(F32)  # type: ignore[union-attr]
        if p.name == "mask"
        else rng.standard_normal(p.type.shape).astype(F32)  # type: ignore[union-attr]
        for p in function.params
    ]


def made_by(
    function: Function, target: Target, config: Config, arrays: list[Array], runs: bool
) -> Array:
    """The result of a config; interpreted where this machine does not run the target's code."""
    workload = Workload.from_function(function)
    program = lower(schedule_workload(workload, target, config), checked=True)
    result = np.full(workload.output_types[0].shape, 77, F32)
    if runs:
        executed(program, target, arrays, [result])
    else:
        interpreted(program, arrays, [result])
    return result


def error_within_bounds(
    function: Function, target: Target, config: Config, runs: bool, seed: int = 0
) -> float:
    """The largest difference of a config's result over the largest result, which the function's
    bounds of errors hold."""
    arrays = draw(function, np.random.default_rng(seed))
    result = made_by(function, target, config, arrays, runs)
    (wanted,) = evaluate(function, arrays)
    assert mismatch([result], [wanted], error_bounds(function, arrays)) == "", dict(config)
    return error_of(result, wanted)


def error_of(made: Array, wanted: Array) -> float:
    """The largest difference over the largest result."""
    return float(np.abs(made - wanted).max() / np.abs(wanted).max())
