"""Which tasks of a model find their weights in memory: their defaults are chosen for that, and
their trials timed so.

A run of a model whose weights exceed the third level of cache has evicted a kernel's weights when
its turn comes again. The same kernel in a small model finds them in the caches, so tasks say which
of the two is theirs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from math import prod
from typing import TYPE_CHECKING

from tunefarm.compiler.space import config_space, schedule_workload
from tunefarm.compiler.target import Target, dtype_bytes

if TYPE_CHECKING:
    from tunefarm.compiler.workload import Task, Workload

LARGE_BYTES = 256 << 10  # of weights of a task, less come soon enough from anywhere
MOST_PACKED = 4  # times the weights of a model that kernels pack them into: 36 products for 9 taps


def weight_bytes(workload: Workload) -> int:
    """Bytes of the constants of a workload, as the model has them."""
    types = [workload.function.params[index].type for index in workload.constants]
    return sum(kind.size * dtype_bytes(kind.dtype) for kind in types)


@functools.lru_cache(maxsize=1024)
def packed_bytes(workload: Workload, target: Target) -> int:
    """Bytes of the weights of the kernel that is the default where caches keep them: by the methods
    of Winograd and Strassen several times those of the model."""
    if weight_bytes(workload) < LARGE_BYTES:
        return weight_bytes(workload)
    program = schedule_workload(workload, target, config_space(workload, target).default)
    packed = [program.params[index] for index in workload.constants]
    return sum(prod(weights.shape) * dtype_bytes(weights.dtype) for weights in packed)


def weights_exceed(counts: Mapping[Workload, int], target: Target) -> bool:
    """Whether the weights of a model, whose tasks are given with how often a run calls each, do not
    stay in the third cache of a processor, plain or as its default kernels have them; of other
    devices nothing is known."""
    if target.kind != "llvm":
        return False
    plain = sum(count * weight_bytes(workload) for workload, count in counts.items())
    if plain > target.kept_bytes or MOST_PACKED * plain <= target.kept_bytes:
        return plain > target.kept_bytes
    packed = sum(count * packed_bytes(workload, target) for workload, count in counts.items())
    return packed > target.kept_bytes


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
