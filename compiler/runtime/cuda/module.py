"""``CudaModule``: a built model that runs on a GPU, behind the interface of ``Module``.

lib = build(model, "cuda -arch=sm_90a")
outputs = lib.run({"x": x})                             # NumPy in, NumPy out
outputs = lib.run({"x": tensor}, device=True)           # torch or CuPy in, DeviceArrays out
other = lib.on_device(1)
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.errors import BuildError, ShapeError
from tunefarm.compiler.kernel import Kernel, is_of_host
from tunefarm.compiler.runtime.arrays import Array, address, aligned_empty
from tunefarm.compiler.runtime.cuda.arrays import DeviceArray, Operand, as_operand, to_device
from tunefarm.compiler.runtime.cuda.driver import Device, check_device, open_device
from tunefarm.compiler.runtime.cuda.host import load_host_kernels
from tunefarm.compiler.runtime.cuda.loading import load_all
from tunefarm.compiler.runtime.cuda.memory import take
from tunefarm.compiler.runtime.cuda.placement import (
    HostCall,
    PlacedStep,
    ToDevice,
    ToHost,
    placed_steps,
)
from tunefarm.compiler.runtime.cuda.session import Residence, Session, resident_weights
from tunefarm.compiler.runtime.cuda.timing import seconds_cold, seconds_each, seconds_together
from tunefarm.compiler.runtime.graph_executor import GraphExecutor, NodeTime, Profile
from tunefarm.compiler.runtime.module import Module
from tunefarm.compiler.runtime.plan import Copy, ExecutionPlan, KernelCall, nbytes, verify_plan
from tunefarm.compiler.runtime.timing import Timing, check_count, evaluate
from tunefarm.compiler.runtime.weights import kept_weights
from tunefarm.compiler.target import Target

LEGACY_STREAM = 1  # the default stream, as CUDA and DLPack name it where 0 would be unclear


class _State:
    """The module on its device, once it was first run."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.residence: Residence | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CudaModule(Module):
    """A model for a GPU: plan, PTX and weights. Safe to run from several threads at once.

    Nothing is asked of a driver until it first runs, so a host without a GPU can build it and show
    its code. It runs on the device ``ordinal`` of the host, but for the ``host_kernels``.
    """

    kernels: tuple[Kernel, ...] = field(repr=False)
    host_kernels: tuple[Kernel, ...] = field(default=(), repr=False)
    ordinal: int = 0
    state: _State = field(default_factory=_State, repr=False)

    def __repr__(self) -> str:
        """One line: ports, code, sizes, target, device."""
        start, _, _ = Module.__repr__(self).partition(", threads=")
        return f"Cuda{start}, target={self.target}, device={self._device_text()})"

    def _repr_html_(self) -> str:
        from tunefarm.notebook import Table, page

        facts = {
            "target": self.target,
            "device": self._device_text(),
            "kernels": len(self.plan.kernels),
            "weights": f"{self.plan.weight_bytes / 1e6:.3g} MB",
            "memory of a run": f"{self.plan.arena_bytes / 1e6:.3g} MB",
            "file": self.path or "",
        }
        ports = [("input", port.name, port.type) for port in self.inputs]
        ports += [("output", port.name, port.type) for port in self.outputs]
        note = "module.profile() times each step; module.get_source() shows the code"
        return page("Module", facts, Table(("port", "name", "type"), ports, 3), note)

    def _device_text(self) -> str:
        home = self.state.residence
        name = f" ({home.device.properties.name})" if home else ""
        return f"{self.ordinal}{name}"

    @property
    def residence(self) -> Residence:
        """The module on its device, loaded at the first use.

        Raises TargetError if there is no such device or it cannot run the code, BuildError with the
        driver's log if it refuses a kernel, DeviceMemoryError if the weights do not fit.
        """
        with self.state.lock:
            if self.state.residence is None:
                device = open_device(self.ordinal)
                check_device(device.properties, self.target)
                self.state.residence = self._settle(device)
            return self.state.residence

    @property
    def logs(self) -> Mapping[str, str]:
        """What the driver's compiler, or NVIDIA's assembler, said of each kernel's code, by its
        name in the plan. Loads the module, as a first run does."""
        return {name: kernel.log for name, kernel in self.residence.kernels.items()}

    def _settle(self, device: Device) -> Residence:
        kernels = load_all(device, self.kernels)
        weights = resident_weights(device, self.weights)
        host = None
        if self.host_kernels:
            host = load_host_kernels(self.host_kernels, Target.host())
        steps = placed_steps(
            self.plan,
            {kernel.name: kernel for kernel in self.kernels},
            host.kernels if host else {},
        )
        return Residence(device, self.plan, steps, kernels, weights, host)

    def on_device(self, ordinal: int) -> CudaModule:
        """The same module on another device of the host."""
        return replace(self, ordinal=ordinal, state=_State())

    def run(
        self,
        inputs: Mapping[str, object],
        *,
        threads: int | None = None,
        device: bool = False,
        stream: int | None = None,
    ) -> dict[str, Any]:
        """The outputs by name: fresh NumPy arrays, or DeviceArrays if ``device``.

        ``inputs`` are NumPy arrays, or tensors by name; those on this device (torch, CuPy, results
        of runs) are read where they are. All work is done when it returns. With the ``stream`` of
        another library (``torch.cuda.current_stream().cuda_stream``) it returns at once: the run
        waits for what that was asked so far, what it is asked from then on waits for the run, and
        outputs are DeviceArrays. Raises ShapeError and TargetError, in one sentence, for what does
        not fit or lies elsewhere, and as of ``residence``.
        """
        if stream is not None:
            return dict(self._run_in(inputs, stream or LEGACY_STREAM))
        home = self.residence
        results: list[Array | DeviceArray] = [
            DeviceArray(take(home.device, nbytes(port.type)), port.type)
            if device
            else aligned_empty(port.type)
            for port in self.outputs
        ]
        with home.session() as session:
            operands = self._operands(inputs, session)
            session.run(operands, [_result(array) for array in results])
        return {port.name: array for port, array in zip(self.outputs, results, strict=True)}

    def _run_in(self, inputs: Mapping[str, object], stream: int) -> dict[str, DeviceArray]:
        """Run in the order of another library's stream, without waiting."""
        device = self.residence.device
        results = {
            port.name: DeviceArray(take(device, nbytes(port.type)), port.type, stream)
            for port in self.outputs
        }
        with self.residence.session() as session:
            session.stream.wait_for(stream)
            operands = self._operands(inputs, session)
            session.ask(operands, [_result(array) for array in results.values()])()
            session.stream.precede(stream)
        for array in (*results.values(), *(operand.keep for operand in operands)):
            if isinstance(array, DeviceArray):
                array.memory.lend()  # it may be dropped before the run is through
        return results

    def run_raw(
        self, inputs: Sequence[Array], outputs: Sequence[Array], threads: int | None = None
    ) -> None:
        """Run on arrays as ``check_inputs`` returns them, in order, writing ``outputs``."""
        with self.residence.session() as session:
            session.run([_result(a) for a in inputs], [_result(a) for a in outputs])

    def run_into(self, inputs: Mapping[str, object], outputs: Mapping[str, Any]) -> None:
        """Like ``run``, writing into given arrays: NumPy's, or tensors of this device."""
        with self.residence.session() as session:
            operands = self._operands(inputs, session)
            results = []
            for port in self.outputs:
                if port.name not in outputs:
                    raise ShapeError(f"output {port.name!r} is missing")
                results.append(
                    as_operand(
                        outputs[port.name],
                        port.type,
                        f"output {port.name!r}",
                        self.residence.device,
                        session.stream,
                        out=True,
                    )
                )
            session.run(operands, results)

    def _operands(self, inputs: Mapping[str, object], session: Session) -> list[Operand]:
        values = zip(self.inputs, self.in_order(inputs), strict=True)
        device = self.residence.device
        return [
            as_operand(value, port.type, f"input {port.name!r}", device, session.stream)
            for port, value in values
        ]

    def time_evaluator(
        self,
        inputs: Mapping[str, object] | None = None,
        *,
        number: int = 1,
        repeat: int = 3,
        min_repeat_ms: float = 0,
        cold_weights: bool = False,
    ) -> Timing:
        """Seconds of a whole run by the device's clock, its operands on the device: the replay of
        a graph. The first call is discarded.

        Without ``inputs`` it runs on ``example_inputs()``. ``cold_weights`` empties the device's
        cache before each run.
        """
        device = self.residence.device
        with self.residence.session() as session:
            operands = self._on_device(inputs, session)  # whose memory is theirs until the end
            call = session.captured(*operands)

            def seconds(count: int) -> float:
                timed = seconds_cold if cold_weights else seconds_together
                return timed(device, session.stream, call, count)

            return evaluate(seconds, number, repeat, min_repeat_ms)

    def profile(self, inputs: Mapping[str, object] | None = None, repeat: int = 10) -> Profile:
        """The time of each node by the device's clock; the median of ``repeat`` runs."""
        check_count("repeat", repeat)
        with self.residence.session() as session:
            operands = self._on_device(inputs, session)
            calls = session.calls(session.bases(*operands))
            device = self.residence.device
            runs = [seconds_each(device, session.stream, calls) for _ in range(repeat + 1)][1:]
        return Profile(
            tuple(
                NodeTime(*_told(step), statistics.median(times))
                for step, times in zip(self.residence.steps, zip(*runs, strict=True), strict=True)
            )
        )

    def _on_device(
        self, inputs: Mapping[str, object] | None, session: Session
    ) -> tuple[list[Operand], list[Operand]]:
        """Operands of a run without copies: inputs of the host are copied now."""
        device = self.residence.device
        given = self._operands(self.example_inputs() if inputs is None else inputs, session)
        operands = []
        for port, operand in zip(self.inputs, given, strict=True):
            if operand.host is not None:
                array = to_device(device, operand.host, port.type, f"input {port.name!r}")
                operand = _result(array)
            operands.append(operand)
        results = [DeviceArray(take(device, nbytes(p.type)), p.type) for p in self.outputs]
        return operands, [_result(array) for array in results]

    def graph_executor(self) -> GraphExecutor:
        """BuildError: it goes through a plan on the host."""
        raise BuildError(
            f"the graph executor runs kernels of processors, and this module is for {self.target}; "
            "profile() times its nodes"
        )

    def with_threads(self, threads: int) -> CudaModule:
        """The module itself: threads are for processors."""
        return self

    def export_library(self, path: str | Path, name: str | None = None) -> None:
        """Write the model as one file for ``load_module``: plan, PTX, weights, and machine code for
        the target's architecture where NVIDIA's assembler is installed.

        Raises BuildError for a path that names a library for C, and if it cannot be written.
        """
        from tunefarm.compiler.runtime.cuda.package import export_package

        export_package(self, Path(path), name)

    def get_source(self, kind: str = "llvm") -> str:
        """The "llvm" or "ptx" text of all kernels, or their "accesses" (``Kernel.get_source``);
        BuildError for another, and for "llvm" of a module from a file."""
        if kind == "llvm" and self.path is not None:
            raise BuildError(f"{self.path} holds PTX alone; build the model to see {kind}")
        mark = ";" if kind == "llvm" else "//"
        kernels = (*self.kernels, *(self.host_kernels if kind == "llvm" else ()))
        return "\n".join(f"{mark} kernel {k.name}\n{k.get_source(kind)}" for k in kernels)


