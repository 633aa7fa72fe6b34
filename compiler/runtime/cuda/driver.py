"""What is asked of a driver of GPUs, by devices, streams, code, events and graphs.

device = open_device(0)
code = device.load(kernel.object)
stream = device.stream()
for launch in kernel.launches:
    stream.launch(code.function(launch), launch, [*addresses, workspace])
stream.synchronize()

Two of them are there: NVIDIA's, by cuda-bindings (``nvidia.py``), and an emulator of PTX
(``emulated.py``), which is taken if TUNEFARM_CUDA=emulated says so, and never else. Addresses are
whole numbers. What is asked of a stream runs later, in order; memory that it reads and writes, the
host's too, has to stay until it is through.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler import settings
from tunefarm.compiler.errors import TargetError, TunefarmError
from tunefarm.compiler.gpu.archs import GPU_ARCHS
from tunefarm.compiler.gpu.launches import Launch
from tunefarm.compiler.target import Target

MEMORY_ALIGNMENT = 256  # bytes; what every allocation begins at
EMULATED = "emulated"


class DriverError(TunefarmError):
    """A call of the driver that failed; ``code`` is its name for that (CUDA_ERROR_…).

    After a ``fatal`` one no call of the process to this device succeeds any more.
    """

    def __init__(self, problem: str, code: str = "", fatal: bool = False) -> None:
        self.code, self.fatal = code, fatal
        super().__init__(problem)


class DeviceMemoryError(DriverError):
    """Memory that a device does not have."""


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What a device says of itself.

    ``arch`` is what code for it is built for (sm_90a, not sm_90), ``shared_bytes`` what a block may
    share, ``clock_hz`` and ``memory_clock_hz`` the highest clocks (0 where they are not known),
    ``pci`` its place (0000:17:00.0), ``uuid`` NVIDIA's spelling (GPU-…).
    """

    ordinal: int
    name: str
    arch: str
    multiprocessors: int
    memory_bytes: int
    l2_bytes: int
    shared_bytes: int
    clock_hz: int
    memory_clock_hz: int
    pci: str
    uuid: str
    emulated: bool = False


class Function(Protocol):
    """One kernel of loaded code, ready to be launched."""

    @property
    def name(self) -> str: ...

    @property
    def registers(self) -> int:
        """Registers of a thread."""

    @property
    def local_bytes(self) -> int:
        """Bytes of a thread that are not in registers: spills, and arrays with computed places."""

    @property
    def shared_bytes(self) -> int:
        """Bytes that a block shares, without what a launch asks for."""


class Code(Protocol):
    """Loaded code. It stays loaded as long as it, a function or a graph of it is in use."""

    @property
    def log(self) -> str:
        """What the driver's compiler said of it; often nothing."""

    def function(self, launch: Launch) -> Function:
        """The kernel of that name, allowed the shared memory that the launch asks for.

        Raises DriverError if there is none, or the device has less.
        """


class Event(Protocol):
    """A point in a stream, once ``Stream.record`` put it there."""

    def seconds_since(self, earlier: Event) -> float:
        """Seconds of the device's clock between two recorded points, waiting for both.

        Steps of half a microsecond are told apart.
        """


class Graph(Protocol):
    """Captured launches and copies that are started by one call."""


class Stream(Protocol):
    """Work in order, beside the host's.

    Raises DriverError, here or at a later call, if the device fails at it.
    """

    @property
    def handle(self) -> int:
        """The CUstream, for libraries that share it."""

    def upload(self, address: int, data: NDArray[Any]) -> None:
        """Copy a C-contiguous array to the device.

        Memory that is not pinned may be read before this returns, or later.
        """

    def download(self, data: NDArray[Any], address: int) -> None:
        """Copy from the device into a C-contiguous array, which is complete at the next
        ``synchronize``."""

    def copy(self, destination: int, source: int, size_bytes: int) -> None:
        """Copy on the device; the two do not overlap."""

    def fill(self, address: int, byte: int, size_bytes: int) -> None:
        """Set every byte."""

    def launch(self, function: Function, launch: Launch, pointers: Sequence[int]) -> None:
        """Run a kernel, whose parameters are these addresses."""

    def record(self, event: Event) -> None:
        """Put the event behind what was asked so far."""

    def wait_for(self, handle: int) -> None:
        """Begin what is asked from now on when all that another library's stream was asked so far
        is through; ``handle`` is its CUstream, 1 for the default one."""

    def precede(self, handle: int) -> None:
        """Have what another library's stream is asked from now on begin when all that this one was
        asked so far is through."""

    def capture(self, work: Callable[[], None]) -> Graph:
        """What ``work`` asks of this stream, as a graph; nothing of it runs yet."""

    def replay(self, graph: Graph) -> None:
        """Run a captured graph."""

    def synchronize(self) -> None:
        """Wait for all that was asked."""


