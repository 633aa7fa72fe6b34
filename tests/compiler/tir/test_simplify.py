"""Quotients and remainders of linear forms: what is known of them, and that it is so."""

from __future__ import annotations

import numpy as np
import pytest
from tunefarm.compiler.tir.affine import affine
from tunefarm.compiler.tir.ir import Const, Expr, Var
from tunefarm.compiler.tir.printer import print_expr
from tunefarm.compiler.tir.transform.simplify import simplify_expr
from tunefarm.compiler.tir.visit import substitute

ROW, LANE = Var("i"), Var("j")
RANGES = {ROW: (0, 40), LANE: (0, 7)}


@pytest.mark.parametrize(
    ("expr", "simple"),
    [
        ((ROW * 8 + LANE) // 8, "i"),
        ((ROW * 8 + LANE) % 8, "j"),
        ((ROW * 8 + LANE) // 32, "i // 4"),
        ((ROW * 8 + LANE) % 32, "i % 4 * 8 + j"),
        ((ROW * 96 + LANE) // 32, "i * 3"),
        ((ROW * 8 + LANE + 16) // 32, "(i + 2) // 4"),
        ((ROW * 8 + LANE * 2) // 32, "(i * 8 + j * 2) // 32"),  # j * 2 may carry
    ],
)
def test_what_cannot_carry_is_left_out(expr: Expr, simple: str) -> None:
    assert print_expr(simplify_expr(expr, RANGES)) == simple


def test_random_ones_mean_the_same() -> None:
    rng, changed = np.random.default_rng(0), 0
    for _ in range(300):
        a, b, c = (int(v) for v in rng.choice([-24, -8, -1, 0, 1, 2, 4, 6, 8, 12, 64, 96], 3))
        divisor = int(rng.choice([2, 3, 6, 8, 16, 32, 48]))
        form = ROW * a + LANE * b + c
        expr = form // divisor if rng.integers(2) else form % divisor
        simple = simplify_expr(expr, RANGES)
        changed += simple is not expr
        for i, j in zip(rng.integers(0, 41, 20), rng.integers(0, 8, 20), strict=True):
            values = {ROW: Const(int(i)), LANE: Const(int(j))}
            got, want = (affine(substitute(e, values)).const for e in (simple, expr))
            assert got == want, print_expr(expr)
    assert changed > 60
