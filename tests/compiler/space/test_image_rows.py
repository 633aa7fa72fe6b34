"""Depthwise convolutions with pixels and channels as one axis: every shape agrees with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sketch_harness import check, compare, configs
from tunefarm.compiler.build import build_module
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import Constant, Expr, Function, IRModule, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import ConfigSpace, config_space, image_rows
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

F32 = "float32"
HOST = Target.host(2)
AVX2 = Target("llvm -mcpu=haswell -num-cores=1")
SAME = ((1, 1), (1, 1))
FLAG = st.booleans()


def depthwise(
    shape: tuple[int, ...],
    taps: tuple[int, int] = (3, 3),
    bias: bool = False,
    residual: bool = False,
    relu: bool = False,
    constants: tuple[int, ...] = (1, 2),
    **attrs: Any,
) -> Function:
    """Parameters: the image, the taps, a bias of the channels, a residual."""
    channels = shape[-1]
    x, w = Var("x", TensorType(shape, F32)), Var("w", TensorType((*taps, 1, channels), F32))
    layouts = {"data_layout": "NSC", "kernel_layout": "SIO", "groups": channels}
    body: Expr = call("conv", x, w, **(layouts | {"padding": SAME} | attrs))
    params = [x, w]
    for wanted, kind in ((bias, TensorType((channels,), F32)), (residual, body.type)):
        if wanted:
            params.append(Var(f"p{len(params)}", kind))  # type: ignore[arg-type]
            body = call("add", body, params[-1])
    body = call("relu", body) if relu else body
    kept = tuple(i for i in constants if i < 2 or bias)
    return Function(tuple(params), body, {"primitive": True, "constants": kept})


def draw(function: Function, rng: np.random.Generator) -> list[Any]:
    """Small whole numbers: their sums are exact in any order."""
    return [rng.integers(-3, 4, p.type.shape).astype(F32) for p in function.params]  # type: ignore[union-attr]


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(
    st.integers(1, 3), st.integers(1, 19), st.integers(2, 19), st.integers(2, 35),
    st.tuples(st.integers(1, 5), st.integers(2, 5)), st.integers(1, 2),
    st.tuples(st.integers(1, 2), st.integers(1, 2)), FLAG, FLAG, FLAG,
    st.sampled_from([HOST, AVX2]), st.integers(0, 999),
)  # fmt: skip
def test_random_shapes_and_configs(
    n: int, h: int, w: int, channels: int, taps: tuple[int, int], stride: int,
    dilations: tuple[int, int], bias: bool, residual: bool, relu: bool, target: Target, seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    down, across = (d * (k - 1) for d, k in zip(dilations, taps, strict=True))
    left, top = int(rng.integers(0, across + 1)), int(rng.integers(0, down + 1))
    padding = ((top, int(rng.integers(0, 3))), (left, across - left))
    lanes = target.lanes("float32")
    assume(h + sum(padding[0]) > down and -(-channels // lanes) * lanes >= 1.08 * channels)
    function = depthwise(
        (n, h, w, channels), taps, bias, residual, relu,
        padding=padding, strides=(stride, 1), dilations=dilations,
    )  # fmt: skip
    space = image_rows.space(function, target)
    assert space is not None
    workload, arrays = Workload.from_function(function), draw(function, rng)
    for config in configs(ConfigSpace((space,)), rng, 2):
        check(workload, target, config, arrays, "execute")


@pytest.mark.parametrize("cpu", ["generic -mtriple=aarch64-linux-gnu", "znver5 -num-cores=1"])
def test_the_interpreter_agrees(cpu: str) -> None:
    function = depthwise((1, 5, 6, 7), bias=True, residual=True, relu=True)
    target, arrays = Target(f"llvm -mcpu={cpu}"), draw(function, np.random.default_rng(0))
    space = image_rows.space(function, target)
    assert space is not None
    check(Workload.from_function(function), target, space.default, arrays, "interpret")


@pytest.mark.parametrize("target", [HOST, Target(f"{HOST} -precision=strict")])
def test_a_model_repeats_weights_and_biases_for_each_pixel(target: Target) -> None:
    """Those of the direct sum where others are forbidden, or the processor's default."""
    function = depthwise((1, 9, 9, 6), bias=True, relu=True)
    x, *weights = draw(function, np.random.default_rng(0))
    default = config_space(Workload.from_function(function), target).default
    assert default["sketch"] == "image_rows" or not target.strict
    image = Var("x", TensorType(x.shape, F32))
    body = call("conv", image, Constant(weights[0]), padding=SAME, groups=6,
                data_layout="NSC", kernel_layout="SIO")  # fmt: skip
    body = call("relu", call("add", body, Constant(weights[1])))
    module = IRModule({"main": Function((image,), body, {"input_names": ("x",)})}, ("y",))
    built = build_module(module, target)
    compare([built.run({"x": x})["y"]], evaluate(function, [x, *weights]), "the model")


