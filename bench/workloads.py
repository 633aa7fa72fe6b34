"""Single operators to compare: each as a task of ours, an ONNX node, and NumPy or torch calls.

Images are NHWC for us and NCHW in ONNX; ``canonical`` turns an output of ours into ONNX's layout.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import Expr, Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.workload import Workload

from tunefarm.peers.turns import Array

OPSET = 18
RESNET50 = "ResNet-50"


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """One operator on given arrays (ONNX's layout), of which ``constants`` are weights.

    ``body`` builds our graph from ``our_inputs``; ``torch`` takes the tensors of ``inputs``.
    """

    name: str
    group: str
    kind: str
    inputs: tuple[Array, ...]
    constants: tuple[int, ...]
    body: Callable[..., Expr]
    our_inputs: tuple[Array, ...]
    torch: Callable[..., Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    images: bool = False

    @property
    def workload(self) -> Workload:
        """Our task."""
        return Workload.from_function(
            function_of(self.body, self.our_inputs, self.constants, "float32")
        )

    def reference(self) -> Array:
        """The output in ONNX's layout, computed by NumPy in float64."""
        exact = function_of(self.body, self.our_inputs, self.constants, "float64")
        (output,) = evaluate(exact, [a.astype(np.float64) for a in self.our_inputs])
        return self.canonical(output)

    def canonical(self, output: Array) -> Array:
        """An output of ours in ONNX's layout."""
        return np.moveaxis(output, -1, 1) if self.images else output

    def onnx_model(self) -> onnx.ModelProto:
        """A model of this one node; its inputs are x0, x1, …"""
        names = [f"x{i}" for i in range(len(self.inputs))]
        weights = [numpy_helper.from_array(self.inputs[i], names[i]) for i in self.constants]
        feeds = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
            for i, (name, array) in enumerate(zip(names, self.inputs, strict=True))
            if i not in self.constants
        ]
        output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        node = helper.make_node(self.kind, names, ["y"], **self.attributes)
        graph = helper.make_graph([node], "operator", feeds, [output], weights)
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return onnx.shape_inference.infer_shapes(model)

    def feeds(self) -> dict[str, Array]:
        """The inputs that are not weights, by their names in ``onnx_model``."""
        return {f"x{i}": a for i, a in enumerate(self.inputs) if i not in self.constants}


def function_of(
    body: Callable[..., Expr], arrays: Sequence[Array], constants: tuple[int, ...], dtype: str
) -> Function:
    params = tuple(Var(f"p{i}", TensorType(a.shape, dtype)) for i, a in enumerate(arrays))
    return Function(params, body(*params), {"primitive": True, "constants": constants})


