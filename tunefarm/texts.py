"""Numbers as people read them, with units (standard library only)."""

from __future__ import annotations

import time
from collections.abc import Mapping


def times(ratio: float | None) -> str:
    """``1.06x``."""
    return f"{ratio:.2f}x" if ratio else "–"


def latency(seconds: float | None) -> str:
    """A latency, or a dash where it is not known."""
    return "–" if seconds is None else duration(seconds)


def duration(seconds: float) -> str:
    """A latency with three digits and a fitting unit."""
    for scale, unit in ((1e6, "µs"), (1e3, "ms"), (1.0, "s")):
        value = seconds * scale
        if value < 999.5 or unit == "s":
            break
    return f"{_three_digits(value)} {unit}"


def size(count: int) -> str:
    """``64 bytes``, ``1.54 kB``, ``25.6 MB``: bytes with three digits and a fitting unit."""
    if count < 1000:
        return counted(count, "byte")
    for scale, unit in ((1e3, "kB"), (1e6, "MB"), (1e9, "GB")):
        value = count / scale
        if value < 999.5 or unit == "GB":
            break
    return f"{_three_digits(value)} {unit}"


def _three_digits(value: float) -> str:
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f}"


def counted(number: int, noun: str) -> str:
    """``1 trial``, ``2 trials``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def beginning(state: str, under_way: int, is_granted: bool) -> str:
    """What an open job without a trial does, or waits for: ``under_way`` candidates were submitted,
    and ``is_granted`` says whether it ever had a device."""
    if under_way:
        return "building and timing its first candidates"
    if state == "queued":
        return "waiting for a tuner"
    if not is_granted:
        return "waiting for a device"
    return "its tuner gets ready: device, earlier trials, spaces"


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def stamp(at: float) -> str:
    """A time of day in seconds since the epoch as tables show it: local, to the second; nothing
    for 0, which is no time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at else ""


def knobs(config: Mapping[str, object]) -> str:
    """``contraction mb=8 nb=2``: the sketch and its knobs."""
    rest = [f"{name}={value}" for name, value in config.items() if name != "sketch"]
    return " ".join([str(config.get("sketch", "")), *rest]).strip()
