"""What clients ask and tell of records, of untuned tasks, and of models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tunefarm.db.records import (
    BestKey,
    Final,
    Found,
    History,
    Job,
    JobTask,
    Miss,
    Progress,
    Promotion,
    TaskKey,
)
from tunefarm.proto import convert, farm_pb2
from tunefarm.proto.calls import FarmCalls, new_request_id


class RecordCalls(FarmCalls):
    """A connection of whoever tunes or builds."""

    def best(self, keys: Iterable[BestKey], job: str = "") -> dict[BestKey, tuple[Found, ...]]:
        """What is known for each key, closest first: same device model, same target, compatible
        target; within each the promoted before the provisional. Empty where nothing is. Of a
        ``job``, its id: promoted records as they stood after its last trial (trackers of older
        releases tell those of today)."""
        wanted = [convert.best_key_to_wire(key) for key in keys]
        wire = farm_pb2.BestRequest(keys=wanted, job=job)
        reply: farm_pb2.BestReply = self._call(self._farm.Best, wire)
        return {
            convert.best_key_from_wire(c.key): tuple(map(convert.found_from_wire, c.found))
            for c in reply.candidates
        }

    def promote(self, final: Final, job: Job | None = None, request_id: str = "") -> Promotion:
        """Store a final's verdict and, if it is ``better``, put the challenger into the key
        provided that ``final.incumbent`` still stands there (one compare-and-swap).

        Trial 0 may also take an empty key with any verdict. ``job`` is the claimed job whose tuner
        decided it: ClaimLost if the claim has ended. NotFound if the challenger is no stored
        successful trial. The same ``request_id`` again changes nothing.
        """
        wire = farm_pb2.PromoteRequest(
            request_id=request_id or new_request_id(),
            final=convert.final_to_wire(final),
            job=job.id if job else "",
            claim_epoch=job.claim_epoch if job else 0,
        )
        reply: farm_pb2.PromoteReply = self._call(self._farm.Promote, wire)
        best = convert.best_from_wire(reply.best) if reply.HasField("best") else None
        return Promotion(reply.promoted, best)

    def history(
        self,
        target: str = "",
        cursor: int = 0,
        *,
        workloads: Sequence[str] = (),
        limit: int = 1000,
    ) -> History:
        """A page of past trials of all jobs, newest first, for warm starts.

        Empty ``target`` and ``workloads`` mean all. The reply's cursor goes into the next call
        while ``more`` is set.
        """
        wire = farm_pb2.HistoryRequest(
            target=target, workloads=workloads, cursor=cursor, limit=limit
        )
        reply: farm_pb2.HistoryReply = self._call(self._farm.History, wire)
        return History(
            trials=tuple(convert.trial_from_wire(trial) for trial in reply.trials),
            workloads=dict(reply.workloads),
            cursor=reply.cursor,
            more=reply.more,
        )

    def task_stats(self, tasks: Iterable[TaskKey]) -> dict[TaskKey, Progress]:
        """Counts and best latency of each task over all jobs; tasks without a trial have zeros."""
        wire = farm_pb2.TaskStatsRequest(tasks=[convert.task_to_wire(task) for task in tasks])
        reply: farm_pb2.TaskStatsReply = self._call(self._farm.TaskStats, wire)
        found = (convert.progress_from_wire(progress) for progress in reply.progress)
        return {progress.task: progress for progress in found}

    def count_candidates(
        self,
        tasks: Iterable[TaskKey],
        compiler_version: str = "",
        device_model: str = "",
        protocol: str = "",
    ) -> int:
        """Candidates of these tasks over all jobs, failed ones too and finals left out.

        Of one compiler version and device model if they are named; trials that name none count. Of
        one protocol if it is named; trackers of older releases count those of all.
        """
        wire = farm_pb2.CountTrialsRequest(
            tasks=[convert.task_to_wire(task) for task in tasks],
            compiler_version=compiler_version,
            device_model=device_model,
            protocol=protocol,
        )
        reply: farm_pb2.CountTrialsReply = self._call(self._farm.CountTrials, wire)
        return reply.trials

    def report_misses(self, misses: Iterable[Miss], patience_s: float = 1.0) -> None:
        """Tell the tracker which tasks a build found no record of, to be tuned on idle devices.

        A tracker that is away is waited for no longer than ``patience_s``.
        """
        wire = farm_pb2.ReportMissesRequest(
            request_id=new_request_id(), misses=[convert.miss_to_wire(miss) for miss in misses]
        )
        self._call(self._farm.ReportMisses, wire, patience_s=patience_s)

    def misses(self, limit: int = 100) -> tuple[Miss, ...]:
        """What builds reported as untuned, without the workloads' texts; worth most first."""
        wire = farm_pb2.MissesRequest(limit=limit)
        reply: farm_pb2.MissesReply = self._call(self._farm.Misses, wire)
        return tuple(convert.miss_from_wire(miss) for miss in reply.misses)

    def note_model(
        self, name: str, target: str, tasks: Iterable[JobTask], patience_s: float = 1.0
    ) -> None:
        """Tell the tracker that somebody tunes or builds a model of these tasks for a target.

        A tracker that is away is waited for no longer than ``patience_s``.
        """
        wire = farm_pb2.NoteModelRequest(
            name=name, target=target, tasks=[convert.job_task_to_wire(task) for task in tasks]
        )
        self._call(self._farm.NoteModel, wire, patience_s=patience_s)
