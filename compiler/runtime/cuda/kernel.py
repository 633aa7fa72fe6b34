"""One kernel on a device as a Python function: what a worker times.

add = load_kernel(build_program(program, target), target)
(result,) = add(x, y)
print(add.time_evaluator(x, y, min_repeat_ms=20))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.ir import TensorType
from tunefarm.compiler.kernel import Kernel
from tunefarm.compiler.runtime.arrays import Array
from tunefarm.compiler.runtime.cuda.arrays import DeviceArray, as_operand, to_device
from tunefarm.compiler.runtime.cuda.driver import (
    Device,
    Function,
    Graph,
    Stream,
    check_device,
    open_device,
)
from tunefarm.compiler.runtime.cuda.loading import LoadedKernel, load
from tunefarm.compiler.runtime.cuda.memory import DeviceMemory, take
from tunefarm.compiler.runtime.cuda.timing import seconds_cold, seconds_together
from tunefarm.compiler.runtime.plan import nbytes
from tunefarm.compiler.runtime.timing import Timing, evaluate
from tunefarm.compiler.target import Target

_GRAPH_CALLS = 32  # calls of a graph: launched one by one, short kernels wait for the host


@dataclass(frozen=True, slots=True, eq=False)
class CudaKernel:
    """A program's kernels on a device, called with arrays.

    ``types`` are the parameters', inputs first and constants packed, the last ``outputs`` of them
    written. A call makes fresh outputs on the host; ``bind`` takes what lies on the device.
    """

    loaded: LoadedKernel = field(repr=False)
    target: Target
    device: Device = field(repr=False)

    def __repr__(self) -> str:
        """One line: name, types, device."""
        types = [str(t) for t in self.types]
        count = len(types) - self.outputs
        ends = f"{', '.join(types[:count])} → {', '.join(types[count:])}"
        place = self.device.properties.name
        return f"CudaKernel({self.name}: {ends}, device={place}, target={self.target})"

    @property
    def kernel(self) -> Kernel:
        """What was built."""
        return self.loaded.kernel

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def types(self) -> tuple[TensorType, ...]:
        return self.kernel.params

    @property
    def outputs(self) -> int:
        return self.kernel.outputs

    @property
    def functions(self) -> tuple[Function, ...]:
        """What a call launches, in order, with registers and shared memory of each."""
        return self.loaded.functions

    @property
    def log(self) -> str:
        """What the driver's compiler, or NVIDIA's assembler, said of the code."""
        return self.loaded.log

    def __call__(self, *inputs: object) -> tuple[Array, ...]:
        """The outputs, fresh arrays. Raises ShapeError if the inputs do not fit."""
        call = self.bind(inputs)
        call()
        return tuple(array.numpy() for array in call.outputs)

    def bind(
        self, inputs: Sequence[object], outputs: Sequence[DeviceArray] | None = None
    ) -> CudaCall:
        """The call on these tensors; those of the host are copied to the device."""
        count = len(self.types) - self.outputs
        if len(inputs) != count:
            raise ShapeError(f"{self.name} takes {count} inputs, got {len(inputs)}")
        if outputs is not None and len(outputs) != self.outputs:
            raise ShapeError(f"{self.name} has {self.outputs} outputs, got {len(outputs)}")
        stream = self.device.stream()
        pointers: list[int] = []
        keep: list[object] = []
        for index, (value, tensor) in enumerate(zip(inputs, self.types[:count], strict=True)):
            what = f"input {index} of {self.name}"
            operand = as_operand(value, tensor, what, self.device, stream)
            if operand.address is None:
                copied = to_device(self.device, operand.host, tensor, what)
                pointers.append(copied.address)
                keep.append(copied)
            else:
                pointers.append(operand.address)
                keep.append(operand.keep)
        results = []
        for index, tensor in enumerate(self.types[count:]):
            results.append(self._output(index, tensor, outputs))
            pointers.append(results[-1].address)
        workspace = take(self.device, self.kernel.workspace_bytes)
        return CudaCall(self, stream, tuple(pointers), workspace, tuple(results), tuple(keep))

    def _output(
        self, index: int, tensor: TensorType, given: Sequence[DeviceArray] | None
    ) -> DeviceArray:
        if given is None:
            return DeviceArray(take(self.device, nbytes(tensor)), tensor)
        array = given[index]
        if array.type != tensor or array.memory.device is not self.device:
            raise ShapeError(
                f"output {index} of {self.name} is {array.type} on device "
                f"{array.memory.device.properties.ordinal}, expected {tensor} on device "
                f"{self.device.properties.ordinal}"
            )
        return array

    def time_evaluator(
        self,
        *inputs: object,
        number: int = 1,
        repeat: int = 3,
        min_repeat_ms: float = 0,
        cold: Sequence[int] = (),
    ) -> Timing:
        """Seconds a call by the device's clock, without copies from and to the host.

        If ``cold`` names any input, the device's cache is emptied before each call.
        """
        call = self.bind(inputs)
        seconds = call.cold_seconds if cold else call.seconds
        return evaluate(seconds, number, repeat, min_repeat_ms)

    def get_source(self, kind: str = "llvm") -> str:
        """The text as "llvm", "ptx" or "accesses", see ``Kernel.get_source``."""
        return self.kernel.get_source(kind)


@dataclass(slots=True, eq=False)
class CudaCall:
    """A kernel with its operands in place on the device, ready to be called many times."""

    function: CudaKernel
    stream: Stream
    pointers: tuple[int, ...]
    workspace: DeviceMemory
    outputs: tuple[DeviceArray, ...]
    keep: tuple[object, ...]
    _graph: Graph | None = None

    def __call__(self) -> None:
        """One call, to its end."""
        self.ask()
        self.stream.synchronize()

    def ask(self) -> None:
        """One call, on the stream."""
        self.function.loaded.ask(self.stream, self.pointers, self.workspace.address)

    def seconds(self, number: int) -> float:
        """Seconds of ``number`` calls together; many of them are asked for as graphs."""
        many, rest = divmod(number, _GRAPH_CALLS)
        device = self.function.device
        total = 0.0
        if many:
            if self._graph is None:
                self._graph = self.stream.capture(self._ask_many)
            total = seconds_together(device, self.stream, self._replay, many)
        if rest:
            total += seconds_together(device, self.stream, self.ask, rest)
        return total

    def cold_seconds(self, number: int) -> float:
        """The sum of the seconds of ``number`` calls, the cache emptied before each."""
        return seconds_cold(self.function.device, self.stream, self.ask, number)

    def _ask_many(self) -> None:
        for _ in range(_GRAPH_CALLS):
            self.ask()

    def _replay(self) -> None:
        assert self._graph is not None
        self.stream.replay(self._graph)


def load_kernel(kernel: Kernel, target: Target, device: Device | None = None) -> CudaKernel:
    """A built kernel on a device, the first one by default.

    Raises TargetError if there is none or it cannot run code for the target, BuildError with the
    driver's log if it refuses the code.
    """
    place = open_device() if device is None else device
    check_device(place.properties, target)
    return CudaKernel(load(place, kernel), target, place)
