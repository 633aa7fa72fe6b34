"""What an update of a job says: how far it is, whether it moves, what it waits for and gained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tunefarm.db.earlier import runs
from tunefarm.db.records import (
    OPEN,
    OWNED,
    UNREGISTERED,
    Device,
    Job,
    JobState,
    JobUpdate,
    Progress,
)
from tunefarm.proto.awake import awake_s
from tunefarm.texts import beginning, duration

ALL = "all tasks: "
_WAITS_FOR_TUNER = "waiting for a tuner; `tunefarm tuner` starts one"


def done(update: JobUpdate) -> int:
    """Finished candidates of a job, failed ones too."""
    return sum(p.ok + p.failed for p in update.progress)


def age_s(job: Job, now: float) -> float:
    """Seconds from when a job was made until its end, or until ``now`` while it is open."""
    return max(0.0, (now if job.state in OPEN else job.updated_at) - job.created_at)


def moved(update: JobUpdate, before: JobUpdate) -> bool:
    """Whether anything of a job has changed: finals are no candidates, and yet it moves."""
    return (update.cursor, done(update)) != (before.cursor, done(before))


@dataclass
class Idle:
    """How long a job has not moved; time in which its watcher stood still does not count."""

    clock: Callable[[], float] = awake_s
    longest_s: float = 0.0
    """The longest wait for a trial so far that one ended: what a round takes here."""
    _last: JobUpdate | None = None
    _since: float = 0.0

    def note(self, update: JobUpdate) -> None:
        """Take in an update; the first one is a move."""
        if self._last is None or moved(update, self._last):
            if self._last is not None and done(update) > done(self._last):
                self.longest_s = max(self.longest_s, self.seconds)
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


def waiting(update: JobUpdate) -> str:
    """What an open job does before its first trial, and who or what one is waiting for; empty if
    nothing is to be said."""
    job = update.job
    if job.state not in OPEN:
        return ""
    pending = sum(row.pending for row in update.progress)
    is_owned, is_granted = OWNED in job.options, bool(job.compiler_version)
    if job.unmet and not (is_owned and job.unmet == UNREGISTERED):
        return f"waiting: {job.unmet}"
    if done(update):
        return _WAITS_FOR_TUNER if job.state is JobState.QUEUED else ""
    if pending or (is_granted and job.state is JobState.RUNNING):
        return beginning(job.state, pending, is_granted)
    if is_owned:
        if job.state is JobState.QUEUED and not job.unmet:
            return "waiting for the tuner of this command, which starts or has another job"
        return "waiting for the worker of this command, which starts and checks its device"
    if job.state is JobState.QUEUED:
        return _WAITS_FOR_TUNER
    return f"waiting for a device of target {job.target}: others hold those there are, or are away"


def peak_of(devices: Iterable[Device], target: str) -> float | None:
    """The FLOP/s that devices of a target, of whatever precision, reach on all cores; None if none
    was measured."""
    alike = (d for d in devices if runs(d.target, target) and runs(target, d.target))
    peaks = [d.peaks.get("flops_n") or d.peaks.get("flops_1") for d in alike]
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
