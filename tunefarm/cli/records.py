"""``tunefarm records``: what the database knows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunefarm.cli.options import (
    TARGET,
    Asked,
    Database,
    Farm,
    Model,
    Precision,
    Shapes,
    TargetText,
    check_output,
    history_source,
)
from tunefarm.cli.printing import Json, print_json, print_rows, remark, remarks
from tunefarm.compiler.errors import TunefarmError

if TYPE_CHECKING:
    from rich.console import Console

    from tunefarm.compiler.decisions import Decision
    from tunefarm.compiler.dispatch import History
    from tunefarm.db.records import Trial
    from tunefarm.db.store import Store

app = typer.Typer(
    help="List, explain, export and import tuning records.\n\n"
    "Example: tunefarm records explain model.onnx",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _open(db: str, readonly: bool = True) -> Store:
    from tunefarm.api import default_database
    from tunefarm.db.store import Store
    from tunefarm.embedded import with_folder

    if not db and readonly and history_source("") == ():
        raise TunefarmError("there are no records yet; `tunefarm tune MODEL` makes some")
    if not db:
        with_folder(default_database())
    return Store.open(db or default_database(), readonly=readonly)


@app.command("list")
def list_(
    db: Database = "",
    target: Annotated[str, typer.Option(metavar=TARGET, help="Only trials of this target.")] = "",
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="How many, newest first.")] = 20,
    failed: Annotated[bool, typer.Option("--failed", help="Only failed trials.")] = False,
    as_json: Json = False,
) -> None:
    """List the newest trials, failed ones too; a pipe gets whole lines.

    Example: tunefarm records list --failed --limit 5
    """
    from tunefarm.tables import Column
    from tunefarm.texts import duration

    with _open(db) as store:
        trials, workloads = _newest(store, target, limit, failed)
    if as_json:
        print_json([trial_json(t, _summary(workloads, t.task.workload)) for t in trials])
        return
    of = f" of {target}" if target else ""
    nothing = f"no {'failed ' if failed else ''}trials{of} in {store.name}"
    when = [time.strftime("%m-%d %H:%M:%S", time.localtime(t.created_at)) for t in trials]
    columns = [
        Column("when", when, rank=3, left=True),
        Column(
            "workload", [_summary(workloads, t.task.workload) for t in trials], least=20, left=True
        ),
        Column("trial", [str(t.number) for t in trials], rank=5),
        Column("latency", [duration(t.median_s) if t.ok else "–" for t in trials], rank=8),
        Column("origin", [t.origin for t in trials], rank=4, left=True),
        Column("config or error", [_outcome(t) for t in trials], rank=7, least=16, left=True),
    ]
    print_rows(trials, columns, nothing)


def trial_json(trial: Trial, summary: str) -> dict[str, object]:
    """A trial for scripts; times in seconds, ``created_at`` since the epoch."""
    return {
        "job": trial.job,
        "task": summary,
        "workload": trial.task.workload,
        "target": trial.task.target,
        "number": trial.number,
        "origin": trial.origin,
        "config": trial.config,
        "latency_s": trial.median_s if trial.ok else None,
        "times_s": trial.times_s,
        "error": trial.error,
        "message": trial.message,
        "device": trial.device,
        "device_model": trial.device_model,
        "compiler": trial.compiler_version,
        "created_at": trial.created_at,
    }


def _newest(
    store: Store, target: str, limit: int, failed: bool
) -> tuple[list[Trial], dict[str, str]]:
    """The newest trials and the texts of their workloads."""
    trials: list[Trial] = []
    workloads: dict[str, str] = {}
    cursor, more = 0, True
    while more and len(trials) < limit:
        page = store.history(target, cursor, limit=1000 if failed else limit)
        trials += [t for t in page.trials if not (failed and t.ok)]
        workloads |= page.workloads
        cursor, more = page.cursor, page.more
    return trials[:limit], workloads


def _outcome(trial: Trial) -> str:
    """The knobs of a trial, or its error."""
    return trial.knobs if trial.error is None else trial.told


def _summary(workloads: Mapping[str, str], key: str) -> str:
    """What a workload computes, or its key if its text is not known."""
    from tunefarm.compiler.workload import Workload

    try:
        return Workload.from_text(workloads.get(key, "")).summary
    except TunefarmError:
        return key[:12]


@app.command()
def best(
    model: Model,
    target: TargetText = "",
    shape: Shapes = None,
    precision: Precision = "",
    db: Database = "",
    tracker: Farm = "",
    as_json: Json = False,
) -> None:
    """Show the best config of each task of a model.

    Example: tunefarm records best model.onnx
    """
    from tunefarm.tables import console
    from tunefarm.texts import duration, knobs

    asked = Asked(model, target, shape, precision, db, tracker)
    decisions = _history(asked, remarks(as_json)).decisions.values()
    if as_json:
        print_json([decision_json(decision) for decision in decisions])
        return
    out = console()
    for decision in decisions:
        found = decision.found.best if decision.found is not None else None
        timed = f", {duration(found.latency_s)}" if found is not None and decision.settled else ""
        out.print(f"{decision.status:<10} {decision.workload.summary}{timed}", soft_wrap=True)
        out.print(f"{'':10} {knobs(decision.config)}", soft_wrap=True)


@app.command()
def explain(
    model: Model,
    target: TargetText = "",
    shape: Shapes = None,
    precision: Precision = "",
    db: Database = "",
    tracker: Farm = "",
    as_json: Json = False,
) -> None:
    """Explain, for each task of a model, which record a build would use and why.

    Example: tunefarm records explain model.onnx --tracker lab1:9190
    """
    from tunefarm.tables import console, print_sentence

    history = _history(Asked(model, target, shape, precision, db, tracker), remarks(as_json))
    if as_json:
        print_json([decision_json(decision) for decision in history.decisions.values()])
        return
    print_sentence(console(), history.explain())


def decision_json(decision: Decision) -> dict[str, object]:
    """What a build uses for a task, for scripts; None for a record's facts where it uses none."""
    used = decision.found.best if decision.found is not None and decision.settled else None
    return {
        "task": decision.workload.summary,
        "workload": decision.workload.key,
        "target": str(decision.target),
        "status": decision.status,
        "reason": decision.reason,
        "config": decision.config,
        "latency_s": used.latency_s if used is not None else None,
        "speedup": used.speedup_over_default if used is not None else None,
        "device_model": used.key.device_model if used is not None else None,
    }