def _result(array: Array | DeviceArray) -> Operand:
    if isinstance(array, DeviceArray):
        return Operand(array.address, None, array)
    return Operand(None, array, array)


def _told(step: PlacedStep) -> tuple[str, str]:
    """The label of a step, and its kernel."""
    match step:
        case KernelCall():
            return step.label, step.kernel
        case HostCall(call):
            return f"{call.label}, on the host", call.kernel
        case Copy():
            return step.label, "copy"
        case ToHost():
            return f"{step.bytes} bytes to the host", "copy"
        case ToDevice():
            return f"{step.bytes} bytes to the device", "copy"


def create_cuda_module(
    plan: ExecutionPlan, kernels: Sequence[Kernel], weights: NDArray[np.uint8], target: Target
) -> CudaModule:
    """Put a built model together. ``weights`` holds the plan's weights at its offsets.

    Raises BuildError if the parts do not fit.
    """
    verify_plan(plan)
    if weights.nbytes < plan.weight_bytes:
        raise BuildError(
            f"the plan reads {plan.weight_bytes} bytes of weights, got {weights.nbytes}"
        )
    kept = kept_weights(weights)
    return CudaModule(
        plan,
        None,
        kept,
        address(kept),
        target,
        1,
        kernels=tuple(k for k in kernels if not is_of_host(k)),
        host_kernels=tuple(k for k in kernels if is_of_host(k)),
    )
