"""NVIDIA's driver, by cuda-bindings: a host needs the driver and ``pip install tunefarm[cuda]``.

Every call makes the device's primary context current for its length, so that threads, and other
libraries with devices of their own, do not mind one another. Source: NVIDIA, "CUDA Driver API".
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.errors import BuildError, TargetError
from tunefarm.compiler.gpu.archs import GPU_ARCHS, MAX_CLUSTER, STATIC_SHARED_BYTES
from tunefarm.compiler.gpu.launches import Launch
from tunefarm.compiler.gpu.ptx import cuda_for
from tunefarm.compiler.gpu.tensor_maps import MAP_ALIGN, MAP_BYTES, TensorMap
from tunefarm.compiler.runtime.arrays import Array, address
from tunefarm.compiler.runtime.cuda import driver
from tunefarm.compiler.runtime.cuda.bindings import (
    bindings,
    call,
    read_properties,
    tensor_map_encoder,
    text_of,
)
from tunefarm.compiler.runtime.cuda.driver import DeviceMemoryError, DeviceProperties, DriverError

_LOG_BYTES = 16 << 10


def device_count() -> int:
    """How many GPUs the driver shows; TargetError if there is no driver or no GPU."""
    return int(call(bindings().cuDeviceGetCount))


def open_device(ordinal: int) -> Gpu:
    """A GPU and its primary context."""
    return Gpu(ordinal)


def properties_of(ordinal: int) -> DeviceProperties:
    """What a GPU says of itself, without a context on it."""
    cuda = bindings()
    return read_properties(cuda, call(cuda.cuDeviceGet, ordinal), ordinal)


class Gpu:
    """A GPU: ``driver.Device`` by NVIDIA's driver."""

    def __init__(self, ordinal: int) -> None:
        self.cuda = bindings()
        self._number = call(self.cuda.cuDeviceGet, ordinal)
        self._context = _primary_context(self.cuda, self._number, ordinal)
        self._ended: deque[tuple[Callable[[Any], Any], Any]] = deque()  # filled by finalizers
        self.no_capture = threading.RLock()  # of any stream, while all streams are waited for
        self.properties = read_properties(self.cuda, self._number, ordinal)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the driver in this device's context; DriverError if it fails, a fatal one if the
        context then answers to no other call either."""
        where = f" on device {self.properties.ordinal}, {self.properties.name},"
        call(self.cuda.cuCtxPushCurrent, self._context, where=where)
        try:
            return call(function, *arguments, where=where)
        except DriverError as error:
            # Returns the error of work that ran before, too; allowed while a stream is captured.
            status, *_ = self.cuda.cuMemGetInfo()
            error.fatal = error.fatal or status != 0
            raise
        finally:
            self.cuda.cuCtxPopCurrent()

    def dispose(self, owner: object, function: Callable[..., Any], handle: Any) -> None:
        """Have a handle destroyed after its owner is gone, unless the process ends first."""
        weakref.finalize(owner, self._ended.append, (function, handle)).atexit = False

    def _collect(self) -> None:
        """Destroy the handles whose owners are gone: not as they go, which may be amid a capture
        that such calls end."""
        while self._ended:
            function, handle = self._ended.popleft()
            try:
                self.call(function, handle)
            except DriverError as error:
                if not error.fatal:  # the failure that ended the context was told before
                    raise

    def ordinal_of(self, address: int) -> int:
        kind = self.cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        return int(self.call(self.cuda.cuPointerGetAttribute, kind, address))

    def free_bytes(self) -> int:
        free, _ = self.call(self.cuda.cuMemGetInfo)
        return int(free)

    def allocate(self, size_bytes: int) -> int:
        self._collect()
        return int(self.call(self.cuda.cuMemAlloc, size_bytes))

    def free(self, address: int) -> None:
        self.call(self.cuda.cuMemFree, address)

    def pinned(self, size_bytes: int) -> NDArray[np.uint8]:
        self._collect()
        start = int(self.call(self.cuda.cuMemAllocHost, size_bytes + 1))
        buffer = (ctypes.c_uint8 * (size_bytes + 1)).from_address(start)
        self.dispose(buffer, self.cuda.cuMemFreeHost, start)
        return np.frombuffer(memoryview(buffer), np.uint8)[:size_bytes]

    def stream(self) -> GpuStream:
        self._collect()
        return GpuStream(self)

    def event(self) -> GpuEvent:
        self._collect()
        return GpuEvent(self)

    def load(self, code: bytes) -> GpuCode:
        self._collect()
        return GpuCode(self, code)

    def synchronize(self) -> None:
        with self.no_capture:
            self.call(self.cuda.cuCtxSynchronize)
        self._collect()


class GpuCode:
    """Loaded PTX or machine code: ``driver.Code``."""

    def __init__(self, device: Gpu, code: bytes) -> None:
        self._device = device
        cuda = device.cuda
        told, wrong = bytearray(_LOG_BYTES), bytearray(_LOG_BYTES)
        option = cuda.CUjit_option
        options = {
            option.CU_JIT_INFO_LOG_BUFFER: told,
            option.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES: len(told),
            option.CU_JIT_ERROR_LOG_BUFFER: wrong,
            option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: len(wrong),
            option.CU_JIT_LOG_VERBOSE: 1,
        }
        values = list(options.values())
        try:
            self.handle = device.call(
                cuda.cuModuleLoadDataEx, code + b"\0", len(options), list(options), values
            )
        except DeviceMemoryError:
            raise
        except DriverError as error:
            if error.fatal:
                raise
            if error.code == "CUDA_ERROR_UNSUPPORTED_PTX_VERSION":
                raise BuildError(_too_old(code.decode(), call(cuda.cuDriverGetVersion))) from None
            lines = text_of(bytes(wrong)).strip().splitlines()
            log = f": {lines[0].strip()}" if lines else ""
            raise BuildError(f"{error}{log}") from None
        self.log = text_of(bytes(told)).strip()
        device.dispose(self, cuda.cuModuleUnload, self.handle)

    def function(self, launch: Launch) -> GpuFunction:
        return GpuFunction(self._device, self, launch)


class GpuFunction:
    """A kernel: ``driver.Function``."""

    def __init__(self, device: Gpu, code: GpuCode, launch: Launch) -> None:
        cuda = device.cuda
        self.name = launch.name
        self._device, self._launch = device, launch
        self._passed: tuple[tuple[int, ...], Arguments] | None = None
        self.handle = device.call(cuda.cuModuleGetFunction, code.handle, launch.name.encode())
        self._code = code  # which stays loaded
        kinds = cuda.CUfunction_attribute

        def attribute(kind: Any) -> int:
            return int(device.call(cuda.cuFuncGetAttribute, kind, self.handle))

        self.registers = attribute(kinds.CU_FUNC_ATTRIBUTE_NUM_REGS)
        self.local_bytes = attribute(kinds.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)
        self.shared_bytes = attribute(kinds.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
        if launch.dynamic_bytes + self.shared_bytes > STATIC_SHARED_BYTES:
            device.call(
                cuda.cuFuncSetAttribute,
                self.handle,
                kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                launch.dynamic_bytes,
            )
        has_clusters = GPU_ARCHS[device.properties.arch].has_clusters  # older drivers have none
        width = kinds.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH
        if has_clusters and attribute(width) > MAX_CLUSTER:
            large = kinds.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            device.call(cuda.cuFuncSetAttribute, self.handle, large, 1)

    def arguments(self, pointers: Sequence[int]) -> Arguments:
        """What a launch on these addresses passes. The last one is kept: to make tensor maps takes
        longer than the launch."""
        key = tuple(pointers)
        passed = self._passed
        if passed is None or passed[0] != key:
            passed = self._passed = key, Arguments(self._device, self._launch, key)
        return passed[1]


class Arguments:
    """The values of a kernel's parameters, at ``address`` a pointer to each."""

    def __init__(self, device: Gpu, launch: Launch, pointers: Sequence[int]) -> None:
        values = np.array(pointers, np.uint64)
        maps = [encoded(device, each, pointers[each.argument]) for each in launch.maps]
        own = address(values) + 8 * np.arange(len(values), dtype=np.uint64)
        places = np.array([*own, *map(address, maps)], np.uint64)
        self.address = address(places)
        self._keep = (values, maps, places)


