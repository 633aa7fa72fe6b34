"""Models that people tune and build, noted for the dashboard."""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.db import whole_models
from tunefarm.db.records import JobTask
from tunefarm.tracker.farm import Farm
from tunefarm.tracker.limits import check_texts


async def note(farm: Farm, name: str, target: str, tasks: Sequence[JobTask]) -> None:
    """Note a model with its tasks, unless that was done a moment ago; ValueError for what makes no
    sense."""
    if not (name and target and tasks):
        raise ValueError("a model that is noted has a name, a target and tasks")
    if any(task.weight < 1 for task in tasks):
        raise ValueError(f"a task of model {name} has a weight below 1; it runs once at least")
    check_texts({task.workload.key: task.workload.text for task in tasks})
    weights = whole_models.weights_of(tasks)
    if await farm.database.read(lambda c: whole_models.is_noted(c, name, target, weights)):
        return
    await farm.database.write(lambda c: whole_models.note_tasks(c, name, target, tasks))
