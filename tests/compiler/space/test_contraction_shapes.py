"""Products and convolutions of random shapes under random configs agree with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sketch_harness import check, configs, function_of
from tunefarm.compiler.ir import Function
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

F32 = "float32"
HOST = Target.host(2)
EXTENT = st.integers(1, 40)
SHORT = st.integers(1, 5)
FLAG = st.booleans()
SEED = st.integers(0, 9999)
bounded = settings(max_examples=25, deadline=None, derandomize=True, database=None)


def agrees(
    build: Any, shapes: list[tuple[int, ...]], constants: tuple[int, ...], seed: int
) -> None:
    """The default and two random configs, on small whole numbers: sums are exact in any order."""
    rng = np.random.default_rng(seed)
    made = function_of(build, *((shape, F32) for shape in shapes))
    attrs = {"primitive": True, "constants": constants}
    workload = Workload.from_function(Function(made.params, made.body, attrs))
    arrays = [rng.integers(-3, 4, p.type.shape).astype(F32) for p in workload.function.params]
    for config in configs(config_space(workload, HOST), rng, 2):
        check(workload, HOST, config, arrays, "execute")


def epilogue(kind: str, value: Any, rest: tuple[Any, ...]) -> Any:
    for operand in rest:
        value = call("add", value, operand)
    return call("relu", value) if kind == "relu" else value


@bounded
@given(EXTENT, EXTENT, EXTENT, FLAG, FLAG, FLAG, st.sampled_from(["", "relu"]), FLAG, FLAG, SEED)
def test_matmul(
    m: int, n: int, k: int, ta: bool, tb: bool, weights: bool, kind: str, bias: bool,
    residual: bool, seed: int,
) -> None:  # fmt: skip
    shapes = [(k, m) if ta else (m, k), (n, k) if tb else (k, n)]
    shapes += [(n,)] * bias + [(m, n)] * residual

    def build(a: Any, b: Any, *rest: Any) -> Any:
        return epilogue(kind, call("matmul", a, b, transpose_a=ta, transpose_b=tb), rest)

    agrees(build, shapes, (1,) if weights else (), seed)


@bounded
@given(SHORT, SHORT, EXTENT, EXTENT, EXTENT, FLAG, FLAG, FLAG, SEED)
def test_batched_matmul(
    b: int, c: int, m: int, n: int, k: int, ta: bool, tb: bool, shared: bool, seed: int
) -> None:
    batch = (1, c) if shared else (b, c)
    shapes = [(b, c, *((k, m) if ta else (m, k))), (*batch, *((n, k) if tb else (k, n)))]
    agrees(lambda x, y: call("matmul", x, y, transpose_a=ta, transpose_b=tb), shapes, (), seed)


GROUPS = st.sampled_from(["one", "some", "depthwise"])
WINDOW = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(1, 2))


@bounded
@given(
    st.integers(1, 2), st.integers(3, 11), st.integers(3, 11), st.integers(1, 19), SHORT, GROUPS,
    WINDOW, st.tuples(*[st.integers(0, 2)] * 4), st.sampled_from(["NSC", "NCS"]),
    st.sampled_from(["", "relu"]), FLAG, FLAG, SEED,
)  # fmt: skip
def test_conv(
    n: int, h: int, w: int, channels: int, group: int, groups: str,
    window: tuple[int, int, int, int], pads: tuple[int, int, int, int], layout: str, kind: str,
    bias: bool, residual: bool, seed: int,
) -> None:  # fmt: skip
    kh, kw, stride, dilation = window
    per_group = {"one": channels, "some": group, "depthwise": 1}[groups]
    count = 1 if groups == "one" else channels
    ci, co = per_group * count, channels if groups != "some" else count * 2
    rows = (h + pads[0] + pads[1] - dilation * (kh - 1) - 1) // stride + 1
    columns = (w + pads[2] + pads[3] - dilation * (kw - 1) - 1) // stride + 1
    assume(rows > 0 and columns > 0)
    last = layout == "NSC"
    data = (n, h, w, ci) if last else (n, ci, h, w)
    kernel = (kh, kw, per_group, co) if last else (co, per_group, kh, kw)
    out = (n, rows, columns, co) if last else (n, co, rows, columns)
    attrs = {
        "strides": (stride, stride),
        "padding": ((pads[0], pads[1]), (pads[2], pads[3])),
        "dilations": (dilation, dilation),
        "groups": count,
        "data_layout": layout,
        "kernel_layout": "SIO" if last else "OIS",
    }
    shapes = [data, kernel, *[(co,) if last else (co, 1, 1)] * bias, *[out] * residual]

    def build(x: Any, f: Any, *rest: Any) -> Any:
        return epilogue(kind, call("conv", x, f, **attrs), rest)

    agrees(build, shapes, (1,), seed)
