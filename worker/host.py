"""A device of this machine's processor: builds in parallel, then checks and times one by one."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import random
import secrets
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tunefarm.compiler.target import Target
from tunefarm.db.records import Config, Device, ErrorKind, Trial, TrialRequest
from tunefarm.worker.backend import Built, Problem
from tunefarm.worker.budgets import Budgets
from tunefarm.worker.calibration import Calibration, calibration
from tunefarm.worker.children import Builder, Gauge, ProblemCache, RunnerChild
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
from tunefarm.worker.sandbox import mechanisms

_BATCH = 16
_PULSE_EVERY_S = 0.5
_PEAKS_EVERY_S = 30.0

Builds = tuple["Future[BuildOutcome]", ...]


class BuildOutcome:
    """A build's code or failure, and the seconds it took."""

    __slots__ = ("built", "failure", "seconds")

    def __init__(self, built: Built | None, failure: TrialFailed | None, seconds: float) -> None:
        self.built = built
        self.failure = failure
        self.seconds = seconds

    def code(self) -> Built:
        """The code; raises the failure."""
        if self.failure is not None:
            raise self.failure
        assert self.built is not None
        return self.built


class HostDevice:
    """An open device of kind ``llvm``, or of a plug-in whose backend runs on this processor.

    Kernels are timed on the first ``-num-cores`` cores of this process, one at a time; builders
    use all its cores while no kernel runs. Two workers of one machine take turns by a lock file.
    """

    def __init__(self, options: DeviceOptions) -> None:
        self._target = Target(options.target)
        check_cores(self._target)
        cores = own_cores()
        sweep_scratch()
        self._cores = cores[: self._target.num_cores]
        self._machine: dict[str, Any] = {"mcpu": self._target.mcpu, "cores": len(self._cores)}
        self._lock = CoreLock(self._cores)
        processes = options.build_processes or len(cores)
        builder = ChildOptions(
            "tunefarm.worker.builder",
            self._target.text,
            options.memory_bytes,
            cores,
            options.environment,
        )
        runner = replace(builder, module="tunefarm.worker.runner", cores=self._cores)
        self._builders = [Builder(builder) for _ in range(processes)]
        self._free: SimpleQueue[Builder] = SimpleQueue()
        for one in self._builders:
            self._free.put(one)
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="tunefarm-build")
        self._runner = RunnerChild(runner)
        self._gauge = Gauge(replace(runner, module="tunefarm.worker.gauge"))
        self._problems = ProblemCache()
        self._seed = secrets.randbits(63)
        self._rng = random.Random(self._seed)
        self._pulse_at = 0.0
        self._peaks_at = -_PEAKS_EVERY_S
        self._pulse: Mapping[str, float] = {}
        self._known = self._calibrated(options)
        self._device = self._describe(options)
        self._threads.submit(self._gauge.start)
        for _ in self._builders:
            self._threads.submit(self._start_builder)

    @property
    def device(self) -> Device:
        return self._device

    def measure(self, requests: Sequence[TrialRequest], report: Report, dropped: Dropped) -> None:
        """Measure in batches: build each batch on all cores, then time its candidates alone."""
        for start in range(0, len(requests), _BATCH):
            batch = [r for r in requests[start : start + _BATCH] if not dropped(r)]
            builds = [self._submit_builds(request, dropped) for request in batch]
            for futures in builds:
                for future in futures:
                    future.exception()
            with self._lock.held():
                for request, futures in zip(batch, builds, strict=True):
                    if dropped(request):
                        continue
                    trial = self._measure_one(request, futures)
                    if not dropped(request):
                        report(request, trial)

    def interrupt(self) -> None:
        self._runner.kill()
        for builder in self._builders:
            builder.kill()

    def close(self) -> None:
        self._runner.close()
        self._gauge.close()
        for builder in self._builders:
            builder.close()
        self._threads.shutdown(cancel_futures=True)

    # --- building -------------------------------------------------------------------------------

    def _start_builder(self) -> None:
        builder = self._free.get()
        try:
            builder.start()
        finally:
            self._free.put(builder)

    def _submit_builds(self, request: TrialRequest, dropped: Dropped) -> Builds:
        configs: list[Config] = [request.config, *request.against]
        return tuple(
            self._threads.submit(self._build, request, config, dropped) for config in configs
        )

    def _build(self, request: TrialRequest, config: Config, dropped: Dropped) -> BuildOutcome:
        budgets = Budgets.of(request.budgets)
        builder = self._free.get()
        start = time.monotonic()
        try:
            if dropped(request):
                raise TrialFailed(ErrorKind.LEASE_LOST, "the trial was cancelled")
            built = builder.build(
                request.workload_text, request.task.target, config, budgets.build_s
            )
            return BuildOutcome(built, None, time.monotonic() - start)
        except TrialFailed as failed:
            return BuildOutcome(None, failed, time.monotonic() - start)
        finally:
            self._free.put(builder)

    def _problem(self, request: TrialRequest, budgets: Budgets) -> Problem:
        key = hashlib.sha256(request.workload_text.encode()).hexdigest()
        known = self._problems.get(key)
        if known is not None:
            return known
        builder = self._free.get()
        try:
            posed = builder.problem(request.workload_text, self._seed, budgets.reference_s)
        except TrialFailed as failed:
            if failed.kind is not ErrorKind.DEVICE_LOST:
                self._problems.put(key, failed)
            raise
        finally:
            self._free.put(builder)
        self._problems.put(key, posed)
        return posed

    # --- timing ---------------------------------------------------------------------------------

    def _measure_one(self, request: TrialRequest, builds: Builds) -> Trial:
        outcomes = [future.result() for future in builds]
        own = outcomes[0]
        trial = self._blank(request, own)
        try:
            budgets = Budgets.of(request.budgets)
            built = own.code()
            problem = self._problem(request, budgets)
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
        finally:
            self._feel_pulse()
        return replace(trial, device_state=self._pulse)

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

    def _feel_pulse(self) -> None:
        """Time the reference loop again, twice a second at most: drift is the device's state."""
        if time.monotonic() - self._pulse_at < _PULSE_EVERY_S:
            return
        with contextlib.suppress(TrialFailed):
            seconds = min(self._reference_s() for _ in range(2))
            self._pulse = {
                "reference_s": seconds,
                "drift": seconds / self._known.reference_s,
                "load": os.getloadavg()[0],
            }
        self._pulse_at = time.monotonic()

    def _reference_s(self) -> float:
        return float(self._gauge.ask("drift", mcpu=self._target.mcpu)["seconds"])

    def _calibrated(self, options: DeviceOptions) -> Calibration:
        with self._lock.held():
            return calibration(self._identity(options), self._measured_peaks)

    def _measured_peaks(self) -> Calibration:
        answer = self._gauge.ask("peaks", **self._machine)
        reference_s = min(self._reference_s() for _ in range(5))
        return Calibration(dict(answer["peaks"]), float(answer["noise"]), reference_s)

    def _identity(self, options: DeviceOptions) -> str:
        cores = ",".join(map(str, self._cores))
        return device_id(self._target.kind, cores, self._target.text, options.name)

    def _describe(self, options: DeviceOptions) -> Device:
        count = len(self._cores)
        return Device(
            id=self._identity(options),
            kind=self._target.kind,
            model=f"{cpu_model()} {count} core{'s' if count > 1 else ''}",
            target=self._target.text,
            worker="",
            attributes={
                "machine": machine_id(),
                "arch": platform.machine(),
                "cores": str(count),
                "cpuset": ",".join(map(str, self._cores)),
                "mcpu": self._target.mcpu,
                "sandbox": "+".join(mechanisms()) or "none",
            },
            peaks=self._known.peaks,
            noise=self._known.noise,
        )


def _with_times(trial: Trial, times: Times) -> Trial:
    phases = {**trial.phases_s, "check": times.check_s, "run": times.run_s}
    return replace(trial, times_s=times.times_s, phases_s=phases)


class CoreLock:
    """A lock file for each core, so that two workers of one machine never time at once."""

    def __init__(self, cores: Sequence[int]) -> None:
        folder = Path(tempfile.gettempdir()) / f"tunefarm-cores-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        self._paths = [folder / str(core) for core in sorted(cores)]
        self._turn = threading.Lock()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold every core of the device; waits for as long as another holds one."""
        with self._turn, contextlib.ExitStack() as stack:
            for path in self._paths:
                handle = stack.enter_context(path.open("w"))
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
