"""The operators of the GPU benchmark: ours, PyTorch's, and float64's on what is sampled of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.ir import Expr, Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.workload import Workload

Array = NDArray[Any]
Sampled = tuple[tuple[Array, ...], Array]
"""Places in an output, as an index, and what float64 says of them."""
ROWS = 32
"""Rows of an output that are checked."""


@dataclass(frozen=True, slots=True)
class Case:
    """One operator at one size. ``operations`` and ``traffic_bytes`` are those of one call;
    ``expected(inputs)`` samples the output, and ``torch(torch, *tensors)`` is PyTorch's call."""

    name: str
    workload: Workload
    operations: float
    traffic_bytes: float
    expected: Callable[[Sequence[Array]], Sampled] = field(repr=False)
    torch: Callable[..., Any] = field(repr=False)
    precision: str = ""
    is_product: bool = False  # of two matrices, and nothing else

    @property
    def is_of_memory(self) -> bool:
        """Whether its rate is one of bytes: at this size it has few operations for each."""
        return self.operations < 4 * self.traffic_bytes


def all_cases(small: bool) -> Iterator[Case]:
    """Those of the published table, what says most first, or a handful that an emulator runs in
    seconds: large products, what memory bounds, products of transformers, convolutions, the rest.
    """
    kinds = (("float16", ""), ("bfloat16", ""), ("float32", ""), ("float32", "tf32"))
    large, medium = ((72,), ()) if small else ((4096, 8192), (1024, 2048))
    for dtype, precision in kinds:
        for size in large:
            yield product(size, size, size, dtype, precision)
    for dtype in ("float16", "float32"):
        for rows, columns in ((8, 64),) if small else ((32768, 1024), (4096, 8192), (8, 131072)):
            yield softmax(rows, columns, dtype)
            yield layer_norm(rows, columns, dtype)
        yield chain(512 if small else 1 << 26, dtype)
    shapes = () if small else (
        (2048, 2304, 768), (2048, 3072, 768), (2048, 768, 3072),
        (4096, 4096, 11008), (4096, 11008, 4096), (16, 4096, 4096),
    )  # fmt: skip
    for dtype, precision in kinds:
        for m, n, k in shapes:
            yield product(m, n, k, dtype, precision)
    convolutions = ((1, 6, 16, 16, 3),) if small else (
        (16, 56, 64, 64, 3), (16, 28, 128, 128, 3), (16, 14, 256, 256, 3), (16, 7, 512, 512, 3),
        (16, 14, 1024, 256, 1), (1, 14, 256, 256, 3),
    )  # fmt: skip
    for batch, size, inside, outside, width in convolutions:
        yield convolution(batch, size, inside, outside, width, "float16")
    for dtype, precision in kinds:
        for size in medium:
            yield product(size, size, size, dtype, precision)


def product(m: int, n: int, k: int, dtype: str, precision: str) -> Case:
    """A [m, k] · b [k, n]."""

    def expected(inputs: Sequence[Array]) -> Sampled:
        rows = _drawn(m)
        a, b = inputs
        return (rows,), a[rows].astype(np.float64) @ b.astype(np.float64)

    name = f"matmul {m}×{n}×{k} {precision or dtype}"
    workload = workload_of(lambda a, b: call("matmul", a, b), ((m, k), dtype), ((k, n), dtype))
    moved = float(_bytes(dtype) * (m * k + k * n + m * n))
    return Case(name, workload, 2.0 * m * n * k, moved, expected,
                lambda torch, a, b: torch.matmul(a, b), precision, is_product=True)  # fmt: skip


def convolution(batch: int, size: int, inside: int, outside: int, width: int, dtype: str) -> Case:
    """A square image, channels last, kernel ``width``² with padding to the same size."""
    edge = width // 2
    attributes = {
        "strides": (1, 1), "padding": ((edge, edge), (edge, edge)), "dilations": (1, 1),
        "groups": 1, "data_layout": "NSC", "kernel_layout": "SIO", "pad_value": 0, "out_dtype": "",
    }  # fmt: skip

    def expected(inputs: Sequence[Array]) -> Sampled:
        x, w = inputs
        padded = np.pad(x, ((0, 0), (edge, edge), (edge, edge), (0, 0)))
        places = _drawn(batch * size * size)
        b, i, j = np.unravel_index(places, (batch, size, size))
        kernel = w.astype(np.float64).reshape(-1, outside)
        windows = [
            padded[image, top : top + width, left : left + width].reshape(-1)
            for image, top, left in zip(b, i, j, strict=True)
        ]
        return (b, i, j), np.stack(windows).astype(np.float64) @ kernel

    def torch_call(torch: Any, x: Any, w: Any) -> Any:
        image, kernel = x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1)
        return torch.nn.functional.conv2d(image, kernel, padding=edge).permute(0, 2, 3, 1)

    workload = workload_of(
        lambda x, w: call("conv", x, w, **attributes),
        ((batch, size, size, inside), dtype), ((width, width, inside, outside), dtype),
    )  # fmt: skip
    pixels = batch * size * size
    operations = 2.0 * pixels * inside * outside * width * width
    weights = inside * outside * width * width
    moved = float(_bytes(dtype) * (pixels * (inside + outside) + weights))
    name = f"conv {batch}×{size}²×{inside}→{outside} {width}×{width} {dtype}"
    return Case(name, workload, operations, moved, expected, torch_call)


