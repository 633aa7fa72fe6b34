"""PyTorch in the same process, where it is installed with CUDA: cuBLAS, cuDNN and its own code."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from cases import Array, Case

AT_ONCE = 32


def find_torch() -> Any:
    """The module, or None without one that sees a GPU."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return torch if torch.cuda.is_available() else None


class TorchCase:
    """A case on PyTorch's tensors, ready to be called and timed as ours is."""

    def __init__(self, torch: Any, case: Case, inputs: Sequence[Array], compiled: bool) -> None:
        self._torch = torch
        torch.backends.cuda.matmul.allow_tf32 = case.precision == "tf32"
        torch.backends.cudnn.allow_tf32 = case.precision == "tf32"
        self._tensors = [self._moved(array) for array in inputs]

        def work(*tensors: Any) -> Any:
            return case.torch(torch, *tensors)

        self._call = torch.compile(work, mode="max-autotune-no-cudagraphs") if compiled else work
        l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        self._cold = torch.empty(2 * l2_bytes, dtype=torch.uint8, device="cuda")

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
        """The sum of the seconds of ``number`` calls, the cache emptied before each."""
        cuda, total = self._torch.cuda, 0.0
        for start in range(0, number, AT_ONCE):
            events = []
            for _ in range(min(AT_ONCE, number - start)):
                before, after = (cuda.Event(enable_timing=True) for _ in range(2))
                self._cold.zero_()
                before.record()
                self._call(*self._tensors)
                after.record()
                events.append((before, after))
            cuda.synchronize()
            total += sum(before.elapsed_time(after) for before, after in events) * 1e-3
        return total
