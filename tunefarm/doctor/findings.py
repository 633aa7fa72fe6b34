"""What a check of the doctor says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What a finding means to the user: nothing to do, good to know, or something to fix."""

    OK = "ok"
    NOTE = "note"
    FIX = "fix"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found, and what to do about it if there is something."""

    subject: str
    state: State
    told: str
    remedy: str = ""


def gigabytes(count: int) -> str:
    """Bytes as people read them."""
    return f"{count / 1e9:.1f} GB"
