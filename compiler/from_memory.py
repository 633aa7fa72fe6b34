"""Which tasks of a model find their weights in memory, and are timed so.

A run of a model whose weights exceed the third level of cache has evicted a kernel's weights when
its turn comes again. The same kernel in a small model finds them in the caches, so tasks say which
of the two is to be timed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tunefarm.compiler.target import Target, dtype_bytes

if TYPE_CHECKING:
    from tunefarm.compiler.workload import Task, Workload

L3_SHARE = 3 / 4  # of the third cache, that a model's weights may fill and stay
LARGE_BYTES = 256 << 10  # of weights of a task, less come soon enough from anywhere


def weight_bytes(workload: Workload) -> int:
    """Bytes of the constants of a workload, as the model has them: what kernels pack them into may
    be several times that."""
    types = [workload.function.params[index].type for index in workload.constants]
    return sum(kind.size * dtype_bytes(kind.dtype) for kind in types)


def weights_exceed(counts: Mapping[Workload, int], target: Target) -> bool:
    """Whether the weights of a model, whose tasks are given with how often a run calls each, do not
    stay in the third cache of a processor; of other devices nothing is known."""
    if target.kind != "llvm":
        return False
    total = sum(count * weight_bytes(workload) for workload, count in counts.items())
    return total > L3_SHARE * target.l3_bytes


def read_from_memory(counts: Mapping[Workload, int], target: Target) -> frozenset[Workload]:
    """The tasks of a model whose weights come from memory."""
    if not weights_exceed(counts, target):
        return frozenset()
    return frozenset(workload for workload in counts if weight_bytes(workload) >= LARGE_BYTES)


def counts_of(tasks: Iterable[Task]) -> dict[Workload, int]:
    """How often a run of the model calls each of its tasks."""
    return {task.workload: task.weight for task in tasks}


def timing_text(tasks: Iterable[Task]) -> str:
    """How tasks are timed, if not all as usual: ``12 of 17 tasks are timed with weights …``."""
    known = list(tasks)
    count = sum(task.from_memory for task in known)
    if not count:
        return ""
    are = "is" if count == 1 else "are"
    return (
        f"{count} of {len(known)} tasks {are} timed with weights from memory: the model's do not "
        "stay in the third cache"
    )
