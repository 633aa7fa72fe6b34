"""The libraries that we are compared with on operators, each at its best settings for f32.

A library that is not installed is left out: ``installed`` says so in one line.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Sequence
from functools import cache
from itertools import cycle
from typing import Any

import numpy as np
from workloads import Operator

from tunefarm.peers.libraries import in_onnxruntime, in_openvino
from tunefarm.peers.turns import Call, Contender

_MODULES = {"onnxruntime": "onnxruntime", "OpenVINO": "openvino", "torch": "torch"}


def installed() -> list[str]:
    """Names of the peers that can be imported; prints a line for those that cannot."""
    found = [n for n, module in _MODULES.items() if importlib.util.find_spec(module)]
    absent = [n for n in _MODULES if n not in found]
    if absent:
        print(f"not installed, left out: {', '.join(absent)} (make bench-env installs them)")
    return found


def in_torch(operator: Operator, threads: int) -> Contender:
    """Eager torch; images and their weights are channels_last."""
    if threads > 1:  # read when torch is loaded; free threads may spin on one core, 8 ms a call
        os.environ.setdefault("OMP_PROC_BIND", "true")
    import torch

    torch.set_num_threads(threads)
    tensors = [torch.from_numpy(a.copy()) for a in operator.inputs]
    if operator.images:
        tensors = [t.to(memory_format=torch.channels_last) for t in tensors]
    compute = operator.torch
    results: list[Any] = [None]

    def run() -> None:
        with torch.inference_mode():
            results[0] = compute(*tensors)

    return Contender(run, lambda: [np.asarray(results[0].contiguous())])


def in_numpy(operator: Operator, threads: int) -> Contender | None:
    """NumPy's matmul (OpenBLAS), for products alone."""
    if operator.kind != "MatMul":
        return None
    if threads > 1:
        one_core_a_thread()
    a, b = operator.inputs
    result = np.matmul(a, b)
    return Contender(lambda: np.matmul(a, b, out=result), lambda: [result])


@cache
def one_core_a_thread() -> None:
    """Pin the threads of this process, in the order of their birth, each to a core.

    OpenBLAS's spin and yield, and two on one core take 16 ms for a product instead of 45 µs.
    """
    threads = sorted(int(name) for name in os.listdir("/proc/self/task"))
    for thread, core in zip(threads, cycle(sorted(os.sched_getaffinity(0))), strict=False):
        os.sched_setaffinity(thread, {core})


def operator_peer(operator: Operator, threads: int, name: str) -> dict[str, Contender]:
    """A library on one operator, under its name, if it has it; the faster of OpenVINO's layouts.

    The process should be the library's own: it may pin its threads.
    """
    match name:
        case "onnxruntime":
            contender = in_onnxruntime(_bytes_of(operator), operator.feeds(), threads)
        case "OpenVINO":
            model, feeds = _bytes_of(operator), operator.feeds()
            layouts = (False, True) if operator.images else (False,)
            contender = fastest(
                [in_openvino(model, feeds, threads, channels_last=nhwc) for nhwc in layouts]
            )
        case "torch":
            contender = in_torch(operator, threads)
        case _:
            product = in_numpy(operator, threads)
            return {name: product} if product else {}
    return {name: contender}


def _bytes_of(operator: Operator) -> bytes:
    return bytes(operator.onnx_model().SerializeToString())


def fastest(contenders: Sequence[Contender]) -> Contender:
    """The one whose best of a few calls is shortest."""
    return min(contenders, key=lambda c: _best_seconds(c.call)) if contenders[1:] else contenders[0]


def _best_seconds(call: Call, tries: int = 20) -> float:
    def once() -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return min(once() for _ in range(tries))
