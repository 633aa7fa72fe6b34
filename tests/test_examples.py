"""What hypothesis draws is the same in every run, whatever else a process has imported."""

import subprocess
import sys
from pathlib import Path

TEST = """
import {module}
from hypothesis import given, strategies as st

drawn = []

@given(st.integers(), st.floats(), st.integers(0, 10**6))
def test_what_is_drawn(a, b, c):
    drawn.append((a, b, c))

def test_it():
    print(hash(str(drawn)))
"""


def drawn_with(module: str, folder: Path) -> str:
    (folder / "test_drawn.py").write_text(TEST.format(module=module))
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "-p", "no:cacheprovider", "-s"]
    command += ["-p", "tests.conftest", str(folder)]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[1],
        env={"PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    return done.stdout.splitlines()[0]


def test_examples_do_not_depend_on_what_is_imported(tmp_path: Path) -> None:
    assert drawn_with("json", tmp_path) == drawn_with("tunefarm.worker.device", tmp_path)