class Device(Protocol):
    """A device with its primary context, which it shares with torch and CuPy of this process.

    May be used from several threads; a stream by one at a time.
    """

    @property
    def properties(self) -> DeviceProperties: ...

    def __hash__(self) -> int: ...

    def ordinal_of(self, address: int) -> int:
        """The device in whose memory an address of another library lies."""

    def free_bytes(self) -> int:
        """Bytes of its memory that nobody has."""

    def allocate(self, size_bytes: int) -> int:
        """The address of fresh memory; DeviceMemoryError if there is not as much.

        Take ``memory.take`` for what comes and goes.
        """

    def free(self, address: int) -> None:
        """Give memory back, after waiting for what runs on the device."""

    def pinned(self, size_bytes: int) -> NDArray[np.uint8]:
        """Memory of the host that the device copies from and to by itself, while the host goes
        on. It is given back with the array."""

    def stream(self) -> Stream: ...

    def event(self) -> Event: ...

    def load(self, code: bytes) -> Code:
        """Compile and load PTX text, or load machine code, which an emulator does not take;
        BuildError with the first line of the driver's log."""

    def synchronize(self) -> None:
        """Wait for all streams."""


def device_count() -> int:
    """How many devices there are; TargetError if there is no driver to ask."""
    return _driver().device_count()


def open_device(ordinal: int = 0) -> Device:
    """A device, one object a process; TargetError, in one sentence, if it is not there."""
    count = device_count()
    if not 0 <= ordinal < count:
        there = ", ".join(map(str, range(count)))
        raise TargetError(f"there is no device {ordinal} here; there are {there}")
    return _opened(settings.CUDA.get(), ordinal)


@functools.cache
def _opened(kind: str, ordinal: int) -> Device:
    return _driver().open_device(ordinal)


def devices() -> tuple[DeviceProperties, ...]:
    """What the devices of this host say of themselves, without a context on any; TargetError as of
    ``device_count``."""
    return tuple(map(_driver().properties_of, range(device_count())))


def runs(properties: DeviceProperties, arch: str) -> bool:
    """Whether a device runs code for an architecture."""
    later = arch[-1].isdigit() and arch_number(arch) <= arch_number(properties.arch)
    return properties.arch == arch or later


def device_model(target: Target) -> str:
    """What records are kept under that are measured on this host's first device that runs code of
    a target: ``cuda/sm_90a/NVIDIA H200``. Empty if there is none."""
    try:
        found = [p for p in devices() if runs(p, target.gpu.name)]
    except TargetError:
        return ""
    return model_name(target.gpu.name, found[0].name, found[0].emulated) if found else ""


def model_name(arch: str, name: str, emulated: bool = False) -> str:
    """The key of a model of device with code for an architecture; emulated ones have one of their
    own, so that their times are never taken for a GPU's."""
    return f"cuda/{arch}/{EMULATED if emulated else name}"


def is_emulated_model(model: str) -> bool:
    """Whether a model of device is the emulator's."""
    return model.startswith("cuda/") and model.endswith(f"/{EMULATED}")


def is_emulating() -> bool:
    """Whether TUNEFARM_CUDA puts the emulator in the place of GPUs."""
    return settings.CUDA.get().startswith(EMULATED)


def check_device(properties: DeviceProperties, target: Target) -> None:
    """TargetError if a device cannot run code for a target.

    Code for sm_80 runs on every later one, code for sm_90a on that alone.
    """
    if not runs(properties, target.gpu.name):
        raise TargetError(
            f"code for {target} cannot run on device {properties.ordinal}, {properties.name}, "
            f"which is {properties.arch}; build it for -arch={properties.arch}"
        )


def arch_number(arch: str) -> int:
    """90 of sm_90a."""
    return int("".join(filter(str.isdigit, arch)))


def arch_of(major: int, minor: int) -> str:
    """The architecture whose code fits a compute capability best: its own with all that it has, or
    the last one before it (sm_100 for 10.3); its own name if all of ours are later."""
    number = 10 * major + minor
    for name in (f"sm_{number}a", f"sm_{number}"):
        if name in GPU_ARCHS:
            return name
    older = [n for n in GPU_ARCHS if n[-1].isdigit() and arch_number(n) <= number]
    return max(older, key=arch_number, default=f"sm_{number}")


class _Driver(Protocol):
    """A module of this folder that has devices."""

    def device_count(self) -> int: ...
    def open_device(self, ordinal: int) -> Device: ...
    def properties_of(self, ordinal: int) -> DeviceProperties: ...


def _driver() -> _Driver:
    if is_emulating():
        from tunefarm.compiler.runtime.cuda import emulated

        return emulated
    from tunefarm.compiler.runtime.cuda import nvidia

    return nvidia
