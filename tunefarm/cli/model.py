"""``tunefarm tune``, ``build`` and ``tasks``: commands on one model; ``bench`` stands next door."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, runtime_checkable

import typer

from tunefarm.cli.bench import bench
from tunefarm.cli.jobs import result_json
from tunefarm.cli.options import (
    DATABASE,
    Asked,
    Database,
    Farm,
    Minutes,
    Model,
    Precision,
    Selector,
    Shapes,
    TargetText,
    Trials,
    check_output,
)
from tunefarm.cli.printing import Json, print_json, print_rows, remarks
from tunefarm.cli.records import decision_json
from tunefarm.compiler.errors import TunefarmError

if TYPE_CHECKING:
    from tunefarm.compiler.decisions import Decision
    from tunefarm.compiler.dispatch import History
    from tunefarm.compiler.workload import Task
    from tunefarm.db.records import Progress, TaskKey
    from tunefarm.tables import Column
    from tunefarm.tuning import Tuned


def register(app: typer.Typer) -> None:
    for command in (tune, build, bench, tasks):
        app.command()(command)


def tune(
    model: Model,
    target: TargetText = "",
    shape: Shapes = None,
    precision: Precision = "",
    trials: Trials = None,
    minutes: Minutes = None,
    db: Annotated[
        str,
        typer.Option(
            metavar=DATABASE,
            help="Database for the records, URL or file; the one in your data folder if empty.",
        ),
    ] = "",
    tracker: Farm = "",
    device: Selector = "",
    search: Annotated[
        str,
        typer.Option(metavar="STRATEGY", help="xgb-genetic, genetic, droplet, random or grid."),
    ] = "xgb-genetic",
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the search.")] = 0,
    closing: Annotated[
        bool,
        typer.Option(
            "--closing/--no-closing", help="Time the bests in the whole model at the end."
        ),
    ] = True,
    as_json: Json = False,
) -> None:
    """Tune a model on real devices: search for the fastest code of each of its subgraphs.

    Starts a tracker, a worker and a tuner on this machine, unless --tracker names a farm. The
    search times candidates one by one; finals then time the fastest of each task side by side with
    its default, and what they find to be faster is what builds get.

    Ctrl-C cancels the job, on a farm too, and keeps its trials: `tunefarm submit` and `tunefarm
    watch` are for jobs that outlive the command.

    Example: tunefarm tune model.onnx --minutes 30
    """
    from tunefarm.api import extract_tasks
    from tunefarm.checks import check_device, check_search, raised_budget
    from tunefarm.compiler.from_memory import timing_text
    from tunefarm.db.records import TRIALS_A_TASK
    from tunefarm.embedded import with_folder
    from tunefarm.farm import device_peak
    from tunefarm.progress import showing
    from tunefarm.tables import print_sentence
    from tunefarm.texts import counted
    from tunefarm.tuning import tune as run

    check_search(search, seed)
    check_device(device)
    if db:
        with_folder(db)
    out = remarks(as_json)
    asked = Asked(model, target, shape, precision, db, tracker)
    module = asked.module()
    found = extract_tasks(module, target or None)
    if not found:
        out.print(f"{model} has no subgraph that is worth tuning")
        if as_json:
            print_json(nothing_tuned(0))
        return
    budget = TRIALS_A_TASK * len(found)
    if trials is not None:
        budget = raised_budget(trials, found)
    out.print(f"{model.name}: {counted(len(found), 'task')} for {found[0].target}, {budget} trials")
    if timing := timing_text(found):
        print_sentence(out, timing)
    used = asked.in_use((t.workload for t in found), out)
    with showing(out, device_peak(tracker, db)) as show:
        result = run(
            found,
            db=db or None,
            tracker=tracker or None,
            trials=budget,
            seconds=None if minutes is None else 60 * minutes,
            search=search,
            seed=seed,
            watch=show,
            module=module if closing else None,
            say=out.print,
            device=device,
            model_name=asked.model_name,
        )
        show.conclude(result.outcome)
    if as_json:
        print_json(tuned_json(result))
        return
    _conclude(result, budget)
    if result.disturbance:
        print_sentence(out, result.disturbance)
    library = f"{model.stem}{library_suffixes(target)[0]}"
    library = library if _names_functions(Path(library)) else f"model_{library}"
    out.print(f"next: {used.command('build', '-o', library)}", soft_wrap=True)


def library_suffixes(target: str) -> tuple[str, ...]:
    """How the names of files end that a model for a target is built into, the usual one first."""
    return (".zip",) if target.split(" ")[0] == "cuda" else (".so", ".o", ".a")


def _names_functions(library: Path) -> bool:
    """Whether the C functions of a library can be named after its file."""
    from tunefarm.compiler.runtime.export import c_prefix, names_functions

    return names_functions(c_prefix(library))


def tuned_json(result: Tuned) -> dict[str, object]:
    """What a tuning came to, for scripts; no job if there was nothing to do."""
    if result.last is None or result.outcome is None:
        return nothing_tuned(result.earlier)
    found = result_json(result.last, result.outcome, result.earlier)
    return found | {"closing": _closing_json(result), "others_share": result.others_share}


def nothing_tuned(earlier: int) -> dict[str, object]:
    """The keys of a tuning that had nothing to do."""
    return {
        "job": None, "state": None, "message": "", "earlier": earlier, "trials": 0, "finals": 0,
        "errors": {}, "default_s": None, "tuned_s": None, "speedup": None, "tasks": [],
        "closing": None, "others_share": None,
    }  # fmt: skip


def _closing_json(result: Tuned) -> dict[str, object] | None:
    """The runs of the whole model at the end, None if there were none."""
    closing = result.closing
    if closing is None:
        return None
    return {
        "met": closing.met,
        "replaced": len(closing.replaced),
        "undecided": closing.undecided,
        "before_s": closing.before_s,
        "after_s": closing.after_s,
    }


def _conclude(result: Tuned, budget: int) -> None:
    from tunefarm.tables import console, print_sentence

    out = console()
    if result.last is None or result.outcome is None:
        out.print(
            f"nothing to do: the database has {result.earlier} trials of these tasks, "
            f"and the budget is {budget}; raise --trials to go on"
        )
    else:
        for sentence in result.outcome.sentences(result.last):
            print_sentence(out, sentence)
    if result.closing is not None:
        print_sentence(out, result.closing.summary())


def build(
    model: Model,
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="FILE", help="File to write: .so, .o, .a; .zip for a GPU."
        ),
    ],
    target: TargetText = "",
    shape: Shapes = None,
    precision: Precision = "",
    db: Database = "",
    tracker: Farm = "",
    strict: Annotated[bool, typer.Option("--strict", help="Fail on an untuned task.")] = False,
    report_misses: Annotated[
        bool,
        typer.Option(
            "--report-misses", help="Have the farm of --tracker tune the rest on idle devices."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Build a model with the best records into a library (.so, with a C header beside it).

    An object (.o) or a static archive (.a) is for the linker of a program. A model for a GPU
    becomes a .zip of code and weights, which Python loads.

    Example: tunefarm build model.onnx -o model.so
    """
    from tunefarm import api
    from tunefarm.texts import counted, size

    suffixes = library_suffixes(target)
    check_output(output, *suffixes)
    if ".zip" not in suffixes and not _names_functions(output):
        wanted = output.with_name(f"model_{output.name}")
        raise TunefarmError(
            f"{output} names the library's C functions, which begin with a letter; name the file "
            f"so that it begins with a letter, for instance {wanted}"
        )
    if report_misses and not tracker:
        raise TunefarmError("--report-misses needs a farm to report to; give --tracker HOST:PORT")
    out = remarks(as_json)
    asked = Asked(model, target, shape, precision, db, tracker)
    mod = asked.module()
    with api.apply_history_best(
        asked.source(), strict=strict, report_misses=report_misses, model_name=asked.model_name
    ) as history:
        lib = api.build(mod, target or None)
    made = history.decisions.values()
    missed = sum(not decision.settled for decision in made)
    lib.export_library(output)
    asked = asked.in_use((decision.workload for decision in made), out)
    out.print(asked.summary(history), soft_wrap=True)
    if history.report is not None and missed:
        out.print(f"reported {counted(missed, 'untuned task')}: `tunefarm misses` lists them")
    weights, memory = size(lib.plan.weight_bytes), size(lib.peak_bytes)
    out.print(f"{weights} of weights, {memory} of memory a run at its peak")
    header = None if ".zip" in suffixes else output.absolute().with_suffix(".h")
    beside = "" if header is None else f" and {output.with_suffix('.h')}"
    out.print(f"wrote {output}{beside}", soft_wrap=True)
    if as_json:
        statuses = Counter(str(decision.status) for decision in made)
        print_json(
            {
                "library": output.absolute(),
                "header": header,
                "target": str(lib.target),
                "weight_bytes": lib.plan.weight_bytes,
                "memory_bytes": lib.peak_bytes,
                "statuses": statuses,
            }
        )


