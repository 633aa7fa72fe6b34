"""Whole nodes with something about them changed, and the sentence that refuses them."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from tunefarm.compiler.errors import ModelError
from tunefarm.compiler.frontend.onnx import from_onnx

from tests.compiler.frontend.beside_onnxruntime import Array, model_of

Inputs = list[Array | None]
Whole = tuple[Inputs, tuple[int, ...], dict[str, Any]]
"""Inputs, those that are constants, and attributes of a node that is imported."""


def changed_node(
    op: str, whole: Whole, inputs: dict[int, Array | None], attrs: dict[str, Any], domain: str
) -> onnx.ModelProto:
    """The node with other inputs, further ones as constants, and attributes; absent ones at the end
    are left out."""
    given, known, others = whole
    changed = [*given, *(None for _ in range(len(given), max(inputs, default=0) + 1))]
    changed = [inputs.get(i, x) for i, x in enumerate(changed)]
    while changed and changed[-1] is None:
        changed.pop()
    constants = {*known, *(i for i in inputs if i >= len(given))} & set(range(len(changed)))
    return model_of(op, changed, tuple(constants), domain=domain, **{**others, **attrs})[0]


def assert_refused(model: onnx.ModelProto, node: str, reason: str) -> None:
    """In a sentence that names the node and says what is wrong with it."""
    with pytest.raises(ModelError) as info:
        from_onnx(model)
    assert f"{node} 'it'" in str(info.value)
    assert reason in str(info.value)
