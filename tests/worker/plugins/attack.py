"""``python attack.py WITHOUT KERNEL…``: measure hostile kernels; print what became of each as JSON.

WITHOUT is ``nothing``, ``landlock`` or ``seccomp``: what the kernel is made to lack, for this
process and its children, by a filter that answers as such a kernel does. After each hostile
kernel an honest one is measured.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path

from tunefarm.compiler.target import plugin_kinds
from tunefarm.db.records import TaskKey, Trial, TrialRequest
from tunefarm.worker.device import DeviceOptions, OpenDevice, open_device
from tunefarm.worker.sandbox import mechanisms
from tunefarm.worker.seccomp import ALLOW, EQUAL, ERRNO, LOAD, NUMBER, RETURN, install

TARGET = "hostile -num-cores=1"
CALLS = {"nothing": (), "landlock": (444, 445, 446), "seccomp": (317,)}
_ENOSYS = 38
_NO_NEW_PRIVILEGES = 38


def lack(calls: tuple[int, ...]) -> None:
    """Answer these system calls, from now on, as a kernel does that does not know them."""
    ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    lines = [(LOAD, 0, 0, NUMBER)]
    for call in calls:
        lines += [(EQUAL, 0, 1, call), (RETURN, 0, 0, ERRNO | _ENOSYS)]
    if calls and not install([*lines, (RETURN, 0, 0, ALLOW)]):
        sys.exit("the filter was not taken")


def measure(device: OpenDevice, kernel: str, budget_s: float) -> Trial:
    budgets = {"build_s": 10.0, "run_s": budget_s, "trial_s": 10.0}
    request = TrialRequest(
        "job", TaskKey("w", TARGET), 1, {"kernel": kernel}, "double", budgets=budgets
    )
    trials: list[Trial] = []
    device.measure([request], lambda _, trial: trials.append(trial), lambda _: False)
    return trials[0]


def main() -> None:
    without, budget_s, *kernels = sys.argv[1:]
    sys.path.insert(0, str(Path(__file__).parent))
    plugin_kinds.cache_clear()
    lack(CALLS[without])
    environment = {"PYTHONPATH": str(Path(__file__).parent)}
    device = open_device(
        DeviceOptions(
            TARGET, build_processes=1, memory_bytes=512 << 20, environment=environment, max_drift=0
        )
    )
    told = {"uid": os.getuid(), "mechanisms": mechanisms(), "trials": []}
    assert measure(device, "honest", 10.0).ok
    for kernel in kernels:
        start = time.monotonic()
        trial = measure(device, kernel, float(budget_s))
        seconds = time.monotonic() - start
        after = measure(device, "honest", 10.0)
        outcome = {"kernel": kernel, "error": trial.error, "message": trial.message,
                   "seconds": seconds, "next": after.error}  # fmt: skip
        told["trials"].append(outcome)
    device.close()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