def encoded(device: Gpu, tensor: TensorMap, start: int) -> NDArray[np.uint8]:
    """The driver's 128 bytes for a tensor that lies at an address."""
    cuda = device.cuda
    kinds, swizzles = cuda.CUtensorMapDataType, cuda.CUtensorMapSwizzle
    kind = {
        "float16": kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        "bfloat16": kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        "float32": kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    }[tensor.dtype]
    swizzle = {
        0: swizzles.CU_TENSOR_MAP_SWIZZLE_NONE,
        32: swizzles.CU_TENSOR_MAP_SWIZZLE_32B,
        64: swizzles.CU_TENSOR_MAP_SWIZZLE_64B,
        128: swizzles.CU_TENSOR_MAP_SWIZZLE_128B,
    }[tensor.swizzle]
    room = np.zeros(MAP_BYTES + MAP_ALIGN, np.uint8)
    made = room[-address(room) % MAP_ALIGN :][:MAP_BYTES]
    device.call(
        tensor_map_encoder(),
        address(made),
        int(kind),
        tensor.rank,
        start,
        (ctypes.c_uint64 * tensor.rank)(*tensor.extents),
        (ctypes.c_uint64 * (tensor.rank - 1))(*tensor.strides),
        (ctypes.c_uint32 * tensor.rank)(*tensor.box),
        (ctypes.c_uint32 * tensor.rank)(*[1] * tensor.rank),
        int(cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
        int(swizzle),
        int(cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B),
        int(cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
    )
    return made


class GpuEvent:
    """A point in a stream: ``driver.Event``."""

    def __init__(self, device: Gpu) -> None:
        cuda = device.cuda
        self._device = device
        self.handle = device.call(cuda.cuEventCreate, cuda.CUevent_flags.CU_EVENT_DEFAULT)
        device.dispose(self, cuda.cuEventDestroy, self.handle)

    def seconds_since(self, earlier: driver.Event) -> float:
        assert isinstance(earlier, GpuEvent)
        cuda = self._device.cuda
        self._device.call(cuda.cuEventSynchronize, earlier.handle)
        self._device.call(cuda.cuEventSynchronize, self.handle)
        return float(self._device.call(cuda.cuEventElapsedTime, earlier.handle, self.handle)) * 1e-3


class GpuGraph:
    """A captured graph, instantiated: ``driver.Graph``. It keeps what its launches need."""

    def __init__(self, device: Gpu, handle: Any, keep: object) -> None:
        self.handle = handle
        self._keep = keep
        device.dispose(self, device.cuda.cuGraphExecDestroy, handle)


class GpuStream:
    """A stream that does not wait for the default one: ``driver.Stream``."""

    def __init__(self, device: Gpu) -> None:
        self._device = device
        self._cuda = cuda = device.cuda
        self._captured: list[object] | None = None
        self.stream = device.call(cuda.cuStreamCreate, cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)
        device.dispose(self, cuda.cuStreamDestroy, self.stream)

    @property
    def handle(self) -> int:
        return int(self.stream)

    def upload(self, address: int, data: Array) -> None:
        self._copy(self._cuda.cuMemcpyHtoDAsync, address, _host_address(data), data.nbytes)

    def download(self, data: Array, address: int) -> None:
        self._copy(self._cuda.cuMemcpyDtoHAsync, _host_address(data), address, data.nbytes)

    def copy(self, destination: int, source: int, size_bytes: int) -> None:
        self._copy(self._cuda.cuMemcpyDtoDAsync, destination, source, size_bytes)

    def _copy(
        self, function: Callable[..., Any], destination: int, source: int, count: int
    ) -> None:
        if count:
            self._device.call(function, destination, source, count, self.stream)

    def fill(self, address: int, byte: int, size_bytes: int) -> None:
        if size_bytes:
            self._device.call(self._cuda.cuMemsetD8Async, address, byte, size_bytes, self.stream)

    def launch(self, function: driver.Function, launch: Launch, pointers: Sequence[int]) -> None:
        assert isinstance(function, GpuFunction)
        passed = function.arguments(pointers)
        self._device.call(
            self._cuda.cuLaunchKernel,
            function.handle,
            *launch.grid,
            *launch.block,
            launch.dynamic_bytes,
            self.stream,
            passed.address,
            0,
        )
        if self._captured is not None:
            self._captured.append(function)

    def record(self, event: driver.Event) -> None:
        assert isinstance(event, GpuEvent)
        self._device.call(self._cuda.cuEventRecord, event.handle, self.stream)

    def wait_for(self, handle: int) -> None:
        event = GpuEvent(self._device)
        self._device.call(self._cuda.cuEventRecord, event.handle, handle)
        self._device.call(self._cuda.cuStreamWaitEvent, self.stream, event.handle, 0)

    def precede(self, handle: int) -> None:
        event = GpuEvent(self._device)
        self.record(event)
        self._device.call(self._cuda.cuStreamWaitEvent, handle, event.handle, 0)

    def capture(self, work: Callable[[], None]) -> GpuGraph:
        cuda, call = self._cuda, self._device.call
        keep: list[object] = []
        with self._device.no_capture:
            mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
            call(cuda.cuStreamBeginCapture, self.stream, mode)
            self._captured = keep
            try:
                work()
            finally:
                self._captured = None
                graph = call(cuda.cuStreamEndCapture, self.stream)
        try:
            return GpuGraph(self._device, call(cuda.cuGraphInstantiate, graph, 0), keep)
        finally:
            call(cuda.cuGraphDestroy, graph)

    def replay(self, graph: driver.Graph) -> None:
        assert isinstance(graph, GpuGraph)
        self._device.call(self._cuda.cuGraphLaunch, graph.handle, self.stream)

    def synchronize(self) -> None:
        self._device.call(self._cuda.cuStreamSynchronize, self.stream)


def _primary_context(cuda: Any, number: Any, ordinal: int) -> Any:
    """A device's primary context; TargetError if its compute mode lets no further process in."""
    try:
        return call(cuda.cuDevicePrimaryCtxRetain, number)
    except DriverError as error:
        if error.code != "CUDA_ERROR_DEVICE_UNAVAILABLE":
            raise
        raise TargetError(
            f"device {ordinal} lets no further process in: it is of exclusive or prohibited "
            "compute mode, or out of order; look at nvidia-smi -q -d COMPUTE, and "
            "nvidia-smi -c DEFAULT opens it"
        ) from None


def _too_old(ptx: str, version: int) -> str:
    """Why a driver of a version (13000 for CUDA 13.0) does not compile a text."""
    major, minor = cuda_for(ptx)
    return (
        f"the code is PTX for drivers of CUDA {major}.{minor} on, and this host's is of CUDA "
        f"{version // 1000}.{version % 1000 // 10}; update the driver"
    )


def _host_address(data: Array) -> int:
    assert data.flags.c_contiguous
    return address(data)
