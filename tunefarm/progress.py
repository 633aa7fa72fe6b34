"""Live progress of a tuning job: a table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from tunefarm.db.records import OPEN, Job, JobState, JobUpdate, Progress
from tunefarm.texts import clock, latency, times
from tunefarm.updates import Idle, done, earlier, errors_text, gain_text, seen_text, waiting

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from tunefarm.outcome import Outcome
    from tunefarm.tables import Column

    Peak = Callable[[Job], float | None]

LINE_EVERY_S = 5.0
ROWS_BESIDE_TASKS = 8  # title, head, rule, "more tasks", three lines below, the cursor
SILENCE_S = 10.0
ROUNDS_OF_SILENCE = 2.0
"""How often the longest wait for a trial so far may pass before it is said that none has ended."""


class Show(Protocol):
    """What draws a job: it is called with each update, and once with what came of the job."""

    def __call__(self, update: JobUpdate) -> None: ...
    def conclude(self, outcome: Outcome | None) -> None: ...


@dataclass
class Following:
    """What a watcher has seen of a job, ``before_s`` seconds of which had passed when the watching
    began: the last update, where the first one stood, and, once it is known, what came of it."""

    clock: Callable[[], float] = time.monotonic
    peak: Peak | None = None
    before_s: float = 0.0
    last: JobUpdate | None = None
    outcome: Outcome | None = None
    is_broken: bool = False
    peak_flops: float | None = None
    started: float = field(init=False)
    ended: float | None = None
    look: Look | None = None
    _first_done: int | None = None
    idle: Idle = field(default_factory=Idle)

    def __post_init__(self) -> None:
        self.started = self.clock()

    def note(self, update: JobUpdate) -> None:
        """Take in an update; the device's peak is asked for once a trial is there."""
        self.idle.note(update)
        self.last = update
        if self._first_done is None:
            self._first_done = done(update)
        if update.job.state not in OPEN:
            self.ended = self.clock()
        if self.peak is not None and self.peak_flops is None and done(update):
            self.peak_flops = self.peak(update.job)
        self.look = looked(update, self.look, self.clock())

    @property
    def rows(self) -> tuple[Progress, ...]:
        """The tasks, with their fastest trials or, at the end, the records in use."""
        if self.outcome is not None:
            return self.outcome.rows
        return self.last.progress if self.last is not None else ()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the job was made."""
        return self.before_s + self.watched_s

    @property
    def watched_s(self) -> float:
        """Those of them in which somebody watched: what a job waits for its turn is no part of its
        budget."""
        return (self.clock() if self.ended is None else self.ended) - self.started

    @property
    def rate(self) -> float:
        """Trials a second since the first update; 0 while none came."""
        if self.last is None or self.watched_s <= 0:
            return 0.0
        return (done(self.last) - (self._first_done or 0)) / self.watched_s

    @property
    def left_s(self) -> float | None:
        """Seconds until the budget is spent; None while it cannot be told."""
        if self.last is None or self.last.job.state is not JobState.RUNNING:
            return None
        budget = self.last.job.budget
        counted = earlier(self.last) + done(self.last)
        bounds = [(budget.trials - counted) / self.rate] if self.rate > 0 else []
        if budget.seconds is not None:
            bounds.append(budget.seconds - self.watched_s)
        return max(0.0, min(bounds)) if bounds else None

    def headline(self) -> str:
        """``running, 23/24 trials, 2.2/s, 0:11, 0:01 left, then finals``, or the finals."""
        if self.last is None:
            return "starting"
        if self.look is not None and not self.is_broken:
            return self.look.headline(self.elapsed_s, self.clock())
        budget = self.last.job.budget.trials
        counted = min(earlier(self.last) + sum(r.ok + r.failed for r in self.rows), budget)
        state = "stopped" if self.is_broken else str(self.last.job.state)
        late = " (the time was over)" if self._is_cut_short(counted) else ""
        parts = [state, f"{counted}/{budget} trials{late}"]
        if self.rate > 0:
            parts.append(f"{self.rate:.1f}/s")
        parts.append(clock(self.elapsed_s))
        if self.left_s is not None:
            left = f"{clock(self.left_s)} left, then finals" if self.left_s else "finals begin"
            parts.append(left)
        return ", ".join(parts)

    def _is_cut_short(self, counted: int) -> bool:
        """Whether the job's time ended the search; a message says why else trials are left over."""
        assert self.last is not None
        job = self.last.job
        is_done = job.state is JobState.SUCCEEDED and not job.message
        return is_done and job.budget.seconds is not None and counted < job.budget.trials

    def notes(self) -> list[str]:
        """What stands below the table: the sum over tasks, errors, and who is missing."""
        if self.last is None:
            return []
        texts = [gain_text(self.rows) if self.outcome is not None else ""]
        if self.look is not None and self.ended is None:
            texts = [f"side by side with its default: {self.look.summary}"]
        elif self.outcome is None and self.last.job.state is not JobState.SUCCEEDED:
            texts = [seen_text(self.rows)]
        if self.last.errors:
            texts.append(f"failed: {errors_text(self.last.errors)}")
        silent_s = self.idle.seconds
        if self.ended is None and (silent_s > SILENCE_S or not done(self.last)):
            texts.append(waiting(self.last) or self._silence(silent_s))
        return [text for text in texts if text]

    def _silence(self, seconds: float) -> str:
        """Nothing while no more than some rounds have passed, which take long on slow machines."""
        usual_s = max(SILENCE_S, ROUNDS_OF_SILENCE * self.idle.longest_s)
        return f"no trial has ended for {clock(seconds)}" if seconds > usual_s else ""


