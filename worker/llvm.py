"""The built-in kind ``llvm``: candidates of this machine's processor, built by our compiler."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunefarm.db.records import FROM_MEMORY, Config
from tunefarm.worker.backend import Array, Built, Problem, TargetPlugin
from tunefarm.worker.device import DeviceOptions, OpenDevice
from tunefarm.worker.memory import copies_of, empty_array, third_cache_bytes
from tunefarm.worker.native import clock_address, timing_loop

if TYPE_CHECKING:
    from tunefarm.compiler.kernel import Kernel
    from tunefarm.compiler.space import ConfigSpace
    from tunefarm.compiler.target import Target
    from tunefarm.compiler.workload import Workload

_COLD_CACHES = 4
_COLD_THIRD_CACHES = 1.5
_MOST_COPIED_BYTES = 256 << 20
_SMALL_CONSTANT_BYTES = 64 << 10
_TOGETHER = 4  # candidates of one module: eight take 2% less time each, and keep the timing waiting


class LlvmBackend:
    """Builds, poses and loads candidates of the ``llvm`` kind."""

    def __init__(self) -> None:
        # Imported before the first build's clock.
        import tunefarm.compiler.build
        import tunefarm.compiler.candidates  # noqa: F401

    def build(self, workload: str, target: str, config: Mapping[str, int | str]) -> Built:
        from tunefarm.compiler.build import build_kernel

        asked = _Asked.of(workload, target)
        operations = asked.operations(config)
        return asked.built(build_kernel(asked.task, asked.machine, config, cache=False), operations)

    def build_together(
        self, workload: str, target: str, configs: Sequence[Mapping[str, int | str]]
    ) -> list[Built | None]:
        from tunefarm.compiler.candidates import build_together

        asked = _Asked.of(workload, target)
        kernels = build_together(asked.task, asked.machine, configs)
        return [
            None if kernel is None else asked.built(kernel, asked.operations(config))
            for kernel, config in zip(kernels, configs, strict=True)
        ]

    def problem(self, workload: str, seed: int) -> Problem:
        from tunefarm.worker.problem import pose

        return pose(workload, seed)

    def start(self, target: str) -> None:
        start_native(target)

    def load(self, built: Built, inputs: Sequence[Array], constant: Sequence[bool]) -> NativeKernel:
        return load_native(built, inputs, constant)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What candidates are built of."""

    task: Workload
    machine: Target
    space: ConfigSpace

    @staticmethod
    def of(workload: str, target: str) -> _Asked:
        from tunefarm.compiler.space import config_space
        from tunefarm.compiler.target import Target
        from tunefarm.compiler.workload import Workload

        task, machine = Workload.from_text(workload), Target(target)
        return _Asked(task, machine, config_space(task, machine))

    def operations(self, config: Mapping[str, int | str]) -> float:
        from tunefarm.worker.roofline import executed_operations

        return executed_operations(self.task, self.space, config)

    def built(self, kernel: Kernel, operations: float) -> Built:
        """The kernel with what the device and its runners are told of it."""
        from tunefarm.worker.roofline import written_bytes

        layouts = {
            str(index): [layout.shape, layout.factors, layout.order, layout.transform]
            for index, layout in kernel.layouts.items()
        }
        metadata = {
            "target": self.machine.text,
            "name": kernel.name,
            "params": [[list(p.shape), p.dtype] for p in kernel.params],
            "outputs": kernel.outputs,
            "layouts": layouts,
            "workspace_bytes": kernel.workspace_bytes,
            "threads": self.machine.num_cores if kernel.parallel else 1,
        }
        return Built(
            kernel.object,
            metadata,
            code_hash=kernel.code_hash,
            space_fingerprint=self.space.fingerprint,
            operations=operations,
            traffic_bytes=written_bytes(self.task),
        )


