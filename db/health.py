"""How devices are: what their checks found, and the quarantine of those that are not well.

A quarantine is a cordon of scope ``health``: it keeps new leases from a device, and live ones end
as it begins. The farm sets it and lifts it, by what the device's worker tells and what becomes of
its candidates.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, select, update
from tunefarm.db import cordons, leases
from tunefarm.db.dialect import upsert
from tunefarm.db.farm_models import CORDONS, DEVICE_CHECKS, DEVICES, LEASES
from tunefarm.db.records import HEALTH, Cordon, Device, ErrorKind, Result

LEAST_SHARE = 0.7
"""Of the median of its past peaks, what a device must reach to be itself."""
HISTORY = 20
"""Checks that a new one is compared with, at most."""
MOST_LOST = 5
"""Candidates in a row that a device may lose (DEVICE_LOST)."""
CHECK_AGAIN = "`tunefarm devices check` repeats the check"
LIFT = "`tunefarm devices lift` ends the quarantine"
_PEAKS = {
    "bandwidth_dram_n": "memory gives",
    "bandwidth_l1_n": "its first cache gives",
    "flops_1": "one core computes",
    "flops_n": "it computes",
    "flops_f32": "in float32 it computes",
}
"""How a sentence about a peak begins; the others are told by their names."""
_WORKER, _TRACKER = "its worker", "the tracker"


def take_in(connection: Connection, devices: Iterable[Device]) -> tuple[str, ...]:
    """Keep what registered devices tell of themselves; quarantine those that are not well, and let
    go those that are again. Returns the leases that this ended."""
    ended: list[str] = []
    for device in devices:
        is_new = _store_check(connection, device)
        reason = device.health.trouble or _last_reason(connection, device.id)
        present = quarantine_of(connection, device.id)
        if reason:
            ended += _quarantine(connection, device.id, _WORKER, reason)
        elif present is not None and (is_new or present.actor == _WORKER):
            _let_go(connection, device.id)
    return tuple(ended)


def note_results(connection: Connection, results: Sequence[Result]) -> tuple[str, ...]:
    """Count the candidates in a row that devices lost; returns the leases that ended, because
    these were too many."""
    ended: list[str] = []
    for device in sorted({result.trial.device for result in results}):
        mine = [r.trial for r in results if r.trial.device == device]
        query = select(DEVICES.c.lost).where(DEVICES.c.id == device)
        before = connection.execute(query).scalar_one_or_none()
        lost = before or 0
        for trial in mine:
            lost = lost + 1 if trial.error is ErrorKind.DEVICE_LOST else 0
        if before is not None and lost != before:
            connection.execute(update(DEVICES).where(DEVICES.c.id == device).values(lost=lost))
        if lost >= MOST_LOST:
            reason = f"it lost its last {lost} candidates: {mine[-1].message}; {CHECK_AGAIN}"
            ended += _quarantine(connection, device, _TRACKER, reason)
    return tuple(ended)


def ask_check(
    connection: Connection, request_id: str, name: str, *, actor: str, reason: str, lift: bool
) -> dict[str, int]:
    """Have the device or the worker's devices of this name checked; the numbers of these checks.

    With ``lift`` they are trusted as they are: a quarantine ends, and past checks count no more.
    UnknownRecord if there is none or several.
    """
    scope, subject = cordons.find(connection, name)
    column = DEVICES.c.id if scope == cordons.DEVICE else DEVICES.c.worker
    action = "lift" if lift else "check"
    if cordons.note(connection, request_id, actor, action, f"{scope} {subject}", reason):
        values: dict[str, Any] = {"check_number": DEVICES.c.check_number + 1}
        if lift:
            values |= {"trusted_at": time.time(), "lost": 0}
        connection.execute(update(DEVICES).where(column == subject).values(values))
    found = connection.execute(
        select(DEVICES.c.id, DEVICES.c.check_number).where(column == subject)
    ).all()
    for row in found if lift else ():
        _let_go(connection, row.id)
    return {row.id: row.check_number for row in found}


def unlike_itself(peaks: Mapping[str, float], past: Sequence[Mapping[str, float]]) -> str:
    """In what a device falls short of its past checks, and what to do, in one sentence; empty if in
    nothing."""
    for name, value in sorted(peaks.items()):
        known = [one[name] for one in past if name in one]
        if known and value < LEAST_SHARE * (usual := statistics.median(known)):
            times = "check" if len(known) == 1 else f"{len(known)} checks"
            begun = _PEAKS.get(name, f"its {name} is")
            unit = "GB/s" if name.startswith("bandwidth") else "GFLOP/s"
            return (
                f"{begun} {_billions(value)} {unit}, {value / usual:.0%} of the {_billions(usual)} "
                f"{unit} of its last {times}; {CHECK_AGAIN}, {LIFT}"
            )
    return ""


def _billions(value: float) -> str:
    """Three digits of a number in units of 10⁹, without an exponent above one."""
    billions = value / 1e9
    return f"{billions:.0f}" if billions >= 999.5 else f"{billions:.3g}"


def quarantine_of(connection: Connection, device: str) -> Cordon | None:
    """The device's quarantine, None if it has none."""
    row = connection.execute(select(CORDONS).where(_here(device))).one_or_none()
    return None if row is None else Cordon(**row._mapping)


