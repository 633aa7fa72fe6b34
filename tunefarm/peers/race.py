"""``tunefarm bench --peers``: a model's builds and other libraries on it, timed in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from tunefarm import api
from tunefarm.benchmark import Subject, defaults
from tunefarm.compiler.dispatch import History
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.from_memory import counts_of
from tunefarm.compiler.ir import IRModule
from tunefarm.compiler.runtime.arrays import aligned_empty
from tunefarm.compiler.target import Target
from tunefarm.peers.apart import Apart, LibraryFailed, apart
from tunefarm.peers.libraries import (
    LIBRARIES,
    Feeds,
    has_precision,
    installed,
    run_in,
    version_of,
)
from tunefarm.peers.pace import Pace, Turns
from tunefarm.peers.rows import DEFAULT, TUNED, Row, is_ours
from tunefarm.peers.turns import Contender, in_turn, largest_error
from tunefarm.tables import Column
from tunefarm.texts import counted, duration, times

SPAN_S = 0.05  # timed at once, after five times as long to wake the cores
PATIENCE_S = 30.0  # for a machine at its full speed, in all turns
ERROR_LIMIT = 1e-3  # of the largest magnitude
EXTRA = "pip install 'tunefarm[bench]'"
OURS = {TUNED: "tunefarm, tuned", DEFAULT: "tunefarm, default"}


@dataclass(frozen=True, slots=True)
class Race:
    """What came of it on ``cores`` cores. The row's errors are against the library ``reference``;
    ``history`` tells the records of our builds, and ``failures`` why a library is left out. Our
    builds, and libraries that can, may use another ``precision`` than f32. ``turns`` tell of slow
    ones."""

    cores: int
    row: Row
    reference: str
    history: History
    failures: Mapping[str, str]
    precision: str = ""
    turns: Turns = field(default_factory=Turns)

    @property
    def ours(self) -> str:
        """The build that a user gets: the default one unless a record differs from it."""
        return TUNED if TUNED in self.row.seconds else DEFAULT

    def shown(self, name: str) -> str:
        """A contender for people: ``tunefarm, tuned, bf16`` or ``OpenVINO 2026.4.1``."""
        shown = OURS[name] if is_ours(name) else version_of(name)
        return f"{shown}, {self.precision}" if self.rounds(name) else shown

    def rounds(self, name: str) -> bool:
        """Whether a contender computes in another precision than f32."""
        return bool(self.precision) and (is_ours(name) or has_precision(name, self.precision))

    def summary(self) -> str:
        """``2 cores: tunefarm runs 1.21x as fast as OpenVINO 2026.4.1, the best peer``."""
        peer, ratio = self.row.best_peer, self.row.ratio(self.ours)
        assert peer is not None
        others = sum(not is_ours(name) for name in self.row.seconds)
        best = ", the best peer" if others > 1 else ""
        cores, name = counted(self.cores, "core"), self.shown(peer)
        return f"{cores}: tunefarm runs {times(ratio)} as fast as {name}{best}"

    def warnings(self) -> list[str]:
        """A sentence for each contender whose outputs are another's, or that could not run."""
        wrong = [
            f"{self.shown(name)} differs from {self.reference} by {error:.0e} of the largest "
            f"magnitude: {_USUAL}"
            for name, error in self.row.errors.items()
            if not error <= ERROR_LIMIT and not self.rounds(name)
        ]
        failed = [f"{name} cannot run this model: {why}" for name, why in self.failures.items()]
        return failed + wrong


_USUAL = (
    "usual in quantised models (without VNNI onnxruntime saturates, unless it is told "
    "session.x64quantprecision), else wrong"
)


def race(
    subject: Subject,
    target: Target,
    libraries: Sequence[str],
    repeats: int,
    heard: Callable[[int], None] = lambda round_: None,
) -> Race:
    """Check, then time, our builds and ``libraries`` on as many cores as the target has.

    Each has a process of its own, and runs only while the others' threads sleep. Errors are
    against the first library that can run the model; TunefarmError if none can. ``heard`` is told
    the number of each turn as it begins.
    """
    module = subject.module()
    tasks, cores = api.extract_tasks(module, target), target.num_cores
    with subject.history() as history:
        decisions = history.lookup([t.workload for t in tasks], target, counts_of(tasks))
    is_tuned, feeds = any(d.tuned for d in decisions), random_feeds(module)
    with apart(make_ours, *(partial(make_library, name) for name in libraries)) as processes:
        ours, *others = processes
        peers, failures = _peers(dict(zip(libraries, others, strict=True)), subject, feeds, cores)
        contenders = ours.make(subject, target.text, feeds, is_tuned) | peers
        reference = next(iter(peers))
        errors = _errors(contenders, reference)
        timers = {n: c.timer for n, c in contenders.items() if c.timer is not None}
        with Pace(cores, patience_s=PATIENCE_S) as pace:
            seconds = in_turn(timers, repeats, SPAN_S, pace, heard)
            peak = pace.peak_flops()
    flops = sum(t.workload.flops * t.weight for t in tasks)
    row = Row(subject.path.stem, seconds, flops, peak, errors)
    return Race(cores, row, reference, history, failures, subject.precision, pace.turns)


