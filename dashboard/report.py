"""A job as one page to send: its charts and tables in a file that needs no server and no network.

The page is the dashboard's: its queries, charts and styles, held within the file. Its policy allows
no script and no style but these.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select
from tunefarm.dashboard.queries import curves, failures, jobs, records, roofs
from tunefarm.dashboard.queries.jobs import JobLine, TaskLine
from tunefarm.dashboard.rendering import STATIC, environment
from tunefarm.db.models import TRIALS

SHOWN = 12
"""So many tasks have their charts in sight; those of the others are folded away."""
LEAST_GAIN = 1.005
_STYLES = ("vendor/uPlot.min.css", "dashboard.css")
_SCRIPTS = ("vendor/uPlot.iife.min.js", "charts.js")
_LICENSE = "vendor/uPlot.LICENSE.txt"


@dataclass(frozen=True, slots=True)
class Row:
    """A task with its latencies in seconds: those of what builds use, if that is settled."""

    task: TaskLine
    default_s: float | None
    best_s: float | None

    @property
    def speedup(self) -> float | None:
        """How much faster it is than its default."""
        return self.default_s / self.best_s if self.default_s and self.best_s else None

    @property
    def is_faster(self) -> bool:
        """Whether that is more than rounding."""
        return (self.speedup or 0.0) >= LEAST_GAIN

    @property
    def flops_s(self) -> float | None:
        """Nominal operations a second."""
        return self.task.flops / self.best_s if self.best_s and self.task.flops else None

    @property
    def time_s(self) -> float:
        """Seconds in a run of the model."""
        return self.task.weight * (self.best_s or 0.0)


def report(connection: Connection, job: JobLine) -> str:
    """The page of a job, as HTML."""
    tasks = jobs.tasks(connection, job.id)
    data = (
        curves.best_so_far(connection, job, tasks),
        curves.points(connection, job, tasks),
        roofs.roofline(connection, job, tasks),
    )
    device = _device_model(connection, job)
    rows = [Row(task, task.default_s, task.best_s) for task in tasks]
    if not job.is_open:
        rows = [_settled(connection, task, job, device) for task in tasks]
    rows.sort(key=lambda row: -row.time_s)
    both = [row for row in rows if row.speedup]
    default_s = sum((row.default_s or 0.0) * row.task.weight for row in both)
    best_s = sum(row.time_s for row in both)
    styles, scripts = [_static(name) for name in _STYLES], [_static(name) for name in _SCRIPTS]
    scripts[0] = f"/*\n{_static(_LICENSE)}\n*/\n{scripts[0]}"
    return (
        environment()
        .get_template("report.html")
        .render(
            job=job,
            device=device,
            rows=rows,
            names=[(row.task.position, row.task.summary) for row in rows],
            shown=SHOWN,
            default_s=default_s,
            best_s=best_s,
            speedup=default_s / best_s if best_s else None,
            wall=curves.wall_time(connection, job),
            failed=failures.failures(connection, job=job.id),
            peak_flops=roofs.peaks(connection, job).get("flops_n"),
            datasets=data,
            ranking=data[1].notes,
            styles=styles,
            scripts=scripts,
            policy=_policy(styles, scripts),
            now=time.time(),
        )
    )


def _settled(connection: Connection, task: TaskLine, job: JobLine, device_model: str) -> Row:
    """A task with the record that a final promoted, beside the default that it met there; without
    one builds take the default."""
    for found in records.standings(connection, task.workload_id, task.target_id):
        is_same = (found.device_model, found.compiler_version) == (
            device_model,
            job.compiler_version or found.compiler_version,
        )
        if found.promoted and is_same:
            default_s = found.median_s * found.speedup if found.speedup else None
            return Row(task, default_s, found.median_s)
    return Row(task, task.default_s, task.default_s)


def _device_model(connection: Connection, job: JobLine) -> str:
    """The model of the device that measured the job's first trial, empty while there is none."""
    columns = TRIALS.c
    query = select(columns.device_model).where(columns.job == job.id).order_by(columns.id).limit(1)
    return connection.execute(query).scalar() or ""


def _static(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def _policy(styles: Sequence[str], scripts: Sequence[str]) -> str:
    """What a browser may do with the page: run these scripts, use these styles, load nothing."""

    def told(texts: Sequence[str]) -> str:
        digests = [hashlib.sha256(text.encode()).digest() for text in texts]
        return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)

    return f"default-src 'none'; script-src {told(scripts)}; style-src {told(styles)}"
