"""What the scripts of this folder share: the report that grows case by case, and the time left."""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.gpu.ptxas import find_ptxas, ptxas_version
from tunefarm.compiler.runtime.cuda.driver import Device, DriverError
from tunefarm.compiler.version import compiler_version

REPORTS = Path(__file__).parent / "reports"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that all scripts have."""
    parser.add_argument("-k", default="", help="only cases whose names have this text")
    parser.add_argument("--minutes", type=float, default=0.0, help="begin no case after so many")
    parser.add_argument("--out", type=Path, help="where the report goes")
    parser.add_argument("--builders", type=int, default=min(os.cpu_count() or 1, 16))
    parser.add_argument("--resume", action="store_true", help="go on with the report that is there")


class Report:
    """A JSON file with a date that is whole after each case: what ends the process early costs the
    cases that are left.

    ``name`` begins its file name, bench/gpu/reports/NAME-DATE.json, unless ``options.out`` says
    where it goes. After a fault of the device, which takes no more calls of the process, another
    process goes on behind the case with the same report.
    """

    def __init__(self, name: str, options: argparse.Namespace, device: Device) -> None:
        self.facts = facts_of(device)
        self.results: list[dict[str, Any]] = []
        self.left_out: list[str] = []
        self.path: Path = options.out or REPORTS / f"{name}-{self.facts['date'][:10]}.json"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if options.resume and self.path.exists():
            self.facts = json.loads(self.path.read_text())
            self.results = self.facts.pop("results")
            del self.facts["left_out"]
        began = datetime.datetime.fromisoformat(self.facts["date"]).timestamp()
        self._end = began + 60 * options.minutes if options.minutes else float("inf")

    @property
    def done(self) -> set[str]:
        """The cases that have a result, of the process before this one."""
        return {result["case"] for result in self.results}

    def run(self, name: str, case: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """The result of a case, with its name; what it raises becomes ``failed``. None, and the
        case is ``left_out``, once the time is over."""
        if time.time() > self._end:
            self.left_out.append(name)
            return None
        start = time.monotonic()
        result: dict[str, Any] = {"case": name}
        self.results.append(result)
        try:
            result |= case()
        except Exception as error:  # a case that fails in any way is told, and the next goes on
            if not isinstance(error, TunefarmError):
                traceback.print_exc()
            told = " ".join(str(error).split())[:500]
            result["failed"] = f"{type(error).__name__}: {told}"
            if isinstance(error, DriverError) and error.fatal:
                print(f"{name}: {told}; a fresh process goes on", flush=True)
                self._go_on()
        finally:
            result["took_s"] = round(time.monotonic() - start, 2)
            self.write()
        return result

    def _go_on(self) -> NoReturn:
        """Become a fresh process; builders of this one would wait for it for ever."""
        self.write()
        for builder in multiprocessing.active_children():
            builder.kill()
        more = [] if "--resume" in sys.argv else ["--resume"]
        has_out = any(word.startswith("--out") for word in sys.argv)
        out = [] if has_out else ["--out", str(self.path)]
        os.execv(sys.executable, [sys.executable, *sys.argv, *out, *more])

    def write(self) -> None:
        told = {**self.facts, "results": self.results, "left_out": self.left_out}
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")
        part.replace(self.path)

    def close(self) -> int:
        """Tell where the report is; the exit status: 1 if a case failed, or none was run."""
        self.write()
        if self.left_out:
            print(f"left out, as the time was over: {', '.join(self.left_out)}")
        print(f"report: {self.path}")
        return int(not self.results or any("failed" in result for result in self.results))


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
