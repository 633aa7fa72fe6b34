"""One look at the database for all who follow something in it.

A thread looks once a second, while anybody follows anything. On SQLite it asks no more than whether
somebody wrote, and only then what that changed. Those who follow are told of a change at the most
every ``PAUSE_S``, one subject at a time, and only while the ``Allowance`` lasts; none is lost: it
is told as soon as that may be.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from sqlalchemy import Connection
from tunefarm.dashboard.allowance import Allowance
from tunefarm.db.errors import StoreError
from tunefarm.db.store import Store

LOOK_S = 1.0
PAUSE_S = 3.0


@dataclass(frozen=True, slots=True)
class Mark:
    """What differs when a page would show something else. ``state`` changes rarely: what people may
    be typing into hangs on that alone."""

    content: str
    state: str = ""

    def __str__(self) -> str:
        return f"{self.state}.{self.content}"

    @staticmethod
    def parse(text: str) -> Mark | None:
        """The mark that was written so; None of other texts."""
        state, point, content = text.partition(".")
        return Mark(content, state) if point else None


@dataclass(frozen=True, slots=True)
class Subject:
    """Something that is followed, and how its mark is read; two of a name are the same."""

    name: Hashable
    mark: Callable[[Connection], Mark] = field(compare=False)


@dataclass(eq=False)
class Viewer:
    """Somebody who follows a subject: what they have seen of it, and where they hear of news."""

    subject: Subject
    seen: Mark | None
    loop: asyncio.AbstractEventLoop
    news: asyncio.Queue[tuple[Mark, bool]]

    def tell(self, mark: Mark) -> None:
        """The mark as it is now, and whether its state is another."""
        has_turned = self.seen is not None and self.seen.state != mark.state
        self.seen = mark
        with suppress(RuntimeError):  # the loop has ended, and with it who listened
            self.loop.call_soon_threadsafe(self.news.put_nowait, (mark, has_turned))


class Watch:
    """Looks at a database for its viewers; see above."""

    def __init__(self, store: Store, allowance: Allowance | None = None) -> None:
        self._store = store
        self._allowance = allowance or Allowance()
        self._viewers: dict[Viewer, None] = {}  # in the order in which they came
        self._told_at: dict[Subject, float] = {}
        self._lock = threading.Lock()
        self._is_looking = False

    @contextmanager
    def following(self, subject: Subject, seen: Mark | None) -> Iterator[Viewer]:
        """Hear of the subject's changes since ``seen``, or since the first look from now."""
        viewer = Viewer(subject, seen, asyncio.get_running_loop(), asyncio.Queue())
        with self._lock:
            self._viewers[viewer] = None
            starts, self._is_looking = not self._is_looking, True
        if starts:
            threading.Thread(target=self._look_on, name="watch", daemon=True).start()
        try:
            yield viewer
        finally:
            with self._lock:
                self._viewers.pop(viewer, None)

    def _look_on(self) -> None:
        """Look once in a while, until nobody follows anything."""
        while self._goes_on():
            try:
                with self._store.watching() as stamp:
                    self._look_by(stamp)
            except StoreError:  # it may be back a little later
                time.sleep(LOOK_S)
            except BaseException:  # a bug: the next who comes starts anew
                with self._lock:
                    self._is_looking = False
                raise

    def _goes_on(self) -> bool:
        """Whether somebody follows something; if nobody does, the next who comes starts anew."""
        with self._lock:
            self._is_looking = bool(self._viewers)
            return self._is_looking

    def _look_by(self, stamp: Callable[[], int | None]) -> None:
        """Look whenever the stamp tells of a change, or somebody has not heard of one."""
        settled: tuple[int, tuple[Viewer, ...]] | None = None
        while viewers := self._present():
            found = stamp()
            if found is None or settled != (found, viewers):
                has_told_all = self.look(viewers)
                settled = (found, viewers) if has_told_all and found is not None else None
            time.sleep(LOOK_S)

    def _present(self) -> tuple[Viewer, ...]:
        with self._lock:
            return tuple(self._viewers)

    def look(self, viewers: Sequence[Viewer]) -> bool:
        """Tell those who may hear of it now what changed; whether everybody has heard of all."""
        now = time.monotonic()
        subjects = {viewer.subject for viewer in viewers}
        self._told_at = {one: self._told_at.get(one, -PAUSE_S) for one in subjects}
        due = [one for one in subjects if now - self._told_at[one] >= PAUSE_S]
        if not due or not self._allowance.has_some:
            return False
        with self._store.reading() as connection:
            marks = {subject: subject.mark(connection) for subject in due}
        for viewer in viewers:
            viewer.seen = viewer.seen or marks.get(viewer.subject)
        late = [v for v in viewers if v.subject in marks and v.seen != marks[v.subject]]
        if late:
            chosen = min((viewer.subject for viewer in late), key=self._told_at.__getitem__)
            self._told_at[chosen] = now
            for viewer in late:
                if viewer.subject == chosen:
                    viewer.tell(marks[chosen])
        return not late and len(due) == len(subjects)
