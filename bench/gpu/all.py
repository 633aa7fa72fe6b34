"""All scripts of this folder one after the other, in the time that there is for all of them.

    python bench/gpu/all.py [--minutes 9.5] [--small] [--out FOLDER]

What says most comes first: whether kernels answer right, then how fast they are, the worker, whole
models, the runtime. Each has its share of the minutes that are left, and a report of its own; one
that fails, hangs or leaves cases out does not keep the next from running.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from reporting import REPORTS

HERE = Path(__file__).parent
SHARES = {"check": 3.0, "kernels": 4.0, "trials": 1.0, "models": 2.5, "runtime": 0.5}
LEAST_S = 20.0  # that a script is begun for


def main() -> int:
    options = parse_options()
    end = time.monotonic() + 60 * options.minutes
    left, statuses = dict(SHARES), {}
    for name in SHARES:
        share_s = (end - time.monotonic()) * left[name] / sum(left.values())
        del left[name]
        if share_s < LEAST_S:
            statuses[name] = "left out: no time"
            continue
        words = [str(HERE / f"{name}.py"), "--minutes", f"{share_s / 60:.2f}"]
        if options.out is not None:
            words += ["--out", str(options.out / f"{name}.json")]
        words += ["--small"] * (options.small and name != "runtime")
        print(f"--- {name}: {share_s:.0f} s", flush=True)
        done = subprocess.run([sys.executable, *words], check=False)
        statuses[name] = "passed" if done.returncode == 0 else "has failures, see its report"
    print("--- all")
    for name, status in statuses.items():
        print(f"{name:<10}{status}")
    return int(any(status != "passed" for status in statuses.values()))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=9.5, help="for all scripts together")
    parser.add_argument("--small", action="store_true", help="tiny cases, for an emulator")
    parser.add_argument("--out", type=Path, help=f"folder of the reports, instead of {REPORTS}")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
