"""What this machine calls itself: the device model that records are compared by."""

from __future__ import annotations

import functools
import platform
from pathlib import Path


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
