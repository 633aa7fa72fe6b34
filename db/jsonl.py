"""Records as JSON lines: export, import, and the records that ship with the package.

Each line is an object with ``"tunefarm": 1`` (the format's version) and one of ``"workload"``,
``"trial"`` and ``"best"``, whose fields are those of ``records``; a workload stands before the
trials that refer to it, and ``best`` names a promoted trial by its key. Reading needs the
standard library only.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, TextIO

from tunefarm.db.errors import StoreError
from tunefarm.db.lookup import RecordIndex, best_key_of
from tunefarm.db.records import (
    Best,
    ErrorKind,
    TaskKey,
    Trial,
    TrialKey,
    Verdict,
    WorkloadRecord,
)

VERSION = 1
STARTER = "starter.jsonl"


@dataclass(frozen=True, slots=True)
class PromotedLine:
    """A ``best`` line: which trial was promoted, and by which verdict."""

    key: TrialKey
    verdict: Verdict | None
    speedup_over_default: float | None
    model: str = ""
    model_speedup: float | None = None
    final_s: float | None = None


Line = WorkloadRecord | Trial | PromotedLine


@dataclass(slots=True)
class Records:
    """What a file holds. ``problems`` has a sentence for each line that was left out."""

    workloads: dict[str, WorkloadRecord] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    promoted: list[Best] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def index(self) -> RecordIndex:
        """The records, to be looked up as in a database."""
        return RecordIndex(self.trials, self.promoted)


# --- writing ------------------------------------------------------------------------------------


def dump(line: Line) -> str:
    """One line, without its end; ``parse`` gives back an equal value."""
    match line:
        case WorkloadRecord():
            content: dict[str, Any] = {"workload": asdict(line)}
        case Trial():
            content = {"trial": _trial_to_json(line)}
        case PromotedLine():
            content = {"best": _promoted_to_json(line)}
    return json.dumps({"tunefarm": VERSION, **content}, separators=(",", ":"), ensure_ascii=False)


def write(
    stream: TextIO,
    workloads: Iterable[WorkloadRecord],
    trials: Iterable[Trial],
    promoted: Iterable[Best] = (),
) -> int:
    """Write a file; returns the number of trials."""
    number = 0
    for workload in workloads:
        stream.write(dump(workload) + "\n")
    for trial in trials:
        stream.write(dump(trial) + "\n")
        number += 1
    for best in promoted:
        line = PromotedLine(
            best.trial.key,
            best.verdict,
            best.speedup_over_default,
            best.model,
            best.model_speedup,
            best.final_s,
        )
        stream.write(dump(line) + "\n")
    return number


def _trial_to_json(trial: Trial) -> dict[str, Any]:
    """The trial's fields; those at their defaults are left out."""
    content = asdict(trial)
    empty = asdict(_EMPTY)
    kept = {k: v for k, v in content.items() if k in _NEEDED or v != empty[k]}
    return kept


def _promoted_to_json(line: PromotedLine) -> dict[str, Any]:
    """The line's fields, without those of a whole model where it met no rival in one, nor a time
    that is the trial's."""
    absent = set() if line.model else {"model", "model_speedup"}
    if line.final_s is None:
        absent.add("final_s")
    return {name: value for name, value in asdict(line).items() if name not in absent}


_NEEDED = frozenset({"job", "task", "number", "config"})
_EMPTY = Trial("", TaskKey("", ""), 0, {})


# --- reading ------------------------------------------------------------------------------------


