"""``tune`` for a GPU, from the task to the record that a build takes, on the emulator of PTX."""

from __future__ import annotations

from pathlib import Path

import pytest
from tunefarm.compiler.decisions import Decision, Status
from tunefarm.compiler.dispatch import apply_history_best
from tunefarm.compiler.ir import Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.version import compiler_version

import tunefarm
from tunefarm import Target, Task, Workload
from tunefarm.trials import load_job

TARGET = Target("cuda -arch=sm_80")


@pytest.fixture
def emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNEFARM_CUDA", "emulated")
    monkeypatch.setenv("TUNEFARM_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def product(dtype: str, size: int) -> Task:
    a, b = (Var(name, TensorType((size, size), dtype)) for name in "ab")
    body = call("matmul", a, b)
    return Task(Workload.from_function(Function((a, b), body, {"primitive": True})), TARGET, 1)


def test_tasks_are_tuned_on_an_emulated_gpu_and_their_records_serve_no_real_one(
    emulator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = str(emulator / "gpu.db")
    tasks = [product("float32", 16), product("float16", 16)]
    tuned = tunefarm.tune(tasks, db=database, trials=6)
    assert tuned.trials == 6
    assert tuned.job is not None
    trials = [t for t in load_job(tuned.job.id, db=database).trials() if t.origin != "final"]
    assert {t.device_model for t in trials} == {"cuda/sm_80/emulated"}
    assert {t.compiler_version for t in trials} == {compiler_version("cuda")}
    assert {t.protocol for t in trials} == {"cold-l2-events-v1"}
    assert [t.told for t in trials if not t.ok] == []
    assert tunefarm.tune(tasks, db=database, trials=6).job is None, "all six of them count"

    def decisions() -> list[Decision]:
        with apply_history_best(database) as history:
            return history.lookup([t.workload for t in tasks], TARGET)

    apart = "times of an emulator and of GPUs are kept apart"
    assert [d.reason for d in decisions() if apart in d.reason] == []
    monkeypatch.setenv("TUNEFARM_CUDA", "nvidia")
    assert [apart in d.reason and d.status is Status.DEFAULT for d in decisions()] == [True, True]
