"""What graphs spell out becomes one operator; what only looks like it stays."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from pass_harness import agree, kernels_in, module_of, number, var
from tunefarm.compiler.ir import (
    Constant,
    Expr,
    tensor_type,
)
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import optimize

TARGET = Target("llvm -mcpu=x86-64-v3")
RNG = np.random.default_rng(9)
Form = Callable[[Expr], Expr]


def row(*shape: int) -> Constant:
    return Constant(RNG.standard_normal(shape).astype(np.float32))


def add(a: Expr, b: Expr | float) -> Expr:
    return call("add", a, number(b) if isinstance(b, (int, float)) else b)


def mul(a: Expr, b: Expr | float) -> Expr:
    return call("multiply", a, number(b) if isinstance(b, (int, float)) else b)


def div(a: Expr, b: Expr) -> Expr:
    return call("divide", a, b)


def mean(x: Expr, axis: int = -1, keepdims: bool = True) -> Expr:
    return call("mean", x, axes=(axis % len(tensor_type(x).shape),), keepdims=keepdims)


def kernels(body: Form, *shape: int) -> list[str]:
    """The operators of each kernel after all passes, which must not change the result."""
    x = var("x", *(shape or (3, 5, 7)))
    module = module_of([x], body(x))
    optimized = optimize(module, TARGET)
    inputs = [np.float32(3) * RNG.standard_normal(x.type.shape).astype(np.float32)]
    agree(optimized, module, inputs)
    return kernels_in(optimized)


def tanh_gelu(x: Expr) -> Expr:
    cube = call("power", x, number(3))
    inner = mul(add(x, mul(cube, 0.044715)), math.sqrt(2 / math.pi))
    return mul(mul(x, 0.5), add(call("tanh", inner), 1))


def factored_tanh_gelu(x: Expr) -> Expr:
    inner = mul(mul(x, 0.7978845608), add(mul(mul(x, 0.044715), x), 1))
    return mul(mul(x, add(call("tanh", inner), 1)), 0.5)


def written_sigmoid(x: Expr) -> Expr:
    return div(number(1), add(call("exp", call("negative", x)), 1))


def written_silu(x: Expr) -> Expr:
    return div(x, add(call("exp", call("negative", x)), 1))


def erf_gelu(x: Expr) -> Expr:
    return mul(mul(add(call("erf", div(x, number(math.sqrt(2)))), 1), x), 0.5)


def written_hard_swish(x: Expr) -> Expr:
    return div(mul(x, call("clip", add(x, 3), min=0.0, max=6.0)), number(6))


def written_mish(x: Expr) -> Expr:
    plus = call("where", call("greater", x, number(20)), x, call("softplus", x))
    return mul(x, call("tanh", plus))


@pytest.mark.parametrize(
    "form, operator",
    [
        (tanh_gelu, "gelu"),
        (factored_tanh_gelu, "gelu"),
        (erf_gelu, "gelu"),
        (written_sigmoid, "sigmoid"),
        (written_silu, "silu"),
        (lambda x: mul(x, call("sigmoid", mul(x, 1.702))), "silu"),
        (written_hard_swish, "hard_swish"),
        (lambda x: mul(call("clip", add(x, 3), min=0.0, max=6.0), 1 / 6), "hard_sigmoid"),
        (written_mish, "mish"),
    ],
)
def test_a_function_written_out_is_one_operator(form: Form, operator: str) -> None:
    assert kernels(form) == [operator]


@pytest.mark.parametrize(
    "form",
    [
        lambda x: mul(x, call("sigmoid", mul(x, 1.7))),
        lambda x: mul(mul(x, 0.5), add(call("tanh", mul(x, 0.8)), 1)),
        lambda x: mul(x, call("clip", add(x, 3), min=0.0, max=6.0)),
        lambda x: div(x, add(call("exp", x), 1)),
    ],
)
def test_a_similar_function_stays(form: Form) -> None:
    assert any(" " in kernel for kernel in kernels(form))


def test_a_factor_next_to_one_stays() -> None:
    """That of a normalisation whose variance is 1: without it MixNet was 8e-5 off."""

    def silu_of_scaled(x: Expr) -> Expr:
        scaled = mul(x, 1 / math.sqrt(1 + 1e-5))
        return mul(scaled, call("sigmoid", scaled))

    assert kernels(silu_of_scaled) == ["multiply silu"]


def test_a_function_whose_parts_others_read_stays() -> None:
    def body(x: Expr) -> Expr:
        slope = mul(x, 1.702)
        return add(mul(x, call("sigmoid", slope)), slope)

    found = kernels(body)
    assert not any("silu" in kernel for kernel in found)


def test_a_function_joins_the_product_in_front_of_it() -> None:
    weight = row(7, 4)
    assert kernels(lambda x: tanh_gelu(add(call("matmul", x, weight), row(4)))) == [
        "matmul add gelu"
    ]


def written_rms_norm(x: Expr) -> Expr:
    root = call("sqrt", add(mean(call("power", x, number(2))), 1e-6))
    return mul(row(7), mul(x, call("reciprocal", root)))


def divided_rms_norm(x: Expr) -> Expr:
    return mul(div(x, call("sqrt", add(mean(mul(x, x)), 1e-6))), row(1, 1, 7))


def written_layer_norm(x: Expr) -> Expr:
    centred = call("subtract", x, mean(x))
    root = call("sqrt", add(mean(call("power", centred, number(2))), 1e-5))
    return add(mul(div(centred, root), row(7)), row(7))


def layer_norm_of_two_means(x: Expr) -> Expr:
    """As x.mean and x.var are exported: the mean twice, the variance without its axis."""
    centred = call("subtract", x, mean(x))
    variance = mean(mul(centred, centred), keepdims=False)
    variance = call("reshape", variance, shape=(*tensor_type(variance).shape, 1))
    root = call("sqrt", add(variance, 1e-5))
    return add(mul(div(call("subtract", x, mean(x)), root), row(7)), row(7))


def written_softmax(x: Expr) -> Expr:
    top = call("max", x, axes=(2,), keepdims=True)
    powers = call("exp", call("subtract", x, top))
    return div(powers, call("sum", powers, axes=(2,), keepdims=True))


@pytest.mark.parametrize(
    "form, operator",
    [
        (written_rms_norm, "rms_norm"),
        (divided_rms_norm, "rms_norm"),
        (written_layer_norm, "layer_norm"),
        (layer_norm_of_two_means, "layer_norm"),
        (written_softmax, "softmax"),
    ],
)
def test_a_row_operator_written_out_is_one_kernel(form: Form, operator: str) -> None:
    assert kernels(form) == [operator]


def total(x: Expr, keepdims: bool = True) -> Expr:
    return call("sum", x, axes=(len(tensor_type(x).shape) - 1,), keepdims=keepdims)


def log_total(x: Expr) -> Expr:
    return call("log", total(call("exp", x)))


def top(x: Expr) -> Expr:
    return call("max", x, axes=(2,), keepdims=True)


def minus(a: Expr, b: Expr) -> Expr:
    return call("subtract", a, b)


def shifted_log_softmax(x: Expr) -> Expr:
    return minus(minus(x, top(x)), log_total(minus(x, top(x))))


def log_softmax_by_log_sum_exp(x: Expr) -> Expr:
    """As ReduceLogSumExp is imported: infinite maxima shift nothing."""
    shift = call("where", call("isinf", top(x)), number(0), top(x))
    return minus(x, add(log_total(minus(x, shift)), shift))


@pytest.mark.parametrize(
    "form",
    [
        lambda x: call("log", call("softmax", x, axis=-1)),
        lambda x: call("log", written_softmax(x)),
        lambda x: minus(x, log_total(x)),
        shifted_log_softmax,
        lambda x: minus(x, add(top(x), log_total(minus(x, top(x))))),
        log_softmax_by_log_sum_exp,
    ],
)
def test_a_log_softmax_written_out_is_one_kernel(form: Form) -> None:
    assert kernels(form) == ["log_softmax"]


@pytest.mark.parametrize(
    "form",
    [
        lambda x: minus(x, log_total(mul(x, 2))),
        lambda x: minus(x, log_total(minus(x, top(x)))),  # the maximum is missing
        lambda x: minus(minus(x, row(7)), log_total(minus(x, top(x)))),
        lambda x: minus(x, call("log", call("sum", call("exp", x), axes=(1,), keepdims=True))),
        lambda x: minus(log_total(x), x),
    ],
)
def test_what_is_no_log_softmax_stays(form: Form) -> None:
    assert not any("softmax" in kernel for kernel in kernels(form))


def test_a_row_without_overflow_loses_what_each_element_has_and_not_more() -> None:
    """x - b is what is normalised where b is not one number a row."""

    def body(x: Expr) -> Expr:
        u = minus(x, call("relu", x))
        return minus(u, log_total(u))

    assert kernels(body) == ["relu subtract", "log_softmax"]


def test_the_log_of_a_softmax_that_others_read_stays() -> None:
    def entropy(x: Expr) -> Expr:
        p = call("softmax", x, axis=-1)
        return total(mul(p, call("log", p)))

    assert kernels(entropy) == ["softmax log multiply", "sum"]


def norm_of(x: Expr, square: Form = lambda s: s, keepdims: bool = True) -> Expr:
    return call("sqrt", square(total(mul(x, x), keepdims)))


def at_least(x: Expr, bound: float) -> Expr:
    return call("clip", x, min=bound, max=None)


def normalised_by_a_flat_norm(x: Expr) -> Expr:
    root = at_least(norm_of(x, lambda s: add(s, 0.1), keepdims=False), 1e-3)
    return div(x, call("reshape", root, shape=(*tensor_type(root).shape, 1)))


@pytest.mark.parametrize(
    "form",
    [
        lambda x: div(x, norm_of(x)),
        lambda x: div(x, at_least(norm_of(x), 9.0)),
        lambda x: div(x, call("maximum", norm_of(x), number(9))),
        lambda x: div(x, call("broadcast_to", at_least(norm_of(x), 9.0), shape=(3, 5, 7))),
        lambda x: div(x, add(norm_of(x), 0.5)),
        lambda x: mul(x, div(number(1), norm_of(x, lambda s: add(s, 2.0)))),
        lambda x: mul(x, call("reciprocal", norm_of(x, lambda s: at_least(add(s, 2.0), 50.0)))),
        normalised_by_a_flat_norm,
    ],
)
def test_an_l2_normalisation_written_out_is_one_kernel(form: Form) -> None:
    assert kernels(form) == ["l2_normalize"]


@pytest.mark.parametrize(
    "form",
    [
        lambda x: div(x, norm_of(mul(x, 2))),
        lambda x: div(x, call("clip", norm_of(x), min=1.0, max=9.0)),
        lambda x: div(x, norm_of(x, lambda s: add(at_least(s, 50.0), 2.0))),
        lambda x: div(x, call("sqrt", call("sum", mul(x, x), axes=(1,), keepdims=True))),
        lambda x: div(x, at_least(add(norm_of(x), 0.5), 9.0)),
        lambda x: div(x, add(norm_of(x), row(5, 1))),
    ],
)
def test_what_is_no_l2_normalisation_stays(form: Form) -> None:
    assert not any("l2_normalize" in kernel for kernel in kernels(form))


def test_an_l2_normalisation_takes_what_follows_it() -> None:
    assert kernels(lambda x: add(mul(div(x, norm_of(x)), row(7)), 1)) == [
        "l2_normalize multiply add"
    ]


def test_an_l2_normalisation_over_channels_of_an_image() -> None:
    def body(x: Expr) -> Expr:
        y = call("conv", x, row(6, 3, 2, 2), strides=(2, 2))
        root = call("sqrt", call("sum", mul(y, y), axes=(1,), keepdims=True))
        return call("conv", div(y, at_least(root, 1e-12)), row(4, 6, 1, 1))

    found = kernels(body, 1, 3, 8, 8)
    assert [k for k in found if k != "transpose"] == ["conv", "l2_normalize", "conv"]


def test_a_layer_norm_over_channels_of_an_image() -> None:
    """ConvNeXt's, on NCHW: between convolutions channels are last, so it is one kernel."""

    def body(x: Expr) -> Expr:
        y = call("conv", x, row(6, 3, 2, 2), strides=(2, 2))
        centred = call("subtract", y, mean(y, 1))
        root = call("sqrt", add(mean(mul(centred, centred), 1), 1e-6))
        y = add(mul(div(centred, root), row(6, 1, 1)), row(6, 1, 1))
        return call("conv", y, row(4, 6, 1, 1))

    found = kernels(body, 1, 3, 8, 8)
    assert [k for k in found if k != "transpose"] == ["conv", "layer_norm", "conv"]


def test_a_norm_takes_a_factor_a_row_alone() -> None:
    found = kernels(lambda x: mul(written_rms_norm(x), row(5, 1)))
    assert any("multiply" in kernel for kernel in found)


def test_a_norm_over_another_axis_stays() -> None:
    found = kernels(lambda x: div(x, call("sqrt", add(mean(mul(x, x), 1), 1e-6))))
    assert not any("rms_norm" in k for k in found)


def test_a_sum_of_other_powers_is_no_softmax() -> None:
    def body(x: Expr) -> Expr:
        other = call("sum", call("exp", mul(x, 0.5)), axes=(2,), keepdims=True)
        return div(call("exp", x), other)

    assert not any("softmax" in k for k in kernels(body))
