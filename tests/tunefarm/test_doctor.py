"""The doctor looks at the machine it runs on, and says what to fix."""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import psutil
import pytest
from tunefarm.db.store import Store
from tunefarm.proto.client import FarmClient
from tunefarm.worker import cores, device, exchange

from tests.worker.cuda.nvml_library import ScriptedGpu, ScriptedNvml
from tunefarm.cli.app import run
from tunefarm.cli.doctor import FOUND
from tunefarm.doctor import gpus as gpu_checks
from tunefarm.doctor import machine
from tunefarm.doctor.examine import examine
from tunefarm.doctor.findings import Finding, State


def findings(database: Path, tracker: str = "") -> dict[str, Finding]:
    return {f.subject: f for f in examine(str(database), tracker)}


def test_every_part_of_the_machine_is_looked_at(tmp_path: Path) -> None:
    found = findings(tmp_path / "none.db")
    subjects = "software processor cores clock load noise memory data cache scratch sandbox gpu"
    assert {*subjects.split(), "database"} <= found.keys()
    assert "-mcpu=" in found["processor"].told
    assert "the first `tunefarm tune` makes" in found["database"].told
    assert all(f.remedy for f in found.values() if f.state is State.FIX)


def test_a_database_is_counted_or_its_trouble_told(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    Store.open(str(path)).close()
    assert findings(path)["database"].told == f"{path}: 0 trials, 0 jobs"
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
    old = findings(path)["database"]
    assert (old.state, "`tunefarm db upgrade`" in old.told) == (State.FIX, True)


def test_a_tracker_is_asked_and_its_clock_compared(
    tracker: Callable[[Path], AbstractContextManager[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tracker(tmp_path / "farm.db") as place:
        found = findings(tmp_path / "farm.db", place)
        assert "0 of 0 devices online" in found["tracker"].told
        assert found["clocks"].state is State.OK

        info = FarmClient.info
        monkeypatch.setattr(FarmClient, "info", lambda c: replace(info(c), now=time.time() - 90))
        late = findings(tmp_path / "farm.db", place)["clocks"]
        assert late.state is State.FIX
        assert late.told.startswith("its clock and this one differ by 9")
    gone = findings(tmp_path / "farm.db", place)["tracker"]
    assert gone.state is State.FIX
    assert "no tracker runs" in gone.told


@pytest.mark.parametrize(
    ("text", "state"), [("max 100000", State.OK), ("50000 100000", State.FIX), ("", State.OK)]
)
def test_a_quota_of_time_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, state: State
) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text(text)
    monkeypatch.setattr(machine, "_QUOTA", quota)
    (found,) = machine._cores()
    assert (found.state is State.FIX) == (state is State.FIX)
    assert ("for 0.5 cores' time" in found.told) == (state is State.FIX)


@pytest.mark.parametrize(
    ("seconds", "state", "span"),
    [
        ([120e-9], State.OK, ""),
        ([float("inf")], State.OK, ""),
        ([500e-9], State.NOTE, "back in 0.50 µs"),
        ([130e-9, 510e-9], State.NOTE, "back in 0.13 µs to 0.51 µs"),
        ([500e-9] * 4 + [float("inf")], State.NOTE, "back in 0.50 µs"),
    ],
)
def test_cores_without_a_cache_in_common_are_told(
    monkeypatch: pytest.MonkeyPatch, seconds: list[float], state: State, span: str
) -> None:
    monkeypatch.setattr(machine, "_EXCHANGE_PAUSE_S", 0.0)
    answers = itertools.cycle(seconds)
    monkeypatch.setattr(exchange, "exchange_s", lambda _: next(answers))
    monkeypatch.setattr(device, "own_cores", lambda: (0, 1))
    monkeypatch.setattr(cores, "physical_core", lambda core: core)
    (found,) = machine._cores()
    assert found.state is state
    assert span in found.told


def test_the_governor_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_line", lambda _: "powersave")
    (found,) = machine._clock()
    assert (found.state, found.told) == (State.FIX, "governor powersave")
    monkeypatch.setattr(machine, "_line", lambda _: "performance")
    (found,) = machine._clock()
    assert found.state is State.OK


def test_a_machine_that_shows_less_is_looked_at_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))  # as in a container without /proc
    found = {finding.subject: finding for finding in machine.examine_machine()}
    assert found["load"].state is State.NOTE
    assert "cannot be looked at here: No such file" in found["load"].told
    assert "sandbox" in found


def test_a_place_that_is_full_or_shut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / "not" / "yet"
    assert machine._place("data", deep, "elsewhere").state is State.OK
    monkeypatch.setattr(machine, "MIN_FREE_BYTES", 1 << 60)
    full = machine._place("data", deep, "elsewhere")
    assert (full.state, full.remedy) == (State.FIX, "free some room, or elsewhere")
    monkeypatch.setattr("os.access", lambda *_: False)
    assert "cannot be written" in machine._place("data", deep, "elsewhere").told


def test_the_command_prints_all_and_says_so_in_its_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["doctor", "--db", str(tmp_path / "none.db"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == (FOUND if any(f["state"] == "fix" for f in found) else 0)
    notes = tmp_path / "notes.db"
    notes.write_text("no database at all, but a text that is long enough to be looked at" * 20)
    assert run(["doctor", "--db", str(notes)]) == FOUND
    shown = capsys.readouterr().out
    assert "✗ database" in shown
    assert "✓ software" in shown


class Gpus:
    """A machine with a driver for CUDA 12.8 and these GPUs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *gpus: ScriptedGpu) -> None:
        self._patch = monkeypatch
        monkeypatch.delenv("TUNEFARM_CUDA", raising=False)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(gpu_checks, "_cuda_version", lambda: 12080)
        monkeypatch.setattr("tunefarm.worker.cuda.nvml.open_nvml", lambda: ScriptedNvml(gpus))
        self.has("cuda-bindings", "12.9.1")

    def has(self, package: str, version: str | None) -> None:
        def version_of(name: str) -> str:
            assert name == package
            if version is None:
                raise PackageNotFoundError(name)
            return version

        self._patch.setattr("importlib.metadata.version", version_of)

    def found(self) -> dict[str, Finding]:
        return {finding.subject: finding for finding in gpu_checks.examine_gpus()}


def test_gpus_are_told_with_what_keeps_them_from_work(monkeypatch: pytest.MonkeyPatch) -> None:
    well, hot = ScriptedGpu(), ScriptedGpu("NVIDIA L4", "GPU-bbbb", (8, 9), 24 << 30, [0x20])
    gpus = Gpus(monkeypatch, well, hot)
    found = gpus.found()
    assert found["gpu 0"].state is State.OK
    told = "NVIDIA H200 (sm_90a), 151.4 GB, driver 570.124.06, CUDA 12.8"
    assert found["gpu 0"].told == told
    assert (found["gpu 1"].state, found["gpu 1"].told) == (
        State.FIX, "its clock is held down: it is too hot",
    )  # fmt: skip
    assert found["cuda"].told == "cuda-bindings 12.9.1"
    well.samples.append((os.getppid(), 1, 40))
    assert gpus.found()["gpu 0"].told.startswith("others compute on it: ")


def test_packages_of_gpus_are_told_with_their_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Gpus(monkeypatch, ScriptedGpu())
    gpus.has("cuda-bindings", None)
    lacking = gpus.found()["cuda"]
    assert (lacking.state, lacking.remedy) == (State.FIX, "pip install 'tunefarm[cuda]'")
    gpus.has("cuda-bindings", "13.0.1")
    late = gpus.found()["cuda"]
    assert (late.state, late.remedy) == (
        State.FIX, "pip install 'cuda-bindings<13', or a newer driver",
    )  # fmt: skip
    monkeypatch.undo()
    monkeypatch.setattr(gpu_checks, "_cuda_version", lambda: 12080)
    monkeypatch.delenv("TUNEFARM_CUDA", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = {f.subject: f for f in gpu_checks.examine_gpus()}
    assert "pip install 'tunefarm[cuda]'" in found["gpu"].remedy


def test_an_emulator_is_not_taken_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFARM_CUDA", "emulated")
    (found,) = gpu_checks.examine_gpus()
    assert (found.state, found.remedy) == (State.NOTE, "unset TUNEFARM_CUDA to use real ones")
    monkeypatch.setenv("TUNEFARM_CUDA", "nvidia")
    monkeypatch.setattr(gpu_checks, "_cuda_version", lambda: None)
    monkeypatch.setattr("tunefarm.worker.cuda.discovery.has_driver", lambda: True)
    (found,) = gpu_checks.examine_gpus()
    assert (found.state, found.told) == (State.FIX, "the NVIDIA driver does not start")
