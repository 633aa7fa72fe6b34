"""Built kernels on a device: loaded code, and what is asked of a stream to run it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.gpu.cubin import Cubin, assembled
from tunefarm.compiler.kernel import Kernel
from tunefarm.compiler.runtime.cuda.driver import Code, Device, Function, Stream

Result = TypeVar("Result")
_LOADERS = 8


@dataclass(frozen=True, slots=True, eq=False)
class LoadedKernel:
    """The code of a ``Kernel``. ``log`` is what the driver's compiler said of it, or NVIDIA's
    assembler where that made the machine code."""

    kernel: Kernel
    functions: tuple[Function, ...]
    log: str

    def ask(self, stream: Stream, pointers: Sequence[int], workspace: int) -> None:
        """Have a stream run it: ``pointers`` are its parameters, inputs first."""
        arguments = [*pointers, workspace]
        for function, launch in zip(self.functions, self.kernel.launches, strict=True):
            stream.launch(function, launch, arguments)


def load(device: Device, kernel: Kernel) -> LoadedKernel:
    """Load a kernel: its machine code where the device takes that, else its PTX, which the driver
    compiles. Raises BuildError with the first line of the driver's log, DriverError if the device
    has less shared memory than a launch asks for."""
    code = _load_cubin(device, kernel.cubin)
    said: tuple[str, ...] = ()
    if code is None:
        code = device.load(kernel.object)
    elif kernel.cubin is not None:
        said = kernel.cubin.warnings
    log = "\n".join(filter(None, (code.log, *said)))
    return LoadedKernel(kernel, tuple(map(code.function, kernel.launches)), log)


def _load_cubin(device: Device, cubin: Cubin | None) -> Code | None:
    """Loaded machine code; None if there is none, or it is of a newer toolkit than the driver."""
    properties = device.properties
    if cubin is None or properties.emulated or not cubin.runs_on(properties.arch):
        return None
    try:
        return device.load(cubin.code)
    except BuildError:
        return None


def load_all(device: Device, kernels: Iterable[Kernel]) -> dict[str, LoadedKernel]:
    """Kernels by name, as ``load`` does, several at a time: to compile one takes tenths of a
    second. Where NVIDIA's assembler is installed it makes their code, as it does for trials."""
    properties = device.properties
    if not properties.emulated:
        kernels = assembled_all(kernels, properties.arch)
    return {made.kernel.name: made for made in _at_once(partial(load, device), kernels)}


def assembled_all(kernels: Iterable[Kernel], arch: str) -> list[Kernel]:
    """Kernels with machine code for an architecture, where there is an assembler."""
    return _at_once(lambda kernel: assembled(kernel, arch), kernels)


def _at_once(work: Callable[[Kernel], Result], kernels: Iterable[Kernel]) -> list[Result]:
    with ThreadPoolExecutor(min(_LOADERS, os.cpu_count() or 1)) as threads:
        return list(threads.map(work, kernels))
