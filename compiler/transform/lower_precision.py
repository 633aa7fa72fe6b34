"""The precision that a caller allows a model: products of 16-bit floats for those of float32, where
they are faster, or those of float32 with operands rounded to no less than TF32's bits.

matmul(x, w)  ->  matmul[out_dtype=float32](cast[bfloat16](x), w in bfloat16)      so for conv

The operands are rounded, the sums stay float32. Weights are rounded when the model is built; the
cast of ``x`` joins the operator that makes it, or is made once for all who read it, above what only
moves elements (``casts_below``). What else waits in memory may be rounded as well
(``round_stored``), and activations have fewer digits (``near_functions``).
A module says what it allows in an attribute of ``main``, which the passes before keep. "tf32"
changes no function: it is an option of the target that the kernels are made for (``target_of``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.ir import (
    Attrs,
    Call,
    Constant,
    Expr,
    Function,
    IRModule,
    tensor_type,
)
from tunefarm.compiler.ops import call
from tunefarm.compiler.space.dot.gain import gain_over_float32
from tunefarm.compiler.target import TF32, Target
from tunefarm.compiler.transform.casts_below import casts_below
from tunefarm.compiler.transform.near_functions import near_functions
from tunefarm.compiler.transform.outline import alone
from tunefarm.compiler.transform.rewrite import Uses, rewrite_main
from tunefarm.compiler.transform.round_stored import DTYPE, PRODUCTS, round_stored
from tunefarm.compiler.workload import Workload

PRECISIONS = {"bf16": "bfloat16", "fp16": "float16"}
WORTH = 1.05  # times faster in the model than float32


def allow_precision(module: IRModule, precision: str) -> IRModule:
    """The module with leave to compute in ``precision``; "f32" takes it back, "" changes nothing.

    TunefarmError names what is known.
    """
    names = ("f32", TF32, *PRECISIONS)
    if precision not in ("", *names):
        known = ", ".join(map(repr, names))
        raise TunefarmError(f"precision {precision!r} is unknown; known: {known}")
    if not precision:
        return module
    main = module.main
    attrs: Attrs = {**main.attrs, "precision": None if precision == "f32" else precision}
    return module.with_main(Function(main.params, main.body, attrs))


def target_of(module: IRModule, target: Target) -> Target:
    """The target of a module's kernels, with the precision that the module allows."""
    return target.allowing(str(module.main.attrs.get("precision")))


def without_effect(precision: str, workloads: Iterable[Workload], target: Target) -> str:
    """A sentence if a model's tasks on a target, the ``workloads``, stay as they were without the
    precision; else nothing."""
    if precision == TF32 and not target.may_round_to_tf32:
        return (
            f"precision {TF32} changes nothing: {target} has no unit for it (AMX, tensor cores "
            "since Ampere)"
        )
    dtype = PRECISIONS.get(precision)
    texts = [workload.text for workload in workloads]
    if dtype is None or not texts or any(f'"{dtype}"' in text for text in texts):
        return ""
    return (
        f"precision {precision} changes nothing: {target} multiplies {dtype} no faster than "
        "float32 in any task of the model, so what is float32 stays float32"
    )


def lower_precision(module: IRModule, target: Target) -> IRModule:
    """Contractions of constants take the operands that ``main`` allows."""
    dtype = PRECISIONS.get(str(module.main.attrs.get("precision")))
    if dtype is None:
        return module
    casts: dict[Expr, Expr] = {}

    def rule(node: Call, uses: Uses) -> Expr | None:
        if not is_lowered(node, dtype, target):
            return None
        x, w = node.args
        assert isinstance(w, Constant)
        attrs: Attrs = {**node.attrs, "out_dtype": "float32"}
        rounded = Constant(_rounded(w, dtype), w.name)
        return call(str(node.op), _cast(x, dtype, casts), rounded, name=node.name, **attrs)

    lowered = rewrite_main(module, [rule])
    if lowered is module:
        return module
    main = lowered.main
    body = casts_below(main.body, dtype)
    if dtype == DTYPE:
        body = near_functions(casts_below(round_stored(body, target), dtype), target)
    return lowered.with_body(body)


def is_lowered(node: Call, dtype: str, target: Target) -> bool:
    """Whether a product of float32 takes operands of another dtype: where that pays, and no weight
    exceeds its range."""
    if not _is_product(node) or gain_of(node, dtype, target) <= WORTH:
        return False
    (_, w) = node.args
    assert isinstance(w, Constant)
    return bool(np.isfinite(_rounded(w, dtype)).all())


def _rounded(weights: Constant, dtype: str) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        return np.asarray(weights.data).astype(numpy_dtype(dtype))


def _cast(x: Expr, dtype: str, casts: dict[Expr, Expr]) -> Expr:
    """The operand rounded, below reshapes: there it joins what makes the values."""
    if x not in casts:
        if isinstance(x, Call) and x.op == "reshape":
            casts[x] = call("reshape", _cast(x.args[0], dtype, casts), **x.attrs)  # type: ignore[arg-type]
        else:
            casts[x] = call("cast", x, dtype=dtype)
    return casts[x]


def _is_product(node: Call) -> bool:
    """True for a contraction of float32 with weights."""
    return (
        node.op in PRODUCTS
        and len(node.args) == 2
        and isinstance(node.args[1], Constant)
        and all(tensor_type(a).dtype == "float32" for a in node.args)
    )


def gain_of(node: Call, dtype: str, target: Target) -> float:
    """How many times faster a product of float32 is with operands of another dtype, in the model; 0
    if the target has no instruction for them."""
    narrow = alone(node, (dtype, dtype), {**node.attrs, "out_dtype": "float32"})
    wide = alone(node, ("float32", "float32"), node.attrs)
    return gain_over_float32(narrow, wide, target)
