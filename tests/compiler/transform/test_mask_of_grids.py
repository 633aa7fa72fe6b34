"""What is added to scores seen as a grid: one mask, and one kernel of the attention."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from pass_harness import agree, calls, kernels_in, module_of, operators, var
from tunefarm.compiler.build import build_module
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import Expr, IRModule, Tuple, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import optimize
from tunefarm.compiler.transform.mask_of_grids import mask_of_grids

HEADS, TOKENS, SIDE, SIZE = 2, 36, 6, 16
GRID = (HEADS, TOKENS, SIDE, SIDE)
X86 = Target("llvm -mcpu=znver4 -num-cores=1")
RNG = np.random.default_rng(0)


def attention(add: Callable[[Expr, Expr, Expr], Expr]) -> IRModule:
    """An attention whose scores are seen as a grid while ``add(scores, rows, columns)`` adds."""
    q, k, v = (var(name, HEADS, TOKENS, SIZE) for name in "qkv")
    rows, columns = var("rows", *GRID[:3], 1), var("columns", *GRID[:2], 1, SIDE)
    scores = call("matmul", q, k, transpose_b=True)
    grid = add(call("reshape", scores, shape=GRID), rows, columns)
    flat = call("reshape", grid, shape=(HEADS * TOKENS, TOKENS))
    powers = call("reshape", call("softmax", flat, axis=-1), shape=(HEADS, TOKENS, TOKENS))
    return module_of([q, k, v, rows, columns], call("matmul", powers, v))


def inputs(module: IRModule) -> list[np.ndarray]:
    return [RNG.standard_normal(tensor_type(p).shape).astype("f4") for p in module.main.params]


def sum_of(*terms: Expr) -> Expr:
    first, *others = terms
    for term in others:
        first = call("add", first, term)
    return first


@pytest.mark.parametrize(
    "add",
    [
        lambda s, r, c: sum_of(s, r, c),
        lambda s, r, c: sum_of(c, sum_of(r, s)),
        lambda s, r, c: sum_of(s, c),
    ],
    ids=["both", "commuted", "one"],
)
def test_one_mask_is_made(add: Callable[[Expr, Expr, Expr], Expr]) -> None:
    module = attention(add)
    after = mask_of_grids(module, X86)
    made = calls(after.main.body)
    (softmax,) = [n for n in made if n.op == "softmax"]
    (masked,) = [
        n for n in made if n.op == "add" and tensor_type(n).shape == (HEADS, TOKENS, TOKENS)
    ]
    assert softmax.args[0].args[0] is masked  # type: ignore[union-attr]
    agree(after, module, inputs(module), rtol=1e-5, atol=1e-6)
    kernels = kernels_in(optimize(module, X86))
    assert kernels[-1] == "matmul add softmax matmul"


@pytest.mark.parametrize(
    "add",
    [
        lambda s, r, c: sum_of(s, call("multiply", s, r)),  # of two as large
        lambda s, r, c: call("multiply", s, r),
        lambda s, r, c: s,
    ],
    ids=["two", "product", "none"],
)
def test_other_grids_stay(add: Callable[[Expr, Expr, Expr], Expr]) -> None:
    module = attention(add)
    assert mask_of_grids(module, X86) is module


def test_scores_that_others_read_stay() -> None:
    module = attention(sum_of)
    (scores, *_) = [n for n in calls(module.main.body) if n.op == "matmul"]
    shown = module.with_main(
        type(module.main)(module.main.params, Tuple((module.main.body, scores)))
    )
    assert operators(mask_of_grids(shown, X86).main.body) == operators(shown.main.body)


def test_a_strict_target_keeps_the_order_of_sums() -> None:
    module = attention(sum_of)
    assert mask_of_grids(module, Target(f"{X86} -precision=strict")) is module


def test_it_runs() -> None:
    module = attention(sum_of)
    given = inputs(module)
    names = [p.name for p in module.main.params]
    (found,) = (
        build_module(module, Target.host(1)).run(dict(zip(names, given, strict=True))).values()
    )
    (exact,) = evaluate(module, given)
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5)
