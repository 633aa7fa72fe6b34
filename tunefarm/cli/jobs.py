"""``tunefarm submit``, ``jobs``, ``watch`` and ``cancel``: jobs on a running farm."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from tunefarm.cli.options import Model, Shapes, TargetText, parse_shapes

Tracker = Annotated[str, typer.Option(help="HOST:PORT of the tracker; this user's own if empty.")]


def register(app: typer.Typer) -> None:
    for command in (submit, jobs, watch, cancel):
        app.command()(command)


def submit(
    model: Model,
    target: TargetText = "",
    shape: Shapes = None,
    trials: Annotated[int, typer.Option(help="Trials over all tasks.")] = 1000,
    minutes: Annotated[float | None, typer.Option(help="Wall-clock limit.")] = None,
    priority: Annotated[int, typer.Option(help="Higher is served first.")] = 0,
    tracker: Tracker = "",
) -> None:
    """Submit a tuning job to a farm and return at once; its id is printed."""
    from tunefarm.api import extract_tasks, from_onnx
    from tunefarm.farm import connect_local
    from tunefarm.tuning import make_job

    tasks = extract_tasks(from_onnx(model, parse_shapes(shape)), target or None)
    seconds = None if minutes is None else 60 * minutes
    with connect_local(tracker, None) as client:
        job = client.submit_job(make_job(tasks, trials, seconds, priority=priority))
    print(job.id)


def jobs(
    tracker: Tracker = "",
    limit: Annotated[int, typer.Option(help="How many, newest first.")] = 20,
) -> None:
    """List the latest jobs."""
    from rich.console import Console
    from rich.table import Table

    from tunefarm.farm import connect_local

    with connect_local(tracker, None) as client:
        found = client.jobs(limit=limit)
    table = Table()
    for column in ("job", "state", "target", "tasks", "trials", "created", "message"):
        table.add_column(column)
    for job in found:
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(job.created_at))
        table.add_row(
            job.id, job.state, job.target, str(len(job.tasks)), str(job.budget.trials), created,
            job.message,
        )  # fmt: skip
    Console().print(table)


def watch(
    job: Annotated[str, typer.Argument(help="Id of the job.")], tracker: Tracker = ""
) -> None:
    """Follow a job until it is over."""
    from rich.console import Console

    from tunefarm.farm import connect_local
    from tunefarm.progress import showing

    with connect_local(tracker, None) as client, showing(Console()) as show:
        for update in client.watch(job, wait_s=1.0):
            show(update)


def cancel(
    job: Annotated[str, typer.Argument(help="Id of the job.")], tracker: Tracker = ""
) -> None:
    """Cancel a job; its trials are kept."""
    from tunefarm.farm import connect_local

    with connect_local(tracker, None) as client:
        print(client.cancel(job, "cancelled from the command line").state)
