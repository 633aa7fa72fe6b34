"""Row functions of random shapes: every config that the constraints allow applies and agrees."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sketch_harness import check, configs, function_of
from tunefarm.compiler.ir import Function
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space, schedule_workload
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

F32 = "float32"
HOST = Target(f"llvm -mcpu={Target.host().mcpu} -num-cores=2")
EXTENT = st.sampled_from([1, 2, 3, 5, 7, 16, 33, 70, 200])
SHAPE = st.tuples(EXTENT, EXTENT, EXTENT)
KINDS = st.sampled_from(["softmax", "center", "divide by a sum"])
FIRST = st.sampled_from(["", "gelu", "tanh", "exp"])


def row_function(
    shape: tuple[int, ...], wide: tuple[bool, ...], axis: int, kind: str, first: str
) -> Function:
    """A chain with reductions along ``axis``; its second operand is broadcast where not wide."""

    def build(x: Any, bias: Any) -> Any:
        value = call("add", x, bias)
        value = call(first, value) if first else value
        if kind == "softmax":
            return call("softmax", value, axis=axis)
        value = call("subtract", value, call("mean", value, axes=(axis,), keepdims=True))
        if kind == "center":
            return value
        powers = call("exp", value)
        return call("divide", value, call("sum", powers, axes=(axis,), keepdims=True))

    other = tuple(n if w else 1 for n, w in zip(shape, wide, strict=True))
    return function_of(build, (shape, F32), (other, F32))


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(
    SHAPE, st.tuples(*[st.booleans()] * 3), st.integers(0, 2), KINDS, FIRST, st.integers(0, 9999)
)
@example((33, 200, 3), (True, True, False), 2, "divide by a sum", "exp", 0)
@example((200, 3, 1), (False, False, False), 1, "divide by a sum", "gelu", 0)
def test_every_allowed_config_applies(
    shape: tuple[int, ...], wide: tuple[bool, ...], axis: int, kind: str, first: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    workload = Workload.from_function(row_function(shape, wide, axis, kind, first))
    arrays = [rng.standard_normal(p.type.shape).astype(F32) for p in workload.function.params]
    default, *others = configs(config_space(workload, HOST), rng, 16)
    for config in others:
        schedule_workload(workload, HOST, config)
    for config in [default, *others[:2]]:
        check(workload, HOST, config, arrays, "execute")


def test_windows_that_overlap_share_their_loads() -> None:
    """Their taps are unrolled, if the image is in the second level of cache."""
    target = Target("llvm -mcpu=znver5 -num-cores=1")
    taps = {}
    for stride, channels in ((1, 33), (2, 33), (3, 33), (1, 768)):
        pool = function_of(
            "max_pool", ((1, 17, 17, channels), F32), kernel=(3, 3), strides=(stride, stride),
            padding=((1, 1), (1, 1)), data_layout="NSC",
        )  # fmt: skip
        space = config_space(Workload.from_function(pool), target)
        taps[stride, channels] = space.default["taps"]
    assert taps == {(1, 33): 1, (2, 33): 1, (3, 33): 0, (1, 768): 0}
