"""What the compiler knows of tasks: the plug-ins that they are made with, and their spaces: records
of another space are stale."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tunefarm.dashboard.code import ask_compiler
from tunefarm.dashboard.queries.models import Model, ModelTask, TaskStanding

LOST = {
    TaskStanding.UNTUNED: "no record",
    TaskStanding.NO_GAIN: "no candidate was faster than the default by more than noise",
}


@dataclass(frozen=True, slots=True)
class Gap:
    """A task that tuning may make faster, and why a build has no record for it."""

    task: ModelTask
    why: str
    is_stale: bool


@dataclass
class Spaces:
    """Fingerprints of spaces by target and workload, of the compiler that is installed here."""

    _one: threading.Lock = field(default_factory=threading.Lock)
    _known: dict[tuple[str, str], str] = field(default_factory=dict)

    def fingerprints(self, target: str, texts: Iterable[str]) -> dict[str, str]:
        """By workload texts; CodeError if the compiler knows no such target or workload."""
        wanted = set(texts)
        with self._one:
            new = sorted(text for text in wanted if (target, text) not in self._known)
            if new:
                asked = {"kind": "spaces", "target": target, "workloads": new}
                found = ask_compiler(json.dumps(asked))["spaces"]
                self._known |= {(target, text): found[text] for text in new}
            return {text: self._known[target, text] for text in wanted}


def plugins_of(target: str, texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The plug-ins (``package==version``) that workloads are made with, by their texts; CodeError
    if the compiler knows no such target or workload."""
    asked = {"kind": "plugins", "target": target, "workloads": sorted(set(texts))}
    found = ask_compiler(json.dumps(asked))["plugins"]
    return {text: tuple(plugins) for text, plugins in found.items()}


def gaps(model: Model, texts: Mapping[int, str], spaces: Spaces) -> tuple[Gap, ...]:
    """What is untuned or stale of a model, whose workloads have these texts by number; what takes
    longest comes first. CodeError if the compiler cannot tell."""
    recorded = [task for task in model.tasks if task.is_tuned and texts.get(task.workload_id)]
    present = spaces.fingerprints(model.target, (texts[task.workload_id] for task in recorded))
    found = [Gap(task, LOST[task.standing], False) for task in model.tasks if not task.is_tuned]
    for task in recorded:
        now = present[texts[task.workload_id]]
        if task.space_fingerprint not in ("", now):
            was = f"its record is of sketch space {task.space_fingerprint}, the present is {now}"
            found.append(Gap(task, was, True))
    return tuple(sorted(found, key=lambda gap: -(gap.task.time_s or 0.0)))
