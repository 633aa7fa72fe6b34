"""The PTX of a config of each sketch, as ``golden/`` has it: ``pytest --update-golden`` writes it.

What a kernel takes, its loops, and what it does to memory and between threads, in order; not its
arithmetic, whose registers and order are LLVM's. The assembler takes the whole text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import groupby

import pytest
from gpu_harness import F32, HOPPER, emitted, function_of, lowered
from tunefarm.compiler.gpu.ptxas import assemble, find_ptxas
from tunefarm.compiler.ir import Function
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import Config
from tunefarm.compiler.space.registry import SKETCHES
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

HALF = "float16"
CONV = {
    "strides": (1, 1), "padding": ((1, 1), (1, 1)), "dilations": (1, 1), "groups": 1,
    "data_layout": "NSC", "kernel_layout": "SIO", "pad_value": 0, "out_dtype": "",
}  # fmt: skip
Case = tuple[Function, Config, Target]
CASES: dict[str, Case] = {
    "simt": (
        function_of("matmul", ((64, 64), F32), ((64, 64), F32)),
        {"sketch": "gpu_simt", "ty": 8, "tx": 16, "vm": 1, "m4": 4, "vn": 1, "n4": 4, "bk": 8,
         "stages": 2, "by_column": 1},
        HOPPER,
    ),
    "mma": (
        function_of("matmul", ((64, 256), HALF), ((256, 64), HALF)),
        {"sketch": "gpu_mma", "wm": 2, "wn": 2, "mi": 1, "ni": 4, "bk": 64, "wide": 1, "stages": 3,
         "swath": 0, "split": 1},
        Target("cuda -arch=sm_80"),
    ),
    "mma_convolution": (
        function_of(
            lambda x, w: call("relu", call("conv", x, w, **CONV)),
            ((1, 8, 8, 32), HALF), ((3, 3, 32, 64), HALF),
        ),
        {"sketch": "gpu_mma", "wm": 2, "wn": 4, "mi": 1, "ni": 1, "bk": 64, "wide": 0, "stages": 3,
         "swath": 0, "split": 1},
        HOPPER,
    ),
    "wgmma": (
        function_of("matmul", ((128, 256), HALF), ((256, 128), HALF)),
        {"sketch": "gpu_wgmma", "groups": 1, "columns": 64, "stages": 4, "overlap": 1,
         "swizzle": 128, "wide": 1, "split": 1, "joined": 0},
        HOPPER,
    ),
    "tma_tf32": (
        function_of("matmul", ((512, 512), F32), ((512, 512), F32)),
        {"sketch": "gpu_tma", "groups": 2, "columns": 64, "stages": 4, "producer": 1, "overlap": 1,
         "swizzle": 128, "cluster": 1, "resident": 0, "swath": 0, "wide": 0, "store_boxes": 0,
         "split": 1, "joined": 0},
        Target("cuda -arch=sm_90a -precision=tf32"),
    ),
    "tma": (
        function_of("matmul", ((512, 512), HALF), ((512, 512), HALF)),
        {"sketch": "gpu_tma", "groups": 1, "columns": 64, "stages": 4, "producer": 1, "overlap": 1,
         "swizzle": 128, "cluster": 2, "resident": 0, "swath": 0, "wide": 0, "store_boxes": 1,
         "split": 1, "joined": 0},
        HOPPER,
    ),
    "attention": (
        function_of(
            lambda q, k, v: call(
                "matmul", call("softmax", call("matmul", q, k, transpose_b=True), axis=-1), v
            ),
            ((2, 64, 32), HALF), ((2, 128, 32), HALF), ((2, 128, 32), HALF),
        ),
        {"sketch": "gpu_attention", "split": 4, "warps": 4, "mi": 1, "keys": 32, "stages": 2,
         "skip": 0},
        HOPPER,
    ),
    "rows": (
        function_of("softmax", ((64, 1000), HALF), axis=-1),
        {"sketch": "gpu_rows", "vec": 8, "team": 64, "rows": 4, "kept": 1},
        HOPPER,
    ),
    "long_rows": (
        function_of("softmax", ((2, 131072), F32), axis=-1),
        {"sketch": "gpu_long_rows", "split": 64, "vec": 4, "threads": 256, "cluster": 0, "kept": 0},
        HOPPER,
    ),
    "split": (
        function_of("sum", ((1000, 96), F32), axes=(0,), keepdims=False),
        {"sketch": "gpu_split", "split": 32, "vec": 2, "threads": 64},
        HOPPER,
    ),
    "transpose": (
        function_of("transpose", ((3, 64, 64), HALF), axes=(0, 2, 1)),
        {"sketch": "gpu_transpose", "tile": 64, "vec": 2, "threads": 256},
        HOPPER,
    ),
    "elements": (
        function_of(
            lambda a, b: call("relu", call("add", a, b)), ((64, 64), HALF), ((64,), HALF)
        ),
        {"sketch": "gpu_elements", "vec": 8, "threads": 256, "each": 1, "taps": 0},
        HOPPER,
    ),
    "depthwise": (
        function_of(
            lambda x, w: call("conv", x, w, **{**CONV, "groups": 32}),
            ((1, 8, 8, 32), F32), ((3, 3, 1, 32), F32),
        ),
        {"sketch": "gpu_elements", "vec": 4, "threads": 256, "each": 1, "taps": 0},
        HOPPER,
    ),
}  # fmt: skip
SHOWN = ("ld.", "st.", "cp.", "ldmatrix", "mma.", "wgmma", "mbarrier", "fence", "bar", "shfl",
         "setmaxnreg", "mapa", "ex2", "cvta.param", "ret")  # fmt: skip
HEAD = (".version", ".target", ".extern", ".visible", ".param", ".maxn", ".minn", ".reqn",
        ".explicit", ".shared", "$L")  # fmt: skip


def skeleton(ptx: str) -> str:
    """A line for each instruction that is shown, several alike as one with their number."""
    found: list[str] = []
    for line in (raw.strip() for raw in ptx.splitlines()):
        word = re.sub(r"^@!?%?\w+\s+", "", line).partition(" ")[0].partition("\t")[0].rstrip(";")
        if line.startswith(HEAD):
            shown = re.sub(r"tunefarm_[0-9a-f]{16}", "kernel", line).partition("//")[0]
            found.append(" ".join(shown.split()))
        elif word.startswith("bra") and "$L" in line:
            found.append(f"  bra {line.split()[-1].rstrip(';')}")
        elif word.startswith(SHOWN):
            found.append(f"  {word}")
    runs = ((line, len(list(same))) for line, same in groupby(found))
    return "\n".join(f"{line} × {count}" if count > 1 else line for line, count in runs) + "\n"


@pytest.mark.parametrize("name", CASES)
def test_the_code_of_a_sketch_is_what_it_was(name: str, golden: Callable[[str, str], None]) -> None:
    function, config, target = CASES[name]
    _, ptx = emitted(lowered(Workload.from_function(function), config, target), target)
    golden(name, skeleton(ptx))
    if find_ptxas() is not None:
        made = assemble(ptx, target.gpu.name)
        assert made.warnings == ()
        assert [usage.spilled_bytes for usage in made.kernels.values()] == [0] * len(made.kernels)


def test_every_sketch_has_its_code_there() -> None:
    there = {sketch.name for sketch in SKETCHES if sketch.name.startswith("gpu_")}
    assert {config["sketch"] for _, config, _ in CASES.values()} == there
