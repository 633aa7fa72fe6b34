"""The kernels of a model's convolutions alone, as shares of the measured peak.

    python bench/kernels.py [--cores 1] [--db sqlite:///…] [resnet50]

No transposes, no peers: packed weights, everything warm, default configs and (with ``--db``) the
best records. FLOPs are nominal: kernels that skip padding taps can exceed the peak.
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np
from models import MODELS
from rich.console import Console
from rich.table import Table
from timing import peak_flops
from tunefarm.compiler.build import build_kernel
from tunefarm.compiler.packing import pack
from tunefarm.compiler.runtime.kernel import load_kernel
from tunefarm.compiler.space import Config
from tunefarm.compiler.workload import Workload, anchor, random_inputs

import tunefarm

REPEATS, CALLS = 15, 3


def seconds_of(workload: Workload, target: tunefarm.Target, config: Config) -> float:
    """The best of some repeats, a few calls each."""
    kernel = build_kernel(workload, target, config)
    function = load_kernel(
        [kernel.object], kernel.name, kernel.params, kernel.outputs, target=target,
        workspace_bytes=kernel.workspace_bytes,
    )  # fmt: skip
    arrays = random_inputs(workload, np.random.default_rng(0))
    packed = [pack(a, kernel.layouts.get(i), kernel.params[i].shape) for i, a in enumerate(arrays)]
    call = function.bind(packed)
    call.seconds(2)
    return min(call.seconds(CALLS) / CALLS for _ in range(REPEATS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="resnet50")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--db", default="")
    options = parser.parse_args()
    target = tunefarm.Target.host(options.cores)
    tasks = tunefarm.extract_tasks(tunefarm.from_onnx(MODELS[options.model]()), target)
    table = Table(
        title=f"kernels of {options.model}, {options.cores} core(s)", title_justify="left"
    )
    for column in ("kernel", "default", "of peak", "tuned", "of peak", "gain"):
        table.add_column(column, justify="left" if column == "kernel" else "right")
    shares: list[tuple[float, float]] = []
    with tunefarm.apply_history_best(options.db or ()) as history:
        decisions = history.lookup([t.workload for t in tasks], target)
        spaces = tunefarm.apply_history_best(()).lookup([t.workload for t in tasks], target)
    for decision, default in zip(decisions, spaces, strict=True):
        workload = decision.workload
        main_call = anchor(workload.function)
        if main_call is None or main_call.op != "conv":
            continue
        before = seconds_of(workload, target, default.config)
        after = seconds_of(workload, target, decision.config) if decision.tuned else before
        peak = peak_flops(options.cores)
        shares.append((workload.flops / before / peak, workload.flops / after / peak))
        table.add_row(
            workload.summary, f"{before * 1e6:.0f} µs", f"{100 * shares[-1][0]:.0f}%",
            f"{after * 1e6:.0f} µs", f"{100 * shares[-1][1]:.0f}%", f"{before / after:.2f}x",
        )  # fmt: skip
    Console(width=120).print(table)
    means = [statistics.geometric_mean(s) for s in zip(*shares, strict=True)]
    print(f"geometric mean share of peak: default {means[0]:.3f}, tuned {means[1]:.3f}")


if __name__ == "__main__":
    main()
