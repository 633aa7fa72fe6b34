"""A job's hold on a device: leases that are renewed and replaced, trials sent and collected."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tunefarm.compiler.errors import TunefarmError
from tunefarm.db.records import (
    OWNED,
    Collected,
    Config,
    Device,
    DeviceRequest,
    Final,
    Job,
    Lease,
    Promotion,
    Trial,
    TrialKey,
    TrialRequest,
)
from tunefarm.tuner.pulse import Pulse

if TYPE_CHECKING:
    from tunefarm.proto.client import FarmClient
    from tunefarm.proto.keepalive import Keepalive

_log = logging.getLogger(__name__)
_WAIT_S = 1.0
_TELL_EVERY_S = 30.0
_CHANGED_S = 5.0
"""How long a job whose farm is its own waits for a worker of its compiler: there is no other."""
_LIMIT = 1000
_REMEDY = "; start a worker of the job's compiler, or cancel the job and submit it again"


class Stopped(Exception):
    """The tuner was asked to stop, or to put the job back into the queue for a reason."""


class Bench:
    """One leased device at a time for a job; a lost lease is replaced by another of its model.

    ``claim`` is the job's keepalive. What an earlier process of the job submitted is never sent
    again: its results come as if it had been. All methods raise Stopped when the tuner is asked to
    stop or the job is asked back, and ClaimLost when the job is no longer ours.
    """

    def __init__(
        self,
        client: FarmClient,
        job: Job,
        tuner: str,
        device_model: str,
        claim: Keepalive[Job],
        stopped: threading.Event,
        pulse: Pulse,
    ) -> None:
        self._client = client
        self._job = job
        self._tuner = tuner
        self._model = device_model
        self._claim = claim
        self._stopped = stopped
        self._pulse = pulse
        self._lease: Keepalive[Lease] | None = None
        self._cursor = 0
        self._known: dict[TrialKey, Trial] = {}
        self._under_way: dict[TrialKey, TrialRequest] = {}
        self.began_at = 0
        """Where the job's first trial stands among all (0 before it): what others stored earlier
        is what this job knows of them, however often it changes hands."""
        self.device = Device("", "", device_model, job.target, "")

    def close(self) -> None:
        """Give the device back; trials under way wait for the job's next lease.

        A tracker that does not answer is not told once it is back: the lease ends with the claim,
        and what the worker has measured until then counts.
        """
        from tunefarm.proto.errors import FarmError

        if self._lease is None:
            return
        lease, self._lease = self._lease, None
        lease.close()
        if not self._claim.is_heard:
            return
        try:
            self._client.release(lease.latest)
        except FarmError as error:
            _log.info("lease %s: %s", lease.latest.id, error)

    def acquire(self) -> None:
        """Wait for a device that serves the job's target; nothing if one is held."""
        if self._lease is not None and not self._lease.lost.is_set():
            return
        if self._lease is not None:
            self._lease.close()
            self._lease = None
        request = DeviceRequest(self._job.target, self._model, priority=self._job.priority)
        lease = self._wait_for(request)
        self._lease = self._client.keep_lease(lease)
        found = {device.id: device for device in self._client.devices()}
        self.device = found[lease.device]
        self._model = self.device.model
        _log.info("job %s: measuring on %s (%s)", self._job.id, lease.device, self._model)

    def _wait_for(self, request: DeviceRequest) -> Lease:
        request_id = uuid.uuid4().hex
        began = told = time.monotonic()
        said = ""
        while True:
            self._check()
            lease = self._client.acquire(
                request,
                client=self._tuner,
                job=self._job,
                request_id=request_id,
                wait_s=_WAIT_S,
                waited_s=time.monotonic() - began,
            )
            if lease is not None:
                return lease
            foreign = self._foreign(request)
            if foreign and self._job.options.get(OWNED) and time.monotonic() - began > _CHANGED_S:
                raise TunefarmError(f"the compiler has changed{foreign}; run the command again")
            if foreign != said or time.monotonic() - told > _TELL_EVERY_S:
                told, said = time.monotonic(), foreign
                wanted = f"{request.target} {request.device_model}".strip()
                _log.warning(
                    "job %s: waiting for a device of %s%s%s",
                    self._job.id, wanted, foreign, foreign and _REMEDY,
                )  # fmt: skip

    def _foreign(self, request: DeviceRequest) -> str:
        """What differs if the devices online have another compiler version than the job's trials;
        empty if one has the same, or none is known."""
        bound = self._job.compiler_version or self.device.compiler_version
        kind = request.target.split()[0]
        online = [
            d
            for d in self._client.devices()
            if d.kind == kind and d.state != "offline" and request.device_model in (d.model, "")
        ]
        versions = sorted({d.compiler_version for d in online})
        if not bound or not versions or bound in versions:
            return ""
        return (
            f": its trials are made by compiler {bound}, the devices online have compiler "
            f"{' and '.join(versions)}"
        )

    def take_over(self) -> list[Trial | TrialRequest]:
        """What earlier processes of the job submitted: trials, and requests without a result.

        The job stays on their device model.
        """
        pending = self._client.pending(self._job.id)  # first, so that none ends between the two
        first = self._client.collect(self._job.id, limit=1)
        if first.trials:
            self.began_at = first.cursor
        self._collect_all()
        models = (trial.device_model for trial in self._known.values())
        self._model = self._model or next(filter(None, models), "")
        requests = {request.key: request for request in pending}
        self._under_way = {k: r for k, r in requests.items() if k not in self._known}
        return [*self._known.values(), *self._under_way.values()]

    def submit(self, requests: Sequence[TrialRequest]) -> list[TrialKey]:
        """Submit candidates, those aside that were submitted before; returns the keys of all."""
        wanted = {request.key: request for request in requests}
        known = self._known.keys() | self._under_way.keys()
        fresh = {key: request for key, request in wanted.items() if key not in known}
        if fresh:
            self._heed_recall()
            self._submit(list(fresh.values()))
            self._under_way |= fresh
        return list(wanted)

    def results(self, keys: Sequence[TrialKey]) -> list[Trial]:
        """The results of submitted candidates, waited for over any number of lost leases."""
        self._await(keys)
        return [self._known[key] for key in keys]

    def measure(self, requests: Sequence[TrialRequest]) -> list[Trial]:
        """``submit`` and ``results`` of it."""
        return self.results(self.submit(requests))

    def configs(self, keys: Sequence[TrialKey]) -> list[Config]:
        """The configs of submitted candidates, with or without a result."""
        return [(self._known.get(key) or self._under_way[key]).config for key in keys]

    def _await(self, keys: Iterable[TrialKey]) -> None:
        while missing := [self._under_way[key] for key in keys if key not in self._known]:
            self._check()
            self.acquire()
            found = self._collect(_WAIT_S)
            if not found.trials and not found.pending:
                self._collect_all()
                if lost := [r for r in missing if r.key not in self._known]:
                    self._submit(lost)

    def _collect(self, wait_s: float = 0.0) -> Collected:
        """Take in the next trials of the job that are stored."""
        found = self._client.collect(self._job.id, self._cursor, wait_s=wait_s, limit=_LIMIT)
        self._cursor = found.cursor
        for trial in found.trials:
            self._known[trial.key] = trial
            self._under_way.pop(trial.key, None)
        return found

    def _collect_all(self) -> None:
        """Take in every stored trial of the job: of several trackers one may store a trial behind
        the cursor."""
        self._cursor = 0
        while self._collect().trials:
            pass

    def promote(self, final: Final) -> Promotion:
        """Store a final's verdict, as long as the job is ours; repeated, it changes nothing."""
        self._check()
        return self._client.promote(final, self._job, _name(final))

    def _submit(self, requests: Iterable[TrialRequest]) -> None:
        from tunefarm.proto.errors import LeaseLost

        while True:
            self._check()
            self.acquire()
            assert self._lease is not None
            try:
                self._client.submit(self._lease.latest, list(requests))
                return
            except LeaseLost as lost:
                _log.warning("job %s: %s", self._job.id, lost)
                self._lease.close()
                self._lease = None

    def _heed_recall(self) -> None:
        """Give back a device that is asked back, once all that is under way on it is measured."""
        if self._lease is not None and self._lease.latest.recall:
            self._await(list(self._under_way))
        if self._lease is not None and self._lease.latest.recall:
            _log.info("job %s: %s", self._job.id, self._lease.latest.recall)
            self.close()

    def _check(self) -> None:
        self._pulse.turn()
        if self._stopped.is_set():
            raise Stopped("the tuner was stopped")
        if recall := self._claim.check().recall:
            raise Stopped(recall)


def _name(final: Final) -> str:
    """A request id that every process of the job gives this final."""
    return " ".join(
        f"{key.job}/{key.task.workload}/{key.task.target}/{key.number}"
        for key in (final.challenger, final.incumbent)
        if key is not None
    )
