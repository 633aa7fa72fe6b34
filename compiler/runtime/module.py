"""``Module``: a built model, ready to run.

lib = create_module(plan, kernels, weights, target)
outputs = lib.run({"x": x})                     # name → fresh NumPy array
lib.export_library("model.so"); same = load_module("model.so")
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.errors import BuildError, ShapeError
from tunefarm.compiler.runtime.arrays import (
    Array,
    address,
    aligned_empty,
    as_input,
    check_output,
    lasting_bytes,
)
from tunefarm.compiler.runtime.cpu import (
    check_features,
    check_machine,
    host_machine,
    missing_features,
    required_features,
)
from tunefarm.compiler.runtime.executor import RUN, executor_text
from tunefarm.compiler.runtime.graph_executor import GraphExecutor, Profile
from tunefarm.compiler.runtime.library import Library
from tunefarm.compiler.runtime.native import flush_bits
from tunefarm.compiler.runtime.plan import ExecutionPlan, Port, verify_plan
from tunefarm.compiler.runtime.pool import check_threads, default_threads, pool_address
from tunefarm.compiler.runtime.timing import Timing, bind_call, evaluate
from tunefarm.compiler.runtime.weights import kept_weights
from tunefarm.compiler.target import Target

SourceKind: TypeAlias = Literal["llvm", "asm", "c"]


class CompiledKernel(Protocol):
    """A kernel as ``create_module`` takes it: object code, and the LLVM text that it is of.

    What it reads may be an input of the model, which is aligned to its elements alone.
    """

    @property
    def name(self) -> str: ...
    @property
    def object(self) -> bytes: ...
    @property
    def text(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Code:
    """What an export and ``get_source`` need beside the loaded code.

    ``executor`` is the object code of ``tunefarm_run``; ``features`` are LLVM's names of the
    instructions that all of it may use; ``c_source`` makes the C text.
    """

    kernels: tuple[CompiledKernel, ...]
    executor: bytes
    features: tuple[str, ...]
    c_source: Callable[[], str] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """A model: plan, code and weights. Safe to run from several threads at once.

    ``threads`` run the parallel loops of a call. ``memories`` is the free list of the memory of
    runs. A module from a file has its ``path`` and no ``code``; its weights are mapped. Without
    ``loaded`` code, which is for a CPU that this machine is not, it can only be exported.
    """

    plan: ExecutionPlan
    loaded: Library | None = field(repr=False)
    weights: NDArray[np.uint8] = field(repr=False)
    weights_address: int = field(repr=False)
    target: Target
    threads: int
    code: Code | None = field(default=None, repr=False)
    path: Path | None = None
    memories: list[_Memory] = field(default_factory=list, repr=False)

    def __repr__(self) -> str:
        """One line: ports, code, sizes, target."""
        ports = " → ".join(
            ", ".join(f"{port.name}: {port.type}" for port in ports)
            for ports in (self.inputs, self.outputs)
        )
        sizes = f"weights={_mb(self.plan.weight_bytes)}, memory={_mb(self.plan.arena_bytes)}"
        place = f", path={self.path}" if self.path is not None else ""
        return (
            f"Module({ports}, kernels={len(self.plan.kernels)}, {sizes}, "
            f"threads={self.threads}, target={self.target}{place})"
        )

    def _repr_html_(self) -> str:
        from tunefarm.notebook import Table, page

        facts = {
            "target": self.target,
            "threads": self.threads,
            "kernels": len(self.plan.kernels),
            "weights": _mb(self.plan.weight_bytes),
            "memory of a run": _mb(self.plan.arena_bytes),
            "file": self.path or "",
        }
        ports = [("input", port.name, port.type) for port in self.inputs]
        ports += [("output", port.name, port.type) for port in self.outputs]
        note = "module.profile() times each step; module.get_source() shows the code"
        return page("Module", facts, Table(("port", "name", "type"), ports, 3), note)

    @property
    def library(self) -> Library:
        """The loaded code; TargetError if this machine is another or lacks its instructions."""
        if self.loaded is None:
            assert self.code is not None
            check_machine(self.target.isa.name, f"code for {self.target}")
            check_features(self.code.features, f"code for {self.target}")
            raise AssertionError("code that this machine can run was not loaded")
        return self.loaded

    @property
    def peak_bytes(self) -> int:
        """Bytes that one run needs beside weights, inputs and outputs.

        Intermediate values lie there, and the workspaces of kernels, for as many threads as the
        target has cores; so do their tiles, but for those of at most 16 KiB, which are on the
        threads' stacks.
        """
        return self.plan.arena_bytes

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Names and types of the inputs."""
        return self.plan.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Names and types of the outputs."""
        return self.plan.outputs

    def run(self, inputs: Mapping[str, object], *, threads: int | None = None) -> dict[str, Array]:
        """The outputs by name: fresh arrays that own their memory.

        ``inputs`` are NumPy arrays or DLPack tensors by name. ``threads`` (the module's own by
        default) share the work, which is cut the same way for any number: so are the results.
        Kernels with a workspace have one for each of the target's cores, and more threads than
        that do not help them.
        Raises ShapeError, in one sentence, for a missing or unknown name, a wrong shape or a wrong
        dtype, TargetError if the module was built for a CPU with instructions that this machine
        lacks.
        """
        arrays = self.check_inputs(inputs, aligned=False)
        results = [aligned_empty(port.type) for port in self.plan.outputs]
        self.run_raw(arrays, results, threads)
        return {port.name: array for port, array in zip(self.plan.outputs, results, strict=True)}

    def run_raw(
        self, inputs: Sequence[Array], outputs: Sequence[Array], threads: int | None = None
    ) -> None:
        """Run on arrays as ``check_inputs`` returns them, in order, writing ``outputs``."""
        count = self.threads if threads is None else check_threads(threads)
        run, pool = self.library.function(RUN), pool_address(self.library, count)
        memory = self._take_memory()
        try:
            given, made = _table(inputs), _table(outputs)
            status = run(pool, memory.address, self.weights_address, given, made)
        finally:
            self.memories.append(memory)
        assert status == 0, f"the native executor returned {status}"

    def check_inputs(self, inputs: Mapping[str, object], aligned: bool = True) -> list[Array]:
        """The inputs in the plan's order, contiguous; ShapeError if they do not fit.

        What is not ``aligned`` to 64 bytes can be run on, but is read slower: copying it first pays
        from the second run on.
        """
        return [
            as_input(value, port.type, f"input {port.name!r}", aligned)
            for port, value in zip(self.plan.inputs, self.in_order(inputs), strict=True)
        ]

    def in_order(self, inputs: Mapping[str, object]) -> list[object]:
        """The inputs in the plan's order, as they were given; ShapeError for a wrong name."""
        names = [port.name for port in self.plan.inputs]
        if isinstance(inputs, dict) and list(inputs) == names:
            return list(inputs.values())
        if not isinstance(inputs, Mapping):
            raise ShapeError(
                f"the inputs are given as {type(inputs).__name__}, expected a dictionary of arrays "
                f"by name; the model takes {', '.join(names)}"
            )
        for name in inputs:
            if name not in names:
                raise ShapeError(f"the model has no input {name!r}; its inputs: {', '.join(names)}")
        missing = [name for name in names if name not in inputs]
        if missing:
            raise ShapeError(f"input {missing[0]!r} is missing; the model takes {', '.join(names)}")
        return [inputs[name] for name in names]

    def run_into(self, inputs: Mapping[str, object], outputs: Mapping[str, Array]) -> None:
        """Like ``run``, writing into given aligned C-contiguous arrays."""
        arrays = self.check_inputs(inputs, aligned=False)
        for port in self.plan.outputs:
            if port.name not in outputs:
                raise ShapeError(f"output {port.name!r} is missing")
        results = [
            check_output(outputs[p.name], p.type, f"output {p.name!r}") for p in self.plan.outputs
        ]
        self.run_raw(arrays, results)

    def time_evaluator(
        self,
        inputs: Mapping[str, object] | None = None,
        *,
        number: int = 1,
        repeat: int = 3,
        min_repeat_ms: float = 0,
        cold_weights: bool = False,
    ) -> Timing:
        """Seconds of a whole run, timed by a native loop; the first call is discarded.

        Without ``inputs`` it runs on ``example_inputs()``. ``cold_weights`` evicts all weights
        from the caches before each run.
        """
        arrays = self.check_inputs(self.example_inputs() if inputs is None else inputs)
        results = [aligned_empty(port.type) for port in self.plan.outputs]
        tables = (_table(arrays), _table(results))
        flushed = [(self.weights_address, self.plan.weight_bytes)] if cold_weights else []
        with self.memory() as memory:
            pointers = [
                pool_address(self.library, self.threads),
                memory,
                self.weights_address,
                *map(ctypes.addressof, tables),
            ]
            keep = (*arrays, *results, *tables)
            call = bind_call(self.library, self.library[RUN], pointers, self.threads, flushed, keep)
            return evaluate(call.seconds, number, repeat, min_repeat_ms)

    def profile(self, inputs: Mapping[str, object] | None = None, repeat: int = 10) -> Profile:
        """The time of each node, run one by one; the median of ``repeat`` runs."""
        return self.graph_executor().profile(
            self.check_inputs(self.example_inputs() if inputs is None else inputs), repeat
        )

    def graph_executor(self) -> GraphExecutor:
        """An executor of the same plan that goes node by node, for inspection."""
        bits = flush_bits(self.target)
        return GraphExecutor(self.plan, self.library, self.weights, self.threads, bits)

    def example_inputs(self, seed: int = 0) -> dict[str, Array]:
        """Inputs of the right types: normal floats, zeros for integers and booleans."""
        generator = np.random.default_rng(seed)
        arrays = {}
        for port in self.plan.inputs:
            array = aligned_empty(port.type)
            is_float = "float" in port.type.dtype
            array[...] = generator.standard_normal(port.type.shape) if is_float else 0
            arrays[port.name] = array
        return arrays

    def with_threads(self, threads: int) -> Module:
        """The same module, run by another number of threads."""
        return replace(self, threads=check_threads(threads))

    def export_library(self, path: str | Path, name: str | None = None) -> None:
        """Write the model as one ``.so`` that needs no tunefarm, and a C header beside it.

        A path that ends in ``.o`` or ``.a`` makes an object or a static archive. ``name`` prefixes
        the C names (the file's stem by default). Raises BuildError if code needs what a library
        without imports cannot have, or the files cannot be written.
        """
        from tunefarm.compiler.runtime.export import export_library

        export_library(self, Path(path), name)

    def get_source(self, kind: SourceKind = "llvm") -> str:
        """The LLVM text, assembly or C of all kernels; BuildError if it is not kept."""
        from tunefarm.compiler.codegen.llvm_compile import assembly

        if self.code is None:
            raise BuildError(f"{self.path} holds machine code alone; build the model to see {kind}")
        match kind:
            case "llvm":
                return "\n".join(f"; kernel {k.name}\n{k.text}" for k in self.code.kernels)
            case "asm":
                return "\n".join(assembly(k.text, self.target) for k in self.code.kernels)
            case "c" if self.code.c_source is not None:
                return self.code.c_source()
            case _:
                raise BuildError(f"this module has no {kind!r} source; it has llvm and asm")

    @contextmanager
    def memory(self) -> Iterator[int]:
        """The address of memory for one run (the arena), from a growing free list."""
        memory = self._take_memory()
        try:
            yield memory.address
        finally:
            self.memories.append(memory)

    def _take_memory(self) -> _Memory:
        try:
            return self.memories.pop()
        except IndexError:
            array = lasting_bytes(self.plan.arena_bytes)
            return _Memory(array, address(array))


