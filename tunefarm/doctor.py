"""``tunefarm doctor``: is this machine fit to tune and to measure, and what would make it so?

Each check is a function that gives findings; none of them changes anything.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tunefarm.compiler import settings
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.target import Target
from tunefarm.texts import counted

LOOK_S = 1.0
"""How long the machine is watched for what else it does."""
MAX_NOISE = 0.03
MAX_SKEW_S = 1.0
MIN_FREE_BYTES = 1 << 30
CERTIFICATE_S = 30 * 86400.0
"""How long before its end a certificate is to be renewed."""
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


class State(StrEnum):
    """What a finding means to the user: nothing to do, good to know, or something to fix."""

    OK = "ok"
    NOTE = "note"
    FIX = "fix"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found, and what to do about it if there is something."""

    subject: str
    state: State
    told: str
    remedy: str = ""


def examine(database: str, tracker: str = "") -> Iterator[Finding]:
    """All checks, in the order in which one would do them by hand.

    ``database`` is a URL or a path; a ``tracker`` is asked only if it is given.
    """
    yield from _software()
    yield from _processor()
    yield from _cores()
    yield from _clock()
    yield from _neighbours()
    yield from _noise()
    yield from _room()
    yield from _sandbox()
    yield from _gpu()
    yield from _database(database)
    yield from _plugins()
    if tracker:
        yield from _tracker(tracker)
        yield from _certificates(tracker)


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
        yield Finding("cores", State.OK, told)


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
    told = f"{_gigabytes(memory.available)} of {_gigabytes(memory.total)} memory are free"
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
    told = f"{folder}, {_gigabytes(free)} free"
    if free < MIN_FREE_BYTES:
        return Finding(name, State.FIX, told, f"free some room, or {remedy}")
    return Finding(name, State.OK, told)


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


def _sandbox() -> Iterator[Finding]:
    from tunefarm.worker.sandbox import mechanisms

    found = mechanisms()
    told = f"candidates are confined by {' and '.join(found)}" if found else "nothing confines them"
    if len(found) == 2:
        yield Finding("sandbox", State.OK, told)
    else:
        remedy = "a kernel since Linux 5.13 with Landlock on has both; do not run workers as root"
        yield Finding("sandbox", State.NOTE, told, remedy)


def _gpu() -> Iterator[Finding]:
    """NVIDIA's driver and GPUs, and the two packages by which a worker comes to them."""
    from tunefarm.compiler.runtime.cuda.driver import is_emulating
    from tunefarm.worker.cuda.discovery import has_driver

    if is_emulating():
        told = "an emulator stands in for GPUs: its times say nothing of any"
        yield Finding("gpu", State.NOTE, told, f"unset {settings.CUDA.name} to use real ones")
        return
    version = _cuda_version()
    if version is None:
        if has_driver():
            remedy = "nvidia-smi says what is wrong with it; in a container, run it with --gpus all"
            yield Finding("gpu", State.FIX, "the NVIDIA driver does not start", remedy)
        else:
            told = "no NVIDIA driver; processors are tuned all the same"
            yield Finding("gpu", State.NOTE, told)
        return
    yield from _gpus(version)
    yield _bindings(version)


