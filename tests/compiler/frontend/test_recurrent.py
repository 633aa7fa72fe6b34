"""RNN, GRU and LSTM with what ONNX's own tests leave out, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tunefarm.compiler.errors import ModelError
from tunefarm.compiler.frontend.onnx import from_onnx

import tunefarm

STEPS, BATCH, INPUTS, HIDDEN = 5, 3, 7, 17
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def model(op: str, lengths: bool = False, states: bool = True, **attrs: Any) -> onnx.ModelProto:
    """A node whose weights and first state are constants, with all of its results."""
    rng = np.random.default_rng(0)
    directions = 2 if attrs.get("direction") == "bidirectional" else 1
    rows = GATES[op] * HIDDEN
    shapes = {
        "w": (directions, rows, INPUTS),
        "r": (directions, rows, HIDDEN),
        "b": (directions, 2 * rows),
        "h": (directions, BATCH, HIDDEN),
        "c": (directions, BATCH, HIDDEN),
        "p": (directions, 3 * HIDDEN),
    }
    values = {n: rng.standard_normal(s).astype(np.float32) * 0.5 for n, s in shapes.items()}
    names = ["x", "w", "r", "b", "lengths" if lengths else "", "h" if states else ""]
    names += ["c" if states else "", "p"] if op == "LSTM" else []
    results = ["y", "y_h", "y_c"][: 3 if op == "LSTM" else 2]
    graph = helper.make_graph(
        [helper.make_node(op, names, results, hidden_size=HIDDEN, **attrs)],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, (STEPS, BATCH, INPUTS)),
            *([helper.make_tensor_value_info("lengths", TensorProto.INT32, (BATCH,))] * lengths),
        ],
        [helper.make_value_info(r, onnx.TypeProto()) for r in results],
        [numpy_helper.from_array(v, n) for n, v in values.items() if n in names],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.mark.parametrize(
    ("op", "options"),
    [
        ("LSTM", {"direction": "bidirectional", "lengths": True, "clip": 0.6}),
        ("LSTM", {"input_forget": 1, "direction": "reverse", "states": False}),
        ("GRU", {"direction": "bidirectional", "linear_before_reset": 1, "lengths": True}),
        ("GRU", {"linear_before_reset": 1, "activations": ["HardSigmoid", "Softsign"]}),
        (
            "RNN",
            {
                "direction": "bidirectional",
                "activations": ["Affine", "LeakyRelu"],
                "activation_alpha": [0.5, 0.2],
                "activation_beta": [0.1],
            },
        ),
    ],
)
def test_a_compiled_cell_agrees_with_onnxruntime(op: str, options: dict[str, Any]) -> None:
    made = model(op, **options)
    feeds = {"x": np.random.default_rng(1).standard_normal((STEPS, BATCH, INPUTS), np.float32)}
    if options.get("lengths"):
        feeds["lengths"] = np.array([STEPS, 2, 1], np.int32)
    got = tunefarm.build(from_onnx(made), tunefarm.Target.host(1)).run(feeds)
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for name, want in zip(got, session.run(list(got), feeds), strict=True):
        np.testing.assert_allclose(got[name], want, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"activations": ["Swish", "Tanh", "Tanh"]}, "activation Swish"),
        ({"activations": ["Tanh"]}, "3 for each of 1 directions"),
        ({"direction": "sideways"}, "direction 'sideways' with weights of 1 directions"),
    ],
)
def test_what_a_cell_cannot_be_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        from_onnx(model("LSTM", **options))
