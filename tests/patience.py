"""Waiting in tests for what other processes do: with a patience that costs nothing while all goes
well, and that no pause of the machine uses up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import psutil
from tunefarm.proto.client import FarmClient

T = TypeVar("T")

PATIENCE_S = 90.0
LOOK_S = 0.02
MAX_TURN_S = 2.0
"""What one turn counts at most: in one that took longer this machine stood still."""


def turns(what: str | Callable[[], object] = "it", seconds: float = PATIENCE_S) -> Iterator[None]:
    """Turns for a loop that ends itself; AssertionError, with ``what`` was waited for, once they
    have taken so many seconds."""
    waited_s = 0.0
    while waited_s <= seconds:
        began = time.monotonic()
        yield
        waited_s += min(time.monotonic() - began, MAX_TURN_S)
    raise AssertionError(f"waited in vain for {what() if callable(what) else what}")


def wait_for(
    condition: Callable[[], T],
    what: str | Callable[[], object] = "it",
    seconds: float = PATIENCE_S,
) -> T:
    """What the condition comes to once it is true; AssertionError where it stays false."""
    for _ in turns(what, seconds):
        if found := condition():
            return found
        time.sleep(LOOK_S)
    raise AssertionError  # turns() ends by raising


def is_alive(process: psutil.Process) -> bool:
    """Whether a process has not ended, whoever is to be told of that."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def collect_all(farm: FarmClient, job: str, count: int) -> list[int]:
    """The numbers of so many trials of a job, as they come in."""
    numbers: list[int] = []
    cursor = 0
    for _ in turns(f"{count} trials"):
        if len(numbers) >= count:
            break
        found = farm.collect(job, cursor, wait_s=0.5)
        cursor = found.cursor
        numbers += [trial.number for trial in found.trials]
    return numbers