def _cuda_version() -> int | None:
    """The version of CUDA that the driver speaks (12080), None if there is none that starts."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDriverGetVersion(ctypes.byref(version)):
        return None
    return version.value


def _gpus(version: int) -> Iterator[Finding]:
    from tunefarm.worker.cuda.discovery import find_gpus
    from tunefarm.worker.cuda.nvml import Monitor, open_nvml

    try:
        nvml = open_nvml()
        gpus = find_gpus(nvml)
    except TunefarmError as error:
        yield Finding("gpu", State.FIX, "GPUs cannot be offered", str(error))
        return
    for gpu in gpus:
        subject = f"gpu {gpu.ordinal}"
        memory = _gigabytes(gpu.memory_bytes)
        told = f"{gpu.name} ({gpu.arch}), {memory}, driver {gpu.driver}, CUDA {_dotted(version)}"
        yield Finding(subject, State.OK, told)
        monitor = Monitor(nvml, gpu.uuid)
        busy = ", ".join(map(str, monitor.neighbours(())))
        if busy:
            told, remedy = f"others compute on it: {busy}", "stop them while it is tuned"
            yield Finding(subject, State.FIX, told, remedy)
        if fault := monitor.glance().fault:
            remedy = "see to its cooling and power; nvidia-smi -q -d PERFORMANCE tells more"
            yield Finding(subject, State.FIX, f"its clock is held down: {fault}", remedy)


def _bindings(version: int) -> Finding:
    """Whether the package is there that calls the driver, and is not of a later CUDA than it."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    try:
        found = version_of("cuda-bindings")
    except PackageNotFoundError:
        remedy = "pip install 'tunefarm[cuda]'"
        return Finding("cuda", State.FIX, "cuda-bindings is not installed", remedy)
    told = f"cuda-bindings {found}"
    if int(found.partition(".")[0]) > version // 1000:
        major = version // 1000
        remedy = f"pip install 'cuda-bindings<{major + 1}', or a newer driver"
        told += f" is made for a later CUDA than the driver's {_dotted(version)}"
        return Finding("cuda", State.FIX, told, remedy)
    return Finding("cuda", State.OK, told)


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _database(url: str) -> Iterator[Finding]:
    from tunefarm.db.dialect import parse_url, sqlite_path
    from tunefarm.db.errors import StoreError
    from tunefarm.db.store import Store

    try:
        path = sqlite_path(parse_url(url))
        if path is not None and not path.exists():
            yield Finding("database", State.OK, f"none yet; the first `tunefarm tune` makes {path}")
            return
        with Store.open(url, readonly=True) as store:
            trials, jobs = store.count_trials(), len(store.jobs())
            yield Finding(
                "database",
                State.OK,
                f"{store.name}: {counted(trials, 'trial')}, {counted(jobs, 'job')}",
            )
    except StoreError as error:
        yield Finding("database", State.FIX, str(error))


def _tracker(address: str) -> Iterator[Finding]:
    from tunefarm.farm import connect
    from tunefarm.proto.errors import FarmError

    try:
        with connect(address) as client:
            client.info()  # once to connect, then once to compare clocks
            asked_at = time.time()
            info = client.info()
            skew_s = info.now - (asked_at + time.time()) / 2
            devices = client.devices()
    except (FarmError, TunefarmError) as error:
        yield Finding("tracker", State.FIX, str(error))
        return
    online = sum(device.state != "offline" for device in devices)
    told = f"{address} runs tunefarm {info.version}, {online} of {len(devices)} devices online"
    yield Finding("tracker", State.OK, told)
    told = f"its clock and this one differ by {abs(skew_s):.1f} s"
    if abs(skew_s) > MAX_SKEW_S:
        remedy = (
            "tokens expire and records are dated by it: set both by NTP (timedatectl set-ntp on)"
        )
        yield Finding("clocks", State.FIX, told, remedy)
    else:
        yield Finding("clocks", State.OK, told)


def _certificates(tracker: str) -> Iterator[Finding]:
    """Of a connection with TLS: the tracker's certificate, this machine's own, and their CA."""
    from tunefarm.farm import place_of
    from tunefarm.proto.errors import FarmError
    from tunefarm.proto.tls import expires_at, shown_by

    try:
        address, tls = place_of(tracker)
    except FarmError:
        return  # the tracker's finding says so
    if tls is None:
        return
    found = {"the tracker's": shown_by(address)}
    found["the CA's"] = expires_at(tls.ca) if tls.ca else None
    found["this machine's"] = expires_at(tls.certificate) if tls.certificate else None
    ends = {whose: at for whose, at in found.items() if at is not None}
    if not ends:
        return
    whose, first = min(ends.items(), key=lambda item: item[1])
    told = f"{whose} ends first, on {time.strftime('%Y-%m-%d', time.gmtime(first))}"
    if first - time.time() < CERTIFICATE_S:
        remedy = (
            "nobody gets in after that: `tunefarm certificates` renews it (see docs/operations.md)"
        )
        yield Finding("certs", State.FIX, told, remedy)
    else:
        yield Finding("certs", State.OK, told)


def _plugins() -> Iterator[Finding]:
    from tunefarm.compiler import plugins

    here = plugins.loaded()
    if here:
        yield Finding("plug-ins", State.OK, ", ".join(str(plugin) for plugin in here.values()))
    for why in plugins.broken().values():
        yield Finding("plug-ins", State.FIX, why, "mend the package, or uninstall it")
