"""Products of warpgroups: in lock step, on the emulator and by ``ptxas``."""

from __future__ import annotations

import re

import numpy as np
import pytest
from emulation import run_program
from gpu_harness import HOPPER, check, emitted, function_of, inputs_of, lowered, needs_ptxas
from tunefarm.compiler.accuracy import error_bounds
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.gpu.ptxas import assemble
from tunefarm.compiler.ir import Function
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import Config, config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

from tests.compiler.mismatch import mismatch

OTHER = Target("cuda -arch=sm_100a")
HALF, BRAIN = "float16", "bfloat16"
IN_STEPS = {
    "columns side by side": function_of("matmul", ((20, 72), HALF), ((72, 65), HALF)),
    "terms side by side": function_of(
        lambda a, b, c: call("relu", call("add", call("matmul", a, b, transpose_b=True), c)),
        ((17, 96), BRAIN), ((64, 96), BRAIN), ((64,), BRAIN),
    ),
}  # fmt: skip
LARGE = {
    "columns side by side": function_of("matmul", ((2048, 1024), HALF), ((1024, 4096), HALF)),
    "terms side by side": function_of(
        "matmul", ((2048, 1024), BRAIN), ((4096, 1024), BRAIN), transpose_b=True
    ),
}


def test_a_product_agrees() -> None:
    agrees(function_of("matmul", ((9, 24), HALF), ((24, 64), HALF)), stages=2, wide=1)


@pytest.mark.soak
@pytest.mark.parametrize("name", IN_STEPS)
def test_a_product_in_steps_agrees(name: str) -> None:
    for stages in (2, 3):
        agrees(IN_STEPS[name], stages, wide=int(name.startswith("terms")))
        print(f"a product of warpgroups, {name}, agrees in {stages} stages")


def agrees(function: Function, stages: int, wide: int) -> None:
    workload = Workload.from_function(function)
    space = config_space(workload, HOPPER)
    config = {"sketch": "gpu_wgmma", "groups": 1, "columns": 64, "stages": stages}
    config |= {"overlap": int(stages > 2), "wide": wide, "swizzle": 128}
    config |= {"split": 1, "joined": 0}
    assert "gpu_wgmma" in [s.sketch for s in space.sketches]
    assert space.valid(space.encode(config)[None])[0]
    check(workload, config, target=HOPPER)


def test_tiles_of_which_threads_hold_too_much_are_not_joined() -> None:
    few = function_of("matmul", ((512, 4096), HALF), ((4096, 1024), HALF))
    space = config_space(Workload.from_function(few), HOPPER)
    config = {**space.sketch("gpu_wgmma").default, "groups": 3, "swizzle": 64, "stages": 3}
    config |= {"split": 2, "joined": 1}
    for columns, holds in ((192, True), (256, False)):
        row = space.encode({**config, "columns": columns})
        assert space.valid(row[None])[0] == holds


@pytest.mark.parametrize(
    ("extents", "knobs"),
    [
        ((100, 264, 200), {"groups": 2, "columns": 128, "stages": 4, "overlap": 1, "wide": 1}),
        ((65, 257, 330), {"groups": 1, "columns": 256, "stages": 3, "overlap": 1}),
        ((150, 67, 64), {"groups": 1, "columns": 64, "stages": 2, "swizzle": 64}),
        ((70, 130, 75), {"groups": 1, "columns": 128, "stages": 3, "swizzle": 32}),
        ((70, 130, 136), {"groups": 1, "columns": 96, "stages": 3, "overlap": 1, "wide": 1}),
        ((200, 200, 72), {"groups": 3, "columns": 192, "stages": 2}),
        ((70, 67, 200), {"groups": 1, "columns": 64, "stages": 2, "split": 2}),
        ((65, 97, 330), {"groups": 1, "columns": 96, "stages": 3, "overlap": 1, "split": 3}),
        (
            (65, 97, 330),
            {"groups": 1, "columns": 128, "stages": 3, "overlap": 1, "split": 4, "joined": 1},
        ),
    ],
)
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("turned", [False, True])
def test_its_ptx_agrees(
    extents: tuple[int, int, int], knobs: Config, dtype: str, turned: bool
) -> None:
    m, n, k = extents
    shapes = ((m, k), dtype), ((n, k) if turned else (k, n), dtype)
    workload = Workload.from_function(function_of("matmul", *shapes, transpose_b=turned))
    arrays = inputs_of(workload)
    program = lowered(workload, {"sketch": "gpu_wgmma", **knobs}, HOPPER)
    (got,), (want,) = (
        run_program(program, arrays, HOPPER), evaluate(workload.function, arrays)
    )  # fmt: skip
    assert not mismatch([got.reshape(want.shape)], [want], error_bounds(workload.function, arrays))


