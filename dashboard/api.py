"""The JSON API, documented at ``/api/openapi.json``."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from tunefarm.dashboard.code import Code, Coder, Kind
from tunefarm.dashboard.datasets import Dataset
from tunefarm.dashboard.paging import PAGE_ROWS, Page
from tunefarm.dashboard.queries import (
    curves,
    devices,
    failures,
    jobs,
    models,
    overview,
    records,
    roofs,
    settled,
    slices,
    trials,
)
from tunefarm.dashboard.queries.several import in_one_chart
from tunefarm.dashboard.requests import (
    After,
    Chosen,
    Cursor,
    Format,
    Hours,
    Limit,
    Order,
    Reading,
    Text,
    chosen_tasks,
    courses_of,
    curves_of,
    model_of,
    record_of,
    sent,
)
from tunefarm.dashboard.spaces import Gap, gaps
from tunefarm.db.records import JobState

router = APIRouter(prefix="/api/v1")

_DATASET: dict[int | str, dict[str, Any]] = {
    200: {"model": Dataset, "content": {"text/csv": {"schema": {"type": "string"}}}}
}
TaskOf = Annotated[int | None, Query(description="Position of a task of the job; all if none.")]


@router.get("/overview", tags=["farm"])
def get_overview(db: Reading) -> overview.Totals:
    """Counts of the database, and what failed among the newest trials."""
    return overview.totals(db)


@router.get("/wins", tags=["farm"])
def list_wins(db: Reading, limit: Limit = overview.WINS) -> tuple[overview.Win, ...]:
    """The latest records that were promoted, newest first."""
    return overview.wins(db, limit)


@router.get("/jobs", tags=["jobs"])
def list_jobs(
    db: Reading,
    q: Text = "",
    state: Annotated[list[JobState] | None, Query(description="Repeatable.")] = None,
    cursor: Cursor = "",
    limit: Limit = PAGE_ROWS,
) -> Page[jobs.JobLine]:
    """Jobs, newest first."""
    states = [str(one) for one in state or ()]
    return jobs.jobs(db, states=states, text=q, cursor=cursor, limit=limit)


@router.get("/jobs/{job}", tags=["jobs"])
def get_job(db: Reading, job: str) -> jobs.JobLine:
    """One job, by its id or the first characters of it."""
    return jobs.job(db, job)


@router.get("/jobs/{job}/tasks", tags=["jobs"])
def list_job_tasks(db: Reading, job: str) -> tuple[jobs.TaskLine, ...]:
    """The tasks of a job: weight, counts, default and best latency."""
    return jobs.tasks(db, jobs.job(db, job).id)


@router.get("/jobs/{job}/outcome", tags=["jobs"])
def get_outcome(db: Reading, job: str) -> settled.Outcome:
    """What builds got of the tasks of a job at its end; while it is open, the fastest seen."""
    found = jobs.job(db, job)
    return settled.outcome(db, found, jobs.tasks(db, found.id))


@router.get("/jobs/{job}/best-so-far", tags=["charts"], responses=_DATASET)
def get_best_so_far(
    request: Request,
    db: Reading,
    job: str,
    task: TaskOf = None,
    after: After = 0,
    format: Format = Format.JSON,
) -> Response:
    """Each candidate that was faster than all of its task before."""
    found = jobs.job(db, job)
    chosen = chosen_tasks(jobs.tasks(db, found.id), task)
    return sent(curves_of(request, db, found, chosen).best_so_far(after), format)


@router.get("/jobs/{job}/points", tags=["charts"], responses=_DATASET)
def get_points(
    request: Request,
    db: Reading,
    job: str,
    task: TaskOf = None,
    after: After = 0,
    step: Annotated[int, Query(ge=0, description="The note of the rows up to `after`.")] = 0,
    format: Format = Format.JSON,
) -> Response:
    """Trials with sketch, score and latency, evenly chosen where there are many; those up to
    `after` are left out if the note `step` is still what it was."""
    found = jobs.job(db, job)
    chosen = chosen_tasks(jobs.tasks(db, found.id), task)
    return sent(curves_of(request, db, found, chosen).points(after, step), format)


@router.get("/jobs/{job}/roofline", tags=["charts"], responses=_DATASET)
def get_roofline(db: Reading, job: str, format: Format = Format.JSON) -> Response:
    """Operations a byte and a second of each task, and the roofs of the device."""
    found = jobs.job(db, job)
    return sent(roofs.roofline(db, found, jobs.tasks(db, found.id)), format)


@router.get("/jobs/{job}/wall-time", tags=["jobs"])
def get_wall_time(db: Reading, job: str) -> curves.WallTime:
    """Where the time of a job went."""
    return curves.wall_time(db, jobs.job(db, job))


@router.get("/curves", tags=["charts"], responses=_DATASET)
def get_curves(
    request: Request,
    db: Reading,
    job: Chosen,
    workload: Annotated[Text, Query(description="First digits of a task's key.")] = "",
    format: Format = Format.JSON,
) -> Response:
    """How several jobs brought down the time of their tasks, or of one that they share."""
    return sent(in_one_chart(courses_of(request, db, job, workload)[0]), format)


@router.get("/trials", tags=["trials"])
def list_trials(
    db: Reading,
    job: Text = "",
    workload_id: int | None = None,
    target_id: int | None = None,
    outcome: Annotated[Text, Query(description="ok, failed, or an error kind.")] = "",
    q: Text = "",
    order: Annotated[Order, Query(description="fastest: of a job or a task.")] = Order.NEWEST,
    cursor: Cursor = "",
    limit: Limit = PAGE_ROWS,
) -> Page[trials.TrialLine]:
    """Trials, newest first: of a job, of a task, or all."""
    named = jobs.job(db, job).id if job else ""
    task = (workload_id, target_id) if workload_id is not None and target_id is not None else None
    return trials.trials(
        db, job=named, task=task, outcome=outcome, text=q, fastest=order is Order.FASTEST,
        cursor=cursor, limit=limit,
    )  # fmt: skip


@router.get("/jobs/{job}/trials", tags=["charts"], responses=_DATASET)
def get_job_trials(db: Reading, job: str, format: Format = Format.JSON) -> Response:
    """Every trial of a job with its knobs, a column each; of the newest 100,000."""
    return sent(trials.whole(db, job=jobs.job(db, job).id), format)


@router.get("/tasks/{workload}/{target_id}/trials", tags=["charts"], responses=_DATASET)
def get_task_trials(
    db: Reading, workload: str, target_id: int, format: Format = Format.JSON
) -> Response:
    """Every trial of a task with its knobs, a column each; of the newest 100,000."""
    found = records.task(db, workload, target_id)
    return sent(trials.whole(db, job="", task=(found.workload_id, found.target_id)), format)


@router.get("/devices", tags=["farm"])
def list_devices(db: Reading, q: Text = "") -> tuple[devices.DeviceLine, ...]:
    """Every device that ever registered; ``busy`` is of the last day."""
    return devices.devices(db, text=q)


@router.get("/devices/{device}", tags=["farm"])
def get_device(db: Reading, device: str) -> devices.DeviceLine:
    """One device."""
    return devices.device(db, device)


@router.get("/devices/{device}/drift", tags=["charts"], responses=_DATASET)
def get_drift(db: Reading, device: str, format: Format = Format.JSON) -> Response:
    """The reference loop's time against its first, over the device's latest jobs."""
    return sent(devices.drift(db, devices.device(db, device).id), format)


@router.get("/devices/{device}/checks", tags=["charts"], responses=_DATASET)
def get_checks(db: Reading, device: str, format: Format = Format.JSON) -> Response:
    """What the latest checks of a device found; a reason says in what it was unlike itself."""
    return sent(devices.checks(db, devices.device(db, device).id), format)


@router.get("/leases", tags=["charts"], responses=_DATASET)
def get_leases(
    db: Reading, hours: Hours = 24, device: Text = "", format: Format = Format.JSON
) -> Response:
    """Who held which device within the last hours."""
    return sent(devices.leases_of(db, 3600.0 * hours, device), format)


@router.get("/failures", tags=["trials"])
def list_failures(
    db: Reading,
    job: Text = "",
    error: Annotated[Text, Query(description="An error kind.")] = "",
    q: Text = "",
    cursor: Cursor = "",
) -> failures.Failures:
    """Failed trials by cause and message, among the newest."""
    named = jobs.job(db, job).id if job else ""
    return failures.failures(db, job=named, error=error, text=q, cursor=cursor)


# --- models --------------------------------------------------------------------------------------


@router.get("/models", tags=["models"])
def list_models(
    db: Reading, q: Text = "", cursor: Cursor = "", limit: Limit = PAGE_ROWS
) -> Page[models.Model]:
    """Models with their tasks, those that were tuned or built last first."""
    return models.models(db, text=q, cursor=cursor, limit=limit)


@router.get("/models/{digest}/{target_id}", tags=["models"])
def get_model(db: Reading, digest: str, target_id: int) -> models.Model:
    """A model by the digest of its tasks, on a target by its number."""
    return models.model(db, digest, target_id)


@router.get("/models/{digest}/{target_id}/tasks", tags=["charts"], responses=_DATASET)
def get_model_tasks(
    db: Reading, digest: str, target_id: int, format: Format = Format.JSON
) -> Response:
    """The tasks of a model: weight, default latency and that of the record, share of a run."""
    return sent(models.tasks_data(models.model(db, digest, target_id)), format)


@router.get("/models/{digest}/{target_id}/roofline", tags=["charts"], responses=_DATASET)
def get_model_roofline(
    db: Reading, digest: str, target_id: int, format: Format = Format.JSON
) -> Response:
    """Operations a byte and a second of each task, and the roofs of the device."""
    found = models.model(db, digest, target_id)
    return sent(roofs.under_roofs(db, found.tasks, models.peaks(db, found)), format)


@router.get("/models/{digest}/{target_id}/gaps", tags=["models"])
def list_gaps(request: Request, digest: str, target_id: int) -> tuple[Gap, ...]:
    """Tasks without a record, and those whose record is of another space than the compiler's that
    is installed where the dashboard runs."""
    found, texts = model_of(request, digest, target_id)
    return gaps(found, texts, request.app.state.spaces)


# --- tasks and records ---------------------------------------------------------------------------


@router.get("/tasks", tags=["tasks"])
def list_tasks(
    db: Reading, q: Text = "", cursor: Cursor = "", limit: Limit = PAGE_ROWS
) -> Page[records.Task]:
    """Tasks over all jobs, those of the newest workloads first."""
    return records.tasks(db, text=q, cursor=cursor, limit=limit)


@router.get("/tasks/{workload}/{target_id}", tags=["tasks"])
def get_task(db: Reading, workload: str, target_id: int) -> records.Task:
    """A task, by the first digits of its workload's key and the number of its target."""
    return records.task(db, workload, target_id)


