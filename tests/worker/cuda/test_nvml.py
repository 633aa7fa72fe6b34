"""What is made of the management library's answers; its functions are those of nvidia-ml-py."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tunefarm.compiler.errors import TargetError
from tunefarm.db.records import ErrorKind
from tunefarm.worker.cuda.nvml import Monitor, Reading, open_nvml
from tunefarm.worker.cuda.watch import Watch, WatchedSession
from tunefarm.worker.measure import Pace, Session, TrialFailed
from tunefarm.worker.wire import Frame

from tests.worker.cuda.nvml_library import ScriptedGpu, ScriptedNvml

POWER_CAP, HARDWARE, HEAT = 0x4, 0x8, 0x20


def monitor(gpu: ScriptedGpu, *lacks: str) -> Monitor:
    return Monitor(ScriptedNvml([gpu], lacks), gpu.uuid)


def test_every_function_that_is_called_is_one_of_nvidia_ml_py() -> None:
    pynvml = pytest.importorskip("pynvml")
    names = [n for n in vars(ScriptedNvml) if n.startswith(("nvml", "NVML"))]
    assert len(names) > 15
    assert [name for name in names if not hasattr(pynvml, name)] == []
    for name in ("NVML_CLOCK_SM", "NVML_CLOCK_MEM", "NVML_TEMPERATURE_GPU"):
        assert getattr(pynvml, name) == getattr(ScriptedNvml, name)
    bits = {
        "SwPowerCap": POWER_CAP,
        "HwSlowdown": HARDWARE,
        "SwThermalSlowdown": HEAT,
        "HwThermalSlowdown": 0x40,
        "HwPowerBrakeSlowdown": 0x80,
    }
    for name, bit in bits.items():
        assert getattr(pynvml, f"nvmlClocksEventReason{name}") == bit


def test_a_machine_without_a_driver_is_told_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pynvml = pytest.importorskip("pynvml")
    monkeypatch.setattr(pynvml, "nvmlInit", raising(pynvml.NVMLError_LibraryNotFound()))
    with pytest.raises(TargetError, match="this machine has no NVIDIA driver that works"):
        open_nvml()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(TargetError, match=r"pip install 'tunefarm\[cuda\]'"):
        open_nvml()


def raising(error: Exception):  # type: ignore[no-untyped-def]
    def call() -> None:
        raise error

    return call


def test_a_reading_has_what_the_driver_tells() -> None:
    told = monitor(ScriptedGpu(reasons=[HEAT])).read()
    assert told == Reading(1980.0, 3201.0, 41.0, 121.5, HEAT)
    assert (told.fault, told.is_capped) == ("it is too hot", False)
    lacks = ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperature")
    assert monitor(ScriptedGpu(), *lacks).read() == Reading(1980.0, 3201.0)


def test_reasons_are_read_by_their_older_name_too() -> None:
    gpu = ScriptedGpu(reasons=[HARDWARE | POWER_CAP])
    old = monitor(gpu, "nvmlDeviceGetCurrentClocksEventReasons").glance()
    assert (old.fault, old.is_capped) == ("its hardware slows it down", True)
    names = [f"nvmlDeviceGetCurrentClocks{kind}Reasons" for kind in ("Event", "Throttle")]
    assert monitor(gpu, *names).glance().reasons == 0


@pytest.fixture
def stranger() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


def test_who_else_computes_is_named_and_who_only_waits_is_not(stranger: int) -> None:
    gpu = ScriptedGpu()
    watching = monitor(gpu)
    gpu.samples += [(stranger, 10, 37), (os.getpid(), 11, 90), (1, 12, 0)]
    (other,) = watching.neighbours({os.getpid()})
    assert (other.pid, other.percent) == (stranger, 37)
    assert str(stranger) in str(other)
    assert watching.neighbours(()) == (), "what was seen is not told again"
    gpu.samples.append((2**22 + 1, 20, 50))
    assert watching.neighbours(()) == (), "a process that is not of this machine's namespace"


def test_what_was_told_is_not_told_again(stranger: int) -> None:
    """Some drivers give older samples too."""
    gpu = ScriptedGpu(samples=[(stranger, 10, 37), (stranger, 12, 5)])
    watching = monitor(gpu)
    assert [other.percent for other in watching.neighbours(())] == [37]
    gpu.samples.append((stranger, 11, 40))
    assert watching.neighbours(()) == ()
    gpu.samples.append((stranger, 13, 40))
    assert [other.percent for other in watching.neighbours(())] == [40]


def test_a_process_that_has_ended_is_not_blamed() -> None:
    gpu = ScriptedGpu()
    watching = monitor(gpu)
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # its parent has not waited for it
        gpu.samples.append((ended.pid, 10, 5))
        assert watching.neighbours(()) == ()


# --- repeats under watch ------------------------------------------------------------------------


def watched(*reasons: int) -> tuple[Watch, list[float]]:
    """A watch over a GPU with these reasons at its looks, and what it waited."""
    waits: list[float] = []
    watch = Watch(monitor(ScriptedGpu(reasons=[0, *reasons])), sleep=waits.append)
    return watch, waits


class Scripted(WatchedSession):
    """A session whose runner answers each repeat with a millisecond."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.pace = Pace()


@pytest.fixture
def repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(session: Session, slot: int, number: int, *_: bool, **__: bool) -> object:
        return Frame({}), 1e-3 * number

    monkeypatch.setattr(Session, "_repeat", answer)


@pytest.mark.usefixtures("repeats")
def test_a_repeat_while_the_gpu_is_slowed_is_taken_again() -> None:
    watch, waits = watched(0, HEAT, HEAT, 0, 0, 0)
    assert Scripted(watch).repeat(0, 2) == 1e-3
    assert watch.rejected == len(waits) == 2
    state = watch.state()
    assert (state["rejected"], state["clock_reasons"], state["sm_mhz"]) == (2.0, 0.0, 1980.0)
    assert (state["celsius"], state["watts"]) == (41.0, 121.5)


@pytest.mark.usefixtures("repeats")
def test_a_gpu_that_stays_slowed_loses_the_candidate_and_says_why() -> None:
    watch, waits = watched(HEAT)
    with pytest.raises(TrialFailed, match="the GPU is slowed: it is too hot") as failed:
        Scripted(watch).repeat(0, 1)
    assert failed.value.kind is ErrorKind.DEVICE_LOST
    assert waits == sorted(waits)


@pytest.mark.usefixtures("repeats")
def test_a_kernel_that_draws_all_the_power_there_is_has_its_time_all_the_same() -> None:
    watch, waits = watched(POWER_CAP)
    for _ in range(3):
        assert Scripted(watch).repeat(0, 1) == 1e-3
    assert len(waits) == 2, "the first repeat is waited for, and those after it are believed"
    assert watch.state()["power_capped"] == 1.0
