"""Libraries in the same process, where they are installed: PyTorch with CUDA, and cuBLAS alone."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cases import Array, Case
from cublas import Cublas, CublasProduct
from tunefarm.compiler.runtime.cuda.driver import Device
from tunefarm.compiler.runtime.cuda.timing import fills_ahead

AT_ONCE = 32
WARM_CALLS = 3  # on the side, before a graph is captured


class Peer(Protocol):
    """A case as a library computes it, on operands of its own."""

    @property
    def name(self) -> str: ...

    def output(self) -> Array:
        """What one call gives."""

    def cold_seconds(self, number: int) -> float:
        """The sum of the seconds of ``number`` calls, the cache emptied before each."""


def find_torch() -> Any:
    """PyTorch, or None without one that sees a GPU."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    torch.zeros(1, device="cuda")
    return torch


@dataclass(frozen=True, slots=True)
class Libraries:
    """Those that are here."""

    device: Device
    torch: Any = None
    cublas: Cublas | None = None

    def peers(self, case: Case, inputs: Sequence[Array]) -> list[Peer]:
        """A case by each library that has it."""
        found: list[Peer] = []
        if self.torch is not None:
            found.append(TorchCase(self.torch, case, inputs, self.device, compiled=False))
        if self.cublas is not None and case.is_product:
            precise = case.precision != "tf32"
            found.append(CublasProduct(self.cublas, self.device, *inputs, precise=precise))
        return found

    def compiled(self, case: Case, inputs: Sequence[Array]) -> Peer:
        """A case by torch.compile."""
        return TorchCase(self.torch, case, inputs, self.device, compiled=True)

    def versions(self) -> dict[str, str]:
        """What each is called in a report."""
        found = {"torch": "", "cublas": ""}
        if self.torch is not None:
            found["torch"] = f"{self.torch.__version__}, CUDA {self.torch.version.cuda}"
        if self.cublas is not None:
            found["cublas"] = str(self.cublas.version())
        return found


class TorchCase:
    """A case on PyTorch's tensors, timed as ours is."""

    def __init__(
        self, torch: Any, case: Case, inputs: Sequence[Array], device: Device, compiled: bool
    ) -> None:
        self.name = "torch.compile" if compiled else "PyTorch"
        self._torch, self._device = torch, device
        torch.backends.cuda.matmul.allow_tf32 = case.precision == "tf32"
        torch.backends.cudnn.allow_tf32 = case.precision == "tf32"
        self._tensors = [self._moved(array) for array in inputs]

        def work(*tensors: Any) -> Any:
            return case.torch(torch, *tensors)

        self._call = work
        if compiled:  # for these extents: of a second size it would make code for any size
            torch.compiler.reset()
            self._call = torch.compile(work, mode="max-autotune-no-cudagraphs", dynamic=False)
            self._call = self._captured(self._call)
        l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        self._cold = torch.empty(2 * l2_bytes, dtype=torch.uint8, device="cuda")

    def _captured(self, call: Any) -> Any:
        """The replay of a CUDA graph of a call: what Python takes for one is longer than short
        kernels take, and would be in their times."""
        cuda = self._torch.cuda
        aside = cuda.Stream()
        aside.wait_stream(cuda.current_stream())
        with cuda.stream(aside):
            for _ in range(WARM_CALLS):
                call(*self._tensors)
        cuda.current_stream().wait_stream(aside)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            result = call(*self._tensors)

        def replay(*_: Any) -> Any:
            graph.replay()
            return result

        return replay

    def _moved(self, array: Array) -> Any:
        if array.dtype.name == "bfloat16":
            bits = self._torch.from_numpy(array.view("int16"))
            return bits.view(self._torch.bfloat16).cuda()
        return self._torch.from_numpy(array).cuda()

    def output(self) -> Array:
        """What one call gives, as float32."""
        result: Array = self._call(*self._tensors).float().cpu().numpy()
        return result

    def cold_seconds(self, number: int) -> float:
        """The sum of the seconds of ``number`` calls, the cache emptied before each; the host is
        ahead of the device, as for ours."""
        cuda, total = self._torch.cuda, 0.0
        for start in range(0, number, AT_ONCE):
            events = []
            now = min(AT_ONCE, number - start)
            for _ in range(fills_ahead(self._device, now) - now):
                self._cold.zero_()
            for _ in range(now):
                before, after = (cuda.Event(enable_timing=True) for _ in range(2))
                self._cold.zero_()
                before.record()
                self._call(*self._tensors)
                after.record()
                events.append((before, after))
            cuda.synchronize()
            total += sum(before.elapsed_time(after) for before, after in events) * 1e-3
        return total
