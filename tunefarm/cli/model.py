"""``tunefarm tune``, ``build``, ``bench`` and ``tasks``: commands on one model."""

from __future__ import annotations

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
    from rich.console import Console

    from tunefarm.tuning import Tuned


def register(app: typer.Typer) -> None:
    for command in (tune, build, bench, tasks):
        app.command()(command)


def tune(
    model: Model,
    target: TargetText = "",
    shape: Shapes = None,
    trials: Annotated[
        int | None, typer.Option(help="Trials over all tasks, earlier ones count [64 a task].")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Wall-clock limit.")] = None,
    db: Annotated[str, typer.Option(help="Database of an embedded farm.")] = "",
    tracker: Annotated[str, typer.Option(help="HOST:PORT of a running farm.")] = "",
    search: Annotated[
        str, typer.Option(help="xgb-genetic, genetic, droplet, random or grid.")
    ] = "xgb-genetic",
    seed: Annotated[int, typer.Option(help="Seed of the search.")] = 0,
) -> None:
    """Tune a model: search for the fastest code of each of its subgraphs on real devices.

    Starts a tracker, a worker and a tuner on this machine, unless --tracker names a farm.
    """
    from rich.console import Console

    from tunefarm.api import extract_tasks, from_onnx
    from tunefarm.progress import showing
    from tunefarm.tuning import tune as run

    console = Console()
    found = extract_tasks(from_onnx(model, parse_shapes(shape)), target or None)
    if not found:
        console.print(f"{model} has no subgraph that is worth tuning")
        return
    budget = trials if trials is not None else 64 * len(found)
    console.print(
        f"{model.name}: {len(found)} tasks for {found[0].target}, {budget} trials", highlight=False
    )
    with showing(console) as watch:
        result = run(
            found,
            db=db or None,
            tracker=tracker or None,
            trials=budget,
            seconds=None if minutes is None else 60 * minutes,
            search=search,
            seed=seed,
            watch=watch,
        )
    _conclude(console, result, budget, model)


def _conclude(console: Console, result: Tuned, budget: int, model: Path) -> None:
    from tunefarm.progress import errors_text, model_latency

    if result.last is None:
        console.print(
            f"nothing to do: the database has {result.earlier} trials of these tasks, "
            f"and the budget is {budget}; raise --trials to go on",
            highlight=False,
        )
        return
    default, best = model_latency(result.last.progress)
    gain = f": {default * 1e3:.3f} ms → {best * 1e3:.3f} ms over the tasks" if best else ""
    errors = f"; failed: {errors_text(result.last.errors)}" if result.last.errors else ""
    console.print(f"{result.trials} trials{gain}{errors}", highlight=False)
    console.print(f"next: tunefarm build {model} -o {model.stem}.so", highlight=False)


def build(
    model: Model,
    output: Annotated[Path, typer.Option("-o", "--output", help="Library to write.")],
    target: TargetText = "",
    shape: Shapes = None,
    db: Database = "",
    tracker: Annotated[str, typer.Option(help="HOST:PORT of a running farm.")] = "",
    strict: Annotated[bool, typer.Option("--strict", help="Fail on an untuned task.")] = False,
) -> None:
    """Build a model with the best records into a library (.so with a C header)."""
    from rich.console import Console

    from tunefarm import api

    console = Console()
    mod = api.from_onnx(model, parse_shapes(shape))
    with api.apply_history_best(history_source(db, tracker), strict=strict) as history:
        lib = api.build(mod, target or None)
    lib.export_library(output)
    console.print(history.summary(f"tunefarm tune {model}"), highlight=False, soft_wrap=True)
    console.print(f"wrote {output} and {output.with_suffix('.h')}", highlight=False)


def tasks(
    model: Model,
    target: TargetText = "",
    shape: Shapes = None,
    db: Database = "",
) -> None:
    """List the tasks of a model: how often each runs, its FLOPs, what the database knows."""
    from rich.console import Console
    from rich.table import Table

    from tunefarm import api

    found = api.extract_tasks(api.from_onnx(model, parse_shapes(shape)), target or None)
    with api.apply_history_best(history_source(db, "")) as history:
        decisions = history.lookup([t.workload for t in found], found[0].target) if found else []
    table = Table()
    table.add_column("task", overflow="fold")
    for column in ("weight", "MFLOP", "status", "latency", "GFLOP/s", "vs default"):
        table.add_column(column, justify="right", no_wrap=True)
    for task, decision in zip(found, decisions, strict=True):
        best = decision.found.best if decision.found is not None else None
        seconds = best.trial.median_s if best is not None else None
        gain = best.speedup_over_default if best is not None else None
        table.add_row(
            task.workload.summary,
            str(task.weight),
            f"{task.workload.flops / 1e6:.1f}",
            str(decision.status),
            _duration(seconds),
            f"{task.workload.flops / seconds / 1e9:.1f}" if seconds else "–",
            f"{gain:.2f}x" if gain else "–",
        )
    Console().print(table)


def _duration(seconds: float | None) -> str:
    from tunefarm.progress import duration

    return "–" if seconds is None else duration(seconds)


def bench(
    model: Model,
    target: TargetText = "",
    shape: Shapes = None,
    db: Database = "",
    repeat: Annotated[int, typer.Option(help="Timed repeats of each build.")] = 20,
) -> None:
    """Time the tuned and the default build of a model, and each of its nodes."""
    from rich.console import Console

    from tunefarm.benchmark import compare, node_table

    console = Console()
    result = compare(model, parse_shapes(shape), target or None, history_source(db, ""), repeat)
    console.print(node_table(result))
    console.print(result.summary(), highlight=False)
