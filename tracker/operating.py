"""What operators ask for: devices kept from new leases, leases revoked."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from sqlalchemy import Connection
from tunefarm.db import cordons, health, leases
from tunefarm.db.records import Cordon, Device, Lease
from tunefarm.proto.logs import ids, ids_of_lease
from tunefarm.tracker import signals
from tunefarm.tracker.farm import Farm

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wish:
    """Who asks for what and why; asked again with the same ``request_id`` it changes nothing."""

    request_id: str
    actor: str
    reason: str

    def __post_init__(self) -> None:
        if not self.request_id or not self.actor:
            raise ValueError("an operator's request has a request id and says whose it is")


async def cordon(
    farm: Farm, wish: Wish, name: str, drain: bool, revoke_after_s: float | None
) -> Cordon:
    """Grant no lease any more of the device or worker named; UnknownRecord if there is none."""
    if revoke_after_s is not None and not (drain and 0 <= revoke_after_s < 1e9):
        raise ValueError(f"leases are revoked after {revoke_after_s} s; write a drain's 0 or more")
    found = await farm.database.write(
        lambda c: cordons.cordon(
            c,
            wish.request_id,
            name,
            actor=wish.actor,
            reason=wish.reason,
            drain=drain,
            revoke_after_s=revoke_after_s,
        )
    )
    _log.info(
        "%s %s by %s: %s", "drained" if drain else "cordoned", found.subject, wish.actor,
        wish.reason, extra=ids(**{found.scope: found.subject}),
    )  # fmt: skip
    await _reload(farm)
    return found


async def uncordon(farm: Farm, wish: Wish, name: str) -> tuple[Device, ...]:
    """Let the device or worker named have leases again; the devices that it concerns."""
    scope, subject = await farm.database.write(
        lambda c: cordons.uncordon(c, wish.request_id, name, actor=wish.actor, reason=wish.reason)
    )
    _log.info("uncordoned by %s", wish.actor, extra=ids(**{scope: subject}))
    await _reload(farm)
    return devices_of(farm, scope, subject)


async def revoke(farm: Farm, wish: Wish, lease: str) -> Lease:
    """End a live lease; what it had submitted waits for its job's next one."""
    if not wish.reason:
        raise ValueError("a lease is revoked for a reason, which its holder is told")
    ended = await farm.database.write(
        lambda c: cordons.revoke(c, wish.request_id, lease, actor=wish.actor, reason=wish.reason)
    )
    farm.counts.ended["revoked"] += 1
    _log.info("revoked by %s: %s", wish.actor, wish.reason, extra=ids_of_lease(ended))
    farm.drop_lease(ended.id)
    return ended


async def check(farm: Farm, wish: Wish, name: str, lift: bool) -> dict[str, int]:
    """Have the devices named checked, with ``lift`` trusted as they are; the numbers of these
    checks. UnknownRecord if there is none."""
    if lift and not wish.reason:
        raise ValueError("a quarantine is lifted for a reason, which is kept")

    def write(connection: Connection) -> tuple[dict[str, int], tuple[Device, ...]]:
        asked = health.ask_check(
            connection, wish.request_id, name, actor=wish.actor, reason=wish.reason, lift=lift
        )
        return asked, leases.devices(connection)

    asked, known = await farm.database.write(write)
    farm.devices |= {device.id: device for device in known if device.id in asked}
    await _reload(farm)
    farm.signals.notify(*(signals.device(device) for device in asked))
    return asked


def devices_of(farm: Farm, scope: str, subject: str) -> tuple[Device, ...]:
    """The devices of a cordon as they stand."""
    return tuple(
        device
        for device in farm.device_states()
        if subject == (device.id if scope == cordons.DEVICE else device.worker)
    )


async def _reload(farm: Farm) -> None:
    """Take the cordons over as they are stored; leases and jobs hear of it."""
    farm.hold_cordons(await farm.database.write(cordons.cordons))
    farm.signals.notify(signals.LEASES, signals.JOBS)
