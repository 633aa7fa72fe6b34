"""Each operator's tensor expression, interpreted, against its NumPy meaning on odd small shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from tunefarm.compiler import te
from tunefarm.compiler.dtypes import FLOATS, is_float, numpy_dtype
from tunefarm.compiler.ir import TensorType, Var
from tunefarm.compiler.ops import OPS, call
from tunefarm.compiler.tir.interpreter import interpret

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    op: str
    shapes: Sequence[Shape]
    attrs: dict[str, Any] = field(default_factory=dict)
    dtypes: Sequence[str] = ()
    limits: Sequence[int | None] = ()  # operands that are indices in [-limit, limit)

    def __str__(self) -> str:
        dtype = "" if not self.dtypes else "-" + "-".join(self.dtypes)
        return f"{self.op}-{'-'.join('x'.join(map(str, s)) for s in self.shapes)}{dtype}"


UNARY = [
    "exp",
    "log",
    "sqrt",
    "floor",
    "ceil",
    "round",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "negative",
    "abs",
    "sign",
    "reciprocal",
    "sigmoid",
    "relu",
    "leaky_relu",
    "elu",
    "celu",
    "gelu",
    "hard_sigmoid",
    "hard_swish",
    "silu",
    "near_silu",
    "near_gelu",
    "mish",
    "softplus",
    "softsign",
    "thresholded_relu",
    "shrink",
    "isnan",
    "isinf",
]
FLOAT_BINARY = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "power",
    "remainder",
    "modulo",
    "maximum",
    "minimum",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "prelu",
]
INT_BINARY = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "remainder",
    "modulo",
    "maximum",
    "minimum",
    "equal",
    "less",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "power",
]
POOL = {"kernel": (3, 2), "strides": (2, 1), "padding": ((1, 0), (1, 1)), "dilations": (1, 2)}
CONV = {"strides": (2, 1), "padding": ((1, 0), (0, 2)), "dilations": (1, 2)}
REDUCE = {"axes": (0, 2), "keepdims": False}

CASES = [
    *(Case(op, [(3, 5)]) for op in UNARY),
    *(Case(op, [(7,)], dtypes=["float16"]) for op in ("exp", "gelu", "relu", "sign")),
    *(Case(op, [(7,)], dtypes=["bfloat16"]) for op in ("silu", "negative")),
    *(Case(op, [(7,)], dtypes=["float64"]) for op in ("erf", "softplus")),
    *(Case(op, [(7,)], dtypes=["int32"]) for op in ("abs", "sign", "negative", "relu")),
    *(Case(op, [(11,)], {"approximate": True}) for op in ("gelu", "near_gelu")),
    Case("quantize", [(5, 7), (), ()]),
    Case("quantize", [(5, 7), (5, 1), (7,)], {"dtype": "int8"}),
    Case("requantize", [(5, 7), (7,), ()]),
    Case("requantize", [(5, 7), (7,), ()], {"dtype": "int16"}, ["int32", "float32", "float32"]),
    Case("add_quanta", [(5, 7), (5, 7), (), (), ()],
         dtypes=["uint8", "int8", "float32", "float32", "float32"]),
    Case("dequantize", [(5, 7), (7,), ()], dtypes=["uint8", "float32", "float32"]),
    Case("dequantize", [(5, 7), (5, 1), (7,)], dtypes=["int32", "float32", "float32"]),
    Case("packed_matmul", [(3, 45), (6, 7, 4), (1, 7)], {"bits": 4, "block": 64, "zero": 7.5},
         ["float32", "uint8", "float32"]),
    Case("packed_matmul", [(2, 48), (12, 7, 4), (3, 7), (3, 7)], {"bits": 8, "block": 16},
         ["float32", "uint8", "float32", "uint8"]),
    Case("packed_matmul", [(2, 50), (4, 5, 4), (2, 5), (2, 5)], {"bits": 2, "block": 25},
         ["float32", "uint8", "float32", "float32"]),
    Case("isinf", [(3,)], {"negative": False}),
    Case("isinf", [(3,)], {"positive": False}),
    Case("clip", [(2, 7)], {"min": -0.5, "max": 0.25}),
    Case("clip", [(7,)], {"max": 2}, ["int8"]),
    Case("abs", [(4,)], dtypes=["uint8"]),
    Case("logical_not", [(5,)], dtypes=["bool"]),
    Case("bitwise_not", [(5,)], dtypes=["int16"]),
    Case("cast", [(5,)], {"dtype": "int32"}),
    Case("cast", [(5,)], {"dtype": "bool"}, ["int32"]),
    Case("cast", [(5,)], {"dtype": "float16"}),
    Case("cast", [(5,)], {"dtype": "float32"}, ["bool"]),
    *(Case(op, [(3, 5), (5,)]) for op in FLOAT_BINARY),
    *(Case(op, [(3, 1), (1, 5)], dtypes=["float16"] * 2) for op in ("add", "divide", "less")),
    *(Case(op, [(13,), (13,)], dtypes=["int32"] * 2) for op in INT_BINARY),
    *(Case(op, [(13,), (13,)], dtypes=["uint8"] * 2) for op in ("divide", "bitwise_or")),
    *(Case(op, [(9,), (9,)], dtypes=["uint32"] * 2) for op in ("left_shift", "right_shift")),
    *(Case(op, [(9,), (9,)], dtypes=["int8"] * 2) for op in ("left_shift", "right_shift")),
    *(
        Case(op, [(4, 1), (3,)], dtypes=["bool"] * 2)
        for op in ("logical_and", "logical_or", "logical_xor", "equal")
    ),
    Case("where", [(3, 1), (5,), ()], dtypes=["bool", "float32", "float32"]),
    Case("matmul", [(3, 5), (5, 7)]),
    Case("matmul", [(5, 3), (7, 5)], {"transpose_a": True, "transpose_b": True}),
    Case("matmul", [(2, 1, 3, 5), (3, 5, 2)]),
    Case("matmul", [(3, 5), (5, 2)], dtypes=["float16"] * 2),
    Case("matmul", [(3, 5), (5, 2)], dtypes=["int32"] * 2),
    Case("einsum", [(2, 3), (3, 4), (4,)], {"equation": "ij,jk,k->ki"}),
    Case("einsum", [(2, 3)], {"equation": "ij->ji"}),
    Case("conv", [(2, 3, 7, 5), (4, 3, 3, 2)], CONV),
    Case("group_conv", [(2, 7, 5, 2, 3), (3, 2, 3, 2, 5)], {"strides": (2, 1),
         "padding": ((1, 0), (0, 1)), "dilations": (1, 2)}),
    Case("conv", [(1, 7, 5, 4), (3, 2, 2, 6)], {**CONV, "groups": 2, "data_layout": "NSC",
                                               "kernel_layout": "SIO"}),
    Case("conv", [(2, 3, 7, 5), (3, 2, 3, 6)], {**CONV, "kernel_layout": "SIO",
                                               "out_layout": "NSC"}),
    Case("conv", [(1, 3, 6, 5), (6, 1, 3, 2)], {**CONV, "groups": 3}),
    Case("conv", [(1, 2, 5), (3, 2, 3)], {"strides": (1,), "padding": ((1, 1),),
                                          "dilations": (1,)}),
    Case("conv", [(1, 2, 3, 4, 3), (2, 2, 2, 2, 2)], {"strides": (1, 1, 2), "padding":
         ((0, 0), (1, 0), (0, 1)), "dilations": (1, 1, 1)}, ["float16"] * 2),
    Case("conv_transpose", [(1, 3, 4, 3), (3, 2, 3, 2)], {**CONV, "output_padding": (1, 0)}),
    Case("conv_transpose", [(2, 3, 4, 4), (4, 1, 3, 2)],
         {**CONV, "groups": 2, "data_layout": "NSC"}),
    *(Case(op, [(2, 3, 7, 6)], POOL) for op in ("max_pool", "max_pool_indices", "avg_pool",
                                               "lp_pool")),
    *(Case(op, [(1, 7, 6, 3)], {**POOL, "data_layout": "NSC"})
      for op in ("max_pool", "max_pool_indices", "avg_pool", "lp_pool")),
    Case("max_pool_indices", [(2, 3, 7, 6)], {**POOL, "column_major": True}),
    Case("max_pool", [(1, 1, 5, 6)], POOL, ["uint8"]),
    Case("lp_pool", [(1, 1, 5, 6)], {**POOL, "p": 3}),
    Case("avg_pool", [(1, 1, 7, 6)], {**POOL, "counted": ((1, 0), (1, 1))}),
    Case("avg_pool", [(1, 1, 7, 6)], {**POOL, "counted": ((0, 0), (1, 0))}),
    Case("avg_pool", [(1, 2, 7)], {"kernel": (7,), "strides": (1,), "padding": ((0, 0),),
                                   "dilations": (1,), "counted": ((0, 0),)}, ["float16"]),
    *(Case(op, [(3, 5, 2)], REDUCE) for op in ("sum", "prod", "max", "min", "mean")),
    *(Case(op, [(3, 5)], {"axes": (-1,)}, ["float16"]) for op in ("sum", "mean", "max")),
    *(Case(op, [(3, 5)], {"axes": (-1,)}, ["int32"]) for op in ("sum", "min")),
    *(Case(op, [(3, 5)], {"axes": (1,)}, ["bool"]) for op in ("any", "all")),
    Case("sum", [(3, 5)], {"axes": ()}),
    *(Case(op, [(3, 5, 2)], {"axis": 1, "last": last}, [dtype])
      for op in ("argmax", "argmin") for last in (False, True) for dtype in ("float32", "int8")),
    *(Case(op, [(3, 5)], {"axis": 1, "exclusive": e, "reverse": r})
      for op in ("cumsum", "cumprod") for e in (False, True) for r in (False, True)),
    *(Case(op, [(3, 5, 2)], {"axis": axis}) for op in ("softmax", "log_softmax")
      for axis in (1, -1)),
    Case("softmax", [(3, 7)], dtypes=["bfloat16"]),
    Case("batch_norm", [(2, 3, 5), (3,), (3,), (3,), (3,)]),
    Case("layer_norm", [(2, 3, 5), (3, 5), (3, 5)], {"axis": 1}),
    Case("layer_norm", [(3, 7), (7,), (7,)], {}, ["float16"] * 3),
    Case("rms_norm", [(2, 3, 5), (5,)]),
    *(Case("l2_normalize", [(3, 5, 2)], {"axis": axis, name: 0.7})
      for axis in (1, -1) for name in ("epsilon", "least", "added")),
    Case("l2_normalize", [(3, 17)], {"epsilon": 0.1, "least": 3.0, "added": 0.2}, ["float16"]),
    Case("group_norm", [(2, 6, 3, 2), (6,), (6,)], {"groups": 3}),
    Case("group_norm", [(2, 3, 2, 4), (4,), (4,)], {"groups": 4, "data_layout": "NSC"}),
    *(Case("lrn", [(1, 7, 2, 3)], {"size": size}) for size in (1, 4, 5)),
    Case("reshape", [(2, 3, 5)], {"shape": (5, 6)}),
    Case("reshape", [(2, 3, 4, 5)], {"shape": (2, 12, 1, 5)}),
    Case("reshape", [(6, 1, 4)], {"shape": (1, 2, 3, 4, 1)}),
    Case("reshape", [(4, 6)], {"shape": (3, 8)}),
    Case("reshape", [(1,)], {"shape": ()}),
    Case("transpose", [(2, 3, 5)], {"axes": (2, 0, 1)}),
    Case("broadcast_to", [(3, 1)], {"shape": (2, 3, 5)}),
    Case("slice", [(7, 5)], {"begin": (6, 1), "size": (3, 2), "strides": (-2, 2)}),
    Case("assign_slice", [(7, 5), (3, 2)], {"begin": (1, 3), "strides": (2, 1)}),
    Case("assign_slice", [(3, 37), (3, 21)], {"begin": (0, 13), "strides": (1, 1)}),
    Case("assign_slice", [(3, 37), (1, 9)], {"begin": (2, 0), "strides": (1, 4)}),
    Case("assign_slice", [(3, 5), (0, 5)], {"begin": (2, 0), "strides": (1, 1)}),
    Case("unfold", [(2, 7, 5, 3)], {"kernel": (3, 2), "strides": (2, 1), "dilations": (1, 2),
                                    "padding": ((1, 0), (2, 1))}),
    Case("unfold", [(2, 9, 17)], {"kernel": (1,), "strides": (2,), "dilations": (1,),
                                  "padding": ((0, 0),)}),
    Case("unfold", [(1, 5, 33)], {"kernel": (3,), "strides": (1,), "dilations": (1,),
                                  "padding": ((1, 1),), "pad_value": 3}, ["uint8"]),
    Case("concat", [(2, 3), (2, 1), (2, 0), (2, 4)], {"axis": 1}),
    *(Case("pad", [(3, 5)], {"padding": ((2, 1), (0, 2)), "mode": mode, "value": 0.5})
      for mode in ("constant", "edge", "reflect")),
    Case("pad", [(3, 5)], {"padding": ((4, 7), (0, 6)), "mode": "wrap"}),
    *(Case("pad", [(2, 3, 37)], {"padding": ((0, 0), (1, 2), (9, 3)), "mode": mode, "value": 0.5})
      for mode in ("constant", "edge", "reflect", "wrap")),
    Case("pad", [()], {"padding": (), "mode": "reflect"}),
    Case("tile", [(2, 3)], {"repeats": (3, 2)}),
    Case("gather", [(5, 3), (2, 2)], {"axis": 0}, ["float32", "int64"], [None, 5]),
    Case("gather", [(2, 7), ()], {"axis": 1}, ["float32", "int32"], [None, 7]),
    Case("gather_elements", [(5, 3), (4, 2)], {"axis": 0}, ["float32", "int64"], [None, 5]),
    Case("gather_nd", [(3, 4, 5), (2, 2)], {}, ["float32", "int64"], [None, 3]),
    Case("gather_nd", [(3, 4, 5), (3, 2, 1)], {"batch_dims": 1}, ["float32", "int64"], [None, 4]),
    *(Case("scatter_elements", [(5, 3), (3, 2), (3, 2)], {"axis": 0, "reduction": how},
           ["float32", "int64", "float32"], [None, 5, None])
      for how in ("none", "add", "mul", "max", "min")),
    *(Case("scatter_nd", [(4, 5, 2), (3, 2, 1), (3, 2, 5, 2)], {"reduction": how},
           ["float32", "int64", "float32"], [None, 4, None]) for how in ("none", "add", "max")),
    *(Case("scatter_nd", [(4, 37), (5, 1), (5, 37)], {"reduction": how},  # rows, some of them twice
           ["float32", dtype, "float32"], [None, 4, None])
      for how, dtype in (("none", "int64"), ("add", "int32"), ("min", "int64"))),
    Case("interpolate", [(2, 5, 3), (7, 2), (7, 2)], {"axis": 1},
         ["float32", "int64", "float32"], [None, 5, None]),
    Case("sample", [(2, 3, 7), (2, 5, 4), (2, 5, 4)], {}, ["float32", "int32", "float32"],
         [None, 7, None]),
    Case("sample", [(2, 7, 3), (2, 5, 4), (2, 5, 4)], {"data_layout": "NSC"},
         ["float32", "int32", "float32"], [None, 7, None]),
    Case("sample", [(1, 2, 5), (1, 3, 1), (1, 3, 1)], {}, ["float16", "int64", "float32"],
         [None, 5, None]),
    *(Case("topk_indices", [(3, 7)], {"axis": 1, "k": 3, "largest": largest}, [dtype])
      for largest in (False, True) for dtype in ("float32", "int8")),
]  # fmt: skip


def draw(case: Case, i: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """An operand with ties, signs and, for binary integers, no zero divisor."""
    dtype = case.dtypes[i] if case.dtypes else "float32"
    limit = case.limits[i] if case.limits else None
    shape = case.shapes[i]
    if limit is not None:
        low = 0 if case.op in ("interpolate", "sample") else -limit
        return rng.integers(low, limit, shape).astype(dtype)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if is_float(dtype):
        values = rng.standard_normal(shape)
        if case.op in ("isnan", "isinf") and values.size > 2:
            values.flat[:3] = [np.nan, np.inf, -np.inf]
        if case.op in ("log", "sqrt", "power", "acosh", "batch_norm"):
            values = np.abs(values) + (1.0 if case.op == "acosh" else 0.1)
        if case.op.endswith("quantize") and i == 2:
            values = np.rint(10 * values)  # zero points are whole numbers
        if case.op in ("asin", "acos", "atanh"):
            values = np.tanh(values)
        return values.astype(numpy_dtype(dtype))
    values = rng.integers(0 if dtype.startswith("u") else -9, 10, shape)
    return np.where(values == 0, 3, values).astype(dtype)


def check(case: Case, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    arrays = [draw(case, i, rng) for i in range(len(case.shapes))]
    args = [Var(f"x{i}", TensorType(a.shape, a.dtype.name)) for i, a in enumerate(arrays)]
    expr = call(case.op, *args, **case.attrs)
    definition = OPS[case.op]
    want = np.asarray(definition.reference(arrays, expr.attrs))
    assert isinstance(expr.type, TensorType)
    assert TensorType(want.shape, want.dtype.name) == expr.type
    inputs = [te.placeholder(a.shape, a.dtype.name, f"x{i}") for i, a in enumerate(arrays)]
    result = definition.compute(inputs, expr.attrs, expr.type)
    assert isinstance(result, te.Tensor)
    assert (result.shape, result.dtype) == (expr.type.shape, expr.type.dtype)
    got = np.full(want.shape, 77).astype(want.dtype)
    interpret(te.create_prim_func([*inputs, result]), [*arrays, got])
    if expr.type.dtype in FLOATS:
        rtol = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-5, "float64": 1e-12}
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol[expr.type.dtype], 1e-6
        )
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_tensor_expression_computes_the_reference(case: Case) -> None:
    check(case)


def test_every_operator_has_a_case() -> None:
    assert OPS.keys() == {case.op for case in CASES}


def test_gelu_by_tanh_keeps_its_digits_where_it_is_small() -> None:
    x = np.linspace(-6, 6, 241).astype(np.float32)
    tensor, found = te.placeholder(x.shape, "float32", "x"), np.empty_like(x)
    result = OPS["gelu"].compute([tensor], {"approximate": True}, TensorType(x.shape, "float32"))
    assert isinstance(result, te.Tensor)
    interpret(te.create_prim_func([tensor, result]), [x, found])
    wide = x.astype(np.longdouble)
    inner = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    np.testing.assert_allclose(found, wide / 2 * (1 + np.tanh(inner)), 2e-5)


@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 2e-6), ("float64", 1e-14)])
def test_mish_is_right_at_all_magnitudes(dtype: str, rtol: float) -> None:
    sizes = np.concatenate([np.geomspace(1e-20, 80, 400), np.linspace(19, 21, 41)])
    x = np.concatenate([-sizes, sizes, [0, 1e4, np.inf, np.nan]]).astype(dtype)
    tensor, found = te.placeholder(x.shape, dtype, "x"), np.empty_like(x)
    result = OPS["mish"].compute([tensor], {}, TensorType(x.shape, dtype))
    assert isinstance(result, te.Tensor)
    interpret(te.create_prim_func([tensor, result]), [x, found])
    wide = x.astype(np.longdouble)
    wanted = wide * np.tanh(np.maximum(wide, 0) + np.log1p(np.exp(-np.abs(wide))))
    np.testing.assert_allclose(found.astype(np.longdouble), wanted, rtol, 1e-38)
