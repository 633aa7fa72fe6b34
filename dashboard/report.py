"""A job as one page to send: its charts and tables in a file that needs no server and no network.

The page is the dashboard's: its queries, charts and styles, held within the file. Its policy allows
no script and no style but these.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Sequence

from sqlalchemy import Connection
from tunefarm.dashboard.queries import curves, failures, jobs, roofs
from tunefarm.dashboard.queries.jobs import JobLine
from tunefarm.dashboard.queries.settled import outcome
from tunefarm.dashboard.rendering import STATIC, environment

SHOWN = 12
"""So many tasks have their charts in sight; those of the others are folded away."""
_STYLES = ("vendor/uPlot.min.css", "dashboard.css")
_SCRIPTS = ("vendor/uPlot.iife.min.js", "charts.js")
_LICENSE = "vendor/uPlot.LICENSE.txt"


def report(connection: Connection, job: JobLine) -> str:
    """The page of a job, as HTML."""
    tasks = jobs.tasks(connection, job.id)
    data = (
        curves.best_so_far(connection, job, tasks),
        curves.points(connection, job, tasks),
        roofs.roofline(connection, job, tasks),
    )
    came = outcome(connection, job, tasks)
    styles, scripts = [_static(name) for name in _STYLES], [_static(name) for name in _SCRIPTS]
    scripts[0] = f"/*\n{_static(_LICENSE)}\n*/\n{scripts[0]}"
    return (
        environment()
        .get_template("report.html")
        .render(
            job=job,
            came=came,
            names=[(row.task.position, row.task.summary) for row in came.results],
            shown=SHOWN,
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


def _static(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def _policy(styles: Sequence[str], scripts: Sequence[str]) -> str:
    """What a browser may do with the page: run these scripts, use these styles, load nothing."""

    def told(texts: Sequence[str]) -> str:
        digests = [hashlib.sha256(text.encode()).digest() for text in texts]
        return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)

    return f"default-src 'none'; script-src {told(scripts)}; style-src {told(styles)}"
