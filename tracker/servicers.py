"""The gRPC face: parse, see whether the caller may, call, convert."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

from sqlalchemy import Connection
from tunefarm.db import best, cordons, jobs, leases, misses, queue, stored_jobs, trials
from tunefarm.db.records import Promotion
from tunefarm.proto import convert, farm_pb2, farm_pb2_grpc
from tunefarm.proto.protocol import PROTOCOL, check_protocol
from tunefarm.tracker import idling, jobbing, lending, limits, noting, operating, working
from tunefarm.tracker.answers import answers
from tunefarm.tracker.callers import caller
from tunefarm.tracker.farm import Farm
from tunefarm.tracker.lease_stream import LeaseStream
from tunefarm.tracker.leasing import Desk
from tunefarm.tracker.limits import wait_of
from tunefarm.tracker.owners import check_job, check_lease, check_trials

MAX_PAGE = 10_000


def _page(limit: int) -> int:
    return min(limit, MAX_PAGE) if limit > 0 else 1000


class WorkerServicer(farm_pb2_grpc.WorkerServicer):
    """What workers call."""

    def __init__(self, farm: Farm) -> None:
        self._farm = farm

    @answers
    async def Sync(self, request: farm_pb2.SyncRequest) -> farm_pb2.SyncReply:
        if not (request.worker and request.incarnation and request.compiler_version):
            raise ValueError("a Sync names its worker, its incarnation and its compiler version")
        check_protocol(request.protocol, PROTOCOL, "worker")
        state = convert.worker_state_from_wire(request)
        orders = await working.sync(self._farm, state, wait_of(request.wait_s), caller())
        return convert.orders_to_wire(orders)


class FarmServicer(farm_pb2_grpc.FarmServicer):
    """What tuners, builds and the command line call."""

    def __init__(self, farm: Farm, desk: Desk, database: str) -> None:
        self._farm = farm
        self._desk = desk
        self._database = database

    @answers
    async def Info(self, request: farm_pb2.InfoRequest) -> farm_pb2.InfoReply:
        check_protocol(request.protocol, PROTOCOL, "client")
        return farm_pb2.InfoReply(
            version=version("tunefarm"),
            database=self._database,
            lease_term_s=self._farm.options.lease_term_s,
            claim_term_s=self._farm.options.claim_term_s,
            started_at=self._farm.started_at,
            protocol=PROTOCOL,
            now=time.time(),
        )

    # --- leases and trials ----------------------------------------------------------------------

    @answers
    async def Acquire(self, request: farm_pb2.AcquireRequest) -> farm_pb2.AcquireReply:
        return await lending.acquire(self._desk, request)

    @answers
    async def Renew(self, request: farm_pb2.RenewRequest) -> farm_pb2.RenewReply:
        return await lending.renew(self._desk, request)

    @answers
    async def Release(self, request: farm_pb2.ReleaseRequest) -> farm_pb2.ReleaseReply:
        return await lending.release(self._desk, request)

    def Leases(
        self, frames: AsyncIterator[farm_pb2.LeaseCalls], _: Any
    ) -> AsyncIterator[farm_pb2.LeaseAnswers]:
        return LeaseStream(self._desk).answers(frames)

    @answers
    async def Submit(self, request: farm_pb2.SubmitRequest) -> farm_pb2.SubmitReply:
        await check_lease(self._farm, request.lease)
        await check_trials(self._farm, {one.job for one in request.requests})
        limits.check_texts(request.workloads)
        wanted = [convert.request_from_wire(r, request.workloads) for r in request.requests]
        done = await working.submit(self._farm, request.lease, request.epoch, wanted)
        return farm_pb2.SubmitReply(done=[convert.trial_key_to_wire(key) for key in done])

    @answers
    async def Collect(self, request: farm_pb2.CollectRequest) -> farm_pb2.CollectReply:
        found = await working.collect(
            self._farm, request.job, request.cursor, _page(request.limit), wait_of(request.wait_s)
        )
        return farm_pb2.CollectReply(
            trials=[convert.trial_to_wire(trial) for trial in found.trials],
            cursor=found.cursor,
            pending=found.pending,
        )

    @answers
    async def Pending(self, request: farm_pb2.PendingRequest) -> farm_pb2.PendingReply:
        found = await self._farm.database.read(lambda c: queue.pending(c, request.job))
        return farm_pb2.PendingReply(
            requests=[convert.request_to_wire(r) for r in found],
            workloads=convert.texts_of(found),
        )

    # --- jobs -----------------------------------------------------------------------------------

    @answers
    async def SubmitJob(self, request: farm_pb2.SubmitJobRequest) -> farm_pb2.SubmitJobReply:
        job = caller().narrowed_job(convert.job_from_wire(request.job))
        limits.check_texts({task.workload.key: task.workload.text for task in job.tasks})
        job = await jobbing.submit(self._farm, job)
        return farm_pb2.SubmitJobReply(job=convert.job_to_wire(job))

    @answers
    async def ClaimJob(self, request: farm_pb2.ClaimJobRequest) -> farm_pb2.ClaimJobReply:
        tuner = caller().signed(request.tuner)
        job = await jobbing.claim(
            self._farm,
            request.request_id,
            tuner,
            request.job,
            wait_of(request.wait_s),
            tuple(request.plugins),
        )
        return farm_pb2.ClaimJobReply(job=convert.job_to_wire(job) if job else None)

    @answers
    async def RenewJob(self, request: farm_pb2.RenewJobRequest) -> farm_pb2.RenewJobReply:
        job = await jobbing.renew(self._farm, request.job, request.claim_epoch)
        return farm_pb2.RenewJobReply(job=convert.job_to_wire(job))

    @answers
    async def ReleaseJob(self, request: farm_pb2.ReleaseJobRequest) -> farm_pb2.ReleaseJobReply:
        job = await jobbing.release(self._farm, request.job, request.claim_epoch)
        return farm_pb2.ReleaseJobReply(job=convert.job_to_wire(job))

    @answers
    async def FinishJob(self, request: farm_pb2.FinishJobRequest) -> farm_pb2.FinishJobReply:
        state = convert.state_from_wire(request.state)
        job = await jobbing.finish(
            self._farm, request.job, request.claim_epoch, state, request.message
        )
        return farm_pb2.FinishJobReply(job=convert.job_to_wire(job))

    @answers
    async def Cancel(self, request: farm_pb2.CancelRequest) -> farm_pb2.CancelReply:
        await check_job(self._farm, request.job)
        job = await jobbing.cancel(self._farm, request.job, request.reason)
        return farm_pb2.CancelReply(job=convert.job_to_wire(job))

    @answers
    async def RetryJob(self, request: farm_pb2.RetryJobRequest) -> farm_pb2.RetryJobReply:
        await check_job(self._farm, request.job)
        job = await jobbing.retry(self._farm, request.job)
        return farm_pb2.RetryJobReply(job=convert.job_to_wire(job))

    @answers
    async def NoteJob(self, request: farm_pb2.NoteJobRequest) -> farm_pb2.NoteJobReply:
        await check_job(self._farm, request.job)
        actor = caller().signed(request.actor)
        job = await jobbing.note(self._farm, request.request_id, request.job, request.note, actor)
        return farm_pb2.NoteJobReply(job=convert.job_to_wire(job))

    @answers
    async def GetJob(self, request: farm_pb2.GetJobRequest) -> farm_pb2.GetJobReply:
        job = await self._farm.database.read(lambda c: stored_jobs.get(c, request.job))
        return farm_pb2.GetJobReply(job=convert.job_to_wire(self._farm.told(job)))

    @answers
    async def ListJobs(self, request: farm_pb2.ListJobsRequest) -> farm_pb2.ListJobsReply:
        states = [convert.state_from_wire(state) for state in request.states]
        found = await self._farm.database.read(
            lambda c: stored_jobs.recent(c, states, _page(request.limit))
        )
        return farm_pb2.ListJobsReply(
            jobs=[convert.job_to_wire(self._farm.told(job)) for job in found]
        )

    @answers
    async def Watch(self, request: farm_pb2.WatchRequest) -> farm_pb2.WatchReply:
        update = await jobbing.watch(
            self._farm, request.job, request.cursor, wait_of(request.wait_s)
        )
        return farm_pb2.WatchReply(
            job=convert.job_to_wire(update.job),
            progress=[convert.progress_to_wire(p) for p in update.progress],
            errors=dict(update.errors),
            cursor=update.cursor,
        )

    # --- records --------------------------------------------------------------------------------

    @answers
    async def Best(self, request: farm_pb2.BestRequest) -> farm_pb2.BestReply:
        keys = [convert.best_key_from_wire(key) for key in request.keys]
        found = await self._farm.database.read(lambda c: best.lookup(c, keys, job=request.job))
        return farm_pb2.BestReply(
            candidates=[
                farm_pb2.Candidates(
                    key=convert.best_key_to_wire(key),
                    found=[convert.found_to_wire(one) for one in answers_],
                )
                for key, answers_ in found.items()
            ]
        )

    @answers
    async def Promote(self, request: farm_pb2.PromoteRequest) -> farm_pb2.PromoteReply:
        if not request.request_id:
            raise ValueError("a promotion has a request id")
        final = convert.final_from_wire(request.final)
        if request.job:
            await check_job(self._farm, request.job)

        def write(connection: Connection) -> Promotion:
            if request.job:
                jobs.check_claim(connection, request.job, request.claim_epoch)
            return best.promote(connection, request.request_id, final)

        outcome = await self._farm.database.write(write)
        return farm_pb2.PromoteReply(
            promoted=outcome.promoted,
            best=convert.best_to_wire(outcome.best) if outcome.best else None,
        )

    @answers
    async def History(self, request: farm_pb2.HistoryRequest) -> farm_pb2.HistoryReply:
        page = await self._farm.database.read(
            lambda c: trials.history(
                c, request.target, request.workloads, request.cursor, _page(request.limit)
            )
        )
        return farm_pb2.HistoryReply(
            trials=[convert.trial_to_wire(trial) for trial in page.trials],
            workloads=dict(page.workloads),
            cursor=page.cursor,
            more=page.more,
        )

    @answers
    async def TaskStats(self, request: farm_pb2.TaskStatsRequest) -> farm_pb2.TaskStatsReply:
        tasks = [convert.task_from_wire(task) for task in request.tasks]
        found = await self._farm.database.read(lambda c: trials.task_progress(c, tasks))
        return farm_pb2.TaskStatsReply(
            progress=[convert.progress_to_wire(p) for p in found.values()]
        )

    @answers
    async def CountTrials(self, request: farm_pb2.CountTrialsRequest) -> farm_pb2.CountTrialsReply:
        tasks = [convert.task_from_wire(task) for task in request.tasks]
        named = (request.compiler_version, request.device_model, request.protocol)
        found = await self._farm.database.read(lambda c: trials.count_candidates(c, tasks, *named))
        return farm_pb2.CountTrialsReply(trials=found)

    @answers
    async def ReportMisses(
        self, request: farm_pb2.ReportMissesRequest
    ) -> farm_pb2.ReportMissesReply:
        found = [caller().narrowed_miss(convert.miss_from_wire(miss)) for miss in request.misses]
        await idling.report(self._farm, request.request_id, found)
        return farm_pb2.ReportMissesReply()

    @answers
    async def Misses(self, request: farm_pb2.MissesRequest) -> farm_pb2.MissesReply:
        limit = _page(request.limit)
        found = await self._farm.database.read(lambda c: misses.most_valuable(c, limit))
        return farm_pb2.MissesReply(misses=[convert.miss_to_wire(miss) for miss in found])

    @answers
    async def NoteModel(self, request: farm_pb2.NoteModelRequest) -> farm_pb2.NoteModelReply:
        tasks = [convert.job_task_from_wire(task) for task in request.tasks]
        await noting.note(self._farm, request.name, request.target, tasks)
        return farm_pb2.NoteModelReply()

    @answers
    async def Devices(self, request: farm_pb2.DevicesRequest) -> farm_pb2.DevicesReply:
        clock_offset_s = time.time() - self._farm.clock()
        live = self._farm.leases.values()
        reply = farm_pb2.DevicesReply(
            devices=[convert.device_to_wire(d) for d in self._farm.device_states()],
            leases=[convert.lease_to_wire(one.lease) for one in live],
        )
        for wire, one in zip(reply.leases, live, strict=True):
            wire.deadline = one.deadline + clock_offset_s
        return reply

    # --- operators ------------------------------------------------------------------------------

    @answers
    async def Cordon(self, request: farm_pb2.CordonRequest) -> farm_pb2.CordonReply:
        after_s = request.revoke_after_s if request.HasField("revoke_after_s") else None
        cordon = await operating.cordon(
            self._farm, _wish(request), request.name, request.drain, after_s
        )
        devices = operating.devices_of(self._farm, cordon.scope, cordon.subject)
        names = {device.id for device in devices}
        live = [one.lease for one in self._farm.leases.values() if one.lease.device in names]
        return farm_pb2.CordonReply(
            cordon=convert.cordon_to_wire(cordon),
            devices=[convert.device_to_wire(device) for device in devices],
            leases=[convert.lease_to_wire(lease) for lease in live],
        )

    @answers
    async def Uncordon(self, request: farm_pb2.UncordonRequest) -> farm_pb2.UncordonReply:
        devices = await operating.uncordon(self._farm, _wish(request), request.name)
        return farm_pb2.UncordonReply(devices=[convert.device_to_wire(d) for d in devices])

    @answers
    async def CheckDevice(self, request: farm_pb2.CheckDeviceRequest) -> farm_pb2.CheckDeviceReply:
        asked = await operating.check(self._farm, _wish(request), request.name, request.lift)
        devices = [d for d in self._farm.device_states() if d.id in asked]
        return farm_pb2.CheckDeviceReply(
            devices=[convert.device_to_wire(device) for device in devices], checks=asked
        )

    @answers
    async def Revoke(self, request: farm_pb2.RevokeRequest) -> farm_pb2.RevokeReply:
        lease = await operating.revoke(self._farm, _wish(request), request.lease)
        return farm_pb2.RevokeReply(lease=convert.lease_to_wire(lease))

    @answers
    async def LeaseHistory(
        self, request: farm_pb2.LeaseHistoryRequest
    ) -> farm_pb2.LeaseHistoryReply:
        found = await self._farm.database.read(
            lambda c: leases.history(
                c,
                device=request.device,
                job=request.job,
                before=request.before or None,
                limit=_page(request.limit),
            )
        )
        return farm_pb2.LeaseHistoryReply(leases=[convert.lease_to_wire(one) for one in found])

    @answers
    async def Audit(self, request: farm_pb2.AuditRequest) -> farm_pb2.AuditReply:
        found = await self._farm.database.read(
            lambda c: cordons.events(c, request.subject, _page(request.limit))
        )
        return farm_pb2.AuditReply(events=[convert.audit_event_to_wire(event) for event in found])


def _wish(
    request: farm_pb2.CordonRequest
    | farm_pb2.UncordonRequest
    | farm_pb2.CheckDeviceRequest
    | farm_pb2.RevokeRequest,
) -> operating.Wish:
    actor = caller().signed(request.actor) if request.actor else ""
    return operating.Wish(request.request_id, actor, request.reason)
