"""Strassen's method: an exact identity, and kernels within their stated error of the product."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sketch_harness import draw, verify
from tunefarm.compiler.build import build_kernel
from tunefarm.compiler.codegen.llvm import emit_llvm
from tunefarm.compiler.codegen.llvm_compile import assembly
from tunefarm.compiler.ir import Expr, Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.packing import pack
from tunefarm.compiler.runtime.kernel import load_kernel
from tunefarm.compiler.space import ConfigSpace, config_space, schedule_workload, strassen
from tunefarm.compiler.space.strassen.default import direct_cycles
from tunefarm.compiler.space.strassen.forms import (
    LEFT,
    LEVELS,
    RESULT,
    RIGHT,
    transform_weights,
)
from tunefarm.compiler.space.strassen.program import product_of
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.ir import Allocate
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.tir.visit import walk_stmt
from tunefarm.compiler.workload import Workload

F32 = "float32"
HOST = Target.host(2)
LANES = HOST.lanes(F32)


def product(
    rows: int,
    depth: int,
    columns: int,
    bias: bool = True,
    residual: bool = False,
    relu: bool = True,
    constants: tuple[int, ...] = (1,),
    dtype: str = F32,
    **attrs: Any,
) -> Function:
    x = Var("x", TensorType((rows, depth), dtype))
    shape = (columns, depth) if attrs.get("transpose_b") else (depth, columns)
    w = Var("w", TensorType(shape, dtype))
    return epilogue([x, w], call("matmul", x, w, **attrs), bias, residual, relu, constants)


def pointwise(stride: int = 1) -> Function:
    x, w = Var("x", TensorType((2, 9, 7, 64), F32)), Var("w", TensorType((1, 1, 64, 96), F32))
    body = call("conv", x, w, strides=(stride,) * 2, data_layout="NSC", kernel_layout="SIO")
    return epilogue([x, w], body, bias=True, residual=True, relu=True, constants=(1,))


def epilogue(
    params: list[Var], body: Expr, bias: bool, residual: bool, relu: bool,
    constants: tuple[int, ...],
) -> Function:  # fmt: skip
    kind = body.type
    assert isinstance(kind, TensorType)
    for wanted, shape in ((bias, kind.shape[-1:]), (residual, kind.shape)):
        if wanted:
            params.append(Var(f"p{len(params)}", TensorType(shape, kind.dtype)))
            body = call("add", body, params[-1])
    body = call("relu", body) if relu else body
    return Function(tuple(params), body, {"primitive": True, "constants": constants})


def strassen_space(function: Function, levels: int = 1, target: Target = HOST) -> ConfigSpace:
    p = product_of(function, target.lanes(F32), levels)
    assert p is not None
    return ConfigSpace((strassen.space_of(p, target),))


def test_seven_products_make_the_four_blocks() -> None:
    left, right, result = (np.array(table) for table in (LEFT, RIGHT, RESULT))
    wanted = np.zeros((4, 4, 4), int)  # result, left, right
    for i in range(2):
        for j in range(2):
            for k in range(2):
                wanted[2 * i + j, 2 * i + k, 2 * k + j] = 1
    np.testing.assert_array_equal(np.einsum("rp,pa,pb->rab", result, left, right), wanted)


@pytest.mark.parametrize("levels", LEVELS.values())
@settings(max_examples=10, deadline=None, derandomize=True, database=None)
@given(
    st.integers(4, 60), st.integers(64, 140), st.integers(64, 200), st.booleans(), st.booleans(),
    st.booleans(), st.booleans(), st.integers(0, 9999),
)  # fmt: skip
def test_odd_shapes_under_random_configs(
    levels: int, rows: int, depth: int, columns: int, bias: bool, residual: bool, relu: bool,
    variable: bool, seed: int,
) -> None:  # fmt: skip
    constants = () if variable else (1,)
    function = product(rows, depth, columns, bias, residual, relu, constants)
    rng = np.random.default_rng(seed)
    arrays, space = draw(function, rng), strassen_space(function, levels)
    found = space.sample(rng, 200)
    configs = [space.decode(r) for r in found[space.valid(found)][:2]]
    for config in [space.default, *configs]:
        verify(function, HOST, config, arrays)


@pytest.mark.parametrize(("stride", "levels"), [(1, 1), (2, 1), (3, 1), (2, 2)])
def test_pointwise_convolutions_are_such_products(stride: int, levels: int) -> None:
    function = pointwise(stride)
    space = strassen_space(function, levels)
    config = {**space.default, "rw": 3, "nv": 1, "mb": 2}
    verify(function, HOST, config, draw(function, np.random.default_rng(1)))


@pytest.mark.parametrize(
    ("shape", "levels", "by_tile", "constants"),
    [
        ((5, 33, 37), 1, 0, (1,)),
        ((5, 33, 37), 1, 1, ()),
        ((9, 66, 70), 2, 1, (1,)),
        ((6, 65, 64), 2, 0, ()),
    ],
)
def test_the_interpreter_agrees(
    shape: tuple[int, int, int], levels: int, by_tile: int, constants: tuple[int, ...]
) -> None:
    function = product(*shape, residual=True, constants=constants)
    config = {**strassen_space(function, levels).default, "by_tile": by_tile, "mb": 2, "rw": 2}
    verify(function, HOST, config, draw(function, np.random.default_rng(3)), "interpret")


@pytest.mark.parametrize(("tile", "kept"), [(8, 17), (7, 14)])
def test_planes_of_left_operands_lie_apart(tile: int, kept: int) -> None:
    """Of 16 rows of 64 numbers they would begin in one set: 49 planes of 26 KB took 1.08 × the time
    of a product with weights in the caches (Zen 5)."""
    wide = Target("llvm -mcpu=znver5 -num-cores=1")
    function = product(32, 96, 64)
    config = {**strassen_space(function, target=wide).default, "mb": 2, "rw": tile, "by_tile": 0}
    workload = Workload.from_function(function)
    lowered = lower(schedule_workload(workload, wide, config))
    (lefts,) = (
        s.buffer
        for s in walk_stmt(lowered.body)
        if isinstance(s, Allocate) and s.buffer.name.startswith("lefts")
    )
    assert lefts.shape == (7, kept, 96 // 2 + 16)
    verify(function, wide, config, draw(function, np.random.default_rng(5)), "interpret")


@pytest.mark.parametrize(("levels", "limit"), [(1, 3e-6), (2, 4e-6)])
def test_the_error_is_as_stated(levels: int, limit: float) -> None:
    function = product(64, 1024, 128, bias=False, relu=False)
    config = strassen_space(function, levels).default
    assert verify(function, HOST, config, draw(function, np.random.default_rng(2))) < limit


UNFIT = {
    "one row": product(1, 64, 64),
    "few terms": product(8, LANES, 64),
    "few columns": product(8, 64, LANES),
    "transposed": product(8, 64, 64, transpose_b=True),
    "double": product(8, 64, 64, dtype="float64"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_other_products_have_no_such_sketch(name: str) -> None:
    assert strassen.space(UNFIT[name], HOST, 1) is None
    assert strassen.space(UNFIT[name], HOST, 2) is None


WITHOUT_TILES = "emeraldrapids -mattr=-amx-tile"
ONE_CORE = {1: ("strassen",), 2: ("contraction",)}


@pytest.mark.parametrize("cores", [1, 2])
def test_it_is_the_default_where_it_saves_enough(cores: int) -> None:
    for mcpu, shape, constants, *sketches in [
        # With weights from the caches, and from memory.
        ("znver5", (128, 768, 768), (1,), "strassen_2", "strassen"),  # 0.92 × the direct one's time
        ("znver5", (512, 512, 512), (1,), "strassen_2", ("strassen_2", "strassen")[cores - 1]),
        ("znver5", (512, 512, 512), (), "strassen", "strassen"),  # 0.96 ×
        ("znver5", (128, 128, 128), (), "contraction", "contraction"),
        ("znver5", (3136, 64, 256), (1,), "contraction", "contraction"),
        ("znver5", (3136, 256, 64), (1,), "contraction", "contraction"),
        ("znver5", (16, 64, 64), (1,), "contraction", "contraction"),
        # Seven vectors, and five: half of them fill four, or three; 1.12 × and 1.2 ×.
        ("znver5", (196, 448, 112), (1,), "contraction", "contraction"),
        ("znver5", (196, 1024, 80), (1,), "contraction", "contraction"),
        ("znver4", (1024, 1024, 1024), (1,), "strassen_2", "strassen_2"),  # 0.92 × one level
        ("znver4", (512, 512, 512), (1,), "strassen_2", "strassen_2"),  # 0.92 ×, from memory 0.95
        ("znver4", (128, 768, 768), (1,), "strassen_2", "strassen"),  # 0.91 ×, from memory 1.18
        ("znver4", (512, 512, 512), (), "strassen", "strassen"),  # two levels 1.02 × on two cores
        # Additions take the units of multiply-adds, and weights come slowly a second time.
        # Their cores exchange rows over a mesh: there the method is no default of several.
        (WITHOUT_TILES, (128, 768, 768), (1,), *2 * ONE_CORE[cores]),  # two levels 1.12 ×
        (WITHOUT_TILES, (128, 3072, 768), (1,), "contraction", "contraction"),  # one 1.33 ×
    ]:
        target = Target(f"llvm -mcpu={mcpu} -num-cores={cores}")
        workload = Workload.from_function(product(*shape, constants=constants))
        spaces = [config_space(workload, target, from_memory) for from_memory in (False, True)]
        assert [s.default["sketch"] for s in spaces] == sketches, (mcpu, shape)
        offered = {"strassen", "contraction"} | (
            {"strassen_2"} if shape[1] > 128 < shape[2] else set()
        )
        offered |= {"deep"} if constants and shape[1] >= 2048 else set()
        assert {s.sketch for s in spaces[0].sketches} == offered, shape


@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(512, 512, 512), (197, 384, 1536), (784, 512, 256)]
)
def test_blocks_are_small_where_the_second_level_is(rows: int, depth: int, columns: int) -> None:
    """With 512 KB at most six tiles of rows, which took 0.92 to 0.98 × the time of ten; sums of few
    registers are unrolled until a loop's own instructions count for little."""
    function = product(rows, depth, columns)
    small, large = (
        strassen_space(function, target=Target(f"llvm -mcpu={mcpu} -num-cores=1"))
        for mcpu in ("znver3", "znver4")
    )
    assert int(small.default["mb"]) * int(small.default["rw"]) <= 36
    assert int(large.default["mb"]) * int(large.default["rw"]) > 36
    assert (small.default["ku"], large.default["ku"]) == (4, 2)


