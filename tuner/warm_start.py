"""What past trials teach a task that is new: training samples, and configs to try early.

Configs travel between tasks by the names of their sketch and knobs. A past task counts as similar
if it shares a sketch; the nearer its default's features, the earlier its best configs are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.space.config import Config, ConfigSpace, Knob, Population
from tunefarm.compiler.target import Target
from tunefarm.db.records import ErrorKind, Trial
from tunefarm.tuner.cost_model import Samples
from tunefarm.tuner.features import KNOB_SLOTS, features

ENVIRONMENT_ERRORS = frozenset({ErrorKind.DEVICE_LOST, ErrorKind.LEASE_LOST})
"""Failures that say nothing about the candidate."""

MAX_TASKS = 12
MAX_SAMPLES = 192
TRANSFER_WEIGHT = 0.5


@dataclass(frozen=True, slots=True)
class Past:
    """Measured rows of one workload on one device model; infinite seconds where they failed.
    ``signature`` is what the task is like, as ``signature_of`` has it."""

    workload: str
    space: ConfigSpace
    rows: Population
    seconds: NDArray[np.float64]
    signature: NDArray[np.float32]


def measured(space: ConfigSpace, trials: Iterable[Trial]) -> tuple[Population, NDArray[np.float64]]:
    """Rows of the trials whose configs are in the space, each once, and seconds: the fastest of
    its repeats, which others disturbed least. What failed for the environment's sake is left out.
    """
    fastest: dict[bytes, tuple[NDArray[np.int32], float]] = {}
    for trial in trials:
        if trial.error in ENVIRONMENT_ERRORS:
            continue
        try:
            row = space.encode(trial.config)
        except ScheduleError:
            continue
        known = fastest.get(row.tobytes())
        if known is None or trial.fastest_s < known[1]:
            fastest[row.tobytes()] = (row, trial.fastest_s)
    rows = np.array([row for row, _ in fastest.values()], np.int32)
    return rows.reshape(-1, 1 + len(space.knobs)), np.array([s for _, s in fastest.values()])


def past_tasks(
    trials: Iterable[Trial], space_of: Callable[[str, str], ConfigSpace | None], target: Target
) -> tuple[Past, ...]:
    """Trials grouped by workload and device model, in the order of first appearance; of several
    compiler versions and protocols, whose times are not compared, the one with the most times.

    ``space_of`` gives the present space of a workload's key whose trials were timed by a protocol,
    None if it can no longer be built.
    """
    groups: dict[tuple[str, str], dict[tuple[str, str], list[Trial]]] = {}
    for trial in trials:
        versions = groups.setdefault((trial.task.workload, trial.device_model), {})
        versions.setdefault((trial.compiler_version, trial.protocol), []).append(trial)
    found = []
    for (workload, _), versions in groups.items():
        group = max(versions.values(), key=lambda version: sum(t.ok for t in version))
        space = space_of(workload, group[0].protocol)
        if space is not None:
            rows, seconds = measured(space, group)
            if np.isfinite(seconds).any():
                found.append(Past(workload, space, rows, seconds, signature_of(space, target)))
    return tuple(found)


def similar(
    space: ConfigSpace, signature: NDArray[np.float32], past: Iterable[Past]
) -> tuple[Past, ...]:
    """The past tasks that share a sketch with a space of this signature, nearest first,
    ``MAX_TASKS`` at most."""
    sketches = {s.sketch for s in space.sketches}
    related = [p for p in past if sketches & {s.sketch for s in p.space.sketches}]
    distance = [float(np.linalg.norm(p.signature - signature)) for p in related]
    order = np.argsort(distance, kind="stable")[:MAX_TASKS]
    return tuple(related[i] for i in order)


def samples_of(past: Past, target: Target) -> Samples:
    """Training samples of a past task: its fastest rows and, as many, spread over the others."""
    order = np.argsort(past.seconds, kind="stable")
    if len(order) > MAX_SAMPLES:
        rest = order[MAX_SAMPLES // 2 :]
        step = np.linspace(0, len(rest) - 1, MAX_SAMPLES // 2).astype(np.intp)
        order = np.concatenate([order[: MAX_SAMPLES // 2], rest[step]])
    return Samples(
        features(past.space, past.rows[order], target), past.seconds[order], TRANSFER_WEIGHT
    )


def hints(space: ConfigSpace, past: Sequence[Past], each: int = 4) -> Population:
    """The fastest configs of past tasks as rows of ``space``: the best of each task first."""
    found: list[tuple[int, NDArray[np.int32]]] = []
    for task in past:
        for place, index in enumerate(np.argsort(task.seconds, kind="stable")[:each]):
            row = adapt(space, task.space.decode(task.rows[index]))
            if row is not None and np.isfinite(task.seconds[index]):
                found.append((place, row))
    found.sort(key=lambda item: item[0])
    rows = np.array([row for _, row in found], np.int32).reshape(-1, 1 + len(space.knobs))
    return rows[space.valid(rows)]


def adapt(space: ConfigSpace, config: Config) -> NDArray[np.int32] | None:
    """The row nearest to a config of another task; None if the space lacks its sketch.

    Numbers go to the nearest choice, names that are no choice and missing knobs to the default.
    """
    sketch = next((s for s in space.sketches if s.sketch == config.get("sketch")), None)
    if sketch is None:
        return None
    values = {knob.name: _nearest(knob, config, sketch.default) for knob in sketch.knobs}
    return space.encode({"sketch": sketch.sketch, **values})


def _nearest(knob: Knob, config: Config, default: Config) -> int | str:
    value = config.get(knob.name)
    if value in knob.choices:
        return value
    if knob.ordered and isinstance(value, int):
        return min(knob.choices, key=lambda choice: abs(int(choice) - value))
    return default[knob.name]


def signature_of(space: ConfigSpace, target: Target) -> NDArray[np.float32]:
    """Features of the default config, without the knobs: what the task is like."""
    row = space.encode(space.default)[None, :]
    return features(space, row, target)[0, :-KNOB_SLOTS]
