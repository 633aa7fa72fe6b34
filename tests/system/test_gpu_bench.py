"""The benchmarks of GPUs, run on the emulator: what a machine with a GPU runs is not to rot."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

BENCH = Path(__file__).parents[2] / "bench" / "gpu"
Script = Callable[..., dict[str, Any]]
ABSENT = (
    "alembic", "grpc", "grpc_health", "grpc_status", "prometheus_client", "pydantic", "rich",
    "sqlalchemy", "torch", "typer", "xgboost",
)  # fmt: skip


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Runs a script of the folder on a host without some packages; what its report says."""
    (tmp_path / "absent").mkdir()
    for name in ABSENT:
        (tmp_path / "absent" / f"{name}.py").write_text("raise ImportError('not on this host')\n")

    def run(name: str, *words: str, status: int = 0) -> dict[str, Any]:
        one = name != "all.py"
        report = tmp_path / "report.json" if one else tmp_path / "reports" / "all.json"
        words = ("--out", str(report if one else report.parent), *words)
        words = ("--builders", "1", *words) if one else words
        done = subprocess.run(
            [sys.executable, str(BENCH / name), *words],
            env={
                **os.environ,
                "TUNEFARM_CUDA": "emulated",
                "PYTHONPATH": str(tmp_path / "absent"),
                "XDG_CACHE_HOME": str(tmp_path),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=700,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        told: dict[str, Any] = json.loads(report.read_text())
        assert told["device"]["emulated"]
        assert told["date"][:2] == "20"
        return told

    return run


def test_every_kind_of_kernel_is_built_checked_and_timed(script: Script) -> None:
    told = script("kernels.py", "--small", "--configs", "2")
    kinds = {result["case"].split()[0] for result in told["results"]}
    assert kinds == {"matmul", "conv", "softmax", "layer", "relu(a"}
    precisions = {result["case"].partition(" by ")[0].split()[-1] for result in told["results"]}
    assert precisions == {"float32", "tf32", "float16", "bfloat16"}
    sketches = {r["sketch"] for r in told["results"] if "16" in r["case"] and " by " in r["case"]}
    assert sketches == {"gpu_mma", "gpu_wgmma", "gpu_tma"}
    for result in told["results"]:
        assert "failed" not in result
        assert 0 < result["error"] < 0.1
        assert (result["configs"], result["refused"]) == (2, [])
        assert result["rate"] > 0
        assert result["unit"] == "FLOP/s" or result["share_of_copy"] > 0


def test_a_kernel_that_faults_dies_or_hangs_costs_one_case_and_the_time_is_kept(
    script: Script, tmp_path: Path
) -> None:
    """Another process goes on behind the case, with the same report."""
    (tmp_path / "absent" / "sitecustomize.py").write_text(FAULTY)
    words = ("--small", "--configs", "1", "-k", "transpose", "--stall", "15")
    told = script("check.py", *words, status=1)
    *first, last = told["results"]
    whys = [result["failed"] for result in first]
    assert whys[0] == "DriverError: a fault"
    assert whys[1:] == ["the process died of SIGSEGV", "did not go on within 15 s, or was killed"]
    assert all(result["lost"] for result in first)
    assert all(result["at"].startswith("sketch=") for result in first)
    assert "failed" not in last
    assert "under_way" not in told
    late = script("check.py", "--small", "-k", "transpose", "--minutes", "1e-9", status=1)
    assert late["results"] == []
    assert len(late["left_out"]) == len(told["results"])


FAULTY = """
import os, sys
turn = sys.argv.count("--resume")
if sys.argv[0].endswith("check.py") and turn < 3:
    import signal, time
    from tunefarm.compiler.runtime.cuda import kernel
    from tunefarm.compiler.runtime.cuda.driver import DriverError

    def fault(*_):
        if turn == 0:
            raise DriverError("a fault", "CUDA_ERROR_ILLEGAL_ADDRESS", fatal=True)
        if turn == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(1e6)

    kernel.CudaCall.__call__ = fault
"""


def test_scripts_run_one_after_the_other(script: Script, tmp_path: Path) -> None:
    """Their reports and what they come to stand there; what is short of time is left out."""
    told = script("all.py", "--small", "--only", "trials,compiled", "--minutes", "6")
    scripts = told["scripts"]
    assert [(name, each["status"]) for name, each in scripts.items()] == [
        ("trials", "passed"), ("compiled", "passed")
    ]  # fmt: skip
    assert [each["cases"] for each in scripts.values()] == [2, 0]
    (rates,) = (bar for bar in told["bars"] if bar["bar"] == "trials a second")
    assert len(rates["figures"]) == 2
    assert told["lines"][-1].startswith("trials a second")
    for result in json.loads((tmp_path / "reports" / "trials.json").read_text())["results"]:
        assert (result["trials"], result["errors"]) == (6, {})
        assert result["best_flops"] >= result["default_flops"] > 0
    late = script("all.py", "--only", "compiled", "--minutes", "0.1", status=1)
    assert late["scripts"]["compiled"]["status"] == "left out: no time"


@pytest.mark.soak
def test_trials_go_on_in_the_part_of_the_sandbox_that_a_driver_runs_in(
    script: Script, tmp_path: Path
) -> None:
    """Runners that read a file when they load code, which Landlock does not let them."""
    (tmp_path / "secret").write_text("")
    text = READING.replace("SECRET", str(tmp_path / "secret"))
    (tmp_path / "absent" / "sitecustomize.py").write_text(text)
    told = script("trials.py", "--small", "-k", "float16", status=1)
    first, second, third = told["results"]
    assert first["failed"].startswith("TunefarmError: ")
    assert second["case"].endswith(", sandbox: landlock")
    assert "failed" in second
    assert third["case"].endswith(", sandbox: seccomp")
    assert third["trials_per_second"] > 0
    assert told["worker"]["sandbox"] == "seccomp"


READING = """
import sys
if "tunefarm.worker.runner" in sys.orig_argv:
    from tunefarm.worker.cuda import backend
    load = backend.CudaBackend.load

    def reading(self, *given):
        open("SECRET").close()
        return load(self, *given)

    backend.CudaBackend.load = reading
"""


def test_what_a_host_lacks_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(LACKING)
    done = subprocess.run(
        [sys.executable, str(BENCH / "all.py"), "--out", str(tmp_path / "reports")],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    wanted = "'llvmlite>=0.50' 'onnx>=1.19' 'psutil>=7.0'"
    assert done.stderr == f"not here, or too old: pip install --no-deps {wanted}\n"


LACKING = """
import importlib.metadata as m
import importlib.util as u
find, version = u.find_spec, m.version
u.find_spec = lambda name, *more: None if name in ("onnx", "psutil") else find(name, *more)
m.version = lambda name: "0.46.1" if name == "llvmlite" else version(name)
"""


def test_reports_of_a_read_only_checkout_go_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import reporting

    assert reporting.reports_folder() == BENCH / "reports"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert reporting.reports_folder() == tmp_path / "tunefarm-gpu-reports"


@pytest.mark.soak
def test_every_script_passes(script: Script) -> None:
    told = script("all.py", "--small", "--minutes", "9.5")
    scripts = told["scripts"]
    assert list(scripts) == ["check", "kernels", "trials", "models", "runtime", "compiled"]
    for each in scripts.values():
        assert each["took_s"] <= each["share_s"] + 40
        assert each["failed"] == []
    (right,) = (bar for bar in told["bars"] if bar["bar"] == "sketches that answer right")
    assert {case.split()[0] for case in right["figures"]} >= {
        "gpu_mma", "gpu_wgmma", "gpu_tma", "gpu_attention", "gpu_rows",
    }  # fmt: skip


def test_a_sketch_that_costs_processes_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setenv("TUNEFARM_CUDA", "emulated")
    from reporting import Report, add_options
    from tunefarm.compiler.runtime.cuda.driver import open_device

    parser = argparse.ArgumentParser()
    add_options(parser)
    report = Report("some", parser.parse_args(["--out", str(tmp_path / "r.json")]), open_device())
    for number in range(3):
        report.results.append({"case": f"{number}", "sketch": "gpu_tma", "lost": number > 0})
    assert report.run("more", dict, "gpu_tma") is None
    assert report.run("other", dict, "gpu_mma") is not None
    assert report.left_out == ["more"]


def test_every_sketch_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setenv("TUNEFARM_CUDA", "emulated")
    from check import UNCERTAIN, cases, tasks
    from tunefarm.compiler.runtime.cuda.driver import open_device
    from tunefarm.compiler.space.registry import SKETCHES

    found = [case.sketch for case in cases(open_device(), 1)]
    there = {sketch.name for sketch in SKETCHES if sketch.name.startswith("gpu_")}
    assert set(found) == there
    assert set(found[: len(UNCERTAIN)]) == set(UNCERTAIN)  # one task of each first
    assert set(found[: len(there)]) == there
    for arch in ("sm_75", "sm_80", "sm_100a"):
        monkeypatch.setattr("check.tasks", lambda: [t for t in tasks() if "matmul" in t.name])
        other = SimpleNamespace(properties=SimpleNamespace(arch=arch))
        sketches = {case.sketch for case in cases(other, 1)}  # type: ignore[arg-type]
        assert ("gpu_mma" in sketches) == (arch != "sm_75")
        assert not sketches & {"gpu_wgmma", "gpu_tma"}


REPORTS: dict[str, Any] = {
    "check": {"results": [{"case": "gpu_rows softmax"}, {"case": "gpu_mma", "failed": "wrong"}]},
    "kernels": {"results": [
        {"case": "matmul 8×8×8 float16 by gpu_mma", "sketch": "gpu_mma", "seconds": 3.0,
         "config": {"wm": 1}, "peers": {"cuBLAS": {"over": 0.5}, "PyTorch": {"over": 0.7}}},
        {"case": "matmul 8×8×8 float16 by gpu_tma", "sketch": "gpu_tma", "seconds": 2.0,
         "config": {"groups": 2}, "peers": {"cuBLAS": {"over": 0.97}, "PyTorch": {"failed": "x"}}},
        {"case": "matmul 8×8×8 float16 by gpu_wgmma", "sketch": "gpu_wgmma", "failed": "x"},
        {"case": "softmax 8×8 float32", "seconds": 1.0, "config": {}, "peers": {},
         "share_of_copy": 0.95},
    ]},
    "models": {"results": [
        {"case": "bert batch 1", "seconds": 2.0},
        {"case": "bert batch 1 by torch.compile", "torch_seconds": 3.0, "over_torch": 1.5},
        {"case": "bert batch 16 by torch.compile", "torch_failed": "no compiler"},
    ]},
    "trials": {"results": [{"case": "matmul", "trials_per_second": 12.0}]},
}  # fmt: skip


def test_reports_are_held_to_what_was_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    from bars import bars
    from compiled import fastest_of

    found = {bar.name: (bar.met, list(bar.figures.values())) for bar in bars(REPORTS)}
    assert found == {
        "sketches that answer right": (False, [1.0, 0.0]),
        "16-bit products by mma.sync, of cuBLAS": (False, [0.5]),
        "16-bit products by wgmma, of cuBLAS": (True, [0.97]),
        "16-bit products by wgmma, level with cuBLAS": (False, [0.97]),
        "float32 products, of cuBLAS": (None, []),
        "TF32 products, of cuBLAS": (None, []),
        "convolutions, of cuDNN": (None, []),
        "memory-bound kernels, of a copy's bandwidth": (True, [0.95]),
        "operators, of torch.compile's (max-autotune)": (None, []),
        "ResNet-50 and BERT-base, of torch.compile's": (True, [1.5]),
        "trials a second": (True, [12.0]),
    }
    fastest = fastest_of(REPORTS["kernels"])
    assert {case: result["config"] for case, result in fastest.items()} == {
        "matmul 8×8×8 float16": {"groups": 2}, "softmax 8×8 float32": {}
    }  # fmt: skip


def test_fastest_kernels_meet_torch_compile_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for what torch.compile makes, which answers by NumPy."""
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setenv("TUNEFARM_CUDA", "emulated")
    from cases import Case, product
    from compiled import again
    from peers import Libraries
    from tunefarm.compiler.runtime.cuda.driver import open_device
    from tunefarm.compiler.space import config_space
    from tunefarm.compiler.target import Target

    class Compiled:
        name = "torch.compile"

        def __init__(self, a: Any, b: Any) -> None:
            self.output = lambda: (a @ b).astype(np.float32)
            self.cold_seconds = lambda number: 1e-3 * number

    class Torch(Libraries):
        def compiled(self, case: Case, inputs: Any) -> Any:
            return Compiled(*inputs)

    class Parts:
        at = staticmethod(lambda *said: None)

    case, device = product(40, 40, 40, "float32", ""), open_device()
    config = config_space(case.workload, Target("cuda -arch=sm_80")).default
    told = again(case, config, Torch(device), device, Parts())  # type: ignore[arg-type]
    assert told["error"] < 1e-4
    peer = told["peers"]["torch.compile"]
    assert peer["error"] < 1e-4
    assert peer["over"] == pytest.approx(1e-3 / told["seconds"])


def test_cublas_is_asked_for_the_product_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its matrices are columns; a library that multiplies such, by C's calling convention."""
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setenv("TUNEFARM_CUDA", "emulated")
    from cublas import Cublas, CublasProduct
    from tunefarm.compiler.runtime.cuda.driver import open_device

    asked = []

    def matrix(address: int, rows: int, columns: int, pitch: int) -> Any:
        words = np.ctypeslib.as_array((ctypes.c_uint16 * (columns * pitch)).from_address(address))
        return words.view(np.float16).reshape(columns, pitch)[:, :rows].T

    def create(handle: int) -> int:
        ctypes.c_void_p.from_address(handle).value = 7
        return 0

    def multiply(
        handle: int, turned_a: int, turned_b: int, m: int, n: int, k: int, alpha: int,
        a: int, a_kind: int, lda: int, b: int, b_kind: int, ldb: int,
        beta: int, c: int, c_kind: int, ldc: int, compute: int, algorithm: int,
    ) -> int:  # fmt: skip
        asked.append((handle, turned_a, turned_b, a_kind, b_kind, c_kind, compute, algorithm))
        scales = [ctypes.c_float.from_address(place).value for place in (alpha, beta)]
        assert scales == [1.0, 0.0]
        matrix(c, m, n, ldc)[:] = matrix(a, m, k, lda) @ matrix(b, k, n, ldb)
        return 0

    p, i = ctypes.c_void_p, ctypes.c_int
    kinds = (p, i, i, i, i, i, p, p, i, i, p, i, i, p, p, i, i, i, i)

    class Library:
        cublasCreate_v2 = ctypes.CFUNCTYPE(i, p)(create)
        cublasSetStream_v2 = ctypes.CFUNCTYPE(i, p, p)(lambda handle, stream: 0)
        cublasGemmEx = ctypes.CFUNCTYPE(i, *kinds)(multiply)

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((3, 5), (5, 7)))
    made = CublasProduct(Cublas(Library), open_device(), a, b, precise=True)
    np.testing.assert_allclose(made.output(), (a @ b).astype(np.float32), 1e-2, 1e-2)
    assert asked == [(7, 0, 0, 2, 2, 2, 68, -1)]
    assert made.cold_seconds(2) > 0
    assert len(asked) == 3
