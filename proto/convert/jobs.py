"""Jobs, their progress, and misses."""

from __future__ import annotations

from tunefarm.db import records as rec
from tunefarm.proto import records_pb2 as pb
from tunefarm.proto.convert.keys import (
    task_from_wire,
    task_to_wire,
    workload_from_wire,
    workload_to_wire,
)
from tunefarm.proto.convert.values import state_from_wire, state_to_wire, text_to_wire


def job_task_to_wire(task: rec.JobTask) -> pb.JobTask:
    return pb.JobTask(
        workload=workload_to_wire(task.workload), weight=task.weight, protocol=task.protocol
    )


def job_task_from_wire(wire: pb.JobTask) -> rec.JobTask:
    return rec.JobTask(workload_from_wire(wire.workload), wire.weight, wire.protocol)


def job_to_wire(job: rec.Job) -> pb.Job:
    return pb.Job(
        id=job.id,
        target=job.target,
        tasks=[job_task_to_wire(task) for task in job.tasks],
        budget=pb.Budget(trials=job.budget.trials, seconds=job.budget.seconds),
        options=dict(job.options),
        state=state_to_wire(job.state),
        priority=job.priority,
        message=text_to_wire(job.message),
        claimed_by=job.claimed_by,
        claim_epoch=job.claim_epoch,
        claim_term_s=job.claim_term_s,
        created_at=job.created_at,
        updated_at=job.updated_at,
        compiler_version=job.compiler_version,
        selector=job.selector,
        unmet=job.unmet,
        owner=job.owner,
        recall=job.recall,
        model_name=job.model_name,
        note=job.note,
    )


def job_from_wire(wire: pb.Job) -> rec.Job:
    return rec.Job(
        id=wire.id,
        target=wire.target,
        tasks=tuple(job_task_from_wire(task) for task in wire.tasks),
        budget=rec.Budget(
            wire.budget.trials,
            wire.budget.seconds if wire.budget.HasField("seconds") else None,
        ),
        options=dict(wire.options),
        state=state_from_wire(wire.state),
        priority=wire.priority,
        message=wire.message,
        claimed_by=wire.claimed_by,
        claim_epoch=wire.claim_epoch,
        claim_term_s=wire.claim_term_s,
        created_at=wire.created_at,
        updated_at=wire.updated_at,
        compiler_version=wire.compiler_version,
        selector=wire.selector,
        unmet=wire.unmet,
        owner=wire.owner,
        recall=wire.recall,
        model_name=wire.model_name,
        note=wire.note,
    )


def miss_to_wire(miss: rec.Miss) -> pb.Miss:
    return pb.Miss(
        workload=workload_to_wire(miss.workload),
        target=miss.target,
        weight=miss.weight,
        default_s=miss.default_s,
        roofline_s=miss.roofline_s,
        builds=miss.builds,
        reported_at=miss.reported_at,
        job=miss.job,
        selector=miss.selector,
    )


def miss_from_wire(wire: pb.Miss) -> rec.Miss:
    return rec.Miss(
        workload=workload_from_wire(wire.workload),
        target=wire.target,
        weight=wire.weight,
        default_s=wire.default_s,
        roofline_s=wire.roofline_s,
        builds=wire.builds,
        reported_at=wire.reported_at,
        job=wire.job,
        selector=wire.selector,
    )


def progress_to_wire(progress: rec.Progress) -> pb.Progress:
    return pb.Progress(
        task=task_to_wire(progress.task),
        summary=progress.summary,
        flops=progress.flops,
        weight=progress.weight,
        ok=progress.ok,
        failed=progress.failed,
        pending=progress.pending,
        best_s=progress.best_s,
        default_s=progress.default_s,
        final_look=progress.final_look,
    )


def progress_from_wire(wire: pb.Progress) -> rec.Progress:
    return rec.Progress(
        task=task_from_wire(wire.task),
        summary=wire.summary,
        flops=wire.flops,
        weight=wire.weight,
        ok=wire.ok,
        failed=wire.failed,
        pending=wire.pending,
        best_s=wire.best_s if wire.HasField("best_s") else None,
        default_s=wire.default_s if wire.HasField("default_s") else None,
        final_look=wire.final_look,
    )
