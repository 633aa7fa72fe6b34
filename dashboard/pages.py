"""The pages: each reads what it shows and fills a template."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import Connection
from tunefarm.dashboard import pictures
from tunefarm.dashboard.actions import choices
from tunefarm.dashboard.code import Code, CodeError, Coder, Kind, diff, reproduction
from tunefarm.dashboard.live import farm_mark, job_mark
from tunefarm.dashboard.queries import (
    curves,
    devices,
    failures,
    jobs,
    models,
    overview,
    records,
    roofs,
    trials,
)
from tunefarm.dashboard.queries.settled import Outcome
from tunefarm.dashboard.queries.several import MOST, in_one_chart
from tunefarm.dashboard.rendering import render
from tunefarm.dashboard.report import report
from tunefarm.dashboard.requests import (
    Chosen,
    Cursor,
    Curves,
    Hours,
    Order,
    Reading,
    Text,
    chosen_tasks,
    courses_of,
    curves_of,
    model_of,
    record_of,
)
from tunefarm.dashboard.spaces import Gap, gaps
from tunefarm.db.jobs import MAX_NOTE
from tunefarm.db.records import HEALTH, OPEN, ErrorKind, JobState

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/")
def show_overview(request: Request, db: Reading, part: Text = "") -> Response:
    open_jobs = jobs.jobs(db, states=[str(s) for s in OPEN], limit=12)
    recent = () if open_jobs.rows else jobs.jobs(db, limit=5).rows
    return render(
        request,
        "overview.html",
        mark=farm_mark(db),
        totals=overview.totals(db),
        open_jobs=open_jobs,
        recent_jobs=recent,
        devices=devices.devices(db),
        wins=overview.wins(db),
        models=() if part else models.models(db, limit=5).rows,
    )


@router.get("/jobs")
def list_jobs(
    request: Request, db: Reading, q: Text = "", state: str = "", cursor: Cursor = ""
) -> Response:
    states = [state] if state else []
    page = jobs.jobs(db, states=states, text=q, cursor=cursor)
    return render(
        request,
        "jobs.html",
        page=page,
        q=q,
        state=state,
        states=[str(s) for s in JobState],
        most=MOST,
    )


@router.get("/jobs/curves")
def show_curves(request: Request, db: Reading, job: Chosen, workload: Text = "") -> Response:
    courses, common = courses_of(request, db, job, workload)
    ids = [course.job.id[:8] for course in courses]
    first = courses[0].job
    model = (first.model, first.target_id) if first.model else None
    near = jobs.jobs(db, model=model, text="" if model else first.main, limit=12).rows
    query = urlencode([*(("job", id_) for id_ in ids), ("workload", workload)])
    return render(
        request,
        "curves.html",
        courses=courses,
        ids=ids,
        common=common,
        task=next((t for t in common if workload and t.workload.startswith(workload)), None),
        alike=in_one_chart(courses).notes["measure"] == "latency_s",
        others=[job for job in near if job.id[:8] not in ids],
        data=f"/api/v1/curves?{query}",
    )


@router.get("/jobs/{name}")
def show_job(
    request: Request, db: Reading, name: str, task: int | None = None, part: Text = ""
) -> Response:
    job = jobs.job(db, name)
    if part == "actions":
        return render(
            request, "job.html", job=job, choices=choices(request, job), max_note=MAX_NOTE
        )
    tasks = jobs.tasks(db, job.id)
    chosen = chosen_tasks(tasks, task)
    whole = curves_of(request, db, job, tasks)
    shown: dict[str, Any] = {
        "job": job,
        "came": whole.outcome,
        "task": chosen[0] if task is not None else None,
    }
    if part != "tables":
        shown |= _standing(db, whole)
    if part != "now":
        shown |= _results(db, job, whole.outcome)
    if part:
        return render(request, "job.html", **shown)
    heaviest = [result.task for result in whole.outcome.results]
    return render(
        request,
        "job.html",
        **shown,
        mark=job_mark(db, job.id),
        tasks=heaviest,
        names=[(one.position, one.summary) for one in heaviest],
        ranking=curves_of(request, db, job, chosen).ranking,
        choices=choices(request, job),
        max_note=MAX_NOTE,
    )


def _standing(db: Connection, whole: Curves) -> dict[str, Any]:
    """How far a job is."""
    job = whole.job
    return {
        "wall": whole.wall_time,
        "recent_gain": curves.recent_gain(whole.best_so_far()),
        "pace": jobs.pace(db, job.id) if job.state == JobState.RUNNING else None,
    }


def _results(db: Connection, job: jobs.JobLine, came: Outcome) -> dict[str, Any]:
    """The tables of a job: what came of its tasks, and its latest trials."""
    return {
        "total_s": sum(result.time_s for result in came.results),
        "peak_flops": roofs.peaks(db, job).get("flops_n"),
        "latest": trials.trials(db, job=job.id, limit=8),
    }


@router.get("/jobs/{name}/report.html")
def download_report(db: Reading, name: str) -> Response:
    job = jobs.job(db, name)
    headers = {"Content-Disposition": f'attachment; filename="job-{job.id[:8]}.html"'}
    return HTMLResponse(report(db, job), headers=headers)


@router.get("/trials")
def list_trials(
    request: Request,
    db: Reading,
    job: Text = "",
    workload: int | None = None,
    target: int | None = None,
    outcome: Text = "",
    q: Text = "",
    order: Order = Order.NEWEST,
    cursor: Cursor = "",
) -> Response:
    named = jobs.job(db, job).id if job else ""
    task = (workload, target) if workload is not None and target is not None else None
    page = trials.trials(
        db, job=named, task=task, outcome=outcome, text=q, fastest=order is Order.FASTEST,
        cursor=cursor,
    )  # fmt: skip
    return render(
        request, "trials.html", page=page, job=named, task=task, outcome=outcome, q=q, order=order,
        outcomes=["ok", "failed", *(str(kind) for kind in ErrorKind)],
    )  # fmt: skip


@router.get("/tasks")
def list_tasks(request: Request, db: Reading, q: Text = "", cursor: Cursor = "") -> Response:
    return render(request, "tasks.html", page=records.tasks(db, text=q, cursor=cursor), q=q)


@router.get("/tasks/{workload}/{target_id}")
def show_task(request: Request, db: Reading, workload: str, target_id: int) -> Response:
    task = records.task(db, workload, target_id)
    configs = records.best_configs(db, task)
    pair = (task.workload_id, task.target_id)
    users = models.users(db, *pair)
    return render(
        request,
        "task.html",
        task=task,
        standings=records.standings(db, *pair),
        knobs=records.knobs(db, task),
        configs=configs,
        lines=pictures.parallel_coordinates(configs),
        latest=trials.trials(db, task=pair, limit=8),
        users=users,
        names={model.digest: model.name for model, _ in users},
    )


@router.get("/models")
def list_models(request: Request, db: Reading, q: Text = "", cursor: Cursor = "") -> Response:
    return render(request, "models.html", page=models.models(db, text=q, cursor=cursor), q=q)


@router.get("/models/{digest}/{target_id}")
def show_model(request: Request, db: Reading, digest: str, target_id: int) -> Response:
    model = models.model(db, digest, target_id)
    return render(
        request,
        "model.html",
        model=model,
        tasks=sorted(model.tasks, key=lambda task: -(task.time_s or 0)),
        relatives=models.relatives(db, model),
        peak_flops=models.peaks(db, model).get("flops_n"),
        jobs=jobs.jobs(db, model=(digest, target_id), limit=12),
        most=MOST,
    )


@router.get("/models/{digest}/{target_id}/gaps")
def show_gaps(request: Request, digest: str, target_id: int) -> Response:
    model, texts = model_of(request, digest, target_id)
    found: tuple[Gap, ...] = ()
    try:
        found, why = gaps(model, texts, request.app.state.spaces), ""
    except CodeError as error:
        why = str(error)
    return render(request, "gaps.html", model=model, gaps=found, why=why)


@router.get("/trials/{id}")
def show_trial(request: Request, db: Reading, id: int) -> Response:
    record = records.record(db, id)
    return render(request, "trial.html", record=record, trial=record.trial, kinds=list(Kind))


@router.get("/trials/{id}/reproduce.py")
def reproduce(db: Reading, id: int) -> Response:
    record = records.record(db, id)
    headers = {"Content-Disposition": f'attachment; filename="trial-{id}.py"'}
    program = reproduction(record.trial, record.workload_text, id)
    return Response(program, media_type="text/x-python; charset=utf-8", headers=headers)


@router.get("/trials/{id}/code")
def show_code(request: Request, id: int, kind: Kind = Kind.SCHEDULED) -> Response:
    code, why = _code(request, record_of(request, id), kind)
    return render(request, "code.html", code=code, why=why, kind=kind, id=id)


@router.get("/diff")
def show_diff(request: Request, a: int, b: int, kind: Kind | None = None) -> Response:
    first, second = record_of(request, a), record_of(request, b)
    lines, why = None, ""
    if kind is not None:
        codes = [_code(request, one, kind) for one in (first, second)]
        told = [f"trial {id}: {why}" for id, (_, why) in zip((a, b), codes, strict=True) if why]
        why = "; ".join(told)
        if not why:
            lines = diff(*(code.text for code, _ in codes if code is not None))
    names = sorted({*first.trial.config, *second.trial.config})
    return render(
        request, "diff.html", first=first, second=second, names=names, lines=lines, why=why,
        kind=kind, kinds=list(Kind),
    )  # fmt: skip


@router.get("/compare/{workload}")
def compare(request: Request, db: Reading, workload: str) -> Response:
    id_ = records.workload_id(db, workload)
    return render(
        request,
        "compare.html",
        workload=records.workload(db, id_),
        standings=sorted(records.standings(db, id_), key=lambda one: one.median_s),
        results=records.results(db, id_),
    )


def _code(request: Request, record: records.Record, kind: Kind) -> tuple[Code | None, str]:
    """The code of a record, or why there is none."""
    coder: Coder = request.app.state.coder
    try:
        return coder.code(record.trial, record.workload_text, kind), ""
    except CodeError as error:
        return None, str(error)


@router.get("/devices")
def list_devices(request: Request, db: Reading, q: Text = "", hours: Hours = 24) -> Response:
    now, window_s = time.time(), 3600.0 * hours
    held = devices.timeline(db, window_s)
    return render(
        request,
        "devices.html",
        devices=devices.devices(db, text=q, window_s=window_s),
        lanes=pictures.lanes(held, window_s, now),
        ticks=pictures.ticks(window_s, now),
        hours=hours,
        q=q,
    )


@router.get("/devices/{name}")
def show_device(request: Request, db: Reading, name: str) -> Response:
    now, window_s = time.time(), devices.DAY_S
    device = devices.device(db, name)
    held = devices.timeline(db, window_s, name)
    return render(
        request,
        "device.html",
        device=device,
        checks=devices.checks(db, name).columns,
        quarantine=HEALTH,
        held=held,
        lanes=pictures.lanes(held, window_s, now),
        ticks=pictures.ticks(window_s, now),
        now=now,
    )


@router.get("/failures")
def list_failures(
    request: Request,
    db: Reading,
    job: Text = "",
    error: Text = "",
    q: Text = "",
    cursor: Cursor = "",
) -> Response:
    named = jobs.job(db, job).id if job else ""
    found = failures.failures(db, job=named, error=error, text=q, cursor=cursor)
    kinds = [str(kind) for kind in ErrorKind]
    return render(request, "failures.html", found=found, job=named, error=error, q=q, kinds=kinds)


@router.get("/api")
def show_api(request: Request) -> Response:
    return render(request, "api.html", schema=request.app.openapi())
