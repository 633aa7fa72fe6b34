"""Depthwise convolutions whose taps are all unrolled agree with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sketch_harness import check
from tunefarm.compiler.ir import Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space, contraction
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

HOST = Target(f"llvm -mcpu={Target.host().mcpu} -num-cores=2")
ZEN5 = Target("llvm -mcpu=znver5 -num-cores=1")
SAME = ((1, 1), (1, 1))


def depthwise(size: tuple[int, int], channels: int, taps: tuple[int, int] = (3, 3),
              **attrs: Any) -> Function:  # fmt: skip
    x = Var("x", TensorType((1, *size, channels), "float32"))
    weights = Var("w", TensorType((*taps, 1, channels), "float32"))
    body = call("conv", x, weights, groups=channels, data_layout="NSC", kernel_layout="SIO",
                **({"padding": SAME} | attrs))  # fmt: skip
    return Function((x, weights), call("relu", body), {"primitive": True, "constants": (1,)})


@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(
    st.tuples(st.integers(3, 17), st.integers(3, 17)), st.integers(2, 40),
    st.sampled_from([(3, 3), (2, 5), (5, 3)]), st.sampled_from([(1, 1), (2, 2), (1, 2)]),
    st.tuples(*[st.integers(0, 3)] * 4), st.integers(0, 9999),
)  # fmt: skip
def test_random_tiles_of_whole_windows(
    size: tuple[int, int], channels: int, taps: tuple[int, int], strides: tuple[int, int],
    pads: tuple[int, int, int, int], seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    padding = ((pads[0] + 1, pads[1]), (pads[2] + 1, pads[3]))
    function = depthwise(size, channels, taps, padding=padding, strides=strides)
    space = contraction.space(function, HOST)
    assert space is not None
    drawn = {knob.name: rng.choice(np.array(knob.choices), 4000) for knob in space.knobs}
    drawn["ku"][:] = taps[0] * taps[1]
    allowed = np.all([c.holds(drawn) for c in space.constraints], axis=0)
    arrays = [rng.integers(-3, 4, p.type.shape).astype("float32") for p in function.params]
    for row in np.flatnonzero(allowed)[:2]:
        config = {name: values[row].item() for name, values in drawn.items()}
        config["sketch"] = "contraction"
        check(Workload.from_function(function), HOST, config, arrays, "execute")


@pytest.mark.parametrize(("size", "channels", "stride", "tile"), [
    (112, 32, 1, (1, 7, 1)),  # 3.2 MB of images
    (28, 192, 2, (7, 1, 2)),
    (14, 512, 1, (7, 1, 2)),  # rows meet in one set of the first level
    (7, 960, 1, (7, 1, 2)),
])  # fmt: skip
def test_tiles_are_tall_where_images_exceed_the_second_cache(
    size: int, channels: int, stride: int, tile: tuple[int, int, int]
) -> None:
    function = depthwise((size, size), channels, strides=(stride, stride))
    default = config_space(Workload.from_function(function), ZEN5).default
    assert tuple(default[n] for n in ("rw", "rh", "nv")) == tile
    assert default["ku"] == 9


@pytest.mark.parametrize(("stride", "taps"), [(1, 5), (2, 25)])
def test_wider_windows_run_a_row_of_taps_at_a_time(stride: int, taps: int) -> None:
    """Unrolled, 5 × 5 taps at 28² had 18,000 lines of text and took 2.5 × the time."""
    function = depthwise((28, 28), 128, (5, 5), padding=((2, 2), (2, 2)), strides=(stride, stride))
    default = config_space(Workload.from_function(function), ZEN5).default
    assert tuple(default[n] for n in ("rw", "rh", "nv", "ku")) == (14, 1, 1, taps)


def test_windows_too_large_to_unroll_have_a_default(recwarn: pytest.WarningsRecorder) -> None:
    """7 × 7 taps of images beyond the second cache, as in ConvNeXt; NumPy warns of nothing."""
    function = depthwise((56, 56), 96, (7, 7), padding=((3, 3), (3, 3)))
    default = config_space(Workload.from_function(function), ZEN5).default
    assert default["ku"] <= 7
    assert not recwarn.list
