"""Attentions of float32 operands, for the tests of their sketches."""

from __future__ import annotations

import math

import numpy as np
from sketch_harness import Array
from tunefarm.compiler.ir import Constant, Expr, Function, TensorType, Var
from tunefarm.compiler.ops import call

F32 = "float32"
HEADS_INSIDE = ("abcd,aecd->acbe", "abcd,adbe->acbe")  # [batch, tokens, heads, size]
HEADS_OUTSIDE = ("abcd,abed->abce", "abcd,abde->abce")  # [batch, heads, tokens, size]


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
) -> Function:
    """softmax(q · kᵀ · size^-½ + mask) · v; the mask is of "keys", a "square", or "no"."""

    def operand(name: str, count: int, width: int) -> Var:
        inside = (batch, count, heads, width)
        shape = inside if equations is HEADS_INSIDE else (batch, heads, count, width)
        return Var(name, TensorType(shape, F32))

    keys = keys or tokens
    q, k = operand("q", tokens, size), operand("k", keys, size)
    v = operand("v", keys, values or size)
    x: Expr = call("einsum", q, k, equation=equations[0])
    params = [q, k]
    if scale:
        x = call("multiply", x, Constant(np.array(1 / math.sqrt(size), F32)))
    if mask != "no":
        shape = (1, 1, 1, keys) if mask == "keys" else (1, heads, tokens, keys)
        params.append(Var("mask", TensorType(shape, F32)))
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
