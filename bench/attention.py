"""Attention against onnxruntime and OpenVINO, and our one kernel against separate ones.

    python bench/attention.py [--cores 1,2] [--repeats 15] [TOKENSxHEADSxSIZE …]

The graph is what exporters write: reshape and transpose to heads, scores, scale, a mask of keys,
softmax, the product with the values, and back to rows. ``onnxruntime MHA`` is that library's own
fused operator (com.microsoft.MultiHeadAttention). All take three [1, tokens, heads · size] arrays.
``ours apart`` is our build without the pass that fuses; both are of default configs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from math import sqrt

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from timing import errors_of, for_each_core_count, show

import tunefarm
from tunefarm.peers.apart import Apart, apart
from tunefarm.peers.libraries import Feeds, in_onnxruntime, in_openvino, installed
from tunefarm.peers.pace import Pace
from tunefarm.peers.rows import Row
from tunefarm.peers.turns import Contender, Neighbours, in_turn

CASES = ("128x12x64", "197x6x64", "197x12x64", "512x12x64", "2048x4x64")
OPSETS = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
Case = tuple[int, int, int]


def spelled_out(case: Case) -> onnx.ModelProto:
    tokens, heads, size = case
    nodes = []
    for name, order in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3))):
        nodes.append(helper.make_node("Reshape", [name, "split"], [f"{name}4"]))
        nodes.append(helper.make_node("Transpose", [f"{name}4"], [f"{name}h"], perm=order))
    nodes += [
        helper.make_node("MatMul", ["qh", "kh"], ["product"]),
        helper.make_node("Mul", ["product", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "mask"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "vh"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["rows"], perm=(0, 2, 1, 3)),
        helper.make_node("Reshape", ["rows", "join"], ["y"]),
    ]
    constants = {
        "split": np.array([1, tokens, heads, size]),
        "join": np.array([1, tokens, heads * size]),
        "scale": np.array(1 / sqrt(size), np.float32),
    }
    return _model(case, nodes, constants)


def fused_by_onnxruntime(case: Case) -> onnx.ModelProto:
    tokens, heads, _ = case
    node = helper.make_node(
        "MultiHeadAttention", ["q", "k", "v", "", "", "square"], ["y"],
        domain="com.microsoft", num_heads=heads,
    )  # fmt: skip
    wide = helper.make_node("Expand", ["mask", "shape"], ["square"])
    return _model(case, [wide, node], {"shape": np.array([1, 1, tokens, tokens])})


def _model(
    case: Case, nodes: list[onnx.NodeProto], constants: Mapping[str, np.ndarray]
) -> onnx.ModelProto:
    tokens, heads, size = case
    rows, mask = (1, tokens, heads * size), (1, 1, 1, tokens)
    ports = {"q": rows, "k": rows, "v": rows, "mask": mask}
    graph = helper.make_graph(
        nodes, "attention",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in ports.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, rows)],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=10)


def feeds_of(case: Case) -> dict[str, np.ndarray]:
    """Normal values; a quarter of the keys is masked."""
    tokens, heads, size = case
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal((1, tokens, heads * size), np.float32) for n in "qkv"}
    masked = rng.random((1, 1, 1, tokens)) < 0.25
    return {**feeds, "mask": np.where(masked, -1e4, 0).astype(np.float32)}


def reference(case: Case) -> np.ndarray:
    tokens, heads, size = case
    feeds = {n: a.astype(np.float64) for n, a in feeds_of(case).items()}
    q, k, v = (feeds[n].reshape(tokens, heads, size).transpose(1, 0, 2) for n in "qkv")
    scores = q @ k.transpose(0, 2, 1) / sqrt(size) + feeds["mask"][0]
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = powers / powers.sum(-1, keepdims=True) @ v
    return np.asarray(mixed.transpose(1, 0, 2).reshape(1, tokens, heads * size))


def make_ours(case: Case, cores: int) -> dict[str, Contender]:
    module, target = tunefarm.from_onnx(spelled_out(case)), tunefarm.Target.host(cores)
    contexts = {
        "ours": tunefarm.PassContext(),
        "ours apart": tunefarm.PassContext(disabled_pass=("fuse_attention",)),
    }
    return {name: _build(module, target, c, feeds_of(case)) for name, c in contexts.items()}


def _build(
    module: tunefarm.IRModule, target: tunefarm.Target, context: tunefarm.PassContext, feeds: Feeds
) -> Contender:
    with tunefarm.apply_history_best((), starter=False), context:
        lib = tunefarm.build(module, target)
    arrays = lib.check_inputs(feeds)
    results = list(lib.run(feeds).values())
    return Contender(lambda: lib.run_raw(arrays, results), lambda: results)


def make_onnxruntime(case: Case, cores: int) -> dict[str, Contender]:
    forms: Mapping[str, Callable[[Case], onnx.ModelProto]] = {
        "onnxruntime": spelled_out, "onnxruntime MHA": fused_by_onnxruntime,
    }  # fmt: skip
    return {
        name: in_onnxruntime(make(case).SerializeToString(), feeds_of(case), cores)
        for name, make in forms.items()
    }


def make_openvino(case: Case, cores: int) -> dict[str, Contender]:
    model = spelled_out(case).SerializeToString()
    return {"OpenVINO": in_openvino(model, feeds_of(case), cores)}


PEERS = {"onnxruntime": make_onnxruntime, "OpenVINO": make_openvino}


def measure(text: str, cores: int, libraries: list[Apart], repeats: int, pace: Pace) -> Row:
    tokens, heads, size = case = tuple(map(int, text.split("x")))
    contenders: dict[str, Contender] = {}
    for library in libraries:
        contenders |= library.make(case, cores)
    errors = errors_of(contenders, reference((tokens, heads, size)))
    timers = {n: t for n in errors if (t := contenders[n].timer)}
    seconds = in_turn(timers, repeats, pace=pace)
    flops = 4 * tokens * tokens * heads * size
    return Row(text, seconds, flops, pace.peak_flops(), errors)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="TOKENSxHEADSxSIZE")
    parser.add_argument("--cores", default="1,2", help="numbers of cores, one table each")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    status = for_each_core_count(options.cores)
    if status is not None:
        return status
    cores = int(options.cores)
    neighbours = Neighbours()
    makers = [make_ours, *(PEERS[name] for name in installed() if name in PEERS)]
    with Pace(cores) as pace, apart(*makers) as libraries:
        rows = [measure(text, cores, libraries, options.repeats, pace) for text in options.cases]
    show(rows, f"attention, f32, batch 1, {cores} core(s)", {"all": rows})
    print(neighbours.report(), pace.turns.report())
    return 0


if __name__ == "__main__":
    sys.exit(main())
