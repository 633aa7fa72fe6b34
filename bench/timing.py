"""What all benchmarks share: the machine's peak, contenders timed in turn, and their table."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Row:
    """One workload: seconds of each contender (a median of interleaved repeats), and its FLOPs."""

    name: str
    seconds: Mapping[str, float]
    flops: int = 0
    error: float = 0.0

    def ratio(self, ours: str) -> float:
        """How many times faster ``ours`` is than the best of the others."""
        others = [s for n, s in self.seconds.items() if not n.startswith("ours")]
        return min(others) / self.seconds[ours] if others else float("nan")


def interleave(
    calls: Mapping[str, Call], repeats: int = 15, minimum_s: float = 2e-3
) -> dict[str, float]:
    """Median seconds a call; contenders run in turn, each often enough to fill ``minimum_s``."""
    numbers = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        numbers[name] = max(1, int(minimum_s / max(time.perf_counter() - start, 1e-9)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(numbers[name]):
                call()
            times[name].append((time.perf_counter() - start) / numbers[name])
    return {name: statistics.median(t) for name, t in times.items()}


def peak_flops(cores: int) -> float:
    """FLOP/s of a loop of independent f32 FMAs on all lanes, measured now, on ``cores`` cores."""
    from tunefarm.compiler.target import Target
    from tunefarm.worker.peaks import compute_peaks

    return compute_peaks(Target.host().mcpu, cores)["flops_1" if cores == 1 else "flops_n"]


def show(rows: Sequence[Row], ours: Sequence[str], peak: float | None, title: str) -> None:
    """Print a table: every contender's time, our ratio to the best of the others, share of peak."""
    names = list(dict.fromkeys(n for r in rows for n in r.seconds))
    table = Table(title=title, title_justify="left")
    table.add_column("workload", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    for name in ours:
        table.add_column(f"{name} vs best peer", justify="right")
        table.add_column("of peak", justify="right")
    table.add_column("error", justify="right")
    for row in rows:
        cells = [row.name]
        cells += [f"{row.seconds[n] * 1e6:.0f} µs" if n in row.seconds else "–" for n in names]
        for name in ours:
            share = row.flops / row.seconds[name] / peak if peak and row.flops else None
            cells += [f"{row.ratio(name):.2f}x", f"{100 * share:.0f}%" if share else "–"]
        table.add_row(*cells, f"{row.error:.0e}")
    Console(width=160).print(table)
    for name in ours:
        ratios = [r.ratio(name) for r in rows]
        print(f"geometric mean, {name} vs best peer: {np.exp(np.mean(np.log(ratios))):.2f}x")
        if peak and all(r.flops for r in rows):
            shares = [r.flops / r.seconds[name] / peak for r in rows]
            print(f"geometric mean share of peak, {name}: {np.exp(np.mean(np.log(shares))):.3f}")
