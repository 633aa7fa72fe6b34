"""Trials asked for and finished; the texts of their workloads travel once a message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tunefarm.db import records as rec
from tunefarm.proto import records_pb2 as pb
from tunefarm.proto.convert.keys import task_from_wire, task_to_wire
from tunefarm.proto.convert.values import (
    config_from_wire,
    config_to_wire,
    error_from_wire,
    error_to_wire,
    text_to_wire,
)


def request_to_wire(request: rec.TrialRequest) -> pb.TrialRequest:
    """The request without its workload's text, which travels in the message's map."""
    return pb.TrialRequest(
        job=request.job,
        task=task_to_wire(request.task),
        number=request.number,
        config=config_to_wire(request.config),
        predicted=request.predicted,
        origin=request.origin,
        against=[config_to_wire(config) for config in request.against],
        budgets=dict(request.budgets),
        plugins=request.plugins,
        protocol=request.protocol,
    )


def request_from_wire(wire: pb.TrialRequest, texts: Mapping[str, str]) -> rec.TrialRequest:
    """ValueError if ``texts`` lacks the request's workload."""
    if wire.task.workload not in texts:
        raise ValueError(f"the message lacks the text of workload {wire.task.workload[:12]}")
    return rec.TrialRequest(
        job=wire.job,
        task=task_from_wire(wire.task),
        number=wire.number,
        config=config_from_wire(wire.config),
        workload_text=texts[wire.task.workload],
        predicted=wire.predicted if wire.HasField("predicted") else None,
        origin=wire.origin,
        against=tuple(config_from_wire(config) for config in wire.against),
        budgets=dict(wire.budgets),
        plugins=tuple(wire.plugins),
        protocol=wire.protocol,
    )


def texts_of(requests: Iterable[rec.TrialRequest]) -> dict[str, str]:
    """The ``workloads`` map of a message that carries these requests."""
    return {request.task.workload: request.workload_text for request in requests}


def trial_to_wire(trial: rec.Trial) -> pb.Trial:
    return pb.Trial(
        job=trial.job,
        task=task_to_wire(trial.task),
        number=trial.number,
        config=config_to_wire(trial.config),
        times_s=trial.times_s,
        error=error_to_wire(trial.error),
        message=text_to_wire(trial.message),
        stderr_tail=text_to_wire(trial.stderr_tail),
        device=trial.device,
        device_model=trial.device_model,
        device_state=dict(trial.device_state),
        protocol=trial.protocol,
        compiler_version=trial.compiler_version,
        space_fingerprint=trial.space_fingerprint,
        code_hash=trial.code_hash,
        predicted=trial.predicted,
        origin=trial.origin,
        phases_s=dict(trial.phases_s),
        paired_times_s=[pb.Times(seconds=row) for row in trial.paired_times_s],
        created_at=trial.created_at,
    )


def trial_from_wire(wire: pb.Trial) -> rec.Trial:
    return rec.Trial(
        job=wire.job,
        task=task_from_wire(wire.task),
        number=wire.number,
        config=config_from_wire(wire.config),
        times_s=tuple(wire.times_s),
        error=error_from_wire(wire.error),
        message=wire.message,
        stderr_tail=wire.stderr_tail,
        device=wire.device,
        device_model=wire.device_model,
        device_state=dict(wire.device_state),
        protocol=wire.protocol,
        compiler_version=wire.compiler_version,
        space_fingerprint=wire.space_fingerprint,
        code_hash=wire.code_hash,
        predicted=wire.predicted if wire.HasField("predicted") else None,
        origin=wire.origin,
        phases_s=dict(wire.phases_s),
        paired_times_s=tuple(tuple(row.seconds) for row in wire.paired_times_s),
        created_at=wire.created_at,
    )
