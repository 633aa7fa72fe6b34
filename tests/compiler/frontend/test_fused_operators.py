"""Products, convolutions, activations and norms that onnxruntime's optimizers fuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tunefarm.compiler.errors import ModelError
from tunefarm.compiler.frontend.onnx import from_onnx

from tests.compiler.frontend.beside_onnxruntime import (
    RNG,
    Array,
    assert_alike,
    ints,
    model_of,
    normal,
)

ACTIVATIONS: dict[str, dict[str, float]] = {
    "Relu": {}, "Tanh": {}, "Sigmoid": {}, "LeakyRelu": {"alpha": 0.2},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.4},
}  # fmt: skip
OF_GEMM: dict[str, dict[str, float]] = {
    "Softplus": {}, "Softsign": {}, "Elu": {"alpha": 0.7}, "Celu": {"alpha": 0.4},
    "Selu": {"alpha": 1.5, "gamma": 1.2}, "ThresholdedRelu": {"alpha": 0.3},
}  # fmt: skip
OF_CONV: dict[str, dict[str, float]] = {"Clip": {"min": -0.5, "max": 0.7}, "HardSwish": {}}


@pytest.mark.parametrize(
    "op, bias, attrs",
    [
        ("Gelu", False, {}),
        ("BiasGelu", True, {}),
        ("FastGelu", False, {}),
        ("FastGelu", True, {}),
        ("QuickGelu", False, {}),
        ("QuickGelu", False, {"alpha": 0.9}),
    ],
)
def test_gelu(op: str, bias: bool, attrs: dict[str, Any]) -> None:
    x = normal(2, 3, 19)
    assert_alike(*model_of(op, [x, normal(19)] if bias else [x], **attrs))


@pytest.mark.parametrize(
    "a, b, attrs",
    [
        ((2, 3, 5), (2, 5, 7), {"alpha": 0.3}),
        ((2, 5, 3), (2, 7, 5), {"transA": 1, "transB": 1}),
        ((3, 2, 4, 5), (2, 4, 5, 7), {"transBatchA": 1}),
        ((5, 2, 3), (2, 5, 7), {"transBatchA": 1, "transA": 1}),
        ((2, 3, 5), (5, 2, 7), {"transBatchB": 1}),
        ((5,), (7, 5), {"transB": 1}),
        ((5,), (5, 7), {"transA": 1}),
    ],
)
def test_a_product_of_turned_matrices(
    a: tuple[int, ...], b: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    assert_alike(*model_of("FusedMatMul", [normal(*a), normal(*b)], **attrs))


@pytest.mark.parametrize("activation", [*ACTIVATIONS, *OF_GEMM])
def test_a_matrix_product_with_an_activation(activation: str) -> None:
    parameters = {**ACTIVATIONS, **OF_GEMM}[activation]
    attrs = {f"activation_{name}": value for name, value in parameters.items()}
    inputs = [normal(3, 5), normal(7, 5), normal(7)]
    assert_alike(
        *model_of(
            "FusedGemm", inputs, transB=1, alpha=0.5, beta=0.7, activation=activation, **attrs
        )
    )


@pytest.mark.parametrize("activation", [*ACTIVATIONS, *OF_CONV])
def test_a_convolution_with_an_activation(activation: str) -> None:
    parameters = list({**ACTIVATIONS, **OF_CONV}[activation].values())
    inputs = [normal(1, 4, 7, 9), normal(6, 2, 3, 3), normal(6)]
    attrs = {"activation_params": parameters} if parameters else {}
    assert_alike(
        *model_of(
            "FusedConv", inputs, (1, 2), group=2, pads=[1, 0, 1, 2], activation=activation, **attrs
        )
    )


@pytest.mark.parametrize("bias", [False, True])
def test_a_convolution_adds_before_its_activation(bias: bool) -> None:
    inputs = [normal(1, 4, 7, 9), normal(6, 4, 3, 3), normal(6) if bias else None]
    added = normal(1, 6, 7, 9)
    assert_alike(*model_of("FusedConv", [*inputs, added], (1, 2), pads=[1] * 4, activation="Relu"))


def test_an_unknown_activation_is_refused() -> None:
    model, _ = model_of("FusedGemm", [normal(3, 5), normal(5, 7)], activation="Gelu")
    with pytest.raises(ModelError, match=r"FusedGemm 'it'.*: the activation Gelu is not supported"):
        from_onnx(model)


@pytest.mark.parametrize("opset", [12, 14])
def test_layer_norm_of_opsets_before_it(opset: int) -> None:
    inputs = [normal(2, 3, 19), normal(19), normal(19)]
    assert_alike(*model_of("LayerNormalization", inputs, domain="", opset=opset, epsilon=1e-6))


@pytest.mark.parametrize("axis", [-1, 1])
def test_rms_norm_under_its_older_name(axis: int) -> None:
    x = normal(2, 3, 19)
    inputs = [x, normal(*x.shape[axis:])]
    assert_alike(*model_of("SimplifiedLayerNormalization", inputs, domain="", axis=axis))


@pytest.mark.parametrize("dtypes", [(np.float16, np.float32), (np.float32, np.float16)])
def test_an_rms_norm_has_the_type_of_its_scale(dtypes: tuple[type, type]) -> None:
    inputs = [x.astype(t) for x, t in zip((normal(2, 3, 19), normal(19)), dtypes, strict=True)]
    model, feeds = model_of("SimplifiedLayerNormalization", inputs, domain="")
    assert_alike(model, feeds, tolerance=1e-5 if dtypes[1] is np.float32 else 1e-3)


@pytest.mark.parametrize(
    "skip, beta, bias",
    [((2, 3, 19), True, True), ((1, 3, 19), False, False), ((3, 19), False, True)],
)
def test_the_layer_norm_of_a_sum(skip: tuple[int, ...], beta: bool, bias: bool) -> None:
    rows = [normal(19), normal(19) if beta else None, *([normal(19)] if bias else [])]
    inputs = [normal(2, 3, 19), normal(*skip), *rows]
    assert_alike(*model_of("SkipLayerNormalization", inputs, outputs=(0, 3), epsilon=1e-5))


@pytest.mark.parametrize("shape", [(2, 3, 19), (5, 19)])
@pytest.mark.parametrize("bias", [False, True])
def test_the_rms_norm_of_a_sum(shape: tuple[int, ...], bias: bool) -> None:
    inputs = [normal(*shape), normal(*shape), *(normal(19) for _ in range(1 + bias))]
    assert_alike(*model_of("SkipSimplifiedLayerNormalization", inputs, outputs=(0, 3)))


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("places", [None, 1, 2])
def test_the_layer_norm_of_embeddings(segments: bool, places: int | None) -> None:
    def drawn(most: int, rows: int = 2) -> Array:
        return RNG.integers(0, most, (rows, 5)).astype(np.int32)

    mask = ints([1, 1, 1, 0, 0], [1, 1, 1, 1, 0])
    inputs = [
        drawn(11), drawn(3) if segments else None, normal(11, 19), normal(9, 19),
        normal(3, 19) if segments else None, normal(19), normal(19), mask,
    ]  # fmt: skip
    inputs += [drawn(9, places)] if places else []
    assert_alike(*model_of("EmbedLayerNormalization", inputs, (2, 3, 4), (0, 1, 2)))


def test_embeddings_without_a_mask_count_nothing() -> None:
    words = RNG.integers(0, 11, (2, 5)).astype(np.int32)
    inputs = [words, None, normal(11, 19), normal(9, 19), None, normal(19), normal(19)]
    assert_alike(*model_of("EmbedLayerNormalization", inputs, (2, 3), (0, 1)))