def tasks(
    model: Model,
    target: TargetText = "",
    shape: Shapes = None,
    precision: Precision = "",
    db: Database = "",
    tracker: Farm = "",
    as_json: Json = False,
) -> None:
    """List the tasks of a model: how often each runs, its FLOPs, and what is known of it.

    Example: tunefarm tasks model.onnx --shape x=1x3x224x224
    """
    from tunefarm import api
    from tunefarm.compiler.from_memory import counts_of
    from tunefarm.texts import counted

    asked = Asked(model, target, shape, precision, db, tracker)
    found = asked.tasks()
    out = remarks(as_json)
    if not found:
        out.print(f"{model} has no subgraph that is worth tuning")
        if as_json:
            print_json([])
        return
    with api.apply_history_best(asked.source()) as history:
        decisions = history.lookup([t.workload for t in found], found[0].target, counts_of(found))
        known = _known(history, found)
    if as_json:
        rows = zip(found, decisions, known, strict=True)
        print_json([task_json(*row) for row in rows])
        return
    flops = sum(t.workload.flops * t.weight for t in found)
    out.print(f"{counted(len(found), 'task')} for {found[0].target}, {flops / 1e9:.3g} GFLOP a run")
    print_rows(found, task_columns(found, decisions, known))
    asked = asked.in_use((t.workload for t in found), out)
    out.print(asked.summary(history), soft_wrap=True)


