"""Numbers as people read them, with units; a dash where there is none."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from itertools import pairwise

NONE = "–"
_THIN = "\u202f"
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_AGES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def latency(seconds: float | None) -> str:
    """``1.23 ms``"""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    for unit, name in _TIMES:
        if seconds >= unit:
            return f"{_digits(seconds / unit)}{_THIN}{name}"
    return f"{_digits(seconds / 1e-9)}{_THIN}ns" if seconds else f"0{_THIN}s"


def span(seconds: float | None) -> str:
    """``2 h 5 min``: two units at most."""
    if seconds is None:
        return NONE
    if seconds < 60:
        return f"{seconds:.0f}{_THIN}s" if seconds >= 10 else f"{_digits(seconds)}{_THIN}s"
    for (unit, name), (finer, finer_name) in pairwise(_AGES):
        if seconds >= unit:
            rest = int(seconds % unit // finer)
            more = f" {rest}{_THIN}{finer_name}" if rest else ""
            return f"{int(seconds // unit)}{_THIN}{name}{more}"
    return NONE


def count(number: float | None) -> str:
    """``1 234 567``"""
    return NONE if number is None else f"{number:,.0f}".replace(",", _THIN)


def counted(number: int, noun: str) -> str:
    """``1 trial``, ``1 200 trials``"""
    return f"{count(number)} {noun}" + ("" if number == 1 else "s")


def ratio(value: float | None) -> str:
    """``1.83 ×``"""
    return NONE if value is None or not math.isfinite(value) else f"{_digits(value)}{_THIN}×"


def percent(share: float | None) -> str:
    """``12 %`` of a share of 1."""
    if share is None or not math.isfinite(share):
        return NONE
    if 0 < share < 0.0005:
        return f"<{_THIN}0.1{_THIN}%"
    places = 0 if abs(share) >= 0.0995 or share == 0 else 1
    return f"{100 * share:.{places}f}{_THIN}%"


def scaled(value: float | None, unit: str) -> str:
    """``3.21 GFLOP/s``"""
    if value is None or not math.isfinite(value):
        return NONE
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor:
            return f"{_digits(value / factor)}{_THIN}{prefix}{unit}"
    return f"{_digits(value)}{_THIN}{unit}"


def age(at: float, now: float | None = None) -> str:
    """``5 min ago``, of a time in seconds since the epoch."""
    passed = max(0.0, (time.time() if now is None else now) - at)
    for unit, name in _AGES:
        if passed >= unit:
            return f"{int(passed // unit)}{_THIN}{name} ago"
    return "now"


def stamp(at: float) -> str:
    """``2026-01-31 12:00:00 UTC``"""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def iso(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def knobs(config: Mapping[str, object]) -> str:
    """``contraction mb=8 nb=2``: the sketch and its knobs."""
    rest = [f"{name}={value}" for name, value in sorted(config.items()) if name != "sketch"]
    return " ".join([str(config.get("sketch", "")), *rest]).strip()


def words(text: str) -> str:
    """``build_error`` as ``build error``"""
    return text.replace("_", " ")


def _digits(value: float) -> str:
    """Three digits that mean something."""
    size = abs(value)
    return f"{value:.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"
