"""Inverted residual blocks in one kernel: expansion, depthwise convolution and projection."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sketch_harness import Array, configs, executed, interpreted
from tunefarm.compiler.accuracy import error_bounds
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import Expr, Function, TensorType, Var, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import (
    Config,
    ConfigSpace,
    config_space,
    inverted_residual,
    schedule_workload,
)
from tunefarm.compiler.space.inverted_residual.default import cycles
from tunefarm.compiler.space.inverted_residual.knobs import scratch_bytes
from tunefarm.compiler.space.inverted_residual.program import inverted_residual_of
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import Allocate
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.tir.visit import walk_stmt
from tunefarm.compiler.workload import Workload

from tests.compiler.mismatch import mismatch

F32 = "float32"
ONE = Target.host(1)
HOST = Target.host(2)
LAYOUTS = {"data_layout": "NSC", "kernel_layout": "SIO"}


def block(
    shape: tuple[int, ...],
    channels: int,
    outputs: int | None = 8,
    *,
    stride: int = 1,
    padding: Any = ((1, 1), (1, 1)),
    taps: tuple[int, int] = (3, 3),
    dilation: int = 1,
    expand: bool = True,
    activation: str = "clip",
    bias: bool = True,
    residual: bool = False,
    constants: bool = True,
    first: tuple[int, int, int] | None = None,
) -> Function:
    """Expansion (if any), depthwise convolution, projection (if ``outputs``).

    ``first`` makes the expansion a convolution of so many taps along both axes, stride and padding,
    which reads an image with its channels first.
    """
    params: list[Var] = []
    weights: list[int] = []

    def param(kind: TensorType, weight: bool = True) -> Var:
        params.append(Var(f"p{len(params)}", kind))
        weights.extend([len(params) - 1] if weight and constants else [])
        return params[-1]

    def finish(value: Expr, activation: str) -> Expr:
        if bias:
            value = call("add", value, param(TensorType(tensor_type(value).shape[-1:], F32)))
        if activation == "clip":
            value = call("clip", value, min=-0.5, max=1.5)
        return call("relu", value) if activation == "relu" else value

    def pointwise(value: Expr, outputs: int) -> Expr:
        inputs = tensor_type(value).shape[-1]
        return call("conv", value, param(TensorType((1, 1, inputs, outputs), F32)),
                    strides=(1, 1), padding=((0, 0), (0, 0)), **LAYOUTS)  # fmt: skip

    value: Expr
    if first is not None:
        size, step, pad = first
        value = param(TensorType((shape[0], shape[3], *shape[1:3]), F32), False)
        value = call("conv", value, param(TensorType((size, size, shape[3], channels), F32)),
                     strides=(step, step), padding=((pad, pad), (pad, pad)), kernel_layout="SIO",
                     out_layout="NSC")  # fmt: skip
        value = finish(value, activation)
    else:
        value = param(TensorType(shape if expand else (*shape[:-1], channels), F32), False)
    if expand and first is None:
        value = finish(pointwise(value, channels), activation)
    value = call("conv", value, param(TensorType((*taps, 1, channels), F32)), padding=padding,
                 strides=(stride, stride), dilations=(dilation, dilation), groups=channels,
                 **LAYOUTS)  # fmt: skip
    value = finish(value, activation)
    if outputs is not None:
        value = finish(pointwise(value, outputs), "")
    if residual:
        value = call("add", value, param(TensorType(tensor_type(value).shape, F32), False))
    return Function(tuple(params), value, {"primitive": True, "constants": tuple(weights)})


def draw(function: Function, seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(p.type.shape).astype(F32) for p in function.params]  # type: ignore[union-attr]


def block_space(function: Function, target: Target = HOST) -> ConfigSpace:
    space = inverted_residual.space(function, target)
    assert space is not None
    return ConfigSpace((space,))


def verify(
    function: Function, config: Config, arrays: list[Array], interpret: bool = False
) -> None:
    (wanted,) = evaluate(function, arrays)
    program = lower(schedule_workload(Workload.from_function(function), HOST, config))
    result = np.full(wanted.shape, 77, F32)
    if interpret:
        interpreted(program, arrays, [result])
    else:
        executed(program, HOST, arrays, [result])
    assert mismatch([result], [wanted], error_bounds(function, arrays)) == "", dict(config)


@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(
    st.integers(1, 2), st.integers(3, 17), st.integers(3, 17), st.integers(2, 21),
    st.integers(2, 70), st.sampled_from([None, 2, 7, 24, 40]), st.integers(1, 2),
    st.tuples(*[st.integers(0, 2)] * 4), st.sampled_from([(3, 3), (2, 3), (5, 5)]),
    st.booleans(), st.sampled_from(["clip", "relu", ""]), st.booleans(), st.booleans(),
    st.integers(0, 9999),
)  # fmt: skip
def test_odd_shapes_under_random_configs(
    n: int, h: int, w: int, inputs: int, channels: int, outputs: int | None, stride: int,
    pads: tuple[int, int, int, int], taps: tuple[int, int], expand: bool, activation: str,
    bias: bool, residual: bool, seed: int,
) -> None:  # fmt: skip
    top, bottom, left, right = pads
    h, w = max(h, taps[0] - top - bottom), max(w, taps[1] - left - right)
    function = block(
        (n, h, w, inputs), channels, outputs if expand else outputs or 9, stride=stride,
        padding=((top, bottom), (left, right)), taps=taps, expand=expand, activation=activation,
        bias=bias, residual=residual,
    )  # fmt: skip
    arrays = draw(function, seed)
    for config in configs(block_space(function), np.random.default_rng(seed), 2):
        verify(function, config, arrays)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("outputs", [None, 5])
def test_the_interpreter_agrees(stride: int, outputs: int | None) -> None:
    function = block((2, 5, 6, 3), 19, outputs, stride=stride)
    space = block_space(function)
    small = {**space.default, "mb": 2, "nv": 1, "dw": 2, "roll": 1}
    verify(function, small, draw(function, 3), interpret=True)


@pytest.mark.parametrize("first", [(3, 2, 1), (3, 1, 0), (5, 3, 2), (1, 2, 0)])
@pytest.mark.parametrize(("stride", "outputs"), [(1, 11), (2, None)])
def test_a_networks_first_convolution_begins_a_block(
    first: tuple[int, int, int], stride: int, outputs: int | None
) -> None:
    function = block((2, 17, 26, 3), 35, outputs, stride=stride, first=first)
    space = block_space(function)
    arrays = draw(function, 5)
    for config in [space.default, *configs(space, np.random.default_rng(first[0]), 3)]:
        verify(function, config, arrays)


def test_a_convolution_of_many_inputs_begins_none() -> None:
    assert inverted_residual.space(block((1, 9, 9, 5), 16, first=(3, 1, 1)), HOST) is None


def test_a_border_is_zero_behind_the_activation() -> None:
    """Beyond the border there is nothing, not what bias and activation make of nothing."""
    function = block((1, 4, 4, 2), 16, None, bias=True, activation="clip")
    arrays = [np.zeros_like(a) for a in draw(function, 0)]
    arrays[2][:] = 1.0  # the bias of the expansion
    arrays[3][:] = 1.0  # the taps
    config = block_space(function).default
    program = lower(schedule_workload(Workload.from_function(function), HOST, config))
    result = np.empty((1, 4, 4, 16), F32)
    interpreted(program, arrays, [result])
    counts = np.array([2, 3, 3, 2])
    np.testing.assert_array_equal(result[0, :, :, 0], np.minimum(np.outer(counts, counts), 1.5))


def test_dilation_and_a_single_row() -> None:
    for function in (
        block((1, 9, 11, 6), 33, 12, dilation=2, padding=((2, 2), (2, 2))),
        block((1, 1, 9, 6), 20, 12),
        block((1, 9, 1, 6), 20, None),
        block((2, 2, 2, 6), 20, 3, stride=2),
    ):
        arrays = draw(function, 5)
        space = block_space(function)
        for config in configs(space, np.random.default_rng(5), 3):
            verify(function, config, arrays)


UNFIT = {
    "weights that vary": block((1, 9, 9, 8), 16, constants=False),
    "a depthwise convolution alone": block((1, 9, 9, 8), 16, None, expand=False),
    "a convolution alone": block((1, 9, 9, 8), 16, None, taps=(1, 1)),
}


@pytest.mark.parametrize("name", UNFIT)
def test_other_functions_have_no_such_sketch(name: str) -> None:
    assert inverted_residual.space(UNFIT[name], HOST) is None
    assert inverted_residual.saving(UNFIT[name], HOST) == 0
    with pytest.raises(ScheduleError, match="no expansion"):
        inverted_residual.schedule(UNFIT[name], HOST, {"sketch": "inverted_residual"})


def test_a_tensor_that_the_epilogue_reads_again_does_not_fit() -> None:
    x, w, k = (
        Var("x", TensorType((1, 6, 6, 4), F32)),
        Var("w", TensorType((1, 1, 4, 16), F32)),
        Var("k", TensorType((3, 3, 1, 16), F32)),
    )
    expanded = call("conv", x, w, strides=(1, 1), padding=((0, 0), (0, 0)), **LAYOUTS)
    windows = call("conv", expanded, k, strides=(1, 1), padding=((1, 1), (1, 1)), groups=16,
                   **LAYOUTS)  # fmt: skip
    again = call("add", windows, expanded)
    function = Function((x, w, k), again, {"primitive": True, "constants": (1, 2)})
    assert inverted_residual.space(function, HOST) is None


def test_its_default_is_the_only_one_of_such_a_workload() -> None:
    space = config_space(Workload.from_function(block((1, 14, 14, 24), 144, 24)), HOST)
    assert [s.sketch for s in space.sketches] == ["inverted_residual"]
    assert space.valid(space.encode(space.default)[None]).all()


def test_large_images_pay_and_those_that_stay_in_the_second_cache_do_not() -> None:
    large = block((1, 112, 112, 16), 96, 24, stride=2)
    one, two = (Target(f"llvm -mcpu=znver4 -num-cores={cores}") for cores in (1, 2))
    assert inverted_residual.saving(large, one) > inverted_residual.saving(large, two) > 0
    for target in (one, two):
        assert inverted_residual.saving(block((1, 7, 7, 64), 384, 64), target) <= 0


@pytest.mark.parametrize("cores", [1, 2])
def test_large_products_stay_alone_where_strassens_method_saves_more(cores: int) -> None:
    """Xception's: 0.93 × the time of the network with them alone, 0.98 on two cores (Zen 5)."""
    target = Target(f"llvm -mcpu=znver5 -num-cores={cores}")
    strict = Target(f"{target} -precision=strict")
    wide = block((1, 19, 19, 728), 728, 728, expand=False)
    assert inverted_residual.saving(wide, strict) > 0 >= inverted_residual.saving(wide, target)
    narrow = block((1, 112, 112, 16), 96, 24, stride=2)
    assert inverted_residual.saving(narrow, target) > 0


