"""Sums of products that run on over zeros: what grows, what is refused, and that values stay."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tunefarm.compiler import te
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir import PackedLayout, PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.interpreter import interpret
from tunefarm.compiler.tir.transform.lower import lower


def product() -> PrimFunc:
    """c[i, j] = Σ a[i, k] · b[k, j] of 5 × 9 by 9 × 7, in registers, b packed in groups of 4."""
    a, b = te.placeholder((5, 9), name="a"), te.placeholder((9, 7), name="b")
    k = te.reduce_axis(9, "k")
    c = te.compute((5, 7), lambda i, j: te.sum(a[i, k] * b[k, j], [k]), "c")
    program = te.create_prim_func([a, b, c])
    program = s.transform_layout(program, 1, PackedLayout(((4,), (8,)), (2, 0, 3, 1)))
    program, _ = s.cache_write(program, "c", "local")
    return program


def test_copies_and_the_result_grow_and_values_stay() -> None:
    program = product()
    program, _ = s.cache_read(program, "c", program.params[0], "local")
    padded = s.pad_einsum(program, "c", {1: 8, 2: 12})
    assert {b.name: b.shape for b in padded.buffers} == {"c_local": (5, 8), "a_local": (5, 12)}
    assert re.search(r"a_local\[i0\S*, i1\S*\] = select\(i1\S* < 9, a\[", str(padded))
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (5, 9)), rng.integers(-9, 9, (9, 7))
    packed = np.zeros((1, 3, 8, 4), np.float32)
    packed[0, :, :7, :] = np.pad(b, ((0, 3), (0, 0))).reshape(3, 4, 7).swapaxes(1, 2)
    for made in (padded, lower(padded)):
        out = np.full((5, 7), 77, np.float32)
        interpret(made, [a.astype(np.float32), packed, out])
        np.testing.assert_array_equal(out, a @ b)


def test_what_would_be_read_beyond_its_end_is_told() -> None:
    with pytest.raises(ScheduleError, match="a would be read beyond its end; pack it"):
        s.pad_einsum(product(), "c", {2: 12})


def test_an_output_and_split_loops_are_refused() -> None:
    x = te.placeholder((6, 4), name="x")
    k = te.reduce_axis(4, "k")
    program = te.create_prim_func([x, te.compute((6,), lambda i: te.sum(x[i, k], [k]), "y")])
    with pytest.raises(ScheduleError, match="block y writes an output; give it a cache_write"):
        s.pad_einsum(program, "y", {0: 8})
    program = product()
    program, _ = s.split(program, s.loops_of(program, "c")[0], 4)
    with pytest.raises(ScheduleError, match="has a predicate; pad it before splitting its loops"):
        s.pad_einsum(program, "c", {1: 8})
