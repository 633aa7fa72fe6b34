"""Tasks of a job under the roofs of its device: operations a byte against operations a second."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Protocol

from sqlalchemy import Connection, Select, select
from tunefarm.dashboard.datasets import Cell, Dataset, dataset
from tunefarm.dashboard.queries.jobs import JobLine, TaskLine
from tunefarm.db.farm_models import DEVICES
from tunefarm.db.models import TRIALS, WORKLOADS

_BYTES = {"float64": 8, "int64": 8, "uint64": 8, "float32": 4, "int32": 4, "uint32": 4,
          "float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2}  # fmt: skip


class Measured(Protocol):
    """A task of a job or of a model."""

    @property
    def position(self) -> int: ...
    @property
    def workload_id(self) -> int: ...
    @property
    def summary(self) -> str: ...
    @property
    def flops(self) -> int: ...
    @property
    def flops_s(self) -> float | None: ...
    @property
    def default_s(self) -> float | None: ...


def roofline(connection: Connection, job: JobLine, tasks: Sequence[TaskLine]) -> Dataset:
    """The tasks of a job that have a best, under the roofs of its device."""
    return under_roofs(connection, tasks, peaks(connection, job))


def under_roofs(
    connection: Connection, tasks: Sequence[Measured], known: Mapping[str, Any]
) -> Dataset:
    """Each task with a best: nominal operations a byte of its inputs and outputs, and a second.

    The notes have the device's peaks: operations, and bytes of DRAM and L1, a second.
    """
    ids = [task.workload_id for task in tasks if task.flops_s]
    query = select(WORKLOADS.c.id, WORKLOADS.c.text).where(WORKLOADS.c.id.in_(ids))
    sizes = {id_: moved_bytes(text) for id_, text in connection.execute(query)}
    rows: list[tuple[Cell, ...]] = []
    for task in tasks:
        size = sizes.get(task.workload_id)
        if size:
            default = task.flops / task.default_s if task.default_s else None
            rows.append((task.position, task.summary, task.flops / size, task.flops_s, default))
    return dataset(
        "roofline",
        ("task", "summary", "intensity", "flops_s", "default_flops_s"),
        rows,
        {
            "flops_s": known.get("flops_n"),
            "bytes_s": known.get("bandwidth_dram_n"),
            "l1_bytes_s": known.get("bandwidth_l1_n"),
        },
    )


def moved_bytes(text: str) -> int | None:
    """Bytes of a workload's inputs and outputs; None if its text is not known."""
    try:
        content = json.loads(text)
        params, nodes = content["params"], content["nodes"]
        types = [(p["dtype"], p["shape"]) for p in params]
        outputs = [nodes[i - len(params)]["type"] for i in content["outputs"] if i >= len(params)]
        return sum(_BYTES.get(dtype, 1) * int(prod(shape)) for dtype, shape in [*types, *outputs])
    except (ValueError, KeyError, IndexError, TypeError):
        return None


def peaks(connection: Connection, job: JobLine) -> dict[str, Any]:
    """The measured peaks of the device that measured the job's latest trial."""
    trials = select(TRIALS.c.device).where(TRIALS.c.job == job.id)
    return peaks_of(connection, trials.order_by(TRIALS.c.id.desc()).limit(1))


def peaks_of(connection: Connection, device: Select[Any]) -> dict[str, Any]:
    """The measured peaks of the one device that a query finds; empty if none is known."""
    query = select(DEVICES.c.peaks).where(DEVICES.c.id == device.scalar_subquery())
    return dict(connection.execute(query).scalar() or {})
