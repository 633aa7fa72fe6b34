"""Models that onnxruntime's quantizer writes, built and run, against onnxruntime.

Our kernels on the same bytes give onnxruntime's bytes but for numbers next to the middle between
two quanta; what follows of such a byte may be a quantum off in turn, so results may be by one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static
from tunefarm.compiler.errors import ModelError
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.extract import kernels_of
from tunefarm.compiler.frontend.onnx import from_onnx
from tunefarm.compiler.ir import Call, Function, IRModule, post_order, tensor_type
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import optimize

import tunefarm

Array = np.ndarray[Any, Any]
SHAPE = (1, 3, 24, 24)
VNNI = Target("llvm -mcpu=znver4 -num-cores=1")  # sums products of bytes whatever their number


class Graph:
    """Nodes under construction; every method returns the name of its result."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(7)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def op(self, kind: str, *inputs: str, **attrs: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attrs))
        return name

    def constant(self, values: Array) -> str:
        self.weights.append(numpy_helper.from_array(values, f"w{len(self.weights)}"))
        return str(self.weights[-1].name)

    def normal(self, *shape: int, deviation: float) -> str:
        return self.constant((deviation * self.rng.standard_normal(shape)).astype(np.float32))

    def conv(self, x: str, inputs: int, outputs: int, kernel: int, **attrs: Any) -> str:
        inner = inputs // attrs.get("group", 1)
        shape = (outputs, inner, kernel, kernel)
        w = self.normal(*shape, deviation=(2 / (inner * kernel**2)) ** 0.5)
        b = self.normal(outputs, deviation=0.1)
        return self.op("Conv", x, w, b, pads=[kernel // 2] * 4, **attrs)

    def save(self, path: Path, shape: tuple[int, ...], output: str) -> Path:
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            self.weights,
        )
        opsets = [helper.make_opsetid("", 18)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
        return path


def network(folder: Path) -> Path:
    """A stem, an inverted residual, a gate of channels, branches joined, pools, a classifier."""
    g = Graph()
    y = g.op("Relu", g.conv("x", 3, 16, 3, strides=[2, 2]))
    y = g.op("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    six = g.constant(np.array(0, np.float32)), g.constant(np.array(6, np.float32))
    z = g.op("Clip", g.conv(y, 16, 32, 1), *six)
    z = g.op("Clip", g.conv(z, 32, 32, 3, group=32), *six)
    y = g.op("Relu", g.op("Add", g.conv(z, 32, 16, 1), y))
    gate = g.op("Sigmoid", g.conv(g.op("GlobalAveragePool", y), 16, 16, 1))
    y = g.op("Mul", y, gate)
    y = g.op("Concat", y, g.op("LeakyRelu", g.conv(y, 16, 8, 3, group=2), alpha=0.1), axis=1)
    y = g.op("AveragePool", y, kernel_shape=[2, 2], strides=[2, 2])
    y = g.op("Flatten", y, axis=1)
    w, b = g.normal(10, 216, deviation=0.07), g.normal(10, deviation=0.1)
    return g.save(folder / "network.onnx", SHAPE, g.op("Gemm", y, w, b, transB=1))


def perceptron(folder: Path) -> Path:
    """Tokens through layer norm, an attention without softmax's mask, and a feed-forward net."""
    g, width = Graph(), 32

    def dense(x: str, inputs: int, outputs: int) -> str:
        y = g.op("MatMul", x, g.normal(inputs, outputs, deviation=inputs**-0.5))
        return g.op("Add", y, g.normal(outputs, deviation=0.1))

    def norm(x: str) -> str:
        scale, bias = g.constant(np.ones(width, np.float32)), g.normal(width, deviation=0.1)
        return g.op("LayerNormalization", x, scale, bias, axis=-1)

    x = norm("x")
    q, k, v = (dense(x, width, width) for _ in range(3))
    scores = g.op("Softmax", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 2, 1])), axis=-1)
    y = norm(g.op("Add", dense(g.op("MatMul", scores, v), width, width), x))
    z = dense(g.op("Relu", dense(y, width, 4 * width)), 4 * width, width)
    return g.save(folder / "perceptron.onnx", (1, 9, width), norm(g.op("Add", y, z)))


