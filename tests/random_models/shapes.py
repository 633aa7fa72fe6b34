"""Steps that ask for a tensor's shape, as exporters write them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from tests.random_models.draft import Draft, Unsuitable


def view(draft: Draft) -> str:
    """``x.view(x.size(0), -1, n)``."""
    x = draft.pick(least=2)
    extent = draft.shape(x)[-1]
    first = draft.node("Unsqueeze", _extent(draft, x, 0), draft.ints(0))
    last = draft.any(*(n for n in range(1, extent + 1) if extent % n == 0))
    wanted = draft.node("Concat", first, draft.ints(-1, last), axis=0)
    return draft.node("Reshape", x, wanted)


def positions(draft: Draft) -> str:
    """A code of the places along the last axis, added to what stands there."""
    x = draft.pick(least=2)
    zero, one = (draft.constant(np.int64(n)) for n in (0, 1))
    places = draft.node("Range", zero, _extent(draft, x, -1), one)
    numbers = draft.node("Cast", places, to=onnx.TensorProto.FLOAT)
    code = draft.node(draft.any("Sin", "Cos"), draft.node("Mul", numbers, draft.number(0.1)))
    return draft.node("Add", x, code)


def filled(draft: Draft) -> str:
    """A tensor beside one of its shape, of one value."""
    x = draft.pick(least=1)
    value = helper.make_tensor("value", onnx.TensorProto.FLOAT, [1], [0.5])
    other = draft.node("ConstantOfShape", draft.node("Shape", x), value=value)
    return draft.node("Concat", x, other, axis=draft.between(0, len(draft.shape(x)) - 1))


def expanded(draft: Draft) -> str:
    """A row for all rows of a tensor."""
    x = draft.pick(least=2)
    row = draft.constant(draft.normal(draft.shape(x)[-1]))
    whole = draft.node("Expand", row, draft.node("Shape", x))
    return draft.node("Mul", whole, draft.node("Sigmoid", x))


def gated(draft: Draft) -> str:
    """One half of an axis, by a function of the other."""
    x = draft.pick(least=2)
    axis = draft.between(1, len(draft.shape(x)) - 1)
    if draft.shape(x)[axis] % 2:
        raise Unsuitable("the axis has no halves")
    value, gate = draft.results("Split", x, count=2, axis=axis, num_outputs=2)
    return draft.node("Mul", value, draft.node(draft.any("Sigmoid", "Gelu", "Tanh"), gate))


def _extent(draft: Draft, x: str, axis: int) -> str:
    return draft.node("Gather", draft.node("Shape", x), draft.constant(np.int64(axis)))
