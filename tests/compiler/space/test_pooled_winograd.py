"""7 × 7 convolutions with the pooling behind them in one kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from convolutions import space_by
from hypothesis import given, settings
from hypothesis import strategies as st
from sketch_harness import configs, draw, parallel_loops, verify
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Expr, Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import (
    Config,
    ConfigSpace,
    config_space,
    pooled_winograd,
    schedule_workload,
)
from tunefarm.compiler.space.pooled_winograd.default import cycles
from tunefarm.compiler.space.pooled_winograd.knobs import held_bytes
from tunefarm.compiler.space.pooled_winograd.program import bands_of, pooled_of
from tunefarm.compiler.space.winograd.memory import BY_COLUMN, BY_GROUP
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import Allocate, Const, PrimFunc
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.tir.visit import walk_stmt
from tunefarm.compiler.workload import Workload

F32 = "float32"
HOST = Target.host(2)
ZEN5 = Target("llvm -mcpu=znver5 -num-cores=2")
THREE, NONE = ((3, 3), (3, 3)), ((0, 0), (0, 0))
RESNET = (1, 3, 224, 224)


def pair(
    shape: tuple[int, ...] = (1, 3, 37, 41),
    outputs: int = 24,
    padding: Any = THREE,
    window: tuple[int, int] = (3, 3),
    strides: tuple[int, int] = (2, 2),
    borders: Any = ((1, 1), (1, 1)),
    pool: str = "max_pool",
    residual: bool = False,
    activation: str = "relu",
    constants: tuple[int, ...] = (1, 2),
    layout: str = "NCS",
    **attrs: Any,
) -> Function:
    """An image, channels first or last, its convolution with bias and activation, and a pooling."""
    inputs = shape[1 if layout == "NCS" else -1]
    params = [Var("x", TensorType(shape, F32)), Var("w", TensorType((7, 7, inputs, outputs), F32))]
    layouts = {"data_layout": layout, "kernel_layout": "SIO", "out_layout": "NSC"}
    body: Expr = call("conv", *params, padding=padding, strides=(2, 2), **layouts)
    for kind in (TensorType((outputs,), F32), *([body.type] if residual else [])):
        params.append(Var(f"p{len(params)}", kind))  # type: ignore[arg-type]
        body = call("add", body, params[-1])
    limits = {"min": -0.5, "max": 1.5} if activation == "clip" else {}
    body = call(activation, body, **limits)
    body = call(
        pool, body, kernel=window, strides=strides, padding=borders, data_layout="NSC", **attrs
    )
    return Function(tuple(params), body, {"primitive": True, "constants": constants})


def space_of(function: Function, target: Target = HOST) -> ConfigSpace:
    return space_by(pooled_winograd, function, target)


def scheduled(function: Function, config: Config) -> PrimFunc:
    return lower(schedule_workload(Workload.from_function(function), HOST, config))


CASES: dict[str, dict[str, Any]] = {
    "a ResNet's": {},
    "a small one": {"shape": (1, 3, 23, 13), "outputs": 16},
    "windows apart": {"window": (2, 2), "borders": NONE, "shape": (1, 3, 61, 19)},
    "windows of gaps": {"window": (2, 2), "strides": (3, 3), "borders": NONE},
    "windows a pixel apart": {"strides": (1, 1), "shape": (2, 3, 29, 31)},
    "padding behind alone": {"borders": ((0, 1), (0, 1)), "shape": (1, 3, 40, 43)},
    "a window of padding": {"borders": ((2, 3), (0, 2)), "activation": "clip"},
    "a row of windows": {"shape": (3, 3, 5, 12), "outputs": 16},
    "no padding": {"padding": NONE, "borders": NONE, "outputs": 40},
    "oblong windows": {"window": (2, 5), "strides": (1, 3), "shape": (1, 2, 33, 33)},
    "channels last": {"layout": "NSC", "shape": (2, 26, 31, 4)},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_pooled_results_are_those_of_two_kernels(case: dict[str, Any]) -> None:
    function = pair(**case)
    rng = np.random.default_rng(0)
    arrays = draw(function, rng)
    for config in configs(space_of(function), rng, 2):
        verify(function, HOST, config, arrays)
        if arrays[0].size < 1000:
            verify(function, HOST, config, arrays, "interpret")


@settings(max_examples=8)
@given(
    size=st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(8, 60), st.integers(8, 60)),
    outputs=st.integers(16, 40),
    window=st.tuples(st.integers(2, 4), st.integers(2, 4)),
    strides=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    border=st.tuples(*[st.integers(0, 2)] * 4),
    seed=st.integers(0, 1 << 30),
)
def test_any_shape_in_any_config(
    size: tuple[int, ...],
    outputs: int,
    window: tuple[int, int],
    strides: tuple[int, int],
    border: tuple[int, ...],
    seed: int,
) -> None:
    (down, across), (top, bottom, left, right) = window, border
    borders = (
        (min(top, down - 1), min(bottom, down - 1)),
        (min(left, across - 1), min(right, across - 1)),
    )
    function = pair(size, outputs, window=window, strides=strides, borders=borders)
    if pooled_winograd.space(function, HOST) is None:
        return  # too few channels for lanes, or an image of a single row
    rng = np.random.default_rng(seed)
    for config in configs(space_of(function), rng, 1):
        verify(function, HOST, config, draw(function, rng))


def test_a_ring_keeps_the_rows_of_a_band_and_each_core_has_half() -> None:
    function = pair(RESNET, 64)
    config = space_of(function, ZEN5).default
    assert (config["tile_h"], config["rows"]) == (4, 28)
    program = lower(schedule_workload(Workload.from_function(function), ZEN5, config))
    kept = {s.buffer.shape for s in walk_stmt(program.body) if isinstance(s, Allocate)}
    assert (1, 2, 4, 121, 64) in kept  # two rows of tiles, of 28
    (parallel,) = parallel_loops(program)
    assert isinstance(parallel.extent, Const)
    assert parallel.extent.value == 2


@pytest.mark.parametrize(
    ("mcpu", "by_row"), [("znver4", BY_COLUMN), ("znver5", BY_GROUP), ("haswell", BY_GROUP)]
)
def test_products_stay_in_registers_where_loads_are_fast(mcpu: str, by_row: int) -> None:
    target = Target(f"llvm -mcpu={mcpu} -num-cores=2")
    assert space_of(pair(RESNET, 64), target).default["by_row"] == by_row


@pytest.mark.parametrize(("mcpu", "tiles"), [("znver5", 6), ("emeraldrapids", 14)])
def test_products_of_a_mesh_stay_in_the_second_cache(mcpu: str, tiles: int) -> None:
    target = Target(f"llvm -mcpu={mcpu} -num-cores=2")
    assert space_of(pair(RESNET, 64), target).default["rw"] == tiles


def test_one_kernel_is_faster_in_the_model_and_the_default_the_fastest() -> None:
    function = pair(RESNET, 64)
    assert pooled_winograd.saving(function, ZEN5) > 100_000
    found = pooled_of(function)
    assert found is not None
    space = space_of(function, ZEN5)
    rows = space.sample(np.random.default_rng(0), 200)
    columns = space.columns(rows[space.valid(rows)], 0)
    default = {n: np.array([v]) for n, v in space.default.items() if n != "sketch"}
    lanes = ZEN5.lanes(F32)
    assert cycles(found, ZEN5, lanes, default)[0] <= cycles(found, ZEN5, lanes, columns).min()


def test_scratch_is_counted_as_it_is_allocated() -> None:
    function = pair((1, 3, 90, 77), 40)
    found = pooled_of(function)
    assert found is not None
    space = space_of(function)
    rows = space.sample(np.random.default_rng(0), 400)
    for row in rows[space.valid(rows)][:8]:
        config = space.decode(row)
        program = scheduled(function, config)
        held = [s.buffer for s in walk_stmt(program.body) if isinstance(s, Allocate)]
        held = list({b.name: b for b in held if b.scope == "local"}.values())
        held = [b for b in held if b.name not in ("rows_in", "rows_out")]  # a tile's, not counted
        local = sum(4 * int(np.prod(b.shape)) for b in held)
        counted = held_bytes(found, HOST.lanes(F32), space.columns(row[None], 0))
        assert local <= counted[0] <= 1.3 * local, config


@pytest.mark.parametrize(
    "function",
    [
        pair(pool="avg_pool", counted=((1, 1), (1, 1))),
        pair(dilations=(2, 2)),
        pair(residual=True),
        pair(constants=()),
        pair(window=(1, 1), borders=NONE),
        pair((1, 3, 37, 3000), 512),
    ],
    ids=["average", "dilated", "residual", "weights are data", "one pixel", "long rows"],
)
def test_others_have_no_such_sketch(function: Function) -> None:
    assert pooled_winograd.space(function, HOST) is None
    assert pooled_winograd.saving(function, HOST) <= 0


@pytest.mark.parametrize("target", ["cuda -arch=sm_90", "llvm -mcpu=znver5 -precision=strict"])
def test_other_targets_have_no_such_sketch(target: str) -> None:
    space = config_space(Workload.from_function(pair()), Target(target))
    assert "pooled_winograd" not in {s.sketch for s in space.sketches}


def test_blocks_that_end_inside_a_band_are_refused() -> None:
    function = pair(RESNET, 64)
    found = pooled_of(function)
    assert found is not None
    with pytest.raises(ScheduleError, match="blocks of 20 pooled rows"):
        bands_of(found, 20, 3)
    with pytest.raises(ScheduleError, match="no 7x7 convolution"):
        pooled_winograd.schedule(pair(residual=True), HOST, space_of(function).default)
