"""Who gets which device: pure functions of the waiting requests, the devices and the cordons."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from tunefarm.db.earlier import runs
from tunefarm.db.records import HEALTH, Cordon, Device, DeviceRequest
from tunefarm.tracker.selector import parse_selector


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request in the queue; ``since`` is when it came, in seconds of the tracker's clock.
    ``client`` is who asks, ``job`` what for."""

    id: str
    request: DeviceRequest
    since: float
    client: str = ""
    job: str = ""


def allocate(
    waiting: Iterable[Waiting], free: Iterable[Device], near: Container[str] = ()
) -> list[tuple[Waiting, Device]]:
    """Give each request, most urgent first, a free device that serves it.

    Urgency is priority, then age. Of several devices a request takes the one with the fewest
    attributes, so that special machines stay for those who ask for them; then one that is ``near``
    (by its id), so that two trackers seldom choose the same; then the first by id.
    """
    left = sorted(free, key=lambda d: (len(d.attributes), d.id not in near, d.id))
    grants: list[tuple[Waiting, Device]] = []
    for one in sorted(waiting, key=lambda w: (-w.request.priority, w.since, w.id)):
        place = next((i for i, device in enumerate(left) if serves(device, one.request)), None)
        if place is not None:
            grants.append((one, left.pop(place)))
    return grants


def serves(device: Device, request: DeviceRequest) -> bool:
    """Whether the device can measure for the request: its target, model, attributes, compiler and
    tags fit."""
    if request.compiler_version and request.compiler_version != device.compiler_version:
        return False
    if request.device_model and request.device_model != device.model:
        return False
    if any(device.attributes.get(name) != value for name, value in request.attributes.items()):
        return False
    if not runs(device.target, request.target):
        return False
    return parse_selector(request.selector).selects(device)


def cordon_of(device: Device, cordons: Iterable[Cordon]) -> Cordon | None:
    """What keeps the device from new leases: its own cordon, its worker's or its quarantine, one
    that drains first; None if it has none."""
    places = {("device", device.id), ("worker", device.worker), (HEALTH, device.id)}
    found = [cordon for cordon in cordons if (cordon.scope, cordon.subject) in places]
    return min(found, key=lambda cordon: (not cordon.drain, cordon.at), default=None)
