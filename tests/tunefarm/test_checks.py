"""What is found before a farm is started, what makes a job wait, and what ends it in time."""

from __future__ import annotations

import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from tunefarm.compiler.errors import TargetError, TunefarmError
from tunefarm.compiler.runtime.cpu import host_machine, missing_features, required_features
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Task
from tunefarm.db.records import FINAL, Budget, Device, Job, JobState, Trial, WorkloadRecord
from tunefarm.db.store import Store

from tunefarm import tuning
from tunefarm.api import extract_tasks, from_onnx
from tunefarm.checks import (
    check_host,
    count_trials,
    keys_of,
    raised_budget,
    tell_waiting,
    this_machine,
)
from tunefarm.cli.app import run
from tunefarm.cli.options import parse_shapes
from tunefarm.farm import connect

NEEDY = ("znver5", "sapphirerapids", "alderlake")
WANTED = Target("llvm -mcpu=znver5 -num-cores=2")
DEVICE = Device("d", "llvm", "EPYC 2 cores", WANTED.text, "w", compiler_version="1")


def foreign_target() -> Target:
    """A target of this kind of machine, whose instructions this one lacks."""
    targets = [Target(f"llvm -mcpu={mcpu}") for mcpu in NEEDY]
    needy = [t for t in targets if t.isa.name == host_machine()]
    found = next((t for t in needy if missing_features(required_features(t))), None)
    return found or pytest.skip(f"this machine runs code for {', '.join(NEEDY)}, or is no x86")


def candidate(task: Task, number: int, job: str = "earlier", **changes: object) -> Trial:
    version, model = this_machine(task.target)
    (key,) = keys_of([task])
    config = config_space(task.workload, task.target).default
    trial = Trial(job, key, number, config, (1e-3,), device_model=model, compiler_version=version)
    return replace(trial, **changes)  # type: ignore[arg-type]


def store(database: Path, task: Task, trials: list[Trial]) -> None:
    database.parent.mkdir(exist_ok=True)
    with Store.open(str(database)) as opened:
        opened.add_workloads([WorkloadRecord(task.workload.key, task.workload.text)])
        opened.add_trials(trials)


def mixed(task: Task) -> list[Trial]:
    """Three candidates of this machine, one of them failed, and four trials that are none."""
    return [
        *(candidate(task, number) for number in range(3)),
        candidate(task, 3, origin=FINAL),
        candidate(task, 0, "older", compiler_version="0.1.0"),
        candidate(task, 1, "older", compiler_version="0.1.0"),
        candidate(task, 0, "elsewhere", device_model="another machine"),
    ]


# --- before anything is started -----------------------------------------------------------------


