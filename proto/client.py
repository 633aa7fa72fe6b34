"""The one gRPC client of the farm, for workers, tuners, builds and the command line.

Every call has a deadline. Every method may be repeated without harm (mutations carry a request id
or a natural key), and is repeated, only when the tracker is gone or silent: for ``connect_s``
seconds before the tracker has ever answered this client, for ``patience_s`` seconds afterwards
(a tracker that restarts). All methods raise the errors of ``proto.errors``; TrackerUnavailable
and TokenRefused can come from any of them. A client may be used from several threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
from tunefarm.db.records import (
    OPEN,
    Collected,
    Device,
    DeviceRequest,
    FarmInfo,
    Job,
    JobState,
    JobUpdate,
    Lease,
    TrialKey,
    TrialRequest,
    WorkerOrders,
    WorkerState,
)
from tunefarm.proto import convert, farm_pb2, farm_pb2_grpc
from tunefarm.proto.calls import new_request_id
from tunefarm.proto.connection import CALL_S, Trackers
from tunefarm.proto.errors import InvalidRequest, TrackerUnavailable
from tunefarm.proto.keepalive import Keepalive
from tunefarm.proto.lease_line import LeaseLine
from tunefarm.proto.looking import RecordCalls
from tunefarm.proto.operators import OperatorCalls
from tunefarm.proto.protocol import PROTOCOL, check_protocol
from tunefarm.proto.rendezvous import read_rendezvous
from tunefarm.proto.tls import Tls
from tunefarm.proto.tokens import TokenCalls

_SUBMIT_CHUNK = 256
_FIRST_SYNC_S = 3.0
"""How late an answer to Sync may be before another tracker is asked, until the term is known."""
_MORE, _LESS = 2.0, 0.9
"""By what that time changes when it passed without an answer, and with each answer: where all are
slow none would ever answer in time."""


class SyncCall:
    """A worker's Sync on its way; a newer Sync ends it with orders that say nothing new."""

    def __init__(self, client: FarmClient, trackers: Trackers, turn: int, future: Any) -> None:
        self._client = client
        self._trackers = trackers
        self._turn = turn
        self._future = future

    def result(self) -> WorkerOrders:
        """Wait for the tracker's orders; Superseded if a newer process of the worker is known,
        ProtocolMismatch if worker and tracker cannot work together."""
        try:
            reply: farm_pb2.SyncReply = self._future.result()
        except grpc.FutureCancelledError as error:
            raise TrackerUnavailable("the Sync was cancelled here") from error
        except grpc.RpcError as error:
            if self._client.has_moved(self._trackers, error):
                raise TrackerUnavailable(
                    f"the tracker at {self._trackers.address} is gone; the one at "
                    f"{self._client.address} is asked from now on"
                ) from error
            if self._client.has_several and self._client.is_away(error):
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    self._client._sync_s = min(CALL_S, _MORE * self._client._sync_s)
                raise self._client.turned_from(self._turn) from error
            raise self._client._error(error, CALL_S) from error
        self._client._answered = True
        if self._client.has_several:
            usual_s = min(CALL_S, max(1.0, reply.term_s / 3))
            self._client._sync_s = max(usual_s, _LESS * self._client._sync_s)
        check_protocol(PROTOCOL, reply.protocol, "worker")
        return convert.orders_from_wire(reply)

    def cancel(self) -> None:
        self._future.cancel()

    def done(self) -> bool:
        return bool(self._future.done())


