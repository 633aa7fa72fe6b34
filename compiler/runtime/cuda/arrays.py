"""Arrays of a device: what a run takes and gives without a copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.errors import ShapeError, TargetError
from tunefarm.compiler.ir import TensorType
from tunefarm.compiler.runtime import dlpack
from tunefarm.compiler.runtime.arrays import Array, aligned_empty, as_input, check_output
from tunefarm.compiler.runtime.cuda.driver import Device, Stream
from tunefarm.compiler.runtime.cuda.memory import DeviceMemory, take
from tunefarm.compiler.runtime.plan import nbytes

POINTER_ALIGNMENT = 16  # bytes; code for GPUs takes what parameters point to as aligned so


@dataclass(frozen=True, slots=True, eq=False)
class DeviceArray:
    """A C-contiguous tensor in a device's memory, complete when it is handed out, or for what comes
    next in the ``stream`` of another library.

    torch.from_dlpack(array) and cupy.from_dlpack(array) see the same memory; ``numpy()`` copies it.
    """

    memory: DeviceMemory
    type: TensorType
    stream: int | None = None

    def __repr__(self) -> str:
        return f"DeviceArray({self.type} on device {self.memory.device.properties.ordinal})"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of the elements."""
        return numpy_dtype(self.type.dtype)

    @property
    def address(self) -> int:
        return self.memory.address

    def numpy(self) -> Array:
        """A copy on the host."""
        self._complete_for(None)
        array = aligned_empty(self.type)
        stream = self.memory.device.stream()
        stream.download(array, self.address)
        stream.synchronize()
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("an array of a device cannot be seen from the host without a copy")
        return np.asarray(self.numpy(), dtype)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.memory.device.properties.ordinal

    def __dlpack__(self, *, stream: int | None = None, **options: object) -> object:
        """A capsule for the consumer's ``stream``."""
        self._check_lendable()
        self._complete_for(stream)
        self.memory.lend()
        return dlpack.lend(self.address, self.type, self.__dlpack_device__(), self.memory)

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        if self.type.dtype == "bfloat16":
            raise AttributeError("this interface has no bfloat16; DLPack has")
        self._check_lendable()
        self._complete_for(None)
        self.memory.lend()
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "stream": None,
        }

    def _complete_for(self, stream: int | None) -> None:
        """Wait, unless the array is complete for what comes next in that stream."""
        if self.stream not in (None, stream):
            self.memory.device.synchronize()

    def _check_lendable(self) -> None:
        if self.memory.device.properties.emulated:
            raise TargetError(
                "the array lies in the memory of an emulator, which no other library sees; "
                "numpy() copies it"
            )


def to_device(device: Device, value: object, tensor: TensorType, what: str) -> DeviceArray:
    """A copy of a NumPy array or a DLPack tensor of the host; ShapeError if it does not fit."""
    array = as_input(value, tensor, what, aligned=False)
    made = DeviceArray(take(device, nbytes(tensor)), tensor)
    stream = device.stream()
    stream.upload(made.address, array)
    stream.synchronize()
    return made


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """An input or output of a run: where it lies on the device, or else the host's array."""

    address: int | None
    host: Array | None
    keep: object


def as_operand(
    value: object, tensor: TensorType, what: str, device: Device, stream: Stream, out: bool = False
) -> Operand:
    """A tensor of this device as it is, or an array of the host.

    ``stream`` waits for what the tensor's library still has to do with it. ShapeError, naming
    ``what``, if it does not fit; TargetError if it lies on another device.
    """
    if isinstance(value, DeviceArray):
        if value.memory.device is not device:
            raise TargetError(_elsewhere(what, value.memory.device.properties.ordinal, device))
        _check(value.type, tensor, what)
        return Operand(value.address, None, value)
    if isinstance(value, (np.ndarray, np.generic)):
        return _of_host(value, tensor, what, out)
    borrowed = _borrowed(value, what, device, stream)
    if borrowed is None:
        return _of_host(value, tensor, what, out)
    if borrowed.ordinal != device.properties.ordinal:
        raise TargetError(_elsewhere(what, borrowed.ordinal, device))
    _check(borrowed.type, tensor, what)
    if not borrowed.contiguous or borrowed.address % POINTER_ALIGNMENT:
        raise ShapeError(
            f"{what} is not C-contiguous from a multiple of {POINTER_ALIGNMENT} bytes on; give a "
            "copy (.contiguous() or .clone() in torch)"
        )
    return Operand(borrowed.address, None, borrowed)


def _of_host(value: Any, tensor: TensorType, what: str, out: bool) -> Operand:
    if out:
        array = check_output(value, tensor, what)
    else:
        array = as_input(value, tensor, what, aligned=False)
    return Operand(None, array, value)


def _borrowed(value: Any, what: str, device: Device, stream: Stream) -> dlpack.Borrowed | None:
    """A tensor on a GPU of another library, None if it is none."""
    if hasattr(value, "__dlpack_device__"):
        kind, _ = value.__dlpack_device__()
        if int(kind) not in (dlpack.CUDA, dlpack.CUDA_MANAGED):
            return None
        try:
            capsule = value.__dlpack__(stream=stream.handle)
        except (BufferError, RuntimeError, TypeError) as error:
            raise ShapeError(f"{what} cannot be read through DLPack: {error}") from None
        return dlpack.borrow(capsule, what)
    interface = getattr(value, "__cuda_array_interface__", None)
    return None if interface is None else _by_interface(value, interface, device, stream)


def _by_interface(
    value: object, interface: dict[str, Any], device: Device, stream: Stream
) -> dlpack.Borrowed:
    """Source: "CUDA Array Interface (Version 3)", Numba's documentation."""
    dtype = np.dtype(interface["typestr"])
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    steps = None if strides is None else tuple(s // dtype.itemsize for s in strides)
    if interface.get("stream") is not None:
        stream.wait_for(int(interface["stream"]))
    start = int(interface["data"][0])
    return dlpack.Borrowed(
        start,
        TensorType(shape, dtype.name),
        dlpack.is_contiguous(shape, steps),
        device.ordinal_of(start),
        value,
    )


def _check(has: TensorType, tensor: TensorType, what: str) -> None:
    if has.dtype != tensor.dtype:
        raise ShapeError(f"{what} has dtype {has.dtype}, expected {tensor.dtype}; convert it first")
    if has.shape != tensor.shape:
        raise ShapeError(f"{what} has shape {has.shape}, expected {tensor.shape}")


def _elsewhere(what: str, ordinal: int, device: Device) -> str:
    return (
        f"{what} lies on device {ordinal} and the code on device {device.properties.ordinal}; "
        "copy it there, or take the code there with on_device"
    )
