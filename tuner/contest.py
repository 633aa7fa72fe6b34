"""The finals of a job: paired measurements, verdicts, and promotion of each task's best."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tunefarm.compiler.version import version_with
from tunefarm.db.records import (
    LOOK,
    Best,
    BestKey,
    Final,
    Match,
    Promotion,
    Trial,
    TrialRequest,
    Verdict,
)
from tunefarm.tuner.finals import DEFAULT_NOISE, LOOKS, MOST_NOISE, ROUNDS, Outcome, decide
from tunefarm.tuner.measuring import Bench
from tunefarm.tuner.tasks import TaskRun, plain

if TYPE_CHECKING:
    from tunefarm.proto.client import FarmClient

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Contest:
    """One task's final. ``entrants`` are stored trials: challengers, then incumbent and default.

    All their configs are built and timed afresh, so an incumbent of another compiler version never
    competes with its stored times. ``rows_s`` are the repeats of each config over its ``looks``.
    """

    task: TaskRun
    key: BestKey
    challengers: list[Trial]
    incumbent: Trial | None
    default: Trial | None
    looks: int = 0
    rows_s: dict[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def entrants(self) -> list[Trial]:
        fixed = [t for t in (self.incumbent, self.default) if t is not None]
        return [*self.challengers, *_distinct(fixed)]

    def place(self, trial: Trial | None) -> int | None:
        """The row of a trial's config among the entrants."""
        if trial is None:
            return None
        return [plain(t.config) for t in self.entrants].index(plain(trial.config))

    def request(self) -> TrialRequest:
        """The next look at it."""
        budgets = {
            "paired_blocks": LOOKS[self.looks].blocks,
            "paired_rounds": ROUNDS,
            LOOK: self.looks + 1,  # for whoever watches
        }
        return self.task.final_request([t.config for t in self.entrants], budgets)

    def add(self, trial: Trial) -> None:
        """Take in the repeats of a look; a config that failed in one is out."""
        for entrant, row in zip(self.entrants, trial.paired_times_s, strict=True):
            config = plain(entrant.config)
            before = self.rows_s.get(config, ())
            both = bool(row) and (bool(before) or not self.looks)
            self.rows_s[config] = before + row if both else ()
        self.looks += 1

    def median_s(self, place: int) -> float | None:
        """The median of an entrant's repeats over the looks; None if it gave no answer."""
        row = self.rows_s[plain(self.entrants[place].config)]
        return statistics.median(row) if row else None

    def outcome(self, noise: float) -> Outcome:
        """What the looks so far say."""
        rows_s = [self.rows_s[plain(t.config)] for t in self.entrants]
        default, incumbent = self.place(self.default), self.place(self.incumbent)
        return decide(rows_s, default, incumbent, noise, self.looks - 1)


def hold_finals(
    client: FarmClient,
    bench: Bench,
    tasks: Sequence[TaskRun],
    finalists: int,
    deadline: float = math.inf,
) -> None:
    """Decide every task that has something to decide, and promote the winners.

    A final whose first config fails is held again without it; one that leaves the question open is
    looked at again, until ``deadline`` on the monotonic clock.
    """
    waiting = _contests(client, bench, tasks, finalists)
    while waiting:
        for contest in [c for c in waiting if len(c.entrants) == 1]:
            _settle_alone(bench, contest)
        held = {contest.task.key: contest for contest in waiting if len(contest.entrants) > 1}
        requests = [contest.request() for contest in held.values()]
        waiting = []
        for trial in bench.measure(requests):
            contest = held[trial.task]
            contest.task.absorb([trial])
            if not any(trial.paired_times_s):
                waiting += _without(contest, contest.entrants[0])
            elif not _settle(bench, contest, trial, time.monotonic() < deadline):
                waiting.append(contest)


