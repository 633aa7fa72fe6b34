"""The benchmarks of GPUs, run on the emulator: what a machine with a GPU runs is not to rot."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCH = Path(__file__).parents[2] / "bench" / "gpu"
Script = Callable[..., dict[str, Any]]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Runs a script of the folder on a host without some packages; what its report says."""
    (tmp_path / "absent").mkdir()
    for name in ("xgboost", "sqlalchemy", "torch"):
        (tmp_path / "absent" / f"{name}.py").write_text("raise ImportError('not on this host')\n")
    report = tmp_path / "report.json"

    def run(name: str, *words: str, status: int = 0) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, str(BENCH / name), "--builders", "1", "--out", str(report), *words],
            env={
                **os.environ,
                "TUNEFARM_CUDA": "emulated",
                "PYTHONPATH": str(tmp_path / "absent"),
                "XDG_CACHE_HOME": str(tmp_path),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=400,
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


@pytest.mark.soak
def test_sketches_are_held_to_numpy(script: Script) -> None:
    told = script("check.py", "--small", "--configs", "1", "-k", "float16")
    sketches = {result["case"].split()[0] for result in told["results"]}
    assert sketches >= {"gpu_mma", "gpu_attention", "gpu_rows", "gpu_elements", "gpu_transpose"}
    assert [result for result in told["results"] if "failed" in result] == []


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


@pytest.mark.soak
def test_whole_models_of_float16_are_timed(script: Script) -> None:
    told = script("models.py", "--small", "--no-peers", "-k", "batch 2")
    assert len(told["results"]) == 2
    for result in told["results"]:
        assert "failed" not in result
        assert result["error"] < 0.05
        assert result["seconds"] > 0
        assert result["nodes"]


def test_candidates_go_through_a_worker(script: Script) -> None:
    told = script("trials.py", "--small", "-k", "float16")
    (result,) = told["results"]
    assert (result["trials"], result["errors"]) == (6, {})
    assert result["trials_per_second"] > 0
    assert result["best_flops"] >= result["default_flops"] > 0


@pytest.mark.soak
def test_the_runtime_is_checked(script: Script) -> None:
    told = script("runtime.py")
    outcomes = {
        result["case"]: result.get("outcome", result.get("failed")) for result in told["results"]
    }
    assert outcomes["check_replays_read_new_inputs"] == "passes"
    assert outcomes["check_torch_streams"] == "left out: no PyTorch"
    assert all(told.startswith(("passes", "left out")) for told in outcomes.values())
    assert len(told["host_seconds_of_a_run"]) == 3


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
    from check import UNCERTAIN, cases
    from tunefarm.compiler.runtime.cuda.driver import open_device
    from tunefarm.compiler.space.registry import SKETCHES

    found = [case.sketch for case in cases(open_device(), 1)]
    there = {sketch.name for sketch in SKETCHES if sketch.name.startswith("gpu_")}
    assert set(found) == there
    assert set(found[: len(UNCERTAIN)]) == set(UNCERTAIN)  # one task of each first
    assert set(found[: len(there)]) == there


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
