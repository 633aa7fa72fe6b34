"""Copies of weights that evict one another: how many, and that each call reads the next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tunefarm.compiler.ir import Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload
from tunefarm.db.records import DEFAULT_PROTOCOL, FROM_MEMORY
from tunefarm.worker import llvm
from tunefarm.worker.llvm import LlvmBackend, memory_rows
from tunefarm.worker.memory import copies_of, third_cache_bytes

TARGET = Target.host(1)


def product(m: int, n: int, k: int) -> Workload:
    a, b = Var("a", TensorType((m, k), "float32")), Var("b", TensorType((k, n), "float32"))
    body = call("matmul", a, b)
    return Workload.from_function(Function((a, b), body, {"primitive": True, "constants": (1,)}))


@pytest.mark.parametrize("shape", [(256, 255), (1023, 4099), (4096, 4096)])
def test_copies_exceed_the_third_cache(shape: tuple[int, int]) -> None:
    weights, bias = np.ones(shape, np.float32), np.ones(shape[1], np.float32)
    data = np.zeros((7, 7), np.float32)
    rows = memory_rows([weights, data, bias], (True, False, True), TARGET)
    size, cache = weights.nbytes + bias.nbytes, max(TARGET.l3_bytes, third_cache_bytes())
    total = len(rows) * size
    assert min(1.5 * cache, (256 << 20) - size) <= total <= max(1.5 * cache + size, size)
    assert total <= 256 << 20
    assert all(row[1] is data for row in rows)
    for index in (0, 2):
        places = {row[index].ctypes.data for row in rows}
        assert len(places) == len(rows)
        assert all(place % 64 == 0 for place in places)
    assert not np.shares_memory(rows[0][0], rows[-1][2])


def test_memory_for_copies_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm, "_MOST_COPIED_BYTES", 1 << 20)
    few = memory_rows([np.ones((256, 300), np.float32)], (True,), TARGET)
    assert len(few) == (1 << 20) // (256 * 300 * 4)
    assert len(memory_rows([np.ones((1024, 512), np.float32)], (True,), TARGET)) == 1
    assert len(memory_rows([np.ones((4, 4), np.float32)], (False,), TARGET)) == 1


def test_copies_are_equal() -> None:
    arrays: list[Any] = [np.arange(15, dtype=np.int8).reshape(3, 5), np.full((), 2.5, np.float32)]
    for row in copies_of(arrays, 5):
        for made, original in zip(row, arrays, strict=True):
            np.testing.assert_array_equal(made, original)
            assert made.dtype == original.dtype


def test_each_call_reads_the_next_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call over copy i, scaled by i, gives a result i times as large."""
    monkeypatch.setattr(llvm, "_MOST_COPIED_BYTES", 5 * 37 * 130 * 4)
    made: list[list[list[Any]]] = []
    rows_of = llvm.memory_rows
    monkeypatch.setattr(llvm, "memory_rows", lambda *a: made.append(rows_of(*a)) or made[-1])
    workload, backend = product(9, 130, 37), LlvmBackend()
    backend.start(TARGET.text)
    default = config_space(workload, TARGET).default
    built = backend.build(workload.text, TARGET.text, default)
    problem = backend.problem(workload.text, 0)

    def loaded(protocol: str) -> Any:
        known = replace(built, metadata={**built.metadata, "protocol": protocol})
        return backend.load(known, problem.inputs, problem.constant)

    loaded(DEFAULT_PROTOCOL)
    assert not made
    kernel = loaded(FROM_MEMORY)
    (rows,) = made
    assert 1 < len(rows) <= 5
    for scale, row in enumerate(rows, 1):
        row[1][...] *= scale
    for number in range(2 * len(rows)):
        kernel.repeat(1)
        wanted = problem.outputs[0] * (1 + number % len(rows))
        np.testing.assert_allclose(kernel.outputs[0], wanted, rtol=1e-4, atol=1e-4)
