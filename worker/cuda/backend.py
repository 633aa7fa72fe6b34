"""The built-in kind ``cuda``: candidates of GPUs, built without one, timed on the runner's.

Builders make PTX, and machine code of it where NVIDIA's assembler is installed; the driver takes
the one or compiles the other.
The runner times a call at a time, after memory of twice the second-level cache was written: what a
call reads comes from beyond that cache.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tunefarm.compiler.runtime.cuda.driver import is_emulating
from tunefarm.db.records import Config, ErrorKind
from tunefarm.worker.backend import Array, Built, CandidateError, Problem, TargetPlugin
from tunefarm.worker.cuda.discovery import require
from tunefarm.worker.cuda.policy import GPU
from tunefarm.worker.device import DeviceOptions, OpenDevice

if TYPE_CHECKING:
    from tunefarm.compiler.gpu.cubin import Cubin
    from tunefarm.compiler.kernel import Kernel
    from tunefarm.compiler.runtime.cuda.kernel import CudaCall
    from tunefarm.worker.cuda.assembler import Assembler

MOST_SPILLED_BYTES = 256
"""Of a thread, a quarter of the registers that it may have."""
_ONES = 0xFF


class CudaBackend:
    """Builds, poses and loads candidates of the ``cuda`` kind."""

    def __init__(self) -> None:
        import tunefarm.compiler.build  # noqa: F401  (imported before the first build's clock)

        self._assembler: Assembler | None = None

    def prepare_builds(self) -> None:
        from tunefarm.worker.cuda.assembler import begin_assembler

        self._assembler = begin_assembler()

    def build(self, workload: str, target: str, config: Mapping[str, int | str]) -> Built:
        from tunefarm.compiler.build import build_kernel
        from tunefarm.compiler.space import config_space
        from tunefarm.compiler.target import Target
        from tunefarm.compiler.workload import Workload
        from tunefarm.worker.roofline import executed_operations, written_bytes

        task, machine = Workload.from_text(workload), Target(target)
        space = config_space(task, machine)
        kernel = build_kernel(task, machine, config, cache=False)
        if self._assembler is not None:
            cubin = self._assembler.assemble(kernel.object, machine.gpu.name)
            kernel = replace(kernel, cubin=cubin)
            refuse_spills(cubin)
        return Built(
            kernel.object + (kernel.cubin.code if kernel.cubin else b""),
            described(kernel, target),
            code_hash=kernel.code_hash,
            space_fingerprint=space.fingerprint,
            operations=executed_operations(task, space, config),
            traffic_bytes=written_bytes(task),
        )

    def problem(self, workload: str, seed: int) -> Problem:
        from tunefarm.worker.problem import pose

        return pose(workload, seed)

    def start(self, target: str) -> None:
        """Open the device, and have the driver compile something: its compiler is loaded then."""
        import ml_dtypes  # noqa: F401
        import tunefarm.compiler.packing
        import tunefarm.compiler.runtime.cuda.kernel
        import tunefarm.compiler.tir  # noqa: F401
        from tunefarm.compiler.runtime.cuda.driver import check_device, open_device
        from tunefarm.compiler.target import Target

        device = open_device()
        check_device(device.properties, Target(target))
        if not device.properties.emulated:
            from tunefarm.worker.cuda.reference import reference_loop

            reference_loop(device).seconds()

    def load(self, built: Built, inputs: Sequence[Array], constant: Sequence[bool]) -> GpuKernel:
        from tunefarm.compiler.runtime.cuda.kernel import load_kernel
        from tunefarm.compiler.target import Target

        with classified():
            kernel = kernel_of(built)
            loaded = load_kernel(kernel, Target(built.metadata["target"]))
            return GpuKernel(loaded.bind(packed(inputs, kernel)))


class GpuKernel:
    """A kernel on the device with its operands; what its calls raise is told as what it means."""

    def __init__(self, call: CudaCall) -> None:
        self._call = call

    @property
    def outputs(self) -> Sequence[Array]:
        with classified():
            return [output.numpy() for output in self._call.outputs]

    def poison(self) -> None:
        with classified():
            for output in self._call.outputs:
                memory = output.memory
                self._call.stream.fill(memory.address, _ONES, memory.size_bytes)

    def repeat(self, number: int) -> float:
        with classified():
            return self._call.cold_seconds(number)


@contextlib.contextmanager
def classified() -> Iterator[None]:
    """CandidateError for what the driver raises: memory, a fault, or code that it refuses."""
    from tunefarm.compiler.errors import BuildError
    from tunefarm.compiler.runtime.cuda.driver import DeviceMemoryError, DriverError

    try:
        yield
    except DeviceMemoryError as error:
        raise CandidateError(ErrorKind.OUT_OF_MEMORY, str(error)) from None
    except DriverError as error:
        kind = ErrorKind.RUN_CRASH if error.fatal else ErrorKind.RUN_ERROR
        raise CandidateError(kind, str(error)) from None
    except BuildError as error:
        raise CandidateError(ErrorKind.BUILD_ERROR, str(error)) from None


def refuse_spills(cubin: Cubin | None) -> None:
    """BuildError for code that keeps much of what it computes with in memory: no such kernel is
    the fastest, and none needs a GPU to tell."""
    from tunefarm.compiler.errors import BuildError

    for name, usage in cubin.kernels.items() if cubin is not None else ():
        if usage.spilled_bytes > MOST_SPILLED_BYTES:
            raise BuildError(
                f"{name} spills {usage.spilled_bytes} bytes a thread beside {usage.registers} "
                f"registers; at most {MOST_SPILLED_BYTES} are tried"
            )


def described(kernel: Kernel, target: str) -> dict[str, Any]:
    """What ``kernel_of`` needs to know of a kernel beside its code, as JSON values. The code is
    PTX, then machine code if there is any."""
    from tunefarm.compiler.kernel import told_of

    return {**told_of(kernel), "target": target, "ptx_bytes": len(kernel.object)}


def kernel_of(built: Built) -> Kernel:
    """The kernel that was built, without its LLVM text."""
    from tunefarm.compiler import kernel

    size = built.metadata["ptx_bytes"]
    return kernel.kernel_of(built.metadata, built.code[:size], machine_code=built.code[size:])


def usage_of(built: Built) -> dict[str, float]:
    """What the code takes of a thread, as a trial tells it: the most of its kernels, and how often
    the assembler warned; nothing where it was not assembled."""
    cubin = built.metadata["cubin"]
    kernels = list(cubin["kernels"].values()) if cubin else []
    if not kernels:
        return {}
    names = ("registers", "spilled_bytes", "stack_bytes")
    taken = {name: float(max(usage[name] for usage in kernels)) for name in names}
    return {**taken, "assembler_warnings": float(len(cubin["warnings"]))}


def packed(inputs: Sequence[Array], kernel: Kernel) -> list[Array]:
    """The inputs as the kernel reads them, in the shapes of its parameters: constants in the order
    its layouts ask for."""
    from tunefarm.compiler.packing import pack

    return [
        pack(array, kernel.layouts[index], param.shape)
        if index in kernel.layouts
        else array.reshape(param.shape)
        for index, (array, param) in enumerate(zip(inputs, kernel.params, strict=False))
    ]


def open_cuda(options: DeviceOptions) -> OpenDevice:
    from tunefarm.worker.cuda.device import CudaDevice

    return CudaDevice(options)


def checks(target: str) -> list[tuple[str, str, Config]]:
    """A product, of float16 where there are tensor cores, and a sum, with their default configs;
    small ones for an emulator."""
    from tunefarm.compiler.target import Target

    machine = Target(target)
    dtype = "float16" if machine.gpu.has_tensor_cores else "float32"
    product, elements = (32, 64) if is_emulating() else (1024, 2048)
    return [check("matmul", product, dtype, machine), check("add", elements, "float32", machine)]


def check(operator: str, size: int, dtype: str, machine: Any) -> tuple[str, str, Config]:
    """An operator of two square matrices, with its default config."""
    from tunefarm.compiler.ir import Expr, Function, TensorType, Var
    from tunefarm.compiler.ops import call
    from tunefarm.compiler.space import config_space
    from tunefarm.compiler.workload import Workload

    a, b = (Var(name, TensorType((size, size), dtype)) for name in "ab")
    body: Expr = call(operator, a, b)
    workload = Workload.from_function(Function((a, b), body, {"primitive": True}))
    default = config_space(workload, machine).default
    return f"{operator} {size} {dtype}", workload.text, default


PLUGIN = TargetPlugin(open_cuda, CudaBackend, checks, require, policy=GPU)
