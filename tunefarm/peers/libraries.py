"""The libraries that run ONNX models, each at its best settings for f32 on some threads, or for
another precision if it has that.

PyTorch is none of them: it writes ONNX models and cannot read them.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from tunefarm.peers.turns import Array, Contender

Feeds = Mapping[str, Array]
Shapes = Mapping[str, tuple[int, ...]]
Model = str | bytes
"""The path of an ONNX file, or the bytes of a model without other files."""


def in_onnxruntime(
    model: Model, feeds: Feeds, threads: int, shapes: Shapes | None = None
) -> Contender:
    """A session with its inputs and outputs bound; ``shapes`` are those of open inputs."""
    import onnxruntime

    session = onnxruntime.InferenceSession(
        model, _session_options(model, threads, shapes or {}), providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_cpu_input(name, np.asarray(value, order="C"))
    for output in session.get_outputs():
        binding.bind_output(output.name)
    return Contender(
        lambda: session.run_with_iobinding(binding),
        lambda: [np.asarray(a) for a in binding.copy_outputs_to_cpu()],
    )


def _session_options(model: Model, threads: int, shapes: Shapes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    for name, extent in _open_extents(model, shapes).items() if shapes else ():
        options.add_free_dimension_override_by_name(name, extent)
    return options


def _open_extents(model: Model, shapes: Shapes) -> dict[str, int]:
    """The extents of named open dimensions that ``shapes`` fixes."""
    import onnx

    if isinstance(model, str):
        proto = onnx.load(model, load_external_data=False)
    else:
        proto = onnx.load_model_from_string(model)
    extents: dict[str, int] = {}
    for port in proto.graph.input:
        sizes = port.type.tensor_type.shape.dim
        for size, extent in zip(sizes, shapes.get(port.name, ()), strict=False):
            if size.dim_param:
                extents[size.dim_param] = extent
    return extents


def in_openvino(
    model: Model,
    feeds: Feeds,
    threads: int,
    shapes: Shapes | None = None,
    *,
    channels_last: bool = False,
    precision: str = "",
) -> Contender:
    """A compiled model held to f32, or free to use another ``precision``. ``channels_last`` feeds
    and reads images as NHWC."""
    import openvino

    core = openvino.Core()
    graph = core.read_model(model if isinstance(model, str) else io.BytesIO(model))
    if shapes:
        graph.reshape({name: list(shape) for name, shape in shapes.items()})
    if channels_last:
        graph = _with_nhwc_ends(graph)
    compiled = core.compile_model(graph, "CPU", {
        "INFERENCE_PRECISION_HINT": HINTS.get(precision, "f32"),
        "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY", "ENABLE_CPU_PINNING": True,
    })  # fmt: skip
    request = compiled.create_infer_request()
    for name, value in feeds.items():
        array = np.moveaxis(value, 1, -1) if channels_last else value
        request.set_tensor(name, openvino.Tensor(np.asarray(array, order="C")))
    count = len(compiled.outputs)
    return Contender(
        request.infer, lambda: [_openvino_output(request, i, channels_last) for i in range(count)]
    )


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


HINTS: Mapping[str, str] = {"bf16": "bf16", "fp16": "f16"}  # what OpenVINO calls them
LIBRARIES: Mapping[str, Callable[..., Contender]] = {
    "onnxruntime": in_onnxruntime,
    "OpenVINO": in_openvino,
}


def run_in(
    library: str, model: Model, feeds: Feeds, threads: int, shapes: Shapes | None, precision: str
) -> Contender:
    """A model in a library, at f32 unless it has the ``precision``."""
    wanted = {"precision": precision} if has_precision(library, precision) else {}
    return LIBRARIES[library](model, feeds, threads, shapes, **wanted)


def has_precision(library: str, precision: str) -> bool:
    """Whether a library can be told to compute a model of float32 in another precision."""
    return library == "OpenVINO" and precision in HINTS


def installed() -> list[str]:
    """Names of the libraries that can be imported."""
    return [name for name in LIBRARIES if importlib.util.find_spec(name.lower())]


def version_of(library: str) -> str:
    """The library's name and version: ``OpenVINO 2026.4.1``."""
    try:
        return f"{library} {version(library.lower())}"
    except PackageNotFoundError:  # a build of another name, such as onnxruntime-gpu
        return library
