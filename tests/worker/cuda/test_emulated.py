"""Candidates of GPUs through real builders, runners and gauge, on the emulator of PTX."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest
from tunefarm.compiler.gpu.launches import Launch
from tunefarm.compiler.gpu.ptx import ptx_of
from tunefarm.compiler.ir import Function, TensorType, Var
from tunefarm.compiler.kernel import Kernel
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.version import compiler_version
from tunefarm.compiler.workload import Workload
from tunefarm.db.records import Config, ErrorKind, TaskKey, Trial, TrialRequest
from tunefarm.worker.backend import Built
from tunefarm.worker.building import BuildOutcome, Candidate
from tunefarm.worker.cuda.backend import described
from tunefarm.worker.cuda.device import CudaDevice
from tunefarm.worker.device import DeviceOptions, open_device
from tunefarm.worker.problem import judged_as, pose

TARGET = Target("cuda -arch=sm_80")
SIZE = 64


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An emulator in the place of GPUs; caches and core locks of our own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNEFARM_CUDA", "emulated")
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("tmp")))
        yield


@pytest.fixture(scope="module")
def device(emulator: None) -> Iterator[CudaDevice]:
    opened = open_device(DeviceOptions(TARGET.text, build_processes=1, name="0"))
    yield cast(CudaDevice, opened)
    opened.close()


def sum_of(size: int) -> Workload:
    a, b = (Var(name, TensorType((size,), "float32")) for name in "ab")
    return Workload.from_function(Function((a, b), call("add", a, b), {"primitive": True}))


def product(dtype: str = "float32") -> Workload:
    a, b = (Var(name, TensorType((16, 16), dtype)) for name in "ab")
    return Workload.from_function(Function((a, b), call("matmul", a, b), {"primitive": True}))


def request_of(
    task: Workload, config: Config, target: Target = TARGET, **more: Any
) -> TrialRequest:
    return TrialRequest("job", TaskKey(task.key, target.text), 0, config, task.text, **more)


def measured(device: CudaDevice, *requests: TrialRequest) -> list[Trial]:
    trials: list[Trial] = []
    device.measure(requests, lambda _, trial: trials.append(trial), lambda _: False)
    return trials


def test_a_device_says_that_it_is_emulated(device: CudaDevice) -> None:
    told = device.device
    assert told.model == "cuda/sm_80/emulated"
    assert told.target == "cuda -arch=sm_80 -num-cores=132"
    assert (told.attributes["name"], told.attributes["arch"]) == ("emulated", "sm_80")
    assert told.compiler_version == compiler_version("cuda") != compiler_version()
    assert {"flops_f32", "flops_n", "bandwidth_dram_n"} <= told.peaks.keys()
    assert told.health.trouble == ""
    assert told.noise > 0


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_configs_of_a_product_are_right_and_have_times(device: CudaDevice, dtype: str) -> None:
    task = product(dtype)
    space = config_space(task, TARGET)
    (trial,) = measured(device, request_of(task, space.default))
    assert (trial.error, trial.message) == (None, "")
    assert all(seconds > 0 for seconds in trial.times_s)
    assert trial.device_model == "cuda/sm_80/emulated"
    assert trial.space_fingerprint == space.fingerprint
    assert trial.code_hash


def test_a_final_times_configs_in_pairs(device: CudaDevice) -> None:
    task = sum_of(SIZE)
    default = config_space(task, TARGET).default
    budgets = {"paired_blocks": 2, "paired_rounds": 2}
    (trial,) = measured(device, request_of(task, default, against=(default,), budgets=budgets))
    assert [len(row) for row in trial.paired_times_s] == [4, 4]


def test_a_config_that_is_none_of_the_space_is_no_trial(device: CudaDevice) -> None:
    (trial,) = measured(device, request_of(sum_of(SIZE), {"sketch": "contraction", "mb": 3}))
    assert trial.error is ErrorKind.INSTANTIATION


def test_code_of_lower_precision_may_err_by_more(device: CudaDevice) -> None:
    target = Target("cuda -arch=sm_80 -precision=tf32")
    task = product()
    (trial,) = measured(device, request_of(task, config_space(task, target).default, target))
    assert (trial.error, trial.message) == (None, "")
    problem = pose(task.text, 1)
    assert (judged_as(problem, target).bounds[0] > 50 * problem.bounds[0]).all()


# --- kernels that misbehave ---------------------------------------------------------------------

BODIES = {
    "honest": """
  %x = load float, ptr addrspace(1) %at.a, align 4
  %y = load float, ptr addrspace(1) %at.b, align 4
  %z = fadd float %x, %y
  store float %z, ptr addrspace(1) %at.out, align 4
  ret void""",
    "lazy": "  ret void",
    "wild": """
  %wild = getelementptr float, ptr addrspace(1) %at.out, i64 1099511627776
  store float 1.0, ptr addrspace(1) %wild, align 4
  ret void""",
    "endless": """
  br label %again
