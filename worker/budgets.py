"""Time budgets of one trial, in seconds. Each clock starts when its phase starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Budgets:
    """``build_s`` bounds the build, ``run_s`` one run (a checked call, or one repeat), and
    ``trial_s`` everything from load to last repeat. ``reference_s`` bounds the reference answer
    of a workload, once a session.

    ``incumbent_s`` is the time to beat: a candidate slower than ``ABANDON`` times that in
    ``ABANDON_REPEATS`` repeats is abandoned. A final is ``paired_blocks`` blocks of
    ``paired_rounds`` repeats of each config.
    """

    build_s: float = 10.0
    run_s: float = 10.0
    trial_s: float = 60.0
    reference_s: float = 120.0
    incumbent_s: float = 0.0
    paired_rounds: float = 4.0
    paired_blocks: float = 8.0

    @staticmethod
    def of(values: Mapping[str, float]) -> Budgets:
        """Budgets from a request; names that are unknown here are ignored."""
        known = {f.name for f in fields(Budgets)}
        return Budgets(**{k: float(v) for k, v in values.items() if k in known})


ABANDON = 3.0
ABANDON_REPEATS = 2
