"""Convolutions of bytes in float32: where, and how many quanta are off."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from tunefarm.compiler.build import build_module
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.extract import extract_tasks
from tunefarm.compiler.ir import (
    Call,
    Constant,
    Expr,
    Function,
    IRModule,
    TensorType,
    Var,
    post_order,
    tensor_type,
)
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.convolve_in_float32 import convolve_in_float32

ZEN3 = Target("llvm -mcpu=znver3 -num-cores=1")
CHANNELS = 64
rng = np.random.default_rng(11)


def layer(
    size: int = 14,
    taps: int = 3,
    stride: int = 1,
    zero: int = 0,
    bias: bool = True,
    dtype: str = "uint8",
    channels: int = CHANNELS,
    planes: bool = False,
    groups: int = 1,
) -> IRModule:
    """A quantised convolution whose results span the range of bytes."""
    x = Var("x", TensorType((1, size, size, channels), dtype))
    pixels: Expr = x
    if planes:
        x = Var("x", TensorType((1, channels, size, size), dtype))
        pixels = call("transpose", x, axes=(0, 2, 3, 1))
    w = rng.integers(-127, 128, (taps, taps, channels // groups, CHANNELS)).astype(np.int8)
    pad = ((taps // 2,) * 2,) * 2
    sums: Expr = call(
        "conv", pixels, Constant(w), padding=pad, strides=(stride, stride), data_layout="NSC",
        kernel_layout="SIO", out_dtype="int32", pad_value=zero, groups=groups,
    )  # fmt: skip
    if bias:
        sums = call("add", sums, Constant(rng.integers(-(2**16), 2**16, CHANNELS).astype(np.int32)))
    spread = 80 * 130 * taps * (channels // groups) ** 0.5 / 40
    factors = rng.uniform(0.5 / spread, 1.5 / spread, CHANNELS).astype(np.float32)
    body = call("requantize", sums, Constant(factors), Constant(np.float32(128)))
    return IRModule({"main": Function((x,), body)})


def conv_dtype(module: IRModule) -> str:
    (conv,) = (e for e in post_order(module.main.body) if isinstance(e, Call) and e.op == "conv")
    return tensor_type(conv).dtype


def quanta_off(module: IRModule) -> NDArray[np.int64]:
    """How far results of the module in float32 are from those of integers."""
    widened = convolve_in_float32(module, ZEN3)
    assert conv_dtype(widened) == "float32"
    (x,) = module.main.params
    kind = np.iinfo(x.type.dtype)
    data = rng.integers(kind.min, kind.max + 1, x.type.shape).astype(x.type.dtype)
    want = np.asarray(evaluate(module.main, [data])).astype(np.int64)
    assert np.ptp(want) > 150
    host = Target.host(1)
    (got,) = build_module(widened, host).run({"x": data}).values()
    return np.abs(got.astype(np.int64) - want)


@pytest.mark.parametrize(
    "module",
    [
        layer(),
        layer(size=28, zero=3),
        layer(zero=130),
        layer(zero=-4, dtype="int8", bias=False),
        layer(size=13, bias=False),
        layer(size=56, taps=7, stride=2, channels=3, zero=120),
        layer(size=56, taps=7, stride=2, channels=3, planes=True),
        layer(taps=5),
        layer(groups=2),
    ],
)
def test_results_are_off_by_a_quantum_at_most_and_seldom(module: IRModule) -> None:
    off = quanta_off(module)
    assert off.max() <= 1
    assert np.count_nonzero(off) <= off.size / 2000


@pytest.mark.parametrize("planes", [False, True])
def test_first_layers_are_exact_and_read_planes(planes: bool) -> None:
    module = layer(size=57, stride=2, channels=3, zero=120, planes=planes)
    assert quanta_off(module).max() == 0
    nodes = post_order(convolve_in_float32(module, ZEN3).main.body)
    assert not any(isinstance(e, Call) and e.op == "transpose" for e in nodes)


@pytest.mark.parametrize(
    ("module", "target"),
    [
        (layer(), "llvm -mcpu=znver4"),  # sums four products of bytes in a lane
        (layer(), "llvm -mcpu=znver3 -precision=strict"),
        (layer(), "cuda -arch=sm_90a"),
        (layer(taps=1), "llvm -mcpu=znver3"),
        (layer(size=28, stride=2), "llvm -mcpu=znver3"),
    ],
)
def test_other_convolutions_stay_on_bytes(module: IRModule, target: str) -> None:
    assert convolve_in_float32(module, Target(target)) is module


@pytest.mark.parametrize(
    ("module", "target"),
    [(layer(), "llvm -mcpu=x86-64"), (layer(dtype="int8"), "llvm -mcpu=znver4")],
)
def test_bytes_that_no_instruction_sums_are_numbers(module: IRModule, target: str) -> None:
    assert conv_dtype(convolve_in_float32(module, Target(target))) == "float32"


def test_sums_that_others_read_stay_integers() -> None:
    main = layer().main
    assert isinstance(main.body, Call)
    sums, *parameters = main.body.args
    both = call("add", call("requantize", sums, *parameters), call("requantize", sums, *parameters))
    module = IRModule({"main": Function(main.params, both)})
    assert convolve_in_float32(module, ZEN3) is module


def test_another_calibration_has_the_same_keys() -> None:
    first, second = (extract_tasks(layer(zero=zero), ZEN3) for zero in (3, 5))
    assert [t.workload.key for t in first] == [t.workload.key for t in second]
