"""Noting in a database which models people tune and build, so that the dashboard can show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunefarm.compiler.dispatch import History
    from tunefarm.compiler.workload import Task


def weights_of(tasks: Iterable[Task]) -> dict[str, int]:
    """How often a model runs each of its tasks, by the keys of their workloads."""
    return {task.workload.key: task.weight for task in tasks}


def note_model(database: str, name: str, target: str, weights: Mapping[str, int]) -> None:
    """Note in a database that people tune or build this model for the target; nothing happens where
    it cannot be written."""
    from tunefarm.db import whole_models
    from tunefarm.db.errors import StoreError
    from tunefarm.db.store import Store

    try:
        with Store.open(database) as store:
            with store.reading() as connection:
                if whole_models.is_noted(connection, name, target, weights):
                    return
            with store.writing() as connection:
                whole_models.note(connection, name, target, weights)
    except StoreError:
        return


def note_built(history: History, name: str) -> None:
    """Note a model that was built with records of a database; those of trackers and files are left
    as they are."""
    from tunefarm.db.store import Store

    if not isinstance(history.source, Store):
        return
    database = history.source.url.render_as_string(hide_password=False)
    for target in {target for _, target in history.weights}:
        weights = {key: weight for (key, of), weight in history.weights.items() if of == target}
        note_model(database, name, target, weights)
