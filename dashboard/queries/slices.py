"""Candidates of a task beside the values of their knobs."""

from __future__ import annotations

from sqlalchemy import Connection
from tunefarm.dashboard.datasets import Dataset, dataset
from tunefarm.dashboard.queries.records import Task, sample
from tunefarm.db.models import TRIALS


def slices(connection: Connection, task: Task) -> Dataset:
    """Measured candidates with a column a knob, evenly chosen where there are many."""
    columns = TRIALS.c
    rows = connection.execute(sample(task, columns.id, columns.median_s, columns.config)).all()
    names = sorted({name for row in rows for name in row.config} - {"sketch"})
    return dataset(
        "slices",
        ("id", "latency_s", "sketch", *(f"knob_{name}" for name in names)),
        [
            (row.id, row.median_s, row.config.get("sketch"), *map(row.config.get, names))
            for row in rows
        ],
    )
