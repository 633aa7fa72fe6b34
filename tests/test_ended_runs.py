"""A run of the tests that is ended by a signal leaves no process behind."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.patience import is_alive, wait_for

TESTS = """
import subprocess
import time
import pytest

@pytest.fixture
def child():
    process = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)
    yield process.pid
    process.kill()
    process.wait()

def test_that_lasts(child):
    print(f"\\nchild {child}", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_fixtures_end_what_they_started(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "test_them.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-s", "-c", "/dev/null", "-p", "no:cacheprovider"]
    before = signal.signal(number, signal.SIG_DFL)  # a script's background job may ignore it
    try:
        run = subprocess.Popen(
            [*command, "-p", "tests.conftest", str(tmp_path)],
            cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
    finally:
        signal.signal(number, before)
    assert run.stdout is not None
    said = next(line for line in run.stdout if line.startswith("child "))
    child = psutil.Process(int(said.split()[1]))
    run.send_signal(number)
    rest, _ = run.communicate(timeout=120)
    assert run.returncode == pytest.ExitCode.INTERRUPTED, rest
    wait_for(lambda: not is_alive(child))
