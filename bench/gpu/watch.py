"""A script's cases in a process that is watched: what dies or hangs costs the case that it was at.

A kernel may write where it may not, which the device takes no more calls of the process after, wait
for ever at a barrier, or bring the process down. Whatever it does, what was found before it stands
in the report, the case is told there as failed, and another process goes on behind it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reporting import FAULTED, add_options, report_path, write_whole

WATCHED = "TUNEFARM_BENCH_WATCHED"  # set in the process that runs the cases
POLL_S = 0.2


def watched(name: str, main: Callable[[], int]) -> int:
    """Run ``main``, which grows the report of this name, in processes of its own until one comes to
    its end; the exit status of that."""
    if WATCHED in os.environ:
        return main()
    parser = argparse.ArgumentParser(add_help=False)
    add_options(parser)
    options, _ = parser.parse_known_args()
    path = report_path(name, options)
    words = [*sys.argv, "--out", str(path)]
    while True:
        status = _run(words, path, options.stall)
        if status >= 0 and status != FAULTED:
            return status
        if status != FAULTED and not _tell_last(path, status, options.stall):
            return 1
        print("a fresh process goes on", flush=True)
        words = [*words, "--resume"]


def _run(words: list[str], path: Path, stall_s: float) -> int:
    """The exit status of one process; that of SIGKILL if its report did not change for so long,
    while this process could run too."""
    child = subprocess.Popen(
        [sys.executable, *words], env={**os.environ, WATCHED: "1"}, start_new_session=True
    )
    seen, idle, last = _stamp(path), 0.0, time.monotonic()
    try:
        while child.poll() is None:
            time.sleep(POLL_S)
            idle, last = idle + min(time.monotonic() - last, 2 * POLL_S), time.monotonic()
            if _stamp(path) != seen:
                seen, idle = _stamp(path), 0.0
            if idle > stall_s:
                break
    finally:
        _kill_group(child)  # builders too
    return child.wait()


def _stamp(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _tell_last(path: Path, status: int, stall_s: float) -> bool:
    """Write down that a process ended at the case that its report says; False if it was at none."""
    told: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    case = told.pop("under_way", None)
    if case is None:
        print(f"the process died of {signal.Signals(-status).name} before its first case")
        return False
    why = f"did not go on within {stall_s:g} s, or was killed"
    if status != -signal.SIGKILL:
        why = f"the process died of {signal.Signals(-status).name}"
    told["results"].append({**case, "failed": why})
    write_whole(path, told)
    print(f"{' '.join(case.values())}: {why}", flush=True)
    return True
