"""Ctrl-C, SIGTERM and SIGKILL during ``tune``: nothing is lost, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tunefarm.db.records import Job, JobState
from tunefarm.db.store import Store

from tests.patience import is_alive, wait_for

SCRIPT = """
import sys
import tunefarm
tunefarm.tune(tunefarm.extract_tasks(tunefarm.from_onnx(sys.argv[1])), trials=5000)
"""


class Tuning:
    """A ``tunefarm tune`` process with trials enough for minutes, its trials under way; with a
    ``script`` the same from Python."""

    def __init__(self, model: str, home: Path, script: str = "") -> None:
        self.database = home / "tunefarm.db"
        command = ["-m", "tunefarm", "tune", model, "--trials", "5000"]
        self.process = subprocess.Popen(
            [sys.executable, *(["-c", script, model] if script else command)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        wait_for(self.is_measuring)
        self.farm = psutil.Process(self.process.pid).children(recursive=True)

    def is_measuring(self) -> bool:
        assert self.process.poll() is None
        return count(self.database) > 1

    def interrupt(self, *numbers: int) -> tuple[int, str]:
        """The exit code and the output after these signals, a moment apart."""
        for number in numbers:
            self.process.send_signal(number)
            time.sleep(0.2)
        output, _ = self.process.communicate(timeout=120)
        return self.process.returncode, output

    def survivors(self) -> list[psutil.Process]:
        """Processes of the farm that still run."""
        return [p for p in self.farm if is_alive(p)]


def count(database: Path) -> int:
    if not database.exists():
        return 0
    try:
        with Store.open(str(database), readonly=True) as store:
            return store.count_trials()
    except Exception:  # its schema is being made
        return 0


def last_job(database: Path) -> Job:
    with Store.open(str(database), readonly=True) as store:
        return store.jobs()[-1]


@pytest.mark.parametrize(
    ("numbers", "code"),
    [((signal.SIGINT, signal.SIGINT, signal.SIGINT), 130), ((signal.SIGTERM,), 143)],
)
def test_a_stopped_tuning_ends_its_job_and_its_farm(
    model: str, home: Path, numbers: tuple[int, ...], code: int
) -> None:
    tuning = Tuning(model, home)
    found, output = tuning.interrupt(*numbers)
    assert found == code, output
    assert "Traceback" not in output
    assert "every finished trial is kept" in output
    assert last_job(tuning.database).state is JobState.CANCELLED
    assert count(tuning.database) > 1
    assert not tuning.survivors()


def test_from_python_an_interrupt_comes_out_of_the_call(model: str, home: Path) -> None:
    """And not from deep in gRPC, where it came."""
    tuning = Tuning(model, home, SCRIPT)
    code, output = tuning.interrupt(signal.SIGINT)
    assert code == -signal.SIGINT, output
    *_, last = output.splitlines()
    assert last == "KeyboardInterrupt: stopped; every finished trial is kept"
    assert "grpc" not in output
    assert output.count("  File ") == 2, "where it was called, and where it was raised again"
    job = last_job(tuning.database)
    assert (job.state, job.message) == (JobState.CANCELLED, "stopped from the keyboard")
    assert not tuning.survivors()


def test_a_tuner_outlives_neither_its_parent_nor_its_patience(tmp_path: Path) -> None:
    """Its tracker is frozen: SIGTERM alone would leave it waiting for an answer."""
    place = tmp_path / "farm.json"
    tracker = start("tracker", "--db", str(tmp_path / "farm.db"), "--rendezvous", str(place))
    wait_for(place.exists)
    code = (
        "import subprocess, sys, time;"
        "child = subprocess.Popen(sys.argv[1:]); print(child.pid, flush=True); time.sleep(60)"
    )
    tuner = [sys.executable, "-m", "tunefarm", "tuner", "--rendezvous", str(place)]
    parent = subprocess.Popen(
        [sys.executable, "-c", code, *tuner, "--exit-with-parent"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        wait_for(lambda: any(c.status == "ESTABLISHED" for c in child.net_connections()))
        time.sleep(0.5)
        tracker.send_signal(signal.SIGSTOP)
        parent.kill()
        parent.wait()
        wait_for(lambda: not is_alive(child))
    finally:
        parent.kill()
        tracker.kill()
        tracker.communicate()


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tunefarm", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_killed_tuning_does_not_stand_in_the_way_of_the_next(model: str, home: Path) -> None:
    tuning = Tuning(model, home)
    tuning.interrupt(signal.SIGKILL)
    wait_for(lambda: not tuning.survivors())
    kept = count(tuning.database)
    again = subprocess.run(
        [sys.executable, "-m", "tunefarm", "tune", model, "--trials", str(kept + 4)],
        capture_output=True, text=True, timeout=120, env=dict(os.environ),
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert last_job(tuning.database).message == "the command that made it was killed"
    assert kept + 4 <= count(tuning.database) < kept + 50


def test_a_stopped_race_leaves_no_library_behind(model: str) -> None:
    command = [sys.executable, "-m", "tunefarm", "bench", model, "--peers", "--repeat", "5000"]
    race = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    wait_for(lambda: len(psutil.Process(race.pid).children()) >= 2)  # one is multiprocessing's
    libraries = psutil.Process(race.pid).children()
    time.sleep(1.0)
    os.killpg(race.pid, signal.SIGINT)  # as a terminal does
    output, _ = race.communicate(timeout=120)
    assert (race.returncode, output.splitlines()[-1]) == (130, "stopped before bench was done")
    assert "Traceback" not in output
    wait_for(lambda: not any(is_alive(p) for p in libraries))


def test_sigterm_ends_what_ignores_ctrl_c(model: str) -> None:
    """As in a script: tunefarm bench … &"""
    command = [sys.executable, "-m", "tunefarm", "bench", model, "--repeat", "1000000"]
    quiet = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        bench = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    finally:
        signal.signal(signal.SIGINT, quiet)
    wait_for(lambda: handles(bench.pid, signal.SIGTERM))
    bench.send_signal(signal.SIGINT)
    time.sleep(1.0)
    assert bench.poll() is None
    bench.terminate()
    assert bench.wait(timeout=120) == 143


def handles(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for a signal, which comes with its first lines."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


IN_A_TEXT = "exec('raise KeyboardInterrupt')"
IN_A_CALLBACK = """import ctypes, signal, time
    ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))()
    time.sleep(120)"""


@pytest.mark.parametrize("where", [IN_A_TEXT, IN_A_CALLBACK])
def test_an_interrupted_build_ends_with_one_line(where: str) -> None:
    code = f"""
import sys, tunefarm.cli
from tunefarm.cli import app
def interrupted(*arguments, **options):
    {where}
app.root = lambda: interrupted
sys.argv = ["tunefarm", "build", "model.onnx", "-o", "model.so"]
tunefarm.cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (130, "stopped before build was done\n")


def test_a_reader_that_has_seen_enough_is_no_error(model: str) -> None:
    tasks = subprocess.Popen(
        [sys.executable, "-m", "tunefarm", "tasks", model],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert tasks.stdout is not None
    tasks.stdout.close()
    _, errors = tasks.communicate(timeout=120)
    assert (tasks.returncode, errors) == (0, "")
