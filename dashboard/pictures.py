"""Drawings that need no script: geometry for the templates, in units of their view boxes."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tunefarm.dashboard import formats
from tunefarm.dashboard.queries.devices import Held

COLOURS = 8
LANE = 1000.0
_LEAST = 1.5
"""So wide is a lease at the least, to be seen."""


@dataclass(frozen=True, slots=True)
class Span:
    """A lease on its device's lane, from ``x`` on, ``width`` wide."""

    x: float
    width: float
    colour: int
    job: str
    title: str


@dataclass(frozen=True, slots=True)
class Tick:
    share: float
    label: str


def lanes(held: Sequence[Held], window_s: float, now: float) -> dict[str, tuple[Span, ...]]:
    """The leases of each device on a lane of ``LANE`` that shows the last ``window_s`` seconds."""
    found: dict[str, list[Span]] = {}
    start = now - window_s
    for one in held:
        end = now if one.ended_at is None else one.ended_at
        x = max(0.0, (one.granted_at - start) / window_s * LANE)
        width = max(_LEAST, (end - start) / window_s * LANE - x)
        length = formats.span(end - one.granted_at)
        why = f", {one.ended_reason}" if one.ended_reason else ""
        holder = f"job {one.job[:8]}" if one.job else one.client
        title = f"{holder}: {formats.stamp(one.granted_at)}, {length}{why}"
        colour = zlib.crc32((one.job or one.client).encode()) % COLOURS + 1
        found.setdefault(one.device, []).append(Span(x, width, colour, one.job, title))
    return {device: tuple(spans) for device, spans in found.items()}


def ticks(window_s: float, now: float, count: int = 5) -> tuple[Tick, ...]:
    """Times of day along a lane, evenly from its start to now."""
    form = "%H:%M" if window_s <= 2 * 86400 else "%m-%d"
    shares = [i / (count - 1) for i in range(count)]
    times = [time.gmtime(now - window_s * (1 - share)) for share in shares]
    return tuple(
        Tick(share, "now" if share == 1 else time.strftime(form, at))
        for share, at in zip(shares, times, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Axis:
    """A knob of parallel coordinates at ``x``, with its values from the top down."""

    name: str
    x: float
    values: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Axes, and a polyline for each config, the best first."""

    width: float
    height: float
    axes: tuple[Axis, ...]
    lines: tuple[str, ...]


def parallel_coordinates(
    configs: Sequence[Mapping[str, object]], height: float = 220.0, step: float = 130.0
) -> Coordinates | None:
    """Each config as a line over the knobs that differ between them; None if none does."""
    names = sorted({name for config in configs for name in config})
    choices = {name: _ordered({config.get(name) for config in configs}) for name in names}
    names = [name for name in names if len(choices[name]) > 1]
    if not names:
        return None
    places: dict[str, dict[object, float]] = {}
    axes = []
    for i, name in enumerate(names):
        gap = (height - 60) / (len(choices[name]) - 1)
        places[name] = {value: 38 + gap * k for k, value in enumerate(choices[name])}
        labels = [(y, "–" if value is None else str(value)) for value, y in places[name].items()]
        axes.append(Axis(name, 40 + step * i, tuple(_thinned(labels))))
    lines = [
        " ".join(f"{axis.x:.0f},{places[axis.name][config.get(axis.name)]:.1f}" for axis in axes)
        for config in configs
    ]
    return Coordinates(80 + step * (len(names) - 1), height, tuple(axes), tuple(lines))


def _ordered(values: set[object]) -> list[object]:
    """Numbers by size, largest first, then words; what is missing comes last."""

    def key(value: object) -> tuple[int, float, str]:
        if isinstance(value, int | float):
            return (0, -float(value), "")
        return (2, 0.0, "") if value is None else (1, 0.0, str(value))

    return sorted(values, key=key)


def _thinned(labels: list[tuple[float, str]], most: int = 12) -> list[tuple[float, str]]:
    step = -(-len(labels) // most)
    return labels[::step]
