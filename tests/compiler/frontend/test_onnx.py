"""Importing ONNX: exports of PyTorch, functions, branches, shapes, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tunefarm.compiler.errors import ModelError, ShapeError
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.frontend.onnx import from_onnx
from tunefarm.compiler.ir import Call, Constant, IRModule, Var, post_order

import tunefarm

MODELS = Path(__file__).parent / "models"
SHAPES = {"dynamic_attention": {"x": (3, 4, 16)}}
F32, I64 = TensorProto.FLOAT, TensorProto.INT64


def model(
    nodes: list[Any],
    inputs: list[Any],
    outputs: list[str],
    constants: dict[str, np.ndarray[Any, Any]] | None = None,
    opset: int = 18,
    functions: list[Any] | None = None,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [helper.make_value_info(o, onnx.TypeProto()) for o in outputs],
        [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions or [])


def tensor(name: str, *shape: int | str, dtype: int = F32) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def operators(module: IRModule) -> list[str]:
    calls = [n for n in post_order(module.main.body) if isinstance(n, Call)]
    return [str(c.op) for c in calls]


def inputs_for(module: IRModule, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    drawn = {}
    for p in module.main.params:
        if p.type.dtype == "float32":
            drawn[p.name] = rng.standard_normal(p.type.shape).astype(np.float32)
        else:
            drawn[p.name] = rng.integers(1, 5, p.type.shape).astype(p.type.dtype)
    return drawn


def assert_like_onnxruntime(model: bytes, module: IRModule) -> None:
    feeds = inputs_for(module)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    for got, want in zip(evaluate(module, feeds), session.run(None, feeds), strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        assert np.max(np.abs(got - want)) <= 1e-5 * np.max(np.abs(want))


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.onnx")), ids=lambda p: p.stem)
def test_exports_of_pytorch_agree_with_onnxruntime(path: Path) -> None:
    assert_like_onnxruntime(path.read_bytes(), from_onnx(path, SHAPES.get(path.stem)))


def light(name: str) -> onnx.ModelProto:
    folder = Path(onnx.__file__).parent / "backend/test/data/light"
    return onnx.load(folder / f"light_{name}.onnx")


def test_a_light_network_gives_its_expected_output() -> None:
    """In other networks huge equal sums meet in a Softmax, which the last bit of one decides."""
    module = from_onnx(light("shufflenet"))
    folder = Path(onnx.__file__).parent / "backend/test/data/light"
    expected = onnx.load_tensor(str(folder / "light_shufflenet_output_0.pb"))
    (output,) = evaluate(module, inputs_for(module))
    np.testing.assert_allclose(output, numpy_helper.to_array(expected), rtol=1e-3, atol=1e-7)


def randomised(proto: onnx.ModelProto) -> bytes:
    """The network with random weights in place of its constant ones."""
    rng = np.random.default_rng(0)
    shapes = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    for node in nodes:
        if node.op_type != "ConstantOfShape":
            proto.graph.node.append(node)
            continue
        shape = tuple(int(e) for e in shapes[node.input[0]])
        if len(shape) == 1:
            weights = rng.uniform(0.5, 1.5, shape)
        else:
            weights = rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
        array = weights.astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, node.output[0]))
    return proto.SerializeToString()


def test_squeezenet_with_random_weights_agrees_with_onnxruntime() -> None:
    data = randomised(light("squeezenet"))
    assert_like_onnxruntime(data, from_onnx(data))


@pytest.mark.parametrize(
    "name",
    ["bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50"],
)
def test_a_light_network_imports(name: str) -> None:
    module = from_onnx(light(name))
    assert [p.type.shape for p in module.main.params] == [(1, 3, 224, 224)]
    assert not {"broadcast_to", "transpose", "slice"} & set(operators(module))


def test_shape_arithmetic_is_folded_away() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Concat", ["n", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    constants = {"zero": np.array([0]), "rest": np.array([-1, 2])}
    module = from_onnx(model(nodes, [tensor("x", "n", 6)], ["y"], constants), {"x": (4, 6)})
    assert operators(module) == ["reshape"]
    assert str(module.main.body.type) == "float32[4, 3, 2]"


def test_a_symbol_that_one_input_fixes_is_fixed_everywhere() -> None:
    nodes = [helper.make_node("Add", ["x", "y"], ["z"])]
    proto = model(nodes, [tensor("x", "n", 3), tensor("y", "n", 1)], ["z"])
    module = from_onnx(proto, {"x": (5, 3)})
    assert [p.type.shape for p in module.main.params] == [(5, 3), (5, 1)]
    with pytest.raises(ModelError, match=r"'y' is given 4 for the dimension 'n', .* has as 5"):
        from_onnx(proto, {"x": (5, 3), "y": (4, 1)})


def test_constants_are_folded_and_dropout_vanishes() -> None:
    nodes = [
        helper.make_node("Exp", ["c"], ["e"]),
        helper.make_node("Dropout", ["x"], ["d"]),
        helper.make_node("Identity", ["d"], ["i"]),
        helper.make_node("Mul", ["i", "e"], ["y"]),
    ]
    module = from_onnx(model(nodes, [tensor("x", 3)], ["y"], {"c": np.zeros(3, np.float32)}))
    assert isinstance(module.main.body, Call)
    x, e = module.main.body.args
    assert isinstance(x, Var)
    assert isinstance(e, Constant)
    np.testing.assert_array_equal(e.data, np.ones(3, np.float32))


def test_double_precision_stays() -> None:
    proto = model(
        [helper.make_node("Tanh", ["x"], ["y"])], [tensor("x", 2, dtype=TensorProto.DOUBLE)], ["y"]
    )
    x = np.array([0.1, 0.2])
    (y,) = evaluate(from_onnx(proto), [x])
    assert y.dtype == np.float64
    np.testing.assert_array_equal(y, np.tanh(x))


def test_local_functions_are_inlined_with_their_attributes() -> None:
    scaled = helper.make_node("LeakyRelu", ["a"], ["b"])
    slope = onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    scaled.attribute.append(slope)
    function = helper.make_function(
        "local", "Twice", ["a"], ["c"], [scaled, helper.make_node("Add", ["b", "b"], ["c"])],
        [helper.make_opsetid("", 18)], ["slope"],
    )  # fmt: skip
    nodes = [helper.make_node("Twice", ["x"], ["y"], domain="local", slope=0.5)]
    module = from_onnx(model(nodes, [tensor("x", 2)], ["y"], functions=[function]))
    (y,) = evaluate(module, [np.array([-2, 3], np.float32)])
    np.testing.assert_array_equal(y, np.array([-2, 6], np.float32))


def branches() -> dict[str, Any]:
    def branch(op: str) -> Any:
        return helper.make_graph(
            [helper.make_node(op, ["x"], ["b"])], op, [], [tensor("b", 2)]
        )  # fmt: skip

    return {"then_branch": branch("Neg"), "else_branch": branch("Abs")}


def test_a_branch_on_a_constant_is_taken_at_import() -> None:
    nodes = [helper.make_node("If", ["c"], ["y"], **branches())]
    module = from_onnx(model(nodes, [tensor("x", 2)], ["y"], {"c": np.array(True)}))
    assert operators(module) == ["negative"]


def test_external_data_is_read(tmp_path: Path) -> None:
    weights = np.arange(600, dtype=np.float32).reshape(2, 300)
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], [tensor("x", 300)], ["y"],
                  {"w": weights})  # fmt: skip
    path = tmp_path / "m.onnx"
    onnx.save_model(proto, str(path), save_as_external_data=True, location="w.bin",
                    size_threshold=0)  # fmt: skip
    (y,) = evaluate(from_onnx(path), [np.zeros(300, np.float32)])
    np.testing.assert_array_equal(y, weights)
    os.truncate(tmp_path / "w.bin", 1000)
    with pytest.raises(ModelError, match=r"m\.onnx cannot be read: .*1000 bytes.* tensor 'w'"):
        from_onnx(path)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(ModelError, match=r"m\.onnx cannot be read: .*w\.bin"):
        from_onnx(path)
    with pytest.raises(ModelError, match="give the path"):
        from_onnx(path.read_bytes())


def test_all_that_is_unsupported_is_reported_at_once() -> None:
    nodes = [
        helper.make_node("NonMaxSuppression", ["x", "x"], ["a"], name="boxes"),
        helper.make_node("Relu", ["a"], ["after"]),
        helper.make_node("Reshape", ["x", "s"], ["b"], name="moved"),
        helper.make_node("Frob", ["x"], ["c"], domain="acme"),
        helper.make_node("If", ["q"], ["d"], name="choice", **branches()),
    ]
    proto = model(
        nodes,
        [tensor("x", 2, 3), tensor("s", 1, dtype=I64), tensor("q", dtype=TensorProto.BOOL)],
        ["after", "b", "c", "d"],
    )
    with pytest.raises(ModelError) as info:
        from_onnx(proto)
    assert str(info.value) == (
        "the model uses what is not supported: "
        "NonMaxSuppression 'boxes' (float32[2, 3], float32[2, 3]): the operator is not supported; "
        "Reshape 'moved' (float32[2, 3], int64[1]): the shape (input 1) is computed at run time, "
        "not a constant; "
        "acme.Frob 'c' (float32[2, 3]): the operator is not supported, nor is there a plug-in for "
        "its domain (an entry point acme of tunefarm.onnx); "
        "If 'choice' (bool[]): the condition is computed at run time, not a constant"
    )


def relu(*shape: int | str, dtype: int = F32, opset: int = 18) -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    return model(nodes, [tensor("x", *shape, dtype=dtype)], ["y"], opset=opset)


def test_a_symbolic_dimension_names_the_argument_that_fixes_it() -> None:
    with pytest.raises(ModelError, match=r"\(n, 3\).*shapes=\{'x': \(1, 3\)\}"):
        from_onnx(relu("n", 3))


def test_an_extent_below_zero_is_open() -> None:
    """As exporters write what they do not know."""
    with pytest.raises(ModelError, match=r"\(\?, 3\).*shapes=\{'x': \(1, 3\)\}"):
        from_onnx(relu(-1, 3))
    assert from_onnx(relu(-1, 3), {"x": (5, 3)}).main.params[0].type.shape == (5, 3)


def test_nodes_may_stand_in_any_order() -> None:
    """As converters to float16 leave them; in a circle they cannot be put in order."""
    nodes = [
        helper.make_node("Add", ["b", "x"], ["y"], name="last"),
        helper.make_node("Relu", ["a"], ["b"], name="middle"),
        helper.make_node("Neg", ["x"], ["a"], name="first"),
    ]
    module = from_onnx(model(nodes, [tensor("x", 3)], ["y"]))
    assert operators(module) == ["negative", "relu", "add"]
    x = np.array([-2.0, 0.0, 3.0], np.float32)
    np.testing.assert_array_equal(evaluate(module, {"x": x})[0], [0.0, 0.0, 3.0])
    nodes[2] = helper.make_node("Neg", ["y"], ["a"], name="first")
    with pytest.raises(ModelError, match="Add 'last': input 'b' is computed by no node before it"):
        from_onnx(model(nodes, [tensor("x", 3)], ["y"]))


def test_a_graph_without_outputs_is_told() -> None:
    proto = relu(2, 3)
    del proto.graph.output[:]
    with pytest.raises(ModelError, match="its graph names no outputs"):
        from_onnx(proto.SerializeToString())


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"z": (1,)}, "no input 'z'; its inputs are x"),
        ({"x": (2, 4)}, r"'x' has shape \(n, 3\) and cannot be given \(2, 4\)"),
        ({"x": (2, 3, 1)}, r"'x' has shape \(n, 3\) and cannot be given \(2, 3, 1\)"),
        ({"x": (-1, 3)}, "cannot be given"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(shapes: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        from_onnx(relu("n", 3), shapes)


def test_shapes_that_do_not_fit_an_operator_name_the_node() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="fc1")]
    proto = model(nodes, [tensor("x", 2, 3)], ["y"], {"w": np.ones((4, 5), np.float32)})
    message = (
        r"^the model is not valid: MatMul 'fc1' \(float32\[2, 3\], float32\[4, 5\]\): "
        r".*inner extents are 3 and 4$"
    )
    with pytest.raises(ModelError, match=message):
        from_onnx(proto)


@pytest.mark.parametrize("content", [b"", b"hello, this is text", b"\x89PNG\r\n\x1a\n" * 9])
def test_a_file_that_is_not_onnx_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.onnx is not an ONNX model") as info:
        from_onnx(path)
    assert "\n" not in str(info.value)


def test_an_absent_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.onnx does not exist"):
        from_onnx(tmp_path / "none.onnx")


def test_an_old_opset_and_a_missing_type_are_refused() -> None:
    with pytest.raises(ModelError, match="opset 6, and the oldest supported is 7"):
        from_onnx(relu(2, opset=6))
    with pytest.raises(ModelError, match=r"input 'x': element type string is not supported$"):
        from_onnx(relu(2, dtype=TensorProto.STRING))


def test_evaluate_refuses_inputs_that_do_not_fit() -> None:
    module = from_onnx(relu(2))
    with pytest.raises(ShapeError, match=r"input 'x' \(float32\[2\]\) is missing"):
        evaluate(module, {})
    with pytest.raises(ShapeError, match=r"input 'x' is float64\[2\] and must be float32\[2\]"):
        evaluate(module, {"x": np.zeros(2)})


@pytest.mark.parametrize(
    "op, image, weights",
    [("Conv", (1, 3, 5, 5), (4, 3, 2, 2)), ("ConvTranspose", (1, 3, 5, 5), (3, 4, 2, 2)),
     ("Gemm", (2, 3), (3, 4))],
)  # fmt: skip
def test_float32_weights_of_a_bfloat16_layer_are_rounded(
    op: str, image: tuple[int, ...], weights: tuple[int, ...]
) -> None:
    """As PyTorch's exporter leaves them where it joins a batch normalisation to the layer."""
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.standard_normal(weights).astype(np.float32),
        "b": rng.standard_normal(4).astype(np.float32),
    }
    nodes = [helper.make_node(op, ["x", "w", "b"], ["y"])]
    given = rng.standard_normal(image).astype(np.float32)

    def run(dtype: int, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        module = from_onnx(model(nodes, [tensor("x", *image, dtype=dtype)], ["y"], constants))
        return evaluate(module, {"x": value})[0]

    got = run(TensorProto.BFLOAT16, given.astype(ml_dtypes.bfloat16))
    want = run(F32, given)
    assert got.dtype == ml_dtypes.bfloat16
    assert np.max(np.abs(got.astype(np.float32) - want)) <= 2e-2 * np.max(np.abs(want))

    inputs = [tensor("x", *image, dtype=TensorProto.BFLOAT16), tensor("w", *weights)]
    with pytest.raises(ModelError, match="different dtypes, bfloat16 and float32"):
        from_onnx(model(nodes, inputs, ["y"], {"b": constants["b"]}))


@pytest.mark.parametrize("op", ["GlobalLpPool", "GlobalAveragePool", "GlobalMaxPool"])
def test_global_pools_of_few_channels_are_built(op: str) -> None:
    nodes = [helper.make_node(op, ["x"], ["y"])]
    module = from_onnx(model(nodes, [tensor("x", 1, 2, 4, 4)], ["y"]))
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 2, 4, 4)).astype(np.float32)}
    got = tunefarm.build(module).run(feeds)["y"]
    np.testing.assert_allclose(got, evaluate(module, feeds)[0], rtol=1e-5)