def test_blocks_of_long_sums_exceed_the_second_level_where_the_third_is_near() -> None:
    """128×3072×768 by one block of rows takes 0.92 × the time of blocks that stay in the second
    cache, which read its weights again (Zen 5)."""
    target = Target("llvm -mcpu=znver5 -num-cores=1")
    default = strassen_space(product(128, 3072, 768), target=target).default
    assert int(default["mb"]) * int(default["rw"]) >= 128 // 2


def test_two_cores_of_small_caches_take_two_levels_where_these_gain_more() -> None:
    """512³ by two levels took 1.12 × the time of one on two cores of a Zen 3, 1024³ 0.98."""
    small, large = (Workload.from_function(product(n, n, n)) for n in (512, 1024))
    one, two = (Target(f"llvm -mcpu=znver3 -num-cores={cores}") for cores in (1, 2))
    assert config_space(small, one).default["sketch"] == "strassen_2"
    assert config_space(small, two).default["sketch"] == "strassen"
    assert config_space(large, two).default["sketch"] == "strassen_2"


def test_a_strict_target_has_no_such_sketch() -> None:
    strict = Target(f"{HOST} -precision=strict")
    workload = Workload.from_function(product(128, 768, 768))
    assert [s.sketch for s in config_space(workload, strict).sketches] == ["contraction"]


