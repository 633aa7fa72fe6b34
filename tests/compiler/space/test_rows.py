"""Row functions of random shapes: every config that the constraints allow applies and agrees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sketch_harness import check, configs, function_of
from tunefarm.compiler.codegen.llvm import emit_llvm
from tunefarm.compiler.ir import Function
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space, schedule_workload
from tunefarm.compiler.space.stages import lane_choices, stages_of
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.workload import Workload

F32 = "float32"
HOST = Target.host(2)
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
        taps[stride, channels] = space.sketch("window").default["taps"]
    assert taps == {(1, 33): 1, (2, 33): 1, (3, 33): 0, (1, 768): 0}


@pytest.mark.parametrize("norm", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize(("function", "attrs"), [("gelu", {"approximate": True}), ("mish", {})])
@pytest.mark.parametrize("shape", [(5, 197), (9, 256)])
def test_functions_that_read_a_row_often_have_lanes(
    norm: str, function: str, attrs: dict[str, Any], shape: tuple[int, int]
) -> None:
    def build(x: Any, *parameters: Any) -> Any:
        return call(function, call(norm, x, *parameters), **attrs)

    row = ((shape[1],), F32)
    parameters = [row] if norm == "rms_norm" else [row, row]
    workload = Workload.from_function(function_of(build, (shape, F32), *parameters))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(p.type.shape).astype(F32) for p in workload.function.params]
    for cpu in ("znver5", "haswell"):
        target = Target(f"llvm -mcpu={cpu} -num-cores=1")
        assert config_space(workload, target).default["sketch"] == "rows"
    check(workload, HOST, config_space(workload, HOST).default, arrays, "execute")


@pytest.mark.parametrize("shape", [(5, 17), (3, 7, 65), (2, 1000), (9, 1), (40, 33)])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("log_softmax", {}),
        ("l2_normalize", {"least": 4.0}),
        ("l2_normalize", {"epsilon": 0.5, "added": 0.25}),
    ],
)
def test_rows_written_out_in_graphs(
    op: str, attrs: dict[str, float], axis: int, shape: tuple[int, ...]
) -> None:
    workload = Workload.from_function(function_of(op, (shape, F32), axis=axis, **attrs))
    rng = np.random.default_rng(0)
    for config in configs(config_space(workload, HOST), rng, 3):
        check(workload, HOST, config, [rng.standard_normal(shape).astype(F32)], "execute")


def over_rows(kind: str, shape: tuple[int, int], dtype: str) -> Workload:
    """A row function that reduces along the last axis of one operand."""

    def build(x: Any) -> Any:
        if kind == "layer_norm":
            mean = call("mean", x, axes=(1,), keepdims=True)
            apart = call("subtract", x, mean)
            squares = call("mean", call("multiply", apart, apart), axes=(1,), keepdims=True)
            return call("divide", apart, call("sqrt", call("add", squares, squares)))
        attrs = {"softmax": {"axis": 1}, "argmax": {"axis": 1}}
        return call(kind, x, **attrs.get(kind, {"axes": (1,)}))

    return Workload.from_function(function_of(build, (shape, dtype)))


@settings(max_examples=8, deadline=None, derandomize=True, database=None)
@given(
    st.sampled_from(["layer_norm", "softmax", "argmax", "max", "sum"]),
    st.integers(1, 40),
    st.integers(17, 420),
    st.integers(0, 9999),
)
@example("sum", 33, 17, 0)
@example("max", 17, 383, 1)
@example("softmax", 19, 197, 2)
def test_rows_by_lines(kind: str, count: int, columns: int, seed: int) -> None:
    """Rows that begin inside lines, read from the beginnings of lines."""
    target, rng = Target(f"llvm -mcpu={HOST.mcpu} -num-cores=1"), np.random.default_rng(seed)
    workload = over_rows(kind, (count, columns), F32)
    space = config_space(workload, target)
    arrays = [rng.standard_normal((count, columns)).astype(F32) - 1]
    for config in configs(space, rng, 12):
        lined = {**config, "lines": 1}
        if "lines" in config and space.valid(space.encode(lined)[None])[0]:
            check(workload, target, lined, arrays, "execute")
            return
    assert columns % 16 == 0 or count == 1 or not target.has_masks(4)


def test_short_rows_are_taken_at_once() -> None:
    """Lanes lie along rows of a vector or so, for gathers cost more, and those of eight rows of at
    most two vectors are combined together; the result is NumPy's."""
    zen, rng = Target("llvm -mcpu=znver5 -num-cores=1"), np.random.default_rng(0)
    tiles = {}
    for kind, columns in (
        ("sum", 3), ("sum", 17), ("layer_norm", 8), ("softmax", 17), ("softmax", 65), ("sum", 65),
        ("max", 9),
    ):  # fmt: skip
        workload = over_rows(kind, (131, columns), F32)
        config = config_space(workload, zen).default
        stages = stages_of(workload.function, bool(config["keep"]))
        assert stages is not None
        place = lane_choices(stages, zen)[int(config["lane"])]
        tiles[kind, columns] = (place.axis is None, config["nv"], config["tile"])
        arrays = [rng.standard_normal((131, columns)).astype(F32)]
        check(workload, HOST, config_space(workload, HOST).default, arrays, "execute")
    assert tiles.pop(("sum", 3))[0] is False
    rows = [(True, 2, 8), (True, 1, 8), (True, 2, 8), (True, 5, 4), (True, 4, 4), (True, 1, 8)]
    assert list(tiles.values()) == rows


