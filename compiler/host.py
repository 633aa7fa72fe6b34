"""What this machine is called: its processor by LLVM's name, the device model of records."""

from __future__ import annotations

import ctypes
import functools
import platform
from pathlib import Path
from typing import TYPE_CHECKING

from tunefarm.compiler.processors import named_by_features

if TYPE_CHECKING:
    from tunefarm.compiler.target import Target

_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18  # of Linux on x86-64


@functools.cache
def llvm_cpu() -> str:
    """The processor by LLVM's name."""
    from llvmlite import binding

    has = binding.get_host_cpu_features()
    return named_by_features(binding.get_host_cpu_name(), {name for name in has if has[name]})


@functools.cache
def may_use_tiles() -> bool:
    """Ask Linux once for the tile registers of AMX, which a process has on request alone: for all
    its threads, and for its children. False if there are none, or Linux refuses."""
    if platform.machine() != "x86_64":
        return False
    call = ctypes.CDLL(None, use_errno=True).syscall
    return bool(call(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)


@functools.cache
def cpu_model() -> str:
    """The processor's own name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def device_model(num_cores: int) -> str:
    """The model of a device made of ``num_cores`` cores of this processor."""
    return f"{cpu_model()} {num_cores} core{'s' if num_cores > 1 else ''}"


def model_of(target: Target) -> str:
    """The model of the device on which this machine runs code of a target: of a processor, of the
    first GPU that does (empty without one), or the name of a plug-in's kind."""
    if target.kind == "llvm":
        return device_model(target.num_cores)
    if target.kind == "cuda":
        from tunefarm.compiler.runtime.cuda.driver import device_model as gpu_model

        return gpu_model(target)
    return target.kind
