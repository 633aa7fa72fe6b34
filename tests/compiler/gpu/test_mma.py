"""Products by matrix instructions: fragments as threads hold them, borders, refusals."""

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
    compare,
    emitted,
    function_of,
    inputs_of,
    lowered,
)
from tunefarm.compiler import te
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.gpu.emit import emit_gpu
from tunefarm.compiler.gpu.launches import parts_of
from tunefarm.compiler.gpu.mma import tensorize_product
from tunefarm.compiler.gpu.space.mma_tiles import footprint_of
from tunefarm.compiler.gpu.space.tiled import product
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

CONV: dict[str, Any] = {
    "strides": (2, 2), "padding": ((1, 1), (1, 1)), "dilations": (1, 1), "groups": 1,
    "data_layout": "NSC", "kernel_layout": "SIO", "pad_value": 0, "out_dtype": "",
}  # fmt: skip
HALF, BRAIN = "float16", "bfloat16"
PRODUCTS = {
    "halves": function_of("matmul", ((24, 48), HALF), ((48, 16), HALF)),
    "bfloats of odd extents": function_of("matmul", ((17, 35), BRAIN), ((35, 11), BRAIN)),
    "turned": function_of(
        lambda a, b: call("matmul", a, call("transpose", b, axes=(0, 2, 1))),
        ((2, 9, 32), HALF), ((2, 16, 32), HALF),
    ),
    "convolution": function_of(
        lambda x, w, b: call("relu", call("add", call("conv", x, w, **CONV), b)),
        ((1, 7, 5, 8), HALF), ((3, 3, 8, 16), HALF), ((16,), HALF),
    ),
    "bytes": function_of("matmul", ((18, 40), "uint8"), ((40, 16), "int8"), out_dtype="int32"),
}  # fmt: skip
TILES = (
    {"wm": 1, "wn": 1, "mi": 1, "ni": 2, "stages": 2, "wide": 1, "swath": 0, "split": 1},
    {"wm": 2, "wn": 1, "mi": 1, "ni": 1, "stages": 1, "wide": 0, "swath": 0, "split": 1},
    {"wm": 1, "wn": 2, "mi": 1, "ni": 1, "stages": 3, "wide": 0, "swath": 0, "split": 1},
)


CASES = [(name, number % 3) for number, name in enumerate(PRODUCTS)]
CASES += [("bfloats of odd extents", n) for n in (0, 2)]


@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_product_agrees(name: str, number: int) -> None:
    tile = TILES[number]
    workload = Workload.from_function(PRODUCTS[name])
    space = config_space(workload, HOPPER)
    assert space.default["sketch"] == "gpu_mma"
    config = {"sketch": "gpu_mma", **tile, "bk": 32 if name == "bytes" else 16}
    if name.endswith("odd extents"):
        config["wide"] = 0
    assert space.valid(space.encode(config)[None])[0]
    program = check(workload, config)
    _, ptx = emitted(program)
    assert "mma.sync.aligned" in ptx
    assert "ldmatrix.sync" in ptx


@pytest.mark.parametrize("name", ["turned", "bytes", "bfloats of odd extents"])
def test_fragments_of_two_tiles_are_loaded_at_once(name: str) -> None:
    workload = Workload.from_function(PRODUCTS[name])
    config = {
        "sketch": "gpu_mma",
        **TILES[0],
        "bk": 32 if name == "bytes" else 16,
        "wide": 0,
        "swath": 0,
    }
    program, arrays = lowered(workload, config), inputs_of(workload)
    _, ptx = emitted(program)
    transposed = ".trans" if name.startswith("bfloats") else ""
    assert f"ldmatrix.sync.aligned.m8n8.x4{transposed}.shared" in ptx
    assert "ldmatrix.sync.aligned.m8n8.x2" not in ptx
    (want,) = evaluate(workload.function, arrays)
    compare(run_program(program, arrays)[0].reshape(want.shape), want, name)


