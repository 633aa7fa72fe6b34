"""Branches that add up convolutions of the same image become one convolution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pass_harness import agree, calls, kernels_in, module_of, number, operators, var
from tunefarm.compiler.ir import Call, Constant, Expr, IRModule, Tuple, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import optimize
from tunefarm.compiler.transform.merge_branches import merge_branches

TARGET = Target("llvm -mcpu=haswell -num-cores=2")
RNG = np.random.default_rng(23)


def const(*shape: int, dtype: str = "float32") -> Constant:
    return Constant(RNG.standard_normal(shape).astype(dtype))


def conv(x: Expr, outputs: int, kernel: int | tuple[int, int], **attrs: Any) -> Call:
    """By constant weights, padded so that the image keeps its size; channels first or last."""
    rows, columns = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    groups, dilation = attrs.setdefault("groups", 1), attrs.setdefault("dilations", (1, 1))[0]
    last = attrs.get("data_layout") == "NSC"
    inner = tensor_type(x).shape[-1 if last else 1] // groups
    before, beside = dilation * (rows - 1) // 2, dilation * (columns - 1) // 2
    attrs.setdefault("padding", ((before, before), (beside, beside)))
    shape = (rows, columns, inner, outputs) if last else (outputs, inner, rows, columns)
    node = call("conv", x, const(*shape), kernel_layout="SIO" if last else "OIS", **attrs)
    assert isinstance(node, Call)
    return node


def total(*terms: Expr) -> Expr:
    value = terms[0]
    for term in terms[1:]:
        value = call("add", value, term)
    return value


def merged(body: Expr, x: Any, rtol: float = 1e-5) -> Expr:
    """The body after the pass, whose results are the same."""
    before = module_of([x], body)
    after = merge_branches(before, TARGET)
    shape = tensor_type(x).shape
    inputs = [RNG.standard_normal(shape).astype(x.type.dtype)]
    agree(after, before, inputs, rtol=rtol, atol=rtol * 10)
    return after.main.body


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("groups", [1, 3, 6])
@pytest.mark.parametrize("size", [7, 8])
def test_windows_inside_a_larger_one(last: bool, stride: int, groups: int, size: int) -> None:
    layout = "NSC" if last else "NCS"
    x = var("x", 2, size, size, 6) if last else var("x", 2, 6, size, size)
    attrs = {"groups": groups, "strides": (stride, stride), "data_layout": layout}
    kernels = (5, 3, 1, (1, 3), (3, 1))
    convs = [conv(x, 12, k, **attrs) for k in kernels]
    bias = const(12) if last else const(12, 1, 1)
    biased = [call("add", c, bias) for c in convs]
    after = merged(total(*biased), x)
    assert operators(after) == ["conv", "add"]
    assert calls(after)[0].attrs["padding"] == ((2, 2), (2, 2))


def test_windows_that_reach_further_on_either_side_stay() -> None:
    x = var("x", 1, 4, 9, 9)
    early = conv(x, 4, (3, 1), padding=((2, 0), (0, 0)))
    late = conv(x, 4, (3, 1), padding=((0, 2), (0, 0)))
    assert operators(merged(total(early, late), x)) == ["conv", "conv", "add"]
    both = conv(x, 4, (5, 1))
    after = merged(total(early, late, both), x)
    assert operators(after) == ["conv"]


@pytest.mark.parametrize("dilation", [2, 3])
def test_dilated_windows(dilation: int) -> None:
    x = var("x", 1, 4, 13, 11)
    wide = conv(x, 4, 5, dilations=(dilation, dilation))
    inner = conv(x, 4, 3, dilations=(dilation, dilation))
    single = conv(x, 4, 1)
    assert operators(merged(total(wide, inner, single), x)) == ["conv"]
    plain = conv(x, 4, 3)
    assert operators(merged(total(plain, wide), x)) == ["conv", "conv", "add"]


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("kernel", [1, 3])
def test_a_scaled_image_is_a_tap_of_each_channel(groups: int, kernel: int) -> None:
    x = var("x", 1, 6, 5, 7)
    scaled = call("add", call("multiply", x, const(6, 1, 1)), const(6, 1, 1))
    after = merged(total(conv(x, 6, kernel, groups=groups), scaled), x)
    assert operators(after) == ["conv", "add"]
    strided = call("conv", x, const(6, 6, 1, 1), strides=(2, 2))
    small = call("multiply", call("slice", x, begin=(0, 0, 0, 0), size=(1, 6, 3, 4),
                                  strides=(1, 1, 2, 2)), const(6, 1, 1))  # fmt: skip
    assert operators(merged(total(strided, small), x)) == ["conv", "slice", "multiply", "add"]


def test_a_plain_residual_stays() -> None:
    x = var("x", 1, 6, 5, 5)
    assert operators(merged(total(x, conv(x, 6, 3)), x)) == ["conv", "add"]
    after = merged(total(x, conv(x, 6, 3), conv(x, 6, 1)), x)
    assert operators(after) == ["conv", "add"]


def test_factors_and_differences_of_sums() -> None:
    """As FastViT mixes: x + s * (mixer(x) - norm(x))."""
    x = var("x", 1, 6, 9, 9)
    mixer = total(conv(x, 6, 3, groups=6), conv(x, 6, 1, groups=6), const(6, 1, 1))
    norm = call("add", call("multiply", x, const(6, 1, 1)), const(6, 1, 1))
    difference = call("subtract", mixer, norm)
    scaled = call("multiply", difference, const(6, 1, 1))
    assert operators(merged(total(x, scaled), x)) == ["conv", "add", "add"]
    halves = call("multiply", total(conv(x, 6, 3), conv(x, 6, 1)), number(0.5))
    assert operators(merged(call("subtract", halves, conv(x, 6, 1)), x)) == ["conv"]
    other = call("tanh", x)
    rest = call("subtract", total(conv(x, 6, 3), conv(x, 6, 1)), call("multiply", other, number(3)))
    assert operators(merged(rest, x)) == ["conv", "tanh", "multiply", "subtract"]


def test_branches_of_two_images_are_two_convolutions() -> None:
    x = var("x", 1, 4, 6, 6)
    y = call("tanh", x)
    terms = [conv(image, 8, kernel) for kernel in (3, 1) for image in (x, y)]
    assert operators(merged(total(*terms, call("tanh", conv(x, 8, 1))), x)).count("conv") == 3


def variable_weights(x: Expr) -> Expr:
    return call("conv", x, call("tanh", const(4, 4, 1, 1)))


def of_other_groups(x: Expr) -> Expr:
    return conv(x, 4, 3, groups=2)


def padded_by_ones(x: Expr) -> Expr:
    return conv(x, 4, 3, pad_value=1.0)


@pytest.mark.parametrize("other", [variable_weights, of_other_groups, padded_by_ones])
def test_what_is_no_such_branch_stays(other: Callable[[Expr], Expr]) -> None:
    x = var("x", 1, 4, 5, 5)
    assert operators(merged(total(conv(x, 4, 3), other(x)), x)).count("conv") == 2


def test_a_branch_that_others_read_stays() -> None:
    x = var("x", 1, 4, 5, 5)
    shared = conv(x, 4, 1)
    body = Tuple((total(conv(x, 4, 3), shared), shared))
    assert operators(merged(body, x)).count("conv") == 2


def test_float16_weights_are_added_in_full() -> None:
    x = var("x", 1, 4, 6, 6, dtype="float16")
    terms = [call("conv", x, const(4, 4, 1, 1, dtype="float16")) for _ in range(3)]
    after = merged(total(*terms), x, rtol=2e-2)
    assert operators(after) == ["conv"]
    (node,) = calls(after)
    weights = [np.asarray(t.args[1].data, np.float64) for t in terms if isinstance(t, Call)]
    np.testing.assert_array_equal(node.args[1].data, np.float16(sum(weights)))


def a_map_of_one_channel(x: Expr) -> list[Expr]:
    return [conv(x, 1, 3), conv(x, 4, 1)]


def a_single_row_of_results(x: Expr) -> list[Expr]:
    rows = call("slice", x, begin=(0,) * 4, size=(1, 4, 6, 1), strides=(1,) * 4)
    wide = call("conv", rows, const(4, 4, 1, 3), padding=((0, 0), (1, 5)))
    return [wide, call("conv", rows, const(4, 4, 1, 1))]


def windows_that_end_apart(x: Expr) -> list[Expr]:
    corner = call("slice", x, begin=(0,) * 4, size=(1, 4, 2, 2), strides=(1,) * 4)
    wide = call("conv", corner, const(4, 4, 3, 3), strides=(2, 2), padding=((1, 3), (1, 3)))
    return [wide, call("conv", corner, const(4, 4, 1, 1), strides=(2, 2))]


def one_output_scaled_by_channels(x: Expr) -> list[Expr]:
    scaled = call("multiply", conv(x, 1, 3), const(4, 1, 1))
    return [scaled, conv(x, 4, 1), call("tanh", x)]


def one_channel_spread(x: Expr) -> list[Expr]:
    one = call("slice", x, begin=(0,) * 4, size=(1, 1, 6, 6), strides=(1,) * 4)
    return [conv(one, 1, 3), call("multiply", one, const(3, 1, 1))]


@pytest.mark.parametrize("branches", [
    a_map_of_one_channel, a_single_row_of_results, windows_that_end_apart,
    one_output_scaled_by_channels, one_channel_spread,
])  # fmt: skip
def test_a_branch_that_the_sum_repeats_stays(branches: Callable[[Expr], list[Expr]]) -> None:
    x = var("x", 1, 4, 6, 6)
    before = total(*branches(x))
    assert operators(merged(before, x)).count("conv") == operators(before).count("conv")


def test_a_product_of_terms_that_stay_is_one() -> None:
    x = var("x", 1, 4, 6, 6)
    others = call("multiply", total(call("tanh", x), call("sigmoid", x)), const(4, 1, 1))
    after = merged(total(conv(x, 4, 3), conv(x, 4, 1), others), x)
    assert operators(after).count("multiply") == 1
    plain = call("subtract", conv(x, 4, 3), x)
    assert operators(merged(plain, x)) == ["conv", "subtract"]


def test_long_sums() -> None:
    x = var("x", 1, 4, 3, 3)
    terms = [conv(x, 4, 1), *[call("tanh", x)] * 2000, conv(x, 4, 3)]
    before = module_of([x], total(*terms))
    after = merge_branches(before, TARGET)
    assert operators(after.main.body).count("conv") == 1
    assert operators(after.main.body).count("add") == 2000


@pytest.mark.parametrize("seed", range(12))
def test_random_sums(seed: int) -> None:
    rng = np.random.default_rng(seed)
    channels = int(rng.integers(1, 7))
    x = var("x", int(rng.integers(1, 3)), channels, *(int(n) for n in rng.integers(5, 12, 2)))
    groups = int(rng.choice([1, channels]))
    terms: list[Expr] = []
    for _ in range(int(rng.integers(2, 6))):
        kernel = tuple(int(k) for k in rng.choice([1, 3, 5], 2))
        term: Expr = conv(x, channels, kernel, groups=groups)  # type: ignore[arg-type]
        if rng.random() < 0.3:
            term = call("multiply", x, const(channels, 1, 1))
        if rng.random() < 0.4:
            term = call("multiply", term, const(channels, 1, 1))
        if rng.random() < 0.4:
            term = call("add", term, const(channels, 1, 1))
        terms.append(term)
    before = total(*terms)
    after = merged(before, x)
    assert operators(after).count("conv") <= operators(before).count("conv")


def test_a_block_of_branches_is_one_kernel() -> None:
    """A block of MobileOne, its batch norms not yet folded."""
    x = var("x", 1, 16, 10, 10)

    def normed(value: Expr) -> Expr:
        scale, bias, mean = const(16), const(16), const(16)
        variance = Constant(np.abs(RNG.standard_normal(16)).astype("float32") + 0.5)
        return call("batch_norm", value, scale, bias, mean, variance)

    branches = [conv(x, 16, 3, groups=16), conv(x, 16, 3, groups=16), conv(x, 16, 1, groups=16), x]
    block = call("relu", total(*map(normed, branches)))
    module = IRModule({"main": module_of([x], block).main})
    optimized = optimize(module, TARGET)
    assert kernels_in(optimized) == ["transpose", "conv add relu", "transpose"]
    agree(optimized, module, [RNG.standard_normal((1, 16, 10, 10)).astype("float32")])