def _peers(
    processes: Mapping[str, Apart], subject: Subject, feeds: Feeds, cores: int
) -> tuple[dict[str, Contender], dict[str, str]]:
    """The libraries that can run the model, and why the others cannot."""
    found: dict[str, Contender] = {}
    failures: dict[str, str] = {}
    for name, process in processes.items():
        try:
            made = process.make(subject, feeds, cores)
            made[name].call()
        except LibraryFailed as error:
            failures[name] = str(error)
        else:
            found |= made
    if not found:
        told = "; ".join(f"{name}: {why}" for name, why in failures.items())
        raise TunefarmError(f"no other library can run {subject.path} ({told})")
    return found, failures


def _errors(contenders: Mapping[str, Contender], reference: str) -> dict[str, float]:
    outputs = {}
    for name, contender in contenders.items():
        contender.call()
        outputs[name] = contender.outputs()
    return {name: largest_error(got, outputs[reference]) for name, got in outputs.items()}


def make_ours(subject: Subject, target: str, feeds: Feeds, is_tuned: bool) -> dict[str, Contender]:
    """Our builds, for a process of their own: with the records, if they make a difference, and
    with default configs alone."""
    module = subject.module()
    made = {}
    if is_tuned:
        made[TUNED] = _our_build(module, target, subject.history(), feeds)
    return made | {DEFAULT: _our_build(module, target, defaults(), feeds)}


def _our_build(module: IRModule, target: str, history: History, feeds: Feeds) -> Contender:
    with history:
        lib = api.build(module, target)
    arrays = lib.check_inputs(feeds)
    results = [aligned_empty(port.type) for port in lib.outputs]
    return Contender(lambda: lib.run_raw(arrays, results), lambda: results)


def make_library(library: str, subject: Subject, feeds: Feeds, cores: int) -> dict[str, Contender]:
    """A library, for a process of its own."""
    model, precision = subject.onnx(), subject.precision
    return {library: run_in(library, model, feeds, cores, subject.shapes, precision)}


def random_feeds(module: IRModule, seed: int = 0) -> Feeds:
    """Normal values, and integers of 0 and 1 (a mask, or tokens)."""
    rng = np.random.default_rng(seed)
    return {
        p.name: (
            rng.standard_normal(p.type.shape)
            if "float" in p.type.dtype
            else rng.integers(0, 2, p.type.shape)
        ).astype(numpy_dtype(p.type.dtype))
        for p in module.main.params
    }


def libraries_here(say: Callable[[str], None]) -> list[str]:
    """The libraries that can be imported; ``say`` hears how to install the others.

    TunefarmError if there is none.
    """
    found = installed()
    if not found:
        raise TunefarmError(f"--peers needs {' or '.join(LIBRARIES)}; {EXTRA} brings them")
    for name in LIBRARIES.keys() - found:
        say(f"{name} is not installed, and is left out; {EXTRA} brings it")
    return found


def race_columns(races: Sequence[Race]) -> list[Column]:
    """A row a library and number of cores; ``times ours`` is its time over that of our build."""
    rows = [(race, name) for race in races for name in race.row.seconds]
    seconds = [race.row.seconds[name] for race, name in rows]
    shares = [race.row.share(name) for race, name in rows]
    ratios = [race.row.seconds[name] / race.row.seconds[race.ours] for race, name in rows]
    return [
        Column("cores", [str(race.cores) for race, _ in rows], rank=5),
        Column("library", [race.shown(name) for race, name in rows], least=12, left=True),
        Column("latency", [duration(s) for s in seconds], rank=8),
        Column("times ours", [times(ratio) for ratio in ratios], rank=7),
        Column("of peak", [f"{100 * s:.0f}%" if s else "–" for s in shares], rank=4),
        Column("error", [_error(race, name) for race, name in rows], rank=6),
    ]


def _error(race: Race, name: str) -> str:
    return "reference" if name == race.reference else f"{race.row.errors[name]:.0e}"
