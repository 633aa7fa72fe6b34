"""The fastest kernels of a report once more, beside what torch.compile makes of the same operators.

    python bench/gpu/compiled.py [--kernels report.json] [-k matmul] [--minutes 5] [--out FILE]

torch.compile (max-autotune) takes up to minutes an operator, so this comes behind ``kernels.py``,
whose newest report says which config was the fastest of each case. That is built again, checked and
timed in turn with PyTorch's. Where there is no PyTorch with CUDA nothing is done.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from builds import build
from cases import Case, all_cases, drawn_inputs
from kernels import answering, beside, line_of, target_of
from peers import Libraries, find_torch
from reporting import Report, add_options, reports_folder
from tunefarm.compiler.runtime.cuda.driver import Device, open_device
from watch import watched

PATIENCE_S = 240.0  # with a compilation


def fastest_of(told: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The fastest right result of each case of a report of ``kernels.py``, in its order."""
    found: dict[str, Mapping[str, Any]] = {}
    for result in told["results"]:
        if "failed" in result:
            continue
        case = result["case"].partition(" by ")[0]
        if case not in found or result["seconds"] < found[case]["seconds"]:
            found[case] = result
    return found


def again(
    case: Case, config: Mapping[str, Any], libraries: Libraries, device: Device, report: Report
) -> dict[str, Any]:
    """A case by a config, timed in turn with torch.compile."""
    inputs = drawn_inputs(case, np.random.default_rng(time.time_ns()))
    sampled = case.expected(inputs)
    report.at("torch.compile", PATIENCE_S)
    peers = [libraries.compiled(case, inputs)]
    built = build(case.workload.text, target_of(case, device, "").text, config)
    call, error = answering(case, built, inputs, sampled, device)
    told = {"config": dict(config), "error": error}
    return told | beside(case, call, peers, sampled, device)


def newest_report() -> Path | None:
    """The last one of ``kernels.py`` in the folder of reports."""
    found = sorted(reports_folder().glob("kernels-*.json"))
    return found[-1] if found else None


def main() -> int:
    options = parse_options()
    device = open_device()
    libraries = Libraries(device, None if device.properties.emulated else find_torch())
    report = Report("compiled", options, device)
    report.facts |= libraries.versions()
    source = options.kernels or newest_report()
    if libraries.torch is None or source is None or not source.exists():
        why = "no PyTorch with CUDA" if libraries.torch is None else "no report of kernels.py"
        report.facts["nothing_done"] = why
        report.write()
        print(f"{why}: nothing to do\nreport: {report.path}")
        return 0
    fastest = fastest_of(json.loads(source.read_text()))
    cases = {case.name: case for case in all_cases(options.small) if options.k in case.name}
    for name in [name for name in fastest if name in cases and name not in report.done]:
        work = partial(again, cases[name], fastest[name]["config"], libraries, device, report)
        told = report.run(name, work)
        if told is not None:
            print(line_of(told), flush=True)
    return report.close()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_options(parser)
    parser.add_argument("--kernels", type=Path, help="the report, instead of the newest one")
    parser.add_argument("--small", action="store_true", help="the cases of kernels.py --small")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(watched("compiled", main))
