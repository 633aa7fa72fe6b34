"""What worker and tracker tell each other."""

from __future__ import annotations

from tunefarm.db import records as rec
from tunefarm.proto import farm_pb2 as farm
from tunefarm.proto.convert.devices import device_from_wire, device_to_wire
from tunefarm.proto.convert.keys import trial_key_from_wire, trial_key_to_wire
from tunefarm.proto.convert.trials import (
    request_from_wire,
    request_to_wire,
    texts_of,
    trial_from_wire,
    trial_to_wire,
)
from tunefarm.proto.protocol import PROTOCOL


def held_to_wire(held: rec.Held) -> farm.Held:
    return farm.Held(key=trial_key_to_wire(held.key), lease=held.lease, epoch=held.epoch)


def held_from_wire(wire: farm.Held) -> rec.Held:
    return rec.Held(trial_key_from_wire(wire.key), wire.lease, wire.epoch)


def worker_state_to_wire(state: rec.WorkerState, wait_s: float) -> farm.SyncRequest:
    return farm.SyncRequest(
        worker=state.worker,
        incarnation=state.incarnation,
        number=state.number,
        compiler_version=state.compiler_version,
        devices=[device_to_wire(device) for device in state.devices],
        held=[held_to_wire(held) for held in state.held],
        results=[
            farm.Result(lease=r.lease, epoch=r.epoch, trial=trial_to_wire(r.trial))
            for r in state.results
        ],
        capacity=state.capacity,
        wait_s=wait_s,
        protocol=PROTOCOL,
    )


def worker_state_from_wire(wire: farm.SyncRequest) -> rec.WorkerState:
    return rec.WorkerState(
        worker=wire.worker,
        incarnation=wire.incarnation,
        number=wire.number,
        compiler_version=wire.compiler_version,
        devices=tuple(device_from_wire(device) for device in wire.devices),
        held=tuple(held_from_wire(held) for held in wire.held),
        results=tuple(
            rec.Result(result.lease, result.epoch, trial_from_wire(result.trial))
            for result in wire.results
        ),
        capacity=wire.capacity,
    )


def orders_to_wire(orders: rec.WorkerOrders) -> farm.SyncReply:
    return farm.SyncReply(
        work=[
            farm.Work(
                device=work.device,
                lease=work.lease,
                epoch=work.epoch,
                request=request_to_wire(work.request),
            )
            for work in orders.work
        ],
        workloads=texts_of(work.request for work in orders.work),
        cancel=[held_to_wire(held) for held in orders.cancel],
        accepted=[trial_key_to_wire(key) for key in orders.accepted],
        refused=[
            farm.Refusal(key=trial_key_to_wire(r.key), reason=r.reason) for r in orders.refused
        ],
        term_s=orders.term_s,
        protocol=PROTOCOL,
        checks=dict(orders.checks),
    )


def orders_from_wire(wire: farm.SyncReply) -> rec.WorkerOrders:
    return rec.WorkerOrders(
        work=tuple(
            rec.Work(
                work.device,
                work.lease,
                work.epoch,
                request_from_wire(work.request, wire.workloads),
            )
            for work in wire.work
        ),
        cancel=tuple(held_from_wire(held) for held in wire.cancel),
        accepted=tuple(trial_key_from_wire(key) for key in wire.accepted),
        refused=tuple(rec.Refusal(trial_key_from_wire(r.key), r.reason) for r in wire.refused),
        term_s=wire.term_s,
        checks=dict(wire.checks),
    )
