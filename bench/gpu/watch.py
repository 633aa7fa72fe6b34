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
GRACE_S = 30.0  # for the case under way when the time is over


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
    end = time.monotonic() + 60 * options.minutes + GRACE_S if options.minutes else float("inf")
    while True:
        status = _run(words, path, options.stall, end)
        if status >= 0 and status != FAULTED:
            return status
        if time.monotonic() > end:
            return _leave_out_last(path)
        why = f"did not go on within {options.stall:g} s, or was killed"
        if status != FAULTED and not _tell_last(path, status, why):
            return 1
        print("a fresh process goes on", flush=True)
        words = [*words, "--resume"]


def _run(words: list[str], path: Path, stall_s: float, end: float) -> int:
    """The exit status of one process; that of SIGKILL if its report did not change for so long, or
    as long as it says, while this process could run too, or if the time ended."""
    child = subprocess.Popen(
        [sys.executable, *words], env={**os.environ, WATCHED: "1"}, start_new_session=True
    )
    seen, idle, last, patience_s = _stamp(path), 0.0, time.monotonic(), stall_s
    try:
        while child.poll() is None:
            time.sleep(POLL_S)
            idle, last = idle + min(time.monotonic() - last, 2 * POLL_S), time.monotonic()
            if _stamp(path) != seen:
                seen, idle = _stamp(path), 0.0
                under_way = _told(path).get("under_way", {})
                patience_s = max(stall_s, under_way.get("patience_s", 0.0))
            if idle > patience_s or time.monotonic() > end:
                break
    finally:
        _kill_group(child)  # builders too
    return child.wait()


def _stamp(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _told(path: Path) -> dict[str, Any]:
    """What a report says now."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def _leave_out_last(path: Path) -> int:
    """The case that the time ended in has no result; the exit status, as of a process that ended
    in time."""
    told = _told(path)
    case = told.pop("under_way", None)
    if case is not None:
        told.setdefault("left_out", []).append(case["case"])
        write_whole(path, told)
        print(f"{case['case']}: left out, the time was over", flush=True)
    results = told.get("results", [])
    return int(not results or any("failed" in result for result in results))


def _tell_last(path: Path, status: int, why: str) -> bool:
    """Write down that a process ended at the case that its report says, by SIGKILL for this reason;
    False if it was at none."""
    told = _told(path)
    case = told.pop("under_way", None)
    if case is None:
        print(f"the process died of {signal.Signals(-status).name} at no case")
        return False
    if status != -signal.SIGKILL:
        why = f"the process died of {signal.Signals(-status).name}"
    case.pop("patience_s", None)
    told["results"].append({**case, "failed": why, "lost": True})
    write_whole(path, told)
    print(f"{case['case']} {case.get('at', '')}: {why}", flush=True)
    return True
