"""The process of this machine that a job belongs to: the job is to end when the command does."""

from __future__ import annotations

import os
from pathlib import Path

_START = 22
"""The field of ``/proc/PID/stat`` (proc(5)) with the ticks between boot and a process's start."""


def mark_of(process: int) -> str:
    """``PID/START`` of a process, which no later one of this boot has; empty if there is none."""
    try:
        told = Path("/proc", str(process), "stat").read_text(errors="replace")
    except OSError:
        return ""
    after_name = told.rpartition(")")[2].split()  # from the third field on
    return f"{process}/{after_name[_START - 3]}"


def own_mark() -> str:
    """The mark of this process."""
    return mark_of(os.getpid()) or str(os.getpid())


def is_alive(mark: str) -> bool:
    """Whether the process of a mark still runs; False for what is no mark."""
    process = mark.partition("/")[0]
    return process.isdecimal() and mark_of(int(process)) == mark
