"""Waking long polls: a bell rings when one of the topics it listens to has news."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tunefarm.tracker.counts import idling


class Bell:
    """Rings once for any number of news since it was last silenced."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()

    def silence(self) -> None:
        """Call this before looking at the state, so that no news in between is missed."""
        self._event.clear()

    async def rings(self, timeout_s: float) -> bool:
        """Whether it rang within ``timeout_s``."""
        if timeout_s <= 0:
            return self._event.is_set()
        with idling():
            try:
                await asyncio.wait_for(self._event.wait(), timeout_s)
            except TimeoutError:
                return False
            return True


class Signals:
    """Topics and the bells that listen to them; used on the event loop only."""

    def __init__(self) -> None:
        self._bells: dict[str, set[Bell]] = {}
        self._rung: Counter[str] = Counter()

    def notify(self, *topics: str) -> None:
        for topic in topics:
            if topic.startswith(_DEVICE):
                self._rung[topic] += 1
            for bell in self._bells.get(topic, ()):
                bell.ring()

    def heard(self, devices: Iterable[str]) -> tuple[int, ...]:
        """How often there was news of each of these topics of devices: the same, no news."""
        return tuple(self._rung[topic] for topic in devices)

    def notify_all(self) -> None:
        self.notify(*self._bells)

    @contextmanager
    def listen(self, *topics: str) -> Iterator[Bell]:
        bell = Bell()
        for topic in topics:
            self._bells.setdefault(topic, set()).add(bell)
        try:
            yield bell
        finally:
            for topic in topics:
                self._bells[topic].discard(bell)
                if not self._bells[topic]:
                    del self._bells[topic]


JOBS = "jobs"
LEASES = "leases"
_DEVICE = "device "


def job(name: str) -> str:
    return f"job {name}"


def device(name: str) -> str:
    return f"{_DEVICE}{name}"
