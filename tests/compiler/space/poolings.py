"""Pooling as workloads, and its sketches held to NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from sketch_harness import check, configs, function_of
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

HOST = Target.host(2)
PAIR = st.tuples(st.integers(1, 3), st.integers(1, 3))
WINDOWS = (
    st.tuples(st.integers(1, 2), st.integers(3, 12), st.integers(3, 12), st.integers(1, 40)),
    st.tuples(st.integers(2, 4), st.integers(2, 4)),
    PAIR,
    st.tuples(*[st.tuples(st.integers(0, 1), st.integers(0, 2))] * 2),
    st.sampled_from(["max float32", "avg float32", "avg whole", "max int8"]),
    st.integers(0, 9999),
)


def pooled(
    data: tuple[int, ...],
    kernel: tuple[int, int],
    strides: tuple[int, int] = (1, 1),
    padding: tuple[tuple[int, int], tuple[int, int]] = ((1, 1), (1, 1)),
    dtype: str = "float32",
    op: str = "max_pool",
    **attrs: Any,
) -> Workload:
    if op == "avg_pool":
        attrs = {"counted": padding, **attrs}
    pool = function_of(
        op, (data, dtype), kernel=kernel, strides=strides, padding=padding,
        **{"data_layout": "NSC", **attrs},
    )  # fmt: skip
    return Workload.from_function(pool)


def check_windows(
    sketch: str,
    data: tuple[int, ...],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    padding: tuple[tuple[int, int], tuple[int, int]],
    kind: str,
    seed: int,
) -> None:
    """The default of a sketch and some of its configs agree with NumPy, NaN among the values. Of
    averages, "whole" ones are divided by all terms, others by those in the data."""
    op, dtype = f"{kind[:3]}_pool", "int8" if kind == "max int8" else "float32"
    attrs = {"counted": ((0, 0), (0, 0))} if kind == "avg float32" else {}
    workload = pooled(data, kernel, strides, padding, dtype, op, **attrs)
    rng = np.random.default_rng(seed)
    space = config_space(workload, HOST)
    mine = [s for s in space.sketches if s.sketch == sketch]
    values = rng.standard_normal(data) * 40
    if dtype == "float32":
        values[rng.random(data) < 0.02] = np.nan
    drawn = [c for c in configs(space, rng, 9) if c["sketch"] == sketch]
    for config in (mine[0].default, *drawn[:3]) if mine else ():
        check(workload, HOST, config, [values.astype(dtype)], "execute")
