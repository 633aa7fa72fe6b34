"""Models as onnxruntime's optimizer and its builder of decoders write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.transformers.optimizer import optimize_model
from tunefarm.compiler.extract import kernels_of
from tunefarm.compiler.frontend.onnx import from_onnx
from tunefarm.compiler.ir import Call, post_order
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import optimize

import tunefarm
from tests.compiler.frontend.beside_onnxruntime import (
    Array,
    assert_alike,
    by_onnxruntime,
    in_model,
)

HEADS, SIZE, WORDS, TOKENS = 4, 8, 50, 37
WIDTH = HEADS * SIZE


class Graph:
    """Nodes under construction; every method returns the name of its result."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(7)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def op(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **attrs: Any) -> str:
        """Of several results the first; the others have its name and their number."""
        first = f"{kind}_{len(self.nodes)}"
        names = [first, *(f"{first}_{i}" for i in range(1, outputs))]
        self.nodes.append(
            helper.make_node(kind, list(inputs), names, name=first, domain=domain, **attrs)
        )
        return first

    def fused(self, kind: str, *inputs: str, **attrs: Any) -> str:
        return self.op(kind, *inputs, domain="com.microsoft", **attrs)

    def constant(self, values: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(values), f"w{len(self.weights)}"))
        return str(self.weights[-1].name)

    def number(self, value: float) -> str:
        return self.constant(np.float32(value))

    def normal(self, *shape: int, deviation: float = 1.0) -> str:
        return self.constant((deviation * self.rng.standard_normal(shape)).astype(np.float32))

    def model(self, inputs: dict[str, tuple[str, ...]], outputs: list[str]) -> onnx.ModelProto:
        """Inputs are floats, or int64 where they have two dimensions."""
        ports = [
            helper.make_tensor_value_info(
                name, TensorProto.INT64 if len(shape) == 2 else TensorProto.FLOAT, shape
            )
            for name, shape in inputs.items()
        ]
        results = [helper.make_value_info(name, onnx.TypeProto()) for name in outputs]
        return in_model(helper.make_graph(self.nodes, "g", ports, results, self.weights), 17)


class Encoder(Graph):
    """BERT as PyTorch's exporter writes it."""

    def dense(self, x: str, inputs: int, outputs: int) -> str:
        y = self.op("MatMul", x, self.normal(inputs, outputs, deviation=inputs**-0.5))
        return self.op("Add", self.normal(outputs, deviation=0.1), y)

    def norm(self, x: str) -> str:
        scale, bias = self.normal(WIDTH), self.normal(WIDTH, deviation=0.1)
        return self.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-12)

    def embedded(self, words: str, segments: str) -> str:
        tables = self.normal(WORDS, WIDTH), self.normal(2, WIDTH), self.normal(TOKENS + 3, WIDTH)
        first, one = self.constant(np.array([0])), self.constant(np.array([1]))
        count = self.op("Gather", self.op("Shape", words), self.constant(np.array(1)))
        all_places = self.constant(np.arange(TOKENS + 3)[None])
        end = self.op("Unsqueeze", count, first)
        places = self.op("Slice", all_places, first, end, one, one)
        x, y, z = (
            self.op("Gather", table, rows)
            for table, rows in zip(tables, (words, segments, places), strict=True)
        )
        return self.norm(self.op("Add", self.op("Add", x, y), z))

    def mask(self, kept: str) -> str:
        axes = [self.constant(np.array([d])) for d in (1, 2)]
        wide = self.op("Unsqueeze", self.op("Unsqueeze", kept, axes[0]), axes[1])
        numbers = self.op("Cast", wide, to=TensorProto.FLOAT)
        return self.op("Mul", self.op("Sub", self.number(1), numbers), self.number(-10000))

    def attention(self, x: str, mask: str) -> str:
        apart, whole = self.constant([0, 0, HEADS, SIZE]), self.constant([0, 0, WIDTH])

        def heads(*axes: int) -> str:
            y = self.op("Reshape", self.dense(x, WIDTH, WIDTH), apart)
            return self.op("Transpose", y, perm=axes)

        q, k, v = heads(0, 2, 1, 3), heads(0, 2, 3, 1), heads(0, 2, 1, 3)
        scores = self.op("Div", self.op("MatMul", q, k), self.number(SIZE**0.5))
        weights = self.op("Softmax", self.op("Add", scores, mask), axis=-1)
        y = self.op("Transpose", self.op("MatMul", weights, v), perm=(0, 2, 1, 3))
        return self.op("Reshape", y, whole)

    def gelu(self, x: str) -> str:
        grown = self.op("Erf", self.op("Div", x, self.number(2**0.5)))
        y = self.op("Mul", x, self.op("Add", grown, self.number(1)))
        return self.op("Mul", y, self.number(0.5))

    def layer(self, x: str, mask: str) -> str:
        y = self.dense(self.attention(x, mask), WIDTH, WIDTH)
        x = self.norm(self.op("Add", y, x))
        y = self.dense(self.gelu(self.dense(x, WIDTH, 4 * WIDTH)), 4 * WIDTH, WIDTH)
        return self.norm(self.op("Add", y, x))


def bert() -> onnx.ModelProto:
    g = Encoder()
    x, mask = g.embedded("input_ids", "token_type_ids"), g.mask("attention_mask")
    for _ in range(2):
        x = g.layer(x, mask)
    names = "input_ids", "token_type_ids", "attention_mask"
    return g.model(dict.fromkeys(names, ("batch", "tokens")), [x])


