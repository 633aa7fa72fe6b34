"""Steps that add a form of which networks are made: blocks of several layers."""

from __future__ import annotations

import numpy as np

from tests.random_models.draft import Draft, Unsuitable
from tests.random_models.elements import activated
from tests.random_models.products import dense
from tests.random_models.windows import plain_conv, pointwise


def residual(draft: Draft) -> str:
    """Convolutions that keep the shape, and what they began from added."""
    x = draft.pick(rank=4)
    y = x
    for _ in range(draft.between(1, 3)):
        y = plain_conv(draft, y, draft.shape(x)[1], draft.any(1, 3))
        y = activated(draft, y) if draft.chance(0.5) else y
    if draft.chance(0.6):
        return draft.node("Relu", draft.node("Add", y, x))
    return draft.node("Add", x, y)


def inverted_residual(draft: Draft) -> str:
    """MobileNet's block: more channels, a depthwise convolution, fewer channels."""
    x = draft.pick(rank=4)
    c = draft.shape(x)[1]
    wide = c * draft.any(2, 4, 6)
    op = draft.any("Relu", "HardSwish", "Clip")
    bounds = [draft.number(0), draft.number(6)] if op == "Clip" else []
    y = draft.node(op, pointwise(draft, x, wide), *bounds)
    taps, stride = draft.any(3, 3, 5), draft.any(1, 1, 2)
    operands = [y, draft.weights(wide, 1, taps, taps), draft.weights(wide, fan=4)]
    pads = [taps // 2] * 4
    y = draft.node("Conv", *operands, group=wide, strides=[stride] * 2, pads=pads)
    y = draft.node(op, y, *bounds)
    y = _squeeze_excite(draft, y) if draft.chance(0.4) else y
    out = c if draft.chance(0.6) else draft.between(1, 40)
    y = pointwise(draft, y, out)
    return draft.node("Add", x, y) if (stride, out) == (1, c) and draft.chance(0.8) else y


def squeeze_excite(draft: Draft) -> str:
    return _squeeze_excite(draft, draft.pick(rank=4))


def _squeeze_excite(draft: Draft, x: str) -> str:
    """Channels scaled by what two layers make of their means."""
    c = draft.shape(x)[1]
    if draft.chance(0.5):
        y = draft.node("GlobalAveragePool", x)
    else:
        y = draft.node("ReduceMean", x, draft.ints(2, 3), keepdims=1)
    y = pointwise(draft, draft.node("Relu", pointwise(draft, y, max(1, c // 4))), c)
    return draft.node("Mul", x, draft.node(draft.any("Sigmoid", "HardSigmoid"), y))


def shuffled_channels(draft: Draft) -> str:
    x = draft.pick(rank=4)
    n, c, h, w = draft.shape(x)
    groups = [g for g in (2, 3, 4) if c % g == 0]
    if not groups:
        raise Unsuitable("the channels have no groups")
    g = draft.any(*groups)
    y = draft.node("Reshape", x, draft.ints(n, g, c // g, h, w))
    y = draft.node("Transpose", y, perm=[0, 2, 1, 3, 4])
    return draft.node("Reshape", y, draft.ints(n, c, h, w))


def branches(draft: Draft) -> str:
    """Inception's block: convolutions and a pooling of one image, side by side."""
    x = draft.pick(rank=4)
    parts = [
        plain_conv(draft, x, draft.between(1, 24), draft.any(1, 3, 5))
        for _ in range(draft.between(2, 3))
    ]
    if draft.chance(0.4):
        op = draft.any("MaxPool", "AveragePool")
        parts.append(draft.node(op, x, kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
    if draft.chance(0.3):
        parts.append(x)
    parts = [activated(draft, part) if draft.chance(0.4) else part for part in parts]
    return draft.node("Concat", *parts, axis=1)


def summed_branches(draft: Draft) -> str:
    """RepVGG's block: convolutions of 3×3 and 1×1 of one image, and the image, added."""
    x = draft.pick(rank=4)
    c = draft.shape(x)[1]
    k = c if draft.chance(0.6) else draft.between(1, 32)
    y = draft.node("Add", plain_conv(draft, x, k, 3), plain_conv(draft, x, k, 1))
    y = draft.node("Add", y, x) if k == c else y
    return draft.node("Relu", y)


def many_channels(draft: Draft) -> str:
    """Layers large enough for methods of fewer multiplications."""
    if draft.chance(0.5):
        n = draft.any(128, 192, 256)
        return dense(draft, activated(draft, dense(draft, draft.pick(least=2), n)), n)
    x = draft.pick(rank=4)
    k = draft.any(32, 64, 96, 128)
    y = draft.node("Relu", pointwise(draft, x, k))
    y = activated(draft, plain_conv(draft, y, k, draft.any(3, 3, 5)))
    return plain_conv(draft, y, draft.any(draft.shape(x)[1], k, 16), draft.any(1, 3))


def attention(draft: Draft) -> str:
    """Attention of a sequence to itself, with heads and often a mask."""
    x = draft.pick(rank=3)
    b, t, c = draft.shape(x)
    heads, size = draft.any(1, 2, 3), draft.any(4, 8, 16, 20)
    query = _heads_of(draft, x, heads, size, [0, 2, 1, 3])
    key = _heads_of(draft, x, heads, size, [0, 2, 3, 1])
    value = _heads_of(draft, x, heads, size, [0, 2, 1, 3])
    scale = draft.number(1 / np.sqrt(size))
    if draft.chance(0.5):
        scores = draft.node("Mul", draft.node("MatMul", query, key), scale)
    else:
        scores = draft.node("MatMul", draft.node("Mul", query, scale), key)
    if draft.chance(0.4):
        shape = draft.any((t, t), (1, 1, t, t), (b, 1, 1, t), (1, heads, t, t))
        hidden = np.float32(draft.any(-100, -9000, -1))
        mask = np.where(draft.rng.random(shape) < 0.3, hidden, np.float32(0))
        scores = draft.node("Add", scores, draft.constant(mask))
    y = draft.node("MatMul", draft.node("Softmax", scores, axis=-1), value)
    y = draft.node("Transpose", y, perm=[0, 2, 1, 3])
    y = dense(draft, draft.node("Reshape", y, draft.ints(b, t, heads * size)), c)
    return draft.node("Add", x, y) if draft.chance(0.7) else y


def _heads_of(draft: Draft, x: str, heads: int, size: int, order: list[int]) -> str:
    """A projection of a sequence, cut into heads: (batch, step, head, size) in this order."""
    b, t, _ = draft.shape(x)
    y = dense(draft, x, heads * size)
    y = draft.node("Add", y, draft.weights(heads * size, fan=4)) if draft.chance(0.6) else y
    return draft.node(
        "Transpose", draft.node("Reshape", y, draft.ints(b, t, heads, size)), perm=order
    )


def tokens(draft: Draft) -> str:
    """An image as a sequence of pixels, or its windows of 2×2 as sequences."""
    x = draft.pick(rank=4)
    b, c, h, w = draft.shape(x)
    if h % 2 == 0 and w % 2 == 0 and draft.chance(0.5):
        y = draft.node("Reshape", x, draft.ints(b, c, h // 2, 2, w // 2, 2))
        y = draft.node("Transpose", y, perm=[0, 2, 4, 3, 5, 1])
        return draft.node("Reshape", y, draft.ints(-1, 4, c))
    return draft.node(
        "Transpose", draft.node("Reshape", x, draft.ints(b, c, h * w)), perm=[0, 2, 1]
    )


def mlp(draft: Draft) -> str:
    """A transformer's two dense layers, and what they began from added."""
    x = draft.pick(least=2)
    n = draft.any(8, 17, 64)
    y = draft.node("Add", dense(draft, x, n), draft.weights(n, fan=4))
    return draft.node("Add", x, dense(draft, activated(draft, y), draft.shape(x)[-1]))
