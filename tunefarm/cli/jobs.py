"""``tunefarm submit``, ``jobs``, ``watch``, ``cancel`` and ``misses``: jobs on a running farm."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tunefarm.cli.options import (
    TRACKER,
    TRACKER_HELP,
    Asked,
    Database,
    Minutes,
    Model,
    Precision,
    Selector,
    Shapes,
    TargetText,
    Trials,
    history_source,
)
from tunefarm.cli.printing import Json, print_json, print_rows, remarks

if TYPE_CHECKING:
    from tunefarm.db.records import Job, JobUpdate, Miss, Progress
    from tunefarm.outcome import Outcome
    from tunefarm.tables import Column

DIGITS = 8  # of a job's id, in tables: few enough to type, enough to be its own
JobId = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job, or its first digits.")]
Tracker = Annotated[str, typer.Option(metavar=TRACKER, help=TRACKER_HELP)]
Limit = Annotated[int, typer.Option(min=1, metavar="N", help="How many at most.")]

listing = typer.Typer()


def register(app: typer.Typer) -> None:
    for command in (submit, watch, cancel, misses):
        app.command()(command)
    app.add_typer(listing, name="jobs")


def submit(
    model: Model,
    target: TargetText = "",
    shape: Shapes = None,
    precision: Precision = "",
    trials: Trials = None,
    minutes: Minutes = None,
    device: Selector = "",
    priority: Annotated[int, typer.Option(metavar="N", help="Higher is served first.")] = 0,
    tracker: Tracker = "",
    as_json: Json = False,
) -> None:
    """Submit a tuning job to a farm and return at once; its id is printed.

    Example: tunefarm submit model.onnx --tracker lab1:9190 --trials 2000
    """
    from tunefarm.checks import check_device, count_trials, raised_budget, tell_waiting
    from tunefarm.db.records import TRIALS_A_TASK
    from tunefarm.farm import connect_local
    from tunefarm.tuning import make_job

    check_device(device)
    asked = Asked(model, target, shape, precision)
    tasks = asked.tasks()
    asked.in_use((t.workload for t in tasks), remarks(as_json=True))
    budget = TRIALS_A_TASK * len(tasks)
    if trials is not None:
        budget = raised_budget(trials, tasks)
    seconds = None if minutes is None else 60 * minutes
    with connect_local(tracker, None) as client:
        earlier = count_trials(client, tasks)
        job = client.submit_job(
            make_job(
                tasks, budget, seconds,
                priority=priority, earlier=earlier, device=device, model_name=asked.model_name,
            )
        )  # fmt: skip
        tell_waiting(client.devices(), tasks[0].target, job)
    if as_json:
        print_json(job_json(job))
    else:
        print(job.id)


@listing.callback(invoke_without_command=True)
def jobs(
    context: typer.Context,
    tracker: Tracker = "",
    db: Database = "",
    limit: Limit = 20,
    as_json: Json = False,
) -> None:
    """List the latest jobs, of a running farm or of a database, newest first; queue or note one.

    Example: tunefarm jobs --tracker lab1:9190 --limit 5
    """
    context.obj = (tracker, db)
    if context.invoked_subcommand is not None:
        return
    found = _latest(tracker, db, limit)
    if as_json:
        print_json([job_json(job) for job in found])
        return
    nothing = "no jobs yet; `tunefarm tune MODEL` or `tunefarm submit MODEL` starts one"
    print_rows(found, job_columns(found), nothing)


@listing.command()
def retry(
    context: typer.Context,
    job: JobId,
    tracker: Tracker = "",
    db: Database = "",
    as_json: Json = False,
) -> None:
    """Queue a failed or cancelled job again; it goes on from its trials.

    Example: tunefarm jobs retry 4f2a
    """
    from tunefarm.stored import farm_or_database

    before = context.obj or ("", "")
    with farm_or_database(tracker or before[0], db or before[1]) as farm:
        known = farm.job(job)
        after = farm.retry(known.id).state
    if as_json:
        print_json({"job": known.id, "before": known.state, "state": after})
    else:
        print(f"{known.id[:DIGITS]} was {known.state}, and is {after}")


@listing.command()
def note(
    context: typer.Context,
    job: JobId,
    text: Annotated[str, typer.Argument(help='The note; "" takes it away.')],
    tracker: Tracker = "",
    db: Database = "",
    as_json: Json = False,
) -> None:
    """Note something on a job, in place of what was noted before.

    Example: tunefarm jobs note 4f2a "with the new Winograd tiles, on a quiet machine"
    """
    from tunefarm.cli.devices import actor
    from tunefarm.stored import farm_or_database

    before = context.obj or ("", "")
    with farm_or_database(tracker or before[0], db or before[1]) as farm:
        after = farm.note_job(farm.job(job).id, text, actor=actor())
    if as_json:
        print_json({"job": after.id, "note": after.note})
    else:
        print(f"{after.id[:DIGITS]}: {after.note or 'no note'}")


def job_json(job: Job) -> dict[str, object]:
    """A job for scripts; times in seconds, ``created_at`` since the epoch."""
    return {
        "job": job.id,
        "state": job.state,
        "model": job.model_name,
        "created_at": job.created_at,
        "updated_at": job.updated_at,
        "tasks": len(job.tasks),
        "budget_trials": job.budget.trials,
        "budget_s": job.budget.seconds,
        "priority": job.priority,
        "target": job.target,
        "compiler": job.compiler_version,
        "devices": job.selector,
        "owner": job.owner,
        "waits_because": job.unmet,
        "message": job.message,
        "note": job.note,
    }


def result_json(update: JobUpdate, found: Outcome, earlier: int) -> dict[str, object]:
    """What came of a job, for scripts: sums over its tasks, weighted, and each task; in seconds.

    Times are those of what a build gets, None while one of them is not known.
    """
    from tunefarm.updates import model_latency

    default_s, tuned_s = model_latency(found.rows)
    return {
        "job": update.job.id,
        "state": update.job.state,
        "message": update.job.message,
        "earlier": earlier,
        "trials": found.trials,
        "finals": found.finals,
        "errors": update.errors,
        "default_s": default_s or None,
        "tuned_s": tuned_s or None,
        "speedup": default_s / tuned_s if default_s and tuned_s else None,
        "tasks": [
            progress_json(row, status)
            for row, status in zip(found.rows, found.statuses, strict=True)
        ],
    }


def progress_json(row: Progress, status: str) -> dict[str, object]:
    """A task of a job, for scripts."""
    return {
        "task": row.summary,
        "workload": row.task.workload,
        "target": row.task.target,
        "weight": row.weight,
        "flops": row.flops,
        "trials": row.ok + row.failed,
        "failed": row.failed,
        "default_s": row.default_s,
        "tuned_s": row.best_s,
        "speedup": row.speedup,
        "status": status,
    }


def job_columns(found: Sequence[Job]) -> list[Column]:
    """A row a job; the compiler is known once a job has had a device."""
    from tunefarm.tables import Column

    created = [time.strftime("%m-%d %H:%M", time.localtime(j.created_at)) for j in found]
    return [
        Column("job", _shortened([j.id for j in found]), left=True),
        Column("state", [j.state for j in found], rank=8, left=True),
        Column("model", [j.model_name for j in found], rank=7, least=8, left=True),
        Column("created", created, rank=6, left=True),
        Column("tasks", [str(len(j.tasks)) for j in found], rank=4),
        Column("budget", [_budget(j) for j in found], rank=5, left=True),
        Column("priority", [_priority(j) for j in found], rank=1, left=True),
        Column("target", [j.target for j in found], rank=3, least=12, left=True),
        Column("compiler", [j.compiler_version for j in found], rank=2, left=True),
        Column("devices", [j.selector for j in found], rank=1, least=12, left=True),
        Column("message", [j.unmet or j.message for j in found], rank=5, least=12, left=True),
        Column("note", [" ".join(j.note.split()) for j in found], rank=4, least=12, left=True),
    ]


def _shortened(ids: Sequence[str]) -> list[str]:
    """As many first digits as tell the ids apart."""
    digits = DIGITS
    while len({id_[:digits] for id_ in ids}) < len(set(ids)):
        digits += 1
    return [id_[:digits] for id_ in ids]


def _budget(job: Job) -> str:
    """``64 trials, 10:00``: what ends a job; earlier trials of its tasks count."""
    from tunefarm.texts import clock, counted

    text = counted(job.budget.trials, "trial")
    return text if job.budget.seconds is None else f"{text}, {clock(job.budget.seconds)}"


def _priority(job: Job) -> str:
    """``idle`` for what idle devices do, nothing for the usual."""
    from tunefarm.db.records import IDLE

    return "idle" if IDLE in job.options else str(job.priority or "")


def _latest(tracker: str, db: str, limit: int) -> Sequence[Job]:
    from tunefarm.db.store import Store
    from tunefarm.farm import connect
    from tunefarm.stored import told_jobs

    if tracker:
        with connect(tracker) as client:
            return client.jobs(limit=limit)
    source = history_source(db)
    if not isinstance(source, str):
        return ()
    with Store.open(source, readonly=True) as store:
        return told_jobs(store, limit)


def watch(job: JobId, tracker: Tracker = "", db: Database = "", as_json: Json = False) -> None:
    """Follow a job until it is over; Ctrl-C ends the watching, not the job.

    Example: tunefarm watch 4f2a --tracker lab1:9190
    """
    from tunefarm.outcome import outcome, tasks_of
    from tunefarm.progress import showing
    from tunefarm.stored import farm_or_database
    from tunefarm.tables import console, print_sentence
    from tunefarm.updates import age_s, earlier, peak_of

    with farm_or_database(tracker, db) as farm:
        whole = farm.job(job)
        out, before_s = remarks(as_json), age_s(whole, time.time())
        with showing(out, lambda job: peak_of(farm.devices(), job.target), before_s) as show:
            for update in farm.watch(whole.id, wait_s=1.0):
                show(update)
            found = outcome(farm, update, tasks_of(whole))
            show.conclude(found)
    if as_json:
        print_json(result_json(update, found, earlier(update)))
        return
    out = console()
    for sentence in found.sentences(update):
        print_sentence(out, sentence)


def cancel(job: JobId, tracker: Tracker = "", db: Database = "", as_json: Json = False) -> None:
    """Cancel a job; its trials are kept.

    Example: tunefarm cancel 4f2a
    """
    from tunefarm.db.records import OPEN
    from tunefarm.stored import farm_or_database

    with farm_or_database(tracker, db) as farm:
        before = farm.job(job)
        after = farm.cancel(before.id, "cancelled from the command line").state
    if as_json:
        print_json({"job": before.id, "before": before.state, "state": after})
        return
    was_open = before.state in OPEN
    print(str(after) if was_open else f"{before.id[:DIGITS]} was over already: {after}")


def misses(
    tracker: Tracker = "", db: Database = "", limit: Limit = 20, as_json: Json = False
) -> None:
    """List the tasks that builds reported as untuned, those first that are worth most.

    Idle devices tune them: see `tunefarm tracker --idle-trials`.

    Example: tunefarm misses --tracker lab1:9190
    """
    from tunefarm.stored import farm_or_database

    with farm_or_database(tracker, db) as farm:
        found = farm.misses(limit)
        states = {job.id: str(job.state) for job in farm.jobs(limit=1000)}
    if as_json:
        print_json([miss_json(miss, states) for miss in found])
        return
    nothing = "no build has reported an untuned task; `tunefarm build --report-misses` does"
    print_rows(found, miss_columns(found, states), nothing)


def miss_json(miss: Miss, states: Mapping[str, str]) -> dict[str, object]:
    """An untuned task for scripts; times in seconds are a model's, not measured."""
    return {
        "task": miss.workload.summary,
        "workload": miss.workload.key,
        "target": miss.target,
        "weight": miss.weight,
        "default_s": miss.default_s,
        "roofline_s": miss.roofline_s,
        "gain_s": miss.gain_s,
        "builds": miss.builds,
        "reported_at": miss.reported_at,
        "job": miss.job or None,
        "state": states.get(miss.job),
    }


def miss_columns(found: Sequence[Miss], states: Mapping[str, str]) -> list[Column]:
    """A row a task; ``states`` are those of the latest jobs. Times are a model's, not measured."""
    from tunefarm.tables import Column
    from tunefarm.texts import latency

    when = [time.strftime("%m-%d %H:%M", time.localtime(m.reported_at)) for m in found]
    jobs = [f"{m.job[:DIGITS]} {states.get(m.job, '')}".strip() for m in found]
    return [
        Column("task", [m.workload.summary for m in found], least=20, left=True),
        Column("target", [m.target for m in found], rank=3, least=12, left=True),
        Column("weight", [str(m.weight) for m in found], rank=5),
        Column("default", [latency(m.default_s) for m in found], rank=2),
        Column("roofline", [latency(m.roofline_s) for m in found], rank=2),
        Column("gain", [latency(m.gain_s) for m in found], rank=7),
        Column("builds", [str(m.builds) for m in found], rank=4),
        Column("reported", when, rank=1, left=True),
        Column("job", jobs, rank=6, left=True),
    ]