def draws(path: Path, count: int, seed: int) -> list[dict[str, Array]]:
    rng = np.random.default_rng(seed)
    value = onnx.load(path).graph.input[0]
    shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
    return [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(count)]


class Calibration:
    def __init__(self, path: Path) -> None:
        self.left = draws(path, 4, seed=0)

    def get_next(self) -> dict[str, Array] | None:
        return self.left.pop() if self.left else None


def quantized(path: Path, **options: Any) -> Path:
    made = path.with_name("quantized.onnx")
    quantize_static(str(path), str(made), Calibration(path), **options)
    return made


def onnxruntime_of(
    model: str | bytes, feeds: dict[str, Array], fused: bool = True, exact: bool = True
) -> Array:
    """Its result with its integer kernels, or node by node on numbers.

    On processors without dot products of bytes its products of signed weights saturate in 16 bits,
    unless it is told to be ``exact``, for which it does not know all QLinear operators.
    """
    options = onnxruntime.SessionOptions()
    if not fused:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.x64quantprecision", str(int(exact)))
    session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    result: Array = session.run(None, feeds)[0]
    return result


def results_of(path: Path, feeds: dict[str, Array]) -> tuple[IRModule, dict[str, Array]]:
    """The optimised graph; what its NumPy meaning and the built model make of the inputs."""
    target = Target.host(1)
    module = from_onnx(path)
    optimized = optimize(module, target)
    (built,) = tunefarm.build(module, target).run(feeds).values()
    return optimized, {"meaning": evaluate(optimized, feeds)[0], "built": built}


def last_step(path: Path) -> float:
    """The scale that the model's result was dequantised with: one quantum."""
    graph = onnx.load(path).graph
    last = next(n for n in reversed(graph.node) if n.op_type == "DequantizeLinear")
    scale = next(t for t in graph.initializer if t.name == last.input[1])
    return float(numpy_helper.to_array(scale))


def products(module: IRModule) -> list[Call]:
    bodies = [n for f in kernels_of(module) for n in post_order(f.body)]
    return [n for n in bodies if isinstance(n, Call) and n.op in ("conv", "matmul", "einsum")]


@pytest.fixture(scope="module")
def network_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return network(tmp_path_factory.mktemp("network"))


SYMMETRIC = {"extra_options": {"ActivationSymmetric": True}}


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator], ids=lambda f: f.name)
@pytest.mark.parametrize(
    "options",
    [
        {"per_channel": True},
        {"activation_type": QuantType.QInt8},
        {"activation_type": QuantType.QInt8, "per_channel": True, **SYMMETRIC},
        {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QUInt8},
    ],
    ids=["u8s8-channels", "s8s8", "s8s8-channels-symmetric", "u8u8"],
)
def test_a_convolutional_network(
    network_path: Path, tmp_path: Path, form: QuantFormat, options: dict[str, Any]
) -> None:
    path = tmp_path / "quantized.onnx"
    settings: dict[str, Any] = {"weight_type": QuantType.QInt8, "quant_format": form, **options}
    quantize_static(str(network_path), str(path), Calibration(network_path), **settings)
    step = last_step(path)
    for feeds in draws(network_path, 2, seed=3):
        want = onnxruntime_of(str(path), feeds, exact=form is QuantFormat.QDQ)
        assert np.abs(want).max() > 20 * step
        _, results = results_of(path, feeds)
        for got in results.values():
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, atol=1.01 * step)
    if "weight_type" not in options:
        of_bytes = products(optimize(from_onnx(path), VNNI))
        assert {tensor_type(p).dtype for p in of_bytes} == {"int32"}
        assert {tensor_type(p.args[0]).dtype for p in of_bytes} == {"uint8"}


