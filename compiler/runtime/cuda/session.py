"""One run of a model at a time: its stream, its memory, and the graph that replays it."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.runtime.arrays import Array
from tunefarm.compiler.runtime.cuda.arrays import Operand
from tunefarm.compiler.runtime.cuda.driver import Device
from tunefarm.compiler.runtime.cuda.host import HostKernels, HostPlaces
from tunefarm.compiler.runtime.cuda.loading import LoadedKernel
from tunefarm.compiler.runtime.cuda.memory import DeviceMemory, take
from tunefarm.compiler.runtime.cuda.placement import (
    DeviceStep,
    HostCall,
    PlacedStep,
    ToDevice,
    ToHost,
)
from tunefarm.compiler.runtime.plan import Argument, Copy, ExecutionPlan, KernelCall, Place

_GRAPHS = 8  # sets of addresses whose graphs a session keeps

Bases = Mapping[Place, Sequence[int]]
"""Where the arena, the weights, and each input and output begin."""


@dataclass(frozen=True, slots=True, eq=False)
class Residence:
    """A model on a device: loaded code, weights, and the sessions that nobody uses now.

    ``steps`` are those of the plan, with copies for the kernels of ``host``.
    """

    device: Device
    plan: ExecutionPlan
    steps: tuple[PlacedStep, ...] = field(repr=False)
    kernels: Mapping[str, LoadedKernel] = field(repr=False)
    weights: ResidentWeights = field(repr=False)
    host: HostKernels | None = field(default=None, repr=False)
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
        self._graphs: OrderedDict[tuple[int, ...], list[Callable[[], None]]] = OrderedDict()
        self._host = home.host.places(home.plan, home.weights.host) if home.host else None

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

        A run on the addresses of an earlier one is the replay of a graph, or of one for each row of
        kernels between those of the host.
        """
        bases = self.bases(inputs, outputs)
        return partial(_all, self._captured(bases) or self.calls(bases))

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
        if any(operand.host is not None for operand in inputs):
            self.stream.synchronize()  # a run before may still read what was staged for it
        for index, operand in enumerate(inputs):
            if operand.host is not None:
                staged = self._staged["input", index]
                np.copyto(staged.pinned, operand.host)
                self.stream.upload(staged.memory.address, staged.pinned)
        return bases

    def calls(self, bases: Bases) -> list[Callable[[], None]]:
        """What asks for each step."""
        return [self._call(step, bases) for step in self.home.steps]

    def _start(self, place: Place, index: int, operand: Operand) -> int:
        if operand.address is not None:
            return operand.address
        assert operand.host is not None
        if (place, index) not in self._staged:
            self._staged[place, index] = _Staged(self.home.device, operand.host)
        return self._staged[place, index].memory.address

    def _captured(self, bases: Bases) -> list[Callable[[], None]]:
        """The graphs for these addresses and what the host does between them, from the second run
        on; the rarely used are forgotten."""
        key = (*bases["input"], *bases["output"])
        if key not in self._graphs:
            self._graphs[key] = []
            if len(self._graphs) > _GRAPHS:
                self._graphs.popitem(last=False)
            return []
        self._graphs.move_to_end(key)
        if not self._graphs[key]:
            self._graphs[key] = list(self._captures(bases))
        return self._graphs[key]

    def _captures(self, bases: Bases) -> Iterator[Callable[[], None]]:
        by_device = groupby(self.home.steps, lambda step: isinstance(step, DeviceStep))
        for on_device, steps in by_device:
            calls = [self._call(step, bases) for step in steps]
            if on_device:
                graph = self.stream.capture(partial(_all, calls))
                yield partial(self.stream.replay, graph)
            else:
                yield from calls

    def _call(self, step: PlacedStep, bases: Bases) -> Callable[[], None]:
        match step:
            case KernelCall(name, arguments, _, area):
                pointers = [_address(argument, bases) for argument in arguments]
                workspace = self._arena.address + area.offset
                return partial(self.home.kernels[name].ask, self.stream, pointers, workspace)
            case Copy(source, destination, size):
                return partial(
                    self.stream.copy, _address(destination, bases), _address(source, bases), size
                )
            case HostCall(call):
                return partial(self._on_host, self._places.call(call))
            case ToHost(argument, size):
                view = self._places.view(argument, size)
                return partial(self.stream.download, view, _address(argument, bases))
            case ToDevice(argument, size):
                view = self._places.view(argument, size)
                return partial(self.stream.upload, _address(argument, bases), view)

    @property
    def _places(self) -> HostPlaces:
        assert self._host is not None
        return self._host

    def _on_host(self, call: Callable[[], None]) -> None:
        self.stream.synchronize()
        call()


def _all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()


def _address(argument: Argument, bases: Bases) -> int:
    return bases[argument.place][argument.index] + argument.offset