def _contests(
    client: FarmClient, bench: Bench, tasks: Sequence[TaskRun], finalists: int
) -> list[Contest]:
    model = bench.device.model
    keys = {t.key: BestKey(t.key.workload, t.key.target, model, t.protocol) for t in tasks}
    known = client.best(keys.values())
    contests = []
    for task in tasks:
        key = keys[task.key]
        standing = [f.best for f in known.get(key, ()) if f.match is Match.EXACT]
        incumbent = _incumbent(task, standing)
        if incumbent is not None and incumbent.job == task.job:
            continue  # an earlier process of this job decided it
        version = version_with(bench.device.compiler_version, task.plugins)
        if incumbent and incumbent.compiler_version == version and not task.trials:
            continue  # nothing was measured here: the standing best is the outcome of its job
        default = task.default_trial if task.default_trial and task.default_trial.ok else None
        taken = {plain(t.config) for t in (incumbent, default) if t is not None}
        challengers = [
            t
            for t in task.candidates(model, finalists + len(taken))
            if plain(t.config) not in taken and _promising(t, default)
        ][:finalists]
        contest = Contest(task, key, challengers, incumbent, default)
        if contest.entrants:
            contests.append(contest)
    return contests


def _incumbent(task: TaskRun, standing: Sequence[Best]) -> Trial | None:
    """The promoted trial of the key whose config the present space still has."""
    for best in standing:
        if best.promoted and task.fits(best.trial.config):
            return best.trial
    return None


def _promising(trial: Trial, default: Trial | None) -> bool:
    """A config that was seen slower than the default need not be timed again."""
    return default is None or trial.median_s < default.median_s


def _distinct(trials: Sequence[Trial]) -> list[Trial]:
    return list({plain(t.config): t for t in trials}.values())


def _without(contest: Contest, failed: Trial) -> list[Contest]:
    """The contest without an entrant that gave no time; none if nobody is left."""
    config = plain(failed.config)
    if contest.incumbent is not None and plain(contest.incumbent.config) == config:
        contest.incumbent = None
    if contest.default is not None and plain(contest.default.config) == config:
        contest.default = None
    contest.challengers = [t for t in contest.challengers if plain(t.config) != config]
    return [contest] if contest.entrants else []


def _settle_alone(bench: Bench, contest: Contest) -> None:
    """Only one config has a time: the default takes an empty key, an incumbent stands. A default
    that alone was tried is no outcome of a search, and takes none."""
    (only,) = contest.entrants
    if contest.incumbent is None and (only is not contest.default or contest.task.is_searched):
        verdict = Verdict.SAME if only is contest.default else Verdict.BETTER
        over_default = 1.0 if only is contest.default else None
        final = Final(contest.key, only.key, None, verdict, None, over_default)
        _report(contest, bench.promote(final), final)


def _settle(bench: Bench, contest: Contest, trial: Trial, may_go_on: bool) -> bool:
    """Decide from the paired times, and store the verdict; False if another look is needed."""
    contest.add(trial)
    outcome = contest.outcome(min(bench.device.noise or DEFAULT_NOISE, MOST_NOISE))
    if outcome.verdict is Verdict.AMBIGUOUS and contest.looks < len(LOOKS) and may_go_on:
        return False
    final = Final(
        contest.key,
        _stored(contest, outcome, trial).key,
        None if contest.incumbent is None else contest.incumbent.key,
        outcome.verdict,
        outcome.speedup,
        outcome.over_default,
        latency_s=contest.median_s(outcome.challenger),
    )
    _report(contest, bench.promote(final), final)
    return True


def _stored(contest: Contest, outcome: Outcome, trial: Trial) -> Trial:
    """The stored trial that stands for the challenger.

    The default is trial 0; the first entrant is the final itself, whose fresh times owe nothing to
    having been chosen for being low.
    """
    entrant = contest.entrants[outcome.challenger]
    return trial if outcome.challenger == 0 and entrant is not contest.default else entrant


def _report(contest: Contest, promotion: Promotion, final: Final) -> None:
    _log.info(
        "task=%s final: trial %d is %s (%.3fx over the default)%s",
        contest.task.key.workload[:8],
        final.challenger.number,
        final.verdict,
        final.speedup_over_default or float("nan"),
        ", promoted" if promotion.promoted else "",
    )
