"""Times on a GPU: of our calls, of the libraries' in turn with them, and of copies."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from cases import Sampled, error_of
from peers import Peer
from tunefarm.compiler.runtime.cuda.driver import Device
from tunefarm.compiler.runtime.cuda.kernel import CudaCall
from tunefarm.compiler.runtime.cuda.memory import take
from tunefarm.compiler.runtime.cuda.timing import seconds_cold

REPEATS = 11
QUICK_REPEATS = 3
REPEAT_S = 0.01
MOST_CALLS = 64

Timed = Callable[[int], float]
"""The sum of the seconds of so many calls, the cache emptied before each."""


def raced(
    ours: CudaCall, peers: Sequence[Peer], sampled: Sampled, device: Device
) -> tuple[float, dict[str, Any]]:
    """Our median seconds, taken in turn with those of peers, and what became of each of these:
    seconds, error against float64, and how many times ours goes into theirs."""
    found: dict[str, Any] = {}
    times: dict[str, tuple[Timed, list[float]]] = {"": (ours.cold_seconds, [])}
    for peer in peers:
        try:
            found[peer.name] = {"error": error_of(peer.output(), sampled)}
            peer.cold_seconds(1)
        except Exception as failure:  # whatever a peer does, our time counts
            found[peer.name] = {"failed": " ".join(str(failure).split())[:300]}
            continue
        times[peer.name] = (peer.cold_seconds, [])
    for _ in range(1 if device.properties.emulated else REPEATS):
        for timed, row in times.values():
            row.append(_repeat(timed, device))
    seconds = statistics.median(times.pop("")[1])
    for name, (_, row) in times.items():
        median = statistics.median(row)
        found[name] |= {"seconds": median, "over": median / seconds}
    return seconds, found


def median_seconds(timed: Timed, repeats: int, device: Device) -> float:
    """Seconds of a call, the median of some repeats."""
    return statistics.median(
        _repeat(timed, device) for _ in range(1 if device.properties.emulated else repeats)
    )


def copy_seconds(device: Device, traffic_bytes: float) -> float:
    """The median seconds of the driver's copy that reads and writes so many bytes together, timed
    like a kernel."""
    size = int(traffic_bytes) // 2
    source, target, stream = take(device, size), take(device, size), device.stream()
    stream.fill(source.address, 0, size)

    def copy() -> None:
        stream.copy(target.address, source.address, size)

    return median_seconds(lambda n: seconds_cold(device, stream, copy, n), REPEATS, device)


def _repeat(timed: Timed, device: Device) -> float:
    """Seconds a call of a hundredth of a second of them, after one that is not counted."""
    once = timed(1)
    if device.properties.emulated:
        return once
    number = max(1, min(int(REPEAT_S / max(once, 1e-9)), MOST_CALLS))
    return timed(number) / number
