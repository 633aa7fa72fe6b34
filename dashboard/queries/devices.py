"""Devices: who holds them, how busy they were, and how steady."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

from sqlalchemy import Connection, func, or_, select
from tunefarm.dashboard.datasets import Dataset, dataset
from tunefarm.db import cordons, leases
from tunefarm.db.errors import UnknownRecord
from tunefarm.db.farm_models import DEVICE_CHECKS, LEASES
from tunefarm.db.models import TRIALS
from tunefarm.db.records import HEALTH, Cordon, Device, Health

DAY_S = 86400.0

_DRIFT_JOBS = 5
_DRIFT_TRIALS = 3_000
_DRIFT_POINTS = 600
_LEASES = 2_000
_CHECKS = 50


@dataclass(frozen=True, slots=True)
class Held:
    """A time in which somebody held a device; ``ended_at`` is None while they do."""

    lease: str
    device: str
    client: str
    job: str
    granted_at: float
    ended_at: float | None
    ended_reason: str


@dataclass(frozen=True, slots=True)
class DeviceLine:
    """A device, its live lease and cordons, and the share of the window in which it was held.
    A cordon of the scope ``health`` is a quarantine."""

    id: str
    kind: str
    model: str
    target: str
    worker: str
    noise: float
    epoch: int
    attributes: Mapping[str, str]
    peaks: Mapping[str, float]
    compiler_version: str
    health: Health
    held: Held | None
    cordons: tuple[Cordon, ...]
    busy: float


def devices(
    connection: Connection, *, text: str = "", window_s: float = DAY_S
) -> tuple[DeviceLine, ...]:
    """Every device that ever registered, with ``text`` in what is known of it; busy ones first."""
    kept = cordons.cordons(connection)
    now = time.time()
    spans = timeline(connection, window_s)
    live = {one.device: one for one in spans if one.ended_at is None}
    found = [
        _line(device, live.get(device.id), kept, _busy(spans, device.id, now, window_s))
        for device in leases.devices(connection)
        if _mentions(device, text)
    ]
    return tuple(sorted(found, key=lambda d: (d.held is None, -d.busy, d.id)))


def device(connection: Connection, name: str, window_s: float = DAY_S) -> DeviceLine:
    """One device; UnknownRecord if there is none."""
    found = [one for one in devices(connection, window_s=window_s) if one.id == name]
    if not found:
        raise UnknownRecord(f"there is no device {name!r}; the list of devices has all")
    return found[0]


def timeline(
    connection: Connection, window_s: float = DAY_S, device: str = "", limit: int = _LEASES
) -> tuple[Held, ...]:
    """Leases that lived within the last ``window_s`` seconds, the newest ``limit`` of them."""
    columns = LEASES.c
    since = time.time() - window_s
    query = (
        select(columns.id, columns.device, columns.client, columns.job, columns.granted_at,
               columns.ended_at, columns.ended_reason)
        .where(or_(columns.ended_at.is_(None), columns.ended_at >= since))
        .order_by(columns.granted_at.desc())
        .limit(limit)
    )  # fmt: skip
    if device:
        query = query.where(columns.device == device)
    return tuple(Held(*row) for row in connection.execute(query))


def leases_of(connection: Connection, window_s: float, device: str = "") -> Dataset:
    """The timeline as a dataset."""
    columns = tuple(field.name for field in fields(Held))
    rows = [astuple(held) for held in timeline(connection, window_s, device)]
    return dataset("leases", columns, rows)


def drift(connection: Connection, device: str) -> Dataset:
    """The reference loop's time against its first, over the device's latest jobs."""
    latest = (
        select(LEASES.c.job, func.max(LEASES.c.granted_at).label("at"))
        .where(LEASES.c.device == device, LEASES.c.job != "")
        .group_by(LEASES.c.job)
        .order_by(func.max(LEASES.c.granted_at).desc())
        .limit(_DRIFT_JOBS)
    )
    jobs = [row.job for row in connection.execute(latest)]
    query = (
        select(TRIALS.c.created_at, TRIALS.c.device_state)
        .where(TRIALS.c.job.in_(jobs), TRIALS.c.device == device)
        .order_by(TRIALS.c.id.desc())
        .limit(_DRIFT_TRIALS)
    )
    rows = connection.execute(query).all()[::-1]
    step = max(1, len(rows) // _DRIFT_POINTS)
    return dataset(
        "drift",
        ("at_s", "drift", "load"),
        [
            (at, _number(state.get("drift")), _number(state.get("load")))
            for at, state in rows[::step]
            if state
        ],
    )


def checks(connection: Connection, device: str) -> Dataset:
    """What the latest checks of a device found, the newest first."""
    columns = DEVICE_CHECKS.c
    query = (
        select(columns.at, columns.noise, columns.trial_noise, columns.reference_s, columns.reason)
        .where(columns.device == device)
        .order_by(columns.at.desc())
        .limit(_CHECKS)
    )
    rows = [tuple(row) for row in connection.execute(query)]
    return dataset("checks", ("at_s", "noise", "trial_noise", "reference_s", "reason"), rows)


def _busy(spans: Sequence[Held], device: str, now: float, window_s: float) -> float:
    """The share of the window in which the device was held."""
    held = sum(
        (now if one.ended_at is None else one.ended_at) - max(one.granted_at, now - window_s)
        for one in spans
        if one.device == device
    )
    return max(0.0, min(1.0, held / window_s))


def _mentions(device: Device, text: str) -> bool:
    known = (device.id, device.model, device.target, device.worker, *device.attributes.values())
    return any(text.lower() in one.lower() for one in known)


def _line(device: Device, held: Held | None, kept: Sequence[Cordon], busy: float) -> DeviceLine:
    mine = {
        (cordons.DEVICE, device.id), (HEALTH, device.id), (cordons.WORKER, device.worker)
    }  # fmt: skip
    return DeviceLine(
        id=device.id,
        kind=device.kind,
        model=device.model,
        target=device.target,
        worker=device.worker,
        noise=device.noise,
        epoch=device.epoch,
        attributes=device.attributes,
        peaks=device.peaks,
        compiler_version=device.compiler_version,
        health=device.health,
        held=held,
        cordons=tuple(one for one in kept if (one.scope, one.subject) in mine),
        busy=busy,
    )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
