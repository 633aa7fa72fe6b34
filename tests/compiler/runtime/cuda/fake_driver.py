"""A ``libcuda.so.1`` for cuda-bindings to find: NVIDIA's functions over the emulator of PTX.

What ``nvidia.py`` asks of the driver goes through the real package and C's calling convention; a
stream runs at once what it is asked. Machine code is held to its ELF header, and run as the PTX
that ``SOURCES`` has for it. Every call is held to what NVIDIA's documents allow: live handles, a
current context, the device's own memory, no waiting while a stream is captured. A kernel that
faults ends the context: no call says so before the next, and every one from then on.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tunefarm.compiler.codegen.llvm_compile import compile_llvm
from tunefarm.compiler.gpu.emulator import DeviceMemory, EmulatorError, KernelFault, load_ptx
from tunefarm.compiler.gpu.emulator.tensor_maps import Tensor, encode
from tunefarm.compiler.runtime.elf_link import link_library
from tunefarm.compiler.target import Target

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NO_DEVICE = 0, 1, 2, 100
INVALID_PTX, INVALID_CONTEXT, INVALID_HANDLE, NOT_FOUND = 218, 201, 400, 500
INVALID_IMAGE, NO_BINARY_FOR_GPU, UNSUPPORTED_PTX_VERSION = 200, 209, 222
LAUNCH_FAILED, CAPTURE_UNSUPPORTED = 719, 900
ERRORS = {
    SUCCESS: b"CUDA_SUCCESS",
    INVALID_VALUE: b"CUDA_ERROR_INVALID_VALUE",
    OUT_OF_MEMORY: b"CUDA_ERROR_OUT_OF_MEMORY",
    NO_DEVICE: b"CUDA_ERROR_NO_DEVICE",
}
ATTRIBUTES = {75: 9, 76: 0, 16: 132, 38: 50 << 20, 97: 227 << 10, 13: 1_980_000, 36: 3_201_000}
MEMORY_BYTES = 1 << 30
ITEM_BYTES = {6: 2, 9: 2}  # of a tensor map's types

INSTALLED: list[FakeDriver] = []  # whose functions are called until the process ends
SOURCES: dict[bytes, bytes] = {}  # of machine code, the PTX that it is of

pointer = ctypes.c_void_p
text = ctypes.c_char_p
number = ctypes.c_uint
signed = ctypes.c_int
size = ctypes.c_size_t


class Failure(Exception):
    def __init__(self, status: int) -> None:
        self.status = status


def require(condition: object, status: int = INVALID_VALUE) -> None:
    if not condition:
        raise Failure(status)


def put(place: int, kind: Any, value: Any) -> None:
    kind.from_address(place).value = value


class FakeDriver:
    """The state behind the library; ``counts`` says how often each function was called."""

    def __init__(self, devices: int = 1) -> None:
        self.devices = devices
        self.version = 13000  # of CUDA
        self.ended = SUCCESS  # what calls return once the context is lost
        self.refused = SUCCESS  # what asking for a context returns
        self.memory = DeviceMemory()
        self.counts: dict[str, int] = {}
        self.live: dict[int, Any] = {}
        self.pinned: dict[int, Any] = {}
        self.contexts: list[int] = []
        self.captured: dict[int, list[Callable[[], None]]] = {}
        self.allowed: dict[int, int] = {}
        self.large: set[int] = set()  # functions whose clusters may be of more than 8 blocks
        self._handles = itertools.count(0x1000, 0x10)
        self._callbacks: dict[str, Any] = {}

    def new(self, value: Any) -> int:
        handle = next(self._handles)
        self.live[handle] = value
        return handle

    def get(self, handle: int | None, kind: type) -> Any:
        found = self.live.get(handle or 0)
        require(isinstance(found, kind), INVALID_HANDLE)
        return found

    def end(self, handle: int | None, kind: type) -> None:
        self.get(handle, kind)
        del self.live[handle or 0]

    def ask(self, stream: int | None, work: Callable[[], None]) -> None:
        self.get(stream, Stream)
        if stream in self.captured:
            self.captured[stream].append(work)
        else:
            work()

    def wait(self) -> None:
        require(not self.captured, CAPTURE_UNSUPPORTED)

    # -- devices and contexts

    def cuInit(self, flags: number) -> None:
        require(flags == 0)
        require(self.devices, NO_DEVICE)

    def cuDriverGetVersion(self, version: pointer) -> None:
        put(version, signed, self.version)

    def cuGetErrorName(self, status: signed, name: pointer) -> None:
        put(name, text, ERRORS.get(status, b"CUDA_ERROR_UNKNOWN"))

    def cuGetErrorString(self, status: signed, told: pointer) -> None:
        put(told, text, b"what it means")

    def cuDeviceGetCount(self, count: pointer) -> None:
        put(count, signed, self.devices)

    def cuDeviceGet(self, device: pointer, ordinal: signed) -> None:
        require(0 <= ordinal < self.devices, 101)
        put(device, signed, ordinal)

    def cuDeviceGetName(self, name: pointer, length: signed, device: signed) -> None:
        ctypes.memmove(name, b"Fake H200\0", 10)

    def cuDeviceGetUuid(self, uuid: pointer, device: signed) -> None:
        ctypes.memmove(uuid, bytes(range(16)), 16)

    def cuDeviceTotalMem(self, count: pointer, device: signed) -> None:
        put(count, size, MEMORY_BYTES)

    def cuDeviceGetAttribute(self, value: pointer, kind: signed, device: signed) -> None:
        put(value, signed, ATTRIBUTES[kind])

    def cuDeviceGetPCIBusId(self, name: pointer, length: signed, device: signed) -> None:
        ctypes.memmove(name, b"0000:17:00.0\0", 13)

    def cuDevicePrimaryCtxRetain(self, context: pointer, device: signed) -> None:
        require(not self.refused, self.refused)
        put(context, pointer, self.new(Context()))

    def cuCtxPushCurrent(self, context: pointer) -> None:
        self.get(context, Context)
        self.contexts.append(context)

    def cuCtxPopCurrent(self, context: pointer) -> None:
        require(self.contexts, INVALID_CONTEXT)
        put(context, pointer, self.contexts.pop())

    def cuCtxSynchronize(self) -> None:
        self.wait()

    # -- memory

    def cuMemGetInfo(self, free: pointer, total: pointer) -> None:
        put(free, size, MEMORY_BYTES - self.memory.allocated_bytes)
        put(total, size, MEMORY_BYTES)

    def cuMemAlloc(self, place: pointer, count: size) -> None:
        require(count)
        require(self.memory.allocated_bytes + count <= MEMORY_BYTES, OUT_OF_MEMORY)
        put(place, ctypes.c_uint64, self.memory.allocate(count))

    def cuMemFree(self, place: size) -> None:
        self.wait()
        self.memory.free(place)

    def cuMemAllocHost(self, place: pointer, count: size) -> None:
        made = np.empty(count, np.uint8)
        self.pinned[made.ctypes.data] = made
        put(place, pointer, made.ctypes.data)

    def cuMemFreeHost(self, place: pointer) -> None:
        del self.pinned[place]

    def cuPointerGetAttribute(self, value: pointer, kind: signed, place: size) -> None:
        require(kind == 9)
        put(value, signed, 0)

    def cuMemcpyHtoDAsync(self, to: size, host: pointer, count: size, stream: pointer) -> None:
        there = self.memory.view(to, count)
        self.ask(stream, lambda: ctypes.memmove(there.ctypes.data, host, count))

    def cuMemcpyDtoHAsync(self, host: pointer, source: size, count: size, stream: pointer) -> None:
        there = self.memory.view(source, count)
        self.ask(stream, lambda: ctypes.memmove(host, there.ctypes.data, count))

    def cuMemcpyDtoDAsync(self, to: size, source: size, count: size, stream: pointer) -> None:
        first, second = self.memory.view(to, count), self.memory.view(source, count)
        self.ask(stream, lambda: np.copyto(first, second))

    def cuMemsetD8Async(self, to: size, byte: ctypes.c_ubyte, count: size, stream: pointer) -> None:
        there = self.memory.view(to, count)
        self.ask(stream, lambda: there.fill(byte))

    # -- code

    def cuModuleLoadDataEx(
        self, module: pointer, image: pointer, count: number, options: pointer, values: pointer
    ) -> None:
        self.wait()
        named = (signed * count).from_address(options)
        given = (ctypes.c_uint64 * count).from_address(values)
        settings = dict(zip(named, given, strict=True))
        assert settings[4] == settings[6] == 16 << 10
        code = machine_code_at(image)
        self.counts["machine code"] = self.counts.get("machine code", 0) + bool(code)
        if not code and b".version 8.0" in ctypes.string_at(image):
            require(self.version >= 12000, UNSUPPORTED_PTX_VERSION)
        try:
            loaded = load_ptx(SOURCES[code] if code else ctypes.string_at(image))
        except EmulatorError as error:
            told = f"ptxas: {error}\nmore\0".encode()
            ctypes.memmove(settings[5], told, len(told))
            raise Failure(INVALID_PTX) from None
        ctypes.memmove(settings[3], b"ptxas info\0", 11)
        put(module, pointer, self.new(Code(loaded)))

    def cuModuleUnload(self, module: pointer) -> None:
        self.end(module, Code)

    def cuModuleGetFunction(self, function: pointer, module: pointer, name: text) -> None:
        loaded = self.get(module, Code).module
        require(name.decode() in loaded.kernels, NOT_FOUND)
        put(function, pointer, self.new(Function(loaded, name.decode())))

    def cuFuncGetAttribute(self, value: pointer, kind: signed, function: pointer) -> None:
        kernel = self.get(function, Function).kernel
        shown = {4: kernel.registers, 3: kernel.local_bytes, 1: kernel.shared_bytes,
                 11: kernel.entry.cluster}  # fmt: skip
        put(value, signed, shown[kind])

    def cuFuncSetAttribute(self, function: pointer, kind: signed, value: signed) -> None:
        shared = self.get(function, Function).kernel.shared_bytes
        if kind == 14:  # clusters of more than 8 blocks
            require(value == 1)
            self.large.add(function)
            return
        require(kind == 8)
        require(value + shared <= ATTRIBUTES[97])
        self.allowed[function] = value

    def cuLaunchKernel(
        self, function: pointer, gx: number, gy: number, gz: number, bx: number, by: number,
        bz: number, shared: number, stream: pointer, parameters: pointer, extra: pointer,
    ) -> None:  # fmt: skip
        found = self.get(function, Function)
        require(not extra)
        require(shared <= self.allowed.get(function, 48 << 10))
        require(found.kernel.entry.cluster <= 8 or function in self.large)
        taken = found.kernel.entry.parameters
        places = (ctypes.c_uint64 * len(taken)).from_address(parameters)
        given = [
            int.from_bytes(ctypes.string_at(place, p.size), "little")
            for place, p in zip(places, taken, strict=True)
        ]

        def run() -> None:
            try:
                found.module.launch(
                    self.memory, found.name, (gx, gy, gz), (bx, by, bz), given, shared
                )
            except KernelFault:
                self.ended = LAUNCH_FAILED

        self.ask(stream, run)

    def cuTensorMapEncodeTiled(
        self, made: pointer, kind: signed, rank: number, place: size, extents: pointer,
        strides: pointer, box: pointer, steps: pointer, interleave: signed, swizzle: signed,
        promotion: signed, fill: signed,
    ) -> None:  # fmt: skip
        require(made % 64 == 0)
        require((interleave, promotion, fill) == (0, 3, 0))
        require([*(number * rank).from_address(steps)] == [1] * rank)
        tensor = Tensor(
            place, ITEM_BYTES[kind], tuple((size * rank).from_address(extents)),
            tuple((size * (rank - 1)).from_address(strides)),
            tuple((number * rank).from_address(box)), {0: 0, 1: 32, 2: 64, 3: 128}[swizzle],
        )  # fmt: skip
        try:
            ctypes.memmove(made, encode(tensor), 128)
        except EmulatorError:
            raise Failure(INVALID_VALUE) from None

    # -- streams, events, graphs

    def cuStreamCreate(self, stream: pointer, flags: number) -> None:
        require(flags == 1)
        put(stream, pointer, self.new(Stream()))

    def cuStreamDestroy(self, stream: pointer) -> None:
        self.end(stream, Stream)

    def cuStreamSynchronize(self, stream: pointer) -> None:
        self.get(stream, Stream)
        self.wait()

    def cuStreamWaitEvent(self, stream: pointer, event: pointer, flags: number) -> None:
        require(flags == 0)
        if stream != 1:  # the default stream of another library
            self.get(stream, Stream)
        require(self.get(event, Event).seconds)

    def cuEventCreate(self, event: pointer, flags: number) -> None:
        require(flags == 0)
        put(event, pointer, self.new(Event()))

    def cuEventDestroy(self, event: pointer) -> None:
        self.end(event, Event)

    def cuEventRecord(self, event: pointer, stream: pointer) -> None:
        if stream != 1:  # the default stream of another library
            self.get(stream, Stream)
        self.get(event, Event).seconds = time.perf_counter()

    def cuEventSynchronize(self, event: pointer) -> None:
        self.wait()
        require(self.get(event, Event).seconds)

    def cuEventElapsedTime(self, value: pointer, start: pointer, end: pointer) -> None:
        first, second = self.get(start, Event).seconds, self.get(end, Event).seconds
        require(first)
        require(second)
        put(value, ctypes.c_float, (second - first) * 1e3)

    def cuStreamBeginCapture(self, stream: pointer, mode: signed) -> None:
        self.get(stream, Stream)
        require(mode == 1)
        self.captured[stream] = []

    def cuStreamEndCapture(self, stream: pointer, graph: pointer) -> None:
        put(graph, pointer, self.new(Graph(self.captured.pop(stream))))

    def cuGraphInstantiateWithFlags(self, made: pointer, graph: pointer, flags: size) -> None:
        require(flags == 0)
        put(made, pointer, self.new(Executable(self.get(graph, Graph).work)))

    def cuGraphDestroy(self, graph: pointer) -> None:
        self.end(graph, Graph)

    def cuGraphExecDestroy(self, graph: pointer) -> None:
        self.end(graph, Executable)

    def cuGraphLaunch(self, graph: pointer, stream: pointer) -> None:
        self.get(stream, Stream)
        for work in self.get(graph, Executable).work:
            work()

    # -- the library

    def cuGetProcAddress(
        self, name: text, place: pointer, version: signed, flags: size, found: pointer
    ) -> None:
        callback = self._callbacks.get(name.decode())
        if found:
            put(found, signed, 0 if callback else 1)
        put(place, pointer, ctypes.cast(callback, pointer).value if callback else None)
        require(callback, NOT_FOUND)

    def install(self, folder: Path) -> None:
        """Write the library and load it, so that whoever looks for libcuda.so.1 finds it."""
        for name in dir(self):
            if name.startswith("cu"):
                self._callbacks[name] = self._callback(name)
        path = folder / "libcuda.so.1"
        path.write_bytes(library())
        loaded = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        entry = ctypes.cast(self._callbacks["cuGetProcAddress"], pointer)
        pointer.in_dll(loaded, "entry").value = entry.value
        INSTALLED.append(self)

    def _callback(self, name: str) -> Any:
        function = getattr(self, name)
        *kinds, _ = (eval(kind) for kind in function.__annotations__.values())

        def call(*arguments: Any) -> int:
            self.counts[name] = self.counts.get(name, 0) + 1
            if self.ended and not name.startswith(("cuCtxP", "cuGet", "cuDriver", "cuDeviceGet")):
                return self.ended
            try:
                function(*arguments)
            except Failure as failure:
                return failure.status
            return SUCCESS

        return ctypes.CFUNCTYPE(signed, *kinds)(call)


def machine_code_at(image: int) -> bytes:
    """The machine code at an address, empty if there is none; Failure unless it is for sm_90."""
    head = ctypes.string_at(image, 64)
    if head[:4] != b"\x7fELF":
        return b""
    machine, program_at, sections_at, flags = struct.unpack_from("<16xxxH12xQQI", head)
    each_program, programs, each_section, sections = struct.unpack_from("<54xHHHH", head)
    require(machine == 190, INVALID_IMAGE)  # EM_CUDA
    require(flags & 0xFF == 90 or flags >> 8 & 0xFF == 90, NO_BINARY_FOR_GPU)
    end = max(program_at + each_program * programs, sections_at + each_section * sections)
    return ctypes.string_at(image, end)


class Context:
    """The only one of a device."""


class Stream:
    """Runs at once what it is asked."""


class Event:
    seconds = 0.0


class Code:
    def __init__(self, module: Any) -> None:
        self.module = module


class Function:
    def __init__(self, module: Any, name: str) -> None:
        self.module, self.name, self.kernel = module, name, module.kernels[name]


class Graph:
    def __init__(self, work: list[Callable[[], None]]) -> None:
        self.work = work


class Executable(Graph):
    """A graph that can be launched."""


def library() -> bytes:
    """A shared library whose only function goes on to the one at ``entry``."""
    code = """
@entry = global ptr null
define i32 @cuGetProcAddress(ptr %name, ptr %place, i32 %version, i64 %flags, ptr %found) {
  %go = load ptr, ptr @entry
  %status = call i32 %go(ptr %name, ptr %place, i32 %version, i64 %flags, ptr %found)
  ret i32 %status
}
"""
    made = link_library(
        [compile_llvm(code, Target.host(1))],
        {"entry": "entry", "cuGetProcAddress_v2": "cuGetProcAddress"},
        soname="libcuda.so.1",
        constants={},
        weights_symbol="none",
        weight_bytes=0,
        aliases={},
    )
    return made.head + made.tail
