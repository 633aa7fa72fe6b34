"""A library with the functions of nvidia-ml-py that are used, told by a script what GPUs do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """What every function raises that a driver does not support."""


@dataclass
class ScriptedGpu:
    """One GPU; ``reasons`` are given one after the other, the last for ever."""

    name: str = "NVIDIA H200"
    uuid: str = "GPU-aaaa"
    capability: tuple[int, int] = (9, 0)
    memory_bytes: int = 141 << 30
    reasons: list[int] = field(default_factory=lambda: [0])
    samples: list[tuple[int, int, int]] = field(default_factory=list)  # pid, microseconds, percent


class ScriptedNvml:
    """``pynvml`` as far as a worker calls it."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, gpus: Sequence[ScriptedGpu], lacks: Sequence[str] = ()) -> None:
        self.gpus = list(gpus)
        self._lacks = set(lacks)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "_lacks"):
            return _unsupported
        return object.__getattribute__(self, name)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.124.06"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> ScriptedGpu:
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> ScriptedGpu:
        return next(gpu for gpu in self.gpus if gpu.uuid == uuid)

    def nvmlDeviceGetName(self, gpu: ScriptedGpu) -> str:
        return gpu.name

    def nvmlDeviceGetUUID(self, gpu: ScriptedGpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetCudaComputeCapability(self, gpu: ScriptedGpu) -> tuple[int, int]:
        return gpu.capability

    def nvmlDeviceGetMemoryInfo(self, gpu: ScriptedGpu) -> SimpleNamespace:
        return SimpleNamespace(total=gpu.memory_bytes)

    def nvmlDeviceGetClockInfo(self, gpu: ScriptedGpu, kind: int) -> int:
        return {self.NVML_CLOCK_SM: 1980, self.NVML_CLOCK_MEM: 3201}[kind]

    def nvmlDeviceGetTemperature(self, gpu: ScriptedGpu, sensor: int) -> int:
        return 41

    def nvmlDeviceGetPowerUsage(self, gpu: ScriptedGpu) -> int:
        return 121_500

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: ScriptedGpu) -> int:
        return gpu.reasons.pop(0) if len(gpu.reasons) > 1 else gpu.reasons[0]

    nvmlDeviceGetCurrentClocksThrottleReasons: Callable[[ScriptedNvml, ScriptedGpu], int] = (
        nvmlDeviceGetCurrentClocksEventReasons
    )

    def nvmlDeviceGetProcessUtilization(self, gpu: ScriptedGpu, since: int) -> list[Any]:
        found = [
            SimpleNamespace(pid=pid, timeStamp=at, smUtil=percent)
            for pid, at, percent in gpu.samples
            if at > since
        ]
        if not found:
            raise NVMLError("Not Found")
        return found


def _unsupported(*_: object) -> Any:
    raise NVMLError("Not Supported")
