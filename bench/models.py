"""Models in code, with random weights scaled so that activations stay of order one.

    resnet18  resnet50  mobilenet_v2  bert_base  vit_s16        each -> onnx.ModelProto, batch 1
    resnet50-int8                   quantised by onnxruntime, calibrated on random images

Topologies: He et al. 2015, Sandler et al. 2018, Devlin et al. 2018, Dosovitskiy et al. 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

OPSET = 20


class _Graph:
    """Nodes and weights under construction; every method returns the name of its result."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, values: NDArray[Any]) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def normal(self, shape: Sequence[int], deviation: float) -> str:
        values = self.rng.standard_normal(shape, np.float32)
        return self.constant(values * np.float32(deviation))

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def scalar(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def conv(
        self, x: str, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> str:
        inner = inputs // groups
        w = self.normal((outputs, inner, kernel, kernel), sqrt(2 / (inner * kernel**2)))
        pad = kernel // 2
        return self.op(
            "Conv", x, w, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4,
            group=groups,
        )  # fmt: skip

    def batch_norm(self, x: str, channels: int, scale: float = 1.0) -> str:
        """Near the identity, as a trained one is; ``scale`` damps a residual branch."""
        draw = self.rng.standard_normal((3, channels)).astype(np.float32) * np.float32(0.1)
        parameters = (scale * (1 + draw[0]), draw[1], draw[2], np.exp(draw[0]))
        return self.op("BatchNormalization", x, *(self.constant(p) for p in parameters))

    def dense(self, x: str, inputs: int, outputs: int, gain: float = 1.0) -> str:
        y = self.op("MatMul", x, self.normal((inputs, outputs), gain / sqrt(inputs)))
        return self.op("Add", y, self.normal((outputs,), 0.1))

    def layer_norm(self, x: str, features: int) -> str:
        draw = self.rng.standard_normal((2, features)).astype(np.float32) * np.float32(0.1)
        scale, bias = self.constant(1 + draw[0]), self.constant(draw[1])
        return self.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-6)

    def model(
        self, name: str, inputs: Mapping[str, tuple[int, Sequence[int]]], result: str,
        shape: Sequence[int],
    ) -> ModelProto:  # fmt: skip
        self.nodes.append(helper.make_node("Identity", [result], ["output"], name="output"))
        graph = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
            [helper.make_tensor_value_info("output", TensorProto.FLOAT, shape)],
            self.weights,
        )
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10
        )


def _image(size: int) -> dict[str, tuple[int, Sequence[int]]]:
    return {"x": (TensorProto.FLOAT, (1, 3, size, size))}


