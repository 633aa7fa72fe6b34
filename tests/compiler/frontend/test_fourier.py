"""Fourier transforms of ONNX, held to NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tunefarm.compiler.errors import ModelError
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.frontend.onnx import from_onnx
from tunefarm.compiler.ir import IRModule

import tunefarm

Array = np.ndarray[Any, Any]


def imported(
    op: str, shape: tuple[int, ...], constants: dict[str, int | Array], opset: int, **attrs: int
) -> IRModule:
    """A model of one node, whose operands are ``x`` and the constants, in order ("-": absent)."""
    names = ["" if name.startswith("-") else name for name in constants]
    node = helper.make_node(op, ["x", *names], ["y"], **attrs)
    tensors = [
        numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items() if n in names
    ]
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        tensors,
    )
    return from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]))


def pairs(values: Array) -> Array:
    return np.stack([values.real, values.imag], -1)


def assert_close(got: Array, want: Array) -> None:
    assert got.shape == want.shape
    assert np.max(np.abs(got - want)) <= 2e-6 * np.max(np.abs(want))


@pytest.mark.parametrize("extent", [1, 7, 12])
@pytest.mark.parametrize("length", [None, 5, 16])
@pytest.mark.parametrize("axis", [0, 1, -2])
def test_transforms_and_their_inverses_are_numpys(
    extent: int, length: int | None, axis: int
) -> None:
    rng = np.random.default_rng(0)
    shape = [3, 2, 4]
    shape[axis if axis >= 0 else 2] = extent
    place = axis if axis >= 0 else 2
    given: dict[str, int | Array] = {"-" if length is None else "n": length or 0, "axis": axis}

    real = rng.standard_normal((*shape, 1)).astype(np.float32)
    for onesided, transform in ((0, np.fft.fft), (1, np.fft.rfft)):
        module = imported("DFT", real.shape, given, 20, onesided=onesided)
        (got,) = evaluate(module, {"x": real})
        assert_close(got, pairs(transform(real[..., 0], length, place)))

    parts = rng.standard_normal((*shape, 2)).astype(np.float32)
    values = parts[..., 0] + 1j * parts[..., 1]
    for inverse, transform in ((0, np.fft.fft), (1, np.fft.ifft)):
        module = imported("DFT", parts.shape, given, 20, inverse=inverse)
        (got,) = evaluate(module, {"x": parts})
        assert_close(got, pairs(transform(values, length, place)))

    if extent > 1 or length is not None:
        module = imported("DFT", parts.shape, given, 20, inverse=1, onesided=1)
        (got,) = evaluate(module, {"x": parts})
        assert_close(got[..., 0], np.fft.irfft(values, length, place))


def test_before_opset_20_the_axis_is_an_attribute() -> None:
    x = np.random.default_rng(0).standard_normal((2, 5, 3, 1)).astype(np.float32)
    (got,) = evaluate(imported("DFT", x.shape, {}, 17), {"x": x})
    assert_close(got, pairs(np.fft.fft(x[..., 0], axis=1)))
    (got,) = evaluate(imported("DFT", x.shape, {}, 17, axis=2), {"x": x})
    assert_close(got, pairs(np.fft.fft(x[..., 0], axis=2)))


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("samples, step, length", [(40, 7, 11), (16, 4, 16), (33, 40, 8)])
def test_frames_are_windowed_and_transformed(
    onesided: int, windowed: bool, samples: int, step: int, length: int
) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, samples, 1)).astype(np.float32)
    window = rng.uniform(0.1, 1, length).astype(np.float32) if windowed else np.ones(length)
    given: dict[str, int | Array] = {"step": step, "window" if windowed else "-": window}
    module = imported("STFT", x.shape, {**given, "length": length}, 17, onesided=onesided)
    starts = range(0, samples - length + 1, step)
    frames = np.stack([x[:, s : s + length, 0] * window for s in starts], 1)
    transform = np.fft.rfft if onesided else np.fft.fft
    want = pairs(transform(frames, axis=-1))
    assert_close(evaluate(module, {"x": x})[0], want)
    assert_close(tunefarm.build(module).run({"x": x})["y"], want)


@pytest.mark.parametrize(
    "op, shape, constants, attrs, reason",
    [
        ("DFT", (2, 8, 1), {"-": 0, "axis": 2}, {}, "no axis"),
        ("DFT", (2, 8, 2), {}, {"onesided": 1}, "takes real numbers"),
        ("DFT", (2, 8, 3), {}, {}, "does not end in 1 or 2 parts"),
        ("DFT", (1, 9000, 1), {}, {}, "transforms of 9000 numbers"),
        ("STFT", (1, 8, 1), {"step": 2, "-": 0, "length": 9}, {}, "do not fit a signal of 8"),
    ],
)
def test_what_is_no_transform_is_refused(
    op: str, shape: Any, constants: dict[str, Any], attrs: dict[str, int], reason: str
) -> None:
    with pytest.raises(ModelError, match=reason):
        imported(op, shape, constants, 20, **attrs)
