"""Tasks of a model: the distinct fused functions that are worth tuning."""

from __future__ import annotations

from tunefarm.compiler.from_memory import read_from_memory
from tunefarm.compiler.ir import Call, Function, IRModule, post_order
from tunefarm.compiler.ops.base import OPS, Pattern
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.lower_precision import target_of
from tunefarm.compiler.transform.pipeline import optimize
from tunefarm.compiler.workload import Task, Workload, anchor

_TUNABLE = (Pattern.REDUCTION, Pattern.OUT_FUSABLE)
_SMALL_ELEMENTS = 1 << 14


def extract_tasks(module: IRModule, target: Target) -> list[Task]:
    """Distinct tasks of a model in the order of their first use, weighted by occurrence.

    Left out are views, opaque operators, and elementwise or small row kernels with little to gain.
    """
    target = target_of(module, target)
    return tasks_of(optimize(module, target), target)


def tasks_of(module: IRModule, target: Target) -> list[Task]:
    """``extract_tasks`` of a module that ``optimize`` has already been through."""
    counts: dict[Workload, int] = {}
    for function in kernels_of(module):
        if is_tunable(function):
            workload = Workload.from_function(function)
            counts[workload] = counts.get(workload, 0) + 1
    cold = read_from_memory(counts, target)
    return [Task(w, target, count, w.summary, w in cold) for w, count in counts.items()]


def kernels_of(module: IRModule) -> list[Function]:
    """The primitive functions that ``main`` calls, in order, once a call."""
    calls = [n for n in post_order(module.main.body) if isinstance(n, Call)]
    return [c.op for c in calls if isinstance(c.op, Function)]


def is_tunable(function: Function) -> bool:
    """Whether a search over schedules can pay off."""
    main = anchor(function)
    if main is None or function.attrs.get("view"):
        return False
    pattern = OPS[str(main.op)].pattern
    if pattern is Pattern.OUT_FUSABLE:
        return True
    return pattern in _TUNABLE and _elements(function) >= _SMALL_ELEMENTS


def _elements(function: Function) -> int:
    return max((p.type.size for p in function.params), default=0)
