"""Devices, how they are, and the leases by which they are lent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

HEALTH = "health"
"""Scope of a cordon that is a quarantine."""


@dataclass(frozen=True, slots=True)
class Health:
    """How a device is, as its worker tells it. Times are in seconds since the epoch.

    ``checked_at`` is when peaks and noise were measured (0: never), and ``check`` the last check
    that the tracker asked for and that is done. ``reference_s`` is what the reference loop took
    then, ``drift`` how many times as long it takes now. ``trial_noise`` is what two trials of one
    kernel differ by (a fraction). ``trouble`` says why it does not measure; empty if it does.
    """

    checked_at: float = 0.0
    check: int = 0
    reference_s: float = 0.0
    drift: float = 1.0
    trial_noise: float = 0.0
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """A device that a worker offers.

    ``model`` is what records are compared by ("Intel(R) Xeon(R) … 2 cores"), ``kind`` the target
    kind ("llvm", "sim"), ``attributes`` plain facts that requests are matched on, ``peaks`` its
    measured peaks (``flops_1``, ``flops_n`` in FLOP/s, ``bandwidth_*`` in bytes/s) and ``noise``
    the A/A noise floor as a fraction. ``compiler_version`` is that of its attribute ``compiler``,
    or else its worker's, as the tracker knows it. ``cordon`` is "cordoned", "draining", "drained"
    or "quarantined" where it gets no new lease, for ``cordon_reason``. ``check`` is the number of
    the last check that an operator asked for.
    """

    id: str
    kind: str
    model: str
    target: str
    worker: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    peaks: Mapping[str, float] = field(default_factory=dict)
    noise: float = 0.0
    epoch: int = 0
    state: str = "idle"
    compiler_version: str = ""
    cordon: str = ""
    cordon_reason: str = ""
    health: Health = field(default_factory=Health)
    check: int = 0


@dataclass(frozen=True, slots=True)
class Lease:
    """A grant of one device to one client; every write carries (lease, epoch).

    Times are in seconds since the epoch; ``ended_at`` is None while it lives. ``recall`` says why
    its holder is asked to give the device back, empty if it is not. ``owner`` is the name of the
    token that acquired it, empty for the farm's own.
    """

    id: str
    device: str
    client: str
    epoch: int
    term_s: float
    deadline: float = 0.0
    ended_reason: str = ""
    job: str = ""
    granted_at: float = 0.0
    ended_at: float | None = None
    recall: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Cordon:
    """A device, or a worker with all its devices (``scope``), that gets no new lease; of the scope
    ``health`` it is a device's quarantine.

    With ``drain`` its live leases are asked back, and revoked at ``revoke_at`` (seconds since the
    epoch) if one is set. ``actor`` is who asked for it.
    """

    scope: str
    subject: str
    drain: bool
    actor: str
    reason: str
    at: float
    revoke_at: float | None = None


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """What a lease is asked for: a device that serves ``target``, of this model if one is named,
    with these attributes and compiler, whose tags meet ``selector``. A higher priority goes first,
    then the older request."""

    target: str
    device_model: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    compiler_version: str = ""
    selector: str = ""
