"""Group normalisation as exporters spell it out, and its form channels last."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from pass_harness import agree, kernels_in, module_of, var
from tunefarm.compiler.ir import Call, Constant, Expr, IRModule, post_order, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import optimize
from tunefarm.compiler.transform.canonicalize_ops import canonicalize_ops

TARGET = Target("llvm -mcpu=x86-64-v3")
RNG = np.random.default_rng(4)


def row(*shape: int) -> Constant:
    return Constant(RNG.standard_normal(shape).astype(np.float32))


def spelled_out(x: Expr, rows: int, groups: int | None = None) -> Expr:
    """An instance norm of a view with ``rows`` channels, then a factor and a term a channel."""
    batch, channels, *space = tensor_type(x).shape
    view = call("reshape", x, shape=(batch, rows, channels * prod(space) // rows))
    norm = call("group_norm", view, row(rows), row(rows), groups=groups or rows)
    image = call("reshape", norm, shape=(batch, channels, *space))
    affine = (channels, *[1] * len(space))
    return call("add", call("multiply", image, row(*affine)), row(*affine))


def norms_in(module: IRModule) -> list[Call]:
    nodes = post_order(module.main.body)
    return [n for n in nodes if isinstance(n, Call) and n.op == "group_norm"]


def pointwise(x: Expr) -> Expr:
    """A convolution of one tap; it wants images channels last."""
    channels, *space = tensor_type(x).shape[1:]
    ones = (1,) * len(space)
    weight = row(channels, channels, *ones)
    padding = ((0, 0),) * len(space)
    return call("conv", x, weight, strides=ones, dilations=ones, padding=padding)


def convolutional(shape: tuple[int, ...], rows: int) -> IRModule:
    x = var("x", *shape)
    return module_of([x], pointwise(call("relu", spelled_out(pointwise(x), rows))))


SHAPES = [
    ((1, 8, 5, 7), 4),
    ((3, 6, 4, 3), 6),
    ((2, 34, 3, 5), 17),
    ((2, 20, 9), 1),
    ((1, 18, 2, 3, 5), 3),
    ((2, 6, 1, 1), 2),
]


@pytest.mark.parametrize(("shape", "rows"), SHAPES)
def test_a_norm_of_groups_spelled_out_is_one_operator(shape: tuple[int, ...], rows: int) -> None:
    x = var("x", *shape)
    module = module_of([x], spelled_out(x, rows))
    made = canonicalize_ops(module, TARGET)
    (norm,) = norms_in(made)
    assert made.main.body is norm
    assert (norm.args[0], norm.attrs["groups"]) == (x, rows)
    agree(made, module, [RNG.standard_normal(shape).astype(np.float32)])


def test_groups_of_rows_are_groups_of_their_channels() -> None:
    x = var("x", 2, 12, 5)
    module = module_of([x], spelled_out(x, rows=6, groups=3))
    made = canonicalize_ops(module, TARGET)
    assert [n.attrs["groups"] for n in norms_in(made)] == [3]
    agree(made, module, [RNG.standard_normal((2, 12, 5)).astype(np.float32)])


def test_rows_that_part_a_channel_stay() -> None:
    x = var("x", 2, 4, 6)
    module = module_of([x], spelled_out(x, rows=8))
    made = canonicalize_ops(module, TARGET)
    assert [tensor_type(n).shape for n in norms_in(made)] == [(2, 8, 3)]


def test_factors_of_pixels_stay_beside_the_norm() -> None:
    x = var("x", 1, 4, 3, 3)
    norm = call("group_norm", x, row(4), row(4), groups=2)
    module = module_of([x], call("multiply", norm, row(4, 3, 3)))
    made = canonicalize_ops(module, TARGET)
    assert made.main.body.op == "multiply"  # type: ignore[union-attr]


def test_a_norm_that_others_read_keeps_its_parameters() -> None:
    x = var("x", 1, 4, 3, 3)
    norm = call("group_norm", x, row(4), row(4), groups=2)
    module = module_of([x], call("divide", call("multiply", norm, row(4, 1, 1)), norm))
    made = canonicalize_ops(module, TARGET)
    assert made.main.body.op == "divide"  # type: ignore[union-attr]
    assert sum(isinstance(n, Call) and n.op == "multiply" for n in post_order(made.main.body)) == 1


@pytest.mark.parametrize(("shape", "rows"), SHAPES)
def test_between_convolutions_it_has_lanes_along_the_channels(
    shape: tuple[int, ...], rows: int
) -> None:
    """No transpose is left but those of the model's input and result; sums take their squares."""
    module = convolutional(shape, rows)
    optimized = optimize(module, TARGET)
    kernels = kernels_in(optimized)
    assert sum("transpose" in k for k in kernels) <= 2
    assert not any("group_norm" in k for k in kernels)
    if prod(shape[2:]) > 1:
        assert any(k.startswith("subtract multiply mean") for k in kernels)
        assert "subtract multiply add relu" in kernels
    agree(optimized, module, [RNG.standard_normal(shape).astype(np.float32)])


def test_parameters_that_are_inputs() -> None:
    """Scale and bias that vary at run time, as a style sets them, stay variables."""
    x, scale, bias = var("x", 2, 6, 5, 5), var("scale", 6), var("bias", 6)
    norm = call("group_norm", x, scale, bias, groups=3)
    module = module_of([x, scale, bias], norm)
    inputs = [RNG.standard_normal(p.type.shape).astype(np.float32) for p in (x, scale, bias)]
    agree(optimize(module, TARGET), module, inputs)
