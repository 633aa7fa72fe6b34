"""What NVIDIA's management library tells of GPUs, without a context on any.

    nvml = open_nvml()                     # TargetError if there is no driver, or no nvidia-ml-py
    monitor = Monitor(nvml, "GPU-6f1c…")
    reading = monitor.read()               # clocks, heat, power, and what slows it down

Source: NVIDIA, "NVML API Reference Guide". The library object is that of nvidia-ml-py (``pynvml``),
or whatever has its functions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tunefarm.compiler.errors import TargetError

T = TypeVar("T")
# nvmlClocksEventReasons: what holds a clock below its highest.
_POWER_CAP = 0x4
_FAULTS: Mapping[int, str] = {
    0x8: "its hardware slows it down",
    0x20: "it is too hot",
    0x40: "it is too hot",
    0x80: "its power supply slows it down",
}
_ENDED = frozenset("ZXx")  # proc(5), states of a process
BUSY_PERCENT = 1
"""How much of the multiprocessors' time another process may take, rounded as NVML does."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of a GPU at one moment; 0 for what its driver does not tell. ``reasons`` are the
    bits of what holds its clocks down."""

    sm_mhz: float = 0.0
    memory_mhz: float = 0.0
    celsius: float = 0.0
    watts: float = 0.0
    reasons: int = 0

    @property
    def is_capped(self) -> bool:
        """Whether its power limit holds the clock down, as the hottest kernels make it."""
        return bool(self.reasons & _POWER_CAP)

    @property
    def fault(self) -> str:
        """Why it is slower than it should be, whatever runs on it; empty if it is not."""
        told = dict.fromkeys(why for bit, why in _FAULTS.items() if self.reasons & bit)
        return " and ".join(told)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another process that computes on a GPU, and the percentage of its time that it takes."""

    pid: int
    name: str
    percent: int

    def __str__(self) -> str:
        return f"{self.name or 'a process'} ({self.pid}, {self.percent}% of its time)"


def open_nvml() -> Any:
    """The library, initialised. TargetError, in one sentence, if there is none here."""
    try:
        import pynvml
    except ImportError:
        raise TargetError(
            "GPUs are found by nvidia-ml-py, which is not installed; pip install 'tunefarm[cuda]'"
        ) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise TargetError(f"this machine has no NVIDIA driver that works ({error})") from None
    return pynvml


class Monitor:
    """Watches one GPU through the library; what a driver does not support reads as nothing."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        self._nvml = nvml
        self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        self._seen_us = 0

    def read(self) -> Reading:
        """Everything that is stored with a trial."""
        nvml, handle = self._nvml, self._handle
        return Reading(
            sm_mhz=self._told(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            memory_mhz=self._told(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            celsius=self._told(
                lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            ),
            watts=self._told(lambda: nvml.nvmlDeviceGetPowerUsage(handle)) / 1000,
            reasons=self._reasons(),
        )

    def glance(self) -> Reading:
        """What tells whether a repeat counts, and no more: two calls."""
        nvml, handle = self._nvml, self._handle
        clock = self._told(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        return Reading(sm_mhz=clock, reasons=self._reasons())

    def neighbours(self, own: Collection[int]) -> tuple[Neighbour, ...]:
        """Processes, other than ``own``, that live and computed on the GPU since the last call; at
        the first one in the seconds that the driver remembers.

        Without rights to see that, or in a namespace of process ids of its own, what the driver
        tells under foreign ids is not blamed on anybody.
        """
        latest: dict[int, int] = {}
        for sample in self._samples():
            if sample.smUtil >= BUSY_PERCENT:
                pid = int(sample.pid)
                latest[pid] = max(latest.get(pid, 0), int(sample.smUtil))
        others = {pid: share for pid, share in latest.items() if pid not in own}
        return tuple(
            Neighbour(pid, name, share)
            for pid, share in others.items()
            if (name := _name_of(pid)) is not None
        )

    def _samples(self) -> list[Any]:
        """What was sampled since the last call; some drivers give older samples too."""
        call, seen_us = self._nvml.nvmlDeviceGetProcessUtilization, self._seen_us
        with contextlib.suppress(self._nvml.NVMLError):
            found = [s for s in call(self._handle, seen_us) if int(s.timeStamp) > seen_us]
            self._seen_us = max((int(s.timeStamp) for s in found), default=seen_us)
            return found
        return []

    def _reasons(self) -> int:
        """The reasons by their newer name, or by that of drivers before 535."""
        nvml, handle = self._nvml, self._handle
        try:
            return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        except nvml.NVMLError:
            return int(self._told(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))

    def _told(self, call: Callable[[], float]) -> float:
        try:
            return float(call())
        except self._nvml.NVMLError:
            return 0.0


def _name_of(pid: int) -> str | None:
    """What a process of this machine is called; None if none of this id lives here: one that has
    ended and that nobody waited for has a name still."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            before, _, fields = file.read().rpartition(")")
    except OSError:
        return None
    return None if fields.split()[0] in _ENDED else before.partition("(")[2]
