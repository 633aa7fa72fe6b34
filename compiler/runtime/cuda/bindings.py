"""NVIDIA's driver as its package shows it: found, called, its failures told, its GPUs described.

Source: NVIDIA, "CUDA Driver API".
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from tunefarm.compiler.errors import TargetError
from tunefarm.compiler.runtime.cuda.driver import (
    DeviceMemoryError,
    DeviceProperties,
    DriverError,
    arch_of,
)

_EMULATE = "set TUNEFARM_CUDA=emulated to run it on an emulator, slowly"
_TENSOR_MAPS = 12000  # the version of CUDA that they came with
_FATAL = frozenset(
    f"CUDA_ERROR_{name}"
    for name in (
        "ASSERT",
        "CONTAINED",
        "CONTEXT_IS_DESTROYED",
        "ECC_UNCORRECTABLE",
        "EXTERNAL_DEVICE",
        "HARDWARE_STACK_ERROR",
        "ILLEGAL_ADDRESS",
        "ILLEGAL_INSTRUCTION",
        "INVALID_ADDRESS_SPACE",
        "INVALID_PC",
        "LAUNCH_FAILED",
        "LAUNCH_TIMEOUT",
        "MISALIGNED_ADDRESS",
        "MPS_CLIENT_TERMINATED",
        "NVLINK_UNCORRECTABLE",
    )
)  # after these the context takes no more calls


@functools.cache
def bindings() -> Any:
    """``cuda.bindings.driver``, initialised; TargetError, in one sentence, if it cannot be."""
    try:
        from cuda.bindings import driver as cuda
    except ImportError:
        raise TargetError(
            "code for GPUs is run by the package cuda-bindings, which is not installed; "
            f"pip install 'tunefarm[cuda]', or {_EMULATE}"
        ) from None
    try:
        (result,) = cuda.cuInit(0)
    except RuntimeError:
        raise TargetError(
            "there is no NVIDIA driver here (libcuda.so.1); install it on a host with a GPU, or "
            f"{_EMULATE}"
        ) from None
    if result == cuda.CUresult.CUDA_ERROR_NO_DEVICE:
        raise TargetError(
            "the NVIDIA driver shows no GPU; look at nvidia-smi and CUDA_VISIBLE_DEVICES, or "
            f"{_EMULATE}"
        )
    if result != cuda.CUresult.CUDA_SUCCESS:
        raise TargetError(
            f"the NVIDIA driver does not start: {_reason(cuda, result)}; look at nvidia-smi, or "
            f"{_EMULATE}"
        )
    return cuda


def call(function: Callable[..., Any], *arguments: Any, where: str = "") -> Any:
    """What a function of the driver returns beside its status; DriverError unless that is 0."""
    status, *results = function(*arguments)
    if status != 0:
        cuda = bindings()
        problem = f"{function.__name__}{where} failed: {_reason(cuda, status)}"
        code = str(status.name)
        if code == "CUDA_ERROR_OUT_OF_MEMORY":
            raise DeviceMemoryError(problem, code)
        raise DriverError(problem, code, fatal=code in _FATAL)
    return results[0] if len(results) == 1 else results


def _reason(cuda: Any, status: Any) -> str:
    """A status in the driver's words."""
    _, text = cuda.cuGetErrorString(status)
    return f"{text.decode() if text else 'unknown'} ({status.name})"


def read_properties(cuda: Any, number: Any, ordinal: int) -> DeviceProperties:
    kinds = cuda.CUdevice_attribute

    def attribute(name: str) -> int:
        kind = getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(call(cuda.cuDeviceGetAttribute, kind, number))

    major = attribute("COMPUTE_CAPABILITY_MAJOR")
    minor = attribute("COMPUTE_CAPABILITY_MINOR")
    return DeviceProperties(
        ordinal=ordinal,
        name=text_of(call(cuda.cuDeviceGetName, 256, number)),
        arch=arch_of(major, minor),
        multiprocessors=attribute("MULTIPROCESSOR_COUNT"),
        memory_bytes=int(call(cuda.cuDeviceTotalMem, number)),
        l2_bytes=attribute("L2_CACHE_SIZE"),
        shared_bytes=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        clock_hz=attribute("CLOCK_RATE") * 1000,
        memory_clock_hz=attribute("MEMORY_CLOCK_RATE") * 1000,
        pci=text_of(call(cuda.cuDeviceGetPCIBusId, 64, number)),
        uuid=uuid_of(bytes(call(cuda.cuDeviceGetUuid, number).bytes)),
    )


def uuid_of(raw: bytes) -> str:
    """The 16 bytes of a UUID as nvidia-smi writes them."""
    text = raw[:16].hex()
    return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def text_of(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode()


@functools.cache
def tensor_map_encoder() -> Callable[..., Any]:
    """The driver's function, which the package would have write to memory of its own: that begins
    at odd multiples of 32 bytes, where a tensor map has to begin at one of 64."""
    cuda = bindings()
    place, _ = call(cuda.cuGetProcAddress, b"cuTensorMapEncodeTiled", _TENSOR_MAPS, 0)
    number, row = ctypes.c_int, ctypes.c_void_p
    kinds = (row, number, ctypes.c_uint32, ctypes.c_uint64, row, row, row, row, *[number] * 4)
    function = ctypes.CFUNCTYPE(number, *kinds)(int(place))

    def cuTensorMapEncodeTiled(*arguments: Any) -> tuple[Any]:
        return (cuda.CUresult(function(*arguments)),)

    return cuTensorMapEncodeTiled
