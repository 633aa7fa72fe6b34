"""Which GPUs this machine has, by the driver's word, without a context on any of them.

    cuda          every GPU of the host, each with code for its own architecture
    cuda:1        the second one
    cuda -arch=sm_80, cuda:1 -arch=sm_80     the first one, the second one, with such code

Ordinals are those of ``nvidia-smi``, among the GPUs that CUDA_VISIBLE_DEVICES shows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefarm.compiler.errors import TargetError
from tunefarm.compiler.gpu.archs import GPU_ARCHS
from tunefarm.compiler.runtime.cuda.driver import (
    EMULATED,
    arch_number,
    arch_of,
    devices,
    is_emulating,
)
from tunefarm.compiler.target import Target
from tunefarm.worker.cuda.nvml import open_nvml

_DRIVER = Path("/proc/driver/nvidia/version")
_NAMED = re.compile(r"cuda(?::(\d+))?((?:\s+\S+)*)\s*")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this machine: ``arch`` is what code for it is built for (sm_90a), ``driver`` the
    version of NVIDIA's. An emulated one has neither ``uuid`` nor driver."""

    ordinal: int
    name: str
    arch: str
    uuid: str = ""
    memory_bytes: int = 0
    driver: str = ""

    @property
    def is_emulated(self) -> bool:
        return self.name == EMULATED

    def runs(self, arch: str) -> bool:
        """Whether it runs code of an architecture: its own, or an older one's that is not bound to
        that one (sm_90a is)."""
        later = arch[-1].isdigit() and arch_number(arch) <= arch_number(self.arch)
        return arch == self.arch or later


def has_driver() -> bool:
    """Whether NVIDIA's driver is loaded here, as far as can be seen without asking it."""
    return _DRIVER.exists()


def find_gpus(nvml: Any = None) -> tuple[Gpu, ...]:
    """The GPUs that this process may use, the emulated ones alone where there is an emulator.

    TargetError, in one sentence, if there is no driver, no nvidia-ml-py or no GPU.
    """
    if is_emulating():
        return _emulated()
    library = open_nvml() if nvml is None else nvml
    driver = str(library.nvmlSystemGetDriverVersion())
    found = []
    for index in range(library.nvmlDeviceGetCount()):
        handle = library.nvmlDeviceGetHandleByIndex(index)
        major, minor = library.nvmlDeviceGetCudaComputeCapability(handle)
        arch = arch_here(major, minor)
        uuid = str(library.nvmlDeviceGetUUID(handle))
        memory = int(library.nvmlDeviceGetMemoryInfo(handle).total)
        found.append(Gpu(index, str(library.nvmlDeviceGetName(handle)), arch, uuid, memory, driver))
    visible = visible_of(found, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if not visible:
        shown = " and CUDA_VISIBLE_DEVICES" if found else ""
        raise TargetError(f"the NVIDIA driver shows no GPU; look at nvidia-smi{shown}")
    return visible


def _emulated() -> tuple[Gpu, ...]:
    return tuple(
        Gpu(properties.ordinal, EMULATED, properties.arch, memory_bytes=properties.memory_bytes)
        for properties in devices()
    )


def visible_of(found: Sequence[Gpu], said: str | None) -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES shows: ordinals or beginnings of UUIDs, until one names
    none, as the driver reads it; all if it is unset."""
    if said is None:
        return tuple(found)
    shown: list[Gpu] = []
    for word in filter(None, (part.strip() for part in said.split(","))):
        named = [g for g in found if str(g.ordinal) == word or g.uuid.startswith(word)]
        if len(named) != 1:
            break
        shown += named
    return tuple(shown)


def arch_here(major: int, minor: int) -> str:
    """The architecture that code for a GPU is built for; TargetError for what is older than
    sm_75."""
    arch = arch_of(major, minor)
    if arch not in GPU_ARCHS:
        raise TargetError(f"GPUs of compute capability {major}.{minor} are too old; from 7.5 on")
    return arch


def is_gpu_target(text: str) -> bool:
    """Whether a worker's target names GPUs."""
    return _NAMED.fullmatch(text) is not None


def offers(text: str, taken: Collection[int] = ()) -> list[tuple[str, int]]:
    """The devices that a worker's target means: the target of each, and its ordinal.

    Without an ordinal a target with options means the first GPU that runs its code and is not yet
    ``taken``. TargetError if there is none.
    """
    match = _NAMED.fullmatch(text)
    assert match is not None
    gpus = find_gpus()
    if match[1] is not None:
        gpus = tuple(g for g in gpus if g.ordinal == int(match[1]))
        if not gpus:
            there = ", ".join(str(g.ordinal) for g in find_gpus())
            raise TargetError(f"there is no GPU {match[1]} here; there are {there}")
    if not match[2].strip():
        return [(f"cuda -arch={g.arch}", g.ordinal) for g in gpus if g.ordinal not in taken]
    target = Target(f"cuda{match[2]}")
    free = [g for g in fitting(gpus, target) if g.ordinal not in taken]
    if not free:
        raise TargetError(f"every GPU here that runs code for {target} is offered already")
    return [(target.text, free[0].ordinal)]


def fitting(gpus: Sequence[Gpu], target: Target) -> list[Gpu]:
    """The GPUs that run code for a target, those whose own it is first; TargetError, which names
    all, if there is none."""
    arch = target.gpu.name
    found = sorted((g for g in gpus if g.runs(arch)), key=lambda g: g.arch != arch)
    if not found:
        there = ", ".join(f"{g.ordinal}: {g.name} ({g.arch})" for g in gpus)
        raise TargetError(f"no GPU here runs code for {target}; there is {there}")
    return found


def require(target: Target) -> None:
    """TargetError, in one sentence, if no GPU of this machine runs code for a target."""
    fitting(find_gpus(), target)


def find_gpu(target: Target, name: str) -> Gpu:
    """The GPU of this ordinal, or the first that runs code for a target; TargetError if there is
    none."""
    found = fitting([g for g in find_gpus() if name in ("", str(g.ordinal))], target)
    return found[0]
