"""Built kernels on a device: loaded code, and what is asked of a stream to run it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tunefarm.compiler.kernel import Kernel
from tunefarm.compiler.runtime.cuda.driver import Device, Function, Stream

_LOADERS = 8


@dataclass(frozen=True, slots=True, eq=False)
class LoadedKernel:
    """The code of a ``Kernel``. ``log`` is what the driver's compiler said of it."""

    kernel: Kernel
    functions: tuple[Function, ...]
    log: str

    def ask(self, stream: Stream, pointers: Sequence[int], workspace: int) -> None:
        """Have a stream run it: ``pointers`` are its parameters, inputs first."""
        arguments = [*pointers, workspace]
        for function, launch in zip(self.functions, self.kernel.launches, strict=True):
            stream.launch(function, launch, arguments)


def load(device: Device, kernel: Kernel) -> LoadedKernel:
    """Compile and load a kernel's PTX. Raises BuildError with the first line of the driver's log,
    DriverError if the device has less shared memory than a launch asks for."""
    code = device.load(kernel.object)
    return LoadedKernel(kernel, tuple(map(code.function, kernel.launches)), code.log)


def load_all(device: Device, kernels: Iterable[Kernel]) -> dict[str, LoadedKernel]:
    """Kernels by name, as ``load`` does, several at a time: the driver's compiler takes tenths of a
    second for each."""
    with ThreadPoolExecutor(min(_LOADERS, os.cpu_count() or 1)) as threads:
        loaded = list(threads.map(lambda kernel: load(device, kernel), kernels))
    return {made.kernel.name: made for made in loaded}
