"""Stages a tile apart: the same results for any number of rows, and serial where they cannot be."""

from __future__ import annotations

import numpy as np
import pytest
import tir_harness as harness
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space, schedule_workload
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import Allocate, Buffer, Const, For, Load, LoopKind, PrimFunc, Store
from tunefarm.compiler.tir import Var as LoopVar
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.tir.transform.stagger import stagger_stages
from tunefarm.compiler.tir.visit import seq
from tunefarm.compiler.workload import Workload

X, Y = Buffer("x", (9, 4)), Buffer("y", (9, 4))
i, j = LoopVar("i"), LoopVar("j")


def scheduled(kind: str, rows: int, columns: int, cores: int, tile: int) -> PrimFunc:
    """A softmax or a layer norm, ``tile`` rows at a time."""
    x = Var("x", TensorType((rows, columns), "float32"))
    params = [x]
    if kind == "softmax":
        body = call("softmax", x, axis=-1)
    else:
        params += [Var(n, TensorType((columns,), "float32")) for n in ("scale", "bias")]
        body = call("layer_norm", *params, axis=-1, epsilon=1e-5)
    workload = Workload.from_function(Function(tuple(params), body))
    target = Target(f"llvm -mcpu=znver4 -num-cores={cores}")
    default = dict(config_space(workload, target).default)
    return schedule_workload(workload, target, default | {"nv": 2, "tile": tile})


@pytest.mark.parametrize(
    ("kind", "rows", "columns", "cores", "tile"),
    [("softmax", 1, 40, 1, 1), ("softmax", 7, 32, 1, 3), ("softmax", 5, 100, 2, 1)]
    + [("layer_norm", n, 50, 1, 2) for n in (2, 5, 9)] + [("layer_norm", 11, 64, 2, 2)],
)  # fmt: skip
def test_any_number_of_rows(kind: str, rows: int, columns: int, cores: int, tile: int) -> None:
    program = scheduled(kind, rows, columns, cores, tile)
    rng = np.random.default_rng(rows)
    shapes = [p.shape for p in program.params[:-1]]
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    (want,) = harness.interpreted(program, arrays)
    lowered = lower(program, checked=True)
    (got,) = harness.interpreted(lowered, arrays)
    assert np.allclose(got, want, atol=1e-6)
    (ran,) = harness.compiled(lowered, arrays)
    assert np.allclose(ran, want, atol=1e-5)


def test_a_value_for_two_stages_is_kept_twice() -> None:
    text = str(lower(scheduled("layer_norm", 64, 64, 1, 2)))
    assert "range(34)" in text
    assert text.index("if i0_0 >= 2:") < text.index("if i0_0 >= 1 and i0_0 < 33:")
    assert "mean_sum_2[e0] = mean_sum[e0]" in text


def sums(kind: LoopKind) -> PrimFunc:
    """y = x · Σ x · Σ (x · Σ x), by way of a row of x in registers that all three stages use."""
    row, first, second = (
        Buffer(n, (1, m), scope="register") for n, m in (("r", 4), ("a", 1), ("b", 1))
    )
    zero, at = Const(0.0, "float32"), (Const(0), Const(0))

    def lanes(store: Store) -> For:
        return For(j, Const(4), store, LoopKind.VECTORIZED)

    def total(of: Buffer, term: object) -> list[Store | For]:
        return [Store(of, at, zero), lanes(Store(of, at, Load(of, at) + term))]  # type: ignore[operator]

    x = Load(row, (Const(0), j))
    body = seq(
        lanes(Store(row, (Const(0), j), Load(X, (i, j)))),
        *total(first, x),
        *total(second, x * Load(first, at)),
        lanes(Store(Y, (i, j), x * Load(first, at) * Load(second, at))),
    )
    for buffer in (row, first, second):
        body = Allocate(buffer, body)
    return PrimFunc("f", (X, Y), For(i, Const(9), body, kind))


def test_vectors_for_two_stages_stay_in_a_serial_loop() -> None:
    program = stagger_stages(sums(LoopKind.STAGGERED))
    assert str(program) == str(sums(LoopKind.SERIAL))


def test_only_a_serial_loop_is_staggered() -> None:
    program = sums(LoopKind.PARALLEL)
    with pytest.raises(ScheduleError, match="i is parallel; only a serial loop can be staggered"):
        s.stagger(program, i)
