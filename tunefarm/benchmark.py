"""``tunefarm bench``: the tuned and the default build of a model, side by side and node by node."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tunefarm import api
from tunefarm.tables import Column
from tunefarm.texts import counted, duration, latency, times

if TYPE_CHECKING:
    from tunefarm.compiler.dispatch import History
    from tunefarm.compiler.ir import IRModule
    from tunefarm.compiler.runtime.graph_executor import Profile
    from tunefarm.compiler.runtime.module import Module
    from tunefarm.compiler.target import Target
    from tunefarm.db.records import Trial

MAX_ROWS = 25


@dataclass(frozen=True, slots=True)
class Subject:
    """What is timed: a model's file, the shapes that fix its open inputs, where its records are,
    and the precision that its builds may use. Without a source every task has its default."""

    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    source: str | tuple[Trial, ...] | None = None
    precision: str = ""

    def module(self) -> IRModule:
        return api.allow_precision(api.read_model(self.path, self.shapes), self.precision)

    def onnx(self) -> str | bytes:
        """The model for libraries that read ONNX: its path, or what PyTorch exports of it."""
        from tunefarm.compiler.frontend.torch import SAVED, to_onnx

        if self.path.suffix == SAVED:
            return bytes(to_onnx(self.path, shapes=self.shapes).SerializeToString())
        return str(self.path)

    def history(self) -> History:
        """The records, not yet asked."""
        return defaults() if self.source is None else api.apply_history_best(self.source)


def defaults() -> History:
    """No records at all, not even those that ship with the package."""
    return api.apply_history_best((), starter=False)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Latencies in seconds of two builds run in turn, and the time of each node.

    Unless a record differs from its default both builds are the same, and only one is timed.
    """

    default_s: tuple[float, ...]
    default_nodes: Profile
    history: History
    tuned_s: tuple[float, ...] = ()
    tuned_nodes: Profile | None = None

    def summary(self) -> str:
        """The medians of whole runs, their ratio if it is no noise, the sum of nodes."""
        default = statistics.median(self.default_s)
        if self.tuned_nodes is None:
            return (
                f"default {duration(default)} (median of {counted(len(self.default_s), 'run')}), "
                f"its nodes one by one {duration(self.default_nodes.seconds)}; "
                f"{self._why_same()}"
            )
        tuned = statistics.median(self.tuned_s)
        gain = times(default / tuned) if self._differ() else "no difference beyond the noise"
        return (
            f"tuned {duration(tuned)}, default {duration(default)}: {gain} "
            f"(medians of {counted(len(self.tuned_s), 'run')} in turn); nodes one by one: "
            f"tuned {duration(self.tuned_nodes.seconds)}, "
            f"default {duration(self.default_nodes.seconds)}"
        )

    def _differ(self) -> bool:
        """Whether one build is faster in the middle half of the pairs, and by the medians too."""
        pairs = zip(self.default_s, self.tuned_s, strict=True)
        ratios = [d / t for d, t in pairs]
        low, high = min(ratios), max(ratios)
        if len(ratios) > 2:
            low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
        ratio = statistics.median(self.default_s) / statistics.median(self.tuned_s)
        return min(low, ratio) > 1 or max(high, ratio) < 1

    def _why_same(self) -> str:
        if any(decision.settled for decision in self.history.decisions.values()):
            return "tuning found nothing faster than the defaults"
        return "no task is tuned"


def compare(subject: Subject, target: Target, repeat: int = 20) -> Comparison:
    """Build a model with and without its records, and time both in turn."""
    module = subject.module()
    with subject.history() as history:
        tuned = api.build(module, target)
    inputs = tuned.example_inputs()
    if not any(decision.tuned for decision in history.decisions.values()):
        return Comparison(interleaved([tuned], repeat)[0], tuned.profile(inputs), history)
    with defaults():
        default = api.build(module, target)
    times = interleaved([tuned, default], repeat)
    return Comparison(times[1], default.profile(inputs), history, times[0], tuned.profile(inputs))


def interleaved(modules: Sequence[Module], repeat: int) -> list[tuple[float, ...]]:
    """Seconds a run of each module, one run of each in turn, after a warm-up."""
    inputs = modules[0].example_inputs()
    times: list[list[float]] = [[] for _ in modules]
    for _ in range(repeat):
        for module, mine in zip(modules, times, strict=True):
            mine.append(module.time_evaluator(inputs, repeat=1).median)
    return [tuple(t) for t in times]


def node_columns(result: Comparison) -> list[Column]:
    """The nodes of the tuned build, slowest first, each beside the default's, and their sum."""
    profile = result.tuned_nodes or result.default_nodes
    is_tuned = result.tuned_nodes is not None
    nodes = sorted(profile.nodes, key=lambda n: -n.seconds)
    before = {n.label: n.seconds for n in result.default_nodes.nodes} if is_tuned else {}
    rows = [(n.label or n.kernel, n.seconds, before.get(n.label)) for n in nodes[:MAX_ROWS]]
    if len(nodes) > MAX_ROWS:
        rest = sum(n.seconds for n in nodes[MAX_ROWS:])
        rows.append((counted(len(nodes) - MAX_ROWS, "more node"), rest, None))
    rows.append(("sum", profile.seconds, result.default_nodes.seconds if is_tuned else None))
    total = profile.seconds or 1.0
    return [
        Column("node", [name for name, _, _ in rows], least=30, left=True),
        Column("tuned" if is_tuned else "default", [duration(s) for _, s, _ in rows], rank=8),
        Column("share", [f"{100 * s / total:.1f}%" for _, s, _ in rows], rank=5),
        Column("default", [latency(d) for _, _, d in rows], rank=6),
        Column("gain", [times(d / s if d and s else None) for _, s, d in rows], rank=7),
    ]
