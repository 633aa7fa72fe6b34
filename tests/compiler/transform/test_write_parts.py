"""Parts of a concatenation are written into the whole, and nothing between them is touched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tunefarm.compiler.build import build_function
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import (
    Constant,
    Expr,
    Function,
    IRModule,
    TensorType,
    Tuple,
    Var,
    tensor_type,
)
from tunefarm.compiler.ops import call
from tunefarm.compiler.packing import pack
from tunefarm.compiler.row_pitch import RowPitch, with_row_pitch
from tunefarm.compiler.runtime.arrays import aligned_copy, aligned_empty
from tunefarm.compiler.space import config_space, schedule_workload
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.fuse_ops import fuse_ops
from tunefarm.compiler.transform.plan_memory import Store, plan_memory
from tunefarm.compiler.transform.write_parts import joined_parts
from tunefarm.compiler.workload import Workload

import tunefarm

HOST = Target.host(2)
CHANNELS_LAST = {"data_layout": "NSC", "kernel_layout": "SIO"}
IMAGE = (1, 9, 11, 32)
RNG = np.random.default_rng(3)


def function_of(
    shapes: list[tuple[int, ...]], body: Callable[..., Expr], constants: tuple[int, ...] = ()
) -> Function:
    params = tuple(Var(f"p{i}", TensorType(s, "float32")) for i, s in enumerate(shapes))
    return Function(params, body(*params), {"primitive": True, "constants": constants})


def conv(x: Expr, w: Expr, pad: int, **attrs: Any) -> Expr:
    return call("relu", call("conv", x, w, padding=((pad, pad),) * 2, **CHANNELS_LAST, **attrs))


CASES = {
    "pointwise": function_of([IMAGE, (1, 1, 32, 40)], lambda x, w: conv(x, w, 0), (1,)),
    "conv": function_of([IMAGE, (3, 3, 32, 37)], lambda x, w: conv(x, w, 1), (1,)),
    "depthwise": function_of(
        [IMAGE, (3, 3, 1, 32)], lambda x, w: conv(x, w, 1, groups=32), (1,)
    ),
    "pool": function_of(
        [IMAGE], lambda x: call("max_pool", x, kernel=(3, 3), strides=(2, 2), data_layout="NSC")
    ),
    "matmul": function_of([(29, 50), (50, 37)], lambda x, w: call("matmul", x, w), (1,)),
    # With hints for the next tile.
    "large": function_of([(9000, 64), (64, 40)], lambda x, w: call("matmul", x, w), (1,)),
    "batches": function_of([(3, 29, 50), (3, 50, 37)], lambda x, y: call("matmul", x, y)),
    "rows": function_of([(33, 50)], lambda x: call("softmax", x, axis=-1)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rows_are_written_apart_and_nothing_between_them(name: str) -> None:
    workload = Workload.from_function(CASES[name])
    space = config_space(workload, HOST)
    sampled = space.sample(np.random.default_rng(1), 400)
    sampled = sampled[space.valid(sampled)][:6]
    arrays = [RNG.standard_normal(p.type.shape).astype("float32") for p in CASES[name].params]  # type: ignore[union-attr]
    defaults = [sketch.default for sketch in space.sketches]
    for config in (*defaults, *(space.decode(row) for row in sampled)):
        program = schedule_workload(workload, HOST, config)
        width = workload.function.body.type.shape[-1]  # type: ignore[union-attr]
        if config["sketch"] == "image_strips":  # whose rows are those of the image, not pixels
            with pytest.raises(ScheduleError, match="does not write its result in rows of 32"):
                with_row_pitch(program, RowPitch(9 * 11, width + 16))
            continue
        dense = run_program(program, arrays)
        rows = dense.size // width
        for pitch in (width, width + 16, 3 * width):
            apart = with_row_pitch(program, RowPitch(rows, pitch))
            got = run_program(apart, arrays, fill=7.5).reshape(rows, pitch)
            np.testing.assert_array_equal(got[:, :width], dense.reshape(rows, width), str(config))
            assert (got[:, width:] == 7.5).all(), config


def run_program(program: Any, arrays: Sequence[np.ndarray], fill: float = 0.0) -> np.ndarray:
    function = build_function(program, HOST)
    packed = [
        aligned_copy(pack(a, program.layouts.get(i), function.types[i].shape))
        for i, a in enumerate(arrays)
    ]
    result = aligned_empty(function.types[-1])
    result[...] = fill
    function.bind(packed, [result])()
    return result


def test_a_program_that_joins_rows_says_so() -> None:
    function = function_of([(6, 50)], lambda x: call("tanh", x))
    workload = Workload.from_function(function)
    program = schedule_workload(workload, HOST, config_space(workload, HOST).default)
    with pytest.raises(ScheduleError, match="does not write its result in rows of 50"):
        with_row_pitch(program, RowPitch(6, 100))


def weight(*shape: int) -> Constant:
    return Constant(RNG.standard_normal(shape).astype("float32"))


def branches(x: Expr, *channels: int) -> list[Expr]:
    """Convolutions of 1×1 and 3×3 by turns, batch and channels first."""
    made = []
    for n, count in enumerate(channels):
        size = 1 + 2 * (n % 2)
        pad = ((size // 2, size // 2),) * 2
        made.append(call("relu", call("conv", x, weight(count, 8, size, size), padding=pad)))
    return made


def built(body: Expr, *params: Var) -> tunefarm.Module:
    """The model built, whose results agree with the reference for one and two threads."""
    names = tuple(f"y{i}" for i in range(len(body.fields) if isinstance(body, Tuple) else 1))
    module = IRModule({"main": Function(params, body)}, names)
    feeds = {p.name: RNG.standard_normal(p.type.shape).astype("float32") for p in params}  # type: ignore[union-attr]
    lib = tunefarm.build(module, HOST)
    want = evaluate(module.main, list(feeds.values()))
    for got, expected in zip(lib.run(feeds).values(), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    return lib


def labels(lib: tunefarm.Module) -> str:
    return " | ".join(step.label for step in lib.plan.steps)


def image(batch: int = 1) -> Var:
    return Var("x", TensorType((batch, 8, 7, 5), "float32"))


@pytest.mark.parametrize("batch", [1, 3])
def test_branches_are_not_copied(batch: int) -> None:
    x = image(batch)
    joined = call("concat", *branches(x, 16, 32, 24), axis=1)
    lib = built(call("conv", joined, weight(5, 72, 3, 3)), x)
    assert "concat" not in labels(lib)


def test_a_result_that_joins_others_is_written_by_them() -> None:
    x = Var("x", TensorType((1, 6, 50), "float32"))
    parts = [call("softmax", call("matmul", x, weight(50, n)), axis=-1) for n in (16, 32, 5)]
    lib = built(Tuple((call("concat", *parts, axis=-1), call("tanh", x))), x)
    assert "concat" not in labels(lib)


def test_one_row_needs_no_pitch() -> None:
    x = Var("x", TensorType((4, 16), "float32"))
    parts = [call("tanh", x), call("softmax", x, axis=-1)]
    lib = built(call("matmul", call("concat", *parts, axis=0), weight(16, 7)), x)
    assert "concat" not in labels(lib)


def test_what_others_read_or_lies_oddly_is_copied() -> None:
    x = image()
    first, second = branches(x, 16, 16)
    shared = call("concat", first, second, axis=1)
    read = call("conv", shared, weight(5, 32, 1, 1))
    assert "concat" in labels(built(Tuple((read, call("tanh", first))), x))
    odd = call("concat", *branches(x, 17, 16), axis=1)
    assert "concat" in labels(built(call("conv", odd, weight(5, 33, 1, 1)), x))
    with_input = call("concat", *branches(x, 16), x, axis=1)
    assert "concat" in labels(built(call("conv", with_input, weight(5, 24, 1, 1)), x))
    twice = call("concat", first, first, axis=1)
    assert "concat" in labels(built(call("conv", twice, weight(5, 32, 1, 1)), x))


def steps(x: Var, count: int) -> list[Expr]:
    """States of a recurrent network: each one is made of the one before."""
    width = tensor_type(x).shape[-1]
    matrix = Constant((0.5 * weight(width, width).data / width**0.5).astype("float32"))
    states: list[Expr] = [x]
    for _ in range(count):
        states.append(call("tanh", call("matmul", states[-1], matrix)))
    return states[1:]


@pytest.mark.parametrize("count", [2, 7, 120])
def test_steps_of_a_recurrent_network_are_read_where_they_are_joined(count: int) -> None:
    x = Var("x", TensorType((1, 32), "float32"))
    lib = built(call("concat", *steps(x, count), axis=0), x)
    assert "concat" not in labels(lib)
    # Read again later than the whole is, which a kernel might overwrite else.
    states = steps(x, count)
    whole = call("matmul", call("concat", *states, axis=0), weight(32, 32))
    again = call("add", whole, call("softmax", states[0], axis=-1))
    lib = built(Tuple((again, call("exp", states[-2]))), x)
    assert "concat" not in labels(lib)


def test_a_dense_part_is_read_beside_the_whole() -> None:
    """By the kernel that would take the whole's place: it has one of its own."""
    x = Var("x", TensorType((2, 16), "float32"))
    parts = [call("softmax", x, axis=-1), call("tanh", x)]
    whole = call("concat", *parts, axis=0)
    turned = call("slice", parts[0], begin=(1, 15), size=(2, 16), strides=(-1, -1))
    body = call("add", call("softmax", whole, axis=-1), call("concat", turned, turned, axis=0))
    built(call("softmax", body, axis=-1), x)


