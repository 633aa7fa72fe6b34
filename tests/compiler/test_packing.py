"""Packed constants hold what the schedule's indices read."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tunefarm.compiler import te
from tunefarm.compiler.build import build_module as build
from tunefarm.compiler.ir import Constant, Function, IRModule, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.packing import pack, pack_into
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PackedLayout, schedule
from tunefarm.compiler.tir.interpreter import interpret


def test_packing_agrees_with_the_indices_of_transform_layout() -> None:
    b = te.placeholder((5, 7), name="b")
    copy = te.compute((5, 7), lambda i, j: b[i, j] * te.const(2.0, "float32"), name="copy")
    program = te.create_prim_func([b, copy])
    layout = PackedLayout(((2,), (3,)), (2, 0, 3, 1))
    packed = schedule.transform_layout(program, 0, layout)
    assert packed.params[0].shape == (3, 3, 3, 2)
    values = np.random.default_rng(0).standard_normal((5, 7)).astype("float32")
    out = np.empty((5, 7), "float32")
    interpret(packed, [pack(values, packed.layouts[0], packed.params[0].shape), out])
    np.testing.assert_array_equal(out, 2 * values)


def test_what_the_padding_adds_is_zero() -> None:
    layout = PackedLayout(((), (4,)), (1, 0, 2), shape=(3, 5))
    packed = pack(np.ones((3, 5), "float32"), layout, (2, 3, 4))
    assert packed.sum() == 15


def test_a_view_is_packed_as_the_program_sees_it() -> None:
    layout = PackedLayout(((), (2,)), (1, 0, 2), shape=(6, 4))
    flat = pack(np.arange(24.0).reshape(1, 1, 6, 4), layout, (2, 6, 2))
    assert flat[1, 0].tolist() == [2.0, 3.0]


def test_without_a_layout_the_array_is_only_viewed() -> None:
    array = np.zeros((2, 3))
    assert np.shares_memory(pack(array, None, (6,)), array)


def test_linked_weights_are_packed_once_and_kept_where_they_are() -> None:
    rng = np.random.default_rng(0)
    x = Var("x", TensorType((5, 19), "float32"))
    weight = Constant(rng.standard_normal((19, 37)).astype("float32"))
    module = IRModule({"main": Function((x,), call("matmul", x, weight), {})})
    lib = build(module, Target.host(1))
    assert lib.weights_address % 4096 == 0
    assert lib.plan.weight_bytes == lib.weights.nbytes < 2 * weight.data.nbytes
    given = rng.standard_normal((5, 19)).astype("float32")
    got = lib.run({"x": given})["output"]
    np.testing.assert_allclose(got, given @ weight.data, rtol=1e-4, atol=1e-5)


@given(st.data())
def test_any_padding_and_order_agrees_with_pad_and_transpose(data: st.DataObject) -> None:
    extents = st.integers(1, 30)
    shape = tuple(data.draw(st.lists(extents, min_size=1, max_size=3)))
    factor = st.lists(st.integers(1, 5), max_size=2).map(tuple)
    factors = tuple(data.draw(factor) for _ in shape)
    outer = [-(-e // prod(f)) for e, f in zip(shape, factors, strict=True)]
    split = [n for o, f in zip(outer, factors, strict=True) for n in (o, *f)]
    order = tuple(data.draw(st.permutations(range(len(split)))))
    array = np.arange(1.0, prod(shape) + 1).reshape(shape)
    ends = [(0, o * prod(f) - e) for o, f, e in zip(outer, factors, shape, strict=True)]
    want = np.pad(array, ends).reshape(split).transpose(order)
    out = np.full(want.shape, np.nan)
    pack_into(out, array, PackedLayout(factors, order, shape=shape))
    np.testing.assert_array_equal(out, want)


def test_one_number_seen_as_an_array_is_packed_from_its_view() -> None:
    view = np.broadcast_to(np.float32(2.0), (3, 5))
    packed = pack(view, PackedLayout(((), (4,)), (1, 0, 2), shape=(3, 5)), (2, 3, 4))
    assert packed.sum() == 30
