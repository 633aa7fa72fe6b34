"""Graphs for the tests of passes: their leaves, what they hold, and that two mean the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.extract import kernels_of
from tunefarm.compiler.ir import (
    Call,
    Constant,
    Expr,
    Function,
    IRModule,
    TensorType,
    Var,
    children,
    post_order,
    tensor_type,
)
from tunefarm.compiler.transform.rewrite import with_children

Array = NDArray[Any]


def var(name: str, *shape: int, dtype: str = "float32") -> Var:
    return Var(name, TensorType(shape, dtype))


def number(value: float, dtype: str = "float32") -> Constant:
    return Constant(np.array(value, dtype))


def module_of(params: Sequence[Var], body: Expr) -> IRModule:
    return IRModule({"main": Function(tuple(params), body)})


def calls(body: Expr) -> list[Call]:
    return [n for n in post_order(body) if isinstance(n, Call)]


def operators(body: Expr) -> list[str]:
    return [str(n.op) for n in calls(body)]


def kernels_in(module: IRModule) -> list[str]:
    """The operators of each kernel of main, in order; views are no kernels."""
    return [" ".join(operators(f.body)) for f in kernels_of(module) if not f.attrs.get("view")]


def extents(module: IRModule) -> list[tuple[int, ...]]:
    """Of what the only convolution of ``main`` reads: data, and kernel."""
    (node,) = [n for n in calls(module.main.body) if n.op == "conv"]
    return [tensor_type(a).shape for a in node.args]


def agree(
    after: IRModule,
    before: IRModule,
    inputs: Sequence[Array] | Mapping[str, Array],
    rtol: float = 1e-4,
    atol: float = 1e-5,
) -> None:
    """Assert that two modules have the same results."""
    for got, want in zip(evaluate(after, inputs), evaluate(before, inputs), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


def defused(module: IRModule) -> IRModule:
    """The inverse of ``fuse_ops``: calls of primitive functions become their bodies."""
    main = module.main
    done: dict[Expr, Expr] = {}
    for node in post_order(main.body):
        operands = [done[c] for c in children(node)]
        if isinstance(node, Call) and isinstance(node.op, Function):
            done[node] = _inlined(node.op, operands)
        else:
            done[node] = with_children(node, operands)
    return module.with_main(Function(main.params, done[main.body], main.attrs))


def _inlined(function: Function, operands: Sequence[Expr]) -> Expr:
    done: dict[Expr, Expr] = dict(zip(function.params, operands, strict=True))
    for node in post_order(function.body):
        if node not in done:
            done[node] = with_children(node, [done[c] for c in children(node)])
    return done[function.body]
