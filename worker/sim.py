"""The ``sim`` target kind: times are a function of the config, for tests of the farm.

    Target("sim -failures=10 -trial-ms=5 -seed=1")

``-failures`` is the percentage of configs that fail, spread over every error kind (trial 0 never
does); a config with a knob ``fail`` fails as its value says. ``-trial-ms``, or the config's knob
``busy-ms``, is how long a trial keeps the device busy, and ``-seed`` makes another landscape.
While the file that ``-trouble`` names has text, that is the device's trouble.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tunefarm.compiler.target import Target
from tunefarm.db.records import Config, Device, ErrorKind, Health, Trial, TrialRequest
from tunefarm.worker.backend import TargetPlugin
from tunefarm.worker.budgets import Budgets
from tunefarm.worker.device import DeviceOptions, Dropped, Report, device_id

_BASE_S = 1e-3
_FAILURE_PERCENT = 5
_REPEATS = 5
_SLOPE = 0.15
_NOISE = 0.002


class SimDevice:
    """An open simulated device; any number of them run in one process."""

    def __init__(self, options: DeviceOptions) -> None:
        self._target = Target(options.target)
        self._busy_s = float(self._target.options.get("trial-ms", "0")) / 1e3
        self._interrupted = threading.Event()
        self._device = Device(
            id=device_id("sim", options.target, options.name),
            kind="sim",
            model="simulated",
            target=self._target.text,
            worker="",
            attributes={"name": options.name},
            peaks={"flops_1": 1e11, "flops_n": 1e11},
            noise=_NOISE,
            health=Health(checked_at=time.time(), reference_s=_BASE_S, trial_noise=_NOISE),
        )

    @property
    def device(self) -> Device:
        return self._device

    def measure(self, requests: Sequence[TrialRequest], report: Report, dropped: Dropped) -> None:
        for request in requests:
            self.tend()
            if self._device.health.trouble:
                return
            self._interrupted.clear()
            if dropped(request):
                continue
            self._interrupted.wait(self._busy_of(request.config))
            if not dropped(request):
                report(request, self.trial(request))

    def check(self, number: int) -> None:
        """Be found as well as ``-trouble`` says."""
        health = replace(self._device.health, check=number, checked_at=time.time())
        self._device = replace(self._device, health=health)
        self.tend()

    def tend(self) -> None:
        told = self._target.options.get("trouble", "")
        trouble = ""
        if told:
            with contextlib.suppress(OSError):
                trouble = Path(told).read_text().strip()
        if trouble != self._device.health.trouble:
            health = replace(self._device.health, trouble=trouble)
            self._device = replace(self._device, health=health)

    def _busy_of(self, config: Config) -> float:
        return float(config.get("busy-ms", 1e3 * self._busy_s)) / 1e3

    def interrupt(self) -> None:
        self._interrupted.set()

    def close(self) -> None:
        self._interrupted.set()

    def trial(self, request: TrialRequest) -> Trial:
        """What this device answers to a request, whenever and wherever it is asked."""
        trial = Trial(
            job=request.job,
            task=request.task,
            number=request.number,
            config=request.config,
            device=self._device.id,
            device_model=self._device.model,
            device_state={"drift": 1.0, "noise": _NOISE},
            space_fingerprint="sim",
            code_hash=_digest("code", request.workload_text, request.config).hex()[:16],
            predicted=request.predicted,
            origin=request.origin,
            phases_s={"build": 0.0, "check": 0.0, "run": self._busy_s},
            created_at=time.time(),
        )
        error = sim_error(request.workload_text, self._target, request.config, request.number)
        if error is not None:
            message = f"simulated {error.value.replace('_', ' ')}"
            return replace(trial, error=error, message=message)
        return _timed(trial, request, self._target)


def sim_time_s(workload_text: str, target: Target, config: Config) -> float:
    """The true time of a config: each knob has a best value, and costs the more the farther off.

    Whole numbers cost 15% for each doubling away from their best, other choices up to 30%.
    """
    seed = target.options.get("seed", "0")
    factor = 1.0
    for name, value in sorted(config.items()):
        if isinstance(value, str):
            factor *= 1 + 0.3 * _fraction(seed, workload_text, name, value)
        else:
            best = 8 * _fraction(seed, workload_text, name)
            factor *= 1 + _SLOPE * abs(math.log2(1 + abs(value)) - best)
    return _BASE_S * (1 + _fraction(seed, workload_text)) * factor


def sim_error(workload_text: str, target: Target, config: Config, number: int) -> ErrorKind | None:
    """How a config fails, or None."""
    if "fail" in config:
        return ErrorKind(str(config["fail"]))
    if number == 0:
        return None
    percent = float(target.options.get("failures", _FAILURE_PERCENT))
    seed = target.options.get("seed", "0")
    drawn = _fraction(seed, workload_text, "failure", config)
    kinds = [kind for kind in ErrorKind if kind is not ErrorKind.LEASE_LOST]
    return kinds[int(drawn * 1e9) % len(kinds)] if drawn * 100 < percent else None


def _timed(trial: Trial, request: TrialRequest, target: Target) -> Trial:
    times_s = _repeats(request, target, request.config, 0, _REPEATS)
    if not request.against:
        return replace(trial, times_s=times_s)
    budgets = Budgets.of(request.budgets)
    rounds = int(budgets.paired_rounds) * int(budgets.paired_blocks)
    configs = (request.config, *request.against)
    paired = [_repeats(request, target, c, row, rounds) for row, c in enumerate(configs)]
    return replace(trial, times_s=times_s, paired_times_s=tuple(paired))


def _repeats(
    request: TrialRequest, target: Target, config: Config, row: int, count: int
) -> tuple[float, ...]:
    true_s = sim_time_s(request.workload_text, target, config)
    drawn = [_fraction("noise", config, request.number, row, i) for i in range(count)]
    return tuple(true_s * (1 + _NOISE * (2 * x - 1)) for x in drawn)


def _fraction(*parts: object) -> float:
    """A number in [0, 1) that depends on the parts alone."""
    return int.from_bytes(_digest(*parts)[:6]) / 2**48


def _digest(*parts: object) -> bytes:
    plain = [dict(p) if isinstance(p, Mapping) else p for p in parts]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).digest()


PLUGIN = TargetPlugin(SimDevice)