class Decoder(Graph):
    """A layer of Llama as onnxruntime-genai writes it, with weights of four bits."""

    KEYS = 2  # heads of keys and values

    def product(self, x: str, inputs: int, outputs: int) -> str:
        blocks = inputs // 16
        weights = self.rng.integers(0, 256, (outputs, blocks, 8)).astype(np.uint8)
        scales = self.rng.uniform(0.01, 0.05, (outputs, blocks)).astype(np.float32)
        attrs = {"K": inputs, "N": outputs, "bits": 4, "block_size": 16}
        return self.fused("MatMulNBits", x, *map(self.constant, (weights, scales)), **attrs)

    def counts(self, mask: str) -> tuple[str, str]:
        """The place of the last token of each row, and the number of all tokens."""
        axis, one = self.constant(np.array([1])), self.constant(np.array([1]))
        kept = self.op("Sub", self.op("ReduceSum", mask, axis, keepdims=0), one)
        total = self.op("Gather", self.op("Shape", mask), self.constant(np.array(1)))
        return (
            self.op("Cast", kept, to=TensorProto.INT32),
            self.op("Cast", total, to=TensorProto.INT32),
        )

    def attention(self, x: str, mask: str) -> str:
        size = 16
        width = (HEADS + 2 * self.KEYS) * size
        caches = self.normal(64, size // 2), self.normal(64, size // 2)
        return self.fused(
            "GroupQueryAttention", self.product(x, WIDTH, width), "", "", "past_key", "past_value",
            *self.counts(mask), *caches, outputs=3, num_heads=HEADS, kv_num_heads=self.KEYS,
            do_rotary=1,
        )  # fmt: skip

    def layer(self, mask: str) -> tuple[str, str]:
        """The result, and the name of the attention, whose results are keys and values too."""
        table, scale = self.normal(WORDS, WIDTH), self.normal(WIDTH)
        x = self.op("Gather", table, "input_ids")
        attention = self.attention(self.op("SimplifiedLayerNormalization", x, scale), mask)
        y = self.product(attention, HEADS * 16, WIDTH)
        norm = "SkipSimplifiedLayerNormalization"
        z = self.fused(norm, x, y, self.normal(WIDTH), outputs=4, epsilon=1e-6)
        gate, up = self.product(z, WIDTH, 64), self.product(z, WIDTH, 64)
        silu = self.op("Mul", gate, self.op("Sigmoid", gate))
        y = self.product(self.op("Mul", silu, up), 64, WIDTH)
        return self.fused(norm, f"{z}_3", y, self.normal(WIDTH), epsilon=1e-6), attention


@pytest.mark.parametrize(
    "tokens, past, kept", [(9, 0, 9), (1, 6, 7), (1, 16, 7)], ids=["prompt", "step", "buffer"]
)
def test_a_decoder_of_four_bits(tokens: int, past: int, kept: int) -> None:
    """A prompt, a token behind a past, and one behind a past with room for more."""
    g = Decoder()
    y, attention = g.layer("attention_mask")
    cache = ("batch", g.KEYS, "past", 16)
    names = {"input_ids": ("batch", "tokens"), "attention_mask": ("batch", "total")}
    model = g.model(
        {**names, "past_key": cache, "past_value": cache},
        [y, f"{attention}_1", f"{attention}_2"],
    )
    rng = np.random.default_rng(0)
    feeds: dict[str, Array] = {
        "input_ids": rng.integers(0, WORDS, (1, tokens)),
        "attention_mask": (np.arange(max(past, kept)) < kept).astype(np.int64)[None],
    }
    for name in ("past_key", "past_value"):
        feeds[name] = rng.standard_normal((1, g.KEYS, past, 16)).astype(np.float32)
    assert_alike(model, feeds, lambda i, a: a[:, :, :kept] if i else a)


def test_bert_through_the_optimizer_of_onnxruntime() -> None:
    """It computes the same as before, and attention, GELU and norms are our kernels."""
    model = bert()
    fused = optimize_model(model, "bert", num_heads=HEADS, hidden_size=WIDTH, opt_level=0).model
    kinds = {n.op_type for n in fused.graph.node if n.domain == "com.microsoft"}
    assert kinds == {"EmbedLayerNormalization", "Attention", "SkipLayerNormalization", "BiasGelu"}
    rng = np.random.default_rng(0)
    feeds = {
        "input_ids": rng.integers(0, WORDS, (2, TOKENS)),
        "token_type_ids": rng.integers(0, 2, (2, TOKENS)),
        "attention_mask": (np.arange(TOKENS) < [[TOKENS], [20]]).astype(np.int64),
    }
    module = from_onnx(fused, dict.fromkeys(feeds, (2, TOKENS)))
    (got,) = tunefarm.build(module, Target.host(1)).run(feeds).values()
    np.testing.assert_allclose(got, by_onnxruntime(model, feeds)[0], rtol=1e-4, atol=1e-5)
    spelled = kernels_of(optimize(module, Target("llvm -mcpu=znver4 -num-cores=1")))
    kernels = [
        " ".join(str(n.op) for n in post_order(k.body) if isinstance(n, Call)) for k in spelled
    ]
    attention = "slice slice einsum multiply add softmax slice einsum"
    assert [kernels.count(k) for k in (attention, "matmul add gelu", "layer_norm")] == [2, 2, 5]
