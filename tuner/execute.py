"""The tuner process: claims jobs from the tracker and runs them to their end."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.plugins import loaded, using
from tunefarm.db.records import Job, JobState
from tunefarm.proto.logs import bound
from tunefarm.proto.probe import answering
from tunefarm.proto.stopping import stopping
from tunefarm.tuner.options import TunerOptions
from tunefarm.tuner.pulse import Pulse

if TYPE_CHECKING:
    from tunefarm.proto.client import FarmClient

_log = logging.getLogger(__name__)
_POLL_S = 1.0
_PAUSE_S = 1.0
OUTAGE_S = 900.0
"""How long a job waits for a tracker that is away; less than what probes take for being stuck."""


def run_tuner(options: TunerOptions) -> None:
    """Run jobs until SIGTERM or SIGINT; with ``once``, until one job is over.

    A job under way goes back into the queue when the tuner is stopped. A tracker that is away is
    waited for, but with ``once`` and before it has ever answered: TrackerUnavailable. Raises
    TokenRefused, InvalidRequest, ProtocolMismatch or NotFound (the job named).
    """
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    stopped = threading.Event()
    pulse = Pulse(stopped)

    def stop() -> None:
        stopped.set()
        client.hurry()

    with _connect(options) as client, stopping(stop), _probed(options, pulse):
        _greet(client, options, stopped, pulse)
        while not stopped.is_set():
            pulse.turn()
            job = _claim(client, options, stopped, pulse)
            if job is not None:
                over = run_job(client, job, options, stopped, pulse)
                if over and options.once:
                    return


@contextmanager
def _probed(options: TunerOptions, pulse: Pulse) -> Iterator[None]:
    """Answer probes meanwhile, if that is wanted, and say where."""
    if options.health_port is None:
        yield
        return
    with answering(options.health_host, options.health_port, pulse.probes()) as port:
        print(f"health at http://{options.health_host}:{port}/healthz", flush=True)
        yield


def run_job(
    client: FarmClient, job: Job, options: TunerOptions, stopped: threading.Event, pulse: Pulse
) -> bool:
    """Run a claimed job; True if it is over, False if it went back into the queue.

    What a user can cause ends the job as failed, with the sentence; what is our own fault does
    too, and is raised.
    """
    from tunefarm.proto.errors import ClaimLost, StorageFailed, TrackerUnavailable
    from tunefarm.tuner.running import JobRun, Stopped

    with bound(job=job.id, epoch=job.claim_epoch), client.keep_job(job) as claim:
        _log.info(
            "claimed: %d tasks, %d trials on %s", len(job.tasks), job.budget.trials, job.target
        )
        try:
            pulse.begin(lambda: claim.is_heard)
            with using(job.plugins), client.patient(OUTAGE_S):
                state, message = JobRun(client, job, options, claim, stopped, pulse).run()
        except ClaimLost as lost:
            _log.warning("%s", lost)
            return True
        except Stopped as stop:
            with suppress(TrackerUnavailable, StorageFailed):
                client.release_job(job)
            _log.info("back in the queue: %s", stop)
            return False
        except (TrackerUnavailable, StorageFailed) as error:
            _log.warning("%s", error)  # the claim lapses, and it is claimed again
            return False
        except TunefarmError as error:
            state, message = JobState.FAILED, str(error)
        except Exception as error:
            client.finish_job(job, JobState.FAILED, f"the tuner failed: {error!r}")
            raise
        finally:
            pulse.end()
        return _finish(client, job, state, message)


def _greet(
    client: FarmClient, options: TunerOptions, stopped: threading.Event, pulse: Pulse
) -> None:
    """Wait until the tracker answers, and say once that it does not; raises why if the tuner is for
    one job only."""
    from tunefarm.proto.errors import TrackerUnavailable

    is_told = False
    while not stopped.is_set():
        pulse.turn()
        try:
            info = client.info()
        except TrackerUnavailable as error:
            if options.once:
                raise
            if not is_told:
                _log.warning("%s; trying again", error)
            is_told = True
            stopped.wait(_PAUSE_S)
        else:
            pulse.answer()
            tuner = options.identity
            _log.info("tuner %s of tracker %s (%s)", tuner, client.address, info.version)
            return


def _finish(client: FarmClient, job: Job, state: JobState, message: str) -> bool:
    """End the job; False if that cannot be stored now and the job will be claimed again."""
    from tunefarm.proto.errors import ClaimLost, StorageFailed, TrackerUnavailable

    try:
        client.finish_job(job, state, message)
    except ClaimLost as lost:
        _log.warning("%s", lost)
    except (TrackerUnavailable, StorageFailed) as error:
        _log.warning("%s", error)
        return False
    _log.info("%s", state.because(message))
    return True


def _claim(
    client: FarmClient, options: TunerOptions, stopped: threading.Event, pulse: Pulse
) -> Job | None:
    """The next job, or None if there is none now or the tracker is away or cannot write."""
    from tunefarm.proto.errors import StorageFailed, TrackerUnavailable

    try:
        job = client.claim_job(
            tuner=options.identity,
            job=options.job,
            wait_s=_POLL_S,
            plugins=map(str, loaded().values()),
        )
    except (TrackerUnavailable, StorageFailed) as error:
        _log.warning("%s", error)
        stopped.wait(_PAUSE_S)
        return None
    pulse.answer()
    return job


def _connect(options: TunerOptions) -> FarmClient:
    from tunefarm.proto.client import FarmClient

    if options.rendezvous is not None:
        return FarmClient.from_rendezvous(options.rendezvous)
    return FarmClient(options.tracker, options.token, tls=options.tls)
