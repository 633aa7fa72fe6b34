"""A farm at a glance: its devices, leases, queue, throughput and latest bests, for a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tunefarm.db.records import Device, FarmInfo, JobState, JobUpdate, Lease, TaskKey, Trial
from tunefarm.tables import Column, table
from tunefarm.texts import clock, counted, latency, times
from tunefarm.updates import done, earlier, model_latency, waiting

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tunefarm.proto.client import FarmClient

DIGITS = 8  # of a job's id
NEWEST = 200
"""Trials that tell the throughput."""
WINDOW_S = 20.0
"""Over how long the throughput is taken."""
BESTS = 8
_OPEN = (JobState.RUNNING, JobState.QUEUED)
_CORDONS = ("cordoned", "draining", "drained", "quarantined")
_CHROME = 3
"""Lines of a table beside its rows."""


@dataclass(frozen=True, slots=True)
class Gain:
    """A task's latest best, first seen at ``at`` (None: at the first look, so it may be old)."""

    job: str
    summary: str
    best_s: float
    default_s: float | None
    at: float | None

    @property
    def speedup(self) -> float | None:
        return self.default_s / self.best_s if self.default_s else None


@dataclass(frozen=True, slots=True)
class Look:
    """What a farm showed at one time."""

    at: float
    info: FarmInfo
    devices: tuple[Device, ...]
    leases: tuple[Lease, ...]
    jobs: tuple[JobUpdate, ...]
    queued: int
    newest: tuple[Trial, ...]
    gains: tuple[Gain, ...]


@dataclass(slots=True)
class Watch:
    """Looks at a farm again and again, and keeps when each task last got better."""

    client: FarmClient
    jobs: int = 20
    gains: dict[tuple[str, TaskKey], Gain] = field(default_factory=dict)
    began: bool = False

    def look(self) -> Look:
        """What the farm shows now; the errors of ``proto.errors`` if it does not answer."""
        now = time.time()
        found = [self.client.jobs([state]) for state in _OPEN]
        shown = sorted(
            (job for jobs in found for job in jobs),
            key=lambda job: (_OPEN.index(job.state), -job.priority, job.created_at),
        )
        updates = tuple(self.client.watch_once(job.id) for job in shown[: self.jobs])
        self._note(updates, now)
        gains = sorted(
            self.gains.values(), key=lambda gain: (-(gain.at or 0), -(gain.speedup or 0))
        )
        return Look(
            now,
            self.client.info(),
            self.client.devices(),
            self.client.leases(),
            updates,
            len(found[1]),
            self.client.history(limit=NEWEST).trials,
            tuple(gains),
        )

    def _note(self, updates: Sequence[JobUpdate], now: float) -> None:
        for update in updates:
            for row in update.progress:
                key = (update.job.id, row.task)
                known = self.gains.get(key)
                if row.best_s is None or (known is not None and known.best_s <= row.best_s):
                    continue
                at = now if self.began else None
                name = row.summary or row.task.workload[:12]
                self.gains[key] = Gain(update.job.id, name, row.best_s, row.default_s, at)
        self.began = True


def rates(trials: Sequence[Trial], now: float) -> dict[str, float]:
    """Trials a second of each device over the last ``WINDOW_S`` seconds, or as far back as the
    newest ``NEWEST`` go."""
    recent = [trial for trial in trials if 0 <= now - trial.created_at <= WINDOW_S]
    span_s = WINDOW_S
    if recent and len(recent) == len(trials) == NEWEST:
        span_s = max(1.0, now - recent[-1].created_at)
    found: dict[str, float] = {}
    for trial in recent:
        found[trial.device] = found.get(trial.device, 0.0) + 1 / span_s
    return found


# --- what is shown ------------------------------------------------------------------------------