def test_bytes_lie_between_the_kernels_of_a_network(network_path: Path, tmp_path: Path) -> None:
    """But for the gate, one number a channel, and the result."""
    path = tmp_path / "quantized.onnx"
    quantize_static(str(network_path), str(path), Calibration(network_path), per_channel=True)
    optimized = optimize(from_onnx(path), VNNI)
    calls = [n for n in post_order(optimized.main.body) if isinstance(n, Call)]
    numbers = [
        str(n.op.attrs["name"])
        for n in calls
        if isinstance(n.op, Function)
        and tensor_type(n).dtype == "float32"
        and tensor_type(n).size > 16
    ]
    assert numbers == []


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator], ids=lambda f: f.name)
def test_a_transformer(tmp_path: Path, form: QuantFormat) -> None:
    """Layer norms, and products of two activations, are numbers.

    onnxruntime's softmax of bytes is another than that of numbers; its model of numbers is ours.
    """
    path = quantized(perceptron(tmp_path), quant_format=form)
    feeds = draws(tmp_path / "perceptron.onnx", 1, seed=3)[0]
    optimized, results = results_of(path, feeds)
    assert [tensor_type(p).dtype for p in products(optimized)].count("int32") == 6
    fused = onnxruntime_of(str(path), feeds, exact=form is QuantFormat.QDQ)
    for got in results.values():
        np.testing.assert_allclose(got, fused, atol=0.04 * np.abs(fused).max())
        if form is QuantFormat.QDQ:
            plain = onnxruntime_of(str(path), feeds, fused=False)
            np.testing.assert_allclose(got, plain, atol=1.01 * last_step(path))


@pytest.mark.parametrize("weight", [QuantType.QInt8, QuantType.QUInt8], ids=lambda t: t.name)
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_transformer_quantised_as_it_runs(
    tmp_path: Path, weight: QuantType, per_channel: bool
) -> None:
    """DynamicQuantizeLinear and MatMulInteger: weights of a byte, scales known at run time."""
    path = tmp_path / "dynamic.onnx"
    quantize_dynamic(
        str(perceptron(tmp_path)), str(path), weight_type=weight, per_channel=per_channel
    )
    feeds = draws(tmp_path / "perceptron.onnx", 1, seed=3)[0]
    want = onnxruntime_of(str(path), feeds)
    optimized, results = results_of(path, feeds)
    if weight is QuantType.QInt8:
        assert [tensor_type(p).dtype for p in products(optimized)].count("int32") == 6
    for got in results.values():
        np.testing.assert_allclose(got, want, atol=0.02 * np.abs(want).max())


def model_of(node: Any, constants: dict[str, Array], inputs: dict[str, Array]) -> bytes:
    """One node; constants are initialisers."""
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
    ]
    tensors = [numpy_helper.from_array(a, n) for n, a in constants.items()]
    output = helper.make_value_info(node.output[0], onnx.TypeProto())
    graph = helper.make_graph([node], "g", values, [output], tensors)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    made: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    return made


RNG = np.random.default_rng(1)


def activation(dtype: str, *shape: int) -> Array:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def parameters(name: str, scale: float, zero: int, dtype: str) -> dict[str, Array]:
    return {f"{name}_scale": np.array(scale, np.float32), f"{name}_zero": np.array(zero, dtype)}


A, B, Y = (
    [name, f"{name}_scale", f"{name}_zero"] if name != "y" else ["y_scale", "y_zero"]
    for name in ("a", "b", "y")
)
MICROSOFT: dict[str, tuple[list[str], dict[str, Any]]] = {
    "QLinearAdd": ([*A, *B, *Y], {}),
    "QLinearMul": ([*A, *B, *Y], {}),
    "QLinearSigmoid": ([*A, *Y], {}),
    "QLinearLeakyRelu": ([*A, *Y], {"alpha": 0.2}),
    "QLinearAveragePool": ([*A, *Y], {"kernel_shape": [2, 3], "pads": [1, 0, 0, 1]}),
    "QLinearGlobalAveragePool": ([*A, *Y], {}),
    "QLinearSoftmax": ([*A, *Y], {"axis": -1, "opset": 13}),
    "QLinearConcat": ([*Y, *A, *B], {"axis": 1}),
}


