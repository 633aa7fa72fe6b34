"""Values of rows and last columns with lanes along the rows: the results stay what they were."""

from __future__ import annotations

import numpy as np
import pytest
import tir_harness as harness
from tunefarm.compiler.ir import Call, Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space, schedule_workload
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import (
    Allocate,
    Buffer,
    Const,
    For,
    Load,
    LoopKind,
    PrimFunc,
    Store,
)
from tunefarm.compiler.tir import Var as LoopVar
from tunefarm.compiler.tir.ir import Intrinsic, Stmt
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.tir.transform.rows_together import take_rows_together
from tunefarm.compiler.tir.visit import seq
from tunefarm.compiler.workload import Workload

KINDS = ("softmax", "log_softmax", "layer_norm", "sum", "max", "min", "softmax of negatives")


def body_of(kind: str, x: Var, *others: Var) -> Call:
    match kind:
        case "softmax of negatives":
            return call("softmax", call("negative", x), axis=-1)
        case "softmax" | "log_softmax":
            return call(kind, x, axis=-1)
        case "layer_norm":
            return call(kind, x, *others, axis=-1, epsilon=1e-5)
        case _:
            return call(kind, x, axes=(1,))


def scheduled(
    kind: str,
    rows: int,
    columns: int,
    tile: int = 8,
    dtype: str = "float32",
    target: str = "llvm -mcpu=znver4 -num-cores=1",
) -> PrimFunc:
    """An operator on rows, ``tile`` of them at a time, all vectors of a row at once."""
    names = ("scale", "bias") if kind == "layer_norm" else ()
    x = Var("x", TensorType((rows, columns), dtype))
    others = [Var(name, TensorType((columns,), dtype)) for name in names]
    workload = Workload.from_function(Function((x, *others), body_of(kind, x, *others)))
    of = Target(target)
    default = dict(config_space(workload, of).default)
    vectors = -(-columns // (16 if dtype == "float32" else 8))
    return schedule_workload(workload, of, default | {"nv": vectors, "tile": tile})


def before(program: PrimFunc) -> PrimFunc:
    """A program as the pass gets it."""
    seen: list[PrimFunc] = []

    def see(lowered: PrimFunc) -> PrimFunc:
        seen.append(lowered)
        return lowered

    lower(program, extra={"before:take_rows_together": [see]})
    return seen[0]


def changes(program: PrimFunc) -> bool:
    found = before(program)
    return str(take_rows_together(found)) != str(found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rows", "columns"),
    [(32, 17), (16, 18), (45, 19), (24, 20), (8, 24), (17, 33), (24, 34), (40, 16), (16, 9)],
)
def test_results_are_those_of_the_program(kind: str, rows: int, columns: int) -> None:
    program = scheduled(kind, rows, columns)
    rng = np.random.default_rng(rows * columns)
    arrays = [rng.standard_normal(p.shape).astype(np.float32) for p in program.params[:-1]]
    (want,) = harness.interpreted(program, arrays)
    lowered = lower(program, checked=True)
    (got,) = harness.interpreted(lowered, arrays)
    assert np.allclose(got, want, atol=1e-5)
    (ran,) = harness.compiled(lowered, arrays)
    assert np.allclose(ran, want, atol=1e-5)


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "layer_norm"])
@pytest.mark.parametrize("columns", [17, 20, 34])
def test_what_is_no_number_comes_out_as_before(kind: str, columns: int) -> None:
    program = scheduled(kind, 24, columns)
    rng = np.random.default_rng(columns)
    x = rng.standard_normal((24, columns)).astype(np.float32)
    x[1, -1] = x[2, 3] = np.nan
    x[4, -1] = x[5, 0] = np.inf
    x[7, -1] = x[8, 1] = x[9, :] = -np.inf
    x[11, :16], x[12, 16:] = -np.inf, -np.inf
    x = x.reshape(program.params[0].shape)
    with np.errstate(invalid="ignore"):
        (want,) = harness.interpreted(program, [x])
    (ran,) = harness.compiled(lower(program), [x])
    assert np.allclose(ran, want, atol=1e-5, equal_nan=True)


def test_last_columns_have_no_masks() -> None:
    text = str(lower(scheduled("softmax", 1536, 17)))
    assert "< 17:" not in text
    exps = [n for n, line in enumerate(text.splitlines()) if "= exp_shifted(" in line]
    loops = [text.splitlines()[n - 1] for n in exps]
    assert ["vectorized(16)" in loop for loop in loops] == [True, False]
    assert "vectorized(8)" in loops[1]


def test_logarithms_of_sums_are_taken_for_all_rows_at_once() -> None:
    text = str(lower(scheduled("log_softmax", 1536, 16)))
    (line,) = [n for n, line in enumerate(text.splitlines()) if "= log(" in line]
    assert "in vectorized(8):" in text.splitlines()[line - 1]


@pytest.mark.parametrize("kind", ["softmax", "log_softmax", "layer_norm", "max"])
def test_few_last_columns_are_taken_apart(kind: str) -> None:
    taken = [n for n in range(17, 53) if f"< {n}:" not in str(lower(scheduled(kind, 1600, n)))]
    assert taken == [17, 18, 19, 20, 32, 33, 34, 48, 49]


def test_a_sum_alone_keeps_its_masks() -> None:
    assert "< 17:" in str(lower(scheduled("sum", 128, 17)))


@pytest.mark.parametrize("columns", [16, 24, 32])
def test_rows_that_gain_nothing_are_left_alone(columns: int) -> None:
    assert not changes(scheduled("softmax", 128, columns))


def test_other_tiles_are_left_alone() -> None:
    assert changes(scheduled("softmax", 128, 17))
    assert not changes(scheduled("softmax", 128, 17, tile=4))
    assert not changes(scheduled("softmax", 128, 17, dtype="float64"))


def test_stages_stay_a_tile_apart() -> None:
    """What two stages read of a row is handed on as one vector."""
    text = str(lower(scheduled("log_softmax", 1536, 17)))
    assert "if i0_0 >= 2:" in text
    assert "softmax_max_rows_2[e0] = softmax_max_rows[e0]" in text


def test_registers_of_a_tile_may_have_more_dimensions() -> None:
    """y[r] = log Σ x[r, :] of eight rows, whose sums stand in registers of shape (1, 8)."""
    x, y = Buffer("x", (8, 16)), Buffer("y", (8,))
    total, terms = Buffer("s", (1, 8), scope="register"), Buffer("p", (8, 16), scope="register")
    r, lane = LoopVar("r"), LoopVar("l")
    at, zero = (Const(0), r), Const(0.0, "float32")

    def rows(body: Stmt) -> For:
        return For(r, Const(8), body, LoopKind.UNROLLED)

    def lanes(store: Store) -> For:
        return For(lane, Const(16), store, LoopKind.VECTORIZED)

    added = Store(total, at, Load(total, at) + Load(terms, (r, lane)))
    body = seq(
        rows(lanes(Store(terms, (r, lane), Load(x, (r, lane))))),
        rows(seq(Store(total, at, zero), lanes(added))),
        rows(Store(y, (r,), Intrinsic("log", (Load(total, at),), "float32"))),
    )
    program = PrimFunc("f", (x, y), Allocate(total, Allocate(terms, body)))
    together = take_rows_together(program)
    assert "s_rows[r] = s[0, r]" in str(together)
    values = np.random.default_rng(0).random((8, 16), np.float32)
    for run in (harness.interpreted, harness.compiled):
        (got,) = run(lower(together, checked=True), [values])
        assert np.allclose(got, np.log(values.sum(axis=1)), atol=1e-5)
