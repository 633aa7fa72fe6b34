"""Steps that keep a tensor's shape, or nearly: functions of elements, norms, reductions."""

from __future__ import annotations

import numpy as np

from tests.random_models.draft import Draft
from tests.random_models.windows import spatial

UNARY = (
    "Relu", "Relu", "Relu", "LeakyRelu", "Sigmoid", "Tanh", "Erf", "Gelu", "HardSwish",
    "HardSigmoid", "Elu", "Selu", "Softplus", "Abs", "Neg", "Mish", "Softsign", "Celu", "Sin",
    "Cos", "Atan", "Identity",
)  # fmt: skip
"""None that jumps, as ThresholdedRelu does: what rounds otherwise would be far off."""
FORMS = ("silu", "gelu", "tanh gelu", "clip", "clip", "sqrt", "exp", "reciprocal", "prelu")
BINARY = (
    "Add", "Add", "Add", "Mul", "Mul", "Sub", "Min", "Max", "Div", "Where", "Mean", "Pow",
)  # fmt: skip
REDUCTIONS = (
    "ReduceMean", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceLogSumExp",
    "ReduceSum", "ReduceL1", "ReduceSumSquare",
)  # fmt: skip


def unary(draft: Draft) -> str:
    return activated(draft, draft.pick())


def activated(draft: Draft, x: str) -> str:
    """A function of single elements, of one node or in the form that exporters write."""
    node, number = draft.node, draft.number
    match draft.any("plain", "plain", "plain", *FORMS):
        case "silu":
            return node("Mul", x, node("Sigmoid", x))
        case "gelu":
            grown = node("Add", node("Erf", node("Div", x, number(np.sqrt(2)))), number(1))
            return node("Mul", node("Mul", x, grown), number(0.5))
        case "tanh gelu":
            return node("Gelu", x, approximate="tanh")
        case "clip":
            return node("Clip", x, number(draft.any(-1, 0)), number(draft.any(1, 6)))
        case "sqrt":
            return node("Sqrt", node("Add", node("Abs", x), number(0.1)))
        case "exp":
            return node("Exp", node("Neg", node("Abs", x)))
        case "reciprocal":
            return node("Reciprocal", node("Add", node("Mul", x, x), number(1)))
        case "prelu":
            slopes = [extent if i == 1 else 1 for i, extent in enumerate(draft.shape(x))][1:]
            return node("PRelu", x, draft.constant(draft.normal(*slopes)))
        case _:
            return node(draft.any(*UNARY), x)


def binary(draft: Draft) -> str:
    x = draft.pick()
    other = _partner(draft, x)
    a, b = (x, other) if draft.chance(0.5) else (other, x)
    op = draft.any(*BINARY)
    if op == "Div":
        b = draft.node("Add", draft.node("Abs", b), draft.number(0.5))
    if op == "Pow":
        a = draft.node("Add", draft.node("Abs", x), draft.number(0.5))
        b = draft.number(draft.any(2, 3, 0.5, -1, 1.5))
    if op == "Where":
        extents = [extent if draft.chance(0.7) else 1 for extent in draft.shape(x)]
        return draft.node("Where", draft.constant(draft.rng.random(extents) < 0.5), a, b)
    return draft.node(op, a, b)


def _partner(draft: Draft, x: str) -> str:
    """A tensor that goes with this one: of its shape, or one that is broadcast."""
    shape = draft.shape(x)
    if draft.chance(0.5):
        return draft.any(*(n for n, value in draft.floats().items() if value.shape == shape))
    extents = [extent if draft.chance(0.6) else 1 for extent in shape]
    if draft.chance(0.3):
        extents = extents[draft.between(0, len(extents)) :]
    if draft.chance(0.2):
        extents = [1, *extents]
    return draft.constant(draft.normal(*extents))


def compared(draft: Draft) -> str:
    """A choice by a comparison that gives nearly the same either way where numbers are near."""
    x = draft.pick()
    positive = draft.node("Relu", x)
    mask = draft.node("Greater", positive, draft.number(0))
    return draft.node("Where", mask, x, draft.node("Neg", draft.node("Abs", positive)))


def softmax(draft: Draft) -> str:
    x = draft.pick(least=1)
    rank = len(draft.shape(x))
    op = draft.any("Softmax", "Softmax", "LogSoftmax")
    return draft.node(op, x, axis=draft.between(-rank, rank - 1))


def norm_of_channels(draft: Draft) -> str:
    """BatchNormalization, InstanceNormalization, or group normalisation as exporters write it."""
    x = spatial(draft)
    c = draft.shape(x)[1]
    scale = draft.normal(c) * np.float32(0.3) + np.float32(1)
    shift = draft.normal(c)
    kind = draft.any("batch", "instance", "group")
    if kind == "group":
        ones = [1] * (len(draft.shape(x)) - 2)
        y = draft.node("Mul", _group_norm(draft, x), draft.constant(scale.reshape(c, *ones)))
        return draft.node("Add", y, draft.constant(shift.reshape(c, *ones)))
    operands = [x, draft.constant(scale), draft.constant(shift)]
    if kind == "instance":
        return draft.node("InstanceNormalization", *operands)
    variance = draft.constant(np.abs(draft.normal(c)) + np.float32(0.5))
    return draft.node("BatchNormalization", *operands, draft.constant(draft.normal(c)), variance)


def _group_norm(draft: Draft, x: str) -> str:
    shape = draft.shape(x)
    groups = draft.any(1, *(g for g in (2, 3, 4) if shape[1] % g == 0))
    scale, shift = np.ones(groups, np.float32), np.zeros(groups, np.float32)
    y = draft.node("Reshape", x, draft.ints(0, groups, -1))
    y = draft.node("InstanceNormalization", y, draft.constant(scale), draft.constant(shift))
    return draft.node("Reshape", y, draft.ints(*shape))


def norm_of_rows(draft: Draft) -> str:
    """LayerNormalization, and it or RMSNorm in nodes."""
    x = draft.pick(least=1)
    n = draft.shape(x)[-1]
    scale = draft.constant(draft.normal(n))
    if draft.chance(0.4):
        shift = [draft.weights(n)] if draft.chance(0.7) else []
        return draft.node("LayerNormalization", x, scale, *shift, axis=-1)
    last = draft.ints(-1)
    if draft.chance(0.6):
        x = draft.node("Sub", x, draft.node("ReduceMean", x, last, keepdims=1))
    if draft.chance(0.5):
        square = draft.node("Pow", x, draft.number(2))
    else:
        square = draft.node("Mul", x, x)
    mean = draft.node("ReduceMean", square, last, keepdims=1)
    root = draft.node("Sqrt", draft.node("Add", mean, draft.number(1e-5)))
    return draft.node("Mul", draft.node("Div", x, root), scale)


def reduction(draft: Draft) -> str:
    """A reduction of some axes; sums are divided, so that they stay of the elements' size."""
    x = draft.pick(least=1)
    shape = draft.shape(x)
    axes = [i for i in range(len(shape)) if draft.chance(0.4)] or [len(shape) - 1]
    count = int(np.prod([shape[axis] for axis in axes]))
    if draft.chance(0.3):
        axes = [axis - len(shape) for axis in axes]
    op = draft.any(*REDUCTIONS)
    y = draft.node(op, x, draft.ints(*axes), keepdims=draft.between(0, 1))
    if op in ("ReduceSum", "ReduceL1", "ReduceSumSquare"):
        return draft.node("Div", y, draft.number(count))
    return y
