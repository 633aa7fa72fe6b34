"""The kernels of a model that run on the host, and where their operands lie there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.kernel import Kernel, symbol_of
from tunefarm.compiler.runtime.arrays import address, aligned_bytes
from tunefarm.compiler.runtime.jit import load_objects
from tunefarm.compiler.runtime.library import Library
from tunefarm.compiler.runtime.plan import Argument, ExecutionPlan, KernelCall, Place, nbytes
from tunefarm.compiler.runtime.pool import default_threads, pool_address
from tunefarm.compiler.runtime.timing import BoundCall, bind_call
from tunefarm.compiler.target import Target


@dataclass(frozen=True, slots=True, eq=False)
class HostKernels:
    """Loaded code of kernels, by their names in the plan."""

    library: Library = field(repr=False)
    kernels: Mapping[str, Kernel]
    threads: int

    def places(self, plan: ExecutionPlan, weights: NDArray[np.uint8]) -> HostPlaces:
        """Memory of the host for the values of one run at a time."""
        memories: dict[tuple[Place, int], NDArray[np.uint8]] = {
            ("arena", 0): aligned_bytes(plan.arena_bytes),
            ("weight", 0): weights,
        }
        for index, port in enumerate(plan.inputs):
            memories["input", index] = aligned_bytes(nbytes(port.type))
        for index, port in enumerate(plan.outputs):
            memories["output", index] = aligned_bytes(nbytes(port.type))
        return HostPlaces(self, memories)


@dataclass(frozen=True, slots=True, eq=False)
class HostPlaces:
    """Where each value lies on the host: as on the device, byte by byte. The system gives pages to
    those alone that are used there."""

    kernels: HostKernels
    memories: Mapping[tuple[Place, int], NDArray[np.uint8]]

    def view(self, argument: Argument, size_bytes: int) -> NDArray[np.uint8]:
        """The bytes of a value."""
        memory = self.memories[argument.place, argument.index]
        return memory[argument.offset : argument.offset + size_bytes]

    def call(self, call: KernelCall) -> BoundCall:
        """A call of a kernel on its operands."""
        library, threads = self.kernels.library, self.kernels.threads
        starts = [
            address(self.memories[a.place, a.index]) + a.offset
            for a in (Argument("arena", call.workspace.offset), *call.arguments)
        ]
        pointers = [pool_address(library, threads), *starts]
        function = library[symbol_of(self.kernels.kernels[call.kernel])]
        return bind_call(library, function, pointers, threads, keep=(self.memories,))


def load_host_kernels(kernels: Sequence[Kernel], target: Target) -> HostKernels:
    """Load kernels that were built for this host. BuildError if they do not link."""
    objects = list(dict.fromkeys(kernel.object for kernel in kernels))
    library = load_objects(objects, list(map(symbol_of, kernels)), target)
    threads = min(target.num_cores, default_threads())
    return HostKernels(library, {kernel.name: kernel for kernel in kernels}, threads)
