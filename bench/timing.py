"""What all benchmarks share: the machine's peak, contenders timed in turn, and their table."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

Call = Callable[[], object]
Timer = Callable[[int, float], float]
"""(number, warm_s) → seconds of ``number`` calls, after others for ``warm_s`` seconds."""
Array = NDArray[Any]

ERROR_LIMIT = 1e-3  # of the largest magnitude
BUSY_SHARE = 0.03  # of all cores: above it, pools that spin lose whole time slices
WARM_TIMES = 5  # the timed span: woken threads of a pool may share a core for milliseconds
_QUIET_SHARE = 0.1
_QUIET_TRIES = 300  # OpenMP's threads spin for 200 ms


@dataclass(frozen=True, slots=True)
class Contender:
    """A call to time, and the output that it left, in the workload's own layout.

    ``timer`` times it where it runs, if that is another process.
    """

    call: Call
    output: Callable[[], Array]
    timer: Timer | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One workload: median seconds of each contender, its nominal FLOPs and the peak beside it.

    ``errors`` are largest differences to the reference over its largest magnitude. ``peak`` is in
    FLOP/s and was measured next to the row; 0 leaves shares out.
    """

    name: str
    seconds: Mapping[str, float]
    flops: int = 0
    peak: float = 0.0
    errors: Mapping[str, float] = field(default_factory=dict)

    def ratio(self, ours: str) -> float | None:
        """How many times faster ``ours`` is than the fastest peer; None without either."""
        peers = [s for n, s in self.seconds.items() if not is_ours(n)]
        return min(peers) / self.seconds[ours] if peers and ours in self.seconds else None

    def share(self, name: str) -> float | None:
        """The share of the measured peak that ``name`` reaches in nominal FLOPs."""
        if not self.peak or not self.flops or name not in self.seconds:
            return None
        return self.flops / self.seconds[name] / self.peak


def is_ours(name: str) -> bool:
    return name.startswith("ours")


def interleave(
    calls: Mapping[str, Call], repeats: int = 15, minimum_s: float = 2e-3
) -> dict[str, float]:
    """``in_turn`` for calls of this process."""
    timers = {name: partial(seconds_of, call) for name, call in calls.items()}
    return in_turn(timers, repeats, minimum_s)


def in_turn(
    timers: Mapping[str, Timer], repeats: int = 15, minimum_s: float = 2e-3
) -> dict[str, float]:
    """Median seconds a call; contenders run in turn, the order reversed every other round.

    A turn waits until the threads of the one before are asleep, warms up, and then calls often
    enough to fill ``minimum_s``.
    """
    warm_s = WARM_TIMES * minimum_s
    numbers = {n: max(1, int(minimum_s / max(t(1, warm_s), 1e-9))) for n, t in timers.items()}
    times: dict[str, list[float]] = {name: [] for name in timers}
    order = list(timers)
    for turn in range(repeats):
        for name in order if turn % 2 == 0 else reversed(order):
            wait_for_quiet()
            times[name].append(timers[name](numbers[name], warm_s) / numbers[name])
    return {name: statistics.median(t) for name, t in times.items()}


def wait_for_quiet() -> None:
    """Wait until this process's other threads (a peer's pool, spinning) use no processor."""
    for _ in range(_QUIET_TRIES):
        start, used = time.perf_counter(), time.process_time()
        time.sleep(1e-3)
        if time.process_time() - used < _QUIET_SHARE * (time.perf_counter() - start):
            return


def seconds_of(call: Call, number: int, warm_s: float) -> float:
    """Seconds of ``number`` calls, after one other or as many as ``warm_s`` seconds take."""
    until = time.perf_counter() + warm_s
    call()
    while time.perf_counter() < until:
        call()
    start = time.perf_counter()
    for _ in range(number):
        call()
    return time.perf_counter() - start


def errors_of(contenders: Mapping[str, Contender], reference: Array) -> dict[str, float]:
    """Run each once and compare; SystemExit if one of ours computes something else.

    A peer that does is named in one line and missing from the result: leave it out.
    """
    errors = {}
    for name, contender in contenders.items():
        contender.call()
        error = relative_error(contender.output(), reference)
        if error <= ERROR_LIMIT:
            errors[name] = error
            continue
        message = f"{name} differs from the reference by {error:.1e}, over {ERROR_LIMIT}"
        if is_ours(name):
            sys.exit(message)
        print(f"{message}: left out")
    return errors


def relative_error(got: Array, want: Array) -> float:
    """The largest difference over the largest magnitude; infinity if the shapes differ."""
    if got.shape != want.shape:
        return float("inf")
    wanted = want.astype(np.float64)
    return float(np.abs(got.astype(np.float64) - wanted).max() / np.abs(wanted).max())


