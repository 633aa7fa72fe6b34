"""Every operator through its sketches: the interpreter and the machine code agree with NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sketch_harness import (
    Array,
    check,
    configs,
    function_of,
    operator_cases,
    verify,
)
from tunefarm.compiler.ir import Call, Constant, Function, TensorType, Tuple
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import ConfigSpace, config_space, schedule_workload
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

OPERATORS = operator_cases()
F32 = "float32"
HOST = Target.host(2)


def _named(*names: str) -> Any:
    """A chain: the first operator takes all operands, the others its result."""

    def build(*params: Any) -> Call:
        value = call(names[0], *params)
        for name in names[1:]:
            value = call(name, value)
        return value

    return build


def _pool(op: str, layout: str, **attrs: Any) -> Any:
    base = {"kernel": (3, 3), "strides": (2, 2), "padding": ((1, 1), (1, 1)), "dilations": (1, 1)}

    def build(x: Any, *rest: Any) -> Call:
        value = call(op, x, **{**base, **attrs}, data_layout=layout)
        return call("relu", call("add", value, *rest)) if rest else value

    return build


FUSED: dict[str, Function] = {
    "bias and relu": function_of(
        _named("add", "relu"), ((1, 5, 7, 19), F32), ((19,), F32)
    ),
    "short last axis": function_of(_named("add", "sigmoid"), ((1, 11, 13, 3), F32), ((3,), F32)),
    "one element": function_of(_named("multiply", "tanh"), ((1, 1), F32), ((1,), F32)),
    "to channels last": function_of("transpose", ((2, 19, 5, 7), F32), axes=(0, 2, 3, 1)),
    "heads": function_of("transpose", ((2, 3, 17, 33), F32), axes=(0, 2, 1, 3)),
    "channel shuffle": function_of(
        lambda x: call("reshape", call("transpose", call("reshape", x, shape=(1, 3, 3, 2, 29)),
                                       axes=(0, 1, 2, 4, 3)), shape=(1, 3, 3, 58)),
        ((1, 3, 3, 58), F32),
    ),
    "concatenation of three": function_of(
        lambda a, b, c: call("relu", call("concat", a, b, c, axis=3)),
        ((1, 3, 3, 16), F32), ((1, 3, 3, 5), F32), ((1, 3, 3, 37), F32),
    ),
    "bytes to floats": function_of(
        lambda x: call("cast", x, dtype=F32), ((1, 67), "uint8")
    ),
    "two results": function_of(
        lambda a, b: Tuple((call("add", a, b), call("relu", call("subtract", a, b)))),
        ((5, 23), F32), ((23,), F32),
    ),
    "softmax of scaled and masked": function_of(
        lambda x, m: call("softmax", call("add", x, m), axis=-1),
        ((3, 5, 47), F32), ((5, 47), F32),
    ),
    "softmax over channels": function_of("softmax", ((2, 7, 3, 11), F32), axis=1),
    "layer norm and gelu": function_of(
        lambda x, s, b: call("gelu", call("layer_norm", x, s, b, axis=-1)),
        ((5, 131), F32), ((131,), F32), ((131,), F32),
    ),
    "instance norm": function_of(
        lambda x, s, b: call("group_norm", x, s, b, groups=5, data_layout="NSC"),
        ((2, 7, 3, 5), F32), ((5,), F32), ((5,), F32),
    ),
    "group norm": function_of(
        lambda x, s, b: call("relu", call("group_norm", x, s, b, groups=3)),
        ((2, 12, 5, 7), F32), ((12,), F32), ((12,), F32),
    ),
    "global average": function_of(
        "mean", ((2, 7, 7, 37), F32), axes=(1, 2), keepdims=False
    ),
    "sum of squares of everything": function_of(
        lambda x: call("sum", call("multiply", x, x), axes=(0, 1), keepdims=True), ((17, 41), F32)
    ),
    "row of bytes": function_of("max", ((3, 100), "int8"), axes=(1,), keepdims=True),
    "row of unsigned bytes": function_of("max", ((3, 100), "uint8"), axes=(1,), keepdims=True),
    "division with a tail": function_of("divide", ((3, 7), "int32"), ((7,), "int32")),
    "pooling and residual": function_of(
        _pool("max_pool", "NSC"), ((1, 9, 11, 35), F32), ((35,), F32)
    ),
    "average without the border": function_of(
        _pool("avg_pool", "NSC", counted=((0, 0), (0, 0))), ((1, 13, 6, 16), F32)
    ),
    "dense pooling": function_of(
        _pool("max_pool", "NCS", strides=(1, 1)), ((1, 3, 8, 29), F32)
    ),
    "integer product": function_of("matmul", ((5, 9), "int32"), ((9, 21), "int32")),
    "product with itself": function_of(
        lambda x: call("relu", call("matmul", x, x, transpose_b=True)), ((18, 65), F32)
    ),
    "product with a row of itself": function_of(
        "einsum", ((1, 12, 9, 12), F32), ((1, 12, 9, 12), F32), equation="abcd,ebcd->cbae"
    ),
    "transposed convolution in groups": function_of(
        "conv_transpose", ((2, 14, 1, 64), F32), ((64, 24, 3, 3), F32), groups=2, strides=(3, 3),
        padding=((0, 0), (1, 1)), output_padding=(0, 0), dilations=(1, 1), data_layout="NSC",
    ),
}  # fmt: skip


def _inputs(workload: Workload, rng: np.random.Generator) -> list[Array]:
    return [
        rng.integers(1, 200, p.type.shape).astype(p.type.dtype)
        if "int" in p.type.dtype
        else rng.standard_normal(p.type.shape).astype(p.type.dtype)
        for p in workload.function.params
    ]


@pytest.mark.parametrize("case", OPERATORS.CASES, ids=str)
def test_an_operator_agrees_with_its_meaning(case: Any) -> None:
    rng = np.random.default_rng(7)
    arrays = [np.asarray(OPERATORS.draw(case, i, rng)) for i in range(len(case.shapes))]
    types = [(a.shape, a.dtype.name) for a in arrays]
    workload = Workload.from_function(function_of(case.op, *types, **case.attrs))
    space = config_space(workload, HOST)
    default, *rest = configs(space, rng, 1)
    check(workload, HOST, default, arrays)
    for config in rest:
        check(workload, HOST, config, arrays, "execute")


@pytest.mark.parametrize("name", FUSED)
def test_a_fused_function_agrees_under_random_configs(name: str) -> None:
    rng = np.random.default_rng(11)
    workload = Workload.from_function(FUSED[name])
    space = config_space(workload, HOST)
    assert space.sketches[0].sketch != "plain"
    arrays = _inputs(workload, rng)
    for number, config in enumerate(configs(space, rng, 5)):
        check(workload, HOST, config, arrays, "both" if number < 2 else "execute")


CONV = {"data_layout": "NSC", "kernel_layout": "SIO", "padding": ((1, 1), (1, 1))}
SUMS: dict[str, tuple[Any, ...]] = {
    "conv": ((2, 8, 24, 20), (3, 3, 20, 20), CONV),
    "conv on 7x7": ((1, 7, 7, 128), (3, 3, 128, 128), CONV),
    "depthwise": ((1, 9, 14, 24), (3, 3, 1, 24), {**CONV, "groups": 24}),
    "matmul": ((64, 128), (128, 192), {}),
    "matmul of 17 columns": ((56, 64), (64, 17), {}),
}


@pytest.mark.parametrize("name", SUMS)
def test_what_a_sum_is_added_to_may_be_computed_before_it(name: str) -> None:
    """Each sketch's default of a sum whose residual is stored as bytes, and comes first."""
    data, weights, attrs = SUMS[name]
    result = (*data[:-1], weights[-1])

    def build(q: Any, scale: Any, x: Any, w: Any) -> Call:
        zero = Constant(np.float32(3), TensorType((), F32))
        value = call(name.split()[0].replace("depthwise", "conv"), x, w, **attrs)
        return call("relu", call("add", call("dequantize", q, scale, zero), value))

    made = function_of(build, (result, "uint8"), ((), F32), (data, F32), (weights, F32))
    function = replace(made, attrs={**made.attrs, "constants": (3,)})
    rng = np.random.default_rng(3)
    arrays = [rng.integers(0, 9, result).astype("uint8"), np.float32(0.1)]
    arrays += [rng.standard_normal(shape).astype(F32) for shape in (data, weights)]
    for sketch in config_space(Workload.from_function(function), HOST).sketches:
        verify(function, HOST, sketch.default, arrays)


