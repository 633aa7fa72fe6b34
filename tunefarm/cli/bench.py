"""``tunefarm bench``: a model's builds against each other, other libraries and the machine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from tunefarm.cli.options import (
    Asked,
    Database,
    Farm,
    Model,
    Precision,
    Shapes,
    TargetText,
    check_output,
    history_source,
    parse_cores,
    parse_shapes,
)
from tunefarm.cli.printing import Json, print_json, remarks

if TYPE_CHECKING:
    from rich.console import Console

    from tunefarm.benchmark import Comparison, Subject
    from tunefarm.compiler.dispatch import History
    from tunefarm.compiler.target import Target
    from tunefarm.peers.race import Race
    from tunefarm.peers.turns import Neighbours
    from tunefarm.roofline.nodes import Roofline


@dataclass(frozen=True, slots=True)
class Request:
    """What a ``bench`` command asks: to time a subject for targets, each with the options that
    other commands take for it. ``found`` gathers what is printed as JSON at the end, if that is
    asked for."""

    subject: Subject
    targets: Mapping[Target, Asked]
    repeat: int
    found: list[object] = field(default_factory=list)


def bench(
    model: Model,
    target: TargetText = "",
    shape: Shapes = None,
    precision: Precision = "",
    db: Database = "",
    tracker: Farm = "",
    cores: Annotated[
        str, typer.Option(metavar="N,N", help="Numbers of cores: 1,2; the target's if empty.")
    ] = "",
    peers: Annotated[
        bool, typer.Option("--peers", help="Time onnxruntime and OpenVINO beside the builds.")
    ] = False,
    roofline: Annotated[
        bool, typer.Option("--roofline", help="Each node beside what the machine can do at best.")
    ] = False,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the roofline: .svg, .png or .pdf.")
    ] = None,
    repeat: Annotated[
        int, typer.Option(min=1, metavar="N", help="Timed repeats of each build.")
    ] = 20,
    as_json: Json = False,
) -> None:
    """Time the tuned and the default build of a model, and each of its nodes.

    With --peers, other libraries on the same model. With --roofline, each node beside the time
    that the machine's peak and bandwidths allow.

    Example: tunefarm bench model.onnx --peers --cores 1,2
    """
    from tunefarm.benchmark import Subject
    from tunefarm.checks import check_host
    from tunefarm.compiler.errors import TunefarmError
    from tunefarm.tables import console

    targets = {
        found.allowing(precision): Asked(
            model, found.text if cores else target, shape, precision, db, tracker
        )
        for found in parse_cores(cores, target)
    }
    for found in targets:
        check_host(found)
        if found.kind == "cuda" and (peers or roofline or picture is not None):
            raise TunefarmError(
                f"--peers and --roofline are for processors, and {found} is a GPU's; leave them out"
            )
    request = Request(
        Subject(model, parse_shapes(shape), history_source(db, tracker), precision),
        targets,
        repeat,
    )
    out = remarks(as_json) if as_json else console()
    if picture is not None:
        from tunefarm.roofline.picture import ENDINGS, check_matplotlib

        check_output(picture, *ENDINGS)
        check_matplotlib()
    if peers:
        _bench_peers(out, request)
    if roofline or picture is not None:
        _bench_roofline(out, request, picture)
    if not (peers or roofline or picture is not None):
        _bench_nodes(out, request)
    if as_json:
        print_json(request.found)


def comparison_json(target: Target, result: Comparison) -> dict[str, object]:
    """Two builds for scripts: medians of whole runs in seconds, and each node's; where no record
    differs from the default there is one build, and nothing tuned."""
    tuned = result.tuned_nodes
    after = {node.label or node.kernel: node.seconds for node in tuned.nodes} if tuned else {}
    nodes = [(node.label or node.kernel, node.seconds) for node in result.default_nodes.nodes]
    default_s = median(result.default_s)
    tuned_s = median(result.tuned_s) if result.tuned_s else None
    return {
        "target": str(target),
        "device": _device() if target.kind == "cuda" else None,
        "default_s": default_s,
        "tuned_s": tuned_s,
        "speedup": default_s / tuned_s if tuned_s else None,
        "nodes": [
            {"node": name, "default_s": seconds, "tuned_s": after.get(name)}
            for name, seconds in nodes
        ],
    }


def race_json(target: Target, result: Race) -> dict[str, object]:
    """A race for scripts: medians in seconds, and largest differences over largest magnitudes."""
    return {
        "target": str(target),
        "cores": result.cores,
        "peak_flops_s": result.row.peak,
        "flops": result.row.flops,
        "libraries": {
            result.shown(name): {"seconds": seconds, "error": result.row.errors[name]}
            for name, seconds in result.row.seconds.items()
        },
        "failures": result.failures,
    }


def roofline_json(target: Target, result: Roofline) -> dict[str, object]:
    """Nodes under the roofs for scripts, in seconds."""
    return {
        "target": str(target),
        "nodes": [
            {
                "node": node.work.name,
                "seconds": node.seconds,
                "roof_s": node.roof_s,
                "bound": node.bound,
                "flops": node.work.flops,
                "bytes": node.work.bytes,
            }
            for node in result.nodes
        ],
    }


def _bench_nodes(out: Console, request: Request) -> None:
    from tunefarm.benchmark import compare, node_columns
    from tunefarm.peers.turns import Neighbours
    from tunefarm.tables import print_sentence, print_table

    neighbours = Neighbours()
    for target in request.targets:
        _head(out, request, target)
        with _status(out, f"timing the builds for {target}"):
            result = compare(request.subject, target, request.repeat)
        request.found.append(comparison_json(target, result))
        print_table(out, node_columns(result))
        print_sentence(out, result.summary())
        _tell_records(out, request, target, result.history)
    _tell_noise(out, neighbours)


def _bench_peers(out: Console, request: Request) -> None:
    from tunefarm.peers.race import libraries_here, race_columns
    from tunefarm.peers.turns import Neighbours
    from tunefarm.tables import print_sentence, print_table
    from tunefarm.texts import counted

    libraries = libraries_here(out.print)
    neighbours = Neighbours()
    races = []
    for target in request.targets:
        races.append(_raced(out, request, target, libraries))
        request.found.append(race_json(target, races[-1]))
    print_table(out, race_columns(races))
    for result in races:
        print_sentence(out, result.summary())
    for text in race_remarks(races):
        print_sentence(out, text)
    peaks = ", ".join(
        f"{r.row.peak / 1e9:.0f} GFLOP/s of FMAs on {counted(r.cores, 'core')}" for r in races
    )
    precision = races[0].precision
    held = f"peers held to f32 unless {precision} stands behind their name"
    print_sentence(
        out,
        f"medians of {counted(request.repeat, 'turn')}, "
        f"{held if precision else 'peers held to f32'}, each library alone in a process of its "
        f"own; peak: {peaks}; error: largest difference over largest magnitude",
    )
    for target, result in zip(request.targets, races, strict=True):
        if len(races) > 1:
            out.print(f"{target}: ", end="", soft_wrap=True)
        _tell_records(out, request, target, result.history)
    _tell_noise(out, neighbours)


def _raced(out: Console, request: Request, target: Target, libraries: Sequence[str]) -> Race:
    from tunefarm.peers.race import race

    doing, turns = f"racing {', '.join(libraries)} for {target}", request.repeat
    with _status(out, doing) as tell:
        return race(
            request.subject, target, libraries, turns,
            lambda turn: tell(f"{doing}, turn {turn} of {turns}"),
        )  # fmt: skip


def race_remarks(races: Sequence[Race]) -> list[str]:
    """What is to be said of races, each once; slow turns are those of a number of cores."""
    from tunefarm.texts import counted

    told: dict[str, None] = {}
    for result in races:
        told |= dict.fromkeys(result.warnings())
        if slow := result.turns.report():
            told[slow if len(races) == 1 else f"{counted(result.cores, 'core')}: {slow}"] = None
    return list(told)


def _bench_roofline(out: Console, request: Request, picture: Path | None) -> None:
    from tunefarm.peers.turns import Neighbours
    from tunefarm.roofline.nodes import measure, roofline_columns
    from tunefarm.tables import print_sentence, print_table

    neighbours, results = Neighbours(), []
    for target in request.targets:
        with _status(out, f"timing nodes and roofs for {target}"):
            results.append(measure(request.subject, target, request.repeat))
        request.found.append(roofline_json(target, results[-1]))
        _head(out, request, target)
        print_table(out, roofline_columns(results[-1]))
        print_sentence(out, results[-1].summary())
        print_sentence(out, f"roofs: {results[-1].roofs}")
        for note in results[-1].notes:
            print_sentence(out, note)
        _tell_records(out, request, target, results[-1].history)
    _tell_noise(out, neighbours)
    if picture is not None:
        from tunefarm.roofline.picture import draw

        draw(request.subject.path.stem, results, picture)
        out.print(f"wrote {picture}", soft_wrap=True)


def _head(out: Console, request: Request, target: Target) -> None:
    """What a table is of."""
    gap = "" if target == next(iter(request.targets)) else "\n"
    place = f" on {_device()}" if target.kind == "cuda" else ""
    out.print(f"{gap}{request.subject.path.name} for {target}{place}", soft_wrap=True)


def _device() -> str:
    """The GPU that a build runs on."""
    from tunefarm.compiler.runtime.cuda.driver import open_device

    return open_device().properties.name


def _tell_records(out: Console, request: Request, target: Target, history: History) -> None:
    """The records that were used, and a precision that changes nothing."""
    workloads = [decision.workload for decision in history.decisions.values()]
    asked = request.targets[target].in_use(workloads, out)
    out.print(asked.summary(history), soft_wrap=True)


def _tell_noise(out: Console, neighbours: Neighbours) -> None:
    """A warning, if other processes took so much of the machine that the times mean little."""
    if neighbours.were_busy:
        from tunefarm.tables import print_sentence

        print_sentence(out, neighbours.report())


@contextlib.contextmanager
def _status(out: Console, text: str) -> Iterator[Callable[[str], None]]:
    """What the command is doing, on a terminal, while it takes its time; yields what changes it."""
    if not out.is_terminal:
        yield lambda text: None
        return
    with out.status(text) as status:
        yield status.update