def _store_check(connection: Connection, device: Device) -> bool:
    """Keep the device's last check, judged by those before it; whether it is a new one."""
    health, checks = device.health, DEVICE_CHECKS.c
    if not health.checked_at:
        return False
    mine = select(checks.at, checks.peaks, checks.reason).where(checks.device == device.id)
    past = connection.execute(mine.order_by(checks.at.desc()).limit(HISTORY)).all()
    if past and health.checked_at <= past[0].at:
        return False
    trusted = select(DEVICES.c.trusted_at).where(DEVICES.c.id == device.id)
    since = connection.execute(trusted).scalar_one()
    counted = [row.peaks for row in past if row.at >= since and not row.reason]
    connection.execute(
        insert(DEVICE_CHECKS).values(
            device=device.id,
            at=health.checked_at,
            peaks=dict(device.peaks),
            noise=device.noise,
            trial_noise=health.trial_noise,
            reference_s=health.reference_s,
            reason=unlike_itself(device.peaks, counted),
        )
    )
    connection.execute(update(DEVICES).where(DEVICES.c.id == device.id).values(lost=0))
    return True


def _last_reason(connection: Connection, device: str) -> str:
    """Why the device's last check found it unlike itself, unless it is trusted since."""
    checks = DEVICE_CHECKS.c
    source = DEVICE_CHECKS.join(DEVICES, DEVICES.c.id == checks.device)
    query = (
        select(checks.reason, checks.at >= DEVICES.c.trusted_at)
        .select_from(source)
        .where(checks.device == device)
        .order_by(checks.at.desc())
        .limit(1)
    )
    row = connection.execute(query).one_or_none()
    return str(row[0]) if row is not None and row[1] else ""


def _quarantine(connection: Connection, device: str, actor: str, reason: str) -> list[str]:
    """Keep new leases from the device, and end its live one; the leases that this ended."""
    values = {
        "drain": False,
        "actor": actor,
        "reason": reason,
        "at": time.time(),
        "revoke_at": None,
    }
    statement = upsert(connection, CORDONS).values(scope=HEALTH, subject=device, **values)
    statement = statement.on_conflict_do_update(
        index_elements=["scope", "subject"], set_={"actor": actor, "reason": reason}
    )
    connection.execute(statement)
    live = select(LEASES.c.id).where(LEASES.c.device == device, LEASES.c.ended_at.is_(None))
    names = list(connection.execute(live).scalars())
    leases.end_all(connection, names, f"quarantined: {reason}")
    return names


def _let_go(connection: Connection, device: str) -> None:
    connection.execute(delete(CORDONS).where(_here(device)))


def _here(device: str) -> ColumnElement[bool]:
    return and_(CORDONS.c.scope == HEALTH, CORDONS.c.subject == device)
