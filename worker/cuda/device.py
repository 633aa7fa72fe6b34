"""A GPU of this machine: builds on the host's cores, then checks and times one by one."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tunefarm.compiler.errors import BuildError, TargetError
from tunefarm.compiler.gpu.ptxas import ptxas_version
from tunefarm.compiler.runtime.cuda.driver import EMULATED, model_name
from tunefarm.compiler.settings import CUDA, GPU_SANDBOX
from tunefarm.compiler.target import Target
from tunefarm.worker.backend import Built, Problem
from tunefarm.worker.budgets import Budgets
from tunefarm.worker.cores import spare_cores
from tunefarm.worker.cuda.backend import usage_of
from tunefarm.worker.cuda.discovery import Gpu, find_gpu, find_gpus
from tunefarm.worker.cuda.limits import limits
from tunefarm.worker.cuda.nvml import Monitor, open_nvml
from tunefarm.worker.cuda.watch import EMULATED_PACE, PACE, Watch, WatchedSession
from tunefarm.worker.device import DeviceOptions, device_id, machine_id, own_cores
from tunefarm.worker.measure import Session, TrialFailed
from tunefarm.worker.measuring import MeasuringDevice, Places
from tunefarm.worker.sandbox import mechanisms

_BEAT_LOOPS = 5
_MOST_BUILDERS = 16
_OF_HOST = ("PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_MPS_PIPE_DIRECTORY")
"""What says where NVIDIA's assembler is, and its multi-process service if there is one."""


class CudaDevice(MeasuringDevice):
    """An open device of kind ``cuda``: one GPU, in whose name ``options.name`` is its ordinal.

    One core of the host launches its kernels; the others, but those of other GPUs, build.
    """

    def __init__(self, options: DeviceOptions) -> None:
        target = Target(options.target)
        self._gpu = find_gpu(target, options.name)
        self._monitor = None
        if not self._gpu.is_emulated:
            self._monitor = Monitor(open_nvml(), self._gpu.uuid)
        self._watch: Watch | None = None
        self._pids: set[int] = set()  # of children that were or are: samples are a second old
        environment = {**environment_of(self._gpu), **options.environment}
        self._sandbox = GPU_SANDBOX.parse(environment[GPU_SANDBOX.name])
        gpus = find_gpus()
        max_drift = 0.0 if self._gpu.is_emulated else options.max_drift
        try:
            super().__init__(
                replace(options, environment=environment, max_drift=max_drift),
                device_id("cuda", target.text, self._gpu.uuid or f"{EMULATED} {options.name}"),
                places(own_cores(), gpus.index(self._gpu), len(gpus), options.build_processes),
                "tunefarm.worker.cuda.gauge",
                {},
            )
        except TrialFailed as failed:
            self.close()
            raise TargetError(
                f"GPU {self._gpu.ordinal}, {self._gpu.name}, cannot be measured: {failed.message}"
            ) from None

    @functools.cached_property
    def _properties(self) -> Mapping[str, Any]:
        """What the driver says of the GPU, by the gauge."""
        return self._gauge.ask("about")

    def _facts(self) -> tuple[str, str, Mapping[str, str]]:
        gpu, properties = self._gpu, self._properties
        arch = self._target.gpu.name
        options = {"num-cores": str(properties["multiprocessors"]), **self._target.options}
        words = " ".join(f"-{name}={value}" for name, value in options.items())
        attributes = {
            "machine": machine_id(),
            "arch": arch,
            "name": gpu.name,
            "uuid": gpu.uuid,
            "ordinal": str(gpu.ordinal),
            "memory_gb": f"{properties['memory_bytes'] / 1e9:.0f}",
            "multiprocessors": str(properties["multiprocessors"]),
            "driver": gpu.driver,
            "assembler": "" if gpu.is_emulated else assembler_here(),
            "cpuset": ",".join(map(str, self._places.timed)),
            "build_cores": ",".join(map(str, self._places.spare)) or "in turn",
            "sandbox": "+".join(self._mechanisms()) or "none",
        }
        told = {name: value for name, value in attributes.items() if value}
        return model_name(arch, gpu.name, gpu.is_emulated), Target(f"cuda {words}").text, told

    def _mechanisms(self) -> list[str]:
        """What shuts its runners in, of what this machine has for that."""
        wanted = self._sandbox
        return [there for there in mechanisms() if there.partition("-")[0] in wanted]

    def _beat(self) -> float:
        return float(min(self._gauge.ask("drift", count=_BEAT_LOOPS)["seconds"]))

    def _disturbed(self) -> str:
        if self._monitor is None:
            return ""
        busy = self._neighbours(self._monitor)
        if busy:
            return f"others compute on its GPU: {busy}; stop them, or offer another"
        fault = self._monitor.glance().fault
        return f"its GPU is slowed: {fault}" if fault else ""

    def _neighbours(self, monitor: Monitor) -> str:
        """Who else computed on the GPU since the last look; NVML's samples are a second old."""
        self._pids |= {self._runner.pid, self._gauge.pid}
        return ", ".join(map(str, monitor.neighbours(self._pids)))

    def _open_session(self, problem: Problem, target: str, budgets: Budgets) -> Session:
        runner = self._runner.prepared_for(problem, target)
        judged = self._judged(problem, target)
        if self._monitor is None:
            return Session(runner, judged, budgets, EMULATED_PACE)
        self._watch = Watch(self._monitor)
        return WatchedSession(runner, judged, budgets, PACE, self._watch)

    def _limits(self, built: Built, seconds: float) -> Mapping[str, float]:
        target = Target(built.metadata["target"])
        return limits(self._properties, target, built.metadata["params"])

    def _state(self, built: Built) -> Mapping[str, float]:
        seen = self._watch.state() if self._watch is not None else {}
        return {**seen, **usage_of(built)}


def assembler_here() -> str:
    """What makes machine code of trials: NVIDIA's assembler, or else its driver."""
    try:
        return ptxas_version()
    except BuildError:
        return "driver"


def environment_of(gpu: Gpu) -> dict[str, str]:
    """The variables by which a child sees this GPU alone, as its first, and keeps no files."""
    sandbox = {GPU_SANDBOX.name: "+".join(GPU_SANDBOX.get()) or "none"}
    if gpu.is_emulated:
        return {**sandbox, CUDA.name: CUDA.get()}
    told = {name: os.environ[name] for name in _OF_HOST if name in os.environ}
    own = {"CUDA_VISIBLE_DEVICES": gpu.uuid, "CUDA_CACHE_DISABLE": "1"}
    return {"PATH": os.defpath, **told, **sandbox, **own}


def places(own: Sequence[int], position: int, gpus: int, build_processes: int) -> Places:
    """A core for the launches of each GPU that there is, the last one for that at position 0; the
    others build for all of them. With no more cores than GPUs they take turns."""
    count = len(own)
    timed = (own[-1 - position % count],)
    of_gpus = own[-min(gpus, count) :]
    spare = spare_cores(own, of_gpus)
    return Places(timed, spare, build_processes or min(max(len(spare), 1), _MOST_BUILDERS))