def test_lines_have_masks_at_the_ends_of_rows_alone() -> None:
    zen, arm = Target("llvm -mcpu=znver5 -num-cores=1"), Target("llvm -mtriple=aarch64-linux-gnu")
    assert "lines" not in config_space(over_rows("sum", (64, 384), F32), zen).default
    assert "lines" not in config_space(over_rows("sum", (64, 383), F32), arm).default
    workload = over_rows("layer_norm", (64, 383), F32)
    config = config_space(workload, zen).default
    assert (config["lines"], config["tile"]) == (1, 2)
    text = emit_llvm(lower(schedule_workload(workload, zen, config)), zen).text
    sums, results = 2 * 2 * 3, 2
    assert text.count("call <16 x float> @llvm.masked.load") == sums + results


def test_a_zen_4_takes_long_rows_in_pairs() -> None:
    """Rows of 12 vectors or more, two at a time by four vectors, where stages then run a tile apart
    and none but one row's values are stored."""
    tiles = {}
    shapes = (
        ("softmax", 128), ("softmax", 192), ("softmax", 768), ("layer_norm", 384),
        ("layer_norm", 768), ("layer_norm", 1024), ("max", 768),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    for mcpu in ("znver4", "znver5"):
        target = Target(f"llvm -mcpu={mcpu} -num-cores=1")
        for kind, columns in shapes:
            workload = over_rows(kind, (33, columns), F32)
            config = config_space(workload, target).default
            tiles[mcpu, kind, columns] = (config["nv"], config["tile"])
            if config["tile"] == 2:
                arrays = [rng.standard_normal((33, columns)).astype(F32)]
                check(workload, HOST, config, arrays, "execute")
    found = {k: tiles["znver4", *k] for k in shapes if tiles["znver4", *k] == (4, 2)}
    assert list(found) == [("softmax", 192), ("layer_norm", 384), ("layer_norm", 768)]
    assert (4, 2) not in [tiles["znver5", *k] for k in shapes]
    one = config_space(over_rows("layer_norm", (1, 768), F32), Target("llvm -mcpu=znver4")).default
    assert one["tile"] == 1


@pytest.mark.parametrize("shape", [(7, 200), (5, 33), (3, 1)])
def test_a_long_epilogue_gets_fewer_vectors_at_a_time(shape: tuple[int, int]) -> None:
    """The code of four vectors would exceed the limit; one element at a time is 20 × as slow."""

    def build(x: Any) -> Any:
        value = call("subtract", x, call("mean", x, axes=(1,), keepdims=True))
        for _ in range(14):
            value = call("sin", call("erf", value))
        return value

    workload = Workload.from_function(function_of(build, (shape, F32)))
    config = config_space(workload, HOST).default
    assert (config["sketch"], config["nv"]) == ("rows", 1)
    arrays = [np.random.default_rng(0).standard_normal(shape).astype(F32)]
    check(workload, HOST, config, arrays, "execute")
