"""Products of bytes and 16-bit floats that tests of several sketches share."""

from __future__ import annotations

from typing import Any

import numpy as np
from sketch_harness import Array, function_of
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.ir import Constant, Function
from tunefarm.compiler.ops import call
from tunefarm.compiler.workload import Workload


def drawn(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Array:
    """Bytes of the whole range; of other dtypes small whole numbers, whose sums are exact."""
    if dtype in ("int8", "uint8"):
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max + 1, shape).astype(dtype)
    return rng.integers(-3, 4, shape).astype(numpy_dtype(dtype))


def workload_of(build: Any, *types: tuple[tuple[int, ...], str]) -> Workload:
    made = function_of(build, *types)
    return Workload.from_function(
        Function(made.params, made.body, {"primitive": True, "constants": (1,)})
    )


def epilogue(value: Any, rest: tuple[Any, ...], kind: str) -> Any:
    """Bias and residual; for bytes scaled, rounded and clipped to bytes again."""
    for operand in rest:
        value = call("add", value, operand)
    if kind != "bytes":
        return call("relu", value)
    scale = call("multiply", call("cast", value, dtype="float32"), _scalar(0.125))
    rounded = call("add", call("round", scale), _scalar(3.0))
    return call("cast", call("clip", rounded, min=0.0, max=255.0), dtype="uint8")


def _scalar(value: float) -> Any:
    return Constant(np.float32(value))