@pytest.mark.parametrize("cores", [1, 2])
def test_wide_pixels_stay_apart_on_a_mesh(cores: int) -> None:
    """Xception's and MobileNet's: apart 0.86 to 0.97 × the time (Emerald Rapids), whose expansions
    of few channels pay as elsewhere."""
    target = Target(f"llvm -mcpu=emeraldrapids -mattr=-amx-tile -num-cores={cores}")
    for shape, hidden in (((1, 19, 19, 728), 728), ((1, 75, 75, 256), 256)):
        assert inverted_residual.saving(block(shape, hidden, hidden, expand=False), target) <= 0
        assert inverted_residual.saving(block(shape, hidden), target) <= 0
    for narrow in (block((1, 112, 112, 16), 96, 24, stride=2), block((1, 112, 112, 16), 96)):
        assert inverted_residual.saving(narrow, target) > 0


def test_nothing_pays_in_sixteen_registers() -> None:
    """Kernels apart took 0.93 × the time of MobileNetV2's blocks (Zen 3)."""
    large = block((1, 112, 112, 16), 96, 24, stride=2)
    for cpu in ("znver3", "haswell"):
        assert inverted_residual.saving(large, Target(f"llvm -mcpu={cpu} -num-cores=1")) <= 0


def test_scratch_is_counted_as_it_is_allocated() -> None:
    function = block((1, 20, 23, 12), 40, 24)
    found = inverted_residual_of(function)
    assert found is not None
    space = block_space(function)
    rows = space.sample(np.random.default_rng(0), 400)
    for row in rows[space.valid(rows)][:12]:
        config = space.decode(row)
        program = lower(schedule_workload(Workload.from_function(function), HOST, config))
        held = [s.buffer for s in walk_stmt(program.body) if isinstance(s, Allocate)]
        tiles = {(b.name, b.shape) for b in held if b.scope == "local"}  # borders use them again
        local = sum(4 * int(np.prod(shape)) for _, shape in tiles)
        counted = scratch_bytes(found, HOST.lanes(F32), space.columns(row[None], 0))
        assert local <= counted[0] <= 1.5 * local, config


