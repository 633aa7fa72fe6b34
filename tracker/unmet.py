"""Why a job gets no device: pure functions of the job and the devices that the farm knows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from tunefarm.db.earlier import runs
from tunefarm.db.records import (
    HEALTH,
    PLUGIN_TAG,
    UNREGISTERED,
    Cordon,
    Device,
    DeviceRequest,
    Job,
)
from tunefarm.tracker.allocate import cordon_of, serves
from tunefarm.tracker.selector import Condition, parse_selector, tags_of

_LISTED = 4


def request_of(job: Job) -> DeviceRequest:
    """What every lease of the job is asked for."""
    return DeviceRequest(
        job.target,
        job.options.get("device_model", ""),
        priority=job.priority,
        compiler_version=job.compiler_version,
        selector=job.selector,
    )


def why_unmet(job: Job, devices: Iterable[Device], cordons: Sequence[Cordon]) -> str:
    """Why no registered device may measure the job, online or not, in one sentence; empty if one
    may."""
    request = request_of(job)
    known = list(devices)
    if not known:
        return UNREGISTERED
    able = [d for d in known if runs(d.target, request.target)]
    if not able:
        return (
            f"no registered device runs {request.target}; there are "
            f"{_listed(d.target for d in known)}"
        )
    serving = [d for d in able if serves(d, request)]
    if not serving:
        return _why_unserved(able, request)
    held = [(d, cordon_of(d, cordons)) for d in serving]
    if all(cordon is not None for _, cordon in held):
        names = _listed(f"{d.id} ({c.reason or c.actor})" for d, c in held if c is not None)
        return f"every device that may measure it is {_states(held)}: {names}"
    return ""


def why_untuned(job: Job, tuners: Collection[Collection[str]]) -> str:
    """Why none of the tuners that ask for jobs, with these plug-ins, takes the job, in one
    sentence; empty if one does, or if none asks."""
    needed = set(job.plugins)
    if not tuners or any(needed <= set(plugins) for plugins in tuners):
        return ""
    return (
        f"no tuner that asks for jobs has {_listed(needed)}, which its tasks are made with; "
        "install that where `tunefarm tuner` runs, and start it again"
    )


def _states(held: Iterable[tuple[Device, Cordon | None]]) -> str:
    ill = {cordon.scope == HEALTH for _, cordon in held if cordon is not None}
    if len(ill) == 2:
        return "cordoned or quarantined"
    return "quarantined" if True in ill else "cordoned"


def _why_unserved(able: Sequence[Device], request: DeviceRequest) -> str:
    count = "the registered device" if len(able) == 1 else f"any of the {len(able)} devices"
    count = f"{count} that {'runs' if len(able) == 1 else 'run'} {request.target}"
    selector = parse_selector(request.selector)
    selected = [d for d in able if selector.selects(d)]
    if not selected:
        for condition in selector.conditions:
            if not any(condition.holds(tags_of(d)) for d in able):
                if condition.name.startswith(PLUGIN_TAG):
                    return _why_unplugged(condition, able)
                return f"{condition} does not hold for {count}: {_values(condition, able)}"
        return f"not all of {selector} hold together for {count}"
    if request.device_model and all(d.model != request.device_model for d in selected):
        return (
            f"no registered device of model {request.device_model} may measure it; there are "
            f"{_listed(d.model for d in selected)}"
        )
    return (
        f"its trials are made by compiler {request.compiler_version}, the devices that may measure "
        f"it have {_listed(d.compiler_version for d in selected)}"
    )


def _why_unplugged(condition: Condition, able: Sequence[Device]) -> str:
    """Which plug-in is missing, and what the workers have of it."""
    needed = f"plug-in {condition.name.removeprefix(PLUGIN_TAG)} {condition.values[0]}"
    versions = [v for d in able if (v := tags_of(d).get(condition.name))]
    there = f"have {_listed(versions)}" if versions else "do not have it"
    return (
        f"its tasks are made with {needed}, and the workers that run its target {there}; install "
        "the same there, and start them again"
    )


def _values(condition: Condition, devices: Sequence[Device]) -> str:
    """What the devices have instead: ``arch is sm_80``, or which tags there are."""
    tags = [tags_of(d) for d in devices]
    values = [t[condition.name] for t in tags if condition.name in t]
    if values:
        return f"{condition.name} is {_listed(values)}"
    return f"they have no tag {condition.name}, but {_listed((n for t in tags for n in t), 20)}"


def _listed(names: Iterable[str], most: int = _LISTED) -> str:
    """The different names in order; of many the first."""
    different = sorted(set(names))
    more = f" and {len(different) - most} more" if len(different) > most else ""
    return ", ".join(different[:most]) + more
