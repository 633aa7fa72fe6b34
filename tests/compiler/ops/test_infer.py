"""What operators refuse, in one sentence, and how they count operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import (
    Call,
    Expr,
    Function,
    IRModule,
    TensorType,
    Tuple,
    TupleGetItem,
    Var,
)
from tunefarm.compiler.ops import call, flops_of

CONV = {"strides": (1, 1), "padding": ((1, 1), (1, 1)), "dilations": (1, 1)}


def var(*shape: int, dtype: str = "float32", name: str = "x") -> Var:
    return Var(name, TensorType(shape, dtype))


@pytest.mark.parametrize(
    ("op", "args", "attrs", "message"),
    [
        ("add", [var(2, 3), var(4)], {}, r"shapes \(2, 3\) and \(4,\) do not broadcast"),
        ("add", [var(2), var(2, dtype="int32")], {}, "different dtypes, float32 and int32"),
        ("exp", [var(2, dtype="int32")], {}, "takes floating-point numbers, not int32"),
        ("logical_and", [var(2), var(2)], {}, "takes booleans, not float32"),
        ("where", [var(2), var(2), var(2)], {}, "condition of dtype bool, not float32"),
        ("cast", [var(2)], {"dtype": "float8"}, "takes one of the dtypes .*, not float8"),
        ("matmul", [var(2, 3), var(4, 5)], {}, "inner extents are 3 and 4"),
        ("matmul", [var(3), var(3, 5)], {}, "at least 2 dimensions"),
        ("conv", [var(1, 3, 8, 8), var(4, 2, 3, 3)], CONV, "3 channels and the kernel takes 2"),
        ("conv", [var(1, 3, 2, 8), var(4, 3, 5, 3)], CONV, "spans 5 and the padded input has 4"),
        ("conv", [var(1, 3, 8, 8), var(4, 3, 3)], CONV, "needs a kernel of the same rank"),
        ("conv", [var(1, 3, 8), var(4, 3, 3)], CONV, "strides is .*, and must be 1 positive"),
        ("conv", [var(1, 3, 8, 8), var(4, 3, 3, 3)], {**CONV, "data_layout": "NHWC"},
         "data_layout is 'NHWC', and must be 'NCS' or 'NSC'"),
        ("conv_transpose", [var(1, 3, 8, 8), var(4, 3, 3, 3)], CONV, "takes 4 in 1 groups"),
        ("max_pool", [var(1, 3)], {}, "3 to 5 dimensions"),
        ("max_pool", [var(1, 3, 8, 8)], {"kernel": (0, 1)}, "must be 2 positive integers"),
        ("sum", [var(2, 3)], {"axes": (2,)}, r"axis 2 is not in \[-2, 2\)"),
        ("sum", [var(2, 3)], {"axes": (0, -2)}, "name an axis twice"),
        ("batch_norm", [var(1, 3, 4), *[var(4)] * 4], {}, r"scale has shape \(4,\).*\(3,\)"),
        ("layer_norm", [var(2, 3), var(4), var(3)], {}, "do not broadcast"),
        ("group_norm", [var(2, 6, 3), var(6), var(6)], {"groups": 4}, "6 channels .* 4 groups"),
        ("reshape", [var(2, 3)], {"shape": (7,)}, "does not hold as many elements"),
        ("transpose", [var(2, 3)], {"axes": (0, 0)}, "not a permutation"),
        ("slice", [var(5)], {"begin": (3,), "size": (3,), "strides": (1,)}, "elements 3 to 5"),
        ("assign_slice", [var(5), var(3)], {"begin": (3,), "strides": (1,)}, "elements 3 to 5"),
        ("assign_slice", [var(5), var(3)], {"begin": (4,), "strides": (-1,)}, "must be 1 or more"),
        ("unfold", [var(1, 5, 2)], {"kernel": (3, 3)}, "does not fit data"),
        ("unfold", [var(1, 5, 5, 2)], {"kernel": (3, 3), "strides": (1,)}, "2 positive integers"),
        ("concat", [var(2, 3), var(3, 3)], {"axis": 1}, "differ outside axis 1"),
        ("pad", [var(3)], {"padding": ((3, 0),), "mode": "reflect"}, "does not fit dimension 0"),
        ("broadcast_to", [var(3)], {"shape": (2,)}, "do not broadcast"),
        ("gather", [var(3), var(2)], {}, "indices of dtype int32 or int64"),
        ("topk_indices", [var(3)], {"k": 4}, "k is 4, and axis 0 has 3"),
        ("einsum", [var(2, 3), var(4, 5)], {"equation": "ij,jk->ik"}, "'j' has extents 3 and 4"),
    ],
)  # fmt: skip
def test_operands_that_do_not_fit_are_refused(
    op: str, args: list[Expr], attrs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ShapeError, match=f"^{op} 'n1': .*{message}"):
        call(op, *args, name="n1", **attrs)


def test_an_unknown_attribute_is_refused() -> None:
    with pytest.raises(TypeError, match="relu has no attribute slope"):
        call("relu", var(2), slope=1.0)


def test_contractions_count_two_operations_a_tap_padding_included() -> None:
    x, w = var(1, 3, 8, 8), var(4, 3, 3, 3)
    assert flops_of(call("conv", x, w, **CONV)) == 2 * (4 * 8 * 8) * (3 * 3 * 3)
    assert flops_of(call("matmul", var(5, 2, 3), var(3, 4))) == 2 * 5 * 2 * 3 * 4
    assert flops_of(call("transpose", x, axes=(0, 2, 3, 1))) == 0
    assert flops_of(call("add", var(2, 1), var(3))) == 6


def test_evaluate_runs_primitive_functions_tuples_and_deep_chains() -> None:
    a, b = var(2, name="a"), var(2, name="b")
    fused = Function((a, b), Tuple((call("add", a, b), call("subtract", a, b))), {"primitive": 1})
    x = var(2)
    pair = Call(fused, (x, x), {}, fused.type)
    deep: Expr = TupleGetItem(pair, 0)
    for _ in range(5000):
        deep = call("negative", deep)
    module = IRModule({"main": Function((x,), Tuple((deep, TupleGetItem(pair, 1))))})
    y, z = evaluate(module, [np.array([1, 2], np.float32)])
    np.testing.assert_array_equal(y, np.array([2, 4], np.float32))
    np.testing.assert_array_equal(z, np.zeros(2, np.float32))
