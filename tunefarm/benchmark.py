"""``tunefarm bench``: the tuned and the default build of a model, side by side and node by node."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tunefarm import api

if TYPE_CHECKING:
    from rich.table import Table

    from tunefarm.compiler.runtime.graph_executor import Profile
    from tunefarm.compiler.runtime.module import Module
    from tunefarm.db.records import Trial

MAX_ROWS = 25


@dataclass(frozen=True, slots=True)
class Comparison:
    """Latencies in seconds of two builds run in turn, and the time of each node."""

    tuned_s: tuple[float, ...]
    default_s: tuple[float, ...]
    tuned_nodes: Profile
    default_nodes: Profile
    tasks: str

    def summary(self) -> str:
        """The medians, and the median of the ratios pair by pair."""
        tuned, default = statistics.median(self.tuned_s), statistics.median(self.default_s)
        pairs = zip(self.default_s, self.tuned_s, strict=True)
        ratio = statistics.median(d / t for d, t in pairs)
        return (
            f"tuned {tuned * 1e3:.3f} ms, default {default * 1e3:.3f} ms: {ratio:.2f}x "
            f"(medians of {len(self.tuned_s)} interleaved runs)\n{self.tasks}"
        )


def compare(
    model: Path,
    shapes: Mapping[str, Sequence[int]],
    target: str | None,
    source: str | Iterable[Trial],
    repeat: int = 20,
) -> Comparison:
    """Build a model with and without the records of ``source``, and time both in turn."""
    module = api.from_onnx(model, shapes)
    default = api.build(module, target)
    with api.apply_history_best(source) as history:
        tuned = api.build(module, target)
    times = interleaved([tuned, default], repeat)
    inputs = tuned.example_inputs()
    return Comparison(
        times[0],
        times[1],
        tuned.profile(inputs),
        default.profile(inputs),
        history.summary(f"tunefarm tune {model}"),
    )


def interleaved(modules: Sequence[Module], repeat: int) -> list[tuple[float, ...]]:
    """Seconds a run of each module, one run of each in turn, after a warm-up."""
    inputs = modules[0].example_inputs()
    times: list[list[float]] = [[] for _ in modules]
    for _ in range(repeat):
        for module, mine in zip(modules, times, strict=True):
            mine.append(module.time_evaluator(inputs, repeat=1).median)
    return [tuple(t) for t in times]


def node_table(result: Comparison) -> Table:
    """The nodes of the tuned build, slowest first, each beside the default's."""
    from rich.table import Table

    from tunefarm.progress import duration

    default = {n.label: n.seconds for n in result.default_nodes.nodes}
    total = result.tuned_nodes.seconds
    table = Table(title="time per node, slowest first", title_justify="left")
    table.add_column("node", overflow="ellipsis", no_wrap=True, max_width=60)
    for column in ("tuned", "share", "default", "gain"):
        table.add_column(column, justify="right", no_wrap=True)
    nodes = sorted(result.tuned_nodes.nodes, key=lambda n: -n.seconds)
    for node in nodes[:MAX_ROWS]:
        before = default.get(node.label)
        table.add_row(
            node.label or node.kernel,
            duration(node.seconds),
            f"{100 * node.seconds / total:.1f}%",
            duration(before) if before is not None else "–",
            f"{before / node.seconds:.2f}x" if before is not None else "–",
        )
    if len(nodes) > MAX_ROWS:
        rest = sum(n.seconds for n in nodes[MAX_ROWS:])
        table.add_row(
            f"{len(nodes) - MAX_ROWS} more nodes", duration(rest), f"{100 * rest / total:.1f}%"
        )
    return table
