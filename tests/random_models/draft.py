"""A model that grows node by node, and what a step of its growth may choose from.

Each node is run by onnxruntime as it is added: so the values of all tensors are known, and no node
stays that onnxruntime refuses or whose results are no ordinary numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]
T = TypeVar("T")
OPSET = 20
LARGEST_ELEMENTS = 1 << 17  # of a tensor
LARGEST_VALUE = 1e4


class Unsuitable(Exception):
    """What was drawn makes no model: its numbers are too large or too many, or onnxruntime refuses
    it."""


class Draft:
    """A model that grows; all that it chooses at random follows from its seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: dict[str, Array] = {}
        self.constants: dict[str, Array] = {}
        self.values: dict[str, Array] = {}
        """Those of inputs and of nodes' results, the latest at the end."""
        self._read: set[str] = set()
        self._names = 0

    # What the model is made of

    def input(self, *shape: int) -> str:
        name = self._name("x")
        self.inputs[name] = self.values[name] = self.normal(*shape)
        return name

    def constant(self, array: Array | np.generic) -> str:
        name = self._name("c")
        self.constants[name] = np.asarray(array)
        return name

    def number(self, value: float) -> str:
        return self.constant(np.float32(value))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def weights(self, *shape: int, fan: int = 0) -> str:
        """Normal weights that keep the size of what they multiply: the sum of ``fan`` products, by
        default as many as a convolution with weights of this shape adds."""
        fan = fan or int(np.prod(shape[1:])) or 1
        return self.constant(self.normal(*shape) / np.float32(np.sqrt(fan)))

    def node(self, op: str, *inputs: str, **attrs: Any) -> str:
        """The name of a new node's only result; Unsuitable if the node cannot stay."""
        return self.results(op, *inputs, count=1, **attrs)[0]

    def results(self, op: str, *inputs: str, count: int, **attrs: Any) -> list[str]:
        """The names of a new node's results; Unsuitable if the node cannot stay."""
        names = [self._name("t") for _ in range(count)]
        node = helper.make_node(op, inputs, names, **attrs)
        values = _run(node, {name: self.of(name) for name in inputs if name})
        if not all(_is_ordinary(value) for value in values):
            raise Unsuitable(f"{op} gives numbers that are too large or too many, or none")
        self.nodes.append(node)
        self.values |= zip(names, values, strict=True)
        self._read |= {*inputs}
        return names

    def _name(self, stem: str) -> str:
        self._names += 1
        return f"{stem}{self._names}"

    def of(self, name: str) -> Array:
        """The value of a tensor for the inputs that the draft was made with."""
        return self.constants[name] if name in self.constants else self.values[name]

    def shape(self, name: str) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.of(name).shape
        return shape

    # What a step may choose

    def normal(self, *shape: int) -> Array:
        return self.rng.standard_normal(shape).astype(np.float32)

    def any(self, *choices: T) -> T:
        return choices[int(self.rng.integers(len(choices)))]

    def between(self, low: int, high: int) -> int:
        """A whole number, ``high`` among them."""
        return int(self.rng.integers(low, high + 1))

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def floats(self) -> dict[str, Array]:
        """The tensors of float32 that there are, the latest at the end."""
        return {name: value for name, value in self.values.items() if value.dtype == np.float32}

    def pick(self, rank: int | None = None, least: int = 0) -> str:
        """A tensor of float32 of this rank, or of ``least`` dimensions, a late one rather than an
        early one; Unsuitable if there is none."""
        ranks = {name: value.ndim for name, value in self.floats().items()}
        found = [n for n, r in ranks.items() if r >= least and rank in (None, r)]
        if not found:
            raise Unsuitable("there is no tensor of that rank")
        back = min(int(self.rng.exponential(1.5)), len(found) - 1)
        return found[-1 - back]

    # What becomes of it

    def model(self) -> onnx.ModelProto:
        """The model. Its outputs are the results that nothing reads, and a few of the others: a
        generator of its own chooses them, and each call chooses the same."""
        rng = np.random.default_rng(self._names)
        outputs = [n for n in self._made() if n not in self._read or rng.random() < 0.05]
        known = [numpy_helper.from_array(a, n) for n, a in self.constants.items()]
        graph = helper.make_graph(
            self.nodes,
            "random",
            [_info(name, value) for name, value in self.inputs.items()],
            [_info(name, self.values[name]) for name in outputs],
            [tensor for tensor in known if tensor.name in self._read],
        )
        return _in_model(graph)

    def _made(self) -> list[str]:
        return [name for node in self.nodes for name in node.output]


def session_of(model: onnx.ModelProto, optimized: bool = True) -> onnxruntime.InferenceSession:
    """onnxruntime's own build, for one thread, which says nothing of what it finds odd."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers)


def _run(node: onnx.NodeProto, given: Mapping[str, Array]) -> Sequence[Array]:
    """The results of one node; Unsuitable if onnxruntime refuses it."""
    graph = helper.make_graph(
        [node],
        "one",
        [_info(name, value) for name, value in given.items()],
        [helper.make_empty_tensor_value_info(name) for name in node.output],
    )
    try:
        results: list[Array] = session_of(_in_model(graph)).run(None, dict(given))
    except Exception as error:  # its errors have no common base
        raise Unsuitable(f"onnxruntime refuses {node.op_type}: {error}") from error
    return results


def _is_ordinary(value: Array) -> bool:
    if not 0 < value.size <= LARGEST_ELEMENTS:
        return False
    return value.dtype != np.float32 or bool((np.abs(value) < LARGEST_VALUE).all())


def _info(name: str, value: Array) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_value_info(name, kind, value.shape)


def _in_model(graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
