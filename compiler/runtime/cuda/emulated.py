"""The emulator of PTX as a driver: code for GPUs runs, slowly, on a host without one.

Chosen by TUNEFARM_CUDA=emulated alone; emulated:2 has two devices. What is asked of a stream runs
at once. Times are the host's, and say nothing of a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler import settings
from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.gpu.archs import GPU_ARCHS
from tunefarm.compiler.gpu.emulator import EmulatedModule, load_ptx
from tunefarm.compiler.gpu.emulator.errors import EmulatorError, KernelFault
from tunefarm.compiler.gpu.emulator.memory import DeviceMemory
from tunefarm.compiler.gpu.emulator.tensor_maps import Tensor, encode
from tunefarm.compiler.gpu.launches import Launch
from tunefarm.compiler.gpu.tensor_maps import TensorMap
from tunefarm.compiler.runtime.arrays import Array
from tunefarm.compiler.runtime.cuda import driver
from tunefarm.compiler.runtime.cuda.driver import DeviceMemoryError, DeviceProperties, DriverError
from tunefarm.compiler.target import dtype_bytes

ARCH = GPU_ARCHS["sm_90a"]
MEMORY_BYTES = 1 << 30
CACHE_BYTES = 1 << 20


def device_count() -> int:
    """One, or as many as TUNEFARM_CUDA=emulated:N says."""
    _, _, count = settings.CUDA.get().partition(":")
    return int(count or 1)


def open_device(ordinal: int) -> EmulatedDevice:
    """A device with memory of its own."""
    return EmulatedDevice(ordinal)


def properties_of(ordinal: int) -> DeviceProperties:
    """What a device says of itself."""
    return DeviceProperties(
        ordinal=ordinal,
        name=f"emulated {ARCH.name}",
        arch=ARCH.name,
        multiprocessors=ARCH.multiprocessors,
        memory_bytes=MEMORY_BYTES,
        l2_bytes=CACHE_BYTES,
        shared_bytes=ARCH.shared_bytes,
        clock_hz=0,
        memory_clock_hz=0,
        pci="",
        uuid=f"emulated-{ordinal}",
        emulated=True,
    )


def map_of(tensor_map: TensorMap, pointers: Sequence[int]) -> int:
    """The bytes of a tensor map, as the emulator understands them, as one number."""
    tensor = Tensor(
        pointers[tensor_map.argument], dtype_bytes(tensor_map.dtype), tensor_map.extents,
        tensor_map.strides, tensor_map.box, tensor_map.swizzle,
    )  # fmt: skip
    return int.from_bytes(encode(tensor), "little")


class EmulatedDevice:
    """``driver.Device`` whose kernels are emulated."""

    def __init__(self, ordinal: int = 0) -> None:
        self.memory = DeviceMemory()
        self.properties = properties_of(ordinal)

    def ordinal_of(self, address: int) -> int:
        return self.properties.ordinal

    def free_bytes(self) -> int:
        return self.properties.memory_bytes - self.memory.allocated_bytes

    def allocate(self, size_bytes: int) -> int:
        if size_bytes > self.free_bytes():
            raise DeviceMemoryError(
                f"device {self.properties.ordinal}, {self.properties.name}, has "
                f"{self.free_bytes()} bytes left, and {size_bytes} are wanted",
                "CUDA_ERROR_OUT_OF_MEMORY",
            )
        return self.memory.allocate(size_bytes)

    def free(self, address: int) -> None:
        self.memory.free(address)

    def pinned(self, size_bytes: int) -> NDArray[np.uint8]:
        return np.empty(size_bytes, np.uint8)

    def stream(self) -> EmulatedStream:
        return EmulatedStream(self)

    def event(self) -> EmulatedEvent:
        return EmulatedEvent()

    def load(self, code: bytes) -> EmulatedCode:
        try:
            return EmulatedCode(load_ptx(code.decode()))
        except EmulatorError as error:
            raise BuildError(f"the emulator of PTX refuses the code: {error}") from None

    def synchronize(self) -> None:
        """Nothing is under way."""


@dataclass(frozen=True, slots=True, eq=False)
class EmulatedCode:
    """``driver.Code``."""

    module: EmulatedModule
    log: str = ""

    def function(self, launch: Launch) -> EmulatedFunction:
        if launch.dynamic_bytes > ARCH.shared_bytes:
            raise DriverError(
                f"{launch.name} asks for {launch.dynamic_bytes} bytes of shared memory; "
                f"{ARCH.name} has {ARCH.shared_bytes}",
                "CUDA_ERROR_INVALID_VALUE",
            )
        return EmulatedFunction(self.module, launch.name)


@dataclass(frozen=True, slots=True, eq=False)
class EmulatedFunction:
    """``driver.Function``; what the assembler would say of it is not known."""

    module: EmulatedModule
    name: str
    registers: int = 0
    local_bytes: int = 0
    shared_bytes: int = 0


class EmulatedEvent:
    """``driver.Event`` by the host's clock."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def seconds_since(self, earlier: driver.Event) -> float:
        assert isinstance(earlier, EmulatedEvent)
        return self.seconds - earlier.seconds