def _stem(g: _Graph) -> str:
    y = g.op("Relu", g.batch_norm(g.conv("x", 3, 64, 7, 2), 64))
    return g.op("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])


def _classifier(g: _Graph, x: str, features: int) -> str:
    y = g.op("Flatten", g.op("GlobalAveragePool", x), axis=1)
    w = g.normal((1000, features), 1 / sqrt(features))
    return g.op("Gemm", y, w, g.normal((1000,), 0.1), transB=1)


def _basic_block(g: _Graph, x: str, inputs: int, outputs: int, stride: int) -> str:
    y = g.op("Relu", g.batch_norm(g.conv(x, inputs, outputs, 3, stride), outputs))
    y = g.batch_norm(g.conv(y, outputs, outputs, 3), outputs, 0.3)
    return g.op("Relu", g.op("Add", y, _shortcut(g, x, inputs, outputs, stride)))


def _bottleneck(g: _Graph, x: str, inputs: int, outputs: int, stride: int) -> str:
    middle = outputs // 4
    y = g.op("Relu", g.batch_norm(g.conv(x, inputs, middle, 1), middle))
    y = g.op("Relu", g.batch_norm(g.conv(y, middle, middle, 3, stride), middle))
    y = g.batch_norm(g.conv(y, middle, outputs, 1), outputs, 0.3)
    return g.op("Relu", g.op("Add", y, _shortcut(g, x, inputs, outputs, stride)))


def _shortcut(g: _Graph, x: str, inputs: int, outputs: int, stride: int) -> str:
    if inputs == outputs and stride == 1:
        return x
    return g.batch_norm(g.conv(x, inputs, outputs, 1, stride), outputs, 0.7)


def _resnet(
    name: str, block: Callable[[_Graph, str, int, int, int], str], depths: Sequence[int],
    expansion: int, seed: int, size: int,
) -> ModelProto:  # fmt: skip
    g = _Graph(seed)
    y, channels = _stem(g), 64
    for stage, depth in enumerate(depths):
        outputs = 64 * expansion << stage
        for index in range(depth):
            stride = 2 if stage and not index else 1
            y, channels = block(g, y, channels, outputs, stride), outputs
    return g.model(name, _image(size), _classifier(g, y, channels), (1, 1000))


def resnet18(seed: int = 0, size: int = 224, stages: int = 4) -> ModelProto:
    """ResNet-18 v1.5, or its first stages; input "x" [1, 3, size, size]."""
    return _resnet("resnet18", _basic_block, (2, 2, 2, 2)[:stages], 1, seed, size)


def resnet50(seed: int = 0, size: int = 224) -> ModelProto:
    """ResNet-50 v1.5 (stride in the 3×3); input "x" [1, 3, size, size]."""
    return _resnet("resnet50", _bottleneck, (3, 4, 6, 3), 4, seed, size)


def mobilenet_v2(seed: int = 0, size: int = 224) -> ModelProto:
    """MobileNetV2 1.0; input "x" [1, 3, size, size]."""
    g = _Graph(seed)
    y, channels = _clipped(g, g.conv("x", 3, 32, 3, 2), 32), 32
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
            (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip
    for expansion, outputs, depth, first_stride in rows:
        for index in range(depth):
            stride = 1 if index else first_stride
            y, channels = _inverted(g, y, channels, outputs, expansion, stride), outputs
    y = _clipped(g, g.conv(y, channels, 1280, 1), 1280)
    return g.model("mobilenet_v2", _image(size), _classifier(g, y, 1280), (1, 1000))


def _clipped(g: _Graph, x: str, channels: int) -> str:
    return g.op("Clip", g.batch_norm(x, channels), g.scalar(0), g.scalar(6))


def _inverted(g: _Graph, x: str, inputs: int, outputs: int, expansion: int, stride: int) -> str:
    middle, y = inputs * expansion, x
    if expansion > 1:
        y = _clipped(g, g.conv(y, inputs, middle, 1), middle)
    y = _clipped(g, g.conv(y, middle, middle, 3, stride, groups=middle), middle)
    y = g.batch_norm(g.conv(y, middle, outputs, 1), outputs, 0.5)
    return g.op("Add", x, y) if stride == 1 and inputs == outputs else y


def _heads(g: _Graph, x: str, tokens: int, heads: int, size: int, order: Sequence[int]) -> str:
    split = g.op("Reshape", x, g.integers(1, tokens, heads, size))
    return g.op("Transpose", split, perm=list(order))


def _attention(g: _Graph, x: str, tokens: int, width: int, heads: int, mask: str | None) -> str:
    size = width // heads
    q = _heads(g, g.dense(x, width, width), tokens, heads, size, (0, 2, 1, 3))
    k = _heads(g, g.dense(x, width, width), tokens, heads, size, (0, 2, 3, 1))
    v = _heads(g, g.dense(x, width, width), tokens, heads, size, (0, 2, 1, 3))
    scores = g.op("Div", g.op("MatMul", q, k), g.scalar(sqrt(size)))
    if mask is not None:
        scores = g.op("Add", scores, mask)
    mixed = g.op("MatMul", g.op("Softmax", scores, axis=-1), v)
    mixed = g.op("Transpose", mixed, perm=[0, 2, 1, 3])
    return g.dense(g.op("Reshape", mixed, g.integers(1, tokens, width)), width, width)


def _feed_forward(g: _Graph, x: str, width: int) -> str:
    return g.dense(g.op("Gelu", g.dense(x, width, 4 * width)), 4 * width, width)


def bert_base(
    seed: int = 0, tokens: int = 128, layers: int = 12, vocabulary: int = 30522
) -> ModelProto:
    """BERT-base encoder; inputs "input_ids" and "attention_mask", int64 [1, tokens]."""
    g, width, heads = _Graph(seed), 768, 12
    words = g.op("Gather", g.normal((vocabulary, width), 0.7), "input_ids", axis=0)
    y = g.op("Add", words, g.normal((1, tokens, width), 0.7))
    y = g.layer_norm(y, width)
    mask = g.op("Cast", g.op("Unsqueeze", "attention_mask", g.integers(1, 2)), to=TensorProto.FLOAT)
    mask = g.op("Mul", g.op("Sub", g.scalar(1), mask), g.scalar(-1e4))
    for _ in range(layers):
        y = g.layer_norm(g.op("Add", _attention(g, y, tokens, width, heads, mask), y), width)
        y = g.layer_norm(g.op("Add", _feed_forward(g, y, width), y), width)
    ids = (TensorProto.INT64, (1, tokens))
    inputs = {"input_ids": ids, "attention_mask": ids}
    return g.model("bert_base", inputs, y, (1, tokens, width))


def vit_s16(seed: int = 0, size: int = 224, layers: int = 12) -> ModelProto:
    """ViT-S/16: (size / 16)² patches and a class token; input "x" [1, 3, size, size]."""
    g, width, heads = _Graph(seed), 384, 6
    patches = (size // 16) ** 2
    y = g.op(
        "Conv", "x", g.normal((width, 3, 16, 16), 1 / sqrt(768)), g.normal((width,), 0.1),
        kernel_shape=[16, 16], strides=[16, 16],
    )  # fmt: skip
    y = g.op("Transpose", g.op("Reshape", y, g.integers(1, width, patches)), perm=[0, 2, 1])
    y = g.op("Concat", g.normal((1, 1, width), 1.0), y, axis=1)
    y = g.op("Add", y, g.normal((1, patches + 1, width), 0.3))
    for _ in range(layers):
        mixed = _attention(g, g.layer_norm(y, width), patches + 1, width, heads, None)
        y = g.op("Add", y, mixed)
        y = g.op("Add", y, _feed_forward(g, g.layer_norm(y, width), width))
    y = g.op("Gather", g.layer_norm(y, width), g.constant(np.array(0, np.int64)), axis=1)
    return g.model("vit_s16", _image(size), g.dense(y, width, 1000), (1, 1000))


class _RandomImages:
    """Calibration data: normal images for the model's input "x"."""

    def __init__(self, size: int, count: int) -> None:
        rng = np.random.default_rng(0)
        self.left = [rng.standard_normal((1, 3, size, size), np.float32) for _ in range(count)]

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        return {"x": self.left.pop()} if self.left else None


def resnet50_int8(seed: int = 0, size: int = 224) -> ModelProto:
    """ResNet-50 in QDQ form: weights int8 for each channel, activations uint8 with a zero point."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with TemporaryDirectory() as folder:
        plain, folded, done = (str(Path(folder) / f"{n}.onnx") for n in ("f32", "folded", "int8"))
        onnx.save(resnet50(seed, size), plain)
        quant_pre_process(plain, folded, skip_symbolic_shape=True)
        quantize_static(
            folded, done, _RandomImages(size, 2), quant_format=QuantFormat.QDQ, per_channel=True,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        )  # fmt: skip
        return onnx.load(done)


MODELS: Mapping[str, Callable[[], ModelProto]] = {
    "resnet18": resnet18,
    "resnet50": resnet50,
    "mobilenet_v2": mobilenet_v2,
    "bert_base": bert_base,
    "vit_s16": vit_s16,
}
QUANTISED: Mapping[str, Callable[[], ModelProto]] = {"resnet50-int8": resnet50_int8}
ALL = {**MODELS, **QUANTISED}
