"""Products on ordinary arithmetic: every kind of contraction, borders, tiles and stages."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from gpu_harness import F32, HOPPER, check, emitted, function_of, lowered
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

CONV: dict[str, Any] = {
    "strides": (1, 1), "padding": ((1, 1), (1, 1)), "dilations": (1, 1), "groups": 1,
    "data_layout": "NSC", "kernel_layout": "SIO", "pad_value": 0, "out_dtype": "",
}  # fmt: skip


def _conv(**attrs: Any) -> Any:
    def build(x: Any, w: Any, b: Any) -> Any:
        return call("relu", call("add", call("conv", x, w, **{**CONV, **attrs}), b))

    return build


PRODUCTS = {
    "matrices": function_of("matmul", ((33, 20), F32), ((20, 24), F32)),
    "odd": function_of("matmul", ((7, 13), F32), ((13, 11), F32)),
    "batched": function_of("matmul", ((2, 9, 16), F32), ((2, 16, 12), F32)),
    "turned": function_of(
        lambda a, b: call("matmul", a, call("transpose", b, axes=(0, 2, 1))),
        ((2, 9, 16), F32), ((2, 12, 16), F32),
    ),
    "a row": function_of("matmul", ((1, 24), F32), ((24, 16), F32)),
    "convolution": function_of(_conv(), ((1, 5, 6, 8), F32), ((3, 3, 8, 12), F32), ((12,), F32)),
    "strided": function_of(
        _conv(strides=(2, 2)), ((1, 7, 5, 3), F32), ((3, 3, 3, 10), F32), ((10,), F32)
    ),
    "grouped": function_of(
        _conv(groups=2), ((1, 4, 5, 8), F32), ((3, 3, 4, 12), F32), ((12,), F32)
    ),
    "bytes": function_of("matmul", ((9, 20), "int8"), ((20, 8), "int8"), out_dtype="int32"),
}  # fmt: skip
TILES = (
    {"ty": 8, "tx": 4, "vm": 1, "m4": 2, "vn": 1, "n4": 2, "bk": 8, "stages": 2, "by_column": 1,
     "split": 1},
    {"ty": 4, "tx": 8, "vm": 2, "m4": 1, "vn": 2, "n4": 1, "bk": 4, "stages": 3, "by_column": 0,
     "split": 2},
    {"ty": 4, "tx": 8, "vm": 1, "m4": 4, "vn": 1, "n4": 1, "bk": 16, "stages": 1, "by_column": 1,
     "split": 1},
)  # fmt: skip


CASES = [(name, number % 3) for number, name in enumerate(PRODUCTS)]
CASES += [(name, n) for name in ("odd", "convolution") for n in range(3) if (name, n) not in CASES]


@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_product_agrees(name: str, number: int) -> None:
    tile = TILES[number]
    workload = Workload.from_function(PRODUCTS[name])
    space = config_space(workload, HOPPER)
    config = {"sketch": "gpu_simt", **tile}
    if workload.function.params[1].type.shape[-1] % 2:
        config["n4"] = 1
    if not space.valid(space.encode(config)[None])[0]:
        config["split"] = 1
    assert space.valid(space.encode(config)[None])[0]
    check(workload, config)


def test_what_no_sketch_computes_is_told_in_a_sentence() -> None:
    bytes_alone = function_of("matmul", ((8, 8), "int8"), ((8, 8), "int8"))
    space = config_space(Workload.from_function(bytes_alone), HOPPER)
    with pytest.raises(ScheduleError, match="no sketch computes this workload for this target"):
        print(space.default)


def test_blocks_share_terms_out() -> None:
    """Where tiles are few, by default; what each came to another kernel adds."""
    workload = Workload.from_function(function_of("matmul", ((16, 4096), F32), ((4096, 512), F32)))
    space = config_space(workload, HOPPER)
    assert int(space.default["split"]) > 1
    code, _ = emitted(lowered(workload))
    assert [launch.grid[2] for launch in code.launches] == [space.default["split"], 1]
    assert code.workspace_bytes >= 4 * 16 * 512 * int(space.default["split"])
    square = Workload.from_function(function_of("matmul", ((4096, 64), F32), ((64, 4096), F32)))
    many = config_space(square, HOPPER)
    assert not many.valid(many.encode({**many.default, "split": 2})[None])[0]
    check(Workload.from_function(PRODUCTS["bytes"]), {"sketch": "gpu_simt", **TILES[1], "split": 2})


def test_tiles_are_staged_ahead_and_read_16_bytes_at_once() -> None:
    workload = Workload.from_function(function_of("matmul", ((512, 512), F32), ((512, 512), F32)))
    tile = {"ty": 16, "tx": 16, "vm": 2, "m4": 4, "vn": 2, "n4": 4, "bk": 8, "stages": 2}
    code, ptx = emitted(lowered(workload, {"sketch": "gpu_simt", **tile, "by_column": 1}))
    loop = ptx[ptx.index("bar.sync") :]
    assert code.launches[0].grid == (4, 4, 1)
    assert re.search(r"ld\.global\.nc\.v4", loop)  # A, which is turned on its way
    assert "cp.async.cg.shared.global" in loop  # B, which is not
    assert loop.count("ld.shared.v4") >= 4 * 8
    assert loop.count("fma.rn.f32") >= 64 * 8
    assert re.search(r"cp\.async\.wait_all;\s+bar\.sync", ptx)
    assert "ld.local" not in ptx


def test_a_gpu_without_asynchronous_copies_makes_plain_ones() -> None:
    workload = Workload.from_function(PRODUCTS["matrices"])
    turing = Target("cuda -arch=sm_75")
    config = {"sketch": "gpu_simt", **TILES[1]}
    _, ptx = emitted(lowered(workload, config, turing), turing)
    assert "cp.async" not in ptx
    assert "st.shared" in ptx


def test_configs_that_a_gpu_cannot_hold_are_told_before_lowering() -> None:
    workload = Workload.from_function(PRODUCTS["matrices"])
    space = config_space(workload, HOPPER)
    big = {**space.default, "ty": 32, "tx": 32, "vm": 4, "m4": 4, "vn": 4, "n4": 4}
    assert not space.valid(space.encode(big)[None])[0]
    rows = space.sample(np.random.default_rng(1), 200)
    nest = space.sketches[0].nest(space.columns(rows[space.valid(rows)], 0))
    assert (nest.operations >= 2 * 33 * 20 * 24).all()
    assert (nest.extra["resident_threads"] * nest.extra["registers"] <= 1 << 16).all()
    assert (nest.extra["resident_threads"] >= 32).all()
