"""Noting which models people tune and build, so that the dashboard can show them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tunefarm.db.records import JobTask, WorkloadRecord, asked_protocol

if TYPE_CHECKING:
    from tunefarm.compiler.workload import Task


@runtime_checkable
class Farm(Protocol):
    """A tracker's client, as far as it notes models."""

    def note_model(self, name: str, target: str, tasks: Sequence[JobTask]) -> None: ...


def noter(source: object, name: str) -> Callable[[Sequence[Task]], None]:
    """What notes, at the farm or in the database that records are from, that tasks of a target are
    those of a model; files are left as they are."""
    if isinstance(source, Farm):
        return lambda tasks: note_at(source, name, tasks)
    from tunefarm.db.store import Store

    if not isinstance(source, Store):
        return lambda tasks: None
    database = source.url.render_as_string(hide_password=False)
    return lambda tasks: note_in(database, name, tasks)


def note_at(farm: Farm, name: str, tasks: Sequence[Task]) -> None:
    """Tell a farm that people tune or build the model of these tasks; nothing happens where it
    cannot be told, or is too old to be."""
    from tunefarm.proto.errors import FarmError

    try:
        farm.note_model(name, tasks[0].target.text, records_of(tasks))
    except FarmError:
        return


def note_in(database: str, name: str, tasks: Sequence[Task]) -> None:
    """Note in a database that people tune or build the model of these tasks; nothing happens where
    it cannot be written."""
    from tunefarm.db import whole_models
    from tunefarm.db.errors import StoreError
    from tunefarm.db.store import Store

    target, noted = tasks[0].target.text, records_of(tasks)
    weights = whole_models.weights_of(noted)
    try:
        with Store.open(database) as store:
            with store.reading() as connection:
                if whole_models.is_noted(connection, name, target, weights):
                    return
            with store.writing() as connection:
                whole_models.note_tasks(connection, name, target, noted)
    except StoreError:
        return


def records_of(tasks: Sequence[Task]) -> list[JobTask]:
    """Tasks as the database has them."""
    return [
        JobTask(
            WorkloadRecord(
                task.workload.key,
                task.workload.text,
                task.name or task.workload.summary,
                task.workload.flops,
            ),
            task.weight,
            asked_protocol(task.from_memory),
        )
        for task in tasks
    ]
