"""Our kernels on a GPU, built, checked against float64 and timed in one call, beside libraries'.

    python bench/gpu/kernels.py [--configs 16] [-k matmul] [--minutes 9] [--out FILE]
    TUNEFARM_CUDA=emulated python bench/gpu/kernels.py --small

An operator is built by each sketch of matrix instructions, those that have to be asked for among
them, or by the default sketch; with its default config and, with ``--configs N``, with N − 1
others: those that differ from it in one knob, then random ones. Each config that answers right is
timed, and the fastest is told. Times are medians of repeats by the device's events, inputs fresh,
the second-level cache emptied before each call, ours and the libraries' alike and in turn:
PyTorch's where it is installed with CUDA (its product is cuBLAS's, its convolution cuDNN's), and
cuBLAS itself where its library is found; what torch.compile makes of them is ``compiled.py``'s.
Memory-bound kernels stand beside a copy of as many bytes, timed like them. Prints a table, and
writes a report with its date after each case: bench/gpu/reports/kernels-DATE.json. The cases that
say most come first, and none begins after ``--minutes``.

Needs of tunefarm the compiler and the worker alone: neither xgboost nor a database.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from builds import build, builders
from cases import Array, Case, Sampled, all_cases, allowed_error, drawn_inputs, error_of
from cublas import find_cublas
from peers import Libraries, Peer, find_torch
from race import QUICK_REPEATS, copy_seconds, median_seconds, raced
from reporting import Report, add_options
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.runtime.cuda.driver import Device, DriverError, open_device
from tunefarm.compiler.runtime.cuda.kernel import CudaCall, load_kernel
from tunefarm.compiler.space import Config, ConfigSpace, config_space
from tunefarm.compiler.space.config import SketchSpace
from tunefarm.compiler.target import Target
from tunefarm.worker.backend import Built
from tunefarm.worker.cuda.backend import kernel_of, packed
from tunefarm.worker.cuda.reference import copy_bandwidth, peaks
from watch import watched

T = TypeVar("T")
MATRIX_SKETCHES = ("gpu_mma", "gpu_wgmma", "gpu_tma")  # the most certain first
AHEAD = 4
"""Entries that are built before the one that is measured, so that those in front are soon there."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A case by one sketch, and its configs, the default first."""

    case: Case
    sketch: str
    target: Target
    configs: tuple[Config, ...]
    several: bool = False  # sketches of the case

    @property
    def name(self) -> str:
        return f"{self.case.name} by {self.sketch}" if self.several else self.case.name


@dataclass(slots=True)
class Bench:
    """What an entry is measured with."""

    device: Device
    report: Report
    libraries: Libraries

    def measured(
        self, entry: Entry, builds: Sequence[tuple[Config, Future[Built]]]
    ) -> dict[str, Any]:
        """What became of an entry. Configs that fail are told, and the others go on; TunefarmError
        if none is right, DriverError after which the device is of no use to this process."""
        case = entry.case
        inputs, sampled = posed(case)
        refused: list[str] = []
        tried: list[dict[str, Any]] = []
        best: tuple[float, float, CudaCall, Config] | None = None
        default_seconds = 0.0
        for index, (config, future) in enumerate(builds):
            self.report.at(" ".join(f"{k}={v}" for k, v in config.items()))
            try:
                built = future.result()
                call, error = answering(case, built, inputs, sampled, self.device)
                seconds = median_seconds(call.cold_seconds, QUICK_REPEATS, self.device)
            except DriverError as failure:
                if failure.fatal:
                    raise
                refused.append(f"{config}: {failure}")
                continue
            except TunefarmError as failure:
                refused.append(f"{config}: {failure}")
                continue
            if index == 0:
                default_seconds = seconds
            tried.append({"seconds": seconds, **other_knobs(config, entry.configs[0])})
            if best is None or seconds < best[0]:
                best = seconds, error, call, config
        if best is None:
            raise TunefarmError("; ".join(refused))
        _, error, call, config = best
        functions = call.function.functions
        told = {
            "config": dict(config),
            "configs": len(builds),
            "default_seconds": default_seconds,
            "error": error,
            "registers": max(f.registers for f in functions),
            "local_bytes": max(f.local_bytes for f in functions),
            "tried": tried,
            "refused": refused,
        }
        self.report.at("beside libraries")
        return told | beside(case, call, self.libraries.peers(case, inputs), sampled, self.device)


def main() -> int:
    options = parse_options()
    device = open_device()
    peers = not options.no_peers and not device.properties.emulated
    libraries = Libraries(device, find_torch() if peers else None, find_cublas() if peers else None)
    report = Report("kernels", options, device)
    report.facts |= facts_of(device, libraries)
    print(f"{device.properties.name}: copies {report.facts['copy_bandwidth'] / 1e9:.0f} GB/s")
    bench = Bench(device, report, libraries)
    cases = [c for c in all_cases(options.small) if options.k in c.name]
    entries = (entry for case in cases for entry in entries_of(case, device, options))
    with builders(options.builders) as pool:
        waiting = (begun(entry, pool) for entry in entries if entry.name not in report.done)
        for entry, builds in ahead(waiting, AHEAD):
            work = partial(bench.measured, entry, builds)
            told = report.run(entry.name, work, entry.sketch)
            if told is not None:
                print(line_of(told), flush=True)
            for _, each in builds:
                each.cancel()  # those of entries that are left out
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
    parser.add_argument("--configs", type=int, default=1, help="configs to try of each sketch")
    parser.add_argument("--target", default="", help="more options of the target")
    parser.add_argument("--no-peers", action="store_true", help="ours alone, without libraries")
    return parser.parse_args()


