"""Live progress of a tuning job: a table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tunefarm.db.records import Device, Job, JobState, JobUpdate, Progress

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from tunefarm.tables import Column
    from tunefarm.tuning import Watcher

    Peak = Callable[[Job], float | None]

LINE_EVERY_S = 5.0
ROWS_BESIDE_TASKS = 7  # title, head, rule, "more tasks", two lines below, the cursor
SILENCE_S = 10.0
OVER = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


@dataclass
class Following:
    """What a watcher has seen of a job: the last update, and where the first one stood."""

    clock: Callable[[], float] = time.monotonic
    peak: Peak | None = None
    last: JobUpdate | None = None
    peak_flops: float | None = None
    started: float = field(init=False)
    ended: float | None = None
    _first_done: int | None = None
    _moved: float = 0.0

    def __post_init__(self) -> None:
        self.started = self.clock()

    def note(self, update: JobUpdate) -> None:
        """Take in an update; the device's peak is asked for once a trial is there."""
        if self.last is None or done(update) > done(self.last):
            self._moved = self.clock()
        self.last = update
        if self._first_done is None:
            self._first_done = done(update)
        if update.job.state in OVER:
            self.ended = self.clock()
        if self.peak is not None and self.peak_flops is None and done(update):
            self.peak_flops = self.peak(update.job)

    @property
    def elapsed_s(self) -> float:
        return (self.clock() if self.ended is None else self.ended) - self.started

    @property
    def rate(self) -> float:
        """Trials a second since the first update; 0 while none came."""
        if self.last is None or self.elapsed_s <= 0:
            return 0.0
        return (done(self.last) - (self._first_done or 0)) / self.elapsed_s

    @property
    def left_s(self) -> float | None:
        """Seconds until the budget is spent; None while it cannot be told."""
        if self.last is None or self.last.job.state is not JobState.RUNNING:
            return None
        budget = self.last.job.budget
        counted = earlier(self.last) + done(self.last)
        bounds = [(budget.trials - counted) / self.rate] if self.rate > 0 else []
        if budget.seconds is not None:
            bounds.append(budget.seconds - self.elapsed_s)
        return max(0.0, min(bounds)) if bounds else None

    def headline(self) -> str:
        """``running, 23/24 trials, 2.2/s, 0:11, 0:01 left``."""
        if self.last is None:
            return "starting"
        budget = self.last.job.budget.trials
        counted = min(earlier(self.last) + done(self.last), budget)
        parts = [str(self.last.job.state), f"{counted}/{budget} trials"]
        if self.rate > 0:
            parts.append(f"{self.rate:.1f}/s")
        parts.append(clock(self.elapsed_s))
        if self.left_s is not None:
            parts.append(f"{clock(self.left_s)} left" if self.left_s else "in the finals")
        return ", ".join(parts)

    def notes(self) -> list[str]:
        """What stands below the table: the sum over tasks, errors, and who is missing."""
        if self.last is None:
            return []
        texts = [gain_text(self.last.progress)]
        if self.last.errors:
            texts.append(f"failed: {errors_text(self.last.errors)}")
        silent_s = self.clock() - self._moved
        if silent_s > SILENCE_S and self.ended is None:
            texts.append(missing(self.last) or f"no trial has ended for {clock(silent_s)}")
        return [text for text in texts if text]


@contextmanager
def showing(console: Console, peak: Peak | None = None) -> Iterator[Watcher]:
    """A watcher that draws each update: a live table if the console is a terminal.

    ``peak`` tells the FLOP/s that the devices of a job reach at most.
    """
    following = Following(peak=peak)
    if not console.is_terminal:
        yield _plain_lines(console, following)
        return
    from rich.live import Live

    view = View(following)
    with Live(view, console=console, refresh_per_second=4) as live:
        try:
            yield following.note
        finally:
            following.ended = following.ended or following.clock()
            view.whole = True
            live.refresh()


def _plain_lines(console: Console, following: Following) -> Watcher:
    shown = [-LINE_EVERY_S]

    def watch(update: JobUpdate) -> None:
        following.note(update)
        if following.elapsed_s - shown[0] < LINE_EVERY_S and update.job.state not in OVER:
            return
        shown[0] = following.elapsed_s
        console.print(line(following), soft_wrap=True)

    return watch


def line(following: Following) -> str:
    """What has been seen so far in one line of text."""
    return "; ".join([following.headline(), *following.notes()])


