"""Sketches without NVIDIA's own instructions, as code for GPUs of other makers."""

from __future__ import annotations

import re

import pytest
from gpu_harness import F32, HOPPER, function_of, lowered
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.dialects import AMDGCN, SPIRV, Dialect
from tunefarm.compiler.gpu.emit import GpuCode, emit_gpu
from tunefarm.compiler.gpu.ptx import object_of
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

HALF = "float16"
SKETCHES = {
    "gpu_elements": [
        function_of(lambda a, b: call("relu", call("add", a, b)), ((5, 24), F32), ((24,), F32)),
        function_of(lambda a: call("tanh", call("erf", a)), ((5, 23), HALF)),
        function_of("topk_indices", ((3, 7), F32), axis=1, k=3, largest=True),
    ],
    "gpu_simt": [
        function_of("matmul", ((33, 20), F32), ((20, 24), F32)),
        function_of("matmul", ((33, 21), HALF), ((21, 23), HALF)),
    ],
    "gpu_rows": [
        function_of("softmax", ((5, 40), F32), axis=-1),
        function_of("max", ((3, 77), HALF), axes=(1,), keepdims=False),
        function_of("sum", ((3, 77), "int32"), axes=(1,), keepdims=False),
    ],
    "gpu_split": [function_of("sum", ((1000, 77), HALF), axes=(0, 1), keepdims=False)],
    "gpu_long_rows": [function_of("softmax", ((1, 70001), F32), axis=-1)],
    "gpu_transpose": [function_of("transpose", ((3, 33, 65), HALF), axes=(0, 2, 1))],
}
CASES = [(sketch, f) for sketch, functions in SKETCHES.items() for f in functions]
WITHOUT_CLUSTERS = Target("cuda -arch=sm_80")
DIALECTS = {"amdgcn": (AMDGCN, "gfx90a", b"\x7fELF"), "spirv64": (SPIRV, "", b"\x03\x02\x23\x07")}


def code(sketch: str, function: object, dialect: Dialect, target: Target = HOPPER) -> GpuCode:
    workload = Workload.from_function(function)  # type: ignore[arg-type]
    (space,) = (s for s in config_space(workload, target).sketches if s.sketch == sketch)
    return emit_gpu(lowered(workload, space.default, target), target, dialect)


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize(("sketch", "function"), CASES, ids=[str(n) for n in range(len(CASES))])
def test_there_are_objects_of_every_sketch(sketch: str, function: object, name: str) -> None:
    dialect, processor, magic = DIALECTS[name]
    text = code(sketch, function, dialect, WITHOUT_CLUSTERS).text
    assert "nvvm" not in text
    made = object_of(text, dialect, processor)
    assert made.startswith(magic)
    assert text.count("define ") == (
        3 if sketch == "gpu_long_rows" else 1 + (sketch == "gpu_split")
    )


def test_threads_of_a_warp_exchange_by_the_words_of_each() -> None:
    (softmax, *_, whole) = SKETCHES["gpu_rows"]
    text = code("gpu_rows", softmax, AMDGCN).text
    steps = [int(n) for n in re.findall(r"ds\.swizzle\(i32 %\w+, i32 (\d+)\)", text)]
    assert sorted(set(steps)) == [n << 10 | 31 for n in (1, 2, 4, 8, 16)]
    text = code("gpu_rows", softmax, SPIRV).text
    steps = [int(n) for n in re.findall(r"shuffle_xorfj\(float %\w+, i32 (\d+)\)", text)]
    assert set(steps) == {1, 2, 4, 8, 16}
    assert "#0 !intel_reqd_sub_group_size !{i32 32}" in text
    assert "sub_group_shuffle_xorij" in code("gpu_rows", whole, SPIRV).text


def test_shared_memory_is_declared_as_far_as_there_is_any() -> None:
    function = function_of("matmul", ((256, 96), F32), ((96, 256), F32))
    workload = Workload.from_function(function)
    tile = {"ty": 16, "tx": 16, "vm": 2, "m4": 2, "vn": 2, "n4": 2, "bk": 32, "stages": 3}
    config = {"sketch": "gpu_simt", **tile, "by_column": 0}
    made = emit_gpu(lowered(workload, config), HOPPER, SPIRV)
    assert "internal addrspace(3) global [52224 x i8]" in made.text
    assert [launch.dynamic_bytes for launch in made.launches] == [0]
    with pytest.raises(ScheduleError, match=r"shares \d+ bytes; amdgcn-amd-amdhsa has 65536"):
        emit_gpu(lowered(workload, {**config, "vm": 4}), HOPPER, AMDGCN)


@pytest.mark.parametrize("dialect", [AMDGCN, SPIRV], ids=["amdgcn", "spirv64"])
def test_matrix_instructions_are_nvidias_alone(dialect: Dialect) -> None:
    product = function_of("matmul", ((64, 64), HALF), ((64, 64), HALF))
    with pytest.raises(ScheduleError, match=r"mma\.m16n8k16\.f16 is an instruction of NVIDIA's"):
        code("gpu_mma", product, dialect)
    asked = Target("cuda -arch=sm_90a")
    with pytest.raises(ScheduleError, match=r"wgmma\.\S+ is an instruction of NVIDIA's"):
        code("gpu_wgmma", product, dialect, asked)


def test_lanes_under_a_mask_are_refused_where_llvm_would_end_the_process() -> None:
    function = function_of("concat", *(((2, n), F32) for n in (3, 1, 0, 4)), axis=1)
    with pytest.raises(ScheduleError, match=r"lanes under a mask on spirv64.* without vectors"):
        code("gpu_elements", function, SPIRV)