def normal(seed: int, *shape: int) -> Array:
    """Normal values; weights too: their scale does not matter to one operator."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def matmul(
    name: str, a: tuple[int, ...], b: tuple[int, ...], constant: bool = True, group: str = "GEMM"
) -> Operator:
    arrays = (normal(0, *a), normal(1, *b))
    constants = (1,) if constant else ()
    return Operator(name, group, "MatMul", arrays, constants, _matmul, arrays, operator.matmul)


def _matmul(a: Expr, b: Expr) -> Expr:
    return call("matmul", a, b)


def conv(
    size: int, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1,
    group: str = RESNET50,
) -> Operator:  # fmt: skip
    """A convolution whose padding keeps the size (divided by the stride)."""
    pad = kernel // 2
    x, weight = (
        normal(0, 1, inputs, size, size),
        normal(1, outputs, inputs // groups, kernel, kernel),
    )
    arrays = tuple(
        np.ascontiguousarray(a) for a in (np.moveaxis(x, 1, -1), weight.transpose(2, 3, 1, 0))
    )

    def body(image: Expr, taps: Expr) -> Expr:
        return call(
            "conv", image, taps, strides=(stride, stride), padding=((pad, pad), (pad, pad)),
            groups=groups, data_layout="NSC", kernel_layout="SIO",
        )  # fmt: skip

    def in_torch(image: Any, taps: Any) -> Any:
        from torch.nn.functional import conv2d

        return conv2d(image, taps, stride=stride, padding=pad, groups=groups)

    kind = "depthwise" if groups > 1 else "conv"
    name = f"{kind} {kernel}×{kernel}{'/2' if stride == 2 else ''} {inputs}→{outputs} {size}²"
    attributes = {"pads": [pad] * 4, "strides": [stride] * 2, "group": groups}
    return Operator(
        name, group, "Conv", (x, weight), (1,), body, arrays, in_torch,
        attributes, images=True,
    )  # fmt: skip


def softmax(rows: int, columns: int) -> Operator:
    def in_torch(x: Any) -> Any:
        return x.softmax(-1)

    def body(x: Expr) -> Expr:
        return call("softmax", x, axis=-1)

    arrays = (normal(0, rows, columns),)
    return Operator(
        f"softmax {rows}×{columns}", "rows", "Softmax", arrays, (), body, arrays, in_torch,
        {"axis": -1},
    )  # fmt: skip


def layer_norm(rows: int, columns: int) -> Operator:
    def in_torch(x: Any, scale: Any, bias: Any) -> Any:
        from torch.nn.functional import layer_norm as normalize

        return normalize(x, (columns,), scale, bias, 1e-5)

    arrays = (normal(0, rows, columns), normal(1, columns), normal(2, columns))

    def body(x: Expr, scale: Expr, bias: Expr) -> Expr:
        return call("layer_norm", x, scale, bias, axis=-1, epsilon=1e-5)

    return Operator(
        f"layer norm {rows}×{columns}", "rows", "LayerNormalization", arrays, (1, 2), body,
        arrays, in_torch, {"axis": -1, "epsilon": 1e-5},
    )  # fmt: skip


# The distinct 3×3 and 1×1 convolutions of ResNet-50 v1.5: input size, channels, kernel, stride.
_RESNET50_CONVS = (
    (56, 64, 64, 3, 1), (56, 128, 128, 3, 2), (28, 128, 128, 3, 1), (28, 256, 256, 3, 2),
    (14, 256, 256, 3, 1), (14, 512, 512, 3, 2), (7, 512, 512, 3, 1),
    (56, 64, 64, 1, 1), (56, 64, 256, 1, 1), (56, 256, 64, 1, 1), (56, 256, 128, 1, 1),
    (56, 256, 512, 1, 2), (28, 128, 512, 1, 1), (28, 512, 128, 1, 1), (28, 512, 256, 1, 1),
    (28, 512, 1024, 1, 2), (14, 256, 1024, 1, 1), (14, 1024, 256, 1, 1), (14, 1024, 512, 1, 1),
    (14, 1024, 2048, 1, 2), (7, 512, 2048, 1, 1), (7, 2048, 512, 1, 1),
)  # fmt: skip


def all_operators() -> list[Callable[[], Operator]]:
    """Makers of every operator that is compared, in the table's order."""
    makers: list[Callable[[], Operator]] = []
    for n in (128, 512, 1024):
        makers += [
            lambda n=n: matmul(f"GEMM {n}³", (n, n), (n, n)),  # type: ignore[misc]
            lambda n=n: matmul(  # type: ignore[misc]
                f"GEMM {n}³, both variable", (n, n), (n, n), constant=False
            ),
        ]
    makers += [
        lambda: matmul("GEMM 2048³", (2048, 2048), (2048, 2048)),
        lambda: matmul("dense 1×1000×2048", (1, 2048), (2048, 1000), group="dense"),
        lambda: matmul("dense 128×768×768", (128, 768), (768, 768), group="dense"),
        lambda: matmul("dense 128×3072×768", (128, 768), (768, 3072), group="dense"),
        lambda: matmul(
            "batched 12×128×128×64", (12, 128, 64), (12, 64, 128), constant=False, group="dense"
        ),
    ]
    makers += [lambda shape=shape: conv(*shape) for shape in _RESNET50_CONVS]  # type: ignore[misc]
    makers += [
        lambda: conv(224, 3, 64, 7, 2, group="stem"),
        lambda: conv(112, 32, 32, 3, 1, 32, group="depthwise"),
        lambda: conv(28, 192, 192, 3, 1, 192, group="depthwise"),
        lambda: conv(7, 960, 960, 3, 1, 960, group="depthwise"),
        lambda: softmax(1536, 128),
        lambda: layer_norm(128, 768),
    ]
    return makers