# --- what is built, in other processes ----------------------------------------------------------


def entries_of(case: Case, device: Device, options: argparse.Namespace) -> Iterator[Entry]:
    """A case by each sketch of matrix instructions that there is for it, or by its default one."""
    target = target_of(case, device, options.target)
    space = config_space(case.workload, target)
    there = [s for name in MATRIX_SKETCHES for s in space.sketches if s.sketch == name]
    there = there or [space.sketch(str(space.default["sketch"]))]
    for sketch in there:
        configs = tuple(islice(configs_of(space, sketch, options.configs), options.configs))
        yield Entry(case, sketch.sketch, target, configs, len(there) > 1)


def configs_of(space: ConfigSpace, sketch: SketchSpace, count: int) -> Iterator[Config]:
    """The default config, those that differ from it in one knob, then others drawn at random."""
    default = dict(sketch.default)
    yield default
    if count == 1:
        return
    rng = np.random.default_rng(0)
    near = [{**default, k.name: c} for k in sketch.knobs for c in k.choices]
    near = [near[n] for n in rng.permutation(len(near)) if near[n] != default]
    kept = [c for c in near if space.valid(space.encode(c)[None])[0]]
    yield from kept
    drawn = space.sample(rng, 256 * count)
    for config in map(space.decode, drawn[space.valid(drawn)]):
        if config["sketch"] == sketch.sketch and config not in (default, *kept):
            kept.append(dict(config))
            yield dict(config)


def other_knobs(config: Config, default: Config) -> Config:
    """The knobs in which a config differs from the default one."""
    return {knob: choice for knob, choice in config.items() if choice != default.get(knob)}


def target_of(case: Case, device: Device, options: str) -> Target:
    """The device's own, with a case's precision, and further ``options`` of a target."""
    properties = device.properties
    words = [f"cuda -arch={properties.arch} -num-cores={properties.multiprocessors}"]
    if case.precision:
        words.append(f"-precision={case.precision}")
    return Target(" ".join([*words, options]))


def begun(
    entry: Entry, pool: ProcessPoolExecutor
) -> tuple[Entry, list[tuple[Config, Future[Built]]]]:
    """The builds of an entry."""
    text, target = entry.case.workload.text, entry.target.text
    return entry, [(c, pool.submit(build, text, target, dict(c))) for c in entry.configs]


# --- on the device ------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def posed(case: Case) -> tuple[list[Array], Sampled]:
    """Fresh inputs, for all sketches of a case, and what float64 says of some results."""
    inputs = drawn_inputs(case, np.random.default_rng(time.time_ns()))
    return inputs, case.expected(inputs)


def answering(
    case: Case, built: Built, inputs: Sequence[Array], sampled: Sampled, device: Device
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


def beside(
    case: Case, call: CudaCall, peers: Sequence[Peer], sampled: Sampled, device: Device
) -> dict[str, Any]:
    """Times, ours and the peers' in turn, and what they come to."""
    seconds, found = raced(call, peers, sampled, device)
    told: dict[str, Any] = {"seconds": seconds, "peers": found}
    if case.is_of_memory:
        told["rate"], told["unit"] = case.traffic_bytes / seconds, "B/s"
        told["share_of_copy"] = copy_seconds(device, case.traffic_bytes) / seconds
    else:
        told["rate"], told["unit"] = case.operations / seconds, "FLOP/s"
    return told


# --- telling ------------------------------------------------------------------------------------


def facts_of(device: Device, libraries: Libraries) -> dict[str, Any]:
    """What the figures are compared with."""
    target = Target(f"cuda -arch={device.properties.arch}")
    return {
        **libraries.versions(),
        "protocol": "median of event times, second-level cache emptied before each call",
        "copy_bandwidth": copy_bandwidth(device),
        "peaks": peaks(device, target),
    }


def line_of(told: Mapping[str, Any]) -> str:
    """One line of the table."""
    if "failed" in told:
        return f"{told['case']:<54} failed: {told['failed']}"
    words = [f"{told['seconds'] * 1e6:10.1f} µs {told['rate'] / 1e12:8.2f} T{told['unit']}"]
    words.append(f"error {told['error']:.1e}")
    if "share_of_copy" in told:
        words.append(f"{told['share_of_copy']:.0%} of a copy")
    for name, peer in told["peers"].items():
        words.append(f"{peer['over']:.2f}× {name}" if "over" in peer else f"{name} failed")
    if told.get("refused"):
        words.append(f"{len(told['refused'])} of {told['configs']} failed")
    return f"{told['case']:<54}{', '.join(words)}"


if __name__ == "__main__":
    sys.exit(watched("kernels", main))