@pytest.mark.parametrize(("channels", "panels"), [(40, 5), (33, 33), (17, 17), (48, 3)])
def test_weights_are_stored_as_far_as_they_differ(channels: int, panels: int) -> None:
    function = depthwise((1, 3, 40, channels))
    target = Target("llvm -mcpu=znver5 -num-cores=1")
    space = image_rows.space(depthwise((1, 3, 40, 17)), target)
    assert space is not None
    config = space.default | {"nv": 1, "prefetch": 0, "next_panel": 0}
    assert image_rows.schedule(function, target, config).params[1].shape == (panels, 3, 3, 16)
    hinted = image_rows.schedule(function, target, config | {"prefetch": 8})
    assert hinted.params[1].shape == (-(-40 * channels // 16), 3, 3, 16)


UNFIT = {
    "channels that fill vectors": depthwise((1, 8, 8, 32)),
    "channels that almost do": depthwise((1, 8, 8, 31)),
    "a stride along the row": depthwise((1, 8, 8, 17), strides=(1, 2)),
    "results narrower than the image": depthwise((1, 8, 8, 17), padding=((1, 1), (0, 0))),
    "a column of taps": depthwise((1, 8, 8, 17), (3, 1), padding=((1, 1), (0, 0))),
    "weights that vary": depthwise((1, 8, 8, 17), constants=()),
    "a bias that varies": depthwise((1, 8, 8, 17), bias=True, constants=(1,)),
}


@pytest.mark.parametrize("name", UNFIT)
def test_it_leaves_to_other_sketches(name: str) -> None:
    assert image_rows.space(UNFIT[name], Target("llvm -mcpu=znver5 -num-cores=1")) is None


@pytest.mark.parametrize(("size", "channels", "sketch"), [
    (28, 17, "image_rows"), (28, 24, "image_rows"), (28, 33, "image_rows"), (3, 33, "contraction"),
])  # fmt: skip
def test_the_default_is_by_the_model(size: int, channels: int, sketch: str) -> None:
    workload = Workload.from_function(depthwise((1, size, size, channels)))
    target = Target("llvm -mcpu=znver5 -num-cores=1")
    assert config_space(workload, target).default["sketch"] == sketch


@pytest.mark.parametrize(("size", "vectors"), [(28, 2), (56, 2), (112, 1)])
def test_a_mesh_reads_lines_for_two_vectors(size: int, vectors: int) -> None:
    """Inside the second cache; beyond, neighbours of one column lie on other pages."""
    space = image_rows.space(depthwise((1, size, size, 17)), Target("llvm -mcpu=emeraldrapids"))
    assert space is not None
    assert space.default["nv"] == vectors


@pytest.mark.parametrize(("channels", "sketch"), [
    (6, "image_rows"), (9, "image_rows"), (12, "contraction"), (17, "contraction"),
    (33, "contraction"),
])  # fmt: skip
@pytest.mark.parametrize("cores", [1, 2])
def test_few_sums_of_all_taps_beat_it(channels: int, sketch: str, cores: int) -> None:
    workload = Workload.from_function(depthwise((1, 28, 28, channels)))
    target = Target(f"llvm -mcpu=znver3 -num-cores={cores}")
    assert config_space(workload, target).default["sketch"] == sketch


@pytest.mark.parametrize(("height", "block"), [(28, 14), (14, 7), (112, 14)])
def test_cores_share_out_whole_rows(height: int, block: int) -> None:
    """Half of the image each; of a large one, a tile of rows at a time."""
    target = Target("llvm -mcpu=znver5 -num-cores=2")
    width = 28 if height < 100 else 112
    space = image_rows.space(depthwise((1, height, width, 17)), target)
    assert space is not None
    config = space.default
    assert int(config["rw"]) * int(config["mb"]) == block
    panels = -(-width * 17 // (int(config["nv"]) * target.lanes("float32")))
    widest = max(next(k.choices for k in space.knobs if k.name == "nb"))
    assert -(-panels // int(config["nb"])) == -(-panels // int(widest))