@pytest.mark.parametrize("op", MICROSOFT)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_operators_of_onnxruntime_on_bytes(op: str, dtype: str) -> None:
    names, attrs = MICROSOFT[op]
    given = {"a": activation(dtype, 1, 4, 5, 6), "b": activation(dtype, 1, 4, 5, 6)}
    low = np.iinfo(dtype).min
    result = (1 / 256, low) if op in ("QLinearSigmoid", "QLinearSoftmax") else (0.043, low + 90)
    known = {
        **parameters("a", 0.031, low + 130, dtype),
        **parameters("b", 0.027, low + 100, dtype),
        **parameters("y", *result, dtype),
    }
    feeds = {n: a for n, a in given.items() if n in names}
    node = helper.make_node(op, names, ["out"], domain="com.microsoft", **attrs)
    used = {n: a for n, a in known.items() if n in names}
    model = model_of(node, used, feeds)
    want = onnxruntime_of(model, feeds)
    module = optimize(from_onnx(onnx.load_from_string(model)), Target.host(1))
    (got,) = evaluate(module, feeds)
    assert got.dtype == want.dtype
    distance = np.abs(got.astype(int) - want)
    assert distance.max() <= 1
    assert np.mean(distance) <= 0.05


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("result", [False, True])
def test_a_product_of_onnxruntime_on_bytes(bias: bool, result: bool) -> None:
    """QGemm with and without a bias; without the result's scale it is numbers."""
    names = [*A, *B, "bias" if bias else "", *(Y if result else [])]
    node = helper.make_node("QGemm", names, ["out"], domain="com.microsoft", transB=1)
    known = {
        **parameters("a", 0.031, 130, "uint8"),
        "b": activation("int8", 7, 24),
        "b_scale": RNG.uniform(0.01, 0.02, 7).astype(np.float32),
        "b_zero": np.zeros(7, np.int8),
        "bias": RNG.integers(-5000, 5000, 7).astype(np.int32),
        **parameters("y", 0.4, 120, "uint8"),
    }
    feeds = {"a": activation("uint8", 3, 24)}
    model = model_of(node, {n: a for n, a in known.items() if n in names}, feeds)
    want = onnxruntime_of(model, feeds)
    module = optimize(from_onnx(onnx.load_from_string(model)), Target.host(1))
    assert [tensor_type(p).dtype for p in products(module)] == ["int32"]
    (got,) = evaluate(module, feeds)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got.astype(float), want, rtol=1e-5, atol=1 if result else 1e-4)


@pytest.mark.parametrize("bias", ["", "bias"])
@pytest.mark.parametrize("op", ["MatMulIntegerToFloat", "DynamicQuantizeMatMul"])
def test_products_of_onnxruntime_that_give_numbers(op: str, bias: str) -> None:
    """Their weights are bytes, whether the other operand's scale is known or not."""
    known = {
        **parameters("a", 0.031, 130, "uint8"),
        "b": activation("int8", 24, 7),
        "b_scale": RNG.uniform(0.01, 0.02, 7).astype(np.float32),
        "b_zero": np.zeros(7, np.int8),
        "bias": RNG.standard_normal(7).astype(np.float32),
    }
    if op == "DynamicQuantizeMatMul":
        names, feeds = ["a", *B, bias], {"a": RNG.standard_normal((3, 24)).astype(np.float32)}
    else:
        names = ["a", "b", "a_scale", "b_scale", "a_zero", "b_zero", bias]
        feeds = {"a": activation("uint8", 3, 24)}
    node = helper.make_node(op, names, ["out"], domain="com.microsoft")
    model = model_of(node, {n: a for n, a in known.items() if n in names}, feeds)
    want = onnxruntime_of(model, feeds)
    module = optimize(from_onnx(onnx.load_from_string(model)), Target.host(1))
    assert [tensor_type(p).dtype for p in products(module)] == ["int32"]
    (got,) = evaluate(module, feeds)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-3)


def test_other_operators_of_that_domain_are_refused_by_name() -> None:
    node = helper.make_node("QMoE", ["a"], ["out"], name="experts", domain="com.microsoft")
    model = onnx.load_from_string(model_of(node, {}, {"a": activation("uint8", 2)}))
    with pytest.raises(ModelError, match=r"com\.microsoft\.QMoE 'experts'.*not supported"):
        from_onnx(model)