class FarmClient(RecordCalls, OperatorCalls, TokenCalls):
    """A connection to the tracker at ``address`` (HOST:PORT) with a ``token``; with ``tls`` if it
    leaves this machine. ``file`` is the rendezvous file that says so, if there is one."""

    def __init__(
        self,
        address: str,
        token: str = "",
        *,
        connect_s: float = 3.0,
        patience_s: float = 30.0,
        tls: Tls | None = None,
        file: Path | None = None,
    ) -> None:
        super().__init__(address, token, connect_s, patience_s, tls, file)
        self._worker: Any = self._service(farm_pb2_grpc.WorkerStub)
        self._leases: Any = self._service(LeaseLine)
        self._sync_s = _FIRST_SYNC_S if self.has_several else CALL_S

    @staticmethod
    def from_rendezvous(
        path: Path, *, connect_s: float = 3.0, patience_s: float = 30.0
    ) -> FarmClient:
        """A client of the tracker that wrote this file, which is read again where that is away;
        InvalidRequest if it cannot be used."""
        found = read_rendezvous(path)
        return FarmClient(
            found.address,
            found.token,
            connect_s=connect_s,
            patience_s=patience_s,
            tls=found.tls,
            file=path,
        )

    def info(self) -> FarmInfo:
        """Facts of the tracker; the cheapest way to see that one answers.

        ProtocolMismatch if it is of a release too far from this one.
        """
        wire = farm_pb2.InfoRequest(protocol=PROTOCOL)
        reply: farm_pb2.InfoReply = self._call(self._farm.Info, wire)
        check_protocol(PROTOCOL, reply.protocol, "client")
        return FarmInfo(
            version=reply.version,
            database=reply.database,
            lease_term_s=reply.lease_term_s,
            claim_term_s=reply.claim_term_s,
            started_at=reply.started_at,
            protocol=reply.protocol,
            now=reply.now,
        )

    # --- workers --------------------------------------------------------------------------------

    def sync(self, state: WorkerState, wait_s: float) -> WorkerOrders:
        """Tell the worker's state, get what it should do now; waits up to ``wait_s`` for news.

        Not repeated here: the next Sync repairs what a lost one left. Superseded if a newer
        process of the same worker is known.
        """
        return self.start_sync(state, wait_s).result()

    def start_sync(self, state: WorkerState, wait_s: float) -> SyncCall:
        """``sync`` in the background: start another with a higher number when there are results,
        and the one under way ends at once."""
        request = convert.worker_state_to_wire(state, wait_s)
        trackers, turn, timeout_s = self.trackers, self.turn, wait_s + self._sync_s
        future = self._worker.Sync.future(request, timeout=timeout_s, metadata=self._metadata)
        return SyncCall(self, trackers, turn, future)

    # --- leases ---------------------------------------------------------------------------------

    def acquire(
        self,
        request: DeviceRequest,
        *,
        client: str,
        job: Job | None = None,
        request_id: str = "",
        wait_s: float = 10.0,
        waited_s: float = 0.0,
    ) -> Lease | None:
        """A lease of a device that matches, or None if none came free within ``wait_s``.

        ``job`` is the claimed job that the lease works for: its orphaned trials move to this
        lease, and the lease ends when the claim does (ClaimLost if it has). Pass the same
        ``request_id`` again to keep the place in the queue, and in ``waited_s`` how long it has
        waited, which is its place after a restart of the tracker.
        """
        wire = farm_pb2.AcquireRequest(
            request_id=request_id or new_request_id(),
            client=client,
            job=job.id if job else "",
            claim_epoch=job.claim_epoch if job else 0,
            request=convert.device_request_to_wire(request),
            wait_s=wait_s,
            waited_s=waited_s,
        )
        reply: farm_pb2.AcquireReply = self._call(self._leases.Acquire, wire, wait_s)
        return convert.lease_from_wire(reply.lease) if reply.HasField("lease") else None

    def renew(self, lease: Lease) -> Lease:
        """The lease with a fresh deadline; LeaseLost if it has ended."""
        wire = farm_pb2.RenewRequest(lease=lease.id, epoch=lease.epoch)
        reply: farm_pb2.RenewReply = self._call(
            self._leases.Renew, wire, patience_s=lease.term_s / 3
        )
        return convert.lease_from_wire(reply.lease)

    def release(self, lease: Lease) -> None:
        """End the lease; trials that are still under way wait for the job's next lease."""
        wire = farm_pb2.ReleaseRequest(lease=lease.id, epoch=lease.epoch)
        self._call(self._leases.Release, wire)

    def keep_lease(self, lease: Lease) -> Keepalive[Lease]:
        """Renew the lease in the background until closed."""
        return Keepalive(lambda: self.renew(lease), lease, lease.term_s)

    # --- trials ---------------------------------------------------------------------------------

    def submit(self, lease: Lease, requests: Sequence[TrialRequest]) -> tuple[TrialKey, ...]:
        """Queue candidates on the leased device; returns the keys that were measured before.

        When this returns, the trials survive the death of any process: each shows up once in
        ``collect``. A key that is queued already is not queued again. LeaseLost if the lease has
        ended (those accepted so far wait for the job's next lease).
        """
        done: list[TrialKey] = []
        for start in range(0, len(requests), _SUBMIT_CHUNK):
            chunk = requests[start : start + _SUBMIT_CHUNK]
            wire = farm_pb2.SubmitRequest(
                lease=lease.id,
                epoch=lease.epoch,
                requests=[convert.request_to_wire(request) for request in chunk],
                workloads=convert.texts_of(chunk),
            )
            reply: farm_pb2.SubmitReply = self._call(self._farm.Submit, wire)
            done += [convert.trial_key_from_wire(key) for key in reply.done]
        return tuple(done)

    def collect(
        self, job: str, cursor: int = 0, *, wait_s: float = 0.0, limit: int = 1000
    ) -> Collected:
        """Trials of the job stored after ``cursor`` (0: from its first), in storage order.

        Waits up to ``wait_s`` for the first new one. The reply's cursor goes into the next call.
        """
        wire = farm_pb2.CollectRequest(job=job, cursor=cursor, limit=limit, wait_s=wait_s)
        reply: farm_pb2.CollectReply = self._call(self._farm.Collect, wire, wait_s)
        trials = tuple(convert.trial_from_wire(trial) for trial in reply.trials)
        return Collected(trials, reply.cursor, reply.pending)

    def pending(self, job: str) -> tuple[TrialRequest, ...]:
        """Submitted candidates of the job that have no result yet, oldest first."""
        reply: farm_pb2.PendingReply = self._call(
            self._farm.Pending, farm_pb2.PendingRequest(job=job)
        )
        return tuple(convert.request_from_wire(r, reply.workloads) for r in reply.requests)

    # --- jobs -----------------------------------------------------------------------------------

    def submit_job(self, job: Job) -> Job:
        """Store a new job in state queued; with an id that is known, return the stored one.

        An empty ``job.id`` gets a fresh one here. InvalidRequest if its selector is none, or if
        the tracker is too old to heed it.
        """
        wire = convert.job_to_wire(job)
        wire.id = job.id or new_request_id()
        reply: farm_pb2.SubmitJobReply = self._call(
            self._farm.SubmitJob, farm_pb2.SubmitJobRequest(job=wire)
        )
        if job.selector and not reply.job.selector:
            if not job.id:
                self.cancel(reply.job.id, "its tracker cannot select devices")
            raise InvalidRequest(
                f"the tracker at {self.address} is too old to select devices; upgrade it, or leave "
                f"the selector {job.selector!r} out"
            )
        return convert.job_from_wire(reply.job)

    def claim_job(
        self, *, tuner: str, job: str = "", wait_s: float = 10.0, plugins: Iterable[str] = ()
    ) -> Job | None:
        """Claim the job named, or the most urgent one that no live tuner runs, of those that need
        none but these plug-ins; None if none.

        The claim lasts ``claim_term_s`` unless renewed. NotFound if the job named is unknown,
        ClaimLost if it is over.
        """
        wire = farm_pb2.ClaimJobRequest(
            request_id=new_request_id(), tuner=tuner, job=job, wait_s=wait_s, plugins=plugins
        )
        reply: farm_pb2.ClaimJobReply = self._call(self._farm.ClaimJob, wire, wait_s)
        return convert.job_from_wire(reply.job) if reply.HasField("job") else None

    def renew_job(self, job: Job) -> Job:
        """The claimed job as it stands; ClaimLost if it was claimed again, finished, cancelled."""
        wire = farm_pb2.RenewJobRequest(job=job.id, claim_epoch=job.claim_epoch)
        reply: farm_pb2.RenewJobReply = self._call(
            self._farm.RenewJob, wire, patience_s=job.claim_term_s / 3
        )
        return convert.job_from_wire(reply.job)

    def keep_job(self, job: Job) -> Keepalive[Job]:
        """Renew the claim in the background until closed."""
        return Keepalive(lambda: self.renew_job(job), job, job.claim_term_s)

    def release_job(self, job: Job) -> Job:
        """Put a claimed job back into the queue, its trials kept; ClaimLost as in renew_job."""
        wire = farm_pb2.ReleaseJobRequest(job=job.id, claim_epoch=job.claim_epoch)
        reply: farm_pb2.ReleaseJobReply = self._call(self._farm.ReleaseJob, wire)
        return convert.job_from_wire(reply.job)

    def finish_job(self, job: Job, state: JobState, message: str = "") -> Job:
        """End a claimed job as succeeded or failed; its leases end and queued trials go."""
        wire = farm_pb2.FinishJobRequest(
            job=job.id,
            claim_epoch=job.claim_epoch,
            state=convert.state_to_wire(state),
            message=message,
        )
        reply: farm_pb2.FinishJobReply = self._call(self._farm.FinishJob, wire)
        return convert.job_from_wire(reply.job)

    def cancel(self, job: str, reason: str = "") -> Job:
        """End a job whoever runs it, as cancelled; one that is over stays as it is."""
        reply: farm_pb2.CancelReply = self._call(
            self._farm.Cancel, farm_pb2.CancelRequest(job=job, reason=reason)
        )
        return convert.job_from_wire(reply.job)

    def retry(self, job: str) -> Job:
        """Queue a failed or cancelled job again, to go on from its trials; one that is open stays
        as it is. InvalidRequest if it has succeeded."""
        wire = farm_pb2.RetryJobRequest(job=job)
        reply: farm_pb2.RetryJobReply = self._call(self._farm.RetryJob, wire)
        return convert.job_from_wire(reply.job)

    def note_job(self, job: str, note: str, *, actor: str) -> Job:
        """Say this of a job in place of what was said before; nothing takes it away.

        InvalidRequest if it is too long.
        """
        wire = farm_pb2.NoteJobRequest(request_id=new_request_id(), job=job, note=note, actor=actor)
        reply: farm_pb2.NoteJobReply = self._call(self._farm.NoteJob, wire)
        return convert.job_from_wire(reply.job)

    def job(self, job: str) -> Job:
        """The job as it stands; NotFound if there is none of this id."""
        reply: farm_pb2.GetJobReply = self._call(self._farm.GetJob, farm_pb2.GetJobRequest(job=job))
        return convert.job_from_wire(reply.job)

    def jobs(self, states: Iterable[JobState] = (), limit: int = 100) -> tuple[Job, ...]:
        """The latest jobs in these states (all states if none is named), newest first."""
        wire = farm_pb2.ListJobsRequest(
            states=[convert.state_to_wire(state) for state in states], limit=limit
        )
        reply: farm_pb2.ListJobsReply = self._call(self._farm.ListJobs, wire)
        return tuple(convert.job_from_wire(job) for job in reply.jobs)

    def watch_once(self, job: str, cursor: int = 0, *, wait_s: float = 0.0) -> JobUpdate:
        """The job and its tasks' progress; waits up to ``wait_s`` for news after ``cursor``.

        The job comes without its tasks' texts. NotFound if there is none of this id.
        """
        wire = farm_pb2.WatchRequest(job=job, cursor=cursor, wait_s=wait_s)
        reply: farm_pb2.WatchReply = self._call(self._farm.Watch, wire, wait_s)
        return JobUpdate(
            job=convert.job_from_wire(reply.job),
            progress=tuple(convert.progress_from_wire(p) for p in reply.progress),
            errors=dict(reply.errors),
            cursor=reply.cursor,
        )

    def watch(self, job: str, *, wait_s: float = 5.0) -> Iterator[JobUpdate]:
        """Updates of the job until it is over; the last one has its final state.

        Yields at least every ``wait_s`` seconds, with or without news.
        """
        cursor = 0
        while True:
            update = self.watch_once(job, cursor, wait_s=wait_s)
            yield update
            if update.job.state not in OPEN:
                return
            cursor = update.cursor

    # --- devices --------------------------------------------------------------------------------

    def devices(self) -> tuple[Device, ...]:
        """Every device that ever registered; ``state`` is idle, leased or offline."""
        reply: farm_pb2.DevicesReply = self._call(self._farm.Devices, farm_pb2.DevicesRequest())
        return tuple(convert.device_from_wire(device) for device in reply.devices)

    def leases(self) -> tuple[Lease, ...]:
        """The live leases."""
        reply: farm_pb2.DevicesReply = self._call(self._farm.Devices, farm_pb2.DevicesRequest())
        return tuple(convert.lease_from_wire(lease) for lease in reply.leases)
