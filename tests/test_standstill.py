"""A test that fails while the machine stands still is run again; any other failure stays one."""

import subprocess
import sys
from pathlib import Path

TESTS = """
import os, subprocess
import pytest

runs = []

def stand_still():
    subprocess.Popen(["sh", "-c", f"sleep 1.3; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), 19)

@pytest.fixture(scope="module")
def life():
    runs.append("fixture")

def test_that_fails_once(life):
    runs.append("once")
    if runs.count("once") == 1:
        stand_still()
        assert False

def test_that_always_fails():
    runs.append("always")
    stand_still()
    assert False

def test_that_fails_by_itself():
    runs.append("itself")
    assert False

def test_the_runs():
    assert runs == ["fixture", "once", "fixture", "once", "always", "always", "itself"]
"""
CONFTEST = """
from tests.standstill import Standstill
def pytest_configure(config):
    config.pluginmanager.register(Standstill())
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
    assert done.stdout.count("it failed while the machine stood still") == 2