@pytest.mark.parametrize("op", ["max", "min", "softmax", "max_pool"])
def test_nan_reaches_the_result(op: str) -> None:
    window = {"kernel": (3,), "strides": (1,), "padding": ((0, 0),), "dilations": (1,)}
    special: dict[str, Any] = {
        "softmax": {"axis": -1},
        "max_pool": {**window, "data_layout": "NSC"},
    }
    attrs = special.get(op, {"axes": (2,)})
    workload = Workload.from_function(function_of(op, ((3, 7, 37), F32), **attrs))
    x = np.random.default_rng(0).standard_normal((3, 7, 37)).astype(F32)
    x[0, 1, 5] = x[1, 3, 36] = x[2, 6, 0] = np.nan
    with np.errstate(invalid="ignore"):
        check(workload, HOST, config_space(workload, HOST).default, [x], "execute")


@pytest.mark.parametrize("mcpu", ["x86-64-v3", "x86-64"])
@pytest.mark.parametrize("name", ["softmax of scaled and masked", "pooling and residual"])
def test_narrower_vectors_compute_the_same(name: str, mcpu: str) -> None:
    target = Target(f"llvm -mcpu={mcpu}")
    workload = Workload.from_function(FUSED[name])
    rng = np.random.default_rng(3)
    arrays = _inputs(workload, rng)
    check(workload, target, config_space(workload, target).default, arrays)


