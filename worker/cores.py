"""Cores that are timed on, and who may run there: one that times alone, or many that build.

Locks are files, so they hold between workers of one user; a thread that shares a physical core
with another (SMT) counts as the same core.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def physical_core(core: int) -> int:
    """The first thread of the core's physical core; the core itself where that is unknown."""
    try:
        siblings = Path(_TOPOLOGY.format(core)).read_text()
        return int(siblings.replace("-", ",").split(",")[0])
    except (OSError, ValueError):
        return core


def spare_cores(own: Sequence[int], timed: Sequence[int]) -> tuple[int, ...]:
    """Those of a process's own cores that share no physical core with the timed ones."""
    taken = set(map(physical_core, timed))
    return tuple(core for core in own if physical_core(core) not in taken)


class CoreLock:
    """The right to run on some cores."""

    def __init__(self, cores: Sequence[int]) -> None:
        folder = Path(tempfile.gettempdir()) / f"tunefarm-cores-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        self._paths = [folder / str(core) for core in sorted(set(map(physical_core, cores)))]

    @contextlib.contextmanager
    def held(self, *, alone: bool) -> Iterator[None]:
        """Hold all the cores, alone or beside others that need not be alone; waits until it may.

        Who waits to be alone keeps newcomers out (they pass the gate one after the other), and all
        take cores in the same order: nobody waits for ever.
        """
        kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        with contextlib.ExitStack() as stack:
            for path in self._paths:
                with path.with_suffix(".gate").open("w") as gate:
                    fcntl.flock(gate, kind)
                    fcntl.flock(stack.enter_context(path.open("w")), kind)
            yield
