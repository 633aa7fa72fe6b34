"""The config of a task: which of the records that a look-up found a build uses, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.host import model_of
from tunefarm.compiler.space import Config, config_space, plugins_of
from tunefarm.compiler.target import Target
from tunefarm.compiler.version import compiler_version, version_with
from tunefarm.compiler.workload import Workload
from tunefarm.db.records import (
    FROM_MEMORY,
    BestKey,
    Found,
    Match,
    asked_protocol,
    protocol_of,
)


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


def keys_of(
    workload: str, target: Target, device_model: str, from_memory: bool
) -> tuple[BestKey, ...]:
    """What a build looks up for a task: records that were timed with its weights where it finds
    them, then those that found them elsewhere, which tell more than none."""
    ways = (from_memory, not from_memory) if target.kind == "llvm" else (False,)
    return tuple(
        BestKey.of_today(workload, target.text, device_model, asked_protocol(way)) for way in ways
    )


def decide(
    workload: Workload,
    target: Target,
    found: Sequence[Found],
    *,
    starter: bool = True,
    from_memory: bool = False,
) -> Decision:
    """Choose the config of one task: the closest usable record, else the default.

    Shipped records answer where no own record can be used; what tuning here has shown to be no
    faster than the default gives way only to one of the same device model. The task's
    weights come ``from_memory`` or not; a record of the other kind says so.
    """
    default = config_space(workload, target, from_memory).default
    own = _sort(found, workload, target)
    if own.usable is not None:
        status, config = _status(own.usable, workload, target), own.usable.best.trial.config
        config = default if status is Status.CONFIRMED else config
        reason = _reason(own.usable, workload, target, from_memory)
        return Decision(workload, target, status, config, reason, own.usable)
    shipped = _sort(_shipped(workload, target, from_memory) if starter else (), workload, target)
    if shipped.usable is not None and (own.losing is None or shipped.usable.match is Match.EXACT):
        reason = "from the records that ship with tunefarm"
        if shipped.usable.match is not Match.EXACT:
            reason += _difference(shipped.usable, target)
        if own.stale is not None:
            reason += f"; your own record is stale, {own.why_stale}"
        config = shipped.usable.best.trial.config
        return Decision(workload, target, Status.STARTER, config, reason, shipped.usable)
    return _untuned(workload, target, default, own, shipped)


def _untuned(
    workload: Workload, target: Target, default: Config, own: _Sorted, shipped: _Sorted
) -> Decision:
    """The default config, and why no record is used."""
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
    elif own.default is not None:
        answer, why = own.default, "other cores"
        reason = (
            f"no record for {target}; for {answer.best.key.target} the default was the best, and "
            "this target has its own"
        )
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
    default: Found | None = None  # of a compatible target
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
        elif misfit := _misfit(answer, workload, target):
            if result.stale is None:
                result.stale, result.why_stale = answer, misfit
        elif answer.match is Match.COMPATIBLE and answer.best.trial.number == 0:
            result.default = result.default or answer
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


def _misfit(answer: Found, workload: Workload, target: Target) -> str:
    """Why the record's config is none of today's space, to follow "was"; empty if it is one."""
    space, trial, made_for = (
        config_space(workload, target),
        answer.best.trial,
        answer.best.key.target,
    )
    if trial.space_fingerprint not in ("", space.fingerprint, space.own_fingerprint):
        return (
            f"made by sketch space {trial.space_fingerprint}, this version has {space.fingerprint}"
        )
    try:
        row = space.encode(trial.config)
    except ScheduleError as error:
        if made_for != target.text:
            return f"made for {made_for}, and {target} has no such config ({error})"
        return f"made by other sketches ({error})"
    return "" if space.valid(row[None])[0] else "made under other constraints on its knobs"


def _shipped(workload: Workload, target: Target, from_memory: bool) -> Sequence[Found]:
    from tunefarm.db.jsonl import starter_records
    from tunefarm.db.lookup import merged

    keys = keys_of(workload.key, target, model_of(target), from_memory)
    found = starter_records().best(keys)
    return merged(found[key] for key in keys)


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
    """Whether a record is the default of tasks whose weights come from where its own did."""
    default = config_space(workload, target, answer.best.key.protocol == FROM_MEMORY).default
    return dict(answer.best.trial.config) == dict(default)


def _reason(answer: Found, workload: Workload, target: Target, from_memory: bool) -> str:
    best = answer.best
    kind = "promoted" if best.promoted else "provisional"
    text = f"{kind} record of job {best.trial.job[:8]}, trial {best.trial.number}"
    text += _difference(answer, target)
    if best.key.protocol != protocol_of(target.text, asked_protocol(from_memory)):
        place = "memory" if best.key.protocol == FROM_MEMORY else "the caches"
        text += f", timed with weights from {place}"
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
