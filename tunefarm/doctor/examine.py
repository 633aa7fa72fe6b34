"""All checks of the doctor, each of which changes nothing and gives findings."""

from __future__ import annotations

from collections.abc import Iterator

from tunefarm.doctor.farm import (
    examine_certificates,
    examine_database,
    examine_plugins,
    examine_tracker,
)
from tunefarm.doctor.findings import Finding
from tunefarm.doctor.gpus import examine_gpus
from tunefarm.doctor.machine import examine_machine


def examine(database: str, tracker: str = "") -> Iterator[Finding]:
    """All checks, in the order in which one would do them by hand.

    ``database`` is a URL or a path; a ``tracker`` is asked only if it is given.
    """
    yield from examine_machine()
    yield from examine_gpus()
    yield from examine_database(database)
    yield from examine_plugins()
    if tracker:
        yield from examine_tracker(tracker)
        yield from examine_certificates(tracker)
