"""Products of warpgroups that round float32 to TF32: on the emulator and by ``ptxas``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from emulation import run_program
from gpu_harness import check, emitted, function_of, inputs_of, lowered, needs_ptxas
from numpy.typing import NDArray
from tunefarm.compiler.accuracy import error_bounds
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.gpu.emulator import KernelFault
from tunefarm.compiler.gpu.ptxas import assemble
from tunefarm.compiler.ir import Function
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import Config, config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

from tests.compiler.mismatch import mismatch

ROUNDING = Target("cuda -arch=sm_90a -precision=tf32")
FEW = Target("cuda -arch=sm_90a -num-cores=3 -precision=tf32")
F32 = "float32"
CONV: dict[str, Any] = {
    "strides": (1, 1), "padding": ((1, 1), (1, 1)), "dilations": (1, 1), "groups": 1,
    "data_layout": "NSC", "kernel_layout": "SIO", "pad_value": 0, "out_dtype": "",
}  # fmt: skip


def matmul(m: int, n: int, k: int, turned: bool = False) -> Function:
    shapes = ((m, k), F32), ((n, k) if turned else (k, n), F32)
    return function_of("matmul", *shapes, transpose_b=turned)


def wgmma(
    groups: int, columns: int, stages: int, overlap: int = 0, swizzle: int = 128, split: int = 1
) -> Config:
    knobs = {"groups": groups, "columns": columns, "stages": stages}
    knobs |= {"overlap": overlap, "wide": 0, "swizzle": swizzle, "split": split}
    knobs |= {"joined": 0}
    return {"sketch": "gpu_wgmma", **knobs}


def tma(groups: int, columns: int, stages: int, producer: int = 1, **more: int) -> Config:
    knobs = {"producer": producer, "cluster": 1, "resident": 0, "swath": 0, "store_boxes": 0}
    return {**wgmma(groups, columns, stages), **knobs, **more, "sketch": "gpu_tma"}


def rounded(arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Numbers of float32 that TF32 has, too."""
    return [(a.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for a in arrays]


def agrees(function: Function, config: Config, target: Target = ROUNDING) -> None:
    """The PTX, run by the emulator, agrees with NumPy on numbers that need no rounding."""
    workload = Workload.from_function(function)
    space = config_space(workload, target)
    assert config["sketch"] in [s.sketch for s in space.sketches]
    assert space.valid(space.encode(config)[None])[0]
    arrays = rounded(inputs_of(workload))
    (got,) = run_program(lowered(workload, config, target), arrays, target)
    (want,) = evaluate(function, arrays)
    assert not mismatch([got.reshape(want.shape)], [want], error_bounds(function, arrays))


def test_a_product_agrees_in_lock_step() -> None:
    config = wgmma(1, 64, 2)
    check(Workload.from_function(matmul(9, 64, 24)), config, target=ROUNDING)


CASES = {
    "two groups of columns": (matmul(100, 264, 200), wgmma(2, 128, 4, 1)),
    "odd columns, 256 rows": (matmul(265, 67, 101), wgmma(1, 256, 3, 1)),
    "rows of 64 bytes": (matmul(70, 67, 90), wgmma(2, 64, 3, 1, swizzle=64)),
    "rows of 32 bytes": (matmul(70, 130, 75), wgmma(1, 64, 3, 1, swizzle=32)),
    "no overlap": (matmul(70, 130, 75), wgmma(1, 128, 2)),
    "one step": (matmul(70, 130, 25), wgmma(1, 64, 2)),
    "terms side by side": (matmul(133, 100, 75, True), wgmma(2, 64, 3, 1)),
    "terms side by side, rows of 64 bytes": (
        matmul(70, 132, 76, True), {**wgmma(1, 128, 3, swizzle=64), "wide": 1}
    ),
    "a batch, an epilogue": (
        function_of(
            lambda a, b, c: call("relu", call("add", call("matmul", a, b), c)),
            ((2, 40, 72), F32), ((2, 72, 80), F32), ((80,), F32),
        ),
        wgmma(1, 64, 3, 1),
    ),
    "a convolution": (
        function_of(
            lambda x, w: call("conv", x, w, **CONV), ((1, 7, 9, 12), F32), ((3, 3, 12, 72), F32)
        ),
        wgmma(1, 64, 3, 1),
    ),
    "boxes": (matmul(100, 264, 200), tma(2, 128, 4, overlap=1)),
    "two blocks share terms out": (matmul(70, 67, 200), wgmma(1, 64, 3, 1, split=2)),
    "boxes, three blocks share terms out, of 96 rows": (
        matmul(130, 72, 328), {**tma(1, 96, 3, overlap=1), "split": 3}
    ),
    "boxes, rows of 64 bytes": (matmul(70, 72, 328), tma(1, 64, 3, swizzle=64)),
    "boxes, rows of 32 bytes": (matmul(70, 72, 120), tma(2, 64, 4, overlap=1, swizzle=32)),
    "boxes, its threads fill": (matmul(70, 72, 640), tma(2, 64, 3, 0, overlap=1)),
    "boxes, two blocks share out B": (
        matmul(200, 136, 328), tma(1, 64, 3, cluster=2, overlap=1)
    ),
    "boxes, terms side by side": (
        matmul(70, 136, 136, True), tma(1, 64, 3, overlap=1, wide=1, store_boxes=1)
    ),
    "boxes, a batch, an epilogue": (
        function_of(
            lambda a, b, c: call("relu", call("add", call("matmul", a, b), c)),
            ((2, 40, 72), F32), ((2, 72, 80), F32), ((80,), F32),
        ),
        tma(1, 64, 3, overlap=1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_its_ptx_agrees(name: str) -> None:
    agrees(*CASES[name])


@pytest.mark.parametrize("overlap", [0, 1])
def test_blocks_go_from_tile_to_tile(overlap: int) -> None:
    agrees(matmul(140, 328, 136), tma(1, 64, 3, overlap=overlap, resident=1, swath=4), FEW)


def test_operands_are_cut() -> None:
    """What float32 has beyond ten bits makes no difference."""
    workload = Workload.from_function(matmul(20, 64, 40))
    given = rounded(inputs_of(workload))
    more = [(a.view(np.uint32) | np.uint32(0x1FFF)).view(np.float32) for a in given]
    for config in (wgmma(1, 64, 2), wgmma(1, 64, 3, 1)):
        program = lowered(workload, config, ROUNDING)
        cut, whole = (run_program(program, arrays, ROUNDING)[0] for arrays in (more, given))
        assert (cut == whole).all()


def test_a_stage_is_free_when_all_threads_of_a_warp_have_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without their barrier another could still load what a box overwrites."""
    workload = Workload.from_function(matmul(20, 64, 200))
    program = lowered(workload, tma(1, 64, 2), ROUNDING)
    arrays = inputs_of(workload)
    _, ptx = emitted(program, ROUNDING)
    assert ptx.count("bar.warp.sync -1;") == 1
    without = (emitted(program, ROUNDING)[0], ptx.replace("bar.warp.sync -1;", ""))
    monkeypatch.setattr("emulation.emitted", lambda *given: without)
    with pytest.raises(KernelFault, match="that thread number 1 of its block read"):
        run_program(program, arrays, ROUNDING)


@needs_ptxas
@pytest.mark.parametrize("columns", [64, 128, 256])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("boxes", [False, True])
def test_instructions_are_not_serialised(columns: int, turned: bool, boxes: bool) -> None:
    workload = Workload.from_function(matmul(2048, 4096, 1024, turned))
    overlap = int(columns != 128)
    config = wgmma(2, columns, 4, overlap)
    if boxes:
        config = tma(2, columns, 4, overlap=overlap, resident=1, swath=8)
    _, ptx = emitted(lowered(workload, config, ROUNDING), ROUNDING)
    made = assemble(ptx, "sm_90a")
    assert not made.warnings
    assert all(usage.spilled_bytes == 0 for usage in made.kernels.values())
    left = r"%\w+" if turned else r"{%\w+,%\w+,%\w+,%\w+}"
    shape = rf"m64n{columns}k8\.f32\.tf32\.tf32"
    start = rf"wgmma\.mma_async\.sync\.aligned\.{shape} {{[^}}]*}}"
    assert len(re.findall(rf"{start}, {left}, %\w+, p, 1, 1;", ptx)) == 4
    waits = ["3", "3", "3", "3", "0"] if not turned else ["1", "0"]
    assert re.findall(r"wgmma.wait_group\S* (\d)", ptx) == (waits if overlap else ["0"])
    assert len(re.findall(r"ld\.shared\.v2", ptx)) == (0 if turned else 8)
    assert "st.shared" not in ptx


def test_float32_keeps_its_precision_where_that_is_asked_for() -> None:
    workload = Workload.from_function(matmul(2048, 4096, 1024))
    assert config_space(workload, ROUNDING).default["sketch"] == "gpu_tma"
    precise = Target("cuda -arch=sm_90a")
    assert [s.sketch for s in config_space(workload, precise).sketches] == ["gpu_simt"]
    for config in (wgmma(1, 64, 2), tma(1, 64, 2)):
        with pytest.raises(ScheduleError, match="no product that warpgroups compute"):
            lowered(workload, config, precise)


def test_transposed_results_go_out_from_registers() -> None:
    workload = Workload.from_function(matmul(2048, 4096, 1024))
    space = config_space(workload, ROUNDING)
    choices = {k.name: k.choices for k in space.sketch("gpu_tma").knobs}
    assert (choices["wide"], choices["store_boxes"]) == ((0,), (0,))
    with pytest.raises(ScheduleError, match="boxes are stored by blocks"):
        lowered(workload, tma(1, 64, 2, store_boxes=1), ROUNDING)
