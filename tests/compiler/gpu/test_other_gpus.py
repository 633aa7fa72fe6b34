"""Sketches without NVIDIA's own instructions, as code for GPUs of other makers."""

from __future__ import annotations

import pytest
from gpu_harness import F32, HOPPER, function_of, lowered
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.dialects import AMDGCN, SPIRV
from tunefarm.compiler.gpu.emit import emit_gpu
from tunefarm.compiler.gpu.ptx import object_of
from tunefarm.compiler.ops import call
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.workload import Workload

CHAIN = function_of(lambda a, b: call("relu", call("add", a, b)), ((5, 24), F32), ((24,), F32))
PRODUCT = function_of("matmul", ((33, 20), F32), ((20, 24), F32))
SOFTMAX = function_of("softmax", ((5, 40), F32), axis=-1)
TILE = {"ty": 8, "tx": 8, "vm": 1, "m4": 2, "vn": 1, "n4": 2, "bk": 8, "stages": 2, "by_column": 0}


def product() -> PrimFunc:
    return lowered(Workload.from_function(PRODUCT), {"sketch": "gpu_simt", **TILE})


def test_amd_gets_objects_of_products_and_elements() -> None:
    for program in (product(), lowered(Workload.from_function(CHAIN))):
        text = emit_gpu(program, HOPPER, AMDGCN).text
        assert "nvvm" not in text
        assert object_of(text, AMDGCN, "gfx90a").startswith(b"\x7fELF")
    assert 'fence syncscope("workgroup") release' in emit_gpu(product(), HOPPER, AMDGCN).text


def test_spirv_gets_modules_without_shared_memory() -> None:
    program = lowered(Workload.from_function(CHAIN))
    code = object_of(emit_gpu(program, HOPPER, SPIRV).text, SPIRV, "")
    assert int.from_bytes(code[:4], "little") == 0x07230203
    with pytest.raises(ScheduleError, match="which LLVM 22 has no code for on spirv64"):
        emit_gpu(product(), HOPPER, SPIRV)


def test_shuffles_are_nvidias_alone() -> None:
    with pytest.raises(ScheduleError, match="warp_maxnum has no code here"):
        emit_gpu(lowered(Workload.from_function(SOFTMAX)), HOPPER, AMDGCN)