@dataclass(frozen=True, slots=True)
class Look:
    """A look of the finals: of ``total`` tasks ``left`` are still to be timed, ``summary`` now. It
    began at ``began_s`` of the watcher's clock, and the last task ended at ``moved_s``."""

    number: int
    total: int
    left: int
    summary: str
    began_s: float
    moved_s: float

    def headline(self, elapsed_s: float, now_s: float) -> str:
        """``finals: task 3 of 22, look 1 of 3 at most, 0:47, 0:12 left of this look``."""
        from tunefarm.tuner.finals import LOOKS

        passed = self.total - self.left
        parts = [
            f"finals: task {passed + 1} of {self.total}",
            f"look {self.number} of {len(LOOKS)} at most",
            clock(elapsed_s),
        ]
        if passed:
            left_s = (self.moved_s - self.began_s) / passed * self.left - (now_s - self.moved_s)
            parts.append(f"{clock(max(left_s, 0.0))} left of this look")
        return ", ".join(parts)


def looked(update: JobUpdate, before: Look | None, now_s: float) -> Look | None:
    """The look of the finals that an update shows, None if it shows none; ``before`` is what the
    update before it showed."""
    waiting = [row for row in update.progress if row.final_look]
    if not waiting or update.job.state not in OPEN:
        return None
    number = max(row.final_look for row in waiting)
    if before is None or before.number != number or before.left < len(waiting):
        return Look(number, len(waiting), len(waiting), waiting[0].summary, now_s, now_s)
    if before.left == len(waiting):
        return before
    return replace(before, left=len(waiting), summary=waiting[0].summary, moved_s=now_s)


@contextmanager
def showing(console: Console, peak: Peak | None = None, before_s: float = 0.0) -> Iterator[Show]:
    """What draws a job: a live table if the console is a terminal, else lines.

    ``peak`` tells the FLOP/s that the devices of a job reach at most, ``before_s`` is how many
    seconds it has taken already.
    """
    following = Following(peak=peak, before_s=before_s)
    if not console.is_terminal or console.quiet:
        lines = Lines(following, console)
        try:
            with _stopped_by_errors(following):
                yield lines
        except BaseException:
            lines.break_off()
            raise
        return
    from rich.live import Live

    view = View(following)
    with Live(view, console=console, refresh_per_second=4) as live:
        try:
            with _stopped_by_errors(following):
                yield view
        finally:
            following.ended = following.ended or following.clock()
            view.whole = True
            live.refresh()


@contextmanager
def _stopped_by_errors(following: Following) -> Iterator[None]:
    try:
        yield
    except BaseException:
        following.is_broken = following.last is None or following.last.job.state in OPEN
        raise


