"""Hostile kernels on kernels with less, as root and as a normal user; each one's figure (soak)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

PLUGINS = Path(__file__).parent / "plugins"
NOBODY = 65534
BUDGET_S = 1.0
SLACK_S = 2.0
REFUSED = ("kill_parent", "fork", "daemon", "socket", "write_home", "write_scratch", "timers",
           "signals", "others", "shared_memory", "machine", "read:/etc/passwd")  # fmt: skip
# What each does, and how it ends: None where its calls are refused and its answer is right.
ATTACKS = {
    **dict.fromkeys(REFUSED, None),
    "kill_everyone": None,
    "fork_bomb": "run_timeout",
    "thread_bomb": "run_timeout",
    "fill_scratch": "run_timeout",
    "loop": "run_timeout",
    "ignore_sigterm": "run_timeout",
    "flood_stdout": "run_timeout",
    "flood_stderr": "run_timeout",
    "eat_memory": "out_of_memory",
    "close_everything": "run_crash",
    "segfault": "run_crash",
    "exit": "run_crash",
    "write_inputs": "run_crash",
    "babble": "run_error",
    "forge": "run_error",
    "nest": "run_error",
    "python:no time": "run_error",
    "python:twice": "run_error",
    "python:device lost": "run_error",
    "python:mail": "run_error",
    "python:a thread": "run_error",
}
USERS = (0, NOBODY) if os.getuid() == 0 else (os.getuid(),)


def attack(
    kernels: Sequence[str], folder: Path, user: int = 0, without: str = "nothing"
) -> dict[str, Any]:
    """What ``attack.py`` tells of these kernels; as this test's user, or where that is root as
    nobody too, who may read root's folders until a child gives that up."""
    command = [sys.executable, str(PLUGINS / "attack.py"), without, str(BUDGET_S), *kernels]
    if user != os.getuid():
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv (of util-linux) is not installed")
        leave = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
        ids = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        command = ["setpriv", *ids, *leave, *command]
        shutil.chown(folder, NOBODY)
        folder.chmod(0o700)
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=600,
        cwd="/",
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder)},
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert told["uid"] == user
    return told


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that anybody can reach, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="tunefarm-test-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("without", ["nothing", "landlock"])
@pytest.mark.parametrize("user", USERS)
def test_calls_are_refused_to_any_user_with_and_without_landlock(
    folder: Path, user: int, without: str
) -> None:
    told = attack(REFUSED, folder, user, without)
    assert "seccomp" in told["mechanisms"]
    if without == "landlock":
        assert told["mechanisms"] == ["seccomp"]
    assert {t["kernel"]: (t["error"], t["message"]) for t in told["trials"]} == dict.fromkeys(
        REFUSED, (None, "")
    )
    assert not any(t["next"] for t in told["trials"])


@pytest.mark.parametrize("user", USERS)
def test_landlock_alone_keeps_files(folder: Path, user: int) -> None:
    told = attack(["write_home", "read:/etc/passwd"], folder, user, "seccomp")
    if not told["mechanisms"]:
        pytest.skip("this kernel has no Landlock")
    assert "seccomp" not in told["mechanisms"]
    assert [t["error"] for t in told["trials"]] == [None, None]


@pytest.mark.soak
@pytest.mark.parametrize("user", USERS)
def test_every_hostile_kernel_is_contained_within_its_budget(
    folder: Path, user: int, capsys: pytest.CaptureFixture[str]
) -> None:
    told = attack([*ATTACKS], folder, user)
    with capsys.disabled():
        print(f"\nuid {user}, {' + '.join(told['mechanisms'])}, budget {BUDGET_S} s a run")
        for t in told["trials"]:
            print(f"{t['kernel']:22s} {t['error'] or 'refused':14s} {t['seconds']:6.2f} s")
    assert {t["kernel"]: t["error"] for t in told["trials"]} == ATTACKS
    late = {t["kernel"]: t["seconds"] for t in told["trials"] if t["seconds"] > BUDGET_S + SLACK_S}
    assert not late
    assert not any(t["next"] for t in told["trials"])
