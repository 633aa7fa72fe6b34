"""Operators against onnxruntime, OpenVINO and PyTorch, in one run.

    python bench/operators.py [--cores 1] [--db sqlite:///…] [--trials 64] [-k conv]

Every operator is a one-node ONNX model, so that each contender gets the same. Weights are constant.
Ours is built with default configs, and with the records of ``--db``; ``--trials`` tunes first.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from timing import Call, Row, interleave, peak_flops, show

import tunefarm

Array = NDArray[np.float32]
Shape = tuple[int, ...]


def one_node(op: str, x: Shape, constants: Sequence[Shape], **attrs: object) -> onnx.ModelProto:
    """A model of one operator on input ``x`` with random constants."""
    rng = np.random.default_rng(0)
    names = [f"c{i}" for i in range(len(constants))]
    tensors = [
        numpy_helper.from_array(rng.standard_normal(s).astype("float32") * 0.05, n)
        for n, s in zip(names, constants, strict=True)
    ]
    graph = helper.make_graph(
        [helper.make_node(op, ["x", *names], ["y"], **attrs)],
        op,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


def conv(size: int, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1):  # type: ignore[no-untyped-def]
    pad = kernel // 2
    return one_node(
        "Conv", (1, inputs, size, size), [(outputs, inputs // groups, kernel, kernel)],
        pads=[pad] * 4, strides=[stride] * 2, group=groups,
    )  # fmt: skip


WORKLOADS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "GEMM 512³": lambda: one_node("MatMul", (512, 512), [(512, 512)]),
    "GEMM 1024³": lambda: one_node("MatMul", (1024, 1024), [(1024, 1024)]),
    "dense 1×1000×2048": lambda: one_node("MatMul", (1, 2048), [(2048, 1000)]),
    "dense 128×768×768": lambda: one_node("MatMul", (128, 768), [(768, 768)]),
    "conv 3×3 64→64 56²": lambda: conv(56, 64, 64, 3),
    "conv 3×3 128→128 28²": lambda: conv(28, 128, 128, 3),
    "conv 3×3 256→256 14²": lambda: conv(14, 256, 256, 3),
    "conv 3×3 512→512 7²": lambda: conv(7, 512, 512, 3),
    "conv 1×1 64→256 56²": lambda: conv(56, 64, 256, 1),
    "conv 1×1 256→64 56²": lambda: conv(56, 256, 64, 1),
    "conv 1×1 512→128 28²": lambda: conv(28, 512, 128, 1),
    "conv 1×1 1024→256 14²": lambda: conv(14, 1024, 256, 1),
    "conv 1×1 256→1024 14²": lambda: conv(14, 256, 1024, 1),
    "conv 1×1 2048→512 7²": lambda: conv(7, 2048, 512, 1),
    "conv 7×7/2 3→64 224²": lambda: conv(224, 3, 64, 7, 2),
    "depthwise 3×3 192 28²": lambda: conv(28, 192, 192, 3, 1, 192),
    "softmax 1536×128": lambda: one_node("Softmax", (1536, 128), [], axis=-1),
    "layer norm 128×768": lambda: one_node("LayerNormalization", (128, 768), [(768,), (768,)]),
}


def our_call(
    module: tunefarm.IRModule, target: tunefarm.Target, feeds: Mapping[str, Array]
) -> Call:
    """A call of our build that times the kernels alone: inputs are NHWC where they are images."""
    lib = tunefarm.build(module, target)
    inputs, outputs = lib.check_inputs(feeds), list(lib.run(feeds).values())
    return lambda: lib.run_raw(inputs, outputs)


def onnxruntime_call(model: onnx.ModelProto, cores: int, feeds: Mapping[str, Array]) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_cpu_input(name, value)
    for output in session.get_outputs():
        binding.bind_output(output.name)
    return lambda: session.run_with_iobinding(binding)


def openvino_call(model: onnx.ModelProto, cores: int, feeds: Mapping[str, Array]) -> Call:
    import io

    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": cores,
                "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}  # fmt: skip
    compiled = core.compile_model(core.read_model(io.BytesIO(model.SerializeToString())), "CPU",
                                  settings)  # fmt: skip
    request = compiled.create_infer_request()
    for name, value in feeds.items():
        request.set_tensor(name, openvino.Tensor(value))
    return request.infer


PEERS: Mapping[str, Callable[[onnx.ModelProto, int, Mapping[str, Array]], Call]] = {
    "onnxruntime": onnxruntime_call,
    "OpenVINO": openvino_call,
}


def measure(name: str, model: onnx.ModelProto, cores: int, db: str, trials: int) -> Row:
    target = tunefarm.Target.host(cores)
    module = tunefarm.from_onnx(model)
    tasks = tunefarm.extract_tasks(module, target)
    if db and trials and tasks:
        tunefarm.tune(tasks, db=db, trials=trials * len(tasks))
    rng = np.random.default_rng(1)
    shape = tuple(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim)
    feeds = {"x": rng.standard_normal(shape).astype("float32")}
    calls: dict[str, Call] = {"ours default": our_call(module, target, feeds)}
    if db:
        with tunefarm.apply_history_best(db):
            calls["ours tuned"] = our_call(module, target, feeds)
    for peer, make in PEERS.items():
        try:
            calls[peer] = make(model, cores, feeds)
        except ImportError:
            continue
    flops = sum(t.workload.flops * t.weight for t in tasks)
    return Row(name, interleave(calls), flops, error_of(module, target, model, feeds))


def error_of(
    module: tunefarm.IRModule,
    target: tunefarm.Target,
    model: onnx.ModelProto,
    feeds: Mapping[str, Array],
) -> float:
    """Largest difference to onnxruntime as a share of the largest magnitude; must be < 1e-3."""
    import onnxruntime

    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, dict(feeds))
    (got,) = tunefarm.build(module, target).run(feeds).values()
    error = float(np.abs(got - expected).max() / np.abs(expected).max())
    assert error < 1e-3, f"{model.graph.name} differs by {error}"
    return error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--db", default="")
    parser.add_argument("--trials", type=int, default=0)
    parser.add_argument("-k", default="", help="only workloads whose name contains this")
    options = parser.parse_args()
    rows = [
        measure(name, make(), options.cores, options.db, options.trials)
        for name, make in WORKLOADS.items()
        if options.k in name
    ]
    ours = ["ours default", *(["ours tuned"] if options.db else [])]
    show(rows, ours, peak_flops(options.cores), f"operators, {options.cores} core(s), f32")


if __name__ == "__main__":
    main()