@dataclass(frozen=True, slots=True, eq=False)
class EmulatedGraph:
    """``driver.Graph``: what was asked, to be done in order."""

    work: tuple[Callable[[], None], ...]


class EmulatedStream:
    """``driver.Stream`` that does at once what it is asked."""

    def __init__(self, device: EmulatedDevice) -> None:
        self._memory = device.memory
        self._captured: list[Callable[[], None]] | None = None

    @property
    def handle(self) -> int:
        return 0

    def _do(self, work: Callable[[], None]) -> None:
        if self._captured is None:
            work()
        else:
            self._captured.append(work)

    def upload(self, address: int, data: Array) -> None:
        self._do(lambda: self._memory.write(address, data))

    def download(self, data: Array, address: int) -> None:
        def work() -> None:
            data.reshape(-1).view(np.uint8)[:] = self._memory.read(address, data.nbytes)

        self._do(work)

    def copy(self, destination: int, source: int, size_bytes: int) -> None:
        self._do(lambda: self._memory.write(destination, self._memory.read(source, size_bytes)))

    def fill(self, address: int, byte: int, size_bytes: int) -> None:
        self._do(lambda: self._memory.view(address, size_bytes).fill(byte))

    def launch(self, function: driver.Function, launch: Launch, pointers: Sequence[int]) -> None:
        assert isinstance(function, EmulatedFunction)
        arguments = [*pointers, *(map_of(each, pointers) for each in launch.maps)]
        self._do(lambda: self._run(function, launch, arguments))

    def _run(self, function: EmulatedFunction, launch: Launch, arguments: list[int]) -> None:
        try:
            function.module.launch(
                self._memory,
                launch.name,
                launch.grid,
                launch.block,
                arguments,
                launch.dynamic_bytes,
            )
        except KernelFault as error:
            raise DriverError(str(error), "CUDA_ERROR_LAUNCH_FAILED", fatal=True) from None
        except EmulatorError as error:
            raise DriverError(str(error), "CUDA_ERROR_INVALID_VALUE") from None

    def record(self, event: driver.Event) -> None:
        assert isinstance(event, EmulatedEvent)
        event.seconds = time.perf_counter()

    def wait_for(self, handle: int) -> None:
        """No other library's stream has to do with the emulator's memory."""

    def precede(self, handle: int) -> None:
        """Nor do they wait for it."""

    def capture(self, work: Callable[[], None]) -> EmulatedGraph:
        captured: list[Callable[[], None]] = []
        self._captured = captured
        try:
            work()
        finally:
            self._captured = None
        return EmulatedGraph(tuple(captured))

    def replay(self, graph: driver.Graph) -> None:
        assert isinstance(graph, EmulatedGraph)
        for work in graph.work:
            work()

    def synchronize(self) -> None:
        """All is done."""
