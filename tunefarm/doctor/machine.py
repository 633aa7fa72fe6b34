"""The doctor's look at the machine: its software, processor, what else it does, and its room."""

from __future__ import annotations

import importlib.util
import math
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tunefarm.compiler import settings
from tunefarm.compiler.target import Target
from tunefarm.doctor.findings import Finding, State, gigabytes

LOOK_S = 1.0
"""How long the machine is watched for what else it does."""
MAX_NOISE = 0.03
MIN_FREE_BYTES = 1 << 30
_EXCHANGES, _EXCHANGE_PAUSE_S = 5, 0.1  # a host moves virtual processors within seconds
_CPU = "/sys/devices/system/cpu"
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_EXTRAS = {
    "torch": ("torch", "PyTorch models"),
    "postgres": ("psycopg", "PostgreSQL"),
    "dashboard": ("fastapi", "the dashboard"),
    "tls": ("cryptography", "making certificates"),
    "plot": ("matplotlib", "pictures of rooflines"),
    "frames": ("pandas", "frames of trials"),
}


def examine_machine() -> Iterator[Finding]:
    """The checks of this machine, GPUs aside."""
    for subject, check in _CHECKS.items():
        try:
            yield from check()
        except OSError as error:  # as where there is no /proc
            told = f"cannot be looked at here: {error.strerror or error} ({error.filename})"
            yield Finding(subject, State.NOTE, told)


def _software() -> Iterator[Finding]:
    import tunefarm
    from tunefarm.compiler.codegen.llvm_compile import llvm_version

    llvm = llvm_version().partition("/")[0]
    told = f"tunefarm {tunefarm.__version__}, Python {platform.python_version()}, LLVM {llvm}"
    yield Finding("software", State.OK, told)
    lacking = [
        f"{use} (pip install 'tunefarm[{extra}]')"
        for extra, (package, use) in _EXTRAS.items()
        if importlib.util.find_spec(package) is None
    ]
    if lacking:
        yield Finding("extras", State.NOTE, f"not installed: {', '.join(lacking)}")


def _processor() -> Iterator[Finding]:
    target = Target.host()
    told = f"{_model()}: {target}, vectors of {target.vector_bytes} bytes"
    if platform.machine() == "x86_64" and target.vector_bytes < 32:
        remedy = (
            "tuned code needs AVX2 or AVX-512; in a virtual machine pass the host's CPU through"
        )
        yield Finding("processor", State.FIX, told, remedy)
    else:
        yield Finding("processor", State.OK, told)


def _model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _cores() -> Iterator[Finding]:
    from tunefarm.worker.cores import physical_core
    from tunefarm.worker.device import own_cores

    own = own_cores()
    physical = len(set(map(physical_core, own)))
    told = f"{len(own)} of {os.cpu_count()} may be used"
    quota = _quota()
    if quota is not None and quota < len(own):
        remedy = (
            "times stop and start with a quota; give whole cores instead "
            f"(docker run --cpuset-cpus 0-{max(int(quota), 1) - 1}, or a CPU manager)"
        )
        yield Finding("cores", State.FIX, f"{told}, for {quota:g} cores' time", remedy)
    elif physical < len(own):
        told += f", two threads on each of {physical} physical cores"
        remedy = f"measure on one thread of each: --target '{Target.host(physical)}'"
        yield Finding("cores", State.NOTE, told, remedy)
    else:
        yield _distance(own, told)


def _distance(own: Sequence[int], told: str) -> Finding:
    """Whether cores that work on one kernel share a cache, now and a little later."""
    from tunefarm.texts import duration
    from tunefarm.worker.exchange import exchange_s, far_s

    times = []
    for _ in range(_EXCHANGES):
        times.append(exchange_s(own))
        time.sleep(_EXCHANGE_PAUSE_S)
    answered = [seconds for seconds in times if seconds < math.inf]
    least, most = min(answered, default=0.0), max(answered, default=0.0)
    if most < far_s():
        return Finding("cores", State.OK, told)
    span = duration(most) if least >= far_s() else f"{duration(least)} to {duration(most)}"
    told += (
        f", some without a cache in common: a line goes there and back in {span}, so kernels on "
        "all of them gain less"
    )
    remedy = "take cores of one socket and cache where you can (taskset, a virtual machine's pins)"
    return Finding("cores", State.NOTE, told, remedy)


