"""One trial: a candidate is loaded, checked and timed, and in a final against those it meets."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tunefarm.db.records import ErrorKind, Trial, TrialRequest
from tunefarm.worker.backend import Built, Problem
from tunefarm.worker.budgets import Budgets
from tunefarm.worker.building import BuildOutcome, Candidate
from tunefarm.worker.children import RunnerChild
from tunefarm.worker.measure import (
    Session,
    Times,
    TrialFailed,
    impossible,
    time_one,
    time_paired,
)


@dataclass(frozen=True, slots=True)
class Trials:
    """Makes trials of built candidates with ``runner``, one at a time. What a kind of device knows
    of them are the functions; ``rng`` draws the orders in which finals are timed.

    ``open_session(problem, target, budgets)`` begins the conversation with a runner of the target;
    ``protocol(request)`` is what a candidate is timed by; ``limits(built, seconds)`` are the peaks
    that no right time of this code exceeds, by ``measure.impossible``'s names; ``state(built)`` is
    the state of the device around a trial of this code.
    """

    runner: RunnerChild
    open_session: Callable[[Problem, str, Budgets], Session]
    protocol: Callable[[TrialRequest], str]
    limits: Callable[[Built, float], Mapping[str, float]]
    state: Callable[[Built], Mapping[str, float]]
    rng: random.Random

    def make(self, candidate: Candidate) -> Trial:
        """Time a candidate that is ready; the trial does not say yet on which device.

        One whose runner dies, or says what it should not, gets a fresh one to prove that this is
        its own doing: others may have spoilt the first.
        """
        with_others = self.runner.is_used
        trial = self._make_once(candidate)
        if trial.error not in (ErrorKind.RUN_CRASH, ErrorKind.RUN_ERROR) or not with_others:
            return trial
        again = self._make_once(candidate)
        if again.error is not ErrorKind.RUN_CRASH:
            return again
        return replace(
            again, message=f"it killed two runners, the last a fresh one: {again.message}"
        )

    def _make_once(self, candidate: Candidate) -> Trial:
        request = candidate.request
        outcomes = [future.result() for future in candidate.builds]
        trial = self._blank(request, outcomes[0])
        try:
            budgets = Budgets.of(request.budgets)
            built = _placed_by(trial.protocol, outcomes[0].code())
            problem = candidate.posed()
            session = self.open_session(problem, request.task.target, budgets)
            session.load(0, built)
            times = time_one(session, 0, budgets)
            self._refuse_impossible(min(times.times_s), built)
            trial = replace(_with_times(trial, times), device_state=self.state(built))
            if request.against:
                paired = self._paired(trial, problem, outcomes, budgets)
                trial = replace(trial, paired_times_s=paired)
        except TrialFailed as failed:
            if failed.kind in (ErrorKind.WRONG_ANSWER, ErrorKind.RUN_ERROR, ErrorKind.RUN_CRASH):
                self.runner.discard()  # it may have written where it should not
            return replace(
                trial,
                times_s=(),
                error=failed.kind,
                message=failed.message,
                stderr_tail=failed.stderr_tail,
            )
        return trial

    def _blank(self, request: TrialRequest, own: BuildOutcome) -> Trial:
        """The trial of a request before it is timed."""
        built = own.built or Built(b"")
        return Trial(
            job=request.job,
            task=request.task,
            number=request.number,
            config=request.config,
            protocol=self.protocol(request),
            space_fingerprint=built.space_fingerprint,
            code_hash=built.code_hash,
            predicted=request.predicted,
            origin=request.origin,
            phases_s={"build": own.seconds},
            created_at=time.time(),
        )

    def _paired(
        self,
        trial: Trial,
        problem: Problem,
        outcomes: Sequence[BuildOutcome],
        budgets: Budgets,
    ) -> tuple[tuple[float, ...], ...]:
        """Seconds a call in a final of all configs, the trial's own first: a row of repeats for
        each that answers correctly, an empty row for the others."""
        target = trial.task.target
        sound = {0: _placed_by(trial.protocol, outcomes[0].code())}
        for index, outcome in enumerate(outcomes[1:], 1):
            with contextlib.suppress(TrialFailed):
                built = _placed_by(trial.protocol, outcome.code())
                alone = self.open_session(problem, target, budgets)
                alone.load(0, built)
                alone.check(0)
                sound[index] = built
        session = self.open_session(problem, target, budgets)
        timed = time_paired(session, list(sound.values()), budgets, self.rng)
        rows = dict(zip(sound, timed, strict=True))
        return tuple(rows.get(index, ()) for index in range(len(outcomes)))

    def _refuse_impossible(self, seconds: float, built: Built) -> None:
        """TrialFailed for a time beyond what the device can do."""
        why = impossible(seconds, built, self.limits(built, seconds))
        if why is not None:
            raise TrialFailed(ErrorKind.RUN_ERROR, why)


def _placed_by(protocol: str, built: Built) -> Built:
    """The code, with the word by which protocol the runner places its operands."""
    return replace(built, metadata={**built.metadata, "protocol": protocol})


def _with_times(trial: Trial, times: Times) -> Trial:
    phases = {**trial.phases_s, "check": times.check_s, "run": times.run_s}
    return replace(trial, times_s=times.times_s, phases_s=phases)
