"""Weights of four bits beside onnxruntime and OpenVINO: products, and a decoder that adds a token.

    python bench/few_bits.py [--cores 1,2] [--repeats 15] [--bits 4] [--block 32] [CASE …]

A case is ROWSxDEPTHxCOLUMNS, one MatMulNBits; or decoderxLAYERSxPAST: layers of a Llama of 1.1
billion weights with the last product to its 32,000 words, one token behind a past of so many.
``ours`` and ``onnxruntime`` sum in float32, ``ours int8`` and ``onnxruntime int8`` are told that
they may round activations to bytes (accuracy_level 4), and OpenVINO does. Errors are those beside
float64 sums of the same weights, for products, and beside onnxruntime's float32 for the decoder,
which OpenVINO reads but does not run (2026.4: it writes beyond its cache).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from timing import for_each_core_count, show, within_limit

import tunefarm
from tunefarm.peers.apart import Apart, apart
from tunefarm.peers.libraries import Feeds, in_onnxruntime, in_openvino, installed
from tunefarm.peers.pace import Pace
from tunefarm.peers.rows import Row
from tunefarm.peers.turns import Array, Contender, Neighbours, in_turn, largest_error

CASES = (
    "1x2048x2048", "1x4096x4096", "1x4096x11008", "4x4096x4096", "16x4096x4096", "128x4096x4096",
    "decoderx4x256",
)  # fmt: skip
OPSETS = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
WIDTH, HIDDEN, HEADS, SHARED_HEADS, WORDS = 2048, 5632, 32, 4, 32000
HEAD = WIDTH // HEADS
LIMIT = 0.1  # of an error over the largest result: activations in bytes are off by 0.005
Weights = tuple[int, int]
"""Bits, and terms of a block."""


class _Model:
    """A graph of onnxruntime's operators while it is made."""

    def __init__(self, weights: Weights, level: int) -> None:
        self.bits, self.block = weights
        self.level = level
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(7)

    def constant(self, values: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def node(self, op: str, inputs: Sequence[str], outputs: int = 1, **attrs: object) -> list[str]:
        domain = "" if op in ("Mul", "Sigmoid", "Add") else "com.microsoft"
        if op == "SimplifiedLayerNormalization":
            domain = ""
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, domain=domain, **attrs))
        return names

    def product(self, x: str, depth: int, columns: int) -> str:
        blocks = depth // self.block
        quanta = self.rng.integers(0, 256, (columns, blocks, self.block * self.bits // 8), np.uint8)
        scales = self.rng.uniform(0.5, 1.5, (columns, blocks)).astype(np.float32)
        scales /= 2**self.bits * np.sqrt(np.float32(depth / 12))
        inputs = [x, self.constant(quanta), self.constant(scales)]
        (y,) = self.node(
            "MatMulNBits", inputs, K=depth, N=columns, bits=self.bits, block_size=self.block,
            accuracy_level=self.level,
        )  # fmt: skip
        return y

    def made(self, ports: dict[str, Sequence[int]], results: dict[str, Sequence[int]]) -> bytes:
        inputs, outputs = (
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in each.items()]
            for each in (ports, results)
        )
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, self.constants)
        model = helper.make_model(graph, opset_imports=OPSETS, ir_version=10)
        return bytes(model.SerializeToString())


def model_of(case: str, weights: Weights, level: int = 0) -> bytes:
    made = _Model(weights, level)
    if case.startswith("decoder"):
        return _decoder(made, *map(int, case.split("x")[1:]))
    rows, depth, columns = map(int, case.split("x"))
    y = made.product("x", depth, columns)
    return made.made({"x": (rows, depth)}, {y: (rows, columns)})