def test_a_row_too_long_for_the_stack_has_no_such_sketch() -> None:
    function = block((1, 3, 9000, 2), 16)
    assert inverted_residual.space(function, HOST) is None
    assert inverted_residual.saving(function, HOST) <= 0


@pytest.mark.parametrize(
    "target",
    [
        "llvm -mcpu=haswell -num-cores=4",
        "llvm -mcpu=x86-64",
        "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1 -num-cores=4",
        "llvm -mtriple=riscv64-linux-gnu -mcpu=spacemit-x60",
    ],
)
def test_other_processors_have_a_default_that_applies(target: str) -> None:
    for function in (block((1, 7, 6, 3), 11, 5), block((1, 7, 6, 3), 11, None, stride=2)):
        space = block_space(function, Target(target))
        assert space.valid(space.encode(space.default)[None]).all()
        workload = Workload.from_function(function)
        arrays = draw(function, 1)
        (wanted,) = evaluate(function, arrays)
        program = lower(schedule_workload(workload, Target(target), space.default))
        result = np.full(wanted.shape, 77, F32)
        interpreted(program, arrays, [result])
        assert mismatch([result], [wanted], error_bounds(function, arrays)) == ""


@pytest.mark.parametrize("outputs", [None, 24])
def test_the_nest_counts_tasks_and_operations(outputs: int | None) -> None:
    function = block((2, 20, 23, 12), 40, outputs)
    space = block_space(function)
    rows = space.sample(np.random.default_rng(2), 200)
    k = space.columns(rows[space.valid(rows)], 0)
    nest = space.sketches[0].nest(k)
    lanes = HOST.lanes(F32)
    panels = 1 if outputs else -(-40 // (k["nv"] * lanes * k["nb"]))
    np.testing.assert_array_equal(nest.parallelism, 2 * -(-20 // k["mb"]) * panels)
    assert (nest.operations >= Workload.from_function(function).flops).all()


@pytest.mark.parametrize(("size", "inputs", "channels"), [(19, 112, 896), (14, 112, 672)])
def test_cores_have_as_many_channels_where_all_rows_are_one_block(
    size: int, inputs: int, channels: int
) -> None:
    target = Target("llvm -mcpu=znver5 -num-cores=2")
    function = block((1, size, size, inputs), channels, None, activation="relu")
    default = block_space(function, target).default
    rows, panels, vectors = (int(default[name]) for name in ("mb", "nb", "nv"))
    assert rows == size
    width = panels * vectors * target.lanes(F32)
    blocks = [min(width, channels - begin) for begin in range(0, channels, width)]
    slower = sum(blocks[: -(-len(blocks) // 2)])  # the core that begins with the first block
    assert slower <= 0.53 * channels


def test_more_blocks_expand_more_rows_in_the_model() -> None:
    found = inverted_residual_of(block((1, 56, 56, 24), 144, 24))
    assert found is not None
    space = block_space(found.function)
    knobs = [{**space.default, "mb": mb} for mb in (1, 4, 14)]
    columns = {n: np.array([k[n] for k in knobs]) for n in knobs[0] if n != "sketch"}
    assert list(np.argsort(cycles(found, ONE, 16, columns))) == [2, 1, 0]
