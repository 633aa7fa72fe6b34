"""What a worker offers: open devices of any kind, and the plain facts of this machine."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tunefarm.compiler.errors import TargetError
from tunefarm.db.records import Device, Trial, TrialRequest
from tunefarm.worker.pulse import MAX_DRIFT

if TYPE_CHECKING:
    from tunefarm.compiler.target import Target

Report = Callable[[TrialRequest, Trial], None]
Dropped = Callable[[TrialRequest], bool]


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """How a device is opened. ``target`` is canonical; ``build_processes`` 0 means one a core of
    the worker; ``memory_bytes`` is what one child may have resident; ``name`` distinguishes
    several devices of one machine: of GPUs it is the ordinal. ``max_drift`` is how much slower the
    reference loop may get (0: as much as it likes)."""

    target: str
    build_processes: int = 0
    memory_bytes: int = 4 << 30
    name: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    max_drift: float = MAX_DRIFT


class OpenDevice(Protocol):
    """A device ready to measure. One ``measure``, ``check`` or ``tend`` at a time; ``interrupt``
    from any thread."""

    @property
    def device(self) -> Device:
        """The device as it is now: ``health.trouble`` is set while it does not measure."""

    def measure(self, requests: Sequence[TrialRequest], report: Report, dropped: Dropped) -> None:
        """Measure each request and report its trial; skip those that ``dropped`` names, and all
        that are left when the device gets into trouble."""

    def check(self, number: int) -> None:
        """Check the device's answers, peaks and noise now; ``number`` names this check."""

    def tend(self) -> None:
        """Called every second while nothing is measured: a check that is due, a look at whether a
        device in trouble is well again."""

    def interrupt(self) -> None:
        """Stop what runs on the device now; ``measure`` goes on with what is not dropped."""

    def close(self) -> None: ...


def open_device(options: DeviceOptions) -> OpenDevice:
    """Open the device that a target string describes; TargetError if none serves it."""
    from tunefarm.compiler.target import Target
    from tunefarm.worker.backend import load_plugin

    target = Target(options.target)
    check_target(target)
    return load_plugin(target.kind).open_device(options)


def check_target(target: Target) -> None:
    """TargetError, in one sentence, if this machine cannot run code of the target: it is of another
    kind, lacks instructions or cores, or has no plug-in of the kind. Opens nothing."""
    from tunefarm.worker.backend import load_plugin

    load_plugin(target.kind).require(target)
    if target.kind != "llvm":
        return
    from tunefarm.compiler.codegen.llvm_compile import features
    from tunefarm.compiler.runtime.cpu import (
        check_machine,
        missing_features,
        required_features,
    )

    check_machine(target.isa.name, f"code for {target}")
    missing = missing_features(required_features(target, features(target)))
    if missing:
        raise TargetError(
            f"target {target} needs a CPU with {', '.join(missing)}, which this machine lacks; "
            "measure on a machine that has it, or take this machine's own target"
        )
    check_cores(target)


def check_cores(target: Target) -> None:
    """TargetError if the target asks for more cores than this process may use."""
    cores = len(own_cores())
    if target.num_cores > cores:
        raise TargetError(
            f"target {target} asks for {target.num_cores} cores and this machine has {cores} for "
            "it; lower -num-cores"
        )


def machine_id() -> str:
    """An identity of this machine that outlives processes and boots."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text:
            return text
    return platform.node()


def device_id(kind: str, *parts: str) -> str:
    """A stable identity of a device of this machine, made of what tells it from its siblings."""
    content = "\n".join([machine_id(), kind, *parts])
    return f"{kind}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def cpu_model() -> str:
    """The processor's own name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def own_cores() -> tuple[int, ...]:
    """The cores that this process may use."""
    return tuple(sorted(os.sched_getaffinity(0)))
