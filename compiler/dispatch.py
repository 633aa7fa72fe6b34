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
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from tunefarm.compiler.errors import ScheduleError, TunefarmError
from tunefarm.compiler.host import model_of
from tunefarm.compiler.space import Config, config_space, plugins_of
from tunefarm.compiler.target import Target
from tunefarm.compiler.version import compiler_version, version_with
from tunefarm.compiler.workload import Task, Workload
from tunefarm.db.records import BestKey, Found, Match, Trial


class Status(StrEnum):
    """Where the config of a task comes from."""

    EXACT = "exact"  # tuned on this device model
    TARGET = "target"  # tuned for this target on another device
    COMPATIBLE = "compatible"  # tuned for a target whose code serves this one
    STARTER = "starter"  # from the records that ship with the package
    CONFIRMED = "confirmed"  # tuned, and nothing was found to be faster than the default
    STALE = "stale"  # only records of another space: the default is used
    DEFAULT = "default"  # no record, or none that beats the default


@dataclass(frozen=True, slots=True)
class Decision:
    """What a build uses for one task, and why: ``reason`` in full, ``why`` in a word or two for a
    task that is not settled."""

    workload: Workload
    target: Target
    status: Status
    config: Config
    reason: str
    found: Found | None = None
    why: str = ""

    @property
    def tuned(self) -> bool:
        """Whether a record gives another config than the default."""
        return self.settled and self.status is not Status.CONFIRMED

    @property
    def settled(self) -> bool:
        """Whether a record answers; False: tuning may find a faster config."""
        return self.status not in (Status.STALE, Status.DEFAULT)


class Source(Protocol):
    """Anything that answers many keys at once, closest record first."""

    def best(self, keys: Iterable[BestKey]) -> Mapping[BestKey, Sequence[Found]]: ...


