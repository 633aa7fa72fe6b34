"""The program and the code of a record, made again by the present compiler in a child process.

LLVM can abort a process and take a core for a while: so a child, one at a time, with limits.
"""

from __future__ import annotations

import difflib
import json
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tunefarm.db.records import Trial

LIMIT_S = 90.0
KEPT = 64
MAX_CHARACTERS = 2_000_000


class Kind(StrEnum):
    """What is shown of a config."""

    SCHEDULED = "scheduled"
    LLVM = "llvm"
    ASSEMBLY = "assembly"


class CodeError(ValueError):
    """There is no code; says in one sentence why."""


@dataclass(frozen=True, slots=True)
class Code:
    """The text; ``is_same`` says whether it is the code that was measured, None if unknown, and
    ``compiler`` who made it now."""

    text: str
    compiler: str
    is_same: bool | None


@dataclass
class Coder:
    """Makes texts, and keeps the last ``KEPT``."""

    _one: threading.Lock = field(default_factory=threading.Lock)
    _kept: OrderedDict[str, Mapping[str, Any]] = field(default_factory=OrderedDict)

    def code(self, trial: Trial, workload_text: str, kind: Kind) -> Code:
        """CodeError if the compiler refuses the config, or the workload's text is not known."""
        if not workload_text:
            raise CodeError("the workload's text is not in this database; only its key is")
        asked = json.dumps(
            {
                "workload": workload_text,
                "target": trial.task.target,
                "config": dict(trial.config),
                "kind": str(kind),
            },
            sort_keys=True,
        )
        with self._one:
            found = self._kept.get(asked)
            if found is None:
                found = self._kept[asked] = ask_compiler(asked)
            self._kept.move_to_end(asked)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        known = trial.code_hash and found["code_hash"]
        is_same = trial.code_hash == found["code_hash"] if known else None
        return Code(found["text"][:MAX_CHARACTERS], found["compiler"], is_same)


def ask_compiler(asked: str) -> Mapping[str, Any]:
    """What the compiler answers, in a child process; CodeError if it refuses or takes too long."""
    command = [sys.executable, "-P", "-m", "tunefarm.dashboard.code_child"]
    try:
        done = subprocess.run(
            command, input=asked, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise CodeError(f"the compiler took over {LIMIT_S:.0f} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise CodeError(lines[-1] if lines else f"the compiler died ({done.returncode})")
    made: Mapping[str, Any] = json.loads(done.stdout)
    return made


@dataclass(frozen=True, slots=True)
class DiffLine:
    """``sign`` is add, del, at, or empty for a line that both have."""

    sign: str
    text: str


def diff(first: str, second: str) -> tuple[DiffLine, ...]:
    """A unified diff with three lines of context; empty if both are equal."""
    lines = difflib.unified_diff(first.splitlines(), second.splitlines(), lineterm="", n=3)
    signs = {"+": "add", "-": "del", "@": "at"}
    return tuple(DiffLine(signs.get(line[:1], ""), line) for line in list(lines)[2:])


def reproduction(trial: Trial, workload_text: str, id_: int) -> str:
    """A program that builds a trial's config again, checks its answer and times it here."""
    who = f"tunefarm {trial.compiler_version or 'unknown'} on {trial.device_model or 'unknown'}"
    return _PROGRAM.format(
        id=id_,
        number=trial.number,
        origin=f"number {trial.number} of job {trial.job}, by {who}",
        workload=workload_text,
        target=trial.task.target,
        config=dict(trial.config),
    )


_PROGRAM = '''\
"""Measures trial {id} once more, on this machine: its code is built, checked and timed."""

from tunefarm.compiler.workload import Workload
from tunefarm.db.records import TaskKey, TrialRequest
from tunefarm.worker.device import DeviceOptions, open_device

WORKLOAD = Workload.from_text({workload!r})
ORIGIN = {origin!r}
TARGET = {target!r}
CONFIG = {config!r}


def show(_, trial):
    if trial.error is not None:
        print(f"{{trial.error}}: {{trial.message}}")
    else:
        times = " ".join(f"{{1e6 * t:.2f}}" for t in trial.times_s)
        print(f"median {{1e6 * trial.median_s:.2f}} us of {{times}}; code {{trial.code_hash[:16]}}")


if __name__ == "__main__":
    print(ORIGIN)
    device = open_device(DeviceOptions(TARGET, build_processes=1))
    task = TaskKey(WORKLOAD.key, TARGET)
    request = TrialRequest("again", task, {number}, CONFIG, WORKLOAD.text)
    device.measure([request], show, lambda _: False)
    device.close()
'''