def shown(look: Look, width: int, height: int | None = None) -> RenderableType:
    """The whole picture, at most ``width`` wide; with ``height`` it is cut to so many lines."""
    from rich.console import Group
    from rich.text import Text

    rows = None if height is None else max(3, (height - 5 - 3 * _CHROME) // 3)
    parts: list[RenderableType] = [Text(line, no_wrap=True) for line in headlines(look)]
    for name, columns, nothing in (
        ("devices", device_columns(look, rows), "no worker ever offered a device"),
        ("jobs", job_columns(look, rows), "no job runs or waits"),
        ("latest bests", gain_columns(look, rows or BESTS), ""),
    ):
        parts.append(Text(""))
        if columns[0].cells:
            parts.append(table(columns, width, title=name))
        elif nothing:
            parts.append(Text(nothing))
        else:
            parts.pop()
    return Group(*parts)


def headlines(look: Look) -> list[str]:
    """``/data/farm.db, tracker 0.1.0 up 3:02:11`` and the counts of everything."""
    states = [device.state for device in look.devices]
    kinds = [f"{states.count(s)} {s}" for s in ("leased", "idle", "offline") if s in states]
    kept = [device.cordon for device in look.devices]
    kinds += [f"{kept.count(cordon)} {cordon}" for cordon in _CORDONS if cordon in kept]
    running = sum(update.job.state is JobState.RUNNING for update in look.jobs)
    rate = sum(rates(look.newest, look.at).values())
    pending = sum(row.pending for update in look.jobs for row in update.progress)
    up = span(max(0.0, look.at - look.info.started_at))
    devices = counted(len(look.devices), "device")
    return [
        f"{look.info.database}, tracker {look.info.version} up {up}",
        f"{devices}{': ' if kinds else ''}{', '.join(kinds)}",
        f"{counted(running, 'job')} running, {look.queued} queued; "
        f"{counted(pending, 'candidate')} under way, {rate:.1f} trials/s",
    ]


def device_columns(look: Look, rows: int | None) -> list[Column]:
    """A row a device: those that are held first, the offline ones last."""
    order = ("leased", "idle", "offline")
    devices = sorted(look.devices, key=lambda d: (order.index(d.state), d.id))[:rows]
    held = {lease.device: lease for lease in look.leases}
    rate = rates(look.newest, look.at)
    leases = [held.get(device.id) for device in devices]
    return [
        Column("device", [d.id for d in devices], least=16, left=True),
        Column("state", [_state(d) for d in devices], rank=8, left=True),
        Column("trials/s", [f"{rate[d.id]:.1f}" if d.id in rate else "–" for d in devices], rank=7),
        Column("job", [one.job[:DIGITS] if one else "" for one in leases], rank=6, left=True),
        Column("held", [span(look.at - one.granted_at) if one else "" for one in leases], rank=4),
        Column(
            "holder", [one.client if one else "" for one in leases], rank=3, least=12, left=True
        ),
        Column("worker", [d.worker for d in devices], rank=2, least=12, left=True),
        Column("target", [d.target for d in devices], rank=1, least=16, left=True),
        Column("why", [d.cordon_reason for d in devices], rank=5, least=12, left=True),
    ]


def span(seconds: float) -> str:
    """``2:05``, ``3 h 12 min``, ``5 d 3 h``: two units are enough."""
    minutes = int(seconds) // 60
    if minutes < 60:
        return clock(seconds)
    hours = minutes // 60
    return f"{hours} h {minutes % 60:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def _state(device: Device) -> str:
    return f"{device.state}, {device.cordon}" if device.cordon else device.state


def job_columns(look: Look, rows: int | None) -> list[Column]:
    """A row a job that runs or waits, in the order in which they are served."""
    updates = look.jobs[:rows]
    jobs = [update.job for update in updates]
    gains = [model_latency(update.progress) for update in updates]
    return [
        Column("job", [job.id[:DIGITS] for job in jobs], left=True),
        Column("state", [str(job.state) for job in jobs], rank=8, left=True),
        Column("prio", [str(job.priority) for job in jobs], rank=5),
        Column("trials", [_spent(u) for u in updates], rank=7),
        Column("fastest", [times(a / b) if b else "–" for a, b in gains], rank=6),
        Column("tasks", [str(len(update.progress)) for update in updates], rank=3),
        Column("age", [span(look.at - job.created_at) for job in jobs], rank=4),
        Column("tuner", [job.claimed_by for job in jobs], rank=2, least=12, left=True),
        Column("now", [_now(update) for update in updates], rank=5, least=24, left=True),
        Column("target", [job.target for job in jobs], rank=1, least=16, left=True),
    ]


def _spent(update: JobUpdate) -> str:
    """``620/700``: trials that count against the budget, earlier ones too, as ``watch`` tells."""
    budget = update.job.budget.trials
    return f"{min(earlier(update) + done(update), budget)}/{budget}"


def _now(update: JobUpdate) -> str:
    return waiting(update).removeprefix("waiting: ")


def gain_columns(look: Look, rows: int) -> list[Column]:
    """A row a task, the one that got better last first."""
    gains = look.gains[:rows]
    ago = [f"{span(look.at - gain.at)} ago" if gain.at is not None else "" for gain in gains]
    return [
        Column("task", [gain.summary for gain in gains], least=20, left=True),
        Column("latency", [latency(gain.best_s) for gain in gains], rank=8),
        Column("fastest", [times(gain.speedup) for gain in gains], rank=7),
        Column("job", [gain.job[:DIGITS] for gain in gains], rank=5, left=True),
        Column("better", ago, rank=6),
    ]
