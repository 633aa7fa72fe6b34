"""A test that fails while the machine stands still is run again; any other failure stays one."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.standstill import STILL_S

CONFTEST = """
import pytest
from tests.standstill import Standstill

STILL = Standstill()

def pytest_configure(config):
    config.pluginmanager.register(STILL)

@pytest.fixture
def still():
    return STILL
"""
TESTS = """
import time
import pytest
from tests.standstill import RUNS

runs = []

@pytest.fixture(scope="module")
def life():
    runs.append("fixture")

def test_that_fails_once(life, still):
    runs.append("once")
    still.ended_at = time.monotonic()
    assert runs.count("once") == 2

def test_that_always_fails(still):
    runs.append("always")
    still.ended_at = time.monotonic()
    assert False

def test_that_fails_by_itself():
    runs.append("itself")
    assert False

def test_the_runs():
    assert runs == ["fixture", "once", "fixture", "once", *["always"] * RUNS, "itself"]
"""


def test_what_is_run_again(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_them.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "-p", "no:cacheprovider", "-rA"]
    done = subprocess.run(
        [*command, str(tmp_path)], cwd=Path(__file__).parents[1], capture_output=True, text=True
    )
    lines = done.stdout.splitlines()
    verdicts = dict(line.split()[:2][::-1] for line in lines if line.startswith(("PASSED", "FAIL")))
    assert {name.rpartition("::")[2]: told for name, told in verdicts.items()} == {
        "test_that_fails_once": "PASSED",
        "test_that_always_fails": "FAILED",
        "test_that_fails_by_itself": "FAILED",
        "test_the_runs": "PASSED",
    }, done.stdout
    assert done.stdout.count("it failed while the machine stood still") == 2, "the two tests"


def test_a_pause_is_seen() -> None:
    code = """
import time
from tests.patience import wait_for
from tests.standstill import Standstill
still, began = Standstill().start(), time.monotonic()
print("watching", flush=True)
wait_for(lambda: still.ended_at > began)
"""
    root = Path(__file__).parents[1]
    watching = subprocess.Popen([sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE)
    assert watching.stdout is not None
    with watching:
        assert watching.stdout.readline()
        watching.send_signal(signal.SIGSTOP)
        time.sleep(2 * STILL_S)
        watching.send_signal(signal.SIGCONT)
    assert watching.returncode == 0
