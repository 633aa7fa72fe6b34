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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from tunefarm.compiler.errors import ScheduleError, TunefarmError
from tunefarm.compiler.host import device_model
from tunefarm.compiler.space import Config, config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload
from tunefarm.db.records import BestKey, Found, Match, Trial


class Status(StrEnum):
    """Where the config of a task comes from."""

    EXACT = "exact"  # tuned on this device model
    TARGET = "target"  # tuned for this target on another device
    COMPATIBLE = "compatible"  # tuned for a target whose code serves this one
    STARTER = "starter"  # from the records that ship with the package
    STALE = "stale"  # only records of another space: the default is used
    DEFAULT = "default"  # no record, or none that beats the default


@dataclass(frozen=True, slots=True)
class Decision:
    """What a build uses for one task, and why."""

    workload: Workload
    target: Target
    status: Status
    config: Config
    reason: str
    found: Found | None = None

    @property
    def tuned(self) -> bool:
        return self.status not in (Status.STALE, Status.DEFAULT)


class Source(Protocol):
    """Anything that answers many keys at once, closest record first."""

    def best(self, keys: Iterable[BestKey]) -> Mapping[BestKey, Sequence[Found]]: ...


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
    decisions: dict[tuple[str, str], Decision] = field(default_factory=dict)
    _tokens: list[contextvars.Token[History | None]] = field(default_factory=list)

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

    def lookup(self, workloads: Sequence[Workload], target: Target) -> list[Decision]:
        """A decision for each workload, from one query.

        Raises HistoryError in strict mode if the source fails or a task has no record.
        """
        model = device_model(target.num_cores) if target.kind == "llvm" else target.kind
        keys = [BestKey(w.key, target.text, model) for w in workloads]
        found = self._ask(keys)
        made = [
            decide(w, target, found.get(k, ()), starter=self.starter)
            for w, k in zip(workloads, keys, strict=True)
        ]
        for decision in made:
            self.decisions[decision.workload.key, target.text] = decision
            if not decision.tuned:
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
        warnings.warn(f"{message}; building with default configs", stacklevel=6)

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
        tuned = sum(d.tuned for d in made)
        stale = sum(d.status is Status.STALE for d in made)
        text = f"{tuned} tuned, {len(made) - tuned - stale} default, {stale} stale tasks"
        return text if tuned == len(made) else f"{text}; tune the rest with: {command}"


_CURRENT: contextvars.ContextVar[History | None] = contextvars.ContextVar("history", default=None)


def apply_history_best(
    source: str | os.PathLike[str] | Iterable[Trial],
    *,
    strict: bool = False,
    on_miss: Callable[[Decision], None] | None = None,
    starter: bool = True,
) -> History:
    """Use the best records of ``source`` in every ``build`` inside the ``with`` block.

    ``source`` is a database URL, a JSON-lines file, records, or ``tracker://host:port``. With
    ``strict`` an unreadable source and a task without a record raise HistoryError; otherwise the
    first is one warning and the second gets its default config. ``on_miss`` hears of such tasks.
    Without ``starter`` the records that ship with the package are left out: an empty source then
    gives every task its default.
    """
    origin = str(source) if isinstance(source, (str, os.PathLike)) else "the given records"
    history = History(None, origin, strict, on_miss, starter)
    try:
        history.source = open_source(source)
    except Exception as error:
        history._unreadable(error)
    return history


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

    path = Path(text)
    if path.suffix in (".db", ".sqlite"):
        from tunefarm.db.store import Store

        return Store.open(f"sqlite:///{path.absolute()}", readonly=True)
    return jsonl.read(path).index()


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
    """Choose the config of one task: the closest usable record, else the default."""
    from tunefarm.db.lookup import beats_default

    space = config_space(workload, target)
    stale: Found | None = None
    losing: Found | None = None
    for answer in found:
        trial = answer.best.trial
        if not _applies(trial, workload, target):
            stale = stale or answer
        elif not beats_default(answer.best):
            losing = losing or answer
        else:
            return Decision(
                workload, target, _status(answer.match), trial.config, _reason(answer), answer
            )
    from_starter = _starter(workload, target) if starter and not found else None
    if from_starter is not None:
        return from_starter
    if losing is not None:
        return Decision(
            workload, target, Status.DEFAULT, space.default,
            "the default is as fast as the best record", losing,
        )  # fmt: skip
    if stale is not None:
        return Decision(
            workload, target, Status.STALE, space.default,
            f"the record was made by sketch space {stale.best.trial.space_fingerprint or '?'}, "
            f"this version has {space.fingerprint}; tune again", stale,
        )  # fmt: skip
    return Decision(workload, target, Status.DEFAULT, space.default, "no record")


def _applies(trial: Trial, workload: Workload, target: Target) -> bool:
    """True if the record's config is a config of today's space."""
    space = config_space(workload, target)
    try:
        row = space.encode(trial.config)
    except ScheduleError:
        return False
    return trial.space_fingerprint in ("", space.fingerprint) and bool(space.valid(row[None])[0])


def _starter(workload: Workload, target: Target) -> Decision | None:
    from tunefarm.db.jsonl import starter_records

    model = device_model(target.num_cores) if target.kind == "llvm" else target.kind
    key = BestKey(workload.key, target.text, model)
    for answer in starter_records().best([key])[key]:
        if _applies(answer.best.trial, workload, target):
            return Decision(
                workload, target, Status.STARTER, answer.best.trial.config,
                "from the records that ship with tunefarm", answer,
            )  # fmt: skip
    return None


def _status(match: Match) -> Status:
    return {
        Match.EXACT: Status.EXACT,
        Match.TARGET: Status.TARGET,
        Match.COMPATIBLE: Status.COMPATIBLE,
    }[match]


def _reason(answer: Found) -> str:
    best = answer.best
    kind = "promoted" if best.promoted else "provisional"
    text = f"{kind} record of job {best.trial.job}, trial {best.trial.number}"
    if answer.match is not Match.EXACT:
        text += f", measured on {best.key.device_model} for {best.key.target}"
    if best.speedup_over_default is not None:
        text += f", {best.speedup_over_default:.2f}x the default"
    return text
