"""Convolutions of narrow groups, lanes over several of them: every shape agrees with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sketch_harness import check, configs, function_of
from tunefarm.compiler.codegen.llvm import emit_llvm
from tunefarm.compiler.ir import Function
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import ConfigSpace, config_space, grouped, schedule_workload
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.workload import Workload

F32 = "float32"
AVX2 = Target("llvm -mcpu=haswell")
TARGETS = [Target.host(2), AVX2]
FLAG = st.booleans()
bounded = settings(max_examples=10, deadline=None, derandomize=True, database=None)


def convolution(
    data: tuple[int, int, int], taps: tuple[int, int], inputs: int, outputs: int, groups: int,
    rest: tuple[tuple[int, ...], ...] = (), **attrs: Any,
) -> Function:  # fmt: skip
    """A convolution of ``groups`` of ``inputs`` channels to ``outputs`` each, constant weights."""
    attrs = {"groups": groups, "data_layout": "NSC", "kernel_layout": "SIO", **attrs}

    def build(x: Any, w: Any, *others: Any) -> Any:
        value = call("conv", x, w, **attrs)
        for operand in others:
            value = call("add", value, operand)
        return call("relu", value) if others else value

    shapes = [(*data, inputs * groups), (*taps, inputs, outputs * groups), *rest]
    made = function_of(build, *((shape, F32) for shape in shapes))
    return Function(made.params, made.body, {"primitive": True, "constants": (1,)})


def planes() -> Function:
    attrs = {"groups": 8, "data_layout": "NCS", "kernel_layout": "OIS"}
    made = function_of("conv", ((1, 32, 8, 8), F32), ((32, 4, 3, 3), F32), **attrs)
    return Function(made.params, made.body, {"primitive": True, "constants": (1,)})


@bounded
@given(
    st.tuples(st.integers(1, 2), st.integers(1, 9), st.integers(1, 17)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 2), st.integers(0, 2), st.integers(1, 2)),
    st.sampled_from([(4, 4), (8, 8), (2, 2), (3, 4), (6, 2), (2, 1)]), st.integers(1, 3),
    FLAG, FLAG, st.sampled_from(TARGETS), st.integers(0, 999),
)  # fmt: skip
def test_convolutions(
    data: tuple[int, int, int], taps: tuple[int, int], window: tuple[int, int, int],
    channels: tuple[int, int], vectors: int, bias: bool, residual: bool, target: Target, seed: int,
) -> None:  # fmt: skip
    stride, pad, dilation = window
    inputs, outputs = channels
    groups = vectors * target.lanes(F32) // outputs
    sizes = [
        (e + 2 * pad - dilation * (k - 1) - 1) // stride + 1
        for e, k in zip(data[1:], taps, strict=True)
    ]
    assume(min(sizes) > 0 and groups > 1)
    full = (data[0], *sizes, outputs * groups)
    function = convolution(
        data, taps, inputs, outputs, groups, ((full[-1],),) * bias + (full,) * residual,
        strides=(stride, stride), padding=((pad, pad), (pad, pad)), dilations=(dilation, dilation),
    )  # fmt: skip
    space = grouped.space(function, target)
    assert space is not None
    rng, workload = np.random.default_rng(seed), Workload.from_function(function)
    arrays = [rng.integers(-3, 4, p.type.shape).astype(F32) for p in workload.function.params]
    for config in configs(ConfigSpace((space,)), rng, 2):
        check(workload, target, config, arrays, "execute")


def test_lanes_take_their_groups_channel_from_one_load() -> None:
    """Of four channels a group, two groups in a vector: nothing is gathered, or read one by one."""
    function = convolution((1, 6, 16), (3, 3), 4, 4, 4)
    workload = Workload.from_function(function)
    config = config_space(workload, AVX2).default
    assert config["sketch"] == "grouped"
    text = emit_llvm(lower(schedule_workload(workload, AVX2, config)), AVX2).text
    assert "gather" not in text
    for channel in range(4):
        lanes = ", ".join(f"i32 {lane // 4 * 4 + channel}" for lane in range(8))
        assert f"<8 x i32> <{lanes}>" in text


@pytest.mark.parametrize(
    "function",
    [
        convolution((1, 8, 8), (3, 3), 1, 1, 32),  # depthwise
        convolution((1, 8, 8), (3, 3), 16, 16, 2),  # a group fills two vectors
        convolution((1, 8, 8), (3, 3), 4, 4, 3),  # twelve channels fill no vectors
        convolution((1, 8, 8), (3, 3), 3, 3, 8),  # a vector ends inside a group
        convolution((1, 8, 8), (3, 3), 8, 8, 1),
        planes(),
    ],
    ids=["depthwise", "wide", "half a vector", "three", "one group", "channels first"],
)
def test_others_are_left_to_other_sketches(function: Function) -> None:
    assert grouped.space(function, AVX2) is None


def test_the_default_suits_networks() -> None:
    """ResNeXt's and RegNet's groups of four channels, and of eight where these fill no vector for
    Winograd's method or lie two pixels apart."""
    for channels, groups, size, stride in ((128, 32, 56, 1), (256, 64, 28, 1), (64, 8, 56, 2)):
        width = channels // groups
        function = convolution(
            (1, size, size), (3, 3), width, width, groups,
            padding=((1, 1), (1, 1)), strides=(stride, stride),
        )  # fmt: skip
        config = config_space(Workload.from_function(function), AVX2).default
        assert config["sketch"] == "grouped"
        assert int(config["rw"]) >= 7


@pytest.mark.parametrize(
    ("width", "stride", "sketch"), [(8, 1, "grouped"), (8, 2, "grouped"), (16, 2, "contraction")]
)
def test_the_default_of_many_registers(width: int, stride: int, sketch: str) -> None:
    """A group that fills a vector is a product of its own. Of others the sums and a row of the
    pixels that they read stay in registers: 14 columns two apart took 1.5 × the time of seven."""
    function = convolution(
        (1, 56, 56), (3, 3), width, width, 32, padding=((1, 1), (1, 1)), strides=(stride, stride)
    )
    target = Target("llvm -mcpu=znver5")
    config = config_space(Workload.from_function(function), target).default
    assert config["sketch"] == sketch
    columns = int(config["rw"])
    held = columns + (3 + (columns - 1) * stride) + 2  # sums, pixels, and weights
    assert sketch == "contraction" or held <= target.vector_registers


def test_the_weights_of_all_groups_are_asked_for_ahead() -> None:
    """Each of 32 groups of 32 channels has 37 KB."""
    function = convolution((1, 7, 7), (3, 3), 32, 32, 32, padding=((1, 1), (1, 1)))
    config = config_space(Workload.from_function(function), Target("llvm -mcpu=znver5")).default
    assert config["next_panel"] == 1
