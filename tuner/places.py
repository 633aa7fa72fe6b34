"""Where the tuner runs while a device measures."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from tunefarm.db.records import Device


def spare_cores(device: Device, own: set[int]) -> set[int]:
    """Those of a process's cores on which the device does not measure: all if it is elsewhere."""
    if device.attributes.get("host") != socket.gethostname():
        return own
    return own - {int(core) for core in device.attributes.get("cpuset", "").split(",") if core}


@contextmanager
def aside(device: Device) -> Iterator[bool]:
    """Keep this thread off the device's cores meanwhile; yields whether it has others to run on."""
    own = os.sched_getaffinity(0)
    spare = spare_cores(device, own)
    if spare:
        os.sched_setaffinity(0, spare)
    try:
        yield bool(spare)
    finally:
        os.sched_setaffinity(0, own)
