"""The libraries that we are compared with, each at its best settings for f32 on some threads.

onnxruntime and OpenVINO take ONNX models; torch and NumPy take single operators. A library that is
not installed is left out: ``installed`` says so in one line.
"""

from __future__ import annotations

import importlib.util
import io
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import cycle
from typing import Any

import numpy as np
import onnx
from timing import Array, Call, Contender
from workloads import Operator

Feeds = Mapping[str, Array]

_MODULES = {"onnxruntime": "onnxruntime", "OpenVINO": "openvino", "torch": "torch"}


def installed() -> list[str]:
    """Names of the peers that can be imported; prints a line for those that cannot."""
    found = [n for n, module in _MODULES.items() if importlib.util.find_spec(module)]
    absent = [n for n in _MODULES if n not in found]
    if absent:
        print(f"not installed, left out: {', '.join(absent)} (make bench-env installs them)")
    return found


def in_onnxruntime(model: onnx.ModelProto, feeds: Feeds, threads: int) -> list[Contender]:
    """A session with its inputs and outputs bound; one contender an output."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_cpu_input(name, np.ascontiguousarray(value))
    for output in session.get_outputs():
        binding.bind_output(output.name)
    return [
        Contender(lambda: session.run_with_iobinding(binding), lambda i=i: _ort_output(binding, i))  # type: ignore[misc]
        for i in range(len(session.get_outputs()))
    ]


def _ort_output(binding: Any, index: int) -> Array:
    return np.asarray(binding.copy_outputs_to_cpu()[index])


def in_openvino(
    model: onnx.ModelProto, feeds: Feeds, threads: int, channels_last: bool = False
) -> list[Contender]:
    """A compiled model held to f32. ``channels_last`` feeds and reads images as NHWC."""
    import openvino

    core = openvino.Core()
    graph = core.read_model(io.BytesIO(model.SerializeToString()))
    if channels_last:
        graph = _with_nhwc_ends(graph)
    compiled = core.compile_model(graph, "CPU", {
        "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY", "ENABLE_CPU_PINNING": False,
    })  # fmt: skip
    request = compiled.create_infer_request()
    for name, value in feeds.items():
        array = np.moveaxis(value, 1, -1) if channels_last else value
        request.set_tensor(name, openvino.Tensor(np.ascontiguousarray(array)))
    return [
        Contender(request.infer, lambda i=i: _openvino_output(request, i, channels_last))  # type: ignore[misc]
        for i in range(len(compiled.outputs))
    ]


def _with_nhwc_ends(graph: Any) -> Any:
    from openvino import Layout
    from openvino.preprocess import PrePostProcessor

    steps = PrePostProcessor(graph)
    for end in (steps.input(0), steps.output(0)):
        end.model().set_layout(Layout("NCHW"))
        end.tensor().set_layout(Layout("NHWC"))
    return steps.build()


def _openvino_output(request: Any, index: int, channels_last: bool) -> Array:
    output = np.array(request.get_output_tensor(index).data)
    return np.moveaxis(output, -1, 1) if channels_last else output


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

    return Contender(run, lambda: np.asarray(results[0].contiguous()))


def in_numpy(operator: Operator, threads: int) -> Contender | None:
    """NumPy's matmul (OpenBLAS), for products alone."""
    if operator.kind != "MatMul":
        return None
    if threads > 1:
        one_core_a_thread()
    a, b = operator.inputs
    result = np.matmul(a, b)
    return Contender(lambda: np.matmul(a, b, out=result), lambda: result)


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
            (contender,) = in_onnxruntime(operator.onnx_model(), operator.feeds(), threads)
        case "OpenVINO":
            model, feeds = operator.onnx_model(), operator.feeds()
            layouts = (False, True) if operator.images else (False,)
            contender = fastest(
                [c for nhwc in layouts for c in in_openvino(model, feeds, threads, nhwc)]
            )
        case "torch":
            contender = in_torch(operator, threads)
        case _:
            product = in_numpy(operator, threads)
            return {name: product} if product else {}
    return {name: contender}


def fastest(contenders: Sequence[Contender]) -> Contender:
    """The one whose best of a few calls is shortest."""
    return min(contenders, key=lambda c: _best_seconds(c.call)) if contenders[1:] else contenders[0]


def _best_seconds(call: Call, tries: int = 20) -> float:
    def once() -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return min(once() for _ in range(tries))


MODEL_PEERS: Mapping[str, Callable[[onnx.ModelProto, Feeds, int], list[Contender]]] = {
    "onnxruntime": in_onnxruntime,
    "OpenVINO": in_openvino,
}