def test_an_unknown_search_is_refused_before_the_model_is_read(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tune", "no/such/model.onnx", "--search", "foo"]) == 2
    sentence = "tunefarm: no search strategy 'foo'; strategies: xgb-genetic, genetic, droplet"
    assert capsys.readouterr().err.startswith(sentence)
    assert not home.exists()


def test_a_spent_budget_starts_no_farm(
    model: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (task,) = extract_tasks(from_onnx(model))
    store(home / "tunefarm.db", task, mixed(task))
    assert run(["tune", model, "--trials", "3"]) == 0
    assert "nothing to do: the database has 3 trials of these tasks" in capsys.readouterr().out
    assert not list(home.glob("*.log"))


@pytest.mark.parametrize(("target", "suffix"), [("", ".so"), ("cuda -arch=sm_80", ".zip")])
def test_what_to_build_next_is_a_file_that_is_built(
    model: str,
    home: Path,
    target: str,
    suffix: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TUNEFARM_CUDA", "emulated")
    (task,) = extract_tasks(from_onnx(model), target or None)
    store(home / "tunefarm.db", task, mixed(task))
    words = ["--target", target] if target else []
    assert run(["tune", model, "--trials", "3", *words]) == 0
    (told,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("next: "))
    _, command = told.split("next: tunefarm ")
    assert f"-o {Path(model).stem}{suffix}" in command
    monkeypatch.chdir(home)
    assert run(shlex.split(command)) == 0
    assert (home / f"{Path(model).stem}{suffix}").stat().st_size > 0


def test_a_target_that_this_machine_cannot_run_is_refused_at_once(
    model: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = foreign_target()
    assert run(["tune", model, "--target", target.text, "--trials", "2"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"tunefarm: target {target} needs a CPU with ")
    assert "which this machine lacks" in error
    assert error.count("\n") == 1
    assert not list(home.glob("*.log"))


def test_a_target_of_another_kind_of_machine_is_refused() -> None:
    here = host_machine()
    targets = [Target(f"llvm -mcpu={mcpu}") for mcpu in ("neoverse-n1", "haswell")]
    foreign = next(t for t in targets if t.isa.name != here)
    with pytest.raises(TargetError) as refused:
        check_host(foreign)
    assert str(refused.value) == (
        f"code for {foreign} is for {foreign.isa.name}, and this machine is {here}; "
        "run it on a machine of that kind"
    )


def test_more_cores_than_there_are_are_refused() -> None:
    with pytest.raises(TargetError, match=r"asks for 4096 cores and this machine has \d+"):
        check_host(Target("llvm -mcpu=x86-64 -num-cores=4096"))


def test_this_machine_is_not_refused() -> None:
    check_host(Target.host())
    check_host(Target("llvm -mcpu=x86-64"))
    check_host(Target("sim"))


# --- a farm that runs already -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        ([], "the farm has no device"),
        ([replace(DEVICE, state="offline")], "the 1 that the farm has is offline"),
        ([replace(DEVICE, target="sim"), replace(DEVICE, target="sim")], "the farm has sim"),
        ([replace(DEVICE, target="llvm -mcpu=znver5 -num-cores=1")], "the farm has llvm"),
    ],
)
def test_a_farm_without_a_device_says_that_the_job_waits(devices: list[Device], why: str) -> None:
    with pytest.warns(UserWarning, match=rf"no device serves {WANTED} now \({why}.*job waits"):
        tell_waiting(devices, WANTED)


def test_a_device_that_is_busy_is_no_reason_to_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tell_waiting([replace(DEVICE, state="leased")], WANTED)


def test_a_job_whose_devices_are_not_selected_or_cordoned_waits() -> None:
    job = Job("j", WANTED.text, (), Budget(1), unmet="rack=4 does not hold for the device")
    with pytest.warns(UserWarning, match=f"^the job waits: {job.unmet}$"):
        tell_waiting([DEVICE], WANTED, job)


def test_a_job_that_nobody_serves_is_told_and_ends_with_its_time(
    tracker: Callable[[Path], AbstractContextManager[str]],
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (task,) = extract_tasks(from_onnx(model))
    database = tmp_path / "farm.db"
    store(database, task, mixed(task))
    monkeypatch.setattr(tuning, "IDLE_S", 1.0)
    with tracker(database) as place, connect(place) as client:
        assert count_trials(client, [task]) == 6
        assert count_trials(client, [task], this_machine(task.target)) == 3
        assert run(["submit", model, "--tracker", place]) == 0
        assert "the farm has no device" in capsys.readouterr().err
        assert run(["tune", model, "--tracker", place, "--minutes", "0.02"]) == 2
        told = capsys.readouterr().err
        assert f"no device serves {task.target} now (the farm has no device)" in told
        assert "nothing was tuned: the time was up, and no trial ended" in told
        assert [job.state for job in client.jobs()] == [JobState.CANCELLED, JobState.QUEUED]


IMPATIENT_ON_A_SMALL_DISK = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, 700_000))
from tunefarm import tuning
from tunefarm.cli.app import run
from tunefarm.updates import done
class Idle(tuning.Idle):
    @property
    def seconds(self):
        return super().seconds if done(self._last) else 0.0
follow = tuning._follow
tuning.IDLE_S, tuning.Idle = 3.0, Idle
tuning._follow = lambda client, job, watch, until: follow(client, job, watch, 0.0)
sys.exit(run(sys.argv[1:]))
"""


def test_time_ends_a_job_on_a_full_disk(model: str, home: Path) -> None:
    """A file may grow to 700 kB, the log of the database too; nothing stored is lost.

    The time of the command is up from the beginning, and that of the job hardly ever, so that a
    slow machine changes nothing: the job ends when no trial has ended for three seconds.
    """
    words = ["tune", model, "--trials", "5000", "--minutes", "2"]
    done = subprocess.run(
        [sys.executable, "-c", IMPATIENT_ON_A_SMALL_DISK, *words],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "the time was up, and no trial ended" in done.stderr
    with Store.open(str(home / "tunefarm.db"), readonly=True) as kept:
        trials = kept.count_trials()
        (job,) = kept.jobs()
    assert trials > 0
    # Its end may still have found room where a trial did not; else the next command ends it.
    assert (job.state is not JobState.CANCELLED) == ("the disk fails or is full" in done.stderr)
    again = [sys.executable, "-m", "tunefarm", "tune", model, "--trials", str(trials + 2)]
    assert subprocess.run(again, timeout=300, capture_output=True).returncode == 0
    with Store.open(str(home / "tunefarm.db"), readonly=True) as kept:
        assert kept.count_trials() >= trials + 2
        states = [job.state for job in kept.jobs()]
    assert states == [JobState.SUCCEEDED, JobState.CANCELLED]


@pytest.mark.parametrize(("trials", "said"), [(1, "1 trial is fewer"), (2, "2 trials are fewer")])
def test_a_budget_that_searches_nothing_is_told(model: str, trials: int, said: str) -> None:
    (task,) = extract_tasks(from_onnx(model), Target.host())
    with pytest.warns(UserWarning, match=f"{said} than the 3 tasks: .*nothing is searched"):
        assert raised_budget(trials, [task] * 3) == 3


def test_an_input_has_one_shape() -> None:
    assert parse_shapes(["x=1x3", "x=1x3", "y=2"]) == {"x": (1, 3), "y": (2,)}
    with pytest.raises(TunefarmError, match=r"two shapes, \(1, 3\) and \(2, 3\)"):
        parse_shapes(["x=1x3", "x=2x3"])
