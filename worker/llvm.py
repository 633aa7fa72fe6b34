"""The built-in kind ``llvm``: candidates of this machine's processor, built by our compiler."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from tunefarm.worker.backend import Array, Built, Problem, TargetPlugin
from tunefarm.worker.device import DeviceOptions, OpenDevice
from tunefarm.worker.memory import empty_array
from tunefarm.worker.native import Linked, clock_address, timing_loop

_COLD_CACHES = 4
_SMALL_CONSTANT_BYTES = 64 << 10


class NativeKernel:
    """A kernel in this process with its operands, ready for native timing.

    ``rows`` are the pointer tables that calls take in turn, one for each copy of the constants.
    """

    def __init__(
        self,
        linked: Linked,
        pool: int,
        workspace: Array,
        rows: Sequence[Sequence[Array]],
        outputs: Sequence[Array],
    ) -> None:
        self._linked = linked
        self._pool = pool
        self._workspace = workspace
        self._keep = rows
        self.outputs = outputs
        pointers = [a.ctypes.data for row in rows for a in (*row, *outputs)]
        self._table = (ctypes.c_void_p * len(pointers))(*pointers)
        self._row_count = len(rows)
        self._calls = 0
        self._loop = timing_loop(len(pointers) // len(rows))

    def repeat(self, number: int) -> float:
        if number == 0:
            return 0.0
        nanoseconds = self._loop[1](
            self._linked.address,
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


def cold_copies(constants: Sequence[Array], cache_bytes: int) -> int:
    """How many copies of the constants evict one another from a second-level cache.

    Their total is four times the cache, so that a copy is gone when its turn comes again; small
    constants (64 KiB together) would stay warm in a model too and need no copies.
    """
    size = sum(c.nbytes for c in constants)
    if size <= _SMALL_CONSTANT_BYTES:
        return 1
    return max(1, -(-_COLD_CACHES * cache_bytes // size))


def copy_of(array: Array) -> Array:
    """The array on pages of its own."""
    fresh = empty_array(array.shape, array.dtype.name)
    fresh[...] = array
    return fresh


class LlvmBackend:
    """Builds, poses and loads candidates of the ``llvm`` kind."""

    def build(self, workload: str, target: str, config: Mapping[str, int | str]) -> Built:
        raise NotImplementedError

    def problem(self, workload: str, seed: int) -> Problem:
        from tunefarm.worker.problem import pose

        return pose(workload, seed)

    def load(
        self,
        built: Built,
        inputs: Sequence[Array],
        constant: Sequence[bool],
        outputs: Sequence[Any],
    ) -> NativeKernel:
        return load_native(built, inputs, constant, outputs)


def load_native(
    built: Built, inputs: Sequence[Array], constant: Sequence[bool], outputs: Sequence[Any]
) -> NativeKernel:
    metadata = built.metadata
    linked = Linked(built.code, metadata["name"])
    copies = cold_copies(
        [a for a, c in zip(inputs, constant, strict=True) if c], metadata["cache_bytes"]
    )
    rows = [list(inputs)]
    for _ in range(copies - 1):
        rows.append([copy_of(a) if c else a for a, c in zip(inputs, constant, strict=True)])
    results = [empty_array(shape, dtype) for shape, dtype in outputs]
    workspace = empty_array((metadata["workspace_bytes"],), "uint8")
    return NativeKernel(linked, 0, workspace, rows, results)


def open_llvm(options: DeviceOptions) -> OpenDevice:
    from tunefarm.worker.host import HostDevice

    return HostDevice(options)


PLUGIN = TargetPlugin(open_llvm, LlvmBackend)
