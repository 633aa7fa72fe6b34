"""A thread an element: every operator that is no product, on odd shapes and under many configs."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from emulation import run_program
from gpu_harness import (
    F32,
    HOPPER,
    check,
    emitted,
    function_of,
    lowered,
    operator_cases,
)
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space
from tunefarm.compiler.tir.printer import print_program
from tunefarm.compiler.workload import Workload

OPERATORS = operator_cases()


def _workload(case: Any, rng: np.random.Generator) -> tuple[Workload, list[Any]]:
    arrays = [np.asarray(OPERATORS.draw(case, i, rng)) for i in range(len(case.shapes))]
    types = [(a.shape, a.dtype.name) for a in arrays]
    return Workload.from_function(function_of(case.op, *types, **case.attrs)), arrays


SMALL = {"ty": 8, "tx": 4, "vm": 1, "m4": 1, "vn": 1, "n4": 1, "bk": 4, "stages": 1}


@pytest.mark.parametrize("case", OPERATORS.CASES, ids=str)
def test_an_operator_agrees_with_its_meaning(case: Any) -> None:
    workload, arrays = _workload(case, np.random.default_rng(7))
    last = config_space(workload, HOPPER).sketches[-1]
    config = dict(last.default)
    if last.sketch == "gpu_simt":  # tiles as small as the shapes
        config |= SMALL
    else:
        assert last.sketch == "gpu_elements"
    program = check(workload, config, arrays)
    _, ptx = emitted(program)
    assert ".visible .entry" in ptx


FUSED = {
    "bias and relu": function_of(
        lambda a, b: call("relu", call("add", a, b)), ((5, 7, 24), F32), ((24,), F32)
    ),
    "odd": function_of(lambda a, b: call("relu", call("add", a, b)), ((5, 23), F32), ((23,), F32)),
    "pooling": function_of(
        lambda x: call("max_pool", x, kernel=(3, 3), strides=(2, 2), padding=((1, 1), (1, 1)),
                       dilations=(1, 1), data_layout="NSC"),
        ((1, 7, 9, 8), F32),
    ),
    "depthwise": function_of(
        lambda x, w: call("relu", call("conv", x, w, strides=(1, 1), padding=((1, 1), (1, 1)),
                                       dilations=(1, 1), groups=8, data_layout="NSC",
                                       kernel_layout="SIO", pad_value=0, out_dtype="")),
        ((1, 6, 5, 8), F32), ((3, 3, 1, 8), F32),
    ),
    "column sums": function_of("sum", ((33, 20), F32), axes=(0,), keepdims=False),
}  # fmt: skip


@pytest.mark.parametrize("name", FUSED)
def test_a_fused_function_agrees_under_random_configs(name: str) -> None:
    workload = Workload.from_function(FUSED[name])
    space = config_space(workload, HOPPER)
    rows = space.sample(np.random.default_rng(3), 32)
    for row in rows[space.valid(rows)][:6]:
        check(workload, space.decode(row))


@pytest.mark.parametrize(
    ("shape", "axis", "vec", "sketch"),
    [
        ((5000, 6), 0, 2, "gpu_elements"),  # lanes of columns
        ((4099,), 0, 1, "gpu_elements"),  # one result, a part is not whole
        ((3, 70, 6, 70), 3, 1, "gpu_elements"),  # two axes
        ((1 << 14 | 2, 2), 0, 2, "gpu_split"),  # what each of few parts sums
    ],
)
def test_long_sums_are_made_in_parts(
    shape: tuple[int, ...], axis: int, vec: int, sketch: str
) -> None:
    axes = (1, 3) if axis == 3 else (axis,)
    workload = Workload.from_function(
        function_of(lambda x: call("sum", x, axes=axes, keepdims=False), (shape, F32))
    )
    x = np.full(shape, 1 + 2**-12, np.float32)  # each rounding on the way is of one sign
    (space,) = (s for s in config_space(workload, HOPPER).sketches if s.sketch == sketch)
    config = {**space.default, "vec": vec, "threads": 32}
    name = "sum"
    if sketch == "gpu_split":
        config["split"], name = 4, "part"
    program = lowered(workload, config)
    assert f"{name}_parts" in print_program(program)
    (got,) = run_program(program, [x])
    wanted = x.astype(np.float64).sum(axis=axes)
    assert np.abs(got.reshape(wanted.shape) / wanted - 1).max() < 2e-7


def test_vectors_are_loaded_and_stored_at_once() -> None:
    program = lowered(Workload.from_function(FUSED["bias and relu"]))
    _, ptx = emitted(program)
    assert len(re.findall(r"ld\.global(\.nc)?\.v4", ptx)) == 2
    assert len(re.findall(r"st\.global\.v4", ptx)) == 1


def test_exponentials_take_the_special_function_unit() -> None:
    _, ptx = emitted(lowered(Workload.from_function(function_of("exp", ((3, 64), F32)))))
    assert "ex2.approx.ftz.f32" in ptx


def test_indices_are_divided_in_32_bits() -> None:
    function = function_of("transpose", ((2, 19, 5, 7), F32), axes=(0, 2, 3, 1))
    _, ptx = emitted(lowered(Workload.from_function(function)))
    assert not re.search(r"(div|rem)\.[su]64", ptx)


def test_a_pixel_of_planes_is_one_vector() -> None:
    """Threads side by side read planes side by side, and each stores a pixel's channels at once."""
    for channels, padded in ((3, 4), (2, 2)):
        planes = ((2, channels, 5, 37), "float16")

        def body(x: Any, more: int = padded - channels) -> Any:
            moved = call("transpose", x, axes=(0, 2, 3, 1))
            return call("pad", moved, padding=((0, 0), (0, 0), (0, 0), (0, more)))

        workload = Workload.from_function(function_of(body, planes))
        config = config_space(workload, HOPPER).default
        assert config["vec"] == padded
        program = check(workload, config)
        ptx = emitted(program)[1]
        assert (ptx.count("ld.global"), ptx.count("st.global")) == (channels, 1)
