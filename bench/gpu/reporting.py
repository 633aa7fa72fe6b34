"""What the scripts of this folder share: the report that grows case by case, and the time left."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.gpu.ptxas import find_ptxas, ptxas_version
from tunefarm.compiler.runtime.cuda.driver import Device, DriverError
from tunefarm.compiler.version import compiler_version

REPORTS = Path(__file__).parent / "reports"
FAULTED = 75  # the exit status of a process whose device takes no more calls of it
MOST_LOST = 2  # processes that a sketch may cost


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that all scripts have. Two cores are left to who launches kernels: where builders
    have all of them, a call of microseconds waits for the host."""
    cores = os.cpu_count() or 1
    parser.add_argument("-k", default="", help="only cases whose names have this text")
    parser.add_argument("--minutes", type=float, default=0.0, help="begin no case after so many")
    parser.add_argument("--out", type=Path, help="where the report goes")
    parser.add_argument("--builders", type=int, default=min(max(cores - 2, 1), 16))
    parser.add_argument("--stall", type=float, default=60.0, help="seconds that a case may hang")
    parser.add_argument("--resume", action="store_true", help="go on with the report that is there")


def report_path(name: str, options: argparse.Namespace) -> Path:
    """Where a report goes: bench/gpu/reports/NAME-DATE.json unless ``options.out`` says it."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return (options.out or reports_folder() / f"{name}-{today}.json").resolve()


def reports_folder() -> Path:
    """bench/gpu/reports/, or where that cannot be written a folder among temporary files."""
    if os.access(REPORTS if REPORTS.exists() else REPORTS.parent, os.W_OK):
        return REPORTS
    return Path(tempfile.gettempdir(), "tunefarm-gpu-reports")


class Report:
    """A JSON file with a date that is whole before and after each case, which it says is
    ``under_way``.

    After a fault of the device, which takes no more calls of the process, the process ends as
    ``FAULTED``; who watches it (``watch.py``) starts another, which goes on behind the case.
    """

    def __init__(self, name: str, options: argparse.Namespace, device: Device) -> None:
        self.facts = facts_of(device)
        self.results: list[dict[str, Any]] = []
        self.left_out: list[str] = []
        self.under_way: dict[str, Any] | None = None
        self.path = report_path(name, options)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if options.resume and self.path.exists():
            self.facts = json.loads(self.path.read_text())
            self.results = self.facts.pop("results")
            self.facts.pop("left_out", None)
            self.facts.pop("under_way", None)
        began = datetime.datetime.fromisoformat(self.facts["date"]).timestamp()
        self._end = began + 60 * options.minutes if options.minutes else float("inf")

    @property
    def done(self) -> set[str]:
        """The cases that have a result, of the process before this one."""
        return {result["case"] for result in self.results}

    def result(self, name: str) -> dict[str, Any]:
        """What became of a case; empty if it was left out."""
        return next((result for result in self.results if result["case"] == name), {})

    def run(
        self, name: str, case: Callable[[], dict[str, Any]], sketch: str = ""
    ) -> dict[str, Any] | None:
        """The result of a case, with its name and sketch; what it raises becomes ``failed``, beside
        the part that it was ``at``. None, and the case is ``left_out``, once the time is over, or
        its sketch has cost so many processes that it is not worth another."""
        if time.time() > self._end or self._lost(sketch) >= MOST_LOST:
            self.left_out.append(name)
            return None
        start = time.monotonic()
        result: dict[str, Any] = {"case": name, **({"sketch": sketch} if sketch else {})}
        self.under_way = dict(result)
        self.write()
        try:
            result |= case()
        except Exception as error:  # a case that fails in any way is told, and the next goes on
            if not isinstance(error, TunefarmError):
                traceback.print_exc()
            told = " ".join(str(error).split())[:500]
            result |= {k: v for k, v in self.under_way.items() if k != "patience_s"}
            result["failed"] = f"{type(error).__name__}: {told}"
            if isinstance(error, DriverError) and error.fatal:
                result["lost"] = True
                self._close_case(result, start)
                print(f"{name}: {told}", flush=True)
                os._exit(FAULTED)
        self._close_case(result, start)
        return result

    def at(self, part: str, patience_s: float = 0.0) -> None:
        """Say which part of the case begins, and how long it may take if that is long."""
        assert self.under_way is not None
        self.under_way |= {"at": part, "patience_s": patience_s}
        self.write()

    def _lost(self, sketch: str) -> int:
        """How many processes the cases of a sketch have cost."""
        mine = (r for r in self.results if sketch and r.get("sketch") == sketch)
        return sum(bool(result.get("lost")) for result in mine)

    def _close_case(self, result: dict[str, Any], start: float) -> None:
        result["took_s"] = round(time.monotonic() - start, 2)
        self.results.append(result)
        self.under_way = None
        self.write()

    def write(self) -> None:
        told = {**self.facts, "results": self.results, "left_out": self.left_out}
        write_whole(self.path, {**told, "under_way": self.under_way} if self.under_way else told)

    def close(self) -> int:
        """Tell where the report is; the exit status: 1 if a case failed, or none was run."""
        self.write()
        if self.left_out:
            print(f"left out (time, or what its sketch cost): {', '.join(self.left_out)}")
        print(f"report: {self.path}")
        return int(not self.results or any("failed" in result for result in self.results))


def write_whole(path: Path, told: dict[str, Any]) -> None:
    """Write a report so that nobody ever finds a part of it."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    part.replace(path)


def facts_of(device: Device) -> dict[str, Any]:
    """What the figures were taken on and with."""
    properties = device.properties
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv[1:],
        "device": {name: getattr(properties, name) for name in properties.__slots__},
        "driver": driver_version(properties.emulated),
        "compiler": compiler_version("cuda"),
        "assembler": ptxas_version() if find_ptxas() else "driver",
    }


def driver_version(emulated: bool) -> str:
    if emulated:
        return ""
    from tunefarm.worker.cuda.nvml import open_nvml

    try:
        return str(open_nvml().nvmlSystemGetDriverVersion())
    except TunefarmError as error:
        return str(error)
