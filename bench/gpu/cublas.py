"""cuBLAS by its shared library, where PyTorch is not installed or to compare with it.

Source: NVIDIA, "cuBLAS", cublasGemmEx; the numbers are those of its headers ``cublas_api.h`` and
``library_types.h``.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator
from ctypes import byref, c_float, c_int, c_void_p
from pathlib import Path
from typing import Any

from cases import Array
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.ir import TensorType
from tunefarm.compiler.runtime.cuda.arrays import DeviceArray, to_device
from tunefarm.compiler.runtime.cuda.driver import Device
from tunefarm.compiler.runtime.cuda.memory import take
from tunefarm.compiler.runtime.cuda.timing import seconds_cold

NAMES = ("libcublas.so.13", "libcublas.so.12")
KINDS = {"float32": 0, "float16": 2, "bfloat16": 14}  # cudaDataType
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
AS_IT_LIES = 0  # cublasOperation_t
SUMS_OF_FLOAT32, SUMS_OF_TF32 = 68, 77  # cublasComputeType_t
ITS_CHOICE = -1  # cublasGemmAlgo_t


class Cublas:
    """The library, with a handle on device 0, whose primary context its runtime takes."""

    def __init__(self, library: Any) -> None:
        self._library = library
        handle = c_void_p()
        self._call("cublasCreate_v2", byref(handle))
        self._handle = handle

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise TunefarmError(f"{name} failed with status {status}")

    def version(self) -> int:
        """Its version as one number: 130100."""
        found = c_int()
        self._call("cublasGetVersion_v2", self._handle, byref(found))
        return found.value

    def multiply(
        self, stream: int, a: DeviceArray, b: DeviceArray, c: DeviceArray, precise: bool
    ) -> None:
        """Have a stream compute c = a · b of rows: its columns are our rows, so cᵀ = bᵀ · aᵀ.

        Sums are float32's, of operands that are not ``precise`` those of TF32.
        """
        (m, k), (_, n) = a.shape, b.shape
        kind = KINDS[a.type.dtype]
        one, zero = c_float(1.0), c_float(0.0)
        self._call("cublasSetStream_v2", self._handle, c_void_p(stream))
        self._call(
            "cublasGemmEx", self._handle, c_int(AS_IT_LIES), c_int(AS_IT_LIES),
            c_int(n), c_int(m), c_int(k), byref(one),
            c_void_p(b.address), c_int(kind), c_int(n), c_void_p(a.address), c_int(kind), c_int(k),
            byref(zero), c_void_p(c.address), c_int(kind), c_int(n),
            c_int(SUMS_OF_FLOAT32 if precise else SUMS_OF_TF32), c_int(ITS_CHOICE),
        )  # fmt: skip


class CublasProduct:
    """A product of two matrices on our memory and stream, timed as ours is."""

    name = "cuBLAS"

    def __init__(
        self, cublas: Cublas, device: Device, a: Array, b: Array, *, precise: bool
    ) -> None:
        self._cublas, self._device, self._precise = cublas, device, precise
        self._stream = device.stream()
        dtype = a.dtype.name
        types = [TensorType(x.shape, dtype) for x in (a, b)]
        self._a, self._b = (
            to_device(device, x, t, "operand") for x, t in zip((a, b), types, strict=True)
        )
        made = TensorType((a.shape[0], b.shape[1]), dtype)
        self._c = DeviceArray(take(device, a.shape[0] * b.shape[1] * ITEM_BYTES[dtype]), made)

    def _ask(self) -> None:
        self._cublas.multiply(self._stream.handle, self._a, self._b, self._c, self._precise)

    def output(self) -> Array:
        """What one call gives, as float32."""
        self._ask()
        self._stream.synchronize()
        return self._c.numpy().astype("float32")

    def cold_seconds(self, number: int) -> float:
        """The sum of the seconds of ``number`` calls, the cache emptied before each."""
        return seconds_cold(self._device, self._stream, self._ask, number)


def find_cublas() -> Cublas | None:
    """The newest one of this host; None if there is none."""
    for place in _places():
        try:
            return Cublas(ctypes.CDLL(str(place)))
        except (OSError, TunefarmError):
            continue
    return None


def _places() -> Iterator[Path | str]:
    """Where it may be: NVIDIA's wheels, the system's libraries, a toolkit."""
    wheels = importlib.util.find_spec("nvidia")
    for root in (wheels.submodule_search_locations or ()) if wheels is not None else ():
        for name in NAMES:
            yield from sorted(Path(root).glob(f"*/lib/{name}"))
    yield from NAMES
    yield from (Path("/usr/local/cuda/lib64", name) for name in NAMES)
