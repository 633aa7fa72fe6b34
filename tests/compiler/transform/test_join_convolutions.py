"""Convolutions around a depthwise one join where it pays, and only where nobody else reads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from pass_harness import agree, kernels_in, module_of, var
from tunefarm.compiler.extract import tasks_of
from tunefarm.compiler.ir import Constant, Expr, IRModule, Tuple
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import PassContext, optimize

TARGET = Target("llvm -mcpu=znver5 -num-cores=2")
EXPANDED, WINDOWS, PROJECTED = "conv add clip", "conv add clip", "conv add"
WHOLE = f"{EXPANDED} {WINDOWS} {PROJECTED}"


class Graph:
    """Builds convolutions, channels first, as a frontend leaves them."""

    def __init__(self, inputs: int, size: int, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.x = var("x", 1, inputs, size, size)

    def conv(self, value: Expr, outputs: int, kernel: int = 1, groups: int = 1) -> Expr:
        inputs = value.type.shape[1] // groups  # type: ignore[union-attr]
        weights = self._constant(outputs, inputs, kernel, kernel)
        pad = (kernel // 2, kernel // 2)
        value = call("conv", value, weights, padding=(pad, pad), groups=groups)
        return call("add", value, self._constant(outputs, 1, 1))

    def expanded(self, value: Expr, channels: int) -> Expr:
        return call("clip", self.conv(value, channels), min=0.0, max=6.0)

    def windows(self, value: Expr) -> Expr:
        channels = value.type.shape[1]  # type: ignore[union-attr]
        return call("clip", self.conv(value, channels, 3, channels), min=0.0, max=6.0)

    def _constant(self, *shape: int) -> Constant:
        return Constant(self.rng.standard_normal(shape, np.float32) * np.float32(0.3))


def kernels(
    graph: Graph, body: Expr, config: dict[str, int] | None = None
) -> tuple[IRModule, list[str]]:
    """The optimised module, whose results agree, and its kernels' operators."""
    module = module_of([graph.x], body)
    with PassContext(config=config or {}):
        optimized = optimize(module, TARGET)
    inputs = {"x": graph.rng.standard_normal(graph.x.type.shape).astype(np.float32)}
    agree(optimized, module, inputs, rtol=2e-4, atol=2e-4)
    return optimized, [n for n in kernels_in(optimized) if "conv" in n]


def test_a_networks_first_convolution_joins_the_windows_behind_it() -> None:
    g = Graph(3, 160)
    first = call("clip", g.conv(g.x, 32, 3), min=0.0, max=6.0)
    _, joined = kernels(g, g.conv(g.windows(first), 16))
    assert joined == [WHOLE]


def test_a_block_with_its_residual_is_one_kernel_and_one_task() -> None:
    g = Graph(16, 40)
    before = g.conv(g.x, 16)
    body = call("add", g.conv(g.windows(g.expanded(before, 96)), 16), before)
    module, names = kernels(g, body)
    assert names == [PROJECTED, f"{WHOLE} add"]
    _, task = tasks_of(module, TARGET)
    assert config_space(task.workload, TARGET).default["sketch"] == "inverted_residual"


def test_blocks_in_a_row_do_not_join_each_other() -> None:
    g = Graph(16, 40)
    value: Expr = g.x
    for _ in range(2):
        value = g.conv(g.windows(g.expanded(value, 96)), 16)
    assert kernels(g, value)[1] == [WHOLE, WHOLE]


def _expanded_is_a_result(g: Graph) -> Expr:
    expanded = g.expanded(g.x, 96)
    return Tuple((g.conv(g.windows(expanded), 16), expanded))


def _windows_are_a_result(g: Graph) -> Expr:
    windows = g.windows(g.expanded(g.x, 96))
    return Tuple((g.conv(windows, 16), windows))


def _residual_of_the_expanded(g: Graph) -> Expr:
    expanded = g.expanded(g.x, 96)
    return call("add", g.windows(expanded), expanded)


def _weights_are_data(g: Graph) -> Expr:
    kernel = call("reshape", call("mean", g.x, axes=(2, 3)), shape=(16, 1, 1, 1))
    windows = call("conv", g.x, kernel, padding=((0, 0), (0, 0)), groups=16)
    return g.conv(windows, 24)


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (_expanded_is_a_result, [EXPANDED, f"{WINDOWS} {PROJECTED}"]),
        (_windows_are_a_result, [f"{EXPANDED} {WINDOWS}", PROJECTED]),
        (_residual_of_the_expanded, [EXPANDED, f"{WINDOWS} add"]),
        (_weights_are_data, ["conv", PROJECTED]),
    ],
)
def test_what_others_read_is_stored(build: Callable[[Graph], Expr], wanted: list[str]) -> None:
    g = Graph(16, 40)
    assert sorted(kernels(g, build(g))[1]) == sorted(wanted)


def test_small_images_stay_apart() -> None:
    g = Graph(16, 10)
    assert kernels(g, g.conv(g.windows(g.expanded(g.x, 48)), 16))[1] == [
        EXPANDED, WINDOWS, PROJECTED,
    ]  # fmt: skip


def test_an_option_keeps_them_apart() -> None:
    g = Graph(16, 40)
    body = g.conv(g.windows(g.expanded(g.x, 96)), 16)
    assert len(kernels(g, body, {"fuse_ops.join_convolutions": 0})[1]) == 3