@dataclass(frozen=True, slots=True)
class Untuned:
    """A task that a build found no record for, and how often the model runs it."""

    workload: Workload
    target: Target
    weight: int


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
        models or hears of untuned tasks. Raises HistoryError in strict mode if the source fails or
        a task has no record.
        """
        model = model_of(target)
        keys = [BestKey.of_today(w.key, target.text, model) for w in workloads]
        found = self._ask(keys)
        if self.note is not None and self.source is not None and workloads and weights:
            self.note([Task(w, target, weights[w]) for w in workloads])
        made = [
            decide(w, target, found.get(k, ()), starter=self.starter)
            for w, k in zip(workloads, keys, strict=True)
        ]
        missed = [decision for decision in made if not decision.settled]
        weigh = weights or {}
        self._report([Untuned(d.workload, target, weigh.get(d.workload, 1)) for d in missed])
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
        """One line for the end of a build; ``command`` is what tunes the rest."""
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
        return text if settled else f"{text}; tune the rest with: {command}"


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


def decide(
    workload: Workload, target: Target, found: Sequence[Found], *, starter: bool = True
) -> Decision:
    """Choose the config of one task: the closest usable record, else the default.

    Shipped records answer where no own record can be used; what tuning here has shown to be no
    faster than the default gives way only to one of the same device model.
    """
    own = _sort(found, workload, target)
    if own.usable is not None:
        status, config = _status(own.usable, workload, target), own.usable.best.trial.config
        return Decision(
            workload, target, status, config, _reason(own.usable, workload, target), own.usable
        )
    shipped = _sort(_shipped(workload, target) if starter else (), workload, target)
    if shipped.usable is not None and (own.losing is None or shipped.usable.match is Match.EXACT):
        reason = "from the records that ship with tunefarm"
        if shipped.usable.match is not Match.EXACT:
            reason += _difference(shipped.usable, target)
        if own.stale is not None:
            reason += f"; your own record is stale, {own.why_stale}"
        config = shipped.usable.best.trial.config
        return Decision(workload, target, Status.STARTER, config, reason, shipped.usable)
    return _untuned(workload, target, own, shipped)


def _untuned(workload: Workload, target: Target, own: _Sorted, shipped: _Sorted) -> Decision:
    """The default config, and why no record is used."""
    default = config_space(workload, target).default
    status, reason, answer, why = Status.DEFAULT, "no record", None, "no record"
    if own.losing is not None:
        reason, answer = "the default is as fast as the best record", own.losing
        reason, why = f"{reason}; no final was held", "no gain yet"
    elif own.stale is not None:
        status, answer, why = Status.STALE, own.stale, "old space"
        reason = f"the record was {own.why_stale}; tune again"
    elif shipped.stale is not None:
        status, answer, why = Status.STALE, shipped.stale, "old space"
        reason = f"the record that ships with tunefarm was {shipped.why_stale}; tune"
    elif own.foreign is not None:
        other = own.foreign.best.key.target
        reason = f"no record for {target}; the one for {other} does not serve it"
        why = "other CPU"
    elif own.elsewhere is not None:
        reason = f"no record for {target} but one of {own.elsewhere.best.key.device_model}"
        reason += ": times of an emulator and of GPUs are kept apart"
    elif shipped.foreign is not None:
        stands_for = shipped.foreign.best.key.target
        reason = f"no record for {target}; the one that ships with tunefarm is for {stands_for}"
    return Decision(workload, target, status, default, reason, answer, why)


@dataclass(slots=True)
class _Sorted:
    """Of the answers to a look-up the closest of each kind; ``usable`` is the one to build with."""

    usable: Found | None = None
    losing: Found | None = None  # no faster than the default
    stale: Found | None = None
    why_stale: str = ""
    foreign: Found | None = None
    elsewhere: Found | None = None  # of an emulator where there are GPUs, or the reverse


def _sort(found: Sequence[Found], workload: Workload, target: Target) -> _Sorted:
    from tunefarm.db.lookup import beats_default

    result = _Sorted()
    for answer in found:
        if answer.match is Match.FOREIGN:
            result.foreign = result.foreign or answer
        elif not _is_of_this_world(answer, target):
            result.elsewhere = result.elsewhere or answer
        elif misfit := _misfit(answer.best.trial, workload, target):
            if result.stale is None:
                result.stale, result.why_stale = answer, misfit
        elif not beats_default(answer.best):
            result.losing = result.losing or answer
        else:
            result.usable = answer
            break
    return result


def _is_of_this_world(answer: Found, target: Target) -> bool:
    """Whether a record is an emulator's where code runs on one, and of a device where it does on
    devices."""
    if target.kind != "cuda":
        return True
    from tunefarm.compiler.runtime.cuda.driver import is_emulated_model, is_emulating

    return is_emulated_model(answer.best.key.device_model) == is_emulating()


def _misfit(trial: Trial, workload: Workload, target: Target) -> str:
    """Why the record's config is none of today's space, to follow "was"; empty if it is one."""
    space = config_space(workload, target)
    if trial.space_fingerprint not in ("", space.fingerprint, space.own_fingerprint):
        return (
            f"made by sketch space {trial.space_fingerprint}, this version has {space.fingerprint}"
        )
    try:
        row = space.encode(trial.config)
    except ScheduleError as error:
        return f"made by other sketches ({error})"
    return "" if space.valid(row[None])[0] else "made under other constraints on its knobs"


def _shipped(workload: Workload, target: Target) -> Sequence[Found]:
    from tunefarm.db.jsonl import starter_records

    key = BestKey.of_today(workload.key, target.text, model_of(target))
    return starter_records().best([key])[key]


def _status(answer: Found, workload: Workload, target: Target) -> Status:
    """The status of a record that is used; a foreign one never is."""
    if answer.best.promoted and _is_default(answer, workload, target):
        return Status.CONFIRMED
    return {
        Match.EXACT: Status.EXACT,
        Match.TARGET: Status.TARGET,
        Match.COMPATIBLE: Status.COMPATIBLE,
    }[answer.match]


def _is_default(answer: Found, workload: Workload, target: Target) -> bool:
    return dict(answer.best.trial.config) == dict(config_space(workload, target).default)


def _reason(answer: Found, workload: Workload, target: Target) -> str:
    best = answer.best
    kind = "promoted" if best.promoted else "provisional"
    text = f"{kind} record of job {best.trial.job[:8]}, trial {best.trial.number}"
    text += _difference(answer, target)
    is_default = _is_default(answer, workload, target)
    if is_default:
        text += ", the default itself"
    elif best.speedup_over_default is not None:
        text += f", {best.speedup_over_default:.2f}x the default"
    if best.model_speedup is not None:
        rival = "the record that it replaced" if is_default else "its rival"
        text += f"; in the whole model {best.model_speedup:.2f}x {rival}"
    made_by = best.trial.compiler_version
    mine = version_with(compiler_version(target.kind), plugins_of(workload, target))
    if made_by not in ("", mine):
        text += f"; timed with compiler {made_by}, this is {mine}"
    return text


def _difference(answer: Found, target: Target) -> str:
    """What a record was measured on, as far as that is not what it is used for."""
    key = answer.best.key
    match answer.match:
        case Match.EXACT:
            return ""
        case Match.TARGET:
            return f", measured for this target on another device, {key.device_model}"
        case Match.COMPATIBLE:
            return f", measured on another number of cores ({key.target}), {key.device_model}"
        case Match.FOREIGN:
            return f", measured for another target, {key.target}"
