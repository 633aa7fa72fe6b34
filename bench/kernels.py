"""The kernels of a model's convolutions alone, or square products, as shares of the measured peak.

    python bench/kernels.py [--cores 1] [--db sqlite:///… | --sketch contraction] [resnet50 | gemm]

No transposes, no peers: packed weights, everything warm, default configs and (with ``--db``) the
best records, or (with ``--sketch``) the default of one sketch: of ``contraction`` those that save
no multiplications. Each call is timed between two loops of multiply-adds, while the host runs the
processors at full speed; a share is the median of their ratios. FLOPs are nominal: kernels that
skip padding taps can exceed the peak. The means leave out what is neither 1x1 nor 3x3.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial

import numpy as np
from models import ALL
from rich.console import Console
from rich.table import Table
from search_quality import fused
from timing import on_lasting_pages, peak_now
from tunefarm.compiler.build import build_kernel
from tunefarm.compiler.decisions import Decision
from tunefarm.compiler.ir import tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.packing import pack
from tunefarm.compiler.runtime.arrays import aligned_empty
from tunefarm.compiler.runtime.kernel import load_kernel
from tunefarm.compiler.space import Config, config_space
from tunefarm.compiler.workload import Workload, anchor, random_inputs

import tunefarm
from tunefarm.peers.pace import Pace
from tunefarm.peers.turns import Neighbours

REPEATS = 40
SIZES = (512, 1024, 2048)


def workloads_of(name: str, target: tunefarm.Target) -> list[Workload]:
    """The convolutions of a model, or square products with a constant and a variable operand."""
    if name == "gemm":
        product = partial(fused, lambda a, b: call("matmul", a, b))
        return [
            product((n, n), (n, n), constants=[1] if constant else [])
            for constant in (True, False)
            for n in SIZES
        ]
    tasks = tunefarm.extract_tasks(tunefarm.from_onnx(ALL[name]()), target)
    anchors = ((t.workload, anchor(t.workload.function)) for t in tasks)
    return [w for w, main_call in anchors if main_call is not None and main_call.op == "conv"]


def is_meant(workload: Workload) -> bool:
    """Whether the mean counts it: a pointwise or 3x3 convolution, or a product of weights."""
    main_call = anchor(workload.function)
    assert main_call is not None
    if main_call.op == "matmul":
        return bool(workload.function.attrs["constants"])
    return tensor_type(main_call.args[1]).shape[:2] in ((1, 1), (3, 3))


def label(workload: Workload) -> str:
    variable = not workload.function.attrs["constants"]
    return f"{workload.summary}, both variable" if variable else workload.summary


def other_config(decision: Decision, target: tunefarm.Target, sketch: str) -> Config | None:
    """What stands beside the default: that of ``sketch``, or without one the best record."""
    if not sketch:
        return decision.config if decision.tuned else None
    sketches = config_space(decision.workload, target).sketches
    return next((s.default for s in sketches if s.sketch == sketch), None)


def callable_of(workload: Workload, target: tunefarm.Target, config: Config) -> Callable[[], float]:
    """A function that runs the kernel once and returns its seconds."""
    kernel = build_kernel(workload, target, config)
    function = load_kernel(
        [kernel.object], kernel.name, kernel.params, kernel.outputs, target=target,
        workspace_bytes=kernel.workspace_bytes,
    )  # fmt: skip
    arrays = random_inputs(workload, np.random.default_rng(0))
    packed = [
        on_lasting_pages(pack(a, kernel.layouts.get(i), kernel.params[i].shape))
        for i, a in enumerate(arrays)
    ]
    results = [on_lasting_pages(aligned_empty(t)) for t in kernel.params[-kernel.outputs :]]
    bound = function.bind(packed, results)
    bound.seconds(2)
    return lambda: bound.seconds(1)


def turn(call: Callable[[], float], cores: int, pace: Pace) -> tuple[float, float]:
    """Seconds of a call, and what a peak beside it would do in that time."""
    work: dict[float, float] = {}

    def timed() -> float:
        before = peak_now(cores)
        call()  # warm: the loop between took the first caches' place
        seconds = call()
        work[seconds] = seconds * (before + peak_now(cores)) / 2
        return seconds

    seconds = pace.steady(timed)
    return seconds, work[seconds]


def measure(
    calls: dict[str, Callable[[], float]], cores: int, pace: Pace
) -> dict[str, tuple[float, float]]:
    """Median seconds of each, and the median of what a peak beside it would do in that time."""
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for number in range(REPEATS):
        for name in calls if number % 2 else reversed(calls):
            turns[name].append(turn(calls[name], cores, pace))
    return {
        name: (statistics.median(s for s, _ in found), statistics.median(w for _, w in found))
        for name, found in turns.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="resnet50", choices=[*ALL, "gemm"])
    parser.add_argument("--cores", type=int, default=1)
    beside = parser.add_mutually_exclusive_group()
    beside.add_argument("--db", default="", help="database of records")
    beside.add_argument("--sketch", default="", help="compare with the default of this one")
    options = parser.parse_args()
    neighbours = Neighbours()
    target = tunefarm.Target.host(options.cores)
    workloads = workloads_of(options.model, target)
    known = {s.sketch for w in workloads for s in config_space(w, target).sketches}
    if options.sketch not in {"", *known}:
        names = ", ".join(sorted(known))
        parser.error(f"no kernel has a sketch {options.sketch!r}; they have {names}")
    table = Table(
        title=f"kernels of {options.model}, {options.cores} core(s)", title_justify="left"
    )
    other = options.sketch or "tuned"
    for column in ("kernel", "default", "of peak", other, "of peak", "gain"):
        table.add_column(column, justify="left" if column == "kernel" else "right")
    shares: list[tuple[float, float]] = []
    with tunefarm.apply_history_best(options.db or (), starter=False) as history:
        decisions = history.lookup(workloads, target)
    with Pace(options.cores) as pace:
        for decision in decisions:
            workload = decision.workload
            calls = {
                "default": callable_of(workload, target, config_space(workload, target).default)
            }
            if config := other_config(decision, target, options.sketch):
                calls[other] = callable_of(workload, target, config)
            found = measure(calls, options.cores, pace)
            before, after = found["default"], found.get(other, found["default"])
            share = (workload.flops / before[1], workload.flops / after[1])
            if is_meant(workload) and (other in found or not options.sketch):
                shares.append(share)
            table.add_row(
                label(workload), f"{before[0] * 1e6:.0f} µs", f"{100 * share[0]:.0f}%",
                f"{after[0] * 1e6:.0f} µs", f"{100 * share[1]:.0f}%",
                f"{before[0] / after[0]:.2f}x",
            )  # fmt: skip
    Console(width=120).print(table)
    means = [statistics.geometric_mean(s) for s in zip(*shares, strict=True)]
    print(
        f"geometric mean share of peak, {len(shares)} kernels of 1x1, 3x3 and GEMM: "
        f"default {means[0]:.3f}, {other} {means[1]:.3f}"
    )
    print(neighbours.report(), pace.turns.report())


if __name__ == "__main__":
    main()
