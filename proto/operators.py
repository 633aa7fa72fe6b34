"""What operators call about devices and leases."""

from __future__ import annotations

from tunefarm.db.records import AuditEvent, Cordon, Device, Lease
from tunefarm.proto import convert, farm_pb2
from tunefarm.proto.calls import FarmCalls, new_request_id


class OperatorCalls(FarmCalls):
    """A connection of an operator."""

    def cordon(
        self,
        name: str,
        *,
        actor: str,
        reason: str,
        drain: bool = False,
        revoke_after_s: float | None = None,
    ) -> tuple[Cordon, tuple[Device, ...], tuple[Lease, ...]]:
        """Grant no lease any more of a device, or of any of a worker's: (cordon, its devices, their
        live leases). NotFound unless ``name`` is one id, or the beginning of one only.

        ``drain`` asks live leases back, and revokes those that are left after ``revoke_after_s``.
        """
        wire = farm_pb2.CordonRequest(
            request_id=new_request_id(),
            name=name,
            drain=drain,
            revoke_after_s=revoke_after_s,
            actor=actor,
            reason=reason,
        )
        reply: farm_pb2.CordonReply = self._call(self._farm.Cordon, wire)
        return (
            convert.cordon_from_wire(reply.cordon),
            tuple(convert.device_from_wire(device) for device in reply.devices),
            tuple(convert.lease_from_wire(lease) for lease in reply.leases),
        )

    def uncordon(self, name: str, *, actor: str, reason: str = "") -> tuple[Device, ...]:
        """Let a device or worker have leases again; its devices. NotFound as in ``cordon``."""
        wire = farm_pb2.UncordonRequest(
            request_id=new_request_id(), name=name, actor=actor, reason=reason
        )
        reply: farm_pb2.UncordonReply = self._call(self._farm.Uncordon, wire)
        return tuple(convert.device_from_wire(device) for device in reply.devices)

    def check_devices(
        self, name: str, *, actor: str, reason: str = "", lift: bool = False
    ) -> dict[str, int]:
        """Have a device, or a worker's devices, checked; the number that ``health.check`` has when
        each is. With ``lift`` they are trusted as they are. NotFound as in ``cordon``."""
        wire = farm_pb2.CheckDeviceRequest(
            request_id=new_request_id(), name=name, lift=lift, actor=actor, reason=reason
        )
        reply: farm_pb2.CheckDeviceReply = self._call(self._farm.CheckDevice, wire)
        return dict(reply.checks)

    def revoke(self, lease: str, *, actor: str, reason: str) -> Lease:
        """End a live lease, named by its id or the beginning of it; its job queues for another.

        NotFound if there is none, or if it has ended, with why.
        """
        wire = farm_pb2.RevokeRequest(
            request_id=new_request_id(), lease=lease, actor=actor, reason=reason
        )
        reply: farm_pb2.RevokeReply = self._call(self._farm.Revoke, wire)
        return convert.lease_from_wire(reply.lease)

    def lease_history(
        self, *, device: str = "", job: str = "", before: float = 0.0, limit: int = 100
    ) -> tuple[Lease, ...]:
        """Leases, live and ended, the newest first: of devices and jobs whose ids begin so, and
        granted before that time (seconds since the epoch) unless it is 0."""
        wire = farm_pb2.LeaseHistoryRequest(device=device, job=job, before=before, limit=limit)
        reply: farm_pb2.LeaseHistoryReply = self._call(self._farm.LeaseHistory, wire)
        return tuple(convert.lease_from_wire(lease) for lease in reply.leases)

    def audit(self, subject: str = "", limit: int = 100) -> tuple[AuditEvent, ...]:
        """What operators did, the newest first; only to devices, workers and leases whose ids
        begin so."""
        wire = farm_pb2.AuditRequest(subject=subject, limit=limit)
        reply: farm_pb2.AuditReply = self._call(self._farm.Audit, wire)
        return tuple(convert.audit_event_from_wire(event) for event in reply.events)
