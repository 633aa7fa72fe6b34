"""What keeps a tuning from starting or makes it wait, found before anything is started."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.space import plugins_of
from tunefarm.db.earlier import Counts, Machine, count_earlier, fitting, machines_online, runs
from tunefarm.db.records import TRIALS_A_TASK, Device, Job, TaskKey, asked_protocol, protocol_of
from tunefarm.texts import counted

if TYPE_CHECKING:
    from tunefarm.compiler.target import Target
    from tunefarm.compiler.workload import Task
    from tunefarm.proto.client import FarmClient


def check_search(name: str, seed: int) -> None:
    """TunefarmError if there is no search strategy of this name, or this is no seed."""
    from tunefarm.tuner.search import STRATEGIES

    if name not in STRATEGIES:
        raise TunefarmError(f"no search strategy {name!r}; strategies: {', '.join(STRATEGIES)}")
    if not isinstance(seed, int) or seed < 0:
        raise TunefarmError(f"seed is {seed!r}, expected a whole number from 0")


def check_device(selector: str) -> None:
    """TunefarmError if a text selects no devices."""
    from tunefarm.tracker.selector import parse_selector

    try:
        parse_selector(selector)
    except ValueError as error:
        raise TunefarmError(str(error)) from None


def check_budget(trials: int, seconds: float | None) -> None:
    """TunefarmError if nothing can be tuned with this budget."""
    if not isinstance(trials, int) or trials < 1:
        raise TunefarmError(f"trials is {trials!r}, expected a whole number from 1")
    if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
        raise TunefarmError(f"seconds is {seconds!r}, expected a number above 0, or None")


def raised_budget(trials: int, tasks: Sequence[Task]) -> int:
    """The budget, or a trial a task if it is less, which is a warning: each default is timed in
    any case, and so nothing would be searched."""
    if trials >= len(tasks):
        return trials
    are = "is" if trials == 1 else "are"
    warnings.warn(
        f"{counted(trials, 'trial')} {are} fewer than the {len(tasks)} tasks: the default of each "
        f"is timed, and nothing is searched; {TRIALS_A_TASK * len(tasks)} trials would search "
        f"({TRIALS_A_TASK} a task)",
        stacklevel=3,
    )
    return len(tasks)


def check_tasks(tasks: Sequence[Task]) -> None:
    """TunefarmError if there are none, or if they are something else."""
    from tunefarm.compiler.workload import Task

    if not isinstance(tasks, Sequence) or not all(isinstance(t, Task) for t in tasks):
        kind = type(tasks).__name__
        raise TunefarmError(f"tune takes a list of tasks, as extract_tasks finds them, not {kind}")
    if not tasks:
        raise TunefarmError("there are no tasks to tune")


def check_host(target: Target) -> None:
    """TargetError, in one sentence, if this machine cannot measure code of the target."""
    from tunefarm.worker.device import check_target

    check_target(target)


def earlier_trials(database: str, tasks: Sequence[Task]) -> int:
    """Trials that count against a budget on this machine, read without a farm.

    0 if the database is not there or cannot be read as it is: whoever writes it will say why.
    """
    from tunefarm.db.errors import StoreError
    from tunefarm.db.store import Store

    try:
        with Store.open(database, readonly=True) as store:
            return _count(store, tasks, this_machine(tasks[0].target))
    except StoreError:
        return 0


def this_machine(target: Target) -> Machine:
    """What an embedded farm will measure the target with; any model for plug-in kinds."""
    from tunefarm.compiler.host import model_of
    from tunefarm.compiler.version import compiler_version

    model = model_of(target) if target.kind in ("llvm", "cuda") else ""
    return (compiler_version(target.kind), model)


def count_trials(farm: FarmClient, tasks: Sequence[Task], machine: Machine | None = None) -> int:
    """Trials of these tasks that count against a budget on the farm: candidates measured by the
    compiler and on the device model of ``machine``, by default those of the devices online.

    With devices of several models the fewest, as any of them may get the job; without a device
    those of all.
    """
    machines = {machine} if machine else machines_online(farm.devices(), tasks[0].target.text)
    return min(_count(farm, tasks, machine) for machine in machines)


def _count(counts: Counts, tasks: Sequence[Task], machine: Machine) -> int:
    found = {
        key: (
            plugins_of(task.workload, task.target),
            protocol_of(key.target, asked_protocol(task.from_memory)),
        )
        for key, task in zip(keys_of(tasks), tasks, strict=True)
    }
    return count_earlier(counts, found, machine)


def tell_waiting(devices: Iterable[Device], target: Target, job: Job | None = None) -> None:
    """Warn if no device of a farm serves the target, or the job, now: it waits for one."""
    known = list(devices)
    if fitting(known, target.text):
        if job is not None and job.unmet:
            warnings.warn(f"the job waits: {job.unmet}", stacklevel=2)
        return

    away = sum(runs(d.target, target.text) for d in known)
    online = sorted({d.target for d in known if d.state != "offline"})
    if away:
        why = f"the {away} that the farm has {'is' if away == 1 else 'are'} offline"
    elif online:
        why = f"the farm has {', '.join(online)}"
    else:
        why = "the farm has no device"
    other = "; to tune for what it has, give that as the target" if online and not away else ""
    warnings.warn(
        f"no device serves {target} now ({why}); the job waits for `tunefarm worker` on a "
        f"machine that does{other}",
        stacklevel=2,
    )


def keys_of(tasks: Iterable[Task]) -> list[TaskKey]:
    """The keys that the records of tasks are stored under."""
    return [TaskKey(t.workload.key, t.target.text) for t in tasks]
