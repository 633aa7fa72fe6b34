"""What devices of every kind do with candidates: build them in parallel, then check and time them
one by one while the device is well."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tunefarm.compiler.target import Target
from tunefarm.compiler.version import compiler_version
from tunefarm.db.records import (
    Device,
    ErrorKind,
    Health,
    TaskKey,
    Trial,
    TrialRequest,
    protocol_of,
)
from tunefarm.worker.backend import Built, Problem, load_plugin
from tunefarm.worker.budgets import Budgets
from tunefarm.worker.building import BuildPool, Candidate, Workshop
from tunefarm.worker.calibration import Calibration, calibration, keep
from tunefarm.worker.checkup import BUDGETS, check_device
from tunefarm.worker.children import Builder, Gauge, RunnerChild
from tunefarm.worker.cores import CoreLock
from tunefarm.worker.crowding import Crowding
from tunefarm.worker.device import DeviceOptions, Dropped, Report
from tunefarm.worker.measure import Session, TrialFailed
from tunefarm.worker.problem import judged_as
from tunefarm.worker.process import ChildOptions, sweep_scratch
from tunefarm.worker.pulse import GOOD_IN_A_ROW, Pulse
from tunefarm.worker.trials import Trials

_BATCH = 16
_TRIES = 3
"""How often candidates are timed whose time a bad pulse follows."""


@dataclass(frozen=True, slots=True)
class Places:
    """The cores of this process that candidates are timed on, those that build meanwhile (none:
    building and timing take turns), and how many processes build."""

    timed: tuple[int, ...]
    spare: tuple[int, ...]
    builders: int


class MeasuringDevice(ABC):
    """An open device that is measured by this process's children.

    Kernels are timed one at a time, while nothing else of this user's workers runs on the cores
    that time. Cores that are left build all the time; without such, building and timing take
    turns, a batch at a time.

    ``gauge`` is the module of the child that measures the device itself, and ``machine`` what it is
    asked about. What a kind of device adds are the methods in front.
    """

    def __init__(
        self,
        options: DeviceOptions,
        identity: str,
        places: Places,
        gauge: str,
        machine: Mapping[str, Any],
    ) -> None:
        self._target = Target(options.target)
        self._last: tuple[Problem, str, Problem] | None = None
        self._identity = identity
        sweep_scratch()
        self._places = places
        self._machine = machine
        self._lock = CoreLock(places.timed)
        self._workshop = Workshop(self._build_pool(options))
        runner = self._child("tunefarm.worker.runner", options, places.timed)
        self._runner = RunnerChild(runner)
        self._gauge = Gauge(replace(runner, module=gauge))
        self._rng = random.Random()
        self._trials = Trials(
            self._runner, self._open_session, self._protocol, self._limits, self._state, self._rng
        )
        self._known = self._calibrated()
        self._pulse = Pulse(self._beat, self._known.reference_s, options.max_drift)
        self._crowding = Crowding(self._beat_together)
        self._health = Health(trouble=_wrong(self._known))
        self._device = self._describe()

    # --- what a kind of device adds -------------------------------------------------------------

    @abstractmethod
    def _facts(self) -> tuple[str, str, Mapping[str, str]]:
        """The model of the device, its target, and its attributes."""

    @abstractmethod
    def _beat(self) -> float:
        """Seconds of the reference loop: the least of a few, which what interrupts it leaves be."""

    def _beat_together(self) -> float:
        """Seconds of the reference loop on all cores at once; 0 if there is nothing to share."""
        return 0.0

    def _disturbed(self) -> str:
        """What else keeps the device from measuring now, in one sentence; empty if nothing does."""
        return ""

    def _open_session(self, problem: Problem, target: str, budgets: Budgets) -> Session:
        """A conversation with a runner of the target that has the problem's inputs."""
        runner = self._runner.prepared_for(problem, target)
        return Session(runner, self._judged(problem, target), budgets)

    def _judged(self, problem: Problem, target: str) -> Problem:
        """The problem with the error that code of the target may make; of one trial after another
        the same."""
        if self._last is None or self._last[0] is not problem or self._last[1] != target:
            self._last = (problem, target, judged_as(problem, Target(target)))
        return self._last[2]

    def _limits(self, built: Built, seconds: float) -> Mapping[str, float]:
        """The peaks that no right time of this code exceeds, by ``measure.impossible``'s names."""
        return self._known.peaks

    def _state(self, built: Built) -> Mapping[str, float]:
        """The state of the device around a trial of this code, beside that of its pulse."""
        return {}

    def _protocol(self, request: TrialRequest) -> str:
        """What a candidate is timed by."""
        return protocol_of(request.task.target)

    # --- measuring ------------------------------------------------------------------------------

    @property
    def device(self) -> Device:
        return self._device

    def measure(self, requests: Sequence[TrialRequest], report: Report, dropped: Dropped) -> None:
        """Measure what is built; whatever is timed since the last good pulse is told after the
        next one, or timed again. Returns early when the device gets into trouble."""
        line = deque(self._workshop.begin(request, dropped) for request in requests)
        while line and not self._health.trouble:
            for candidate in list(line)[: 1 if self._places.spare else _BATCH]:
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
                unsteady = self._disturbed() if steady else self._pulse.trouble()
            trouble = _wrong(self._known) or unsteady
        except TrialFailed as failed:
            trouble = f"it cannot be checked: {failed.message}"
        self._tell(check=number, trouble=trouble)

    def tend(self) -> None:
        if self._known.is_old:
            self.check(self._health.check)
        elif self._health.trouble and not _wrong(self._known) and self._pulse.is_due:
            with contextlib.suppress(TrialFailed), self._lock.held(alone=True):
                self._pulse.feel()
            if self._pulse.good >= GOOD_IN_A_ROW and not self._disturbed():
                self._tell(trouble="")

    def interrupt(self) -> None:
        self._runner.kill()
        self._workshop.interrupt()

    def close(self) -> None:
        self._runner.close()
        self._gauge.close()
        self._workshop.close()

    # --- building -------------------------------------------------------------------------------

    def _build_pool(self, options: DeviceOptions) -> BuildPool:
        """Builders on the spare cores, one each, and those that are left on the timed ones."""
        timed, spare, count = self._places.timed, self._places.spare, self._places.builders
        aside = min(count, len(spare))
        places = ((spare, aside), (timed, count - aside))
        groups = [self._builders(options, *place) for place in places if place[1]]
        return BuildPool(groups, load_plugin(self._target.kind).together)

    def _builders(
        self, options: DeviceOptions, cores: tuple[int, ...], count: int
    ) -> tuple[CoreLock, list[Builder]]:
        child = self._child("tunefarm.worker.builder", options, cores)
        return CoreLock(cores), [Builder(child) for _ in range(count)]

    def _child(self, module: str, options: DeviceOptions, cores: tuple[int, ...]) -> ChildOptions:
        return ChildOptions(
            module,
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
        self._crowding.wait()
        for _ in range(_BATCH):
            if not line or not line[0].is_ready:
                break
            candidate = line.popleft()
            if dropped(candidate.request):
                continue
            candidate.trial = self._trials.make(candidate)
            unsure.append(candidate)
            if self._pulse.is_due and not self._tell_sure(unsure, report, dropped):
                return
        self._tell_sure(unsure, report, dropped)

    def _tell_sure(self, unsure: list[Candidate], report: Report, dropped: Dropped) -> bool:
        """Report what was timed between two good pulses; what a bad one follows, or was timed on
        crowded cores, is timed again.

        False if the device is in trouble: nobody knows those times then.
        """
        for tried in range(_TRIES):
            if not unsure:
                return True
            if self._feel() and not self._disturbed():
                if tried < _TRIES - 1 and self._crowding.spoils():
                    self._time_again(unsure)
                    continue
                for candidate in unsure:
                    assert candidate.trial is not None
                    if not dropped(candidate.request):
                        report(candidate.request, self._made_here(candidate.trial))
                unsure.clear()
                return True
            if not self._is_steady():
                return False
            self._time_again(unsure)
        self._tell(trouble=f"its pulse is unsteady: {self._pulse.trouble()}")
        return False

    def _time_again(self, unsure: Sequence[Candidate]) -> None:
        for candidate in unsure:
            if candidate.trial is not None and _is_open(candidate.trial):
                candidate.trial = self._trials.make(candidate)

    def _feel(self) -> bool:
        """Whether the pulse is good now; the device's own fault leaves that open."""
        try:
            return self._pulse.feel()
        except TrialFailed:
            return True

    def _is_steady(self) -> bool:
        """Wait for a good pulse; without one, or with anything else in the way, the device is in
        trouble."""
        try:
            steady = self._pulse.settle()
        except TrialFailed:
            return True
        trouble = self._disturbed() if steady else self._pulse.trouble()
        if trouble:
            self._tell(trouble=trouble)
        return not trouble

    # --- the device itself ----------------------------------------------------------------------

    def _made_here(self, trial: Trial) -> Trial:
        """The trial as this device's, with the state of the device around it."""
        state = {
            "reference_s": self._pulse.drift * self._pulse.reference_s,
            "drift": self._pulse.drift,
            "drift_before": self._pulse.before,
            "noise": self._known.trial_noise,
            "load": os.getloadavg()[0],
            **trial.device_state,
        }
        return replace(
            trial, device=self._device.id, device_model=self._device.model, device_state=state
        )

    def _calibrated(self) -> Calibration:
        """What a check of the last day found, or one that is made now."""
        return calibration(self._identity, self._checked)

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
            lambda problem: self._open_session(problem, self._target.text, BUDGETS),
            kernels,
            self._rng,
        )

    def _tell(self, *, trouble: str, check: int | None = None) -> None:
        """Have the device say how it is now."""
        number = self._health.check if check is None else check
        self._health = replace(self._health, trouble=trouble, check=number)
        self._device = self._describe()

    def _describe(self) -> Device:
        known = self._known
        model, target, attributes = self._facts()
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
            model=model,
            target=target,
            worker="",
            attributes=attributes,
            compiler_version=compiler_version(self._target.kind),
            peaks=known.peaks,
            noise=known.noise,
            health=health,
        )


def _wrong(known: Calibration) -> str:
    """Why a device whose fixed kernels gave wrong answers does not measure."""
    return f"its check failed: {known.wrong}" if known.wrong else ""


def _is_open(trial: Trial) -> bool:
    """Whether a trial that a bad pulse follows is to be timed again: it has a time, or has none
    for the device's sake."""
    return trial.ok or trial.error is ErrorKind.DEVICE_LOST