def _history(asked: Asked, out: Console) -> History:
    """The history of a model's tasks, each looked up; an error if its database does not exist. A
    precision that changes nothing is told to ``out``."""
    from tunefarm import api
    from tunefarm.compiler.from_memory import counts_of

    if asked.db and not asked.tracker:
        _open(asked.db).close()
    found = asked.tasks()
    asked.in_use((t.workload for t in found), out)
    with api.apply_history_best(asked.source()) as history:
        if found:
            history.lookup([t.workload for t in found], found[0].target, counts_of(found))
    return history


@app.command()
def export(
    output: Annotated[Path, typer.Argument(metavar="FILE", help="JSON-lines file to write.")],
    db: Database = "",
    best_only: Annotated[
        bool, typer.Option("--best-only", help="Best records and their defaults only.")
    ] = False,
    starter: Annotated[
        bool, typer.Option("--starter", help="Only what a package would ship: clear winners.")
    ] = False,
    target: Annotated[str, typer.Option(metavar=TARGET, help="Only records of this target.")] = "",
    as_json: Json = False,
) -> None:
    """Write records to a JSON-lines file.

    Example: tunefarm records export best.jsonl --best-only
    """
    from tunefarm.db.transfer import export_file, export_starter
    from tunefarm.texts import counted

    if starter and (best_only or target):
        raise TunefarmError("--starter chooses by itself; leave --best-only and --target out")
    check_output(output)
    with _open(db) as store:
        if starter:
            count = export_starter(store, output)
        else:
            count = export_file(store, output, best_only=best_only, target=target)
    if as_json:
        print_json({"file": output.absolute(), "trials": count})
        return
    remark(f"wrote {counted(count, 'trial')} to {output}")


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="JSON-lines file to read.")],
    db: Database = "",
    as_json: Json = False,
) -> None:
    """Read records from a JSON-lines file; those that are known already are passed over.

    Example: tunefarm records import best.jsonl --db farm.db
    """
    import sys

    from tunefarm.db.transfer import import_file
    from tunefarm.texts import counted

    with _open(db, readonly=False) as store:
        done = import_file(store, source)
    for problem in done.problems:
        print(problem, file=sys.stderr)
    if not done.added + done.known:
        raise TunefarmError(f"{source} holds no trials; give what `tunefarm records export` wrote")
    if as_json:
        print_json(
            {
                "added": done.added,
                "known": done.known,
                "targets": sorted(done.targets),
                "problems": done.problems,
            }
        )
        return
    targets = ", ".join(sorted(done.targets))
    where = f"; {targets}" if targets else ""
    known = f"{done.known} {'was' if done.known == 1 else 'were'} known"
    remark(f"added {counted(done.added, 'trial')}, {known}{where}")
