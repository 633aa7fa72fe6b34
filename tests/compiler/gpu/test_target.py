"""Targets of kind "cuda": what they say of a GPU, and what they refuse."""

from __future__ import annotations

import pytest
from gpu_harness import F32, HOPPER, function_of
from tunefarm.compiler import te
from tunefarm.compiler.build import build_checked, build_kernel
from tunefarm.compiler.errors import BuildError, TargetError
from tunefarm.compiler.gpu.ptxas import parse_log
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.version import compiler_version
from tunefarm.compiler.workload import Workload


def test_a_target_knows_its_gpu() -> None:
    target = Target("cuda --arch=sm_90a")
    assert (target.text, target.kind, target.gpu.people) == ("cuda -arch=sm_90a", "cuda", "Hopper")
    assert target.gpu.shared_bytes == 227 << 10
    assert target.gpu.has_tensor_cores
    assert target.num_cores == 132
    assert (target.lanes("float32"), target.lanes("float16")) == (4, 8)
    assert not Target("cuda -arch=sm_75").gpu.has_async_copies


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cuda", "has no -arch; write for instance -arch=sm_90a, one of sm_75"),
        ("cuda -arch=sm_42", "has -arch=sm_42; write for instance"),
        ("cuda -arch=sm_80 -mcpu=znver5", "unknown option -mcpu of a cuda target; known: arch"),
        ("cuda -arch=sm_80 -num-cores=0", "-num-cores=0 is not a whole number from 1"),
        ("cuda -arch=sm_80 -precision=half", "-precision=half is unknown"),
        ("gpu", "unknown target kind 'gpu'; known kinds: cuda, llvm"),
    ],
)
def test_a_mistaken_target_says_what_to_write(text: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        Target(text)


def test_code_of_gpus_has_a_version_of_its_own() -> None:
    assert compiler_version("cuda") != compiler_version() == compiler_version("llvm")


def test_what_the_assembler_says_is_read() -> None:
    log = """
ptxas info    : Compiling entry function 'k_0' for 'sm_90a'
ptxas info    : Function properties for k_0
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 16 bytes cumulative stack size, 4352 bytes smem
ptxas warning : something is slow
"""
    kernels, warnings = parse_log(log)
    usage = kernels["k_0"]
    assert (usage.registers, usage.spilled_bytes, usage.stack_bytes) == (64, 8, 16)
    assert usage.shared_bytes == 4352
    assert warnings == ("ptxas warning : something is slow",)


def test_a_kernel_of_a_processor_has_no_ptx() -> None:
    workload = Workload.from_function(function_of("relu", ((8,), F32)))
    host = Target.host(1)
    made = build_kernel(workload, host, config_space(workload, host).default, cache=False)
    with pytest.raises(BuildError, match="no 'ptx' source here; it has llvm"):
        made.get_source("ptx")
    made = build_kernel(workload, HOPPER, config_space(workload, HOPPER).default, cache=False)
    assert ".target sm_90a" in made.get_source("ptx")
    assert made.launches[0].block == (256, 1, 1)


def test_code_for_gpus_has_no_bounds_checks() -> None:
    x = te.placeholder((4,))
    program = te.create_prim_func([x, te.compute((4,), lambda i: x[i] * 2.0)])
    with pytest.raises(BuildError, match="code for cuda -arch=sm_90a has no bounds checks"):
        build_checked(program, HOPPER)
