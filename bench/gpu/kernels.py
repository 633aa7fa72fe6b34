"""Our kernels on a GPU, built, checked against float64 and timed in one call, beside PyTorch's.

    python bench/gpu/kernels.py [--configs 16] [-k matmul] [--compile] [--out report.json]
    TUNEFARM_CUDA=emulated python bench/gpu/kernels.py --small

A case is built with its default config and, with ``--configs N``, with N − 1 others drawn at
random; each that answers right is timed, and the fastest is told. Times are medians of repeats by
the device's events, inputs fresh, the second-level cache emptied before each call, ours and
PyTorch's alike and in turn. Where there is PyTorch with CUDA its product is cuBLAS's, its
convolution cuDNN's. Prints a table, and writes a report with its date: bench/gpu/reports/DATE.json.

Needs of tunefarm the compiler and the worker alone: neither xgboost nor a database.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from cases import Array, Case, all_cases, allowed_error, drawn_inputs, error_of
from peers import TorchCase, find_torch
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.runtime.cuda.driver import Device, DriverError, open_device
from tunefarm.compiler.runtime.cuda.kernel import CudaCall, load_kernel
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.version import compiler_version
from tunefarm.worker.backend import Built
from tunefarm.worker.cuda.backend import CudaBackend, kernel_of, packed
from tunefarm.worker.cuda.reference import copy_bandwidth, peaks

REPEATS = 11
REPEAT_S = 0.01
MOST_CALLS = 64
QUICK_REPEATS = 3
REPORTS = Path(__file__).parent / "reports"


@dataclass
class Result:
    """What became of one case: the fastest right config, and PyTorch's time. Times in seconds."""

    case: str
    seconds: float = 0.0
    default_seconds: float = 0.0
    config: Mapping[str, int | str] = field(default_factory=dict)
    error: float = 0.0
    registers: int = 0
    local_bytes: int = 0
    rate: float = 0.0
    unit: str = ""
    share_of_copy: float = 0.0
    torch_seconds: float = 0.0
    torch_error: float = 0.0
    over_torch: float = 0.0
    configs: int = 0
    failed: list[str] = field(default_factory=list)


def main() -> int:
    options = parse_options()
    device, torch = open_device(), None if options.no_peers else find_torch()
    if torch is not None and not device.properties.emulated:
        torch.zeros(1, device="cuda")
    report = facts_of(device, torch)
    cases = [c for c in all_cases(options.small) if options.k in c.name]
    print(f"{device.properties.name}: copies {report['copy_bandwidth'] / 1e9:.0f} GB/s", flush=True)
    with ProcessPoolExecutor(options.builders, mp_context=get_context("spawn")) as pool:
        waiting = [(case, begin(case, device, options, pool)) for case in cases]
        results: list[Result] = []
        for case, builds in waiting:
            results.append(Result(case.name, configs=len(builds)))
            try:
                measure(case, builds, device, torch, options.compile, report, results[-1])
            except DriverError as failure:  # the device takes no more calls of this process
                print(f"{case.name}: {failure}; what follows is left out", flush=True)
                break
            print(line_of(results[-1]), flush=True)
        pool.shutdown(cancel_futures=True)
    report["results"] = [vars(result) for result in results]
    path = options.out or REPORTS / f"{report['date'][:10]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    print(f"report: {path}")
    return 0 if len(results) == len(cases) and all(r.seconds for r in results) else 1


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="a few tiny cases, for an emulator")
    parser.add_argument("--configs", type=int, default=1, help="configs to try of each case")
    parser.add_argument("-k", default="", help="only cases whose names have this text")
    parser.add_argument("--target", default="", help="more options of the target")
    parser.add_argument("--compile", action="store_true", help="PyTorch by torch.compile")
    parser.add_argument("--no-peers", action="store_true", help="ours alone, without PyTorch")
    parser.add_argument("--builders", type=int, default=min(os.cpu_count() or 1, 16))
    parser.add_argument("--out", type=Path, help="where the report goes")
    return parser.parse_args()


def target_of(case: Case, device: Device, options: str) -> Target:
    properties = device.properties
    precision = f" -precision={case.precision}" if case.precision else ""
    arch = f"cuda -arch={properties.arch} -num-cores={properties.multiprocessors}"
    return Target(f"{arch}{precision} {options}")


# --- building, in other processes ---------------------------------------------------------------


def begin(
    case: Case, device: Device, options: argparse.Namespace, pool: ProcessPoolExecutor
) -> list[tuple[Mapping[str, int | str], Future[Built]]]:
    """The configs of a case, its default first, and their builds."""
    target = target_of(case, device, options.target)
    configs = drawn_configs(case, target, options.configs)
    text = case.workload.text
    return [(config, pool.submit(build, text, target.text, dict(config))) for config in configs]


def drawn_configs(case: Case, target: Target, count: int) -> list[Mapping[str, int | str]]:
    space = config_space(case.workload, target)
    drawn = space.sample(np.random.default_rng(0), 64 * count)
    rows = drawn[space.valid(drawn)]
    found = [dict(space.default)]
    for row in rows:
        config = dict(space.decode(row))
        if len(found) < count and config not in found:
            found.append(config)
    return list(found)


def build(text: str, target: str, config: Mapping[str, int | str]) -> Built:
    return CudaBackend().build(text, target, config)


# --- on the device ------------------------------------------------------------------------------


