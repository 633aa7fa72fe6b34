"""What an update of a job says: how far it is, whether it moves, what it waits for and gained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tunefarm.db.records import OWNED, Device, JobState, JobUpdate, Progress
from tunefarm.proto.awake import awake_s
from tunefarm.texts import duration

ALL = "all tasks: "
OVER = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


def done(update: JobUpdate) -> int:
    """Finished candidates of a job, failed ones too."""
    return sum(p.ok + p.failed for p in update.progress)


def moved(update: JobUpdate, before: JobUpdate) -> bool:
    """Whether anything of a job has changed: finals are no candidates, and yet it moves."""
    return (update.cursor, done(update)) != (before.cursor, done(before))


@dataclass
class Idle:
    """How long a job has not moved; time in which its watcher stood still does not count."""

    clock: Callable[[], float] = awake_s
    _last: JobUpdate | None = None
    _since: float = 0.0

    def note(self, update: JobUpdate) -> None:
        """Take in an update; the first one is a move."""
        if self._last is None or moved(update, self._last):
            self._since = self.clock()
        self._last = update

    @property
    def seconds(self) -> float:
        """Since the job moved."""
        return self.clock() - self._since


def earlier(update: JobUpdate) -> int:
    """Trials of the job's tasks that were there before it and count against its budget."""
    text = update.job.options.get("earlier", "0")
    return int(text) if text.isdecimal() else 0


def missing(update: JobUpdate) -> str:
    """Who or what a job that does not move is waiting for."""
    if update.job.unmet:
        return f"waiting: {update.job.unmet}"
    if update.job.options.get(OWNED) and not done(update):
        if update.job.state is JobState.QUEUED:
            return "waiting for the tuner of this command, which starts or has another job"
        return "waiting for the first trial"
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


def model_latency(rows: Iterable[Progress]) -> tuple[float, float]:
    """Weighted sums of the tasks' default and best latencies in seconds; 0 while one is unknown."""
    rows = list(rows)
    best = sum((p.best_s or 0) * p.weight for p in rows)
    default = sum((p.default_s or 0) * p.weight for p in rows)
    return (
        default if all(p.default_s for p in rows) else 0.0,
        best if all(p.best_s for p in rows) else 0.0,
    )


def gain_text(rows: Iterable[Progress]) -> str:
    """``all tasks: 7.56 ms, 1.06x the defaults' 8.00 ms``; nothing while a task is not timed."""
    default, best = model_latency(rows)
    if not best:
        return ""
    beside = f", {default / best:.2f}x the defaults' {duration(default)}" if default else ""
    return f"{ALL}{duration(best)}{beside}"


def seen_text(rows: Iterable[Progress]) -> str:
    """``fastest trials 7.56 ms, defaults 8.00 ms; finals tell luck from gain``: no ratio yet, as
    the fastest of many trials is the luckiest too."""
    default, best = model_latency(rows)
    if not best:
        return ""
    beside = f", defaults {duration(default)}; finals tell luck from gain" if default else ""
    return f"fastest trials {duration(best)}{beside}"


def errors_text(errors: Mapping[str, int]) -> str:
    """``3 build_error, 1 run_timeout``."""
    return ", ".join(f"{n} {kind}" for kind, n in sorted(errors.items(), key=lambda e: -e[1]))
