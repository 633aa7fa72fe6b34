"""Which operators an einsum becomes, and that the meaning stays."""

import numpy as np
import pytest
from pass_harness import calls, module_of, operators
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import (
    Call,
    Constant,
    Expr,
    Function,
    TensorType,
    Var,
    tensor_type,
)
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.canonicalize_ops import canonicalize_ops
from tunefarm.compiler.transform.infer_types import infer_types
from tunefarm.compiler.workload import Workload

TARGET = Target("llvm -mcpu=x86-64-v3")
SIZES = dict(
    zip("abcdehijklmnopqtvw", (2, 3, 5, 2, 3, 4, 5, 3, 4, 6, 7, 3, 2, 5, 3, 4, 6, 5), strict=True)
)


def shape(term: str) -> tuple[int, ...]:
    return tuple(SIZES[c] for c in term)


def lowered(equation: str, constants: tuple[int, ...] = ()) -> Expr:
    """The body after the pass, which must not change the result."""
    rng = np.random.default_rng(3)
    terms = equation.partition("->")[0].split(",")
    arrays = [rng.standard_normal(shape(t)).astype(np.float32) for t in terms]
    operands = [
        Constant(a) if i in constants else Var(f"x{i}", TensorType(a.shape, "float32"))
        for i, a in enumerate(arrays)
    ]
    params = tuple(o for o in operands if isinstance(o, Var))
    body = call("einsum", *operands, equation=equation)
    after = canonicalize_ops(module_of(params, body), TARGET)
    infer_types(after, TARGET)
    inputs = [a for i, a in enumerate(arrays) if i not in constants]
    (got,) = evaluate(after, inputs)
    want = np.einsum(equation, *arrays)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    return after.main.body


def without_reshapes(body: Expr) -> list[str]:
    return [op for op in operators(body) if op != "reshape"]


@pytest.mark.parametrize("equation, constants, expected", [
    ("ij,jk->ik", (), ["matmul"]),
    ("ji,kj->ik", (), ["matmul"]),
    ("ij,jk->ki", (), ["matmul"]),
    ("bij,bjk->bik", (), ["matmul"]),
    ("abij,abkj->abik", (), ["matmul"]),
    ("bij,jk->bik", (), ["matmul"]),
    ("oi,bit->bot", (0,), ["matmul"]),
    ("bthd,hdo->bto", (1,), ["matmul"]),
    ("btd,hde->bthe", (1,), ["matmul"]),
    ("btd,ehd->bthe", (1,), ["matmul"]),
    ("bij,bj->bi", (), ["matmul"]),
    ("i,ij->j", (), ["matmul"]),
    ("ijc,jc->i", (), ["matmul"]),
    ("ij,j,jk->ik", (), ["multiply", "matmul"]),
    ("ij,jk,kl->il", (), ["matmul", "matmul"]),
    ("ij,jk,kl,lm->im", (), ["matmul"] * 3),
    ("i,j->ij", (), ["multiply"]),
    ("ij,ij->ij", (), ["multiply"]),
    ("ij,ji->ij", (), ["transpose", "multiply"]),
    ("bk,bk->b", (), ["multiply", "sum"]),
    ("ij,ij->", (), ["multiply", "sum"]),
    ("ijk->ki", (), ["sum", "transpose"]),
    ("ij->", (), ["sum"]),
    ("ijk,kl->l", (), ["sum", "matmul"]),
    ("ij,kl->il", (), ["sum", "sum", "multiply"]),
    ("bhwc,hkc->bhwk", (1,), ["matmul"]),
    ("bqhd,bkhd->bhqk", (), ["einsum"]),
    ("bhqk,bkhd->bqhd", (), ["einsum"]),
    ("nkctv,kvw->nctw", (), ["einsum"]),
    ("bik,bjk->ijb", (), ["matmul", "transpose"]),
    ("ii->i", (), ["einsum"]),
    ("ii,ij->j", (), ["einsum", "matmul"]),
    ("ii->", (), ["einsum", "sum"]),
])  # fmt: skip
def test_an_einsum_becomes(equation: str, constants: tuple[int, ...], expected: list[str]) -> None:
    assert without_reshapes(lowered(equation, constants)) == expected


@pytest.mark.parametrize("equation", ["bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "nkctv,kvw->nctw"])
def test_what_stays_an_einsum_has_the_tuned_sketch(equation: str) -> None:
    (node,) = (n for n in calls(lowered(equation)) if n.op == "einsum")
    params = tuple(Var(f"p{i}", tensor_type(a)) for i, a in enumerate(node.args))
    body = call("einsum", *params, **node.attrs)
    function = Function(params, body, {"primitive": True, "constants": ()})
    space = config_space(Workload.from_function(function), TARGET)
    assert space.default["sketch"] == "contraction"


def test_equal_contractions_get_equal_names() -> None:
    for equation in ("bqhd,bkhd->bhqk", "cqve,ckve->cvqk"):
        body = lowered(equation)
        assert isinstance(body, Call)
        assert body.attrs["equation"] == "abcd,aecd->acbe"
