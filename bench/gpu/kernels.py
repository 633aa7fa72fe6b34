"""Our kernels on a GPU, built, checked against float64 and timed in one call, beside PyTorch's.

    python bench/gpu/kernels.py [--configs 16] [-k matmul] [--compile] [--minutes 9] [--out FILE]
    TUNEFARM_CUDA=emulated python bench/gpu/kernels.py --small

A case is built with its default config and, with ``--configs N``, with N − 1 others drawn at
random; each that answers right is timed, and the fastest is told. Times are medians of repeats by
the device's events, inputs fresh, the second-level cache emptied before each call, ours and
PyTorch's alike and in turn. Where there is PyTorch with CUDA its product is cuBLAS's, its
convolution cuDNN's. Prints a table, and writes a report with its date after each case:
bench/gpu/reports/kernels-DATE.json. The cases that say most come first, and none begins after
``--minutes``.

Needs of tunefarm the compiler and the worker alone: neither xgboost nor a database.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from builds import build, builders
from cases import Array, Case, all_cases, allowed_error, drawn_inputs, error_of
from peers import TorchCase, find_torch
from reporting import Report, add_options
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.runtime.cuda.driver import Device, DriverError, open_device
from tunefarm.compiler.runtime.cuda.kernel import CudaCall, load_kernel
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.worker.backend import Built
from tunefarm.worker.cuda.backend import kernel_of, packed
from tunefarm.worker.cuda.reference import copy_bandwidth, peaks
from watch import watched

T = TypeVar("T")
REPEATS = 11
REPEAT_S = 0.01
MOST_CALLS = 64
QUICK_REPEATS = 3
AHEAD = 4
"""Cases that are built before the one that is measured, so that those in front are soon there."""


@dataclass
class Result:
    """What became of one case: the fastest right config, and PyTorch's time. Times in seconds."""

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
    refused: list[str] = field(default_factory=list)


def main() -> int:
    options = parse_options()
    device, torch = open_device(), None if options.no_peers else find_torch()
    if torch is not None and not device.properties.emulated:
        torch.zeros(1, device="cuda")
    report = Report("kernels", options, device)
    report.facts |= facts_of(device, torch)
    print(f"{device.properties.name}: copies {report.facts['copy_bandwidth'] / 1e9:.0f} GB/s")
    cases = [c for c in all_cases(options.small) if options.k in c.name]
    with builders(options.builders) as pool:
        begun = (
            (case, begin(case, device, options, pool))
            for case in cases
            if case.name not in report.done
        )
        for case, builds in ahead(begun, AHEAD):
            work = partial(measured, case, builds, device, torch, options.compile, report.facts)
            told = report.run(case.name, work)
            if told is not None:
                print(line_of(told), flush=True)
            for _, each in builds:
                each.cancel()  # those of cases that are left out
    return report.close()


def ahead(items: Iterator[T], count: int) -> Iterator[T]:
    """The items in order, so many of them taken before the first is given."""
    taken = deque(islice(items, count))
    while taken:
        taken.extend(islice(items, 1))
        yield taken.popleft()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_options(parser)
    parser.add_argument("--small", action="store_true", help="a few tiny cases, for an emulator")
    parser.add_argument("--configs", type=int, default=1, help="configs to try of each case")
    parser.add_argument("--target", default="", help="more options of the target")
    parser.add_argument("--compile", action="store_true", help="PyTorch by torch.compile")
    parser.add_argument("--no-peers", action="store_true", help="ours alone, without PyTorch")
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


# --- on the device ------------------------------------------------------------------------------


