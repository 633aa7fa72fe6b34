"""Whole runs of a model, built with one set of configs and with another, timed in pairs.

A block builds both afresh, as where code, weights and memory lie is luck; warms them up until
their times settle, as threads and pages take their time behind a build; and runs them in short
turns, each beside one of the other, as the machine slows down for moments. Its median log-ratio is
one sample, and equal builds give samples that are symmetric about zero: what twins differ by, by
chance or by place, is in their spread. Blocks are taken until the exact interval of the
signed-rank test (``tunefarm.tuner.finals``) decides, looked at a few times which share what may be
wrong, or until the time is over.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.target import Target
from tunefarm.db.records import BestKey, Found, Verdict

if TYPE_CHECKING:
    from tunefarm.compiler.ir import IRModule
    from tunefarm.compiler.runtime.module import Module
    from tunefarm.tuner.finals import Comparison

Answers = Mapping[BestKey, Sequence[Found]]
"""What records say, or would say."""

MODEL_BYTES = 2 << 30  # weights and memory of the builds that are there at once
BUILDS = 2
LOOKS = ((8, 0.3), (12, 0.2), (18, 0.2), (27, 0.15), (45, 0.15))
"""After how many blocks a race is looked at, and each look's share of the wrong wins."""
MIN_BLOCKS = LOOKS[0][0]
DOUBT = 0.05  # wrong wins of all looks together, either way
SAME_CONFIDENCE = 0.8  # that a challenger is not faster by more than the noise: one in ten is
ORDER = (0, 1, 1, 0, 1, 0, 0, 1)  # whose turn: drift, and drift that changes, meet both alike
TURN_S = 0.03
MIN_RUNS, MAX_RUNS = 2, 6  # of a turn, behind one that is not counted
REPEAT_S = 5e-4  # shorter runs are timed several at a time
SETTLED = 1.03  # a time that is not undercut by more has settled
SETTLING = 12  # turns at most; a busy machine never settles


@dataclass(frozen=True, slots=True)
class Asked:
    """A source of records that was asked before."""

    found: Answers

    def best(self, keys: Iterable[BestKey]) -> Answers:
        return {key: self.found.get(key, ()) for key in keys}


@dataclass(slots=True)
class WholeModel:
    """A model for a target on this machine, whose tasks have the configs that ``known`` records
    tell unless a build is given others. ``noise`` is a fraction: no smaller gain counts.

    ``run_s`` and ``block_s`` are the seconds of a run with the ``known`` and of a block, as the
    last block found them.
    """

    module: IRModule
    target: Target
    known: Answers
    noise: float
    deadline: float
    run_s: float = 0.0
    block_s: float = 0.0

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def blocks_left(self) -> int:
        """How many blocks the time left is enough for."""
        return max(0, int(self.left_s / self.block_s)) if self.block_s else 0

    def check_room(self) -> None:
        """Build, and time a run; TunefarmError if the builds of a block have no room."""
        built = self.build({})
        room = BUILDS * (built.plan.weight_bytes + built.plan.arena_bytes)
        if room > MODEL_BYTES:
            raise TunefarmError(
                f"{BUILDS} builds of the model take {room / 2**30:.1f} GiB, of which the closing "
                f"step may use {MODEL_BYTES / 2**30:.0f}"
            )
        begin = time.monotonic()  # the first build loaded and compiled what others find
        self.run_s = settled_s(self.build({}))
        turns_s = len(ORDER) * max(TURN_S, (1 + MIN_RUNS) * self.run_s)
        self.block_s = BUILDS * (time.monotonic() - begin) + turns_s

    def build(self, instead: Answers) -> Module:
        """The model with these records in the place of those known."""
        from tunefarm import api
        from tunefarm.compiler.dispatch import History

        with History(Asked({**self.known, **instead}), "the records"):
            return api.build(self.module, self.target)

    def block(self, challenger: Answers, opponent: Answers) -> float:
        """The log of how many times as fast the challenger's run is, from builds made for it."""
        begin = time.monotonic()
        models = (self.build(opponent), self.build(challenger))
        for model in models:
            settled_s(model)
        opponent_s, challenger_s = turns(models)
        self.run_s = statistics.median(opponent_s)
        self.block_s = time.monotonic() - begin
        return statistics.median(
            math.log(b / a) for a, b in zip(challenger_s, opponent_s, strict=True)
        )

    def race(self, challenger: Answers, opponent: Answers, seconds: float) -> Comparison | None:
        """Compare two builds in blocks until it is clear, or for about so many seconds.

        None if the deadline comes before there are enough to decide.
        """
        until = time.monotonic() + min(seconds, self.left_s)
        blocks: list[float] = []
        for count, doubt in LOOKS:
            while len(blocks) < count:
                end = until if len(blocks) >= MIN_BLOCKS else self.deadline
                if time.monotonic() + self.block_s > end:
                    return judge(blocks, self.noise, doubt) if len(blocks) >= MIN_BLOCKS else None
                blocks.append(self.block(challenger, opponent))
            outcome = judge(blocks, self.noise, doubt)
            if outcome.verdict is not Verdict.AMBIGUOUS:
                break
        return outcome


def judge(blocks: Sequence[float], noise: float, doubt: float) -> Comparison:
    """The verdict on a challenger after a look that may be wrong with this share of ``DOUBT``:
    ``blocks`` are logs of how many times as fast it was.

    better: surely faster, and by more than ``noise``; same: hardly faster by more than that.
    """
    from tunefarm.tuner.finals import Comparison, pseudomedian

    floor = math.log1p(noise)
    middle, low, high = pseudomedian(blocks, 1 - DOUBT * doubt)
    _, _, likely = pseudomedian(blocks, SAME_CONFIDENCE)
    verdict = Verdict.AMBIGUOUS
    if low > 0 and middle > floor:
        verdict = Verdict.BETTER
    elif likely <= floor:
        verdict = Verdict.SAME
    return Comparison(math.exp(middle), math.exp(low), math.exp(high), verdict)


def settled_s(model: Module) -> float:
    """Run a model until its times settle; the least of them in seconds.

    The first runs behind a build take up to four times as long as later ones: pages are new, and
    threads of a pool that were woken share a processor for milliseconds.
    """
    inputs = model.example_inputs()
    least, calm = math.inf, 0
    for _ in range(SETTLING):
        found = min(_seconds(model, inputs, MIN_RUNS))
        calm = calm + 1 if found * SETTLED >= least else 0
        least = min(least, found)
        if calm == 2:
            break
    return least


def turns(models: Sequence[Module]) -> tuple[list[float], list[float]]:
    """Seconds a run of two models, a figure a turn, the n-th of one beside the n-th of the
    other."""
    inputs = models[0].example_inputs()
    run_s = min(_seconds(models[0], inputs, MIN_RUNS))
    runs = min(max(MIN_RUNS, int(TURN_S / max(run_s, REPEAT_S))), MAX_RUNS)
    found: tuple[list[float], list[float]] = ([], [])
    for i in ORDER:
        found[i].append(_quarter(_seconds(models[i], inputs, runs)))
    return found


def _seconds(model: Module, inputs: Mapping[str, object], runs: int) -> Sequence[float]:
    timing = model.time_evaluator(inputs, repeat=runs, min_repeat_ms=1e3 * REPEAT_S)
    return timing.seconds


def _quarter(seconds: Sequence[float]) -> float:
    """The lower quartile: what interrupts a run makes it longer, never shorter."""
    return sorted(seconds)[len(seconds) // 4]
