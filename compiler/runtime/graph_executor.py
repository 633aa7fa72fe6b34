"""The graph executor: a plan walked node by node, to look inside and to time each node.

executor = GraphExecutor(plan, library, weights, threads)
executor.run(inputs, observe=lambda number, step, results: ...)
print(executor.profile(inputs))
text = executor.to_json();  GraphExecutor.from_json(text, library, weights, threads)
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.runtime.arrays import Array, address, aligned_empty, lasting_bytes
from tunefarm.compiler.runtime.library import Library
from tunefarm.compiler.runtime.native import FLOAT_MODE
from tunefarm.compiler.runtime.plan import Argument, Copy, ExecutionPlan, KernelCall, Step
from tunefarm.compiler.runtime.pool import pool_address
from tunefarm.compiler.runtime.timing import BoundCall, bind_call, check_count

Observer = Callable[[int, Step, Sequence[int]], None]


@dataclass(frozen=True, slots=True)
class NodeTime:
    """Median seconds of one step."""

    label: str
    kernel: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Profile:
    """The times of all steps in order; ``print`` shows them, slowest first."""

    nodes: tuple[NodeTime, ...]

    @property
    def seconds(self) -> float:
        """The sum over all nodes."""
        return sum(node.seconds for node in self.nodes)

    def to_json(self) -> str:
        return json.dumps([asdict(node) for node in self.nodes])

    @staticmethod
    def from_json(text: str) -> Profile:
        return Profile(tuple(NodeTime(**node) for node in json.loads(text)))

    def __str__(self) -> str:
        total = self.seconds or 1.0
        lines = [f"{'µs':>10}  {'share':>6}  node"]
        for node in sorted(self.nodes, key=lambda n: -n.seconds):
            share = node.seconds / total
            lines.append(f"{node.seconds * 1e6:10.1f}  {share:6.1%}  {node.label or node.kernel}")
        return "\n".join([*lines, f"{self.seconds * 1e6:10.1f}  {1:6.1%}  {len(self.nodes)} nodes"])


@dataclass(frozen=True, slots=True, eq=False)
class GraphExecutor:
    """Runs the steps of a plan one at a time, with the plan's kernels from ``library``.

    ``flush`` are the bits that a run adds to the mode of floats (``native.flush_bits``).
    """

    plan: ExecutionPlan
    library: Library = field(repr=False)
    weights: NDArray[np.uint8] = field(repr=False)
    threads: int = 1
    flush: int = 0

    def run(self, inputs: Sequence[Array], observe: Observer | None = None) -> list[Array]:
        """Fresh outputs for aligned inputs in the plan's order.

        ``observe(number, step, pointers)`` is called after each step with its arguments'
        addresses, valid during the call.
        """
        bound = self._bind(inputs)
        for number, step in enumerate(self.plan.steps):
            pointers = bound.pointers(step)
            if isinstance(step, Copy):
                ctypes.memmove(pointers[1], pointers[0], step.bytes)
            else:
                with self._as_in_a_run():
                    self._call(step, bound, pointers)()
            if observe is not None:
                observe(number, step, pointers)
        return list(bound.outputs)

    def profile(self, inputs: Sequence[Array], repeat: int = 10) -> Profile:
        """Median seconds of each step over ``repeat`` runs; a run before them is discarded.
        TunefarmError where ``repeat`` is below 1."""
        check_count("repeat", repeat)
        bound = self._bind(inputs)
        calls = [self._timed(step, bound) for step in self.plan.steps]
        with self._as_in_a_run():
            runs = [[call() for call in calls] for _ in range(repeat + 1)][1:]
        medians = [statistics.median(times) for times in zip(*runs, strict=True)]
        return Profile(
            tuple(
                NodeTime(step.label, step.kernel if isinstance(step, KernelCall) else "copy", t)
                for step, t in zip(self.plan.steps, medians, strict=True)
            )
        )

    def to_json(self) -> str:
        """The plan as JSON; the code and the weights are not in it."""
        return self.plan.to_json()

    @staticmethod
    def from_json(
        text: str,
        library: Library,
        weights: NDArray[np.uint8],
        threads: int = 1,
        flush: int = 0,
    ) -> GraphExecutor:
        """An executor of a saved plan; BuildError if the text is of another version."""
        return GraphExecutor(ExecutionPlan.from_json(text), library, weights, threads, flush)

    @contextlib.contextmanager
    def _as_in_a_run(self) -> Iterator[None]:
        """Floats as a run of the model has them."""
        set_mode = self.library.function(FLOAT_MODE)
        mode = set_mode(0)
        try:
            set_mode(mode | self.flush)
            yield
        finally:
            set_mode(mode)

    def _bind(self, inputs: Sequence[Array]) -> _Bound:
        memory = lasting_bytes(self.plan.arena_bytes)
        outputs = tuple(aligned_empty(port.type) for port in self.plan.outputs)
        return _Bound(memory, self.weights, tuple(inputs), outputs)

    def _call(self, step: KernelCall, bound: _Bound, pointers: Sequence[int]) -> BoundCall:
        pool = pool_address(self.library, self.threads)
        workspace = address(bound.memory) + step.workspace.offset
        function = self.library[step.kernel]
        return bind_call(self.library, function, [pool, workspace, *pointers], self.threads)

    def _timed(self, step: Step, bound: _Bound) -> Callable[[], float]:
        pointers = bound.pointers(step)
        if isinstance(step, Copy):
            return lambda: _timed_copy(pointers[1], pointers[0], step.bytes)
        call = self._call(step, bound, pointers)
        return lambda: call.seconds(1)


@dataclass(frozen=True, slots=True, eq=False)
class _Bound:
    """The memory of one run."""

    memory: NDArray[np.uint8]
    weights: NDArray[np.uint8]
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]

    def pointers(self, step: Step) -> list[int]:
        return list(self._pointers(step))

    def _pointers(self, step: Step) -> Iterator[int]:
        arguments: tuple[Argument, ...]
        match step:
            case KernelCall():
                arguments = step.arguments
            case Copy():
                arguments = (step.source, step.destination)
        for argument in arguments:
            match argument.place:
                case "arena":
                    base = self.memory
                case "weight":
                    base = self.weights
                case "input":
                    base = self.inputs[argument.index]
                case "output":
                    base = self.outputs[argument.index]
            yield address(base) + argument.offset


def _timed_copy(destination: int, source: int, size: int) -> float:
    start = time.perf_counter_ns()
    ctypes.memmove(destination, source, size)
    return (time.perf_counter_ns() - start) * 1e-9