def _quota() -> float | None:
    """Cores' worth of time that the control group may take; None if there is no limit."""
    try:
        quota, period = _QUOTA.read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _clock() -> Iterator[Finding]:
    from tunefarm.worker.device import own_cores

    governors = {_line(f"{_CPU}/cpu{core}/cpufreq/scaling_governor") for core in own_cores()}
    governors.discard("")
    if not governors:
        yield Finding("clock", State.NOTE, "its governor cannot be seen (a virtual machine)")
    elif governors == {"performance"}:
        yield Finding("clock", State.OK, "governor performance")
    else:
        remedy = "a clock that moves makes times differ: sudo cpupower frequency-set -g performance"
        yield Finding("clock", State.FIX, f"governor {', '.join(sorted(governors))}", remedy)


def _line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _neighbours() -> Iterator[Finding]:
    from tunefarm.peers.turns import Neighbours

    others = Neighbours()
    busy = _busiest(LOOK_S)
    told = f"other processes take {100 * others.share():.0f}% of the machine"
    if others.were_busy:
        remedy = f"stop them while tuning{': ' if busy else ''}{', '.join(busy)}"
        yield Finding("load", State.FIX, told, remedy)
    else:
        yield Finding("load", State.OK, told)


def _busiest(seconds: float) -> list[str]:
    """The processes that took most of the given time, if they took a tenth of a core."""
    import psutil

    def spent() -> dict[int, tuple[float, str]]:
        found = {}
        for process in psutil.process_iter(["pid", "name", "cpu_times"]):
            times = process.info["cpu_times"]
            if times is not None and process.info["pid"] != os.getpid():
                found[process.info["pid"]] = (times.user + times.system, process.info["name"])
        return found

    before = spent()
    time.sleep(seconds)
    shares = [
        ((after - before[pid][0]) / seconds, pid, name)
        for pid, (after, name) in spent().items()
        if pid in before
    ]
    top = sorted(shares, reverse=True)[:3]
    return [
        f"{name} ({pid}, {100 * share:.0f}% of a core)" for share, pid, name in top if share > 0.1
    ]


def _noise() -> Iterator[Finding]:
    from tunefarm.worker.peaks import noise_floor

    noise = noise_floor(Target.host().mcpu)
    told = f"medians of equal work differ by up to {100 * noise:.1f}%"
    if noise > MAX_NOISE:
        remedy = (
            "small gains will not be told from chance; see clock and load, or take another machine"
        )
        yield Finding("noise", State.FIX, told, remedy)
    else:
        yield Finding("noise", State.OK, told)


def _room() -> Iterator[Finding]:
    import psutil

    memory = psutil.virtual_memory()
    told = f"{gigabytes(memory.available)} of {gigabytes(memory.total)} memory are free"
    if memory.available < 2 * MIN_FREE_BYTES:
        yield Finding("memory", State.FIX, told, "tuning takes about 1.5 GB; close something")
    else:
        yield Finding("memory", State.OK, told)
    places = {"data": settings.HOME, "cache": settings.CACHE}
    for name, setting in places.items():
        yield _place(name, setting.get(), f"set {setting.name} to another folder")
    yield _place("scratch", Path(tempfile.gettempdir()), "set TMPDIR to another folder")


def _place(name: str, folder: Path, remedy: str) -> Finding:
    nearest = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not os.access(nearest, os.W_OK):
        return Finding(name, State.FIX, f"{folder} cannot be written", remedy)
    free = shutil.disk_usage(nearest).free
    told = f"{folder}, {gigabytes(free)} free"
    if free < MIN_FREE_BYTES:
        return Finding(name, State.FIX, told, f"free some room, or {remedy}")
    return Finding(name, State.OK, told)


def _sandbox() -> Iterator[Finding]:
    from tunefarm.worker.sandbox import mechanisms

    found = mechanisms()
    told = f"candidates are confined by {' and '.join(found)}" if found else "nothing confines them"
    if len(found) == 2:
        yield Finding("sandbox", State.OK, told)
    else:
        remedy = "a kernel since Linux 5.13 with Landlock on has both; do not run workers as root"
        yield Finding("sandbox", State.NOTE, told, remedy)


_CHECKS = {
    "software": _software,
    "processor": _processor,
    "cores": _cores,
    "clock": _clock,
    "load": _neighbours,
    "noise": _noise,
    "room": _room,
    "sandbox": _sandbox,
}
