"""Samples read pixels, whose channels fill vectors; transposes around them meet others."""

from __future__ import annotations

import numpy as np
import pytest
from pass_harness import agree, kernels_in, module_of
from tunefarm.compiler.ir import Constant, Expr, TensorType, Var, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import optimize
from tunefarm.compiler.transform.constants import reshape
from tunefarm.compiler.transform.convert_layout import convert_layout

TARGET = Target("llvm -mcpu=znver5 -num-cores=1")


def sampled(x: Expr, places: Var, weights: Var) -> Expr:
    """An image at as many places as it has pixels, as GridSample is imported."""
    shape = tensor_type(x).shape
    batch, channels, *spatial = shape
    data = reshape(x, (batch, channels, int(np.prod(spatial))))
    return reshape(call("sample", data, places, weights), shape)


def operands(batch: int, pixels: int, taps: int) -> tuple[Var, Var]:
    shape = (batch, pixels, taps)
    return Var("p", TensorType(shape, "int32")), Var("w", TensorType(shape, "float32"))


@pytest.mark.parametrize("channels", [1, 3, 19])
def test_a_sample_alone_is_turned_twice(channels: int) -> None:
    image = Var("x", TensorType((2, channels, 5, 4), "float32"))
    places, weights = operands(2, 20, 4)
    module = module_of((image, places, weights), sampled(image, places, weights))
    converted = convert_layout(module, TARGET)
    assert "data_layout='NSC'" in str(converted)
    on_gpu = convert_layout(module, Target("cuda -arch=sm_90a"))
    assert "data_layout" not in str(on_gpu)
    rng = np.random.default_rng(1)
    inputs = [
        rng.standard_normal((2, channels, 5, 4)).astype(np.float32),
        rng.integers(0, 20, (2, 20, 4)).astype(np.int32),
        rng.standard_normal((2, 20, 4)).astype(np.float32),
    ]
    agree(converted, module, inputs)


def test_between_convolutions_nothing_is_turned() -> None:
    image = Var("x", TensorType((1, 16, 6, 6), "float32"))
    places, weights = operands(1, 36, 4)
    rng = np.random.default_rng(0)

    def conv(x: Expr) -> Expr:
        kernel = Constant(rng.standard_normal((16, 16, 3, 3)).astype(np.float32))
        return call("conv", x, kernel, padding=((1, 1), (1, 1)))

    body = conv(sampled(conv(image), places, weights))
    module = module_of((image, places, weights), body)
    kernels = kernels_in(optimize(module, TARGET))
    assert [k for k in kernels if "transpose" not in k] == ["conv", "sample", "conv"]
    assert len(kernels) == 5  # the image and the result