def _decoder(made: _Model, layers: int, past: int) -> bytes:
    """Each layer reads the keys and values of its past, and hands on those with the token's."""
    angles = np.outer(np.arange(2 * past), 1e4 ** (-np.arange(HEAD // 2) / (HEAD // 2)))
    caches = [made.constant(f(angles).astype(np.float32)) for f in (np.cos, np.sin)]
    last = made.constant(np.full((1, 1), past, np.int32))
    total = made.constant(np.array(past + 1, np.int32))
    state, one = (1, SHARED_HEADS, past, HEAD), np.ones(WIDTH, np.float32)
    ports, results = {"x": (1, 1, WIDTH)}, {}
    norm = {"axis": -1, "epsilon": 1e-5}
    hidden = "x"
    (x,) = made.node("SimplifiedLayerNormalization", [hidden, made.constant(one)], **norm)
    for layer in range(layers):
        kept = [f"past_{name}_{layer}" for name in ("key", "value")]
        ports |= dict.fromkeys(kept, state)
        q, k, v = (made.product(x, WIDTH, n * HEAD) for n in (HEADS, SHARED_HEADS, SHARED_HEADS))
        y, *grown = made.node(
            "GroupQueryAttention", [q, k, v, *kept, last, total, *caches], 3, num_heads=HEADS,
            kv_num_heads=SHARED_HEADS, do_rotary=1,
        )  # fmt: skip
        results |= dict.fromkeys(grown, (1, SHARED_HEADS, past + 1, HEAD))
        y = made.product(y, WIDTH, WIDTH)
        x, _, _, hidden = made.node(
            "SkipSimplifiedLayerNormalization", [hidden, y, made.constant(one)], 4, epsilon=1e-5
        )
        gate, up = (made.product(x, WIDTH, HIDDEN) for _ in range(2))
        (opened,) = made.node("Sigmoid", [gate])
        (silu,) = made.node("Mul", [gate, opened])
        (inner,) = made.node("Mul", [silu, up])
        y = made.product(inner, HIDDEN, WIDTH)
        x, _, _, hidden = made.node(
            "SkipSimplifiedLayerNormalization", [hidden, y, made.constant(one)], 4, epsilon=1e-5
        )
    return made.made(ports, {made.product(x, WIDTH, WORDS): (1, 1, WORDS), **results})


def feeds_of(model: bytes) -> Feeds:
    rng = np.random.default_rng(3)
    inputs = onnx.load_model_from_string(model).graph.input
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in inputs}
    return {name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}


LEVELS = {"": 0, " int8": 4}


def make_ours(case: str, weights: Weights, cores: int) -> dict[str, Contender]:
    return {
        f"ours{name}": _build(model_of(case, weights, level), cores)
        for name, level in LEVELS.items()
    }


def _build(model: bytes, cores: int) -> Contender:
    feeds = feeds_of(model)
    with tunefarm.apply_history_best((), starter=False):
        module = tunefarm.from_onnx(onnx.load_model_from_string(model))
        lib = tunefarm.build(module, tunefarm.Target.host(cores))
    arrays = lib.check_inputs(feeds)
    results = list(lib.run(feeds).values())
    return Contender(lambda: lib.run_raw(arrays, results), lambda: results[:1])


def make_onnxruntime(case: str, weights: Weights, cores: int) -> dict[str, Contender]:
    found = {}
    for name, level in LEVELS.items():
        model = model_of(case, weights, level)
        found[f"onnxruntime{name}"] = _first(in_onnxruntime(model, feeds_of(model), cores))
    return found


def make_openvino(case: str, weights: Weights, cores: int) -> dict[str, Contender]:
    if case.startswith("decoder"):
        return {}
    model = model_of(case, weights)
    return {"OpenVINO": _first(in_openvino(model, feeds_of(model), cores))}


def _first(contender: Contender) -> Contender:
    """The same with the first result alone."""
    return Contender(contender.call, lambda: list(contender.outputs())[:1])


PEERS = {"onnxruntime": make_onnxruntime, "OpenVINO": make_openvino}


def reference(case: str, weights: Weights) -> Array | None:
    """Sums of float64; None for a decoder."""
    if case.startswith("decoder"):
        return None
    model = model_of(case, weights)
    quanta, scales = map(
        numpy_helper.to_array, onnx.load_model_from_string(model).graph.initializer
    )
    bits, block = weights
    parts = (quanta[..., None] >> np.arange(0, 8, bits, dtype=np.uint8)) & np.uint8(2**bits - 1)
    numbers = parts.reshape(*quanta.shape[:2], block).astype(np.float64) - 2 ** (bits - 1)
    matrix = (numbers * scales[..., None]).reshape(len(quanta), -1)
    return np.asarray(feeds_of(model)["x"].astype(np.float64) @ matrix.T)


def measure(
    case: str, weights: Weights, cores: int, libraries: list[Apart], repeats: int, pace: Pace
) -> Row:
    contenders: dict[str, Contender] = {}
    for library in libraries:
        contenders |= library.make(case, weights, cores)
    for contender in contenders.values():
        contender.call()
    wanted = reference(case, weights)
    if wanted is None:
        (wanted,) = contenders["onnxruntime"].outputs()
    found = {n: largest_error(c.outputs(), [wanted]) for n, c in contenders.items()}
    errors = within_limit(found, LIMIT)
    timers = {n: t for n in errors if (t := contenders[n].timer)}
    seconds = in_turn(timers, repeats, pace=pace)
    flops = 0
    if not case.startswith("decoder"):
        rows, depth, columns = map(int, case.split("x"))
        flops = 2 * rows * depth * columns
    return Row(case, seconds, flops, pace.peak_flops(), errors)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE")
    parser.add_argument("--cores", default="1,2", help="numbers of cores, one table each")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--bits", type=int, default=4, choices=(2, 4, 8))
    parser.add_argument("--block", type=int, default=32, help="terms that share a scale")
    options = parser.parse_args()
    status = for_each_core_count(options.cores)
    if status is not None:
        return status
    cores, weights = int(options.cores), (options.bits, options.block)
    neighbours = Neighbours()
    makers = [make_ours, *(PEERS[name] for name in installed() if name in PEERS)]
    with Pace(cores) as pace, apart(*makers) as libraries:
        rows = [
            measure(case, weights, cores, libraries, options.repeats, pace)
            for case in options.cases
        ]
    title = f"weights of {options.bits} bits in blocks of {options.block}, {cores} core(s)"
    show(rows, title, {"all": rows})
    print(neighbours.report(), pace.turns.report())
    return 0


if __name__ == "__main__":
    sys.exit(main())
