"""What records are found by, and workloads."""

from __future__ import annotations

from tunefarm.db import records as rec
from tunefarm.proto import records_pb2 as pb


def task_to_wire(task: rec.TaskKey) -> pb.TaskKey:
    return pb.TaskKey(workload=task.workload, target=task.target)


def task_from_wire(wire: pb.TaskKey) -> rec.TaskKey:
    return rec.TaskKey(wire.workload, wire.target)


def trial_key_to_wire(key: rec.TrialKey) -> pb.TrialKey:
    return pb.TrialKey(job=key.job, task=task_to_wire(key.task), number=key.number)


def trial_key_from_wire(wire: pb.TrialKey) -> rec.TrialKey:
    return rec.TrialKey(wire.job, task_from_wire(wire.task), wire.number)


def best_key_to_wire(key: rec.BestKey) -> pb.BestKey:
    return pb.BestKey(
        workload=key.workload,
        target=key.target,
        device_model=key.device_model,
        protocol=key.protocol,
    )


def best_key_from_wire(wire: pb.BestKey) -> rec.BestKey:
    return rec.BestKey(wire.workload, wire.target, wire.device_model, wire.protocol)


def workload_to_wire(workload: rec.WorkloadRecord) -> pb.Workload:
    return pb.Workload(
        key=workload.key, text=workload.text, summary=workload.summary, flops=workload.flops
    )


def workload_from_wire(wire: pb.Workload) -> rec.WorkloadRecord:
    return rec.WorkloadRecord(wire.key, wire.text, wire.summary, wire.flops)
