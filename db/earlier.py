"""Earlier trials that count against a budget: made by the compiler, on the model of device, and
timed by the protocol, that the next ones will be made by and on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Protocol

from tunefarm.db.records import Device, TaskKey

Machine = tuple[str, str]
"""Compiler version and device model: what the trials of a budget have in common."""
Plugins = tuple[str, ...]
"""What a task is made with beside the compiler (``package==version``)."""
Made = tuple[Plugins, str]
"""How a task's trials are made and timed: its plug-ins, and the protocol."""
ANY: Machine = ("", "")

_CORES = "num-cores"
_OF_CODE = (_CORES, "precision", "wgmma")  # what the wanted code is like, which any device takes


class Counts(Protocol):
    """A farm or a database that counts candidates."""

    def count_candidates(
        self,
        tasks: Iterable[TaskKey],
        compiler_version: str = "",
        device_model: str = "",
        protocol: str = "",
    ) -> int: ...


def count_earlier(counts: Counts, tasks: Mapping[TaskKey, Made], machine: Machine) -> int:
    """Candidates of the tasks that the machine measured, each made with the task's plug-ins (trials
    name the compiler's version and these) and timed by its protocol."""
    version, model = machine
    alike: dict[Made, list[TaskKey]] = {}
    for key, made in tasks.items():
        alike.setdefault(made, []).append(key)
    return sum(
        counts.count_candidates(keys, version and " ".join([version, *plugins]), model, protocol)
        for (plugins, protocol), keys in alike.items()
    )


def machines_online(devices: Iterable[Device], target: str) -> set[Machine]:
    """Those that may get the next job for a target; ``ANY`` while there is none."""
    return {(d.compiler_version, d.model) for d in fitting(devices, target)} or {ANY}


def fitting(devices: Iterable[Device], target: str) -> list[Device]:
    """The devices online that run code of the target."""
    return [d for d in devices if d.state != "offline" and runs(d.target, target)]


def runs(device: str, wanted: str) -> bool:
    """Whether a device of the first target string runs code of the second: the same kind and
    options, and at least as many cores. What the wanted target leaves open, any device fills, and
    whatever precision its code has."""
    device_kind, device_options = _parse(device)
    wanted_kind, wanted_options = _parse(wanted)
    if device_kind != wanted_kind:
        return False
    if int(wanted_options.get(_CORES, "1")) > int(device_options.get(_CORES, "1")):
        return False
    rest = ((name, value) for name, value in wanted_options.items() if name not in _OF_CODE)
    return all(device_options.get(name) == value for name, value in rest)


@lru_cache(maxsize=1024)
def _parse(target: str) -> tuple[str, Mapping[str, str]]:
    kind, *words = target.split() or [""]
    parts = (word.lstrip("-").partition("=") for word in words)
    return kind, {name: value for name, _, value in parts}