@runtime_checkable
class Counts(Protocol):
    """A source of records that counts trials: a database or a farm, not a file."""

    def task_stats(self, tasks: Sequence[TaskKey]) -> Mapping[TaskKey, Progress]: ...
    def count_candidates(self, tasks: Iterable[TaskKey]) -> int: ...


def _known(history: History, found: Sequence[Task]) -> list[Progress]:
    """The trials of each task, finals left out; zeros where the source of records counts none."""
    from tunefarm.db.records import Progress, TaskKey

    keys = [TaskKey(t.workload.key, t.target.text) for t in found]
    source: object = history.source
    if not isinstance(source, Counts):
        return [Progress(key) for key in keys]
    stats = source.task_stats(keys)
    counts = {key: source.count_candidates([key]) for key in keys}
    return [replace(stats[k], ok=counts[k] - stats[k].failed) for k in keys]


def task_json(task: Task, decision: Decision, known: Progress) -> dict[str, object]:
    """A task for scripts: what it is, what was measured, what a build uses."""
    return {
        **decision_json(decision),
        "weight": task.weight,
        "flops": task.workload.flops,
        "trials": known.ok + known.failed,
        "failed": known.failed,
    }


def task_columns(
    found: Sequence[Task], decisions: Sequence[Decision], known: Sequence[Progress]
) -> list[Column]:
    """A row a task: what it is, what was measured, what a build uses, and why if a default."""
    from tunefarm.tables import Column
    from tunefarm.texts import latency, times

    best = [d.found.best if d.found is not None else None for d in decisions]
    seconds = [b.latency_s if b is not None else None for b in best]
    rates = [t.workload.flops / s / 1e9 if s else 0 for t, s in zip(found, seconds, strict=True)]
    return [
        Column("task", [t.workload.summary for t in found], least=20, left=True, wraps=True),
        Column("weight", [str(t.weight) for t in found], rank=3),
        Column("MFLOP", [f"{t.workload.flops / 1e6:.1f}" for t in found], rank=2),
        Column("trials", [str(k.ok + k.failed) for k in known], rank=6),
        Column("failed", [str(k.failed or "") for k in known], rank=5),
        Column("status", [str(d.status) for d in decisions], rank=8, left=True),
        Column("why", [d.why for d in decisions], rank=5, left=True),
        Column("latency", [latency(s) for s in seconds], rank=7),
        Column("GFLOP/s", [f"{r:.1f}" if r else "–" for r in rates], rank=1),
        Column("gain", [times(b.speedup_over_default if b else None) for b in best], rank=4),
    ]