@dataclass
class Lines:
    """Draws a job in lines: one now and then and whenever its state changes, tasks at the end."""

    following: Following
    console: Console
    _shown_s: float = -LINE_EVERY_S
    _state: JobState | None = None

    def __call__(self, update: JobUpdate) -> None:
        self.following.note(update)
        elapsed_s = self.following.elapsed_s
        if elapsed_s - self._shown_s < LINE_EVERY_S and update.job.state is self._state:
            return
        self._shown_s, self._state = elapsed_s, update.job.state
        self.console.print(line(self.following), soft_wrap=True)

    def conclude(self, outcome: Outcome | None) -> None:
        """A line a task; nothing is said of a job that has no outcome."""
        if outcome is not None:
            self.following.outcome = outcome
            self._print_tasks()

    def break_off(self) -> None:
        """What was seen of a job that was stopped or failed."""
        last = self.following.last
        if last is None or not done(last):
            return
        if self.following.is_broken:
            self.console.print(line(self.following), soft_wrap=True)
        self._print_tasks()

    def _print_tasks(self) -> None:
        from tunefarm.tables import print_table

        print_table(self.console, task_columns(self.following))


def line(following: Following) -> str:
    """What has been seen so far in one line of text."""
    return "; ".join([following.headline(), *following.notes()])


@dataclass
class View:
    """What ``Live`` draws: as many tasks as the screen holds, those that take longest first, and
    until the end an empty line for the cursor: behind a full one the ``^C`` of a terminal would
    begin another, of which ``Live`` does not know."""

    following: Following
    whole: bool = False

    def __call__(self, update: JobUpdate) -> None:
        self.following.note(update)

    def conclude(self, outcome: Outcome | None) -> None:
        """From now on the times are those of the records in use."""
        self.following.outcome = outcome

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        yield Text(self.following.headline(), "bold", no_wrap=True, overflow="ellipsis")
        if self.following.last is not None:
            yield from self._rows(options)
        if not self.whole:
            yield Text("")

    def _rows(self, options: ConsoleOptions) -> RenderResult:
        """The tasks, and what stands below them."""
        from rich.text import Text

        from tunefarm.tables import table

        count = len(self.following.rows)
        room = count if self.whole else max(1, options.size.height - ROWS_BESIDE_TASKS)
        yield table(task_columns(self.following, room), options.max_width)
        if room < count:
            yield Text(f"… and {count - room} more tasks")
        for note in [] if self.whole else self.following.notes():
            yield Text(note, no_wrap=True, overflow="ellipsis")


def task_columns(following: Following, room: int | None = None) -> list[Column]:
    """The columns of the tasks that take longest, a cell a task; ``room`` is for how many.

    While the search goes on there is no gain yet: its fastest trials were chosen for being low. At
    the end only who is beside a farm knows shares of a peak: they go before what all know.
    """
    from tunefarm.tables import Column

    outcome = following.outcome
    statuses = outcome.statuses if outcome is not None else ("",) * len(following.rows)
    both = zip(following.rows, statuses, strict=True)
    shown = sorted(both, key=lambda b: -((b[0].best_s or 0) * b[0].weight))[:room]
    rows = [row for row, _ in shown]
    rates = [p.flops / p.best_s if p.best_s and p.flops else None for p in rows]
    shares = [_share(rate, following.peak_flops) for rate in rates]
    is_over = outcome is not None
    gains = [p.speedup if is_over else None for p in rows]
    return [
        Column("task", [p.summary for p in rows], least=30, left=True),
        Column("weight", [str(p.weight) for p in rows], rank=2),
        Column("trials", [str(p.ok + p.failed) for p in rows], rank=6),
        Column("failed", [str(p.failed or "") for p in rows], rank=3),
        Column(
            "latency" if is_over else "fastest trial", [latency(p.best_s) for p in rows], rank=8
        ),
        Column("gain", [times(gain) for gain in gains], rank=5),
        Column("GFLOP/s", [f"{rate / 1e9:.1f}" if rate else "–" for rate in rates], rank=7),
        Column("of peak", shares, rank=1 if is_over else 3),
        Column("record", [status for _, status in shown], rank=4, left=True),
    ]


def _share(rate: float | None, peak_flops: float | None) -> str:
    return f"{100 * rate / peak_flops:.0f}%" if rate and peak_flops else "–"
