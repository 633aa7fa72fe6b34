"""Bests of a model's tasks and their rivals, compared in whole runs: who stands at the end."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import log1p

from tunefarm.db.records import Best, BestKey, Found, Match, Trial, Verdict
from tunefarm.screening import effects, pairs_for
from tunefarm.whole_model import MIN_BLOCKS, Answers, WholeModel

FIRST_SHARE = 0.5  # of the time, for the race of all rivals, if what it finds can be refined


@dataclass(frozen=True, slots=True)
class Rival:
    """A task's promoted best, and a stored trial of it that may be better in the whole model."""

    best: Best
    challenger: Trial
    is_default: bool


@dataclass(slots=True)
class Meeting:
    """Rivals by the key of the best whose place they want, the heaviest first.

    ``winners`` stand in the places of their bests, with which the model is ``speedup`` times as
    fast as before. ``met`` are those that took part in a race, and ``decided`` tells of those of
    which one was clear how many times as fast it found the model with the rival. ``before_s`` are
    the seconds of a run with all bests; 0 before a race.
    """

    rivals: Mapping[BestKey, Rival]
    winners: frozenset[BestKey] = frozenset()
    speedup: float = 1.0
    met: frozenset[BestKey] = frozenset()
    decided: dict[BestKey, float] = field(default_factory=dict)
    before_s: float = 0.0

    def answers(self, keys: Collection[BestKey]) -> Answers:
        """What the records would say if the rivals of these keys stood."""
        return {
            key: (Found(Best(key, rival.challenger, promoted=True), Match.EXACT),)
            for key, rival in self.rivals.items()
            if key in keys
        }

    def hold(self, model: WholeModel) -> None:
        """Find who is to stand, in the time that the model has."""
        everyone = frozenset(self.rivals)
        are_defaults = any(rival.is_default for rival in self.rivals.values())
        if are_defaults or len(everyone) == 1:
            # at once, since what each costs may be less than the noise
            share = 1.0 if len(everyone) == 1 else FIRST_SHARE
            self._challenge(model, everyone, share * model.left_s)
        if len(everyone) > 1:
            self._refine(model)

    def _refine(self, model: WholeModel) -> None:
        """Screen which of the two each task should have: bests that are not to blame keep their
        places if the model is as fast with them, and rivals that help get them if it is faster."""
        gains = self._screen(model)
        mixed = frozenset(key for key, gain in gains.items() if gain > 0)
        if not mixed or mixed == self.winners:
            return
        if self.winners:
            self._reprieve(model, self.winners - mixed)
        elif sum(gains[key] for key in mixed) > log1p(model.noise):
            self._challenge(model, mixed, model.left_s)

    def _screen(self, model: WholeModel) -> dict[BestKey, float]:
        """The log of how many times as fast the model is with each rival; empty if there is no
        time to find it, and to confirm it then."""
        keys = list(self.rivals)
        pairs = pairs_for(len(keys), model.blocks_left() - MIN_BLOCKS)

        def gain(these: Sequence[int], those: Sequence[int]) -> float | None:
            sides = ([keys[i] for i in side] for side in (these, those))
            return model.block(*map(self.answers, sides)) if model.blocks_left() else None

        found = effects(len(keys), pairs, gain) if pairs else []
        return dict(zip(keys, found, strict=bool(found)))

    def _challenge(self, model: WholeModel, keys: frozenset[BestKey], seconds: float) -> None:
        """Let the rivals of these keys meet their bests; they stand if the model is faster."""
        outcome = model.race(self.answers(keys), {}, seconds)
        if outcome is None:
            return
        self.met |= keys
        self.before_s = self.before_s or model.run_s
        if outcome.verdict is not Verdict.AMBIGUOUS:
            self.decided |= dict.fromkeys(keys, outcome.speedup)
        if outcome.verdict is Verdict.BETTER:
            self.winners, self.speedup = keys, outcome.speedup

    def _reprieve(self, model: WholeModel, keys: frozenset[BestKey]) -> None:
        """Let bests whose rivals won meet these again; they stand if these are no faster."""
        kept = self.winners - keys
        outcome = model.race(self.answers(self.winners), self.answers(kept), model.left_s)
        if outcome is not None and outcome.verdict is Verdict.SAME:
            self.winners, self.speedup = kept, self.speedup / outcome.speedup
            self.decided |= dict.fromkeys(keys, outcome.speedup)
