"""Small networks with what larger ones are made of, and inputs for them."""

from __future__ import annotations

from typing import Any

import numpy as np
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.ir import Constant, Expr, Function, IRModule, TensorType, Tuple, Var
from tunefarm.compiler.ops import call

Array = np.ndarray[Any, Any]
F32, F16 = "float32", "float16"


class Weights:
    """Constants of one dtype, drawn one after the other."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self._rng = np.random.default_rng(7)

    def __call__(self, *shape: int) -> Constant:
        drawn = self._rng.standard_normal(shape) / np.sqrt(max(np.prod(shape[1:]), 1))
        return Constant(drawn.astype(numpy_dtype(self.dtype)))


def module(body: Expr, *params: Var) -> IRModule:
    return IRModule({"main": Function(params, body)})


def conv(x: Expr, w: Constant, stride: int = 1) -> Expr:
    pad = w.data.shape[-1] // 2
    return call("conv", x, w, strides=(stride, stride), padding=((pad, pad), (pad, pad)))


def dense(dtype: str = F32) -> IRModule:
    """A layer with relu, and a softmax: two kernels that take no time."""
    weights = Weights(dtype)
    x = Var("x", TensorType((4, 32), dtype))
    hidden = call("relu", call("add", call("matmul", x, weights(32, 16)), weights(16)))
    return module(call("softmax", call("matmul", hidden, weights(16, 24))), x)


def classifier(dtype: str = F32) -> IRModule:
    """Convolution, relu, pooling, dense, softmax."""
    weights = Weights(dtype)
    x = Var("x", TensorType((1, 8, 12, 12), dtype))
    features = call("relu", call("add", conv(x, weights(16, 8, 3, 3)), weights(16, 1, 1)))
    pooled = call("max_pool", features, kernel=(2, 2), strides=(2, 2))
    flat = call("reshape", pooled, shape=(1, 576))
    scores = call("add", call("matmul", flat, weights(576, 10)), weights(10))
    return module(call("softmax", scores), x)


def residual(dtype: str = F32) -> IRModule:
    """Two residual blocks, the second with a stride and a projection, and the mean of all."""
    weights = Weights(dtype)
    x = Var("x", TensorType((1, 16, 6, 6), dtype))
    first = call("relu", conv(x, weights(16, 16, 3, 3)))
    first = call("relu", call("add", conv(first, weights(16, 16, 3, 3)), x))
    second = call("relu", conv(first, weights(32, 16, 3, 3), 2))
    skip = conv(first, weights(32, 16, 1, 1), 2)
    second = call("relu", call("add", conv(second, weights(32, 32, 3, 3)), skip))
    return module(call("mean", second, axes=(2, 3), keepdims=False), x)


def attention(dtype: str = F32) -> IRModule:
    """A layer norm, two heads of attention over 16 tokens, and their sum with the input."""
    weights = Weights(dtype)
    x = Var("x", TensorType((16, 32), dtype))
    normed = call("layer_norm", x, weights(32), weights(32))

    def heads(w: Constant) -> Expr:
        split = call("reshape", call("matmul", normed, w), shape=(16, 2, 16))
        return call("transpose", split, axes=(1, 0, 2))

    queries, keys, values = (heads(weights(32, 32)) for _ in range(3))
    scores = call("matmul", queries, call("transpose", keys, axes=(0, 2, 1)))
    scaled = call("multiply", scores, Constant(np.array(0.25, numpy_dtype(dtype))))
    mixed = call("matmul", call("softmax", scaled), values)
    joined = call("reshape", call("transpose", mixed, axes=(1, 0, 2)), shape=(16, 32))
    return module(call("add", call("matmul", joined, weights(32, 32)), x), x)


def branches() -> IRModule:
    """Two branches that are concatenated, which is an output too, and an input passed on."""
    weights = Weights(F32)
    x = Var("x", TensorType((1, 16, 6, 6), F32))
    left = call("relu", conv(x, weights(16, 16, 1, 1)))
    right = call("relu", conv(x, weights(16, 16, 3, 3)))
    joined = call("concat", left, right, axis=1)
    body = Tuple((conv(joined, weights(16, 32, 1, 1)), joined, x))
    return IRModule({"main": Function((x,), body)}, ("projected", "joined", "same"))


def inputs_of(program: IRModule, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        p.name: rng.standard_normal(p.type.shape).astype(numpy_dtype(p.type.dtype))
        for p in program.main.params
    }