def peak_flops(cores: int) -> float:
    """FLOP/s of a loop of independent f32 FMAs on all lanes, measured now, on ``cores`` cores."""
    from tunefarm.compiler.target import Target
    from tunefarm.worker.peaks import compute_peaks

    return compute_peaks(Target.host().mcpu, cores)["flops_1" if cores == 1 else "flops_n"]


def peak_now(cores: int) -> float:
    """FLOP/s of about a millisecond of multiply-adds on each of ``cores`` cores at once."""
    from tunefarm.compiler.target import Target
    from tunefarm.worker.peaks import reference_flops, reference_s

    mcpu = Target.host().mcpu
    if cores == 1:
        return reference_flops(mcpu) / reference_s(mcpu)
    seconds = _pool(cores).map(reference_s, [mcpu] * cores)
    return sum(reference_flops(mcpu) / s for s in seconds)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """None if a value is missing or there are none: means compare the same rows or nothing."""
    known = list(values)
    if not known or None in known:
        return None
    return statistics.geometric_mean([v for v in known if v is not None])


def show(rows: Sequence[Row], title: str, groups: Mapping[str, Sequence[Row]]) -> None:
    """Print a table of all rows, then the geometric means of each group of them."""
    names = list(dict.fromkeys(n for r in rows for n in r.seconds))
    ours = [n for n in names if is_ours(n)]
    table = Table(title=title, title_justify="left")
    table.add_column("workload", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for name in ours:
        table.add_column(f"{name} vs best peer", justify="right")
    table.add_column("largest error", justify="right")
    for row in rows:
        cells = [_cell(row, n) for n in names] + [_times(row.ratio(n)) for n in ours]
        table.add_row(row.name, *cells, f"{max(row.errors.values(), default=0.0):.0e}")
    for label, members in groups.items():
        means = [_share(geometric_mean(r.share(n) for r in members if r.flops)) for n in names]
        ratios = [_times(geometric_mean(r.ratio(n) for r in members)) for n in ours]
        table.add_row(f"geometric mean, {label}", *means, *ratios, "", style="bold")
    Console(width=max(120, 46 + 22 * len(names) + 12 * len(ours))).print(table)
    print("Share of peak: nominal FLOPs a second over a loop of FMAs timed beside each row.")


def _cell(row: Row, name: str) -> str:
    if name not in row.seconds:
        return "–"
    share = row.share(name)
    return f"{_duration(row.seconds[name])} {_share(share) if share is not None else '':>5}"


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-2 else f"{seconds * 1e6:.1f} µs"


def _share(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f}%"


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}x"


class Neighbours:
    """How much of the machine other processes took since this was made."""

    def __init__(self) -> None:
        self.started = self._now()

    def share(self) -> float:
        """Their processor time (and what the host stole) over that of all cores; 0 to 1."""
        wall, busy, own = (b - a for a, b in zip(self.started, self._now(), strict=True))
        cores = os.cpu_count() or 1
        return min(1.0, max(0.0, (busy - own) / max(wall * cores, 1e-9)))

    def report(self) -> str:
        """One line for the end of a table, which says if its figures are worth nothing."""
        share = self.share()
        verdict = "run it again on a quiet machine" if share > BUSY_SHARE else "quiet enough"
        return f"Other processes took {100 * share:.0f}% of the machine meanwhile: {verdict}."

    @staticmethod
    def _now() -> tuple[float, float, float]:
        import psutil

        times = psutil.cpu_times()
        busy = sum(getattr(times, n, 0.0) for n in ("user", "nice", "system", "irq", "steal"))
        return time.perf_counter(), busy, sum(os.times()[:4])


def for_each_core_count(cores: str) -> int | None:
    """Run this command again once for each number of ``cores`` ("1,2"), in fresh processes.

    Every library reads its threads and kernels once, when it loads. Returns None in such a process
    (the caller measures), the exit status in the one that started them.
    """
    if os.environ.get("TUNEFARM_BENCH_CORES") == cores:
        return None
    status = 0
    for count in cores.split(","):
        settings = {"TUNEFARM_BENCH_CORES": count, **library_environment(int(count))}
        command = [sys.executable, *sys.argv, "--cores", count]
        status |= subprocess.run(command, env={**os.environ, **settings}).returncode
    return status


def library_environment(cores: int) -> dict[str, str]:
    """The variables that NumPy's OpenBLAS and OpenMP read: threads, and AVX-512 kernels."""
    from tunefarm.compiler.target import Target

    settings = {"OPENBLAS_NUM_THREADS": str(cores), "OMP_NUM_THREADS": str(cores)}
    if Target.host().has_avx512:
        # OpenBLAS uses its AVX2 kernels on processors newer than it.
        settings["OPENBLAS_CORETYPE"] = os.environ.get("OPENBLAS_CORETYPE", "SkylakeX")
    return settings