@dataclass(frozen=True, slots=True, eq=False)
class _Memory:
    array: NDArray[np.uint8]
    address: int


def create_module(
    plan: ExecutionPlan,
    kernels: Sequence[CompiledKernel],
    weights: NDArray[np.uint8],
    target: Target,
    *,
    c_source: Callable[[], str] | None = None,
    threads: int | None = None,
) -> Module:
    """Make a module of a plan's kernels, loaded if this machine has the target's instructions.

    ``weights`` are the plan's ``weight_bytes`` bytes. They are read-only from now on, and shared
    with living modules of equal weights. ``threads`` is the smaller of the target's cores and
    TUNEFARM_NUM_THREADS unless given. ``c_source`` makes the text of ``get_source("c")``. Raises
    BuildError if plan and kernels do not fit together.
    """
    from tunefarm.compiler.codegen.llvm_compile import compile_llvm, features
    from tunefarm.compiler.runtime.jit import load_objects

    verify_plan(plan)
    if weights.nbytes < plan.weight_bytes:
        raise BuildError(
            f"the plan reads {plan.weight_bytes} bytes of weights, got {weights.nbytes}"
        )
    needed = required_features(target, features(target))
    executor = compile_llvm(executor_text(plan, target), target)
    library = None
    if host_machine() == target.isa.name and not missing_features(needed):
        objects = dict.fromkeys([*(kernel.object for kernel in kernels), executor])
        library = load_objects(list(objects), [RUN, *plan.kernels], target)
    count = min(target.num_cores, default_threads()) if threads is None else threads
    code = Code(tuple(kernels), executor, needed, c_source)
    kept = kept_weights(weights)
    return Module(plan, library, kept, address(kept), target, count, code)


def load_module(path: str | Path) -> Module:
    """Load what ``export_library`` wrote. It needs NumPy and no LLVM; a model for a GPU needs its
    driver when it first runs.

    Raises BuildError if the file is not such a library, TargetError if this machine's CPU lacks
    instructions that it uses.
    """
    from tunefarm.compiler.runtime.cuda.package import is_package, load_package
    from tunefarm.compiler.runtime.export import load_library

    if is_package(Path(path)):
        return load_package(Path(path))
    return load_library(Path(path))


def _mb(count: int) -> str:
    return f"{count / 1e6:.3g} MB"


def _table(arrays: Sequence[Array]) -> ctypes.Array[ctypes.c_void_p]:
    """A C array of the arrays' addresses."""
    return (ctypes.c_void_p * len(arrays))(*map(address, arrays))
