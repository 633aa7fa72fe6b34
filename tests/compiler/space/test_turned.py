"""Moves that turn rows into columns: tiles transposed in registers agree with NumPy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sketch_harness import check, configs, executed, function_of
from tunefarm.compiler.codegen.llvm import emit_llvm
from tunefarm.compiler.codegen.llvm_compile import assembly
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Expr, Function
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space, schedule_workload
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.facts import loads_of
from tunefarm.compiler.tir.ir import Load
from tunefarm.compiler.tir.schedule.tree import find_block, store_of
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.workload import Workload

F32 = "float32"
HOST = Target.host(2)
AVX2 = Target("llvm -mcpu=haswell -num-cores=1")
DTYPES = (F32, "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")


def turned(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str = F32) -> Workload:
    return Workload.from_function(function_of("transpose", (shape, dtype), axes=axes))


def default_of(workload: Workload, target: Target = HOST) -> dict[str, Any]:
    return dict(config_space(workload, target).default)


def drawn(workload: Workload, seed: int) -> list[NDArray[Any]]:
    rng = np.random.default_rng(seed)
    types = [p.type for p in workload.function.params]
    return [rng.integers(-99, 99, t.shape).astype(t.dtype) for t in types]


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.integers(1, 37), min_size=2, max_size=4), st.randoms(use_true_random=False),
    st.sampled_from(DTYPES), st.integers(0, 999),
)  # fmt: skip
def test_any_order_of_axes_under_random_configs(
    shape: list[int], random: Any, dtype: str, seed: int
) -> None:
    axes = random.sample(range(len(shape)), len(shape))
    workload = turned(tuple(shape), tuple(axes), dtype)
    arrays = drawn(workload, seed)
    rng = np.random.default_rng(seed)
    for config in configs(config_space(workload, HOST), rng, 2):
        check(workload, HOST, config, arrays, "execute")


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((1, 7, 7, 512), (0, 3, 1, 2)), ((1, 3, 61, 9), (0, 2, 3, 1)), ((37, 61), (1, 0)),
     ((5, 19, 3), (2, 0, 1))],
)  # fmt: skip
def test_such_moves_are_turned_by_default(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    workload = turned(shape, axes)
    config = default_of(workload)
    assert config["turn"] == 1
    check(workload, HOST, config, drawn(workload, 1))


@pytest.mark.parametrize(
    ("shape", "vectors"),
    [((64, 196), 1), ((192, 196), 1), ((384, 196), 2), ((256, 196), 2), ((768, 49), 2),
     ((512, 196), 4), ((1024, 49), 8), ((2048, 49), 8)],
)  # fmt: skip
def test_rows_that_meet_in_few_sets_are_written_several_lines_at_a_time(
    shape: tuple[int, int], vectors: int
) -> None:
    """256 × 3136 took 3.1 × the time by a line at a time, 512 × 196 5 × (Zen 5)."""
    wide = Target("llvm -mcpu=znver5 -num-cores=1")
    assert config_space(turned(shape, (1, 0)), wide).default["nv"] == vectors


def with_bias_and_residual(x: Expr, b: Expr, r: Expr) -> Expr:
    return call("relu", call("add", call("transpose", call("add", x, b), axes=(1, 0)), r))


def two_that_turn(x: Expr, y: Expr) -> Expr:
    return call("add", call("transpose", x, axes=(1, 0)), call("transpose", y, axes=(1, 0)))


def turned_to_floats(x: Expr) -> Expr:
    return call("cast", call("transpose", x, axes=(1, 0)), dtype=F32)


@pytest.mark.parametrize(
    ("body", "types"),
    [
        (with_bias_and_residual, (((43, 21), F32), ((21,), F32), ((21, 43), F32))),
        (two_that_turn, (((43, 21), F32), ((43, 21), F32))),
        (turned_to_floats, (((43, 21), "uint8"),)),
    ],
)
def test_what_is_fused_to_them_is_turned_too(body: Callable[..., Expr], types: Any) -> None:
    workload = Workload.from_function(function_of(body, *types))
    for target in (HOST, AVX2):
        config = default_of(workload, target)
        assert config["turn"] == 1
        for turn in (0, 1):
            run = "both" if target is HOST else "interpret"
            check(workload, target, {**config, "turn": turn, "nv": 1}, drawn(workload, 2), run)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (function_of("transpose", ((12, 197, 64), F32), axes=(1, 0, 2)), "rows stay rows"),
        (function_of("transpose", ((64, 2), F32), axes=(1, 0)), "few lanes"),
        (function_of("transpose", ((64, 64), "bool"), axes=(1, 0)), "no bits in lanes"),
        (
            function_of(
                lambda x: call("transpose", call("pad", x, padding=((1, 1), (1, 1))), axes=(1, 0)),
                ((30, 30), F32),
            ),
            "read under a condition",
        ),
    ],
)
def test_others_are_not(function: Function, why: str) -> None:
    workload = Workload.from_function(function)
    (sketch,) = config_space(workload, HOST).sketches
    assert {k.name: k.choices for k in sketch.knobs}["turn"] == (0,), why


@pytest.mark.parametrize(
    ("target", "lanes", "shuffles"),
    [("llvm -mcpu=haswell", 8, 24), ("llvm -mcpu=znver4", 16, 64),
     ("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1", 4, 8)],
)  # fmt: skip
def test_tiles_are_transposed_by_shuffles_alone(target: str, lanes: int, shuffles: int) -> None:
    """As many vectors as lanes, in so many rounds as their number has bits: no single element."""
    workload, made = turned((256, 512), (1, 0)), Target(f"{target} -num-cores=1")
    config = {**default_of(workload, made), "nv": 1}
    kernel = emit_llvm(lower(schedule_workload(workload, made, config)), made)
    assert kernel.text.count("shufflevector") == shuffles
    assert "insertelement" not in kernel.text
    loads = re.findall(rf"load <{lanes} x float>", kernel.text)
    assert len(loads) == lanes


def test_avx2_interleaves_within_blocks() -> None:
    workload = turned((256, 512), (1, 0))
    program = lower(schedule_workload(workload, AVX2, {**default_of(workload, AVX2), "nv": 1}))
    text = assembly(emit_llvm(program, AVX2).text, AVX2)
    mnemonics = re.findall(r"^\s+(vunpck[lh]p[sd]|vperm2f128|vinsertf128|vshufps)", text, re.M)
    assert len(mnemonics) >= 24
    assert "vinsertps" not in text


def move_of(workload: Workload) -> tuple[PrimFunc, str, Load]:
    """The program of a move that turns no tiles, its block, and what this reads."""
    program = schedule_workload(workload, AVX2, {**default_of(workload, AVX2), "turn": 0})
    (name,) = s.remaining_blocks(program)
    (value,) = loads_of(store_of(find_block(program, name)).value)
    return program, name, value


def test_values_are_kept_for_all_axes_that_they_differ_along() -> None:
    program, name, value = move_of(turned((8, 16), (1, 0)))
    with pytest.raises(ScheduleError, match="differs along axes that are left out"):
        s.cache_value(program, name, value, [0], "register")
    other = Load(value.buffer, (value.indices[0] + 1,))
    with pytest.raises(ScheduleError, match="has no such value"):
        s.cache_value(program, name, other, [0, 1], "register")


def test_a_kept_value_changes_nothing() -> None:
    workload = turned((9, 14), (1, 0))
    program, name, value = move_of(workload)
    program, _ = s.cache_value(program, name, value, [1, 0], "local")
    (array,) = drawn(workload, 3)
    result = np.zeros((14, 9), F32)
    executed(lower(program), HOST, [array], [result])
    np.testing.assert_array_equal(result, array.T)


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(st.integers(2, 37), st.sampled_from([8, 16, 48, 64]), st.integers(2, 61),
       st.integers(0, 999))  # fmt: skip
def test_copies_of_transposed_operands_turn_tiles(
    rows: int, depth: int, columns: int, seed: int
) -> None:
    function = function_of(
        "matmul", ((rows, depth), F32), ((columns, depth), F32), transpose_b=True
    )
    workload, rng = Workload.from_function(function), np.random.default_rng(seed)
    arrays = [rng.standard_normal(p.type.shape).astype(F32) for p in function.params]
    space = config_space(workload, AVX2)
    for config in configs(space, rng, 3):
        check(workload, AVX2, config, arrays, "execute" if seed % 4 else "both")


@pytest.mark.parametrize("pack_rhs", [1, 2])
def test_a_copy_loads_no_single_element(pack_rhs: int) -> None:
    """But for the rows of the left operand, which are not vectors."""
    function = function_of("matmul", ((4, 64), F32), ((64, 64), F32), transpose_b=True)
    workload = Workload.from_function(function)
    config = {**default_of(workload, AVX2), "pack_rhs": pack_rhs}
    assert config["sketch"] == "contraction"
    kernel = emit_llvm(lower(schedule_workload(workload, AVX2, config)), AVX2)
    assert kernel.text.count("shufflevector <8 x float>") >= 24
    copied = re.findall(r"load float, ptr %\w+", kernel.text)
    assert len(copied) <= 4 * int(config["ku"])
