"""Where protobuf meets the records: ``x_to_wire`` and ``x_from_wire`` for each type.

Enumerations travel as ``<TYPE>_<NAME>`` and 0 means None. Workload texts of trial requests travel
once a message, in its ``workloads`` map. A message that holds what no record can hold (an unknown
enumeration value, a config value of no type) raises ValueError with one sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tunefarm.db import records as rec
from tunefarm.proto import farm_pb2 as farm
from tunefarm.proto import records_pb2 as pb
from tunefarm.proto.protocol import PROTOCOL


def text_to_wire(text: str) -> str:
    """The text with lone surrogates (raw bytes of some process) replaced, as UTF-8 demands."""
    return text.encode("utf-8", "replace").decode("utf-8")


# --- enumerations -------------------------------------------------------------------------------


def error_to_wire(error: rec.ErrorKind | None) -> str:
    return f"ERROR_KIND_{error.name}" if error else "ERROR_KIND_UNSPECIFIED"


def error_from_wire(value: int) -> rec.ErrorKind | None:
    """A kind that only a newer release knows counts as a run error: its trial has failed."""
    if value not in pb.ErrorKind.values():
        return rec.ErrorKind.RUN_ERROR
    name = _enum_name(pb.ErrorKind, value, "ERROR_KIND_")
    return rec.ErrorKind[name] if name else None


def state_to_wire(state: rec.JobState) -> str:
    return f"JOB_STATE_{state.name}"


def state_from_wire(value: int) -> rec.JobState:
    name = _enum_name(pb.JobState, value, "JOB_STATE_")
    if name is None:
        raise ValueError("the message names no job state")
    return rec.JobState[name]


def verdict_to_wire(verdict: rec.Verdict | None) -> str:
    return f"VERDICT_{verdict.name}" if verdict else "VERDICT_UNSPECIFIED"


def verdict_from_wire(value: int) -> rec.Verdict | None:
    name = _enum_name(pb.Verdict, value, "VERDICT_")
    return rec.Verdict[name] if name else None


def match_to_wire(match: rec.Match) -> str:
    return f"MATCH_{match.name}"


def match_from_wire(value: int) -> rec.Match:
    name = _enum_name(pb.Match, value, "MATCH_")
    if name is None:
        raise ValueError("the message names no match")
    return rec.Match[name]


def _enum_name(enum: object, value: int, prefix: str) -> str | None:
    names: Mapping[int, str] = {v: k for k, v in enum.items()}  # type: ignore[attr-defined]
    if value not in names:
        kind = prefix.rstrip("_").lower().replace("_", " ")
        raise ValueError(f"{value} is no {kind} known here; a newer version of tunefarm sent it")
    return names[value].removeprefix(prefix) if value else None


# --- configs, keys ------------------------------------------------------------------------------


def config_to_wire(config: rec.Config) -> pb.Config:
    wire = pb.Config()
    for name, value in config.items():
        if isinstance(value, str):
            wire.values[name].text = value
        else:
            wire.values[name].number = value
    return wire


def config_from_wire(wire: pb.Config) -> dict[str, int | str]:
    """The config with its knobs in name order, so that equal configs print equally."""
    return {name: _knob_from_wire(name, wire.values[name]) for name in sorted(wire.values)}


def _knob_from_wire(name: str, value: pb.ConfigValue) -> int | str:
    match value.WhichOneof("value"):
        case "number":
            return value.number
        case "text":
            return value.text
        case _:
            raise ValueError(f"knob {name!r} of a config has no value")


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


# --- jobs ---------------------------------------------------------------------------------------


def workload_to_wire(workload: rec.WorkloadRecord) -> pb.Workload:
    return pb.Workload(
        key=workload.key, text=workload.text, summary=workload.summary, flops=workload.flops
    )


def workload_from_wire(wire: pb.Workload) -> rec.WorkloadRecord:
    return rec.WorkloadRecord(wire.key, wire.text, wire.summary, wire.flops)


def job_task_to_wire(task: rec.JobTask) -> pb.JobTask:
    return pb.JobTask(workload=workload_to_wire(task.workload), weight=task.weight)


def job_task_from_wire(wire: pb.JobTask) -> rec.JobTask:
    return rec.JobTask(workload_from_wire(wire.workload), wire.weight)


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


# --- devices and leases -------------------------------------------------------------------------


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


def audit_event_to_wire(event: rec.AuditEvent) -> pb.AuditEvent:
    return pb.AuditEvent(
        at=event.at,
        actor=event.actor,
        action=event.action,
        subject=event.subject,
        reason=event.reason,
    )


def audit_event_from_wire(wire: pb.AuditEvent) -> rec.AuditEvent:
    return rec.AuditEvent(wire.at, wire.actor, wire.action, wire.subject, wire.reason)


def token_to_wire(token: rec.Token) -> pb.Token:
    return pb.Token(
        digest=token.digest,
        name=token.name,
        role=f"ROLE_{token.role.name}",
        devices=token.devices,
        max_priority=token.max_priority,
        created_at=token.created_at,
        created_by=token.created_by,
        expires_at=token.expires_at,
        revoked_at=token.revoked_at,
        used_at=token.used_at,
    )


def token_from_wire(wire: pb.Token) -> rec.Token:
    """ValueError if it has no role, or one that is unknown here."""
    role = _enum_name(pb.Role, wire.role, "ROLE_")
    if role is None:
        raise ValueError("the token has no role")
    return rec.Token(
        digest=wire.digest,
        name=wire.name,
        role=rec.Role[role],
        devices=wire.devices,
        max_priority=wire.max_priority if wire.HasField("max_priority") else None,
        created_at=wire.created_at,
        created_by=wire.created_by,
        expires_at=wire.expires_at if wire.HasField("expires_at") else None,
        revoked_at=wire.revoked_at if wire.HasField("revoked_at") else None,
        used_at=wire.used_at if wire.HasField("used_at") else None,
    )


# --- trials -------------------------------------------------------------------------------------


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


def best_to_wire(best: rec.Best) -> pb.Best:
    return pb.Best(
        key=best_key_to_wire(best.key),
        trial=trial_to_wire(best.trial),
        promoted=best.promoted,
        verdict=verdict_to_wire(best.verdict),
        speedup_over_default=best.speedup_over_default,
        model=best.model,
        model_speedup=best.model_speedup,
    )


def best_from_wire(wire: pb.Best) -> rec.Best:
    has_speedup = wire.HasField("speedup_over_default")
    return rec.Best(
        key=best_key_from_wire(wire.key),
        trial=trial_from_wire(wire.trial),
        promoted=wire.promoted,
        verdict=verdict_from_wire(wire.verdict),
        speedup_over_default=wire.speedup_over_default if has_speedup else None,
        model=wire.model,
        model_speedup=wire.model_speedup if wire.HasField("model_speedup") else None,
    )


def found_to_wire(found: rec.Found) -> pb.Found:
    return pb.Found(best=best_to_wire(found.best), match=match_to_wire(found.match))


def found_from_wire(wire: pb.Found) -> rec.Found:
    return rec.Found(best_from_wire(wire.best), match_from_wire(wire.match))


def final_to_wire(final: rec.Final) -> pb.Final:
    return pb.Final(
        key=best_key_to_wire(final.key),
        challenger=trial_key_to_wire(final.challenger),
        incumbent=trial_key_to_wire(final.incumbent) if final.incumbent else None,
        verdict=verdict_to_wire(final.verdict),
        speedup=final.speedup,
        speedup_over_default=final.speedup_over_default,
        model=final.model,
    )


def final_from_wire(wire: pb.Final) -> rec.Final:
    verdict = verdict_from_wire(wire.verdict)
    if verdict is None:
        raise ValueError("the final names no verdict")
    has_default = wire.HasField("speedup_over_default")
    return rec.Final(
        key=best_key_from_wire(wire.key),
        challenger=trial_key_from_wire(wire.challenger),
        incumbent=trial_key_from_wire(wire.incumbent) if wire.HasField("incumbent") else None,
        verdict=verdict,
        speedup=wire.speedup if wire.HasField("speedup") else None,
        speedup_over_default=wire.speedup_over_default if has_default else None,
        model=wire.model,
    )


# --- the worker's conversation ------------------------------------------------------------------


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