@needs_ptxas
@pytest.mark.parametrize("columns", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("name", LARGE)
def test_instructions_are_not_serialised(name: str, columns: int) -> None:
    workload = Workload.from_function(LARGE[name])
    overlap = int(columns != 128)
    knobs = {"groups": 2, "columns": columns, "stages": 4, "overlap": overlap, "wide": 1}
    config = {"sketch": "gpu_wgmma", **knobs}
    code, ptx = emitted(lowered(workload, config, HOPPER), HOPPER)
    made = assemble(ptx, "sm_90a")
    assert not made.warnings  # "Potential Performance Loss: wgmma.mma_async … serialized"
    assert all(usage.spilled_bytes == 0 for usage in made.kernels.values())
    assert "align 1024" in code.text
    assert code.launches[0].block == (32, 4, 2)
    kind, turned = ("f16", 1) if name.startswith("columns") else ("bf16", 0)
    start = rf"wgmma\.mma_async\.sync\.aligned\.m64n{columns}k16\.f32\.{kind}\.{kind} "
    products = re.findall(rf"{start}{{[^}}]*}}, %\w+, %\w+, p, 1, 1, 0, {turned};", ptx)
    assert len(products) == 4
    assert ptx.count("wgmma.fence.sync.aligned") == 1
    assert re.findall(r"wgmma.wait_group\S* (\d)", ptx) == (["1", "0"] if overlap else ["0"])
    assert re.search(r"fence\.proxy\.async\.shared::cta;\s*(//.*\s*)*bar\.sync", ptx)
    assert "st.shared" not in ptx
    assert set(re.findall(r"st\.global\S*", ptx)) == {"st.global.v4.b32"}


def test_only_targets_that_have_them_take_them() -> None:
    workload = Workload.from_function(LARGE["columns side by side"])
    assert config_space(workload, HOPPER).default["sketch"] == "gpu_tma"
    names = [s.sketch for s in config_space(workload, OTHER).sketches]
    assert names == ["gpu_mma", "gpu_simt"]
    program = lowered(workload, {"sketch": "gpu_wgmma", "groups": 1, "columns": 64, "stages": 2})
    with pytest.raises(ScheduleError, match=r"needs -arch=sm_90a, not cuda"):
        emitted(program, OTHER)
    single = Workload.from_function(
        function_of("matmul", ((64, 64), "float32"), ((64, 64), "float32"))
    )
    with pytest.raises(ScheduleError, match="no product that warpgroups compute"):
        lowered(single, {"sketch": "gpu_wgmma", "groups": 1, "columns": 64, "stages": 2})


KNOBS = {"groups": 2, "columns": 256, "stages": 6, "swizzle": 128}


def test_only_what_fits_is_tried() -> None:
    space = config_space(Workload.from_function(LARGE["terms side by side"]), HOPPER)
    k = {n: np.array([v]) for n, v in {**KNOBS, "overlap": 1, "split": 1, "joined": 0}.items()}
    constraints = space.sketch("gpu_wgmma").constraints
    held = {c.name: bool(c.holds(k)[0]) for c in constraints}
    assert held.pop("shared memory") is False
    assert held == dict.fromkeys(["registers", "overlap", "parts", "joined", "grid"], True)
    (parts,) = (c for c in constraints if c.name == "parts")
    assert not parts.holds({**k, "split": np.array([2])})[0]  # tiles enough
