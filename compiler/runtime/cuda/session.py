"""One run of a model at a time: its stream, its memory, and the graph that replays it."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.runtime.arrays import Array
from tunefarm.compiler.runtime.cuda.arrays import Operand
from tunefarm.compiler.runtime.cuda.driver import Device, Graph
from tunefarm.compiler.runtime.cuda.loading import LoadedKernel
from tunefarm.compiler.runtime.cuda.memory import DeviceMemory, take
from tunefarm.compiler.runtime.plan import (
    Argument,
    Copy,
    ExecutionPlan,
    Place,
    Step,
    arguments_of,
)

_GRAPHS = 8  # sets of addresses whose graphs a session keeps

Bases = Mapping[Place, Sequence[int]]
"""Where the arena, the weights, and each input and output begin."""


@dataclass(frozen=True, slots=True, eq=False)
class Residence:
    """A model on a device: loaded code, weights, and the sessions that nobody uses now."""

    device: Device
    plan: ExecutionPlan
    kernels: Mapping[str, LoadedKernel] = field(repr=False)
    weights: ResidentWeights = field(repr=False)
    idle: list[Session] = field(default_factory=list, repr=False)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A session for one run; one that failed is dropped."""
        try:
            session = self.idle.pop()
        except IndexError:
            session = Session(self)
        yield session
        self.idle.append(session)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ResidentWeights:
    """Weights on a device, and the bytes of the host that they are."""

    host: NDArray[np.uint8] = field(repr=False)
    memory: DeviceMemory


_RESIDENT: weakref.WeakValueDictionary[tuple[int, int], ResidentWeights] = (
    weakref.WeakValueDictionary()
)
_LOCK = threading.Lock()


def resident_weights(device: Device, host: NDArray[np.uint8]) -> ResidentWeights:
    """A module's weights on a device, copied there once for all modules that share them."""
    with _LOCK:
        key = (id(device), id(host))
        found = _RESIDENT.get(key)
        if found is None:
            found = ResidentWeights(host, take(device, host.nbytes))
            stream = device.stream()
            stream.upload(found.memory.address, host)
            stream.synchronize()
            _RESIDENT[key] = found
        return found


class _Staged:
    """An input or output of the host: pinned memory, and its place on the device."""

    def __init__(self, device: Device, array: Array) -> None:
        self.memory = take(device, array.nbytes)
        self.pinned: Array = device.pinned(array.nbytes).view(array.dtype).reshape(array.shape)


class Session:
    """The memory and the stream of one run. Runs follow one another."""

    def __init__(self, home: Residence) -> None:
        self.home = home
        self.stream = home.device.stream()
        self._arena = take(home.device, home.plan.arena_bytes)
        self._staged: dict[tuple[Place, int], _Staged] = {}
        self._graphs: OrderedDict[tuple[int, ...], Graph | None] = OrderedDict()

    def run(self, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> None:
        """Run on operands in the plan's order, to the end."""
        self.ask(inputs, outputs)()
        wanted = [(i, o.host) for i, o in enumerate(outputs) if o.host is not None]
        for index, _ in wanted:
            staged = self._staged["output", index]
            self.stream.download(staged.pinned, staged.memory.address)
        self.stream.synchronize()
        for index, array in wanted:
            np.copyto(array, self._staged["output", index].pinned)

    def ask(self, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> Callable[[], None]:
        """Copy inputs of the host to the device; what asks the stream for a run on these operands.

        A run on the addresses of an earlier one is the replay of a graph.
        """
        bases = self.bases(inputs, outputs)
        key = (*bases["input"], *bases["output"])
        graph = self._graph(key, bases)
        return partial(self._ask_steps, bases) if graph is None else partial(self._replay, graph)

    def captured(self, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> Callable[[], None]:
        """Like ``ask``, but the graph is made at once."""
        self.ask(inputs, outputs)
        return self.ask(inputs, outputs)

    def bases(self, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> Bases:
        """Where everything lies, once inputs of the host are on their way."""
        bases: Bases = {
            "arena": (self._arena.address,),
            "weight": (self.home.weights.memory.address,),
            "input": [self._start("input", i, o) for i, o in enumerate(inputs)],
            "output": [self._start("output", i, o) for i, o in enumerate(outputs)],
        }
        for index, operand in enumerate(inputs):
            if operand.host is not None:
                staged = self._staged["input", index]
                np.copyto(staged.pinned, operand.host)
                self.stream.upload(staged.memory.address, staged.pinned)
        return bases

    def calls(self, bases: Bases) -> list[Callable[[], None]]:
        """What asks the stream for each step."""
        return [partial(self._ask_step, step, bases) for step in self.home.plan.steps]

    def _start(self, place: Place, index: int, operand: Operand) -> int:
        if operand.address is not None:
            return operand.address
        assert operand.host is not None
        if (place, index) not in self._staged:
            self._staged[place, index] = _Staged(self.home.device, operand.host)
        return self._staged[place, index].memory.address

    def _graph(self, key: tuple[int, ...], bases: Bases) -> Graph | None:
        """The graph for these addresses, from the second run on; the rarely used are forgotten."""
        if key not in self._graphs:
            self._graphs[key] = None
            if len(self._graphs) > _GRAPHS:
                self._graphs.popitem(last=False)
            return None
        self._graphs.move_to_end(key)
        graph = self._graphs[key]
        if graph is None:
            graph = self._graphs[key] = self.stream.capture(partial(self._ask_steps, bases))
        return graph

    def _replay(self, graph: Graph) -> None:
        self.stream.replay(graph)

    def _ask_steps(self, bases: Bases) -> None:
        for step in self.home.plan.steps:
            self._ask_step(step, bases)

    def _ask_step(self, step: Step, bases: Bases) -> None:
        pointers = [_address(argument, bases) for argument in arguments_of(step)]
        if isinstance(step, Copy):
            self.stream.copy(pointers[1], pointers[0], step.bytes)
        else:
            workspace = self._arena.address + step.workspace.offset
            self.home.kernels[step.kernel].ask(self.stream, pointers, workspace)


def _address(argument: Argument, bases: Bases) -> int:
    return bases[argument.place][argument.index] + argument.offset