def parse(text: str) -> Line:
    """The value of one line; ValueError says in a sentence why it is none."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(f"is not JSON ({error})") from error
    if not isinstance(content, dict) or "tunefarm" not in content:
        raise ValueError('is no record of tunefarm (it has no "tunefarm" field)')
    version = content["tunefarm"]
    if version != VERSION:
        raise ValueError(f"has format version {version}, this tunefarm reads {VERSION}")
    try:
        match content:
            case {"workload": dict(fields)}:
                return WorkloadRecord(**fields)
            case {"trial": dict(fields)}:
                return _trial_from_json(fields)
            case {"best": dict(fields)}:
                return _promoted_from_json(fields)
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(f"has fields that do not fit ({error})") from error
    raise ValueError("has none of workload, trial and best")


def _trial_from_json(fields: Mapping[str, Any]) -> Trial:
    values = dict(fields)
    values["task"] = TaskKey(**values["task"])
    values["times_s"] = _times(values.get("times_s", ()))
    values["paired_times_s"] = tuple(_times(row) for row in values.get("paired_times_s", ()))
    if values.get("error") is not None:
        values["error"] = ErrorKind(values["error"])
    trial = Trial(**values)
    if not isinstance(trial.number, int) or trial.number < 0:
        raise ValueError(f"number {trial.number!r} is not a whole number from 0")
    for name, value in trial.config.items():
        if not isinstance(value, int | str):
            raise ValueError(f"knob {name} is {value!r}, neither a whole number nor a text")
    if not trial.ok and trial.error is None:
        raise ValueError("neither times_s nor error is given")
    return trial


def _times(values: Iterable[Any]) -> tuple[float, ...]:
    times = tuple(map(float, values))
    if not all(0 < seconds < float("inf") for seconds in times):
        raise ValueError("a time is not a positive number of seconds")
    return times


def _promoted_from_json(fields: Mapping[str, Any]) -> PromotedLine:
    key = fields["key"]
    verdict = fields.get("verdict")
    return PromotedLine(
        TrialKey(key["job"], TaskKey(**key["task"]), key["number"]),
        Verdict(verdict) if verdict else None,
        fields.get("speedup_over_default"),
        fields.get("model", ""),
        fields.get("model_speedup"),
        _times([fields["final_s"]])[0] if "final_s" in fields else None,
    )


def lines(stream: Iterable[str], name: str) -> Iterator[Line | str]:
    """The value of each line, or a sentence that names the line and what is wrong with it."""
    for number, text in enumerate(stream, 1):
        if not text.strip():
            continue
        try:
            yield parse(text)
        except ValueError as error:
            yield f"line {number} of {name} {error}; it was left out"


def collect(stream: Iterable[str], name: str) -> Records:
    """All records of a stream; lines that are none are left out and told in ``problems``."""
    found = Records()
    by_key: dict[TrialKey, Trial] = {}
    for line in lines(stream, name):
        match line:
            case str():
                found.problems.append(line)
            case WorkloadRecord():
                found.workloads[line.key] = line
            case Trial():
                if line.key not in by_key:
                    by_key[line.key] = line
                    found.trials.append(line)
            case PromotedLine():
                _add_promoted(found, by_key.get(line.key), line, name)
    return found


def _add_promoted(found: Records, trial: Trial | None, line: PromotedLine, name: str) -> None:
    if trial is None or not trial.ok:
        found.problems.append(
            f"a best line of {name} names trial {line.key.number} of job {line.key.job}, which "
            "is not in it; it was left out"
        )
        return
    found.promoted.append(
        Best(
            best_key_of(trial),
            trial,
            True,
            line.verdict,
            line.speedup_over_default,
            line.model,
            line.model_speedup,
            line.final_s,
        )
    )


def read(path: Path) -> Records:
    """All records of a file; StoreError if it cannot be read or has lines but no record."""
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            found = collect(stream, path.name)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    if found.problems and not found.trials and not found.workloads:
        why = found.problems[0].removesuffix("; it was left out")
        raise StoreError(
            f"{path} holds no records: {why}; give what `tunefarm records export` wrote"
        )
    return found


@functools.cache
def starter_records() -> RecordIndex:
    """The records that ship with the package, the last to be asked; empty if none are shipped."""
    resource = files("tunefarm.db") / STARTER
    if not resource.is_file():
        return RecordIndex(())
    with resource.open(encoding="utf-8") as stream:
        return collect(stream, STARTER).index()