def measure(
    case: Case,
    builds: Sequence[tuple[Mapping[str, int | str], Future[Built]]],
    device: Device,
    torch: Any,
    compiled: bool,
    report: Mapping[str, Any],
    result: Result,
) -> None:
    """Check and time a case; configs that fail are told, and the others go on. DriverError after
    which the device is of no use to this process."""
    inputs = drawn_inputs(case, np.random.default_rng(time.time_ns()))
    sampled = case.expected(inputs)
    best: CudaCall | None = None
    for index, (config, future) in enumerate(builds):
        try:
            built = future.result()
            kernel = kernel_of(built)
            loaded = load_kernel(kernel, Target(built.metadata["target"]), device)
            call = loaded.bind(packed(inputs, kernel))
            error = error_of(answer(case, call), sampled)
            if not error <= allowed_error(case):
                result.failed.append(f"{config}: wrong by {error:.2g}")
                continue
            seconds = statistics.median(repeats(call.cold_seconds, QUICK_REPEATS, device))
        except DriverError as failure:
            result.failed.append(f"{config}: {failure}")
            if failure.fatal:
                raise
            continue
        except TunefarmError as failure:
            result.failed.append(f"{config}: {failure}")
            continue
        if index == 0:
            result.default_seconds = seconds
        if best is None or seconds < result.seconds:
            best, result.seconds, result.config, result.error = call, seconds, config, error
    if best is not None:
        race(case, best, inputs, sampled, torch, compiled, device, result)
        judge(case, best, result, report)


def answer(case: Case, call: CudaCall) -> Array:
    """The output of one call over memory that held none."""
    (output,) = call.outputs
    call.stream.fill(output.address, 0xFF, output.memory.size_bytes)
    call()
    (shape,) = (t.shape for t in case.workload.output_types)
    return np.asarray(output.numpy()).reshape(shape)


def race(
    case: Case,
    ours: CudaCall,
    inputs: Sequence[Array],
    sampled: Any,
    torch: Any,
    compiled: bool,
    device: Device,
    result: Result,
) -> None:
    """Time the fastest config again, in turn with PyTorch where that is there."""
    if torch is None or device.properties.emulated:
        result.seconds = statistics.median(repeats(ours.cold_seconds, REPEATS, device))
        return
    peer = TorchCase(torch, case, inputs, compiled)
    result.torch_error = error_of(peer.output(), sampled)
    times: dict[Any, list[float]] = {ours.cold_seconds: [], peer.cold_seconds: []}
    for _ in range(REPEATS):
        for timed, row in times.items():
            row += repeats(timed, 1, device)
    result.seconds, result.torch_seconds = map(statistics.median, times.values())
    result.over_torch = result.torch_seconds / result.seconds


def repeats(timed: Callable[[int], float], count: int, device: Device) -> Iterator[float]:
    """Seconds a call of some repeats of a hundredth of a second, after one that is not timed."""
    once = timed(1)
    if device.properties.emulated:
        yield once
        return
    number = max(1, min(int(REPEAT_S / max(once, 1e-9)), MOST_CALLS))
    for _ in range(count):
        yield timed(number) / number


def judge(case: Case, call: CudaCall, result: Result, report: Mapping[str, Any]) -> None:
    """The rate of a result in the unit of what bounds it, and its share of a copy's."""
    functions = call.function.functions
    result.registers = max(f.registers for f in functions)
    result.local_bytes = max(f.local_bytes for f in functions)
    if case.is_of_memory:
        result.rate, result.unit = case.traffic_bytes / result.seconds, "B/s"
        result.share_of_copy = result.rate / report["copy_bandwidth"]
    else:
        result.rate, result.unit = case.operations / result.seconds, "FLOP/s"


# --- telling ------------------------------------------------------------------------------------


def facts_of(device: Device, torch: Any) -> dict[str, Any]:
    """What the figures were taken on and with."""
    properties = device.properties
    target = Target(f"cuda -arch={properties.arch}")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv[1:],
        "device": {name: getattr(properties, name) for name in properties.__slots__},
        "driver": driver_version(properties.emulated),
        "compiler": compiler_version("cuda"),
        "torch": "" if torch is None else f"{torch.__version__}, CUDA {torch.version.cuda}",
        "protocol": "median of event times, second-level cache emptied before each call",
        "copy_bandwidth": copy_bandwidth(device),
        "peaks": peaks(device, target),
    }


def driver_version(emulated: bool) -> str:
    if emulated:
        return ""
    from tunefarm.worker.cuda.nvml import open_nvml

    try:
        return str(open_nvml().nvmlSystemGetDriverVersion())
    except TunefarmError as error:
        return str(error)


def line_of(result: Result) -> str:
    """One line of the table."""
    if not result.seconds:
        return f"{result.case:<40} failed: {'; '.join(result.failed)}"
    rate = f"{result.rate / 1e12:8.2f} T{result.unit}"
    share = f", {result.share_of_copy:.0%} of a copy" if result.share_of_copy else ""
    peer = f", {result.over_torch:.2f}× PyTorch" if result.over_torch else ""
    wrong = f", {len(result.failed)} of {result.configs} failed" if result.failed else ""
    told = f"{result.seconds * 1e6:10.1f} µs {rate}, error {result.error:.1e}"
    return f"{result.case:<40}{told}{share}{peer}{wrong}"


if __name__ == "__main__":
    sys.exit(main())
