"""What all benchmarks share: the machine's peak, checked contenders, and their table."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from rich.console import Console
from rich.table import Table

from tunefarm.peers.rows import Row, is_ours
from tunefarm.peers.turns import Array, Contender, largest_error

ERROR_LIMIT = 1e-3  # of the largest magnitude


def errors_of(contenders: Mapping[str, Contender], reference: Array) -> dict[str, float]:
    """Run each once, compare its output, and let ``within_limit`` judge."""
    for contender in contenders.values():
        contender.call()
    return within_limit({n: largest_error(c.outputs(), [reference]) for n, c in contenders.items()})


def within_limit(errors: Mapping[str, float], limit: float = ERROR_LIMIT) -> dict[str, float]:
    """The errors that are allowed; SystemExit if one of ours computes something else.

    A peer that does is named in one line and missing from the result: leave it out.
    """
    allowed = {}
    for name, error in errors.items():
        if error <= limit:
            allowed[name] = error
            continue
        message = f"{name} differs from the reference by {error:.1e}, over {limit}"
        if is_ours(name):
            sys.exit(message)
        print(f"{message}: left out")
    return allowed


def on_lasting_pages(array: Array) -> Array:
    """A copy of the array, on the pages that a model's memory has."""
    from tunefarm.compiler.runtime.arrays import lasting_bytes

    copy: Array = lasting_bytes(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


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
