"""A constant that stands in front of a kernel's product, as in 1 − σ(x·w), under every sketch."""

from __future__ import annotations

import numpy as np
import pytest
from sketch_harness import check, draw
from tunefarm.compiler.ir import Constant, Expr, Function, TensorType, Var, post_order
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import Config, config_space
from tunefarm.compiler.space.program import create_program
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.schedule import remaining_blocks
from tunefarm.compiler.workload import Workload

HOST = Target.host(2)


def var(name: str, *shape: int) -> Var:
    return Var(name, TensorType(shape, "float32"))


def conv(image: int, inputs: int, outputs: int, taps: int, stride: int, groups: int = 1) -> Expr:
    return call(
        "conv",
        var("x", 1, image, image, inputs),
        var("w", taps, taps, inputs // groups, outputs),
        strides=(stride, stride),
        padding=((taps // 2, taps // 2),) * 2,
        dilations=(1, 1),
        groups=groups,
        data_layout="NSC",
        kernel_layout="SIO",
    )


def attention() -> Expr:
    q, k, v = (var(name, 2, 32, 16) for name in "qkv")
    return call("matmul", call("softmax", call("matmul", q, k, transpose_b=True)), v)


PRODUCTS = {
    "3x3": lambda: conv(14, 48, 64, 3, 1),
    "3x3 of stride 2": lambda: conv(14, 48, 64, 3, 2),
    "7x7 of stride 2": lambda: conv(24, 3, 64, 7, 2),
    "depthwise": lambda: conv(11, 17, 17, 3, 1, groups=17),
    "matmul": lambda: call("matmul", var("x", 256, 256), var("w", 256, 256)),
    "narrow": lambda: call("matmul", var("x", 40, 96), var("w", 96, 3)),
    "grouped": lambda: conv(11, 32, 32, 3, 1, groups=8),
    "attention": attention,
}


def gated(product: Expr) -> Function:
    """1 − σ(product), times another tensor; the weights are constant."""
    other = Var("h", product.type)  # type: ignore[arg-type]
    one = Constant(np.array(1, np.float32))
    body = call("multiply", call("subtract", one, call("sigmoid", product)), other)
    params = tuple(n for n in post_order(body) if isinstance(n, Var))
    constant = tuple(i for i, p in enumerate(params) if p.name == "w")
    return Function(params, body, {"primitive": True, "constants": constant})


def one_of_each_sketch(workload: Workload) -> dict[str, Config]:
    space, rng = config_space(workload, HOST), np.random.default_rng(0)
    rows = space.sample(rng, 2000)
    drawn = [space.decode(row) for row in rows[space.valid(rows)]]
    return {str(c.get("sketch", "")): c for c in [*drawn, space.default]}


@pytest.mark.parametrize("kind", PRODUCTS)
def test_every_sketch_takes_a_constant_before_its_product(kind: str) -> None:
    function = gated(PRODUCTS[kind]())
    arrays = [a * np.float32(0.1) for a in draw(function, np.random.default_rng(0))]
    workload = Workload.from_function(function)
    for config in one_of_each_sketch(workload).values():
        check(workload, HOST, config, arrays, "execute")


def test_a_constant_is_no_block_of_its_own() -> None:
    function = gated(PRODUCTS["matmul"]())
    assert "scalar" not in remaining_blocks(create_program(function))
    alone = Function((), Constant(np.array([2], np.float32)), {"primitive": True})
    assert len(remaining_blocks(create_program(alone))) == 1
