"""All scripts of this folder one after the other, in the time that there is for all of them.

    python bench/gpu/all.py [--minutes 9.5] [--small] [--only kernels,models] [--out FOLDER]

What says most comes first: whether kernels answer right, then how fast they are, the worker, whole
models, the runtime, and torch.compile's kernels in what time is left. Each has its share of the
minutes, what others leave over too, and a report of its own; one that fails, hangs or leaves cases
out does not keep the next from running. After each, ``all.json`` says what became of them and which
of the bars that were set (``bars.py``) are met. What a host lacks is told at once, all of it.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SHARES = {
    "check": 3.0, "kernels": 4.0, "trials": 1.0, "models": 2.5, "runtime": 0.5, "compiled": 1.0,
}  # fmt: skip
STALL_S = 30  # a kernel that hangs is not to cost a minute of so few
WORDS = {"kernels": ("--configs", "6")}
LEAST_S = 20.0  # that a script is begun for
NEEDED = {
    "tunefarm": "tunefarm", "numpy": "numpy>=2.0", "llvmlite": "llvmlite>=0.50",
    "ml_dtypes": "ml-dtypes>=0.5", "onnx": "onnx>=1.19", "platformdirs": "platformdirs>=4.3",
    "psutil": "psutil>=7.0", "cuda.bindings": "cuda-bindings>=12.8",
    "pynvml": "nvidia-ml-py>=12.560",
}  # fmt: skip
"""Modules that the scripts import, and what to install for them; with --no-deps that is all."""


def main() -> int:
    options = parse_options()
    missing = [package for module, package in NEEDED.items() if not is_there(module, package)]
    if missing:
        words = " ".join(f"'{package}'" if ">" in package else package for package in missing)
        print(f"not here, or too old: pip install --no-deps {words}", file=sys.stderr)
        return 2
    from reporting import reports_folder

    begun = datetime.datetime.now(datetime.UTC)
    dated = "" if options.out else f"-{begun.date().isoformat()}"
    folder = (options.out or reports_folder()).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    places = {name: folder / f"{name}{dated}.json" for name in SHARES}
    for name in options.only:
        places[name].unlink(missing_ok=True)  # of a run before, if one of this day
    told: dict[str, Any] = {
        "date": begun.isoformat(timespec="seconds"), "minutes": options.minutes, "scripts": {}
    }  # fmt: skip
    end = time.monotonic() + 60 * options.minutes
    left = {name: share for name, share in SHARES.items() if name in options.only}
    for name in tuple(left):
        share_s = (end - time.monotonic()) * left[name] / sum(left.values())
        del left[name]
        told["scripts"][name] = run(name, share_s, places, options)
        write(folder / f"all{dated}.json", told, places)
    return summed_up(told)


def run(
    name: str, share_s: float, places: Mapping[str, Path], options: argparse.Namespace
) -> dict[str, Any]:
    """Run a script for so many seconds: its status, and how long it took."""
    if share_s < LEAST_S:
        return {"status": "left out: no time", "share_s": round(share_s, 1), "took_s": 0.0}
    words = [str(HERE / f"{name}.py"), "--minutes", f"{share_s / 60:.2f}"]
    words += ["--out", str(places[name]), *(() if options.small else WORDS.get(name, ()))]
    words += ["--stall", str(STALL_S)] * (not options.small)
    words += ["--small"] * (options.small and name != "runtime")
    words += ["--kernels", str(places["kernels"])] * (name == "compiled")
    words += ["--mode", options.mode] * (name == "models")
    print(f"--- {name}: {share_s:.0f} s", flush=True)
    start = time.monotonic()
    done = subprocess.run([sys.executable, *words], check=False)
    status = "passed" if done.returncode == 0 else "has failures, see its report"
    took_s = round(time.monotonic() - start, 1)
    return {"status": status, "share_s": round(share_s, 1), "took_s": took_s}


def write(path: Path, told: dict[str, Any], places: Mapping[str, Path]) -> None:
    """Write what became of the scripts, with the cases that each ran, failed and left out, and the
    bars."""
    from bars import bars
    from reporting import write_whole

    there = {name: json.loads(p.read_text()) for name, p in places.items() if p.exists()}
    for name, script in told["scripts"].items():
        report = there.get(name, {})
        results = report.get("results", [])
        script["cases"] = len(results)
        script["failed"] = [result["case"] for result in results if "failed" in result]
        script["left_out"] = report.get("left_out", [])
    for report in there.values():
        told |= {fact: report[fact] for fact in ("device", "driver", "compiler", "assembler")}
    told["bars"] = [bar.told() for bar in bars(there)]
    told["lines"] = [bar.line() for bar in bars(there)]
    write_whole(path, told)


def summed_up(told: Mapping[str, Any]) -> int:
    """Print the end of it all; 0 if every script passed."""
    print("--- all")
    for name, script in told["scripts"].items():
        counts = f"{script['cases']} cases, {len(script['failed'])} failed"
        took = f"{script['took_s']:.0f} of {script['share_s']:.0f} s"
        print(f"{name:<10}{script['status']}: {counts}, {len(script['left_out'])} left out, {took}")
    print("--- what was wanted", *told["lines"], sep="\n")
    return int(any(script["status"] != "passed" for script in told["scripts"].values()))


def is_there(module: str, package: str) -> bool:
    """Whether a module can be imported, of no older a version than its package has to be."""
    try:
        found = importlib.util.find_spec(module) is not None
    except ImportError:  # of the package around it
        return False
    name, _, least = package.partition(">=")
    if not found or not least:
        return found
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:  # copied there: nothing tells its version
        return True
    return numbers_of(version) >= numbers_of(least)


def numbers_of(version: str) -> list[int]:
    """[0, 50, 1] of 0.50.1rc2."""
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


def parse_options() -> argparse.Namespace:
    def names(text: str) -> list[str]:
        unknown = set(text.split(",")) - set(SHARES)
        if unknown:
            raise argparse.ArgumentTypeError(f"{sorted(unknown)}: not among {', '.join(SHARES)}")
        return text.split(",")

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=9.5, help="for all scripts together")
    parser.add_argument("--small", action="store_true", help="tiny cases, for an emulator")
    parser.add_argument("--only", type=names, default=list(SHARES), help="these scripts alone")
    parser.add_argument("--mode", default="reduce-overhead", help="of torch.compile, for models")
    parser.add_argument("--out", type=Path, help="folder of the reports, not bench/gpu/reports")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