@router.get("/tasks/{workload}/{target_id}/history", tags=["charts"], responses=_DATASET)
def get_history(
    db: Reading, workload: str, target_id: int, format: Format = Format.JSON
) -> Response:
    """Measured candidates of all jobs, evenly chosen where there are many."""
    return sent(records.history(db, records.task(db, workload, target_id)), format)


@router.get("/tasks/{workload}/{target_id}/knobs", tags=["charts"], responses=_DATASET)
def get_knobs(db: Reading, workload: str, target_id: int, format: Format = Format.JSON) -> Response:
    """How much of the variance of log latency each knob explains alone, within its sketch."""
    return sent(records.knob_data(db, records.task(db, workload, target_id)), format)


@router.get("/tasks/{workload}/{target_id}/slices", tags=["charts"], responses=_DATASET)
def get_slices(
    db: Reading, workload: str, target_id: int, format: Format = Format.JSON
) -> Response:
    """Latency beside the value of every knob, of candidates evenly chosen where there are many."""
    return sent(slices.slices(db, records.task(db, workload, target_id)), format)


@router.get("/tasks/{workload}/{target_id}/best-configs", tags=["charts"], responses=_DATASET)
def get_best_configs(
    db: Reading, workload: str, target_id: int, format: Format = Format.JSON
) -> Response:
    """The fastest distinct configs of the fastest sketch."""
    return sent(records.config_data(db, records.task(db, workload, target_id)), format)


@router.get("/tasks/{workload}/{target_id}/records", tags=["tasks"])
def list_standings(db: Reading, workload: str, target_id: int) -> tuple[records.Standing, ...]:
    """Records that builds may use."""
    return records.standings(db, records.workload_id(db, workload), target_id)


@router.get("/compare/{workload}", tags=["charts"], responses=_DATASET)
def get_comparison(db: Reading, workload: str, format: Format = Format.JSON) -> Response:
    """The records of a workload on all targets, device models and compiler versions."""
    return sent(records.comparison(db, records.workload_id(db, workload)), format)


@router.get("/trials/{id}", tags=["trials"])
def get_trial(db: Reading, id: int) -> records.Record:
    """A trial with all repeats, its workload, and what a final said of it."""
    return records.record(db, id)


@router.get("/trials/{id}/code", tags=["trials"])
def get_code(request: Request, id: int, kind: Kind = Kind.SCHEDULED) -> Code:
    """The program or the code of a config, made again by the present compiler."""
    coder: Coder = request.app.state.coder
    record = record_of(request, id)
    return coder.code(record.trial, record.workload_text, kind)
