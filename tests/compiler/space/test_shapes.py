"""Random shapes and random configs: the machine code agrees with NumPy."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sketch_harness import check, configs, function_of
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

F32 = "float32"
HOST = Target.host(2)
EXTENT = st.integers(1, 40)
SHORT = st.integers(1, 9)


def agrees(function: Any, seed: int) -> None:
    """The default and one random config, on normal numbers; the second may refuse to apply."""
    rng = np.random.default_rng(seed)
    workload = Workload.from_function(function)
    arrays = [rng.standard_normal(p.type.shape).astype(F32) for p in workload.function.params]
    space = config_space(workload, HOST)
    for config in configs(space, rng, 1):
        refusable = () if config == space.default else (ScheduleError,)
        with suppress(*refusable):
            check(workload, HOST, config, arrays, "execute")


@settings(max_examples=20, deadline=None)
@given(SHORT, SHORT, EXTENT, st.integers(0, 3), st.integers(0, 99))
def test_broadcasting(a: int, b: int, c: int, kind: int, seed: int) -> None:
    other = [(c,), (b, 1), (a, 1, c), (1, b, c)][kind]
    agrees(function_of("maximum", ((a, b, c), F32), (other, F32)), seed)


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(4)), SHORT, SHORT, EXTENT, EXTENT, st.integers(0, 99))
def test_transposes(axes: list[int], a: int, b: int, c: int, d: int, seed: int) -> None:
    agrees(function_of("transpose", ((a, b, c, d), F32), axes=tuple(axes)), seed)


@settings(max_examples=20, deadline=None)
@given(SHORT, EXTENT, EXTENT, st.sampled_from([0, 1, 2]), st.integers(0, 99))
def test_softmax(a: int, b: int, c: int, axis: int, seed: int) -> None:
    agrees(function_of("softmax", ((a, b, c), F32), axis=axis), seed)


@settings(max_examples=20, deadline=None)
@given(
    SHORT, EXTENT, EXTENT, st.sampled_from([(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)]),
    st.sampled_from(["sum", "max", "mean"]), st.integers(0, 99),
)  # fmt: skip
def test_reductions(a: int, b: int, c: int, axes: tuple[int, ...], op: str, seed: int) -> None:
    agrees(function_of(op, ((a, b, c), F32), axes=axes, keepdims=False), seed)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(3, 14), st.integers(3, 14), EXTENT, st.integers(1, 3), st.integers(1, 3),
    st.integers(0, 1), st.sampled_from(["NSC", "NCS"]), st.sampled_from(["max_pool", "avg_pool"]),
    st.integers(0, 99),
)  # fmt: skip
def test_pooling(
    h: int, w: int, c: int, kernel: int, stride: int, pad: int, layout: str, op: str, seed: int
) -> None:
    pad = min(pad, kernel - 1)
    shape = (1, h, w, c) if layout == "NSC" else (1, c, h, w)
    attrs = {
        "kernel": (kernel, kernel),
        "strides": (stride, stride),
        "padding": ((pad, pad), (pad, pad)),
        "dilations": (1, 1),
        "data_layout": layout,
    }
    agrees(function_of(op, (shape, F32), **attrs), seed)
