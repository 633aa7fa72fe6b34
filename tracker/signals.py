"""Waking long polls: a bell rings when one of the topics it listens to has news."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from tunefarm.tracker.counts import idling


class Bell:
    """Rings once for any number of news since it was last silenced.

    A wait ends after ``poll_s`` at the latest: whoever waits looks for itself again then.
    """

    def __init__(self, poll_s: float = math.inf) -> None:
        self._event = asyncio.Event()
        self._poll_s = poll_s

    def ring(self) -> None:
        self._event.set()

    def silence(self) -> None:
        """Call this before looking at the state, so that no news in between is missed."""
        self._event.clear()

    async def wait(self) -> None:
        """Until it rings."""
        await self._event.wait()

    async def rings(self, timeout_s: float) -> bool:
        """Whether it rang within ``timeout_s`` and ``poll_s``."""
        if timeout_s <= 0:
            return self._event.is_set()
        with idling():
            try:
                await asyncio.wait_for(self._event.wait(), min(timeout_s, self._poll_s))
            except TimeoutError:
                return False
            return True


class Signals:
    """Topics and the bells that listen to them; used on the event loop only.

    Where other trackers serve the same database, ``relay`` tells them what is notified here, and
    ``poll_s`` is how soon a wait looks again for news that got lost between them.
    """

    def __init__(self) -> None:
        self.relay: Callable[[Iterable[str]], None] | None = None
        self.poll_s = math.inf
        self._bells: dict[str, set[Bell]] = {}
        self._rung: Counter[str] = Counter()

    def notify(self, *topics: str) -> None:
        """Ring for news that this tracker has made."""
        self.ring(*topics)
        if self.relay is not None:
            self.relay(topics)

    def ring(self, *topics: str) -> None:
        """Ring for news that all trackers have."""
        for topic in topics:
            if topic.startswith(_DEVICE):
                self._rung[topic] += 1
            for bell in self._bells.get(topic, ()):
                bell.ring()

    def is_own(self, topic: str) -> bool:
        """Whether no other tracker waits for news of the topic: a device's worker is at one, and
        there is a job without a name that nobody watches."""
        if topic.startswith(_END):
            topic = device(topic.removeprefix(_END))
        return topic == job("") or (topic.startswith(_DEVICE) and topic in self._bells)

    def heard(self, devices: Iterable[str]) -> tuple[int, ...]:
        """How often there was news of each of these topics of devices: the same, no news."""
        return tuple(self._rung[topic] for topic in devices)

    def notify_all(self) -> None:
        self.ring(*self._bells)

    @contextmanager
    def listen(self, *topics: str) -> Iterator[Bell]:
        bell = Bell(self.poll_s)
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
CLOSING = "closing"
"""Of interest to what goes on until the tracker ends: ``notify_all`` rings for it."""
_DEVICE = "device "
_END = "end "


def job(name: str) -> str:
    return f"job {name}"


def device(name: str) -> str:
    """There may be work for the device."""
    return f"{_DEVICE}{name}"


def end(name: str) -> str:
    """The device's lease has ended: of interest to a worker that holds work of it."""
    return f"{_END}{name}"
