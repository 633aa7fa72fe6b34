"""Sectors and bank conflicts: the counts by hand, and the sketches held to them."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_harness import HOPPER, function_of
from tunefarm.compiler.build import build_kernel
from tunefarm.compiler.gpu.emulator import Access, DeviceMemory, Traffic, load_ptx
from tunefarm.compiler.gpu.traffic import accesses_of, chosen_blocks
from tunefarm.compiler.ir import Expr, Function
from tunefarm.compiler.kernel import Kernel
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import Config, config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

TF32 = Target("cuda -arch=sm_90a -precision=tf32")
HEAD = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p) {
.reg .b64 %rd<8>; .reg .b32 %r<8>; .reg .b16 %h<2>; .reg .pred %p<2>;
.shared .align 16 .b8 s[32768];
ld.param.u64 %rd1, [p];
mov.u32 %r1, %tid.x;
mov.u32 %r7, 0;
"""


def counted(body: str, threads: int = 32) -> dict[str, Access]:
    """The accesses of a kernel with this body, by the first word of their text and their memory."""
    traffic, memory = Traffic(), DeviceMemory()
    place = memory.allocate(1 << 16)
    memory.write(place, np.zeros(1 << 16, np.uint8))
    module = load_ptx(f"{HEAD}{body}\nret;\n}}\n")
    module.launch(memory, "k", (1, 1, 1), (threads, 1, 1), [place], traffic=traffic)
    return {f"{a.text.split('.')[0].split()[-1]} {a.space}": a for a in traffic.accesses()}


def at(scale: int) -> str:
    """The address of a thread's bytes, ``scale`` apart, in %rd3."""
    return f"mul.wide.u32 %rd2, %r1, {scale}; add.s64 %rd3, %rd1, %rd2;"


@pytest.mark.parametrize(
    ("scale", "load", "sectors", "least"),
    [
        (4, "ld.global.b32 %r2, [%rd3]", 4, 4),
        (0, "ld.global.b32 %r2, [%rd3]", 1, 1),
        (8, "ld.global.b32 %r2, [%rd3]", 8, 4),
        (128, "ld.global.b32 %r2, [%rd3]", 32, 4),
        (2, "ld.global.b16 %h1, [%rd3]", 2, 2),
        (16, "ld.global.v4.b32 {%r2, %r3, %r4, %r5}, [%rd3]", 16, 16),
        (32, "ld.global.v4.b32 {%r2, %r3, %r4, %r5}, [%rd3]", 32, 16),
    ],
)
def test_sectors_of_a_warp(scale: int, load: str, sectors: int, least: int) -> None:
    access = counted(f"{at(scale)} {load};")["ld global"]
    assert (access.requests, access.parts, access.least) == (1, sectors, least)
    two = counted(f"{at(scale)} {load};", threads=64)["ld global"]
    assert two.requests == 2
    assert two.excess == access.excess


@pytest.mark.parametrize(
    ("scale", "store", "passes", "least"),
    [
        (4, "st.shared.b32 [%r3], %r7", 1, 1),
        (8, "st.shared.b32 [%r3], %r7", 2, 1),
        (128, "st.shared.b32 [%r3], %r7", 32, 1),
        (132, "st.shared.b32 [%r3], %r7", 1, 1),
        (144, "st.shared.b32 [%r3], %r7", 4, 1),
        (8, "st.shared.v2.b32 [%r3], {%r7, %r7}", 2, 2),
        (16, "st.shared.v4.b32 [%r3], {%r7, %r7, %r7, %r7}", 4, 4),
        (32, "st.shared.v4.b32 [%r3], {%r7, %r7, %r7, %r7}", 8, 4),
    ],
)
def test_passes_over_the_banks(scale: int, store: str, passes: int, least: int) -> None:
    place = f"mov.u32 %r2, s; mad.lo.u32 %r3, %r1, {scale}, %r2;"
    access = counted(f"{place} {store};")["st shared"]
    assert (access.requests, access.parts, access.least) == (1, passes, least)


def test_a_word_that_many_want_is_read_once() -> None:
    access = counted(
        """
mov.u32 %r2, s;
setp.eq.u32 %p1, %r1, 0;
@%p1 st.shared.b32 [%r2], %r7;
bar.sync 0;
ld.shared.b32 %r3, [%r2];
"""
    )
    assert str(access["ld shared"]) == "1 requests, 1 passes each (1 needed)"
    assert access["st shared"].requests == 1


@pytest.mark.parametrize(("pitch", "passes"), [(128, 32), (144, 4), (16, 4)])
def test_rows_of_matrices(pitch: int, passes: int) -> None:
    body = f"""
mov.u32 %r2, s; mul.lo.u32 %r3, %r1, {pitch}; add.u32 %r4, %r2, %r3;
st.shared.v4.b32 [%r4], {{%r7, %r7, %r7, %r7}};
bar.sync 0;
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r3, %r5, %r6, %r7}}, [%r4];
"""
    access = counted(body)["ldmatrix shared"]
    assert (access.requests, access.parts, access.least) == (1, passes, 4)


def test_blocks_are_chosen_over_the_grid() -> None:
    assert chosen_blocks(1, 4) == [0]
    assert chosen_blocks(3, 4) == [0, 1, 2]
    assert chosen_blocks(100, 3) == [0, 50, 99]


# --- the sketches -------------------------------------------------------------------------------


def built(function: Function, target: Target = HOPPER, **knobs: int | str) -> Kernel:
    workload = Workload.from_function(function)
    space = config_space(workload, target)
    name = knobs.get("sketch")
    default = space.default if name is None else space.sketch(str(name)).default
    config: Config = {**default, **knobs}
    return build_kernel(workload, target, config, cache=False)


