"""A device of this machine's processor: builds in parallel, then checks and times one by one."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import random
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tunefarm.compiler.target import Target
from tunefarm.db.records import Device, ErrorKind, Health, TaskKey, Trial, TrialRequest
from tunefarm.worker.backend import Built, Problem, load_plugin
from tunefarm.worker.budgets import Budgets
from tunefarm.worker.building import BuildOutcome, BuildPool, Candidate, Workshop
from tunefarm.worker.calibration import Calibration, calibration, keep
from tunefarm.worker.checkup import BUDGETS, check_device
from tunefarm.worker.children import Builder, Gauge, RunnerChild
from tunefarm.worker.cores import CoreLock, spare_cores
from tunefarm.worker.device import (
    DeviceOptions,
    Dropped,
    Report,
    check_cores,
    cpu_model,
    device_id,
    machine_id,
    own_cores,
)
from tunefarm.worker.measure import (
    Session,
    Times,
    TrialFailed,
    impossible,
    time_one,
    time_paired,
)
from tunefarm.worker.process import ChildOptions, sweep_scratch
from tunefarm.worker.pulse import GOOD_IN_A_ROW, Pulse
from tunefarm.worker.sandbox import mechanisms

_BATCH = 16
_PEAKS_EVERY_S = 30.0
_BEAT_LOOPS = 5
_TRIES = 3
"""How often candidates are timed whose time a bad pulse follows."""


class HostDevice:
    """An open device of kind ``llvm``, or of a plug-in whose backend runs on this processor.

    Kernels are timed on the first ``-num-cores`` cores of this process, one at a time, while
    nothing else of this user's workers runs there. Cores that are left build all the time; without
    such, building and timing take turns, a batch at a time.
    """

    def __init__(self, options: DeviceOptions) -> None:
        self._target = Target(options.target)
        check_cores(self._target)
        own = own_cores()
        sweep_scratch()
        self._cores = own[: self._target.num_cores]
        self._spare = spare_cores(own, self._cores)
        self._machine: dict[str, Any] = {"mcpu": self._target.mcpu, "cores": len(self._cores)}
        self._lock = CoreLock(self._cores)
        self._workshop = Workshop(self._build_pool(options, own))
        runner = self._child("runner", options, self._cores)
        self._runner = RunnerChild(runner)
        self._gauge = Gauge(replace(runner, module="tunefarm.worker.gauge"))
        self._rng = random.Random()
        self._peaks_at = -_PEAKS_EVERY_S
        self._identity = self._identify(options)
        self._known = calibration(self._identity, self._checked)
        self._pulse = Pulse(self._beat, self._known.reference_s, options.max_drift)
        self._health = Health(trouble=_wrong(self._known))
        self._device = self._describe()

    @property
    def device(self) -> Device:
        return self._device

    def measure(self, requests: Sequence[TrialRequest], report: Report, dropped: Dropped) -> None:
        """Measure what is built; whatever is timed since the last good pulse is told after the
        next one, or timed again. Returns early when the device gets into trouble."""
        line = deque(self._workshop.begin(request, dropped) for request in requests)
        while line and not self._health.trouble:
            for candidate in list(line)[: 1 if self._spare else _BATCH]:
                candidate.wait()
            with self._lock.held(alone=True):
                self._time_batch(line, report, dropped)

    def check(self, number: int) -> None:
        kernels = self._check_kernels()
        try:
            with self._lock.held(alone=True):
                self._known = keep(self._identity, self._check_cores(kernels))
                self._pulse.reference_s = self._known.reference_s
                steady = self._pulse.settle()
            trouble = _wrong(self._known) or ("" if steady else self._pulse.trouble())
        except TrialFailed as failed:
            trouble = f"it cannot be checked: {failed.message}"
        self._tell(check=number, trouble=trouble)

    def tend(self) -> None:
        if self._known.is_old:
            self.check(self._health.check)
        elif self._health.trouble and not _wrong(self._known) and self._pulse.is_due:
            with contextlib.suppress(TrialFailed), self._lock.held(alone=True):
                self._pulse.feel()
            if self._pulse.good >= GOOD_IN_A_ROW:
                self._tell(trouble="")

    def interrupt(self) -> None:
        self._runner.kill()
        self._workshop.interrupt()

    def close(self) -> None:
        self._runner.close()
        self._gauge.close()
        self._workshop.close()

    # --- building -------------------------------------------------------------------------------

    def _build_pool(self, options: DeviceOptions, own: tuple[int, ...]) -> BuildPool:
        """Builders on the spare cores, one each, and those that are left on the timed ones."""
        count = options.build_processes or len(own)
        aside = min(count, len(self._spare))
        places = ((self._spare, aside), (self._cores, count - aside))
        return BuildPool([self._builders(options, *place) for place in places if place[1]])

    def _builders(
        self, options: DeviceOptions, cores: tuple[int, ...], count: int
    ) -> tuple[CoreLock, list[Builder]]:
        child = self._child("builder", options, cores)
        return CoreLock(cores), [Builder(child) for _ in range(count)]

    def _child(self, module: str, options: DeviceOptions, cores: tuple[int, ...]) -> ChildOptions:
        return ChildOptions(
            f"tunefarm.worker.{module}",
            self._target.text,
            options.memory_bytes,
            cores,
            options.environment,
        )

    # --- timing ---------------------------------------------------------------------------------

    def _time_batch(self, line: deque[Candidate], report: Report, dropped: Dropped) -> None:
        """Time what is ready, ``_BATCH`` candidates at most, alone on the device's cores."""
        unsure: list[Candidate] = []
        if self._pulse.is_due and not self._is_steady():
            return
        for _ in range(_BATCH):
            if not line or not line[0].is_ready:
                break
            candidate = line.popleft()
            if dropped(candidate.request):
                continue
            candidate.trial = self._measure_one(candidate)
            unsure.append(candidate)
            if self._pulse.is_due and not self._tell_sure(unsure, report, dropped):
                return
        self._tell_sure(unsure, report, dropped)

    def _tell_sure(self, unsure: list[Candidate], report: Report, dropped: Dropped) -> bool:
        """Report what was timed between two good pulses; what a bad one follows is timed again.

        False if the device is in trouble: nobody knows those times then.
        """
        for _ in range(_TRIES):
            if not unsure:
                return True
            if self._feel():
                for candidate in unsure:
                    assert candidate.trial is not None
                    if not dropped(candidate.request):
                        report(candidate.request, self._with_state(candidate.trial))
                unsure.clear()
                return True
            if not self._is_steady():
                return False
            for candidate in unsure:
                if candidate.trial is not None and candidate.trial.ok:
                    candidate.trial = self._measure_one(candidate)
        self._tell(trouble=f"its pulse is unsteady: {self._pulse.trouble()}")
        return False

    def _feel(self) -> bool:
        """Whether the pulse is good now; the device's own fault leaves that open."""
        try:
            return self._pulse.feel()
        except TrialFailed:
            return True

    def _is_steady(self) -> bool:
        """Wait for a good pulse; without one the device is in trouble."""
        try:
            steady = self._pulse.settle()
        except TrialFailed:
            return True
        if not steady:
            self._tell(trouble=self._pulse.trouble())
        return steady

    def _measure_one(self, candidate: Candidate) -> Trial:
        """Time a candidate; one whose runner dies, or says what it should not, gets a fresh one to
        prove that this is its own doing: others may have spoilt the first."""
        with_others = self._runner.is_used
        trial = self._try_one(candidate)
        if trial.error not in (ErrorKind.RUN_CRASH, ErrorKind.RUN_ERROR) or not with_others:
            return trial
        again = self._try_one(candidate)
        if again.error is not ErrorKind.RUN_CRASH:
            return again
        return replace(
            again, message=f"it killed two runners, the last a fresh one: {again.message}"
        )

    def _try_one(self, candidate: Candidate) -> Trial:
        request = candidate.request
        outcomes = [future.result() for future in candidate.builds]
        own = outcomes[0]
        trial = self._blank(request, own)
        try:
            budgets = Budgets.of(request.budgets)
            built = own.code()
            problem = candidate.posed()
            session = Session(
                self._runner.prepared_for(problem, request.task.target), problem, budgets
            )
            session.load(0, built)
            times = time_one(session, 0, budgets)
            self._refuse_impossible(min(times.times_s), built)
            trial = _with_times(trial, times)
            if request.against:
                paired = self._measure_pairs(request, problem, outcomes, budgets)
                trial = replace(trial, paired_times_s=paired)
        except TrialFailed as failed:
            if failed.kind in (ErrorKind.WRONG_ANSWER, ErrorKind.RUN_ERROR):
                self._runner.discard()  # it may have written where it should not
            return replace(
                trial,
                times_s=(),
                error=failed.kind,
                message=failed.message,
                stderr_tail=failed.stderr_tail,
            )
        return trial

    def _measure_pairs(
        self,
        request: TrialRequest,
        problem: Problem,
        outcomes: Sequence[BuildOutcome],
        budgets: Budgets,
    ) -> tuple[tuple[float, ...], ...]:
        """A row of repeats for each config that answers correctly, an empty row for the others."""
        target = request.task.target
        sound = {0: outcomes[0].code()}
        for index, outcome in enumerate(outcomes[1:], 1):
            with contextlib.suppress(TrialFailed):
                built = outcome.code()
                alone = Session(self._runner.prepared_for(problem, target), problem, budgets)
                alone.load(0, built)
                alone.check(0)
                sound[index] = built
        session = Session(self._runner.prepared_for(problem, target), problem, budgets)
        timed = time_paired(session, list(sound.values()), budgets, self._rng)
        rows = dict(zip(sound, timed, strict=True))
        return tuple(rows.get(index, ()) for index in range(len(outcomes)))

    def _blank(self, request: TrialRequest, own: BuildOutcome) -> Trial:
        built = own.built or Built(b"")
        return Trial(
            job=request.job,
            task=request.task,
            number=request.number,
            config=request.config,
            device=self._device.id,
            device_model=self._device.model,
            space_fingerprint=built.space_fingerprint,
            code_hash=built.code_hash,
            predicted=request.predicted,
            origin=request.origin,
            phases_s={"build": own.seconds},
            created_at=time.time(),
        )

    def _refuse_impossible(self, seconds: float, built: Built) -> None:
        """TrialFailed for a time beyond the device's peaks, which are measured anew before."""
        why = impossible(seconds, built, self._known.peaks)
        if why is not None and time.monotonic() - self._peaks_at > _PEAKS_EVERY_S:
            self._peaks_at = time.monotonic()
            fresh = self._gauge.ask("compute_peaks", **self._machine)["peaks"]
            better = {k: max(v, fresh.get(k, v)) for k, v in self._known.peaks.items()}
            self._known = replace(self._known, peaks=better)
            why = impossible(seconds, built, self._known.peaks)
        if why is not None:
            raise TrialFailed(ErrorKind.RUN_ERROR, why)

    # --- the device itself ----------------------------------------------------------------------

    def _with_state(self, trial: Trial) -> Trial:
        """The trial with the state of the device around it."""
        state = {
            "reference_s": self._pulse.drift * self._pulse.reference_s,
            "drift": self._pulse.drift,
            "drift_before": self._pulse.before,
            "noise": self._known.trial_noise,
            "load": os.getloadavg()[0],
        }
        return replace(trial, device_state=state)

    def _beat(self) -> float:
        """Seconds of the reference loop: the least of a few, which what interrupts it leaves be."""
        mcpu = self._target.mcpu
        return float(min(self._gauge.ask("drift", mcpu=mcpu, count=_BEAT_LOOPS)["seconds"]))

    def _checked(self) -> Calibration:
        kernels = self._check_kernels()
        with self._lock.held(alone=True):
            return self._check_cores(kernels)

    def _check_kernels(self) -> dict[str, Candidate]:
        """The fixed kernels of this kind of device by their names, ready to be timed."""
        found = {}
        for name, workload, config in load_plugin(self._target.kind).checks(self._target.text):
            task = TaskKey(hashlib.sha256(workload.encode()).hexdigest(), self._target.text)
            budgets = {"build_s": BUDGETS.build_s}
            request = TrialRequest("", task, 0, config, workload, budgets=budgets)
            found[name] = self._workshop.begin(request, lambda _: False)
        for candidate in found.values():
            candidate.wait()
        return found

    def _check_cores(self, kernels: Mapping[str, Candidate]) -> Calibration:
        return check_device(
            self._gauge,
            self._machine,
            self._beat,
            self._runner,
            self._target.text,
            kernels,
            self._rng,
        )

    def _tell(self, *, trouble: str, check: int | None = None) -> None:
        """Have the device say how it is now."""
        number = self._health.check if check is None else check
        self._health = replace(self._health, trouble=trouble, check=number)
        self._device = self._describe()

    def _identify(self, options: DeviceOptions) -> str:
        cores = ",".join(map(str, self._cores))
        return device_id(self._target.kind, cores, self._target.text, options.name)

    def _describe(self) -> Device:
        count = len(self._cores)
        known = self._known
        health = replace(
            self._health,
            checked_at=known.at,
            reference_s=known.reference_s,
            drift=self._pulse.drift,
            trial_noise=known.trial_noise,
        )
        return Device(
            id=self._identity,
            kind=self._target.kind,
            model=f"{cpu_model()} {count} core{'s' if count > 1 else ''}",
            target=self._target.text,
            worker="",
            attributes={
                "machine": machine_id(),
                "arch": platform.machine(),
                "cores": str(count),
                "cpuset": ",".join(map(str, self._cores)),
                "build_cores": ",".join(map(str, self._spare)) or "in turn",
                "mcpu": self._target.mcpu,
                "sandbox": "+".join(mechanisms()) or "none",
            },
            peaks=known.peaks,
            noise=known.noise,
            health=health,
        )


def _wrong(known: Calibration) -> str:
    """Why a device whose fixed kernels gave wrong answers does not measure."""
    return f"its check failed: {known.wrong}" if known.wrong else ""


def _with_times(trial: Trial, times: Times) -> Trial:
    phases = {**trial.phases_s, "check": times.check_s, "run": times.run_s}
    return replace(trial, times_s=times.times_s, phases_s=phases)
