"""Trials a second of a worker's GPU: a tuning job without its tuner.

    python bench/gpu/trials.py [--trials 400] [-k float16] [--minutes 5] [--out report.json]
    TUNEFARM_CUDA=emulated python bench/gpu/trials.py --small

Candidates go through all that a worker does with them: builders that are shut in, the runner,
checks of answers, event times with the cache emptied, NVML's watch, the pulse. They come in
batches, as a tuner sends them. Where the driver does not run in the sandbox of runners, the first
case is tried again in a part of it, and in none; the report says in which. It needs neither
xgboost, sqlalchemy nor a tracker; where sqlalchemy is installed a job of random search through a
tracker of its own follows, whose rate has the whole farm in it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from cases import Case, product
from reporting import Report, add_options
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.runtime.cuda.driver import open_device
from tunefarm.compiler.settings import GPU_SANDBOX
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.db.records import TaskKey, Trial, TrialRequest
from tunefarm.worker.device import DeviceOptions, OpenDevice
from tunefarm.worker.device import open_device as open_worker_device
from watch import watched

import tunefarm

BATCH = 64
SANDBOXES = ("landlock+seccomp", "landlock", "seccomp", "none")
FARM_PATIENCE_S = 300.0
BATCH_PATIENCE_S = 120.0  # candidates that hang have time limits of their own


def cases(small: bool) -> Iterator[Case]:
    """Products, the one that the wanted rate is of first."""
    for dtype in ("float16", "float32"):
        size = 32 if small else 2048
        yield product(size, size, size, dtype, "")


def requests_of(case: Case, target: Target, count: int) -> list[TrialRequest]:
    """The default config, and others drawn at random."""
    space = config_space(case.workload, target)
    rng = np.random.default_rng(0)
    drawn = space.sample(rng, 32 * count)
    rows = drawn[space.valid(drawn)][: count - 1]
    key = TaskKey(case.workload.key, target.text)
    configs = [space.default, *map(space.decode, rows)]
    return [
        TrialRequest("bench", key, number, dict(config), case.workload.text)
        for number, config in enumerate(configs)
    ]


def measured(case: Case, worker: OpenDevice, count: int, report: Report) -> dict[str, Any]:
    """The rate at which a worker's device measures candidates, and what they came to."""
    target = Target(worker.device.target)
    requests = requests_of(case, target, count)
    trials: list[Trial] = []
    start = time.monotonic()
    for first in range(0, len(requests), BATCH):
        report.at(f"trial {first}", BATCH_PATIENCE_S)
        batch = requests[first : first + BATCH]
        worker.measure(batch, lambda _, trial: trials.append(trial), lambda _: False)
        if worker.device.health.trouble:
            raise TunefarmError(worker.device.health.trouble)
    took = time.monotonic() - start
    right = [trial for trial in trials if trial.ok]
    messages = sorted({t.message[:200] for t in trials if t.error})[:8]
    if not right:
        raise TunefarmError(f"no candidate passed: {'; '.join(messages)}")
    best = min(right, key=lambda trial: trial.median_s)
    default = next((trial for trial in right if trial.number == 0), None)
    phases = ("build", "check", "run")
    return {
        "trials": len(trials),
        "trials_per_second": len(trials) / took,
        "errors": dict(Counter(str(t.error) for t in trials if t.error)),
        "messages": messages,
        "mean_seconds": {p: float(np.mean([t.phases_s.get(p, 0) for t in right])) for p in phases},
        "best_seconds": best.median_s,
        "best_config": dict(best.config),
        "best_flops": case.operations / best.median_s,
        "default_flops": case.operations / default.median_s if default else 0.0,
        "device_state": dict(best.device_state),
    }


class Workplace:
    """A worker's device whose runners are shut in so, opened by the first case."""

    def __init__(self, target: Target, sandbox: str, builders: int, report: Report) -> None:
        self._options = DeviceOptions(
            target.text, builders, environment={GPU_SANDBOX.name: sandbox}
        )
        self._report = report
        self._worker: OpenDevice | None = None

    def __enter__(self) -> Workplace:
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._worker.close()

    def measured(self, case: Case, count: int) -> dict[str, Any]:
        if self._worker is None:
            self._report.at("opening the device", BATCH_PATIENCE_S)
            self._worker = open_worker_device(self._options)
            self._report.facts["worker"] = dict(self._worker.device.attributes)
        return measured(case, self._worker, count, self._report)


def through_a_farm(case: Case, target: Target, count: int, report: Report) -> dict[str, Any]:
    """The rate of a job of random search, its tracker, tuner and worker started and stopped."""
    report.at("a job", FARM_PATIENCE_S)
    task = tunefarm.Task(case.workload, target, 1)
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        tuned = tunefarm.tune(
            [task], trials=count, search="random", db=str(Path(folder, "trials.db"))
        )
        took = time.monotonic() - start
    return {
        "trials": tuned.trials,
        "trials_per_second": tuned.trials / took,
    }


def main() -> int:
    options = parse_options()
    device = open_device()
    report = Report("trials", options, device)
    target = Target(f"cuda -arch={device.properties.arch}")
    count = 6 if options.small else options.trials
    chosen = [case for case in cases(options.small) if options.k in case.name]
    for sandbox in SANDBOXES if chosen else ():
        how = "" if sandbox == SANDBOXES[0] else f", sandbox: {sandbox}"
        with Workplace(target, sandbox, options.builders, report) as place:
            first = report.run(chosen[0].name + how, partial(place.measured, chosen[0], count))
            tell(first)
            if first is not None and "failed" in first:
                continue
            os.environ[GPU_SANDBOX.name] = sandbox
            for case in chosen[1:]:
                tell(report.run(case.name, partial(place.measured, case, count)))
        break
    if has_database():
        for case in chosen:
            name = f"{case.name}, through a farm"
            tell(report.run(name, partial(through_a_farm, case, target, count, report)))
    else:
        print("no sqlalchemy: the job through a tracker is left out")
    return report.close()


def has_database() -> bool:
    try:
        import sqlalchemy  # noqa: F401
    except ImportError:
        return False
    return True


def tell(told: Mapping[str, Any] | None) -> None:
    """Print one line of the table."""
    if told is None:
        return
    if "trials" not in told:
        print(f"{told['case']:<40} failed: {told['failed']}", flush=True)
        return
    best = f", best {told['best_flops'] / 1e12:.2f} TFLOP/s" if "best_flops" in told else ""
    errors = f", {told['errors']}" if told.get("errors") else ""
    print(f"{told['case']:<40}{told['trials_per_second']:8.1f} trials/s{best}{errors}", flush=True)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_options(parser)
    parser.add_argument("--small", action="store_true", help="tiny products, for an emulator")
    parser.add_argument("--trials", type=int, default=400, help="candidates of each product")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(watched("trials", main))