def half(*shape: int) -> tuple[tuple[int, ...], str]:
    return shape, "float16"


def single(*shape: int) -> tuple[tuple[int, ...], str]:
    return shape, "float32"


def poor(kernel: Kernel, *words: str) -> list[str]:
    """The accesses that move more than their bytes need; those alone whose text has a word."""
    return [
        f"{access.text}: {access}"
        for access in accesses_of(kernel, 2)
        if access.excess > 1 and (not words or any(word in access.text for word in words))
    ]


@pytest.mark.parametrize("bk", [16, 32, 64])
def test_tiles_of_tensor_cores_are_filled_and_read_without_conflicts(bk: int) -> None:
    kernel = built(function_of("matmul", half(256, 256), half(256, 256)), sketch="gpu_mma", wm=2,
                   wn=2, mi=2, ni=4, bk=bk, stages=2)  # fmt: skip
    assert poor(kernel, "ldmatrix", "ld.global") == []
    assert_filled(kernel, most=1)


def assert_filled(kernel: Kernel, most: int) -> None:
    """Copies read whole sectors, and take at most so many times the passes that they need."""
    copies = [a for a in accesses_of(kernel, 2) if "cp.async" in a.text]
    assert copies
    assert max(a.excess for a in copies if a.space == "global") == 1
    assert max(a.excess for a in copies if a.space == "shared") <= most


@pytest.mark.parametrize(("bk", "ni"), [(8, 8), (16, 4), (32, 2)])
def test_tiles_of_tf32_are_filled_and_read_without_conflicts(bk: int, ni: int) -> None:
    kernel = built(function_of("matmul", single(256, 256), single(256, 256)), TF32,
                   sketch="gpu_mma", wm=2, wn=4, mi=2, ni=ni, bk=bk, stages=3)  # fmt: skip
    assert any("ld.shared" in a.text for a in accesses_of(kernel, 2))
    assert poor(kernel, "ldmatrix", "ld.global", "ld.shared") == []
    assert_filled(kernel, most=1)


def test_a_turned_tile_of_bytes_is_filled_by_whole_sectors_in_few_passes() -> None:
    shapes = ((256, 256), "int8"), ((256, 256), "int8")
    kernel = built(function_of("matmul", *shapes, out_dtype="int32"),
                   sketch="gpu_mma", wm=2, wn=4, mi=2, ni=4, bk=64, stages=3)  # fmt: skip
    assert poor(kernel, "ldmatrix", "ld.global") == []
    assert_filled(kernel, most=1)


def bias_and_residual(a: Expr, b: Expr, c: Expr, r: Expr) -> Expr:
    return call("add", call("relu", call("add", call("matmul", a, b), c)), r)


@pytest.mark.parametrize(
    ("sketch", "ni", "size"),
    [("gpu_mma", 8, 16), ("gpu_mma", 2, 8), ("gpu_wgmma", 0, 16), ("gpu_tma", 0, 16)],
)
def test_results_of_tensor_cores_go_out_by_whole_sectors(sketch: str, ni: int, size: int) -> None:
    function = function_of(bias_and_residual, half(128, 128), half(128, 256), half(256),
                           half(128, 256))  # fmt: skip
    knobs = {"groups": 1, "columns": 64, "stages": 3}
    if ni:
        knobs = {"wm": 2, "wn": 1, "mi": 1, "ni": ni, "bk": 32, "stages": 2}
    apart, wide = (
        accesses_of(built(function, HOPPER, sketch=sketch, **knobs, wide=wide), 2)
        for wide in (0, 1)
    )
    for accesses, excess, word in ((apart, 2, "b32"), (wide, 1, f"v{size // 4}.b32")):
        stores = [a for a in accesses if "st.global" in a.text]
        loads = [a for a in accesses if "ld.global" in a.text]
        assert {a.excess for a in stores} == {excess}
        assert max(a.excess for a in loads) <= excess
        assert {a.text.split()[0] for a in stores} == {f"st.global.{word}"}
        assert all(word in a.text for a in loads)


def test_threads_of_simt_products_share_no_bank() -> None:
    """Steps of 16 terms, the default, store A's columns in two passes, and are faster all the
    same."""
    function = function_of("matmul", single(256, 256), single(256, 256))
    assert poor(built(function, sketch="gpu_simt", bk=8)) == []
    assert {a.excess for a in accesses_of(built(function, sketch="gpu_simt"), 2)} == {1, 2}


@pytest.mark.parametrize("operator", ["softmax", "sum"])
def test_rows_are_read_and_written_whole(operator: str) -> None:
    attributes = {"axis": -1} if operator == "softmax" else {"axes": (1,), "keepdims": False}
    for dtype in ("float16", "float32"):
        for columns in (1024, 8192):
            function = function_of(operator, ((64, columns), dtype), **attributes)
            assert poor(built(function), "ld.global", "st.global.v", "shared") == []


def test_elements_and_transposes_move_whole_sectors() -> None:
    assert poor(built(function_of("relu", half(1 << 16)))) == []
    assert poor(built(function_of("transpose", single(256, 256), axes=(1, 0)))) == []
    turned = built(function_of("transpose", half(256, 256), axes=(1, 0)))
    assert poor(turned, "global") == []


def test_the_text_shows_what_accesses_cost() -> None:
    kernel = built(function_of("relu", single(4096)))
    shown = kernel.get_source("accesses").splitlines()
    (line,) = (line for line in shown if "ld.global" in line)
    assert line.endswith("// global: 32 requests, 16 sectors each (16 needed)"), line
    plain = kernel.get_source("ptx").splitlines()
    assert [line.partition("  //")[0] for line in shown] == [
        line.partition("  //")[0] for line in plain
    ]