again:
  store volatile float 1.0, ptr addrspace(1) %at.out, align 4
  br label %again""",
}


def kernel(kind: str) -> Built:
    """A kernel that a + b of ``SIZE`` elements may be, or not."""
    loads = "\n".join(
        f"  %at.{n} = getelementptr float, ptr addrspace(1) %{n}, i32 %i" for n in ("a", "b", "out")
    )
    text = f"""
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
define ptx_kernel void @{kind}(ptr addrspace(1) %a, ptr addrspace(1) %b, ptr addrspace(1) %out,
                               ptr addrspace(1) %workspace) {{
  %i = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
{loads}
{BODIES[kind]}
}}
"""
    types = (TensorType((SIZE,), "float32"),) * 3
    launch = Launch(kind, (1, 1, 1), (SIZE, 1, 1))
    code = ptx_of(text, "sm_80").encode()
    made = Kernel(kind, code, text, types, 1, {}, 0, False, (launch,))
    return Built(code, described(made, TARGET.text))


def tried(device: CudaDevice, built: Built, **budgets: float) -> Trial:
    """What comes of a candidate whose build this is."""
    task = sum_of(SIZE)
    request = request_of(task, {}, budgets=budgets)
    build: Future[BuildOutcome] = Future()
    build.set_result(BuildOutcome(built, None, 0.0))
    posed: Future[Any] = Future()
    posed.set_result(pose(task.text, 1))
    return device._trials.make(Candidate(request, (build,), posed))


@pytest.mark.parametrize(
    ("kind", "error", "told"),
    [
        ("lazy", ErrorKind.WRONG_ANSWER, "64 of 64 elements of output 0 are wrong"),
        ("wild", ErrorKind.RUN_CRASH, "it killed two runners, the last a fresh one"),
        ("endless", ErrorKind.RUN_TIMEOUT, "one run was over its budget"),
    ],
)
def test_a_kernel_that_misbehaves_costs_its_runner_and_nothing_else(
    device: CudaDevice, kind: str, error: ErrorKind, told: str
) -> None:
    assert tried(device, kernel("honest")).ok
    trial = tried(device, kernel(kind), run_s=3.0)
    assert (trial.error, trial.times_s) == (error, ())
    assert told in trial.message
    assert tried(device, kernel("honest")).ok


def test_code_that_the_driver_refuses_is_a_failed_build(device: CudaDevice) -> None:
    honest = kernel("honest")
    broken = Built(honest.code.replace(b"add", b"odd"), honest.metadata)
    trial = tried(device, broken)
    assert trial.error is ErrorKind.BUILD_ERROR
    assert "refuses the code" in trial.message


def test_memory_that_the_device_does_not_have_is_told_as_that(device: CudaDevice) -> None:
    honest = kernel("honest")
    trial = tried(device, Built(honest.code, {**honest.metadata, "workspace_bytes": 1 << 40}))
    assert trial.error is ErrorKind.OUT_OF_MEMORY


# --- hosts with less ----------------------------------------------------------------------------

SCRIPT = """
import sys, tempfile
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload
from tunefarm.db.records import TaskKey, TrialRequest
from tunefarm.worker.device import DeviceOptions, open_device
import tunefarm.worker.main, tunefarm.worker.cuda.device

target, text = Target("cuda -arch=sm_80"), sys.argv[1]
task = Workload.from_text(text)
device = open_device(DeviceOptions(target.text, build_processes=1))
request = TrialRequest("j", TaskKey(task.key, target.text), 0, config_space(task, target).default,
                       text)
device.measure([request], lambda _, trial: print(trial.error, len(trial.times_s)), lambda _: False)
device.close()
"""


def test_a_gpu_host_needs_neither_the_database_nor_the_cost_model(tmp_path: Path) -> None:
    for name in ("xgboost", "sqlalchemy", "alembic"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not on this host')\n")
    ours = {"TUNEFARM_CUDA": "emulated", "XDG_CACHE_HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, sum_of(SIZE).text],
        env={**os.environ, **ours, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (run.stdout.strip(), run.returncode) == ("None 2", 0), run.stderr
