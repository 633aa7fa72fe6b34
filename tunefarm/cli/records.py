"""``tunefarm records``: what the database knows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunefarm.cli.options import (
    Database,
    Model,
    Shapes,
    TargetText,
    history_source,
    parse_shapes,
)

if TYPE_CHECKING:
    from tunefarm.db.store import Store

app = typer.Typer(
    help="List, explain, export and import tuning records.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _open(db: str, readonly: bool = True) -> Store:
    from tunefarm.api import default_database
    from tunefarm.db.store import Store

    return Store.open(db or default_database(), readonly=readonly)


@app.command("list")
def list_(
    db: Database = "",
    target: Annotated[str, typer.Option(help="Only trials of this target.")] = "",
    limit: Annotated[int, typer.Option(help="How many, newest first.")] = 20,
) -> None:
    """List the newest trials, failed ones too."""
    from rich.console import Console
    from rich.table import Table

    from tunefarm.progress import duration

    with _open(db) as store:
        page = store.history(target, limit=limit)
    table = Table()
    for column in ("when", "workload", "no", "latency", "origin", "config or error"):
        table.add_column(column, overflow="fold")
    for trial in page.trials:
        outcome = " ".join(f"{k}={v}" for k, v in trial.config.items() if k != "sketch")
        if trial.error is not None:
            outcome = f"{trial.error}: {trial.message}"
        table.add_row(
            time.strftime("%m-%d %H:%M:%S", time.localtime(trial.created_at)),
            _summary(page.workloads.get(trial.task.workload, ""), trial.task.workload),
            str(trial.number),
            duration(trial.median_s) if trial.ok else "–",
            trial.origin,
            outcome,
        )
    Console().print(table)


def _summary(text: str, key: str) -> str:
    """What a workload computes, or its key if its text is not known."""
    from tunefarm.compiler.errors import TunefarmError
    from tunefarm.compiler.workload import Workload

    try:
        return Workload.from_text(text).summary
    except TunefarmError:
        return key[:12]


@app.command()
def best(
    model: Model,
    target: TargetText = "",
    shape: Shapes = None,
    db: Database = "",
) -> None:
    """Show the best config of each task of a model."""
    from rich.console import Console

    from tunefarm import api

    found = api.extract_tasks(api.from_onnx(model, parse_shapes(shape)), target or None)
    console = Console()
    with api.apply_history_best(history_source(db)) as history:
        for decision in history.lookup([t.workload for t in found], api.as_target(target or None)):
            config = " ".join(f"{k}={v}" for k, v in decision.config.items())
            console.print(
                f"{decision.status:<10} {decision.workload.summary}\n           {config}",
                highlight=False, soft_wrap=True,
            )  # fmt: skip


@app.command()
def explain(
    model: Model,
    target: TargetText = "",
    shape: Shapes = None,
    db: Database = "",
) -> None:
    """Explain, for each task of a model, which record a build would use and why."""
    from rich.console import Console

    from tunefarm import api

    found = api.extract_tasks(api.from_onnx(model, parse_shapes(shape)), target or None)
    with api.apply_history_best(history_source(db)) as history:
        history.lookup([t.workload for t in found], api.as_target(target or None))
    Console().print(history.explain(), highlight=False, soft_wrap=True)


@app.command()
def export(
    output: Annotated[Path, typer.Argument(help="JSON-lines file to write.")],
    db: Database = "",
    best_only: Annotated[
        bool, typer.Option("--best-only", help="Best records and their defaults only.")
    ] = False,
    target: Annotated[str, typer.Option(help="Only records of this target.")] = "",
) -> None:
    """Write records to a JSON-lines file."""
    from tunefarm.db.transfer import export_file

    with _open(db) as store:
        count = export_file(store, output, best_only=best_only, target=target)
    print(f"wrote {count} trials to {output}")


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(help="JSON-lines file to read.")],
    db: Database = "",
) -> None:
    """Read records from a JSON-lines file; those that are known already are passed over."""
    import sys

    from tunefarm.db.transfer import import_file

    with _open(db, readonly=False) as store:
        done = import_file(store, source)
    for problem in done.problems:
        print(problem, file=sys.stderr)
    targets = ", ".join(sorted(done.targets))
    where = f"; {targets}" if targets else ""
    print(f"added {done.added} trials, {done.known} were known{where}")
