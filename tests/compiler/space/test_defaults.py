"""Every sketch's default is a config of its space, whatever the layer and the processor."""

from __future__ import annotations

import numpy as np
import pytest
from convolutions import convolution
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sketch_harness import draw, function_of, verify
from tunefarm.compiler.ir import Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space, contraction
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

PROCESSORS = (
    "-mcpu=znver4",
    "-mcpu=znver5",
    "-mcpu=emeraldrapids",
    "-mcpu=haswell",
    "-mtriple=aarch64-linux-gnu -mcpu=apple-m1",
    "-mtriple=riscv64-linux-gnu -mcpu=sifive-x280",
)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    st.tuples(
        st.integers(1, 8),
        st.integers(1, 33),
        st.integers(1, 33),
        st.one_of(st.integers(2, 70), st.sampled_from((96, 128, 257, 384, 960, 1024))),
    ),
    st.tuples(st.sampled_from((1, 2, 3, 5, 7)), st.sampled_from((2, 3, 5, 7))),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.sampled_from(PROCESSORS),
    st.sampled_from((1, 2, 4)),
)
@example((2, 7, 7, 72), (3, 3), (2, 1), "-mcpu=znver5", 2)  # blocks beyond short rows
@example((1, 16, 16, 65), (5, 5), (1, 1), "-mcpu=znver4", 4)
@example((1, 4, 4, 65), (7, 7), (2, 1), "-mcpu=znver5", 4)  # long code of borders
@example((8, 14, 14, 384), (3, 3), (1, 1), PROCESSORS[4], 2)
def test_defaults_of_depthwise_layers(
    image: tuple[int, int, int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    processor: str,
    cores: int,
) -> None:
    """``image`` is (batch, height, width, channels)."""
    function = convolution(
        image,
        image[-1],
        padding=tuple((taps // 2, taps // 2) for taps in kernel),
        kernel=kernel,
        strides=strides,
        groups=image[-1],
        constants=(1, 2),
    )
    check_defaults(function, Target(f"llvm {processor} -num-cores={cores}"))


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize(
    ("image", "outputs", "taps", "stride", "constants"),
    [
        ((1, 28, 28, 257), 64, 5, 1, ()),  # a panel's copy beyond its limit
        ((8, 7, 7, 100), 160, 7, 1, ()),
        ((1, 112, 112, 96), 16, 7, 2, (1, 2)),  # tiles of Winograd's method beyond the stack
        ((1, 56, 56, 1024), 96, 3, 1, (1, 2)),
        ((2, 57, 57, 768), 48, 3, 2, (1, 2)),
        ((1, 5, 6, 64), 16, 3, 1, (1, 2)),  # a tile of 30 sums, whole rows of the image
        ((1, 9, 10, 64), 16, 3, 1, (1, 2)),
    ],
)
def test_defaults_of_convolutions(
    processor: str,
    image: tuple[int, int, int, int],
    outputs: int,
    taps: int,
    stride: int,
    constants: tuple[int, ...],
) -> None:
    function = convolution(
        image,
        outputs,
        padding=((taps // 2, taps // 2),) * 2,
        kernel=(taps, taps),
        strides=(stride, stride),
        constants=constants,
    )
    check_defaults(function, Target(f"llvm {processor} -num-cores=2"))


def check_defaults(function: Function, target: Target) -> None:
    space = config_space(Workload.from_function(function), target)
    for sketch in space.sketches:
        assert space.valid(space.encode(sketch.default)[None])[0], sketch.default


@pytest.mark.parametrize(
    ("processor", "cores", "shape", "copied"),
    [
        ("znver3", 2, (512, 512, 512), "whole"),  # by blocks of rows that would each copy a panel
        ("znver4", 2, (512, 768, 512), "whole"),
        ("znver3", 1, (300, 500, 700), "whole"),
        ("znver3", 1, (2048, 128, 128), "whole"),  # rows that meet in few sets
        ("znver4", 1, (2048, 128, 128), "nothing"),
        ("znver3", 2, (2048, 128, 128), "nothing"),
        ("znver3", 1, (128, 128, 128), "panel"),  # one block of rows
    ],
)
def test_what_is_copied_of_a_variable_matrix(
    processor: str, cores: int, shape: tuple[int, int, int], copied: str
) -> None:
    rows, depth, columns = shape
    operands = ((rows, depth), "float32"), ((depth, columns), "float32")
    workload = Workload.from_function(function_of("matmul", *operands))
    space = config_space(workload, Target(f"llvm -mcpu={processor} -num-cores={cores}"))
    direct = next(s for s in space.sketches if s.sketch == "contraction")
    assert ("nothing", "panel", "whole")[int(direct.default["pack_rhs"])] == copied


@pytest.mark.parametrize(("processor", "order"), [("emeraldrapids", "mn"), ("znver5", "nm")])
@pytest.mark.parametrize(("depth", "columns"), [(256, 1024), (1024, 256)])
def test_cores_of_a_mesh_share_weights_rather_than_images(
    processor: str, order: str, depth: int, columns: int
) -> None:
    """Each has half of the rows: 0.94 × the time inside a ResNet-50."""
    image = (1, 14, 14, depth)
    function = convolution(image, columns, padding=((0, 0),) * 2, kernel=(1, 1), constants=(1, 2))
    workload = Workload.from_function(function)
    space = config_space(workload, Target(f"llvm -mcpu={processor} -num-cores=2"), True)
    direct = next(s for s in space.sketches if s.sketch == "contraction").default
    assert direct["order"] == order
    if order == "mn":
        assert int(direct["mb"]) * int(direct["rw"]) == 14 * 14 // 2


def test_blocks_of_a_strided_layer_are_of_what_the_second_cache_holds() -> None:
    """Pixels of 1 KB that lie 2 KB apart meet in half of its sets: blocks of 196 pixels instead of
    784 take 0.96 × the time (Zen 5)."""
    function = convolution(
        (1, 56, 56, 256), 512, padding=((0, 0),) * 2, kernel=(1, 1), strides=(2, 2),
        constants=(1, 2),
    )  # fmt: skip
    target = Target("llvm -mcpu=znver5 -num-cores=1")
    space = config_space(Workload.from_function(function), target)
    direct = next(s for s in space.sketches if s.sketch == "contraction").default
    assert int(direct["mb"]) * int(direct["rh"]) * 28 * 2048 <= target.l2_bytes // 2


@pytest.mark.parametrize(("processor", "hints", "terms"), [("znver3", 0, 4), ("znver4", 32, 2)])
def test_hints_within_a_deep_panel(processor: str, hints: int, terms: int) -> None:
    """Tiles of 16 registers take 0.93 × the time without these, with more terms unrolled."""
    image = (1, 7, 7, 2048)
    function = convolution(image, 512, padding=((0, 0),) * 2, kernel=(1, 1), constants=(1, 2))
    space = config_space(
        Workload.from_function(function), Target(f"llvm -mcpu={processor} -num-cores=2")
    )
    direct = next(s for s in space.sketches if s.sketch == "contraction")
    assert (direct.default["prefetch"], direct.default["ku"]) == (hints, terms)


@pytest.mark.parametrize(("processor", "cores", "rows", "columns", "hints"), [
    ("znver5", 1, 1, 1000, 128), ("znver5", 1, 4, 768, 32), ("znver5", 2, 4, 1000, 32),
    ("znver5", 1, 1, 64, 0), ("znver5", 1, 1, 3072, 0), ("znver4", 1, 1, 1000, 0),
    ("znver5", 2, 1, 1000, 0), ("znver5", 8, 4, 1000, 0),  # each core's share in its caches
])  # fmt: skip
def test_few_rows_ask_ahead_for_weights_from_beyond_the_second_cache(
    processor: str, cores: int, rows: int, columns: int, hints: int
) -> None:
    """A row by 2048 × 1000 weights takes 69 µs with hints and 69 to 82 without (Zen 5)."""
    left = Var("x", TensorType((rows, 2048), "float32"))
    weights = Var("w", TensorType((2048, columns), "float32"))
    function = Function(
        (left, weights), call("matmul", left, weights), {"primitive": True, "constants": (1,)}
    )
    target = Target(f"llvm -mcpu={processor} -num-cores={cores}")
    default = contraction.space(function, target).default
    assert default["prefetch"] == hints
    if hints:
        assert int(default["ku"]) <= 2  # many hints at once hold up the loads
    memory = config_space(Workload.from_function(function), target, from_memory=True)
    assert memory.sketch("contraction").default["prefetch"] == (hints if rows > 2 else 0)


@pytest.mark.parametrize(("size", "taps", "terms"), [(14, 3, 1), (28, 3, 2), (14, 1, 2)])
def test_a_tile_of_whole_rows_takes_a_term_at_a_time(size: int, taps: int, terms: int) -> None:
    """With two terms and an epilogue LLVM spills its 28 sums: 14² × 256 takes 1.5 × the time."""
    function = convolution(
        (1, size, size, 256), 256, padding=((taps // 2,) * 2,) * 2, kernel=(taps, taps),
        constants=(1, 2),
    )  # fmt: skip
    target = Target("llvm -mcpu=znver5 -num-cores=1")
    direct = config_space(Workload.from_function(function), target).sketch("contraction").default
    assert int(direct["rw"]) * int(direct["rh"]) * int(direct["nv"]) == 28
    assert direct["ku"] == terms


@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_long_product_of_variable_rows(batch: tuple[int, ...]) -> None:
    """A panel of the right operand, transposed, exceeds what a block may copy."""
    shapes = ((*batch, 5, 20_000), "float32"), ((*batch, 19, 20_000), "float32")
    workload = Workload.from_function(function_of("matmul", *shapes, transpose_b=True))
    target = Target.host(2)
    arrays = draw(workload.function, np.random.default_rng(0))
    verify(workload.function, target, config_space(workload, target).default, arrays)
