"""Devices, how they are, and leases."""

from __future__ import annotations

from tunefarm.db import records as rec
from tunefarm.proto import records_pb2 as pb


def device_to_wire(device: rec.Device) -> pb.Device:
    return pb.Device(
        id=device.id,
        kind=device.kind,
        model=device.model,
        target=device.target,
        worker=device.worker,
        attributes=dict(device.attributes),
        peaks=dict(device.peaks),
        noise=device.noise,
        epoch=device.epoch,
        state=device.state,
        compiler_version=device.compiler_version,
        cordon=device.cordon,
        cordon_reason=device.cordon_reason,
        health=health_to_wire(device.health),
    )


def device_from_wire(wire: pb.Device) -> rec.Device:
    return rec.Device(
        id=wire.id,
        kind=wire.kind,
        model=wire.model,
        target=wire.target,
        worker=wire.worker,
        attributes=dict(wire.attributes),
        peaks=dict(wire.peaks),
        noise=wire.noise,
        epoch=wire.epoch,
        state=wire.state,
        compiler_version=wire.compiler_version,
        cordon=wire.cordon,
        cordon_reason=wire.cordon_reason,
        health=health_from_wire(wire.health) if wire.HasField("health") else rec.Health(),
    )


def health_to_wire(health: rec.Health) -> pb.Health:
    return pb.Health(
        checked_at=health.checked_at,
        check=health.check,
        reference_s=health.reference_s,
        drift=health.drift,
        trial_noise=health.trial_noise,
        trouble=health.trouble,
    )


def health_from_wire(wire: pb.Health) -> rec.Health:
    return rec.Health(
        checked_at=wire.checked_at,
        check=wire.check,
        reference_s=wire.reference_s,
        drift=wire.drift,
        trial_noise=wire.trial_noise,
        trouble=wire.trouble,
    )


def device_request_to_wire(request: rec.DeviceRequest) -> pb.DeviceRequest:
    return pb.DeviceRequest(
        target=request.target,
        device_model=request.device_model,
        attributes=dict(request.attributes),
        priority=request.priority,
        compiler_version=request.compiler_version,
        selector=request.selector,
    )


def device_request_from_wire(wire: pb.DeviceRequest) -> rec.DeviceRequest:
    return rec.DeviceRequest(
        target=wire.target,
        device_model=wire.device_model,
        attributes=dict(wire.attributes),
        priority=wire.priority,
        compiler_version=wire.compiler_version,
        selector=wire.selector,
    )


def lease_to_wire(lease: rec.Lease) -> pb.Lease:
    return pb.Lease(
        id=lease.id,
        device=lease.device,
        client=lease.client,
        epoch=lease.epoch,
        term_s=lease.term_s,
        deadline=lease.deadline,
        ended_reason=lease.ended_reason,
        job=lease.job,
        granted_at=lease.granted_at,
        ended_at=lease.ended_at,
        recall=lease.recall,
        owner=lease.owner,
    )


def lease_from_wire(wire: pb.Lease) -> rec.Lease:
    return rec.Lease(
        id=wire.id,
        device=wire.device,
        client=wire.client,
        epoch=wire.epoch,
        term_s=wire.term_s,
        deadline=wire.deadline,
        ended_reason=wire.ended_reason,
        job=wire.job,
        granted_at=wire.granted_at,
        ended_at=wire.ended_at if wire.HasField("ended_at") else None,
        recall=wire.recall,
        owner=wire.owner,
    )


def cordon_to_wire(cordon: rec.Cordon) -> pb.Cordon:
    return pb.Cordon(
        scope=cordon.scope,
        subject=cordon.subject,
        drain=cordon.drain,
        actor=cordon.actor,
        reason=cordon.reason,
        at=cordon.at,
        revoke_at=cordon.revoke_at,
    )


def cordon_from_wire(wire: pb.Cordon) -> rec.Cordon:
    return rec.Cordon(
        scope=wire.scope,
        subject=wire.subject,
        drain=wire.drain,
        actor=wire.actor,
        reason=wire.reason,
        at=wire.at,
        revoke_at=wire.revoke_at if wire.HasField("revoke_at") else None,
    )
