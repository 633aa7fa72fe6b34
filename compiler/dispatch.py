"""Look-up of tuned configs while a model is built: ``apply_history_best``.

    with apply_history_best("sqlite:///tunefarm.db") as history:
        lib = tunefarm.build(mod)
    print(history.explain())

A source that cannot be read never breaks a build: it is one warning and the defaults, unless
``strict`` makes it an error.
"""

from __future__ import annotations

import contextvars
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from tunefarm.compiler.decisions import Decision, Status, decide, keys_of
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.from_memory import read_from_memory
from tunefarm.compiler.host import model_of
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Task, Workload
from tunefarm.db.records import BestKey, Found, Trial


class Source(Protocol):
    """Anything that answers many keys at once, closest record first."""

    def best(self, keys: Iterable[BestKey]) -> Mapping[BestKey, Sequence[Found]]: ...


@dataclass(frozen=True, slots=True)
class Untuned:
    """A task that a build found no record for, how often the model runs it, and whether its weights
    come from memory then."""

    workload: Workload
    target: Target
    weight: int
    from_memory: bool = False


class HistoryError(TunefarmError):
    """A source of records that cannot be read, or an untuned task where ``strict`` forbids it."""


@dataclass
class History:
    """The context that ``apply_history_best`` makes: answers look-ups and remembers them."""

    source: Source | None
    origin: str
    strict: bool = False
    on_miss: Callable[[Decision], None] | None = None
    starter: bool = True
    report: Callable[[Sequence[Untuned]], None] | None = None
    note: Callable[[Sequence[Task]], None] | None = None
    decisions: dict[tuple[str, str], Decision] = field(default_factory=dict)
    _tokens: list[contextvars.Token[History | None]] = field(default_factory=list)

    def __repr__(self) -> str:
        """One line: where the records are from, and how many tasks have which status."""
        counts = Counter(str(decision.status) for decision in self.decisions.values())
        told = ", ".join(f"{number} {status}" for status, number in counts.most_common())
        return f"History({self.origin}: {told or 'nothing was looked up'})"

    def _repr_html_(self) -> str:
        from tunefarm.notebook import Table, page
        from tunefarm.texts import duration, times

        rows = []
        for made in self.decisions.values():
            best = made.found.best if made.found is not None and made.settled else None
            time = duration(best.latency_s) if best is not None else "–"
            gain = times(best.speedup_over_default if best is not None else None)
            rows.append((made.workload.summary, made.status, made.why, time, gain))
        head = ("task", "status", "why", "latency", "over the default")
        return page("What builds use", {"records": self.origin}, Table(head, rows, 3))

    def __enter__(self) -> History:
        self._tokens.append(_CURRENT.set(self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _CURRENT.reset(self._tokens.pop())

    def lookup(
        self,
        workloads: Sequence[Workload],
        target: Target,
        weights: Mapping[Workload, int] | None = None,
    ) -> list[Decision]:
        """A decision for each workload, from one query.

        ``weights`` says how often the model whose tasks these are runs each, for whoever notes
        models or hears of untuned tasks, and for where the tasks find their weights. Raises
        HistoryError in strict mode if the source fails or a task has no record.
        """
        from tunefarm.db.lookup import merged

        model, weigh = model_of(target), weights or {}
        cold = read_from_memory({w: weigh[w] for w in workloads if w in weigh}, target)
        keys = {w: keys_of(w.key, target, model, w in cold) for w in workloads}
        found = self._ask([key for mine in keys.values() for key in mine])
        if self.note is not None and self.source is not None and workloads and weights:
            self.note([Task(w, target, weights[w], from_memory=w in cold) for w in workloads])
        made = [
            decide(
                w,
                target,
                merged(found.get(key, ()) for key in keys[w]),
                starter=self.starter,
                from_memory=w in cold,
            )
            for w in workloads
        ]
        missed = [decision.workload for decision in made if not decision.settled]
        self._report([Untuned(w, target, weigh.get(w, 1), w in cold) for w in missed])
        for decision in made:
            self.decisions[decision.workload.key, target.text] = decision
            if not decision.settled:
                self._missed(decision)
        return made

    def _ask(self, keys: Sequence[BestKey]) -> Mapping[BestKey, Sequence[Found]]:
        if self.source is None:
            return {}
        try:
            return self.source.best(keys)
        except Exception as error:
            self._unreadable(error)
            return {}

    def _unreadable(self, error: Exception) -> None:
        message = f"tuned records of {self.origin} cannot be used: {error}"
        if self.strict:
            raise HistoryError(message) from error
        self.source = None
        warnings.warn(f"{message}; default configs are used", stacklevel=6)

    def _report(self, untuned: Sequence[Untuned]) -> None:
        """Tell the farm; what is in the way is one warning, as it never breaks a build."""
        if self.report is None or not untuned:
            return
        try:
            self.report(untuned)
        except Exception as error:
            self.report = None
            warnings.warn(
                f"untuned tasks could not be reported to {self.origin}: {error}", stacklevel=6
            )

    def _missed(self, decision: Decision) -> None:
        if self.strict:
            raise HistoryError(
                f"no tuned record of {decision.workload.summary} for {decision.target} in "
                f"{self.origin} ({decision.reason}), and strict=True; tune it first"
            )
        if self.on_miss is not None:
            self.on_miss(decision)

    def explain(self) -> str:
        """A line for each task that was looked up: which record it uses, and what differs."""
        return "\n".join(
            f"{d.status:<10} {d.workload.summary}: {d.reason}" for d in self.decisions.values()
        )

    def summary(self, command: str) -> str:
        """One line for the end of a build; ``command`` is what tunes the rest, if anything can."""
        made = list(self.decisions.values())
        count = Counter(d.status for d in made)
        tuned = sum(d.tuned for d in made)
        text = (
            f"{tuned} tuned, {count[Status.CONFIRMED]} confirmed, {count[Status.DEFAULT]} default, "
            f"{count[Status.STALE]} stale tasks"
        )
        why = next((d for d in made if d.status is Status.STALE), None)
        if why is not None:
            text += f" ({why.workload.summary}: {why.reason})"
        elif count[Status.CONFIRMED]:
            text += " (confirmed: tuning found nothing faster than the default)"
        settled = all(d.settled for d in made)
        return text if settled or not command else f"{text}; tune the rest with: {command}"


_CURRENT: contextvars.ContextVar[History | None] = contextvars.ContextVar("history", default=None)


def apply_history_best(
    source: str | os.PathLike[str] | Iterable[Trial],
    *,
    strict: bool = False,
    on_miss: Callable[[Decision], None] | None = None,
    starter: bool = True,
    report_to: Callable[[Source], Callable[[Sequence[Untuned]], None]] | None = None,
    note_to: Callable[[Source], Callable[[Sequence[Task]], None]] | None = None,
) -> History:
    """Use the best records of ``source`` in every ``build`` inside the ``with`` block.

    ``source`` is a database URL, a JSON-lines file, records, or ``tracker://host:port``. With
    ``strict`` an unreadable source and a task without a record raise HistoryError; otherwise the
    first is one warning and the second gets its default config. ``on_miss`` hears of such tasks.
    Lines of a file that are no records are one warning, and the others serve.
    Without ``starter`` the records that ship with the package are left out: an empty source then
    gives every task its default. ``report_to`` makes, of a source that was opened, what hears of
    all untuned tasks of a build at once, and ``note_to`` what hears of all its tasks.
    """
    if not isinstance(source, (str, os.PathLike)):
        source = _trials(source)
    origin = str(source) if isinstance(source, (str, os.PathLike)) else "the given records"
    history = History(None, origin, strict, on_miss, starter)
    try:
        history.source = open_source(source)
        history.report = report_to(history.source) if report_to is not None else None
        history.note = note_to(history.source) if note_to is not None else None
    except Exception as error:
        history._unreadable(error)
    return history


def _trials(source: Iterable[Trial]) -> tuple[Trial, ...]:
    """The records that a caller gives; TunefarmError if they are something else."""
    trials = tuple(source) if isinstance(source, Iterable) else ()
    wrong = [t for t in trials if not isinstance(t, Trial)]
    if wrong or not isinstance(source, Iterable):
        kind = f"a list of {type(wrong[0]).__name__}" if wrong else type(source).__name__
        raise TunefarmError(
            "apply_history_best takes a database (URL or file), a JSON-lines file, "
            f"tracker://HOST:PORT or trials, not {kind}"
        )
    return trials


def open_source(source: str | os.PathLike[str] | Iterable[Trial]) -> Source:
    """Open what ``apply_history_best`` takes."""
    if not isinstance(source, (str, os.PathLike)):
        from tunefarm.db.lookup import RecordIndex

        return RecordIndex(source)
    text = os.fspath(source)
    if text.startswith("tracker://"):
        if _TRACKER_SOURCE is None:
            raise TunefarmError("a tracker as source needs the farm: import tunefarm first")
        return _TRACKER_SOURCE(text.removeprefix("tracker://"))
    if "://" in text:
        from tunefarm.db.store import Store

        return Store.open(text, readonly=True)
    from tunefarm.db import jsonl

    path = Path(text).expanduser()
    if _is_sqlite(path):
        from tunefarm.db.store import Store

        return Store.open(str(path), readonly=True)
    found = jsonl.read(path)
    if found.problems:
        others = len(found.problems) - 1
        more = f", and {others} other{'s' * (others > 1)}" if others else ""
        warnings.warn(f"{found.problems[0]}{more}", stacklevel=3)
    return found.index()


def _is_sqlite(path: Path) -> bool:
    """Whether a file is a SQLite database, by its first bytes; StoreError if it is unreadable."""
    from tunefarm.db.errors import StoreError

    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error


_SQLITE = b"SQLite format 3\0"
_TRACKER_SOURCE: Callable[[str], Source] | None = None


def register_tracker_source(connect: Callable[[str], Any]) -> None:
    """The compiler knows no gRPC: the public API says how ``tracker://`` is read."""
    global _TRACKER_SOURCE
    _TRACKER_SOURCE = connect


def current_history() -> History:
    """The innermost ``apply_history_best``, or an empty history outside of any."""
    history = _CURRENT.get()
    return history if history is not None else History(None, "no records")
