"""Seconds from the processor's constant-rate clock, calibrated against the operating system's."""

from __future__ import annotations

import time

from tunefarm.compiler.runtime.library import Library

_FIRST: list[tuple[int, int]] = []  # (nanoseconds, ticks) when this process first asked


def ticks_per_second(library: Library, baseline_ns: int = 10_000_000) -> float:
    """The rate of ``tunefarm_ticks``, from at least ``baseline_ns`` of both clocks.

    The two are read within about 0.1 µs of each other, so 10 ms give the rate to 1e-5. The
    baseline grows with the age of the process; only a first call waits.
    """
    if not _FIRST:
        _FIRST.append(_read(library))
    start_ns, start_ticks = _FIRST[0]
    while time.perf_counter_ns() - start_ns < baseline_ns:
        time.sleep(max(0, baseline_ns - (time.perf_counter_ns() - start_ns)) * 1e-9)
    now_ns, now_ticks = _read(library)
    return (now_ticks - start_ticks) / (now_ns - start_ns) * 1e9


def _read(library: Library) -> tuple[int, int]:
    """(nanoseconds, ticks) at one instant: the tightest of three readings."""
    read_ticks = library.function("tunefarm_ticks")
    best = (1 << 62, 0, 0)
    for _ in range(3):
        before = time.perf_counter_ns()
        ticks = read_ticks()
        after = time.perf_counter_ns()
        best = min(best, (after - before, (before + after) // 2, ticks))
    return best[1], best[2]
