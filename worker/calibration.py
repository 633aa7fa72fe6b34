"""What the last check of a device found, kept for a day in the user's cache folder."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

MAX_AGE_S = 86_400.0
_VERSION = 2


@dataclass(frozen=True, slots=True)
class Calibration:
    """Peaks (FLOP/s, bytes/s), A/A noise floors as fractions (of a final, and of two trials), and
    the seconds of the reference loop; ``wrong`` is what the fixed kernels got wrong, empty if they
    are right. Found at ``at``, in seconds since the epoch."""

    peaks: Mapping[str, float]
    noise: float
    trial_noise: float
    reference_s: float
    at: float
    wrong: str = ""

    @property
    def is_old(self) -> bool:
        """Whether the device should be checked again."""
        return not 0 <= time.time() - self.at < MAX_AGE_S


def calibration(device: str, measure: Callable[[], Calibration]) -> Calibration:
    """What a check of the last day found, or one made now."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(_path(device).read_text())
        if kept.pop("version") == _VERSION and not (known := Calibration(**kept)).is_old:
            return known
    return keep(device, measure())


def keep(device: str, found: Calibration) -> Calibration:
    """Keep what a check found for the device's next worker, unless something was wrong."""
    path = _path(device)
    if found.wrong:
        path.unlink(missing_ok=True)
        return found
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}.tmp")
        draft.write_text(json.dumps({"version": _VERSION, **asdict(found)}))
        draft.replace(path)
    return found


def cache_folder() -> Path:
    """Where calibrations are kept: ``devices`` in the user's cache folder of tunefarm."""
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("tunefarm")) / "devices"


def _path(device: str) -> Path:
    return cache_folder() / f"{device}.json"
