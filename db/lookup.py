"""Which stored record answers a look-up: the order, and the same order over records in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from tunefarm.db.records import Best, BestKey, Found, Match, Trial, Verdict

Compatible = Callable[[str, str], bool]
"""Whether code tuned for the second target string may serve the first."""

Slot = tuple[BestKey, str, str]
"""A key, a space fingerprint and a compiler version: times are compared within these."""

_ORDER = {match: position for position, match in enumerate(Match)}


def same_code(wanted: str, stored: str) -> bool:
    """Targets that differ in the number of cores only."""
    return _without_cores(wanted) == _without_cores(stored)


def _without_cores(target: str) -> frozenset[str]:
    kind, *options = target.split()
    return frozenset([kind, *(o for o in options if not o.lstrip("-").startswith("num-cores="))])


def match_of(wanted: BestKey, stored: BestKey, compatible: Compatible = same_code) -> Match | None:
    """How close the stored key is to the wanted one, None if it is of another workload or
    protocol."""
    if stored.workload != wanted.workload or stored.protocol != wanted.protocol:
        return None
    if stored.target != wanted.target:
        return Match.COMPATIBLE if compatible(wanted.target, stored.target) else Match.FOREIGN
    return Match.EXACT if stored.device_model == wanted.device_model else Match.TARGET


def rank(
    wanted: BestKey, stored: Iterable[Best], compatible: Compatible = same_code
) -> tuple[Found, ...]:
    """What serves a key, closest first; then the promoted before the provisional, the newest
    before the older (those of several spaces and compiler versions stand side by side). Where
    nothing serves it, the first of the foreign ones."""
    found = [
        Found(best, match)
        for best in stored
        if (match := match_of(wanted, best.key, compatible)) is not None
    ]
    found.sort(key=lambda f: (_ORDER[f.match], not f.best.promoted, -f.best.trial.created_at))
    serving = [one for one in found if one.match is not Match.FOREIGN]
    return tuple(serving or found[:1])


def merged(answers: Iterable[Sequence[Found]]) -> tuple[Found, ...]:
    """What serves any of several keys, closest first; of those as close, the first key's."""
    return tuple(sorted((f for found in answers for f in found), key=lambda f: _ORDER[f.match]))


TRIAL_NOISE = 0.03
"""What two trials of one kernel differ by at the least, as the best of many was chosen for luck
too; a fraction."""


def beats_default(best: Best) -> bool:
    """Whether a build should use the record: promoted, or provisional and faster than the default
    by more than two trials of one kernel differed on its device when it was measured. A record
    without a default is taken."""
    if best.promoted or best.speedup_over_default is None:
        return True
    return is_gain(best.speedup_over_default, best.trial.device_state)


def is_gain(speedup: float, device_state: Mapping[str, float]) -> bool:
    """Whether a trial in this state of its device was faster by more than two of one kernel
    differ."""
    return speedup > 1 + max(device_state.get("noise", TRIAL_NOISE), TRIAL_NOISE)


class RecordIndex:
    """Records in memory (a JSON-lines file, the starter records), looked up like a database."""

    def __init__(self, trials: Iterable[Trial], promoted: Iterable[Best] = ()) -> None:
        self.trials = tuple(trials)
        self._best: dict[str, dict[Slot, Best]] = {}
        defaults = _defaults(self.trials)
        for trial in self.trials:
            if trial.ok:
                self._offer(trial, defaults)
        for best in promoted:
            self._best.setdefault(best.key.workload, {})[slot_of(best.trial)] = best

    def best(
        self, keys: Iterable[BestKey], compatible: Compatible = same_code
    ) -> dict[BestKey, tuple[Found, ...]]:
        """For each key what is known, closest first; empty where nothing is."""
        return {
            key: rank(key, self._best.get(key.workload, {}).values(), compatible) for key in keys
        }

    def _offer(self, trial: Trial, defaults: Mapping[Slot, float]) -> None:
        slot = slot_of(trial)
        key = slot[0]
        mine = self._best.setdefault(key.workload, {})
        if slot not in mine or trial.median_s < mine[slot].trial.median_s:
            default_s = defaults.get(slot)
            speedup = default_s / trial.median_s if default_s else None
            mine[slot] = Best(key, trial, promoted=False, speedup_over_default=speedup)


def best_key_of(trial: Trial) -> BestKey:
    """The key that a trial competes for."""
    return BestKey(trial.task.workload, trial.task.target, trial.device_model, trial.protocol)


def slot_of(trial: Trial) -> Slot:
    """The trials that its time is compared with: those of the same slot."""
    return (best_key_of(trial), trial.space_fingerprint, trial.compiler_version)


def _defaults(trials: Iterable[Trial]) -> dict[Slot, float]:
    return {slot_of(t): t.median_s for t in trials if t.number == 0 and t.ok}


def settles(verdict: Verdict, number: int, incumbent_stands: bool) -> bool:
    """Whether a final puts its challenger into the key: it won, or it is the default (trial 0)
    and nothing stood there."""
    return verdict is Verdict.BETTER or (number == 0 and not incumbent_stands)