@pytest.mark.parametrize(
    ("dtype", "instruction"),
    [(HALF, "m16n8k16.row.col.f32.f16.f16.f32"), (BRAIN, "m16n8k16.row.col.f32.bf16.bf16.f32")],
)
def test_a_large_product_is_all_instructions_of_tensor_cores(dtype: str, instruction: str) -> None:
    workload = Workload.from_function(
        function_of("matmul", ((1024, 1024), dtype), ((1024, 1024), dtype))
    )
    tile = {"wm": 2, "wn": 2, "mi": 4, "ni": 8, "bk": 32, "stages": 2}
    code, ptx = emitted(lowered(workload, {"sketch": "gpu_mma", **tile}))
    products = len(re.findall(rf"mma\.sync\.aligned\.{instruction}", ptx))
    assert products == 2 * 32 * 2  # two steps of k, of two iterations: the loop's and the last
    assert len(re.findall(r"ldmatrix\.sync\.aligned\.m8n8\.x4\.shared", ptx)) == 2 * 4 * 2
    assert len(re.findall(r"ldmatrix\.sync\.aligned\.m8n8\.x4\.trans", ptx)) == 2 * 4 * 2
    assert "cp.async.cg.shared.global" in ptx
    assert not re.search(r"ld\.shared|ld\.local|fma\.rn", ptx)
    assert code.launches[0].block == (32, 2, 2)


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("dtype", [HALF, "int8"])
def test_the_model_knows_the_shared_memory_of_a_block(dtype: str, transpose_b: bool) -> None:
    extents = (128, 256) if transpose_b else (256, 128)
    kind = "int32" if dtype == "int8" else ""
    function = function_of(
        "matmul", ((64, 256), dtype), (extents, dtype), transpose_b=transpose_b, out_dtype=kind
    )
    p = product(function)
    assert p is not None
    config = {"sketch": "gpu_mma", **TILES[2], "wm": 2, "ni": 4, "bk": 64}
    parts, _, _ = parts_of(lowered(Workload.from_function(function), config))
    columns = {k: np.asarray([v]) for k, v in config.items() if k != "sketch"}
    assert [part.shared_bytes for part in parts] == list(footprint_of(p, columns).shared_bytes)


def test_float32_keeps_its_precision() -> None:
    workload = Workload.from_function(PRODUCTS["halves"])
    assert [k.sketch for k in config_space(workload, HOPPER).sketches] == ["gpu_mma", "gpu_simt"]
    single = Workload.from_function(function_of("matmul", ((40, 48), F32), ((48, 24), F32)))
    assert [k.sketch for k in config_space(single, HOPPER).sketches] == ["gpu_simt"]


def test_float32_takes_tensor_cores_where_it_may_be_rounded() -> None:
    rounding = Target("cuda -arch=sm_90a -precision=tf32")
    function = function_of("matmul", ((17, 24), F32), ((24, 16), F32))
    workload = Workload.from_function(function)
    assert config_space(workload, rounding).default["sketch"] == "gpu_mma"
    config = {"sketch": "gpu_mma", **TILES[0], "bk": 8}
    _, ptx = emitted(check(workload, config, target=rounding), rounding)
    assert "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" in ptx


def test_older_gpus_have_no_such_instruction() -> None:
    workload = Workload.from_function(PRODUCTS["halves"])
    turing = Target("cuda -arch=sm_75")
    assert config_space(workload, turing).default["sketch"] == "gpu_simt"
    program = lowered(workload, {"sketch": "gpu_mma", **TILES[0], "bk": 16})
    with pytest.raises(ScheduleError, match=r"mma.m16n8k16.f16 needs sm_80 or later, not cuda"):
        emit_gpu(program, turing)


def test_what_is_no_product_of_an_instruction() -> None:
    a, b = te.placeholder((32, 16), HALF), te.placeholder((16, 12), HALF)
    k = te.reduce_axis(16)
    product = te.compute(
        (32, 12), lambda i, j: te.sum(te.cast(a[i, k], F32) * te.cast(b[k, j], F32), [k]), "C"
    )
    result = te.compute((32, 12), lambda i, j: product[i, j] * 2.0, "out")
    program = te.create_prim_func([a, b, result])
    with pytest.raises(ScheduleError, match=r"no matrix instruction 'mma'; there are mma.m16n8k16"):
        tensorize_product(program, "C", "mma")
    with pytest.raises(ScheduleError, match=r"C has 32 × 12 × 16 terms; mma.m16n8k16.f16 takes"):
        tensorize_product(program, "C", "mma.m16n8k16.f16")
    with pytest.raises(ScheduleError, match="needs an unscheduled product into a buffer"):
        tensorize_product(program, "out", "mma.m16n8k16.f16")