class NativeKernel:
    """A kernel in this process with its operands, ready for native timing.

    ``rows`` are the inputs that calls take in turn, one row for each copy of the constants;
    ``owner`` keeps the code mapped.
    """

    def __init__(
        self,
        owner: object,
        address: int,
        pool: int,
        workspace: Array,
        rows: Sequence[Sequence[Array]],
        outputs: Sequence[Array],
    ) -> None:
        self._keep = owner, rows
        self._address = address
        self._pool = pool
        self._workspace = workspace
        self._outputs = tuple(outputs)
        pointers = [a.ctypes.data for row in rows for a in (*row, *outputs)]
        self._table = (ctypes.c_void_p * len(pointers))(*pointers)
        self._row_count = len(rows)
        self._calls = 0
        self._loop = timing_loop(len(pointers) // len(rows))

    @property
    def outputs(self) -> Sequence[Array]:
        return self._outputs

    def repeat(self, number: int) -> float:
        if number == 0:
            return 0.0
        nanoseconds = self._loop.function(
            self._address,
            self._pool,
            self._workspace.ctypes.data,
            ctypes.addressof(self._table),
            self._row_count,
            number,
            self._calls,
            clock_address(),
        )
        self._calls += number
        return float(nanoseconds) * 1e-9


def start_native(target: str) -> None:
    """Start the threads of a target's parallel loops; import what ``load_native`` needs."""
    import ml_dtypes  # noqa: F401
    import tunefarm.compiler.packing
    import tunefarm.compiler.runtime.kernel
    import tunefarm.compiler.tir  # noqa: F401
    from tunefarm.compiler.runtime.jit import load_objects
    from tunefarm.compiler.runtime.pool import pool_address
    from tunefarm.compiler.target import Target

    machine = Target(target)
    third_cache_bytes()
    pool_address(load_objects([], [], machine), machine.num_cores)
    timing_loop(1)
    clock_address()


def load_native(built: Built, inputs: Sequence[Array], constant: Sequence[bool]) -> NativeKernel:
    """Link a kernel's object code with the runtime, pack its constants, and place its operands.

    ``built.metadata`` is as ``LlvmBackend.build`` makes it, with the ``protocol`` to time it by.
    """
    from tunefarm.compiler.ir import TensorType
    from tunefarm.compiler.runtime.kernel import load_kernel
    from tunefarm.compiler.runtime.pool import pool_address
    from tunefarm.compiler.target import Target

    facts = built.metadata
    target = Target(facts["target"])
    types = [TensorType(tuple(shape), dtype) for shape, dtype in facts["params"]]
    kernel = load_kernel([built.code], facts["name"], types, facts["outputs"], target=target)
    packed = _packed(inputs, types, facts["layouts"])
    rows_of = memory_rows if facts.get("protocol") == FROM_MEMORY else cold_rows
    rows = rows_of(packed, constant, target)
    results = [empty_array(t.shape, t.dtype) for t in types[len(inputs) :]]
    return NativeKernel(
        kernel,
        kernel.library[kernel.name],
        pool_address(kernel.library, facts["threads"]),
        empty_array((facts["workspace_bytes"],), "uint8"),
        rows,
        results,
    )


def _packed(
    inputs: Sequence[Array], types: Sequence[Any], layouts: Mapping[str, Any]
) -> list[Array]:
    """The inputs as the kernel reads them: constants in the order its layouts ask for."""
    from tunefarm.compiler.packing import pack
    from tunefarm.compiler.tir import PackedLayout

    arrays = list(inputs)
    for name, (shape, factors, order, transform) in layouts.items():
        index = int(name)
        layout = PackedLayout(tuple(map(tuple, factors)), tuple(order), transform, tuple(shape))
        arrays[index] = copy_of(pack(inputs[index], layout, types[index].shape))
    return arrays


def cold_rows(inputs: Sequence[Array], constant: Sequence[bool], target: Any) -> list[list[Array]]:
    """Rows of inputs whose constants evict one another from the second-level caches.

    Together they are four times those caches, so that a copy is gone when its turn comes again.
    Constants of 64 KiB together would stay warm in a model too, and stand in one row.
    """
    size = sum(a.nbytes for a, is_constant in zip(inputs, constant, strict=True) if is_constant)
    cache_bytes = target.l2_bytes * target.num_cores
    copies = 1 if size <= _SMALL_CONSTANT_BYTES else -(-_COLD_CACHES * cache_bytes // size)
    rows = [list(inputs)]
    for _ in range(copies - 1):
        rows.append([copy_of(a) if c else a for a, c in zip(inputs, constant, strict=True)])
    return rows


def memory_rows(
    inputs: Sequence[Array], constant: Sequence[bool], target: Any
) -> list[list[Array]]:
    """Rows of inputs whose constants evict one another from the third-level cache.

    Together they are one and a half times the cache, so that a copy comes from memory when its turn
    comes again (more make no kernel slower), but ``_MOST_COPIED_BYTES`` at most.
    """
    constants = [a for a, is_constant in zip(inputs, constant, strict=True) if is_constant]
    size = sum(a.nbytes for a in constants)
    wanted = _COLD_THIRD_CACHES * max(target.l3_bytes, third_cache_bytes())
    copies = max(1, min(math.ceil(wanted / size), _MOST_COPIED_BYTES // size)) if size else 1
    rows = []
    for copied in copies_of(constants, copies):
        mine = iter(copied)
        rows.append([next(mine) if c else a for a, c in zip(inputs, constant, strict=True)])
    return rows


def copy_of(array: Array) -> Array:
    """The array on pages of its own."""
    fresh = empty_array(array.shape, array.dtype.name)
    fresh[...] = array
    return fresh


def open_llvm(options: DeviceOptions) -> OpenDevice:
    from tunefarm.worker.host import HostDevice

    return HostDevice(options)


def checks(target: str) -> list[tuple[str, str, Config]]:
    """A product, which computes, and a sum, which moves bytes, with their default configs."""
    from tunefarm.compiler.ir import Expr, Function, TensorType, Var
    from tunefarm.compiler.ops import call
    from tunefarm.compiler.space import config_space
    from tunefarm.compiler.target import Target
    from tunefarm.compiler.workload import Workload

    def posed(operator: str, size: int, constants: tuple[int, ...]) -> tuple[str, str, Config]:
        a, b = (Var(name, TensorType((size, size), "float32")) for name in "ab")
        body: Expr = call(operator, a, b)
        function = Function((a, b), body, {"primitive": True, "constants": constants})
        workload = Workload.from_function(function)
        default = config_space(workload, Target(target)).default
        return f"{operator} {size}", workload.text, default

    return [posed("matmul", 256, (1,)), posed("add", 512, ())]


PLUGIN = TargetPlugin(open_llvm, LlvmBackend, checks, together=_TOGETHER)
