"""The records that builds use, the look-ups that find them, the finals that decide them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tunefarm.db.records.keys import BestKey, TrialKey
from tunefarm.db.records.trials import Trial


class Verdict(StrEnum):
    """Outcome of a paired final between a challenger and the incumbent."""

    BETTER = "better"
    SAME = "same"
    AMBIGUOUS = "ambiguous"


@dataclass(frozen=True, slots=True)
class Best:
    """The record that a build uses: promoted by a paired final, or provisional (lowest median).

    ``model`` names the model in whose whole runs it met its rival after that, if it did: the
    default of its task, or, if it is the default, the record that it took the place of.
    ``model_speedup`` is the speed of those runs with it over that with the rival. ``final_s`` is
    its time in the final that promoted it, where that timed it anew: unlike the trial's own it owes
    nothing to having been chosen for being low, nor to the moment of a single trial.
    """

    key: BestKey
    trial: Trial
    promoted: bool
    verdict: Verdict | None = None
    speedup_over_default: float | None = None
    model: str = ""
    model_speedup: float | None = None
    final_s: float | None = None

    @property
    def latency_s(self) -> float:
        """What it takes, in seconds: in its final if that is known, else in its trial."""
        return self.trial.median_s if self.final_s is None else self.final_s

    def _repr_html_(self) -> str:
        from tunefarm.notebook import page
        from tunefarm.texts import duration, times

        trial = self.trial
        facts = {
            "task": f"{self.key.workload[:12]}… for {self.key.target}",
            "device model": self.key.device_model,
            "config": trial.knobs,
            "latency": duration(self.latency_s) if trial.ok else "",
            "over the default": times(self.speedup_over_default),
            "verdict": self.verdict or "",
            "stands": "promoted by a final" if self.promoted else "provisional: no final was held",
            "trial": f"{trial.number} of job {trial.job}",
        }
        return page("Record", facts)


class Match(StrEnum):
    """How close a found record is to the key that was asked for, best first. A foreign one is of
    the same workload for a target that does not serve the wanted one: told, never used."""

    EXACT = "exact"
    TARGET = "target"
    COMPATIBLE = "compatible"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class Found:
    """One answer to a look-up: same device model, same target, a compatible target, or, alone,
    a foreign one."""

    best: Best
    match: Match


@dataclass(frozen=True, slots=True)
class Final:
    """The outcome of a paired final of two stored trials. ``incumbent`` is the promoted trial of
    the key that the challenger met, None if there was none; ``speedup`` is over it. With ``model``
    both were timed in whole runs of that model: verdict and ``speedup`` are of these, and an
    incumbent that stands is marked with them. ``latency_s`` is the median of the challenger's
    repeats in the final; None where it was not timed alone, or a tuner of before does not say."""

    key: BestKey
    challenger: TrialKey
    incumbent: TrialKey | None
    verdict: Verdict
    speedup: float | None = None
    speedup_over_default: float | None = None
    model: str = ""
    latency_s: float | None = None


@dataclass(frozen=True, slots=True)
class Promotion:
    """What a final changed: ``promoted`` tells whether the challenger now stands in the key, and
    ``best`` is the key's best after the call."""

    promoted: bool
    best: Best | None
