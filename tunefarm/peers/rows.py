"""What came of contenders on one workload: times, ratios, shares of the peak, errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DEFAULT, TUNED = "ours default", "ours tuned"


@dataclass(frozen=True, slots=True)
class Row:
    """One workload: median seconds of each contender, its nominal FLOPs and the peak beside it.

    ``errors`` are largest differences to the reference over its largest magnitude. ``peak`` is in
    FLOP/s and was measured next to the row; 0 leaves shares out.
    """

    name: str
    seconds: Mapping[str, float]
    flops: int = 0
    peak: float = 0.0
    errors: Mapping[str, float] = field(default_factory=dict)

    @property
    def best_peer(self) -> str | None:
        """The fastest contender that is not ours."""
        peers = [n for n in self.seconds if not is_ours(n)]
        return min(peers, key=self.seconds.__getitem__, default=None)

    def ratio(self, ours: str) -> float | None:
        """How many times faster ``ours`` is than the fastest peer; None without either."""
        peer = self.best_peer
        if peer is None or ours not in self.seconds:
            return None
        return self.seconds[peer] / self.seconds[ours]

    def share(self, name: str) -> float | None:
        """The share of the measured peak that ``name`` reaches in nominal FLOPs."""
        if not self.peak or not self.flops or name not in self.seconds:
            return None
        return self.flops / self.seconds[name] / self.peak


def is_ours(name: str) -> bool:
    return name.startswith("ours")