def test_long_rows_are_computed_twice() -> None:
    workload = Workload.from_function(function_of("softmax", ((2, 300_000), F32), axis=-1))
    default = config_space(workload, HOST).default
    assert default["keep"] == 0
    rng = np.random.default_rng(0)
    check(workload, HOST, default, [rng.standard_normal((2, 300_000)).astype(F32)], "execute")


def _default_of_product(rows: int, depth: int) -> dict[str, int]:
    target = Target("llvm -mcpu=znver5 -num-cores=1")
    function = function_of("matmul", ((rows, depth), F32), ((depth, 512), F32))
    sketches = config_space(Workload.from_function(function), target).sketches
    default = next(s.default for s in sketches if s.sketch == "contraction")
    return {name: value for name, value in default.items() if isinstance(value, int)}


def test_rows_that_meet_in_a_set_of_the_cache_leave_lines_to_a_neighbour() -> None:
    assert _default_of_product(196, 1000)["rw"] == 14
    assert _default_of_product(196, 1024)["rw"] <= 8  # 4096 bytes apart; 48 KiB have 12 ways


@pytest.mark.parametrize("rows", [1, 5, 14, 196])
def test_a_default_unrolls_no_more_than_gains_speed(rows: int) -> None:
    k = _default_of_product(rows, 1024)
    assert k["rw"] * k["nv"] * k["ku"] <= 64


def test_small_work_is_not_shared_out() -> None:
    workload = Workload.from_function(FUSED["short last axis"])
    assert config_space(workload, HOST).default["tasks"] == 0


def test_large_work_is_shared_out() -> None:
    function = function_of(_named("add", "relu"), ((1, 112, 112, 64), F32), ((64,), F32))
    workload = Workload.from_function(function)
    default = config_space(workload, HOST).default
    assert default["tasks"] != 0
    assert "in parallel" in str(schedule_workload(workload, HOST, default))


@pytest.mark.parametrize("name", FUSED)
def test_features_describe_every_candidate(name: str) -> None:
    space = config_space(Workload.from_function(FUSED[name]), HOST)
    rows = space.sample(np.random.default_rng(1), 16)
    for index, sketch in enumerate(space.sketches):
        mine = rows[rows[:, 0] == index]
        nest = sketch.nest(space.columns(mine, index))
        assert all(len(t) == len(mine) for level in nest.tiles.values() for t in level.values())
        assert (nest.parallelism >= 1).all()
        assert (nest.operations > 0).all()
        for level in nest.tiles.values():
            assert level.keys() == nest.extents.keys()


def test_a_fingerprint_is_of_sketches_and_the_names_of_their_knobs() -> None:
    space = config_space(Workload.from_function(FUSED["bias and relu"]), HOST)
    sketch = space.sketches[0]
    wider = replace(sketch.knobs[0], choices=(*sketch.knobs[0].choices, 97))
    more = replace(sketch, knobs=(wider, *sketch.knobs[1:]))
    assert ConfigSpace((more, *space.sketches[1:])).fingerprint == space.fingerprint
    assert ConfigSpace(space.sketches[::-1]).fingerprint == space.fingerprint
    newer = replace(sketch, version=sketch.version + 1)
    assert ConfigSpace((newer, *space.sketches[1:])).fingerprint != space.fingerprint
    fewer = replace(sketch, knobs=sketch.knobs[1:])
    assert ConfigSpace((fewer, *space.sketches[1:])).fingerprint != space.fingerprint
