"""The nodes of a built model beside the time that the machine's roofs allow each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tunefarm.compiler.target import Target
from tunefarm.roofline.roofs import Roofs, measure_roofs
from tunefarm.tables import Column
from tunefarm.texts import counted, duration

if TYPE_CHECKING:
    from tunefarm.benchmark import Subject
    from tunefarm.compiler.decisions import Decision
    from tunefarm.compiler.dispatch import History
    from tunefarm.compiler.ir import IRModule
    from tunefarm.compiler.runtime.module import Module
    from tunefarm.compiler.space import ConfigSpace
    from tunefarm.compiler.workload import Workload

MAX_ROWS = 25
ARITHMETIC = "FMA"
SLIGHT = 5e-3  # of the whole: not worth a word
_SHOWN_S = 5e-9
WINOGRAD, STRASSEN, DOT = "winograd", "strassen", "dot"
FEWER = {WINOGRAD: "Winograd", STRASSEN: "Strassen"}
"""Methods of fewer operations than the nominal ones."""
_FORMS = {
    "winograd_1d": WINOGRAD,
    "winograd_online": WINOGRAD,
    "depthwise_winograd": WINOGRAD,
    "image_rows_winograd": WINOGRAD,
    "strassen_2": STRASSEN,
    "attention_dots": DOT,
}
"""Sketches that are another form of one of these."""
NOTES = {
    WINOGRAD: "FLOPs and GFLOP/s are nominal, what the mathematics asks for: Winograd's method "
    "needs fewer operations, and so may pass the FMA peak. The roof counts those that it executes.",
    STRASSEN: "Strassen's method has seven products of half the extents for eight, once or twice. "
    "It may pass the FMA peak by nominal FLOPs, and its roof counts those that it executes.",
    DOT: "Dot products of narrow numbers do 2 or 4 times the operations of an f32 FMA at once, and "
    "so may pass the FMA peak. The roof is as many times higher.",
}


@dataclass(frozen=True, slots=True)
class Work:
    """What a node must do: nominal FLOPs, the ``operations`` that its kernel cannot avoid, and the
    bytes of weights and of inputs and outputs that it moves once each. ``sketch`` is how its kernel
    is made, "" if there was no choice; an instruction of it does ``rate`` times the operations of a
    vector of f32 FMAs."""

    name: str
    flops: float = 0.0
    operations: float = 0.0
    weight_bytes: float = 0.0
    activation_bytes: float = 0.0
    sketch: str = ""
    rate: float = 1.0

    @property
    def bytes(self) -> float:
        return self.weight_bytes + self.activation_bytes


@dataclass(frozen=True, slots=True)
class Node:
    """A node's seconds, beside those of its nominal FLOPs (``nominal_s``) and of its operations
    (``compute_s``) at the FMA peak, and of its bytes at the bandwidth of where they live.
    ``level`` is the one that takes longest."""

    work: Work
    seconds: float
    nominal_s: float
    compute_s: float
    memory_s: float
    level: str

    @property
    def roof_s(self) -> float:
        """The least seconds that the roofs allow."""
        return max(self.compute_s, self.memory_s)

    @property
    def bound(self) -> str:
        """The roof that holds: FMA, L1, L2, L3 or DRAM."""
        return ARITHMETIC if self.compute_s >= self.memory_s else self.level


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes of equal work, slowest group first in tables and pictures."""

    nodes: tuple[Node, ...]

    @property
    def work(self) -> Work:
        return self.nodes[0].work

    @property
    def seconds(self) -> float:
        return sum(node.seconds for node in self.nodes)

    @property
    def nominal_s(self) -> float:
        return sum(node.nominal_s for node in self.nodes)

    @property
    def memory_s(self) -> float:
        return sum(node.memory_s for node in self.nodes)

    @property
    def bound(self) -> str:
        """The roof of such a node, and whether its operations are other ones than f32 FMAs."""
        bound, work = self.nodes[0].bound, self.work
        if bound != ARITHMETIC:
            return bound
        if work.sketch in FEWER:
            return f"{bound}, {FEWER[work.sketch]}"
        return f"{bound} ×{work.rate:g}" if work.rate != 1 else bound

    @property
    def roof_s(self) -> float:
        return sum(node.roof_s for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Roofline:
    """All nodes of a model in order, timed one by one, and the median seconds of a whole run."""

    nodes: tuple[Node, ...]
    roofs: Roofs
    run_s: float
    history: History

    @property
    def seconds(self) -> float:
        return sum(node.seconds for node in self.nodes)

    @property
    def roof_s(self) -> float:
        return sum(node.roof_s for node in self.nodes)

    @property
    def groups(self) -> list[Group]:
        """Nodes of equal work together, slowest first."""
        found: dict[Work, list[Node]] = {}
        for node in self.nodes:
            found.setdefault(node.work, []).append(node)
        return sorted((Group(tuple(g)) for g in found.values()), key=lambda g: -g.seconds)

    @property
    def sketches(self) -> frozenset[str]:
        """How the kernels of its nodes are made."""
        return frozenset(node.work.sketch for node in self.nodes)

    @property
    def notes(self) -> list[str]:
        """Why nodes may pass the FMA peak."""
        return [note for sketch, note in NOTES.items() if sketch in self.sketches]

    def summary(self) -> str:
        """Times of the run, its nodes and the roof, and which roofs that is made of."""
        parts = dict.fromkeys((n.bound for n in self.nodes), 0.0)
        for node in self.nodes:
            parts[node.bound] += node.roof_s
        order = sorted(parts.items(), key=lambda part: -part[1])
        heavy = [(name, s) for name, s in order if s > SLIGHT * self.roof_s]
        made = ", ".join(f"{name} {duration(s)}" for name, s in heavy)
        return (
            f"a run takes {duration(self.run_s)}, its nodes one by one {duration(self.seconds)}; "
            f"at the roof {duration(self.roof_s)}, {_percent(self.roof_s, self.run_s)} of the run "
            f"({made})"
        )


def measure(subject: Subject, target: Target, repeat: int) -> Roofline:
    """Build a model with its records, and time it, its nodes and the roofs."""
    from tunefarm import api

    module = subject.module()
    with subject.history() as history:
        lib = api.build(module, target)
    works = works_of(lib, module, target, history)
    roofs = measure_roofs(target)
    inputs = lib.example_inputs()
    run_s = lib.time_evaluator(inputs, repeat=repeat).median
    seconds = [node.seconds for node in lib.profile(inputs, repeat).nodes]
    total = sum(w.weight_bytes for w in works) + lib.plan.arena_bytes
    nodes = [place(w, s, roofs, total) for w, s in zip(works, seconds, strict=True)]
    return Roofline(tuple(nodes), roofs, run_s, history)


def works_of(lib: Module, module: IRModule, target: Target, history: History) -> list[Work]:
    """What each step of a built model must do, in order."""
    from tunefarm.compiler.build import kernel_name, plain_name
    from tunefarm.compiler.extract import kernels_of
    from tunefarm.compiler.runtime.plan import KernelCall
    from tunefarm.compiler.transform.lower_precision import target_of
    from tunefarm.compiler.transform.pipeline import optimize
    from tunefarm.compiler.workload import Workload

    target = target_of(module, target)
    functions = kernels_of(optimize(module, target))
    workloads = {Workload.from_function(f) for f in functions if not f.attrs.get("view")}
    known = {kernel_name(w): w for w in workloads}
    works = {
        name: _work_of(w, history.decisions.get((w.key, target.text))) for name, w in known.items()
    }
    return [
        works[plain_name(step.kernel)]
        if isinstance(step, KernelCall)
        else Work("copy", activation_bytes=2.0 * step.bytes)
        for step in lib.plan.steps
    ]


def _work_of(workload: Workload, decision: Decision | None) -> Work:
    from tunefarm.compiler.space import config_space
    from tunefarm.worker.roofline import read_bytes, written_bytes

    read = read_bytes(workload)
    weights = sum(read[i] for i in workload.constants)
    work = Work(
        workload.summary,
        float(workload.flops),
        float(workload.flops),
        weights,
        sum(read) - weights + written_bytes(workload),
    )
    if decision is None:
        return work
    space = config_space(decision.workload, decision.target)
    terms = space.sketch(str(decision.config["sketch"])).terms  # which its nest counts as one
    operations = terms * _operations(decision, space)
    return replace(work, operations=operations, sketch=_sketch_of(decision), rate=float(terms))


def _sketch_of(decision: Decision) -> str:
    sketch = str(decision.config["sketch"])
    return _FORMS.get(sketch, sketch)


def _operations(decision: Decision, space: ConfigSpace) -> float:
    """What the kernel cannot avoid: direct ones may skip taps on padding, others cannot."""
    from tunefarm.worker.roofline import executed_operations, scheduled_operations

    if _sketch_of(decision) in FEWER:
        return scheduled_operations(space, decision.config)
    return executed_operations(decision.workload, space, decision.config)


def place(work: Work, seconds: float, roofs: Roofs, model_bytes: float) -> Node:
    """A node under the roofs.

    What it reads and writes of activations may lie where all of it fits together; its weights lie
    where the ``model_bytes`` of a whole run fit, as each is used once a run. Bytes of a far level
    pass the nearer ones too.
    """
    homes = (
        (roofs.home(work.activation_bytes), work.activation_bytes),
        (roofs.home(model_bytes), work.weight_bytes),
    )
    times = [
        (sum(size for home, size in homes if home >= i) / level.bandwidth, level.name)
        for i, level in enumerate(roofs.levels)
    ]
    memory_s, level = max(times)
    nominal_s, compute_s = work.flops / roofs.flops, work.operations / (work.rate * roofs.flops)
    return Node(work, seconds, nominal_s, compute_s, memory_s, level)


def roofline_columns(result: Roofline) -> list[Column]:
    """A row a group of equal nodes, slowest first, and their sum."""
    groups = result.groups
    shown, rest = groups[:MAX_ROWS], groups[MAX_ROWS:]
    rows = [(g.work.name, g, g.bound) for g in shown]
    if rest:
        others = Group(tuple(n for g in rest for n in g.nodes))
        rows.append((counted(len(others.nodes), "more node"), others, ""))
    everything = Group(result.nodes)
    rows.append(("sum", everything, ""))
    sums = [group for _, group, _ in rows]
    return [
        Column("node", [name for name, _, _ in rows], least=26, left=True),
        Column("times", [str(len(g.nodes)) for g in sums], rank=4),
        Column("time", [duration(g.seconds) for g in sums], rank=9),
        Column("share", [_percent(g.seconds, result.seconds) for g in sums], rank=5),
        Column("at FMA peak", [_time(g.nominal_s) for g in sums], rank=3),
        Column("at bandwidth", [_time(g.memory_s) for g in sums], rank=3),
        Column("roof", [bound for _, _, bound in rows], rank=6, left=True),
        Column("at roof", [_time(g.roof_s) for g in sums], rank=6),
        Column("reached", [_percent(g.roof_s, g.seconds) for g in sums], rank=8),
        Column("GFLOP/s", [_rate(g.nodes) for g in sums], rank=2),
        Column("FLOP/byte", [_intensity(g.nodes) for g in sums], rank=1),
    ]


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}%" if whole else "–"


def _time(seconds: float) -> str:
    return duration(seconds) if seconds >= _SHOWN_S else "–"


def _rate(nodes: Iterable[Node]) -> str:
    nodes = list(nodes)
    flops, seconds = sum(n.work.flops for n in nodes), sum(n.seconds for n in nodes)
    return f"{flops / seconds / 1e9:.0f}" if flops and seconds else "–"


def _intensity(nodes: Sequence[Node]) -> str:
    flops, moved = sum(n.work.flops for n in nodes), sum(n.work.bytes for n in nodes)
    return f"{flops / moved:.1f}" if flops and moved else "–"
