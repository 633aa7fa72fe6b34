"""Who makes a call: the name, role and scope of the token that came with it."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, replace

from tunefarm.db.records import Device, DeviceRequest, Job, Lease, Miss, Role, Token
from tunefarm.proto.errors import Forbidden
from tunefarm.tracker.selector import parse_selector

MAX_ACTOR = 200


@dataclass(frozen=True, slots=True)
class Caller:
    """The holder of a token. ``name`` is empty for the farm's own token, that of the rendezvous
    file: who can read it owns the database."""

    name: str
    role: Role
    devices: str = ""
    max_priority: int | None = None

    @staticmethod
    def of(token: Token) -> Caller:
        return Caller(token.name, token.role, token.devices, token.max_priority)

    def signed(self, said: str) -> str:
        """What the farm notes of somebody: the token's name, then what the machine says."""
        said = said[:MAX_ACTOR]
        return f"{self.name} ({said})" if self.name else said

    # --- what belongs to whom -------------------------------------------------------------------

    def check_owner(self, job: str, owner: str) -> None:
        """Forbidden unless the caller may end the job, or measure for it: clients may their own."""
        if self.role is Role.CLIENT and owner != self.name:
            raise Forbidden(
                f"job {job} belongs to {owner or 'the farm itself'}, and client {self.name} may "
                "change its own jobs only; ask an administrator"
            )

    def check_lease(self, lease: Lease) -> None:
        """Forbidden unless the caller acquired the lease."""
        if self.role is not Role.ADMIN and lease.owner != self.name:
            raise Forbidden(
                f"the lease of device {lease.device} belongs to {lease.client}, not to {self.name}"
            )

    # --- what a token's scope allows ------------------------------------------------------------

    def narrowed_job(self, job: Job) -> Job:
        """The job as the caller may submit it: its own, on the devices of its scope alone.

        Forbidden if its priority is too high.
        """
        self._check_priority(job.priority)
        return replace(job, owner=self.name, selector=self._narrowed(job.selector))

    def narrowed_request(self, request: DeviceRequest) -> DeviceRequest:
        """The request on the devices of the caller's scope; Forbidden if its priority is too
        high."""
        self._check_priority(request.priority)
        return replace(request, selector=self._narrowed(request.selector))

    def narrowed_miss(self, miss: Miss) -> Miss:
        """The miss, to be measured on the devices of the caller's scope alone."""
        return replace(miss, selector=self._narrowed(miss.selector))

    def check_offer(self, worker: str, devices: Iterable[Device]) -> None:
        """Forbidden unless the caller may offer these devices as this worker."""
        if not self.devices:
            return
        scope = parse_selector(self.devices)
        offered = [replace(device, worker=worker) for device in devices]
        if not offered:
            raise Forbidden(
                f"worker {worker} offers no device; token {self.name} is for those with "
                f"{self.devices}"
            )
        for device in offered:
            if not scope.selects(device):
                raise Forbidden(
                    f"token {self.name} is for devices with {self.devices}, and device {device.id} "
                    f"of worker {worker} is none of them"
                )

    def _narrowed(self, selector: str) -> str:
        return " ".join(filter(None, (selector, self.devices)))

    def _check_priority(self, priority: int) -> None:
        if self.max_priority is not None and priority > self.max_priority:
            raise Forbidden(
                f"{self.name} may ask for a priority of {self.max_priority} at most, not {priority}"
            )


OWN = Caller("", Role.ADMIN)
"""The holder of the rendezvous file."""

_CALLER: ContextVar[Caller] = ContextVar("caller")


def set_caller(caller: Caller) -> None:
    """Say who makes the call that this task answers."""
    _CALLER.set(caller)


def caller() -> Caller:
    """Who makes the call that this task answers."""
    return _CALLER.get()