def test_a_part_of_two_wholes_or_that_is_a_result_is_copied() -> None:
    x = Var("x", TensorType((2, 16), "float32"))
    first, second = call("softmax", x, axis=-1), call("tanh", x)
    both = [call("concat", *parts, axis=0) for parts in ((first, second), (second, first))]
    lib = built(Tuple(tuple(call("matmul", b, weight(16, 3)) for b in both)), x)
    assert labels(lib).count("concat") == 1
    lib = built(Tuple((call("concat", first, second, axis=0), first)), x)
    assert "concat" in labels(lib)


def test_parts_share_the_place_and_the_life_of_the_whole() -> None:
    x = Var("x", TensorType((4, 16), "float32"))
    parts = [call("softmax", call("tanh", x), axis=-1), call("softmax", x, axis=-1)]
    whole = call("concat", *parts, axis=-1)
    body = call("softmax", call("softmax", whole, axis=-1), axis=-1)
    main = fuse_ops(IRModule({"main": Function((x,), body)}), HOST).main
    (found,) = joined_parts(main)
    joined = found[0].whole
    plan = plan_memory(main, parts=found)
    place = plan.places[(joined, 0)]
    assert joined not in plan.calls
    assert [p.start for p in found] == [0, 64]
    assert [plan.places[(p.call, 0)].at for p in found] == [place.at, place.at + 64]
    assert place.store is Store.ARENA
    assert plan.arena_bytes == 2 * 4 * 32 * 4