def softmax(rows: int, columns: int, dtype: str) -> Case:
    def expected(inputs: Sequence[Array]) -> Sampled:
        drawn = _drawn(rows)
        x = inputs[0][drawn].astype(np.float64)
        grown = np.exp(x - x.max(axis=-1, keepdims=True))
        return (drawn,), grown / grown.sum(axis=-1, keepdims=True)

    workload = workload_of(lambda x: call("softmax", x, axis=-1), ((rows, columns), dtype))
    moved = 2.0 * _bytes(dtype) * rows * columns
    return Case(f"softmax {rows}×{columns} {dtype}", workload, 5.0 * rows * columns, moved,
                expected, lambda torch, x: torch.softmax(x, -1))  # fmt: skip


def layer_norm(rows: int, columns: int, dtype: str) -> Case:
    def expected(inputs: Sequence[Array]) -> Sampled:
        drawn = _drawn(rows)
        x, scale, shift = (array.astype(np.float64) for array in inputs)
        x = x[drawn]
        centred = x - x.mean(axis=-1, keepdims=True)
        deviation = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5)
        return (drawn,), centred / deviation * scale + shift

    workload = workload_of(
        lambda x, g, b: call("layer_norm", x, g, b, axis=-1, epsilon=1e-5),
        ((rows, columns), dtype), ((columns,), dtype), ((columns,), dtype),
    )  # fmt: skip
    moved = 2.0 * _bytes(dtype) * rows * columns
    return Case(
        f"layer norm {rows}×{columns} {dtype}", workload, 8.0 * rows * columns, moved, expected,
        lambda torch, x, g, b: torch.nn.functional.layer_norm(x, (columns,), g, b, 1e-5),
    )  # fmt: skip


def chain(size: int, dtype: str) -> Case:
    """relu(a + b), element by element."""

    def expected(inputs: Sequence[Array]) -> Sampled:
        places = _drawn(size)
        a, b = (array[places].astype(np.float64) for array in inputs)
        return (places,), np.maximum(a + b, 0.0)

    workload = workload_of(
        lambda a, b: call("relu", call("add", a, b)), ((size,), dtype), ((size,), dtype)
    )
    return Case(f"relu(a + b) {size} {dtype}", workload, 2.0 * size, 3.0 * _bytes(dtype) * size,
                expected, lambda torch, a, b: torch.relu(a + b))  # fmt: skip


def workload_of(body: Callable[..., Expr], *types: tuple[tuple[int, ...], str]) -> Workload:
    params = tuple(Var(f"x{i}", TensorType(shape, dtype)) for i, (shape, dtype) in enumerate(types))
    return Workload.from_function(Function(params, body(*params), {"primitive": True}))


def drawn_inputs(case: Case, rng: np.random.Generator) -> list[Array]:
    """Fresh normal numbers for every parameter."""
    import ml_dtypes

    types = [param.type for param in case.workload.function.params]
    kinds = [ml_dtypes.bfloat16 if t.dtype == "bfloat16" else t.dtype for t in types]
    return [
        rng.standard_normal(t.shape, np.float32).astype(kind)
        for t, kind in zip(types, kinds, strict=True)
    ]


def error_of(got: Array, sampled: Sampled) -> float:
    """The largest difference from float64 over the root mean square of what it says."""
    places, wanted = sampled
    found = got[places].astype(np.float64)
    return float(np.abs(found - wanted).max() / np.sqrt(np.mean(wanted * wanted)))


ALLOWED = {"float64": 1e-12, "float32": 1e-4, "tf32": 1e-2, "float16": 2e-2, "bfloat16": 1e-1}
"""The largest ``error_of`` by precision: roundings of operands and results, not of sums."""


def allowed_error(case: Case) -> float:
    return ALLOWED[case.precision or case.workload.function.params[0].type.dtype]


def _drawn(count: int) -> Array:
    """Up to ``ROWS`` places below a count, the same for everybody, first and last among them."""
    rng = np.random.default_rng(count)
    return np.unique(np.concatenate([[0, count - 1], rng.integers(count, size=ROWS - 2)]))


def _bytes(dtype: str) -> int:
    return 4 if dtype == "float32" else 2
