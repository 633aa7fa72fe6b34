"""The benchmark of GPUs, run on the emulator: what a machine with a GPU runs is not to rot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench" / "gpu" / "kernels.py"


def test_every_kind_of_kernel_is_built_checked_and_timed(tmp_path: Path) -> None:
    for name in ("xgboost", "sqlalchemy", "torch"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not on this host')\n")
    report = tmp_path / "report.json"
    run = subprocess.run(
        [sys.executable, str(BENCH), "--small", "--configs", "2", "--builders", "1",
         "--no-peers", "--out", str(report)],
        env={**os.environ, "TUNEFARM_CUDA": "emulated", "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    told = json.loads(report.read_text())
    assert told["device"]["emulated"]
    kinds = {result["case"].split()[0] for result in told["results"]}
    assert kinds == {"matmul", "conv", "softmax", "layer", "relu(a"}
    precisions = {result["case"].split()[-1] for result in told["results"]}
    assert precisions == {"float32", "tf32", "float16", "bfloat16"}
    for result in told["results"]:
        assert 0 < result["error"] < 0.1
        assert (result["configs"], result["failed"]) == (2, [])
        assert result["rate"] > 0
