"""Live progress of a tuning job: a table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tunefarm.db.records import JobUpdate, Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tunefarm.tuning import Watcher

LINE_EVERY_S = 5.0
MAX_ROWS = 30


@contextmanager
def showing(
    console: Console, *, earlier: int = 0, peak_flops: float | None = None
) -> Iterator[Watcher]:
    """A watcher that draws each update: live if the console is a terminal."""
    started = time.monotonic()
    if not console.is_terminal:
        yield _plain_lines(console, started)
        return
    from rich.live import Live

    with Live(console=console, refresh_per_second=4, transient=False) as live:
        yield lambda update: live.update(table(update, time.monotonic() - started, peak_flops))


def _plain_lines(console: Console, started: float) -> Watcher:
    shown = [0.0]

    def watch(update: JobUpdate) -> None:
        now = time.monotonic()
        if now - shown[0] < LINE_EVERY_S and update.job.state in ("queued", "running"):
            return
        shown[0] = now
        console.print(line(update, now - started), highlight=False, soft_wrap=True)

    return watch


def line(update: JobUpdate, elapsed_s: float) -> str:
    """One update in one line of text."""
    done = sum(p.ok + p.failed for p in update.progress)
    failed = sum(p.failed for p in update.progress)
    default, best = model_latency(update.progress)
    gain = f", model {best * 1e3:.3f} ms ({default / best:.2f}x the defaults)" if best else ""
    return (
        f"[{elapsed_s:5.0f} s] {update.job.state}: {done}/{update.job.budget.trials} trials, "
        f"{failed} failed, {done / max(elapsed_s, 1e-9):.1f}/s{gain}"
    )


def model_latency(progress: tuple[Progress, ...]) -> tuple[float, float]:
    """Weighted sums of the tasks' default and best latencies in seconds; 0 while one is unknown."""
    if any(p.best_s is None or p.default_s is None for p in progress):
        return 0.0, 0.0
    default = sum((p.default_s or 0) * p.weight for p in progress)
    return default, sum((p.best_s or 0) * p.weight for p in progress)


def table(update: JobUpdate, elapsed_s: float, peak_flops: float | None) -> Table:
    """The live table of a job: a row a task, those that take longest first."""
    from rich.table import Table

    result = Table(title=_title(update, elapsed_s), title_justify="left", expand=False)
    result.add_column("task", overflow="ellipsis", no_wrap=True, max_width=52)
    for name in ("weight", "trials", "failed", "GFLOP/s", "latency", "vs default", "of peak"):
        result.add_column(name, justify="right", no_wrap=True)
    rows = sorted(update.progress, key=lambda p: -((p.best_s or 0) * p.weight))
    for progress in rows[:MAX_ROWS]:
        result.add_row(*_row(progress, peak_flops))
    if len(rows) > MAX_ROWS:
        result.add_row(f"… and {len(rows) - MAX_ROWS} more tasks", *[""] * 7)
    result.caption = _caption(update, elapsed_s)
    result.caption_justify = "left"
    return result


def _title(update: JobUpdate, elapsed_s: float) -> str:
    done = sum(p.ok + p.failed for p in update.progress)
    rate = done / elapsed_s if elapsed_s > 0 else 0.0
    return (
        f"{update.job.state}  {done}/{update.job.budget.trials} trials  {rate:.1f}/s  "
        f"elapsed {clock(elapsed_s)}  left {_time_left(update, elapsed_s, rate)}"
    )


def _time_left(update: JobUpdate, elapsed_s: float, rate: float) -> str:
    done = sum(p.ok + p.failed for p in update.progress)
    budget = update.job.budget
    candidates = []
    if rate > 0:
        candidates.append(max(0, budget.trials - done) / rate)
    if budget.seconds is not None:
        candidates.append(max(0.0, budget.seconds - elapsed_s))
    return clock(min(candidates)) if candidates else "–"


def _row(progress: Progress, peak_flops: float | None) -> list[str]:
    best, default = progress.best_s, progress.default_s
    rate = progress.flops / best if best else 0.0
    return [
        progress.summary,
        str(progress.weight),
        str(progress.ok + progress.failed),
        str(progress.failed or ""),
        f"{rate / 1e9:.1f}" if best and progress.flops else "–",
        duration(best) if best else "–",
        f"{default / best:.2f}x" if best and default else "–",
        f"{100 * rate / peak_flops:.0f}%" if best and peak_flops else "–",
    ]


def _caption(update: JobUpdate, elapsed_s: float) -> str:
    default, best = model_latency(update.progress)
    parts = []
    if best:
        parts.append(
            f"sum over tasks {best * 1e3:.3f} ms, defaults {default * 1e3:.3f} ms "
            f"({default / best:.2f}x)"
        )
    if update.errors:
        parts.append("errors: " + errors_text(update.errors))
    return "  ".join(parts)


def errors_text(errors: Mapping[str, int]) -> str:
    """``3 build_error, 1 run_timeout``."""
    return ", ".join(f"{n} {kind}" for kind, n in sorted(errors.items(), key=lambda e: -e[1]))


def duration(seconds: float) -> str:
    """A latency with three digits and a fitting unit."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
