"""Ports of trackers that tests kill: nobody else is given one while its tracker is away."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from contextlib import suppress

FIRST, PER_WORKER = 10_000, 2_000
"""Below those that the system gives to whoever asks for any, from 32,768 on."""


def _ports() -> Iterator[int]:
    """Those of this process among the ones that run tests at the same time, again and again."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first, last = FIRST + number * PER_WORKER, FIRST + (number + 1) * PER_WORKER
    ports = itertools.cycle(range(first, last))
    return itertools.islice(ports, os.getpid() % PER_WORKER, None)


_PORTS = _ports()


def own_port() -> int:
    """A free port of 127.0.0.1."""
    for port in _PORTS:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError  # they never end