def measured(
    case: Case,
    builds: Sequence[tuple[Mapping[str, int | str], Future[Built]]],
    device: Device,
    torch: Any,
    compiled: bool,
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """What became of a case. Configs that fail are told, and the others go on; TunefarmError if
    none is right, DriverError after which the device is of no use to this process."""
    result = Result(configs=len(builds))
    inputs = drawn_inputs(case, np.random.default_rng(time.time_ns()))
    sampled = case.expected(inputs)
    best: CudaCall | None = None
    for index, (config, future) in enumerate(builds):
        try:
            call, error = answering(case, future.result(), inputs, sampled, device)
            seconds = statistics.median(repeats(call.cold_seconds, QUICK_REPEATS, device))
        except DriverError as failure:
            if failure.fatal:
                raise
            result.refused.append(f"{config}: {failure}")
            continue
        except TunefarmError as failure:
            result.refused.append(f"{config}: {failure}")
            continue
        if index == 0:
            result.default_seconds = seconds
        if best is None or seconds < result.seconds:
            best, result.seconds, result.config, result.error = call, seconds, config, error
    if best is None:
        raise TunefarmError("; ".join(result.refused))
    judge(best, result)
    race(case, best, inputs, sampled, torch, compiled, device, result)
    rate(case, result, facts)
    return vars(result)


def answering(
    case: Case, built: Built, inputs: Sequence[Array], sampled: Any, device: Device
) -> tuple[CudaCall, float]:
    """A build on the device with its operands, and its error; TunefarmError if it is too large."""
    kernel = kernel_of(built)
    loaded = load_kernel(kernel, Target(built.metadata["target"]), device)
    call = loaded.bind(packed(inputs, kernel))
    error = error_of(answer(case, call), sampled)
    if not error <= allowed_error(case):
        raise TunefarmError(f"wrong by {error:.2g}")
    return call, error


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
    try:
        peer = TorchCase(torch, case, inputs, compiled)
        result.torch_error = error_of(peer.output(), sampled)
    except Exception as failure:  # whatever a peer does, our time counts
        result.refused.append(f"PyTorch: {' '.join(str(failure).split())[:300]}")
        result.seconds = statistics.median(repeats(ours.cold_seconds, REPEATS, device))
        return
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


def judge(call: CudaCall, result: Result) -> None:
    """What the fastest config takes of a thread."""
    functions = call.function.functions
    result.registers = max(f.registers for f in functions)
    result.local_bytes = max(f.local_bytes for f in functions)


def rate(case: Case, result: Result, facts: Mapping[str, Any]) -> None:
    """The rate of a result in the unit of what bounds it, and its share of a copy's."""
    if case.is_of_memory:
        result.rate, result.unit = case.traffic_bytes / result.seconds, "B/s"
        result.share_of_copy = result.rate / facts["copy_bandwidth"]
    else:
        result.rate, result.unit = case.operations / result.seconds, "FLOP/s"


# --- telling ------------------------------------------------------------------------------------


def facts_of(device: Device, torch: Any) -> dict[str, Any]:
    """What the figures are compared with."""
    target = Target(f"cuda -arch={device.properties.arch}")
    return {
        "torch": "" if torch is None else f"{torch.__version__}, CUDA {torch.version.cuda}",
        "protocol": "median of event times, second-level cache emptied before each call",
        "copy_bandwidth": copy_bandwidth(device),
        "peaks": peaks(device, target),
    }


def line_of(told: Mapping[str, Any]) -> str:
    """One line of the table."""
    if "failed" in told:
        return f"{told['case']:<40} failed: {told['failed']}"
    rate = f"{told['rate'] / 1e12:8.2f} T{told['unit']}"
    share = f", {told['share_of_copy']:.0%} of a copy" if told["share_of_copy"] else ""
    peer = f", {told['over_torch']:.2f}× PyTorch" if told["over_torch"] else ""
    wrong = f", {len(told['refused'])} of {told['configs']} failed" if told["refused"] else ""
    time_of = f"{told['seconds'] * 1e6:10.1f} µs {rate}, error {told['error']:.1e}"
    return f"{told['case']:<40}{time_of}{share}{peer}{wrong}"


if __name__ == "__main__":
    sys.exit(watched("kernels", main))
