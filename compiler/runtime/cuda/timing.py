"""How long work takes on a device, by its own clock."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from tunefarm.compiler.runtime.cuda.driver import Device, Stream
from tunefarm.compiler.runtime.cuda.memory import take

_AT_ONCE = 32  # timed calls between two waits
_HOST_SECONDS = 60e-6  # that the host takes to ask for a call between two events, with room
_FILL_BYTES_PER_SECOND = 4e12  # that no device's memory exceeds by much


def seconds_together(device: Device, stream: Stream, call: Callable[[], None], count: int) -> float:
    """Seconds of ``count`` calls one after the other.

    One before them keeps the device busy while the host asks for them.
    """
    call()
    before, after = device.event(), device.event()
    stream.record(before)
    for _ in range(count):
        call()
    stream.record(after)
    return after.seconds_since(before)


def seconds_cold(device: Device, stream: Stream, call: Callable[[], None], count: int) -> float:
    """The sum of the seconds of ``count`` calls that each find nothing in the device's cache.

    Memory of twice the cache is written before each, and before the first so often that the host
    is ahead of the device until the last: the device would wait between the two events of a call.
    """
    total = 0.0
    cold = take(device, flush_bytes(device))
    for start in range(0, count, _AT_ONCE):
        events = []
        now = min(_AT_ONCE, count - start)
        for _ in range(fills_ahead(device, now) - now):
            stream.fill(cold.address, 0, cold.size_bytes)
        for _ in range(now):
            before, after = device.event(), device.event()
            stream.fill(cold.address, 0, cold.size_bytes)
            stream.record(before)
            call()
            stream.record(after)
            events.append((before, after))
        total += sum(after.seconds_since(before) for before, after in events)
    return total


def seconds_each(device: Device, stream: Stream, calls: list[Callable[[], None]]) -> list[float]:
    """The seconds of each call of a row, from the end of the one before to its own.

    The device writes memory first, as long as the host needs to ask for them all.
    """
    filled = take(device, flush_bytes(device))
    for _ in range(fills_ahead(device, len(calls)) + 1):
        stream.fill(filled.address, 0, filled.size_bytes)
    events = [device.event() for _ in range(len(calls) + 1)]
    stream.record(events[0])
    for call, event in zip(calls, events[1:], strict=True):
        call()
        stream.record(event)
    return [after.seconds_since(before) for before, after in pairwise(events)]


def fills_ahead(device: Device, calls: int) -> int:
    """How often the device writes that memory while the host asks for so many calls; an emulator,
    which does at once what it is asked, needs none."""
    if device.properties.emulated:
        return 0
    seconds = flush_bytes(device) / _FILL_BYTES_PER_SECOND
    return int(calls * _HOST_SECONDS / seconds) + 1


def flush_bytes(device: Device) -> int:
    """Bytes whose writing leaves nothing else in the device's cache."""
    return max(2 * device.properties.l2_bytes, 1 << 20)
