"""A device of this machine's processor."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from dataclasses import replace

from tunefarm.compiler.target import Target
from tunefarm.db.records import FROM_MEMORY, TrialRequest, protocol_of
from tunefarm.worker.backend import Built
from tunefarm.worker.cores import spare_cores
from tunefarm.worker.device import (
    DeviceOptions,
    check_cores,
    cpu_model,
    device_id,
    machine_id,
    own_cores,
)
from tunefarm.worker.measure import TrialFailed, impossible
from tunefarm.worker.measuring import MeasuringDevice, Places
from tunefarm.worker.sandbox import mechanisms

_PEAKS_EVERY_S = 30.0
_BEAT_LOOPS = 5


class HostDevice(MeasuringDevice):
    """An open device of kind ``llvm``, or of a plug-in whose backend runs on this processor:
    the first ``-num-cores`` cores of this process."""

    def __init__(self, options: DeviceOptions) -> None:
        target = Target(options.target)
        check_cores(target)
        own = own_cores()
        cores = own[: target.num_cores]
        self._peaks_at = -_PEAKS_EVERY_S
        super().__init__(
            options,
            device_id(target.kind, ",".join(map(str, cores)), target.text, options.name),
            Places(cores, spare_cores(own, cores), options.build_processes or len(own)),
            "tunefarm.worker.gauge",
            {"mcpu": target.mcpu, "cores": len(cores)},
        )

    def _facts(self) -> tuple[str, str, Mapping[str, str]]:
        timed, spare = self._places.timed, self._places.spare
        count = len(timed)
        model = f"{cpu_model()} {count} core{'s' if count > 1 else ''}"
        attributes = {
            "machine": machine_id(),
            "arch": platform.machine(),
            "cores": str(count),
            "cpuset": ",".join(map(str, timed)),
            "build_cores": ",".join(map(str, spare)) or "in turn",
            "mcpu": self._target.mcpu,
            "sandbox": "+".join(mechanisms()) or "none",
        }
        return model, self._target.text, attributes

    def _beat(self) -> float:
        mcpu = self._target.mcpu
        return float(min(self._gauge.ask("drift", mcpu=mcpu, count=_BEAT_LOOPS)["seconds"]))

    def _beat_together(self) -> float:
        if len(self._places.timed) == 1:
            return 0.0
        try:
            return float(min(self._gauge.ask("together", count=_BEAT_LOOPS)["seconds"]))
        except TrialFailed:  # the pulse tells of a gauge that is gone
            return 0.0

    def _protocol(self, request: TrialRequest) -> str:
        is_known = self._target.kind == "llvm" and request.protocol == FROM_MEMORY
        return protocol_of(request.task.target, FROM_MEMORY if is_known else "")

    def _limits(self, built: Built, seconds: float) -> Mapping[str, float]:
        """The peaks, measured anew before they convict anybody."""
        is_late = time.monotonic() - self._peaks_at > _PEAKS_EVERY_S
        if is_late and impossible(seconds, built, self._known.peaks) is not None:
            self._peaks_at = time.monotonic()
            fresh = self._gauge.ask("compute_peaks", **self._machine)["peaks"]
            better = {k: max(v, fresh.get(k, v)) for k, v in self._known.peaks.items()}
            self._known = replace(self._known, peaks=better)
        return self._known.peaks
