"""The measured facts of a device, kept for a day in the user's cache folder."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

_MAX_AGE_S = 86_400.0
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Calibration:
    """Peaks (FLOP/s, bytes/s), the A/A noise floor (a fraction), and the seconds of the reference
    loop when the device is well."""

    peaks: Mapping[str, float]
    noise: float
    reference_s: float


def calibration(device: str, measure: Callable[[], Calibration]) -> Calibration:
    """What is known of the device from the last day, or measured now."""
    path = cache_folder() / f"{device}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(path.read_text())
        if kept.pop("version") == _VERSION and 0 <= time.time() - kept.pop("at") < _MAX_AGE_S:
            return Calibration(**kept)
    measured = measure()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}.tmp")
        content = {"version": _VERSION, "at": time.time(), **asdict(measured)}
        draft.write_text(json.dumps(content))
        draft.replace(path)
    return measured


def cache_folder() -> Path:
    """Where calibrations are kept: ``devices`` in the user's cache folder of tunefarm."""
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("tunefarm")) / "devices"