@dataclass
class View:
    """What ``Live`` draws: as many tasks as the screen holds, those that take longest first."""

    following: Following
    whole: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        from tunefarm.tables import table

        update = self.following.last
        yield Text(self.following.headline(), "bold", no_wrap=True, overflow="ellipsis")
        if update is None:
            return
        rows = sorted(update.progress, key=lambda p: -((p.best_s or 0) * p.weight))
        room = max(1, options.size.height - ROWS_BESIDE_TASKS)
        shown = rows if self.whole or len(rows) <= room else rows[:room]
        yield table(task_columns(shown, self.following.peak_flops), options.max_width)
        if len(shown) < len(rows):
            yield Text(f"… and {len(rows) - len(shown)} more tasks")
        for note in [] if self.whole else self.following.notes():
            yield Text(note, no_wrap=True, overflow="ellipsis")


def task_columns(rows: Iterable[Progress], peak_flops: float | None) -> list[Column]:
    """The columns of the live table, a cell a task."""
    from tunefarm.tables import Column

    rows = list(rows)
    rates = [p.flops / p.best_s if p.best_s and p.flops else None for p in rows]
    gains = [p.default_s / p.best_s if p.best_s and p.default_s else None for p in rows]
    return [
        Column("task", [p.summary for p in rows], least=30, left=True),
        Column("weight", [str(p.weight) for p in rows], rank=1),
        Column("trials", [str(p.ok + p.failed) for p in rows], rank=6),
        Column("failed", [str(p.failed or "") for p in rows], rank=5),
        Column("latency", [latency(p.best_s) for p in rows], rank=8),
        Column("gain", [times(gain) for gain in gains], rank=3),
        Column("GFLOP/s", [f"{rate / 1e9:.1f}" if rate else "–" for rate in rates], rank=7),
        Column("of peak", [_share(rate, peak_flops) for rate in rates], rank=4),
    ]


def _share(rate: float | None, peak_flops: float | None) -> str:
    return f"{100 * rate / peak_flops:.0f}%" if rate and peak_flops else "–"


def done(update: JobUpdate) -> int:
    """Finished trials of a job, failed ones too."""
    return sum(p.ok + p.failed for p in update.progress)


def earlier(update: JobUpdate) -> int:
    """Trials of the job's tasks that were there before it and count against its budget."""
    text = update.job.options.get("earlier", "0")
    return int(text) if text.isdigit() else 0


def missing(update: JobUpdate) -> str:
    """Who a job that does not move is waiting for."""
    if update.job.state is JobState.QUEUED:
        return "waiting for a tuner; `tunefarm tuner` starts one"
    if update.job.state is JobState.RUNNING and not done(update):
        return f"waiting for a device of target {update.job.target}; `tunefarm worker` offers one"
    return ""


def peak_of(devices: Iterable[Device], target: str) -> float | None:
    """The FLOP/s that devices of a target reach on all cores; None if none was measured."""
    peaks = [
        d.peaks.get("flops_n") or d.peaks.get("flops_1") for d in devices if d.target == target
    ]
    return max((p for p in peaks if p), default=None)


def model_latency(progress: Iterable[Progress]) -> tuple[float, float]:
    """Weighted sums of the tasks' default and best latencies in seconds; 0 while one is unknown."""
    default = best = 0.0
    for p in progress:
        if p.best_s is None or p.default_s is None:
            return 0.0, 0.0
        default += p.default_s * p.weight
        best += p.best_s * p.weight
    return default, best


def gain_text(progress: Iterable[Progress]) -> str:
    """``all tasks: 7.56 ms, 1.06x the defaults' 8.00 ms``; nothing while a task is not timed."""
    default, best = model_latency(progress)
    if not best:
        return ""
    return f"all tasks: {duration(best)}, {default / best:.2f}x the defaults' {duration(default)}"


def errors_text(errors: Mapping[str, int]) -> str:
    """``3 build_error, 1 run_timeout``."""
    return ", ".join(f"{n} {kind}" for kind, n in sorted(errors.items(), key=lambda e: -e[1]))


def times(ratio: float | None) -> str:
    """``1.06x``."""
    return f"{ratio:.2f}x" if ratio else "–"


def latency(seconds: float | None) -> str:
    """A latency, or a dash where it is not known."""
    return "–" if seconds is None else duration(seconds)


def duration(seconds: float) -> str:
    """A latency with three digits and a fitting unit."""
    for scale, unit in ((1e6, "µs"), (1e3, "ms"), (1.0, "s")):
        value = seconds * scale
        if value < 999.5 or unit == "s":
            break
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