def test_blocks_of_columns_share_what_they_hold() -> None:
    """A block's left operands and one panel's products, whatever the number of columns."""
    target = Target("llvm -mcpu=znver5 -num-cores=1")
    workload = Workload.from_function(product(98, 256, 1024))
    config = {**strassen_space(workload.function, target=target).default, "mb": 4, "rw": 14}
    assert build_kernel(workload, target, config).workspace_bytes <= 4 * 7 * 56 * (128 + 16 + 32)


def test_weights_are_added_up_when_they_are_packed() -> None:
    function = product(8, 63, 70, bias=False)
    workload, config = Workload.from_function(function), strassen_space(function).default
    kernel = build_kernel(workload, HOST, config)
    weights = np.random.default_rng(0).standard_normal((63, 70)).astype(F32)
    parts = transform_weights(weights, HOST.lanes(F32), 1)
    half = parts.shape[2]
    assert parts.shape[:2] == (7, 32)
    np.testing.assert_array_equal(parts[4, :31, : 70 - half], weights[32:, half:])
    assert not parts[4, 31:].any()
    assert not parts[4, :, 70 - half :].any()
    twice = transform_weights(weights, 4, 2)
    assert twice.shape == (49, 16, 20)  # quarters of 63 terms, and of 70 columns by whole vectors
    np.testing.assert_array_equal(twice[7 * 4 + 4, :15, :10], weights[48:, 60:])
    function_ = load_kernel(
        [kernel.object], kernel.name, kernel.params, kernel.outputs, target=HOST,
        workspace_bytes=kernel.workspace_bytes,
    )  # fmt: skip
    rows = np.random.default_rng(1).standard_normal((8, 63)).astype(F32)
    packed = pack(weights, kernel.layouts[1], kernel.params[1].shape)
    (result,) = function_(rows, packed)
    np.testing.assert_allclose(result, np.maximum(rows @ weights, 0), atol=1e-4)


