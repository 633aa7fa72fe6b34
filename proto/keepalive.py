"""Renewal of a lease or a claim in a background thread."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

from tunefarm.proto.errors import ClaimLost, FarmError, LeaseLost, NotFound
from tunefarm.proto.pauses import SPREAD

T = TypeVar("T")


class Keepalive(Generic[T]):
    """Calls ``renew`` every third of ``term_s`` until closed, sooner after one that failed.

    ``latest`` is what it last returned. ``lost`` is set, and ``error`` says why, when the tracker
    refuses. Silence ends nothing: a tracker that was away gives a full term of grace, and what
    has lapsed meanwhile it refuses itself, as it does all that is sent under it.
    """

    def __init__(self, renew: Callable[[], T], initial: T, term_s: float) -> None:
        self.latest = initial
        self.lost = threading.Event()
        self.error: FarmError | None = None
        self._renew = renew
        self._term_s = term_s
        self._closed = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="tunefarm-renew", daemon=True)
        self._thread.start()

    def check(self) -> T:
        """``latest``; raises what ended the renewal if it is lost."""
        if self.error is not None:
            raise self.error
        return self.latest

    @property
    def is_heard(self) -> bool:
        """Whether the tracker answered the last time it was asked."""
        return not self._failing

    def close(self) -> None:
        self._closed.set()
        self._thread.join(self._term_s)

    def __enter__(self) -> Keepalive[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        pause_s = self._regular_s()
        while not self._closed.wait(pause_s):
            pause_s = self._regular_s()
            try:
                self.latest = self._renew()
                self._failing = False
            except (LeaseLost, ClaimLost, NotFound) as error:
                return self._give_up(error)
            except FarmError:
                self._failing = True
                pause_s = self._term_s / 20
        return None

    def _regular_s(self) -> float:
        """A third of the term, or a little less: not all of those that came at once come again."""
        return self._term_s / 3 * random.uniform(*SPREAD)

    def _give_up(self, error: FarmError) -> None:
        self._failing = True
        self.error = error
        self.lost.set()
