"""What this machine can do at best: FMAs and bandwidths, on one core and on all.

    python bench/peak.py

The compute peak is a loop of independent f32 FMAs on all lanes; the shares in the other benchmarks
are of it, measured again beside each row. Bandwidths are of reading.
"""

from __future__ import annotations

import argparse
import os

from rich.console import Console
from rich.table import Table
from tunefarm.compiler.target import Target
from tunefarm.worker.device import cpu_model
from tunefarm.worker.peaks import measure_peaks, noise_floor


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    mcpu, cores = Target.host().mcpu, len(os.sched_getaffinity(0))
    counts = sorted({1, cores})
    peaks = {n: measure_peaks(mcpu, n) for n in counts}
    one = peaks[1]
    table = Table(title=f"{cpu_model()} ({mcpu}), {cores} core(s)", title_justify="left")
    table.add_column("peak")
    for n in counts:
        table.add_column(f"{n} core(s)", justify="right")
        table.add_column("of one core", justify="right")
    for label, key, unit in (
        ("f32 FMA, GFLOP/s", "flops_n", 1e9),
        ("read from L1, GB/s", "bandwidth_l1_n", 1e9),
        ("read from DRAM, GB/s", "bandwidth_dram_n", 1e9),
    ):
        cells = []
        for n in counts:
            cells += [f"{peaks[n][key] / unit:.0f}", f"{peaks[n][key] / one[key]:.2f}x"]
        table.add_row(label, *cells)
    Console().print(table)
    balance = one["flops_n"] / one["bandwidth_dram_n"]
    print(f"One core does {balance:.0f} FLOPs in the time of reading a byte from DRAM.")
    print(f"Medians of equal work differ by up to {100 * noise_floor(mcpu):.1f}% here and now.")


if __name__ == "__main__":
    main()