def test_what_it_saves_is_what_the_direct_product_takes_longer() -> None:
    """Of the levels the one that is the default counts; small products save nothing."""
    zen5 = Target("llvm -mcpu=znver5 -num-cores=1")
    saved = {}
    for rows, depth, columns in ((361, 728, 728), (196, 256, 1024), (49, 64, 32)):
        p = product_of(product(rows, depth, columns), zen5.lanes(F32), 1)
        assert p is not None
        saved[rows] = strassen.saved_cycles(p, zen5) / direct_cycles(p, zen5)
        sketch = config_space(Workload.from_function(p.function), zen5).default["sketch"]
        assert (saved[rows] > 0) == str(sketch).startswith("strassen")
        assert strassen.saved_cycles(p, Target(f"{zen5} -precision=strict")) == 0
    # Seven products of eight, once or twice, less what the additions take.
    assert 1 - (7 / 8) ** 2 > saved[361] > saved[49] == 0


def test_sums_stay_in_registers_whatever_follows() -> None:
    """LLVM kept the zero of the ReLU in a register instead, and loaded and stored all sums in every
    step of the products."""
    target = Target("llvm -mcpu=znver5 -num-cores=1")
    config = {"sketch": "strassen_2", "mb": 2, "nb": 6, "rw": 14, "nv": 2, "ku": 2, "by_tile": 0,
              "next_panel": 1}  # fmt: skip
    workload = Workload.from_function(product(1444, 256, 728, bias=False))
    program = lower(schedule_workload(workload, target, config))
    blocks = assembly(emit_llvm(program, target).text, target).split("\n.LBB")
    loop = max(blocks, key=lambda block: block.count("vfmadd"))
    assert loop.count("vfmadd") == 56
    assert sum("(%rsp)" in line for line in loop.splitlines() if "zmm" in line) <= 4


@pytest.mark.parametrize("target", [
    "llvm -mcpu=znver3 -num-cores=1",  # 12 sums, which LLVM keeps
    "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1 -num-cores=1",
])  # fmt: skip
def test_other_processors_have_no_code_for_that(target: str) -> None:
    workload = Workload.from_function(product(96, 64, 96))
    default = config_space(workload, Target(target)).default
    program = lower(schedule_workload(workload, Target(target), default))
    assert "asm" not in emit_llvm(program, Target(target)).text
