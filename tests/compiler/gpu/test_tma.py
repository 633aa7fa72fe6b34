"""Products of warpgroups whose tiles are boxes: on the emulator, by ``ptxas``."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from emulation import run_program
from gpu_harness import HOPPER, check, emitted, function_of, inputs_of, lowered, needs_ptxas
from hypothesis import given, settings
from hypothesis import strategies as st
from tunefarm.compiler.accuracy import error_bounds
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.gpu.emit import GpuCode
from tunefarm.compiler.gpu.emulator import DeviceMemory, EmulatorError, KernelFault, load_ptx
from tunefarm.compiler.gpu.launches import launch_from_json, launch_to_json
from tunefarm.compiler.gpu.ptxas import assemble
from tunefarm.compiler.gpu.space.tma import place_of
from tunefarm.compiler.gpu.tensor_maps import TensorMap
from tunefarm.compiler.ir import Function
from tunefarm.compiler.ops import call
from tunefarm.compiler.runtime.cuda.emulated import map_of
from tunefarm.compiler.space import Config, config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.interpreter import interpret
from tunefarm.compiler.tir.ir import Buffer, Const, For, Store, Var
from tunefarm.compiler.tir.visit import seq
from tunefarm.compiler.workload import Workload

from tests.compiler.mismatch import mismatch

OTHER = Target("cuda -arch=sm_100a")
HALF, BRAIN = "float16", "bfloat16"
CONV: dict[str, Any] = {
    "strides": (1, 1), "padding": ((0, 0), (0, 0)), "dilations": (1, 1), "groups": 1,
    "data_layout": "NSC", "kernel_layout": "SIO", "pad_value": 0, "out_dtype": "",
}  # fmt: skip


def matmul(m: int, n: int, k: int, dtype: str = HALF, turned: bool = False) -> Function:
    shapes = ((m, k), dtype), ((n, k) if turned else (k, n), dtype)
    return function_of("matmul", *shapes, transpose_b=turned)


def config_of(
    groups: int,
    columns: int,
    stages: int,
    producer: int,
    overlap: int = 0,
    wide: int = 0,
    cluster: int = 1,
    swizzle: int = 128,
    resident: int = 0,
    swath: int = 0,
    store_boxes: int = 0,
    split: int = 1,
    joined: int = 0,
) -> Config:
    knobs = {"groups": groups, "columns": columns, "stages": stages, "producer": producer}
    knobs |= {"overlap": overlap, "wide": wide, "swizzle": swizzle, "cluster": cluster}
    knobs |= {"resident": resident, "swath": swath, "store_boxes": store_boxes}
    knobs |= {"split": split, "joined": joined}
    return {"sketch": "gpu_tma", **knobs}


def agrees(function: Function, config: Config, target: Target = HOPPER) -> None:
    """The PTX, run by the emulator, agrees with NumPy."""
    workload = Workload.from_function(function)
    space = config_space(workload, target)
    assert "gpu_tma" in [s.sketch for s in space.sketches]
    assert space.valid(space.encode(config)[None])[0]
    arrays = inputs_of(workload)
    (got,) = run_program(lowered(workload, config, target), arrays, target)
    (want,) = evaluate(function, arrays)
    assert not mismatch([got.reshape(want.shape)], [want], error_bounds(function, arrays))


@pytest.mark.soak
@pytest.mark.parametrize(("stages", "producer", "boxes"), [(2, 1, 0), (2, 1, 1), (3, 0, 0)])
def test_a_product_agrees_in_lock_step(stages: int, producer: int, boxes: int) -> None:
    config = config_of(1, 64, stages, producer, store_boxes=boxes)
    check(Workload.from_function(matmul(9, 64, 136)), config, target=HOPPER)


CASES = {
    "two groups": (matmul(100, 264, 200), config_of(2, 128, 4, 1, wide=1)),
    "nobody who only fills": (matmul(100, 264, 200), config_of(2, 128, 3, 0)),
    "wide, odd columns": (matmul(65, 257, 136, BRAIN, True), config_of(1, 256, 3, 1)),
    "a ring that turns": (matmul(70, 72, 640), config_of(1, 64, 2, 1)),
    "a ring that turns, products that overlap": (
        matmul(70, 72, 640), config_of(1, 64, 3, 1, overlap=1, wide=1)
    ),
    "its threads fill": (matmul(70, 67, 640, HALF, True), config_of(2, 64, 3, 0)),
    "its threads fill, products overlap": (
        matmul(70, 72, 640, HALF, True), config_of(2, 64, 3, 0, overlap=1)
    ),
    "a batch, an epilogue": (
        function_of(
            lambda a, b, c: call("relu", call("add", call("matmul", a, b), c)),
            ((2, 40, 72), HALF), ((2, 72, 80), HALF), ((80,), HALF),
        ),
        config_of(1, 64, 3, 1),
    ),
    "two blocks share out B, which turns, products overlap": (
        matmul(200, 264, 328), config_of(1, 128, 3, 1, overlap=1, wide=1, cluster=2)
    ),
    "two blocks share out columns of terms, one has no rows": (
        matmul(130, 72, 264, BRAIN, True), config_of(1, 64, 2, 1, cluster=2)
    ),
    "rows of 64 bytes": (matmul(100, 264, 200), config_of(2, 128, 4, 1, wide=1, swizzle=64)),
    "rows of 32 bytes": (matmul(70, 136, 120), config_of(1, 128, 5, 1, 1, swizzle=32)),
    "rows of 64 bytes, terms side by side, its threads fill": (
        matmul(70, 67, 136, BRAIN, True), config_of(2, 64, 3, 0, swizzle=64)
    ),
    "rows of 32 bytes, terms side by side, two blocks": (
        matmul(130, 72, 104, HALF, True), config_of(1, 64, 4, 1, 1, cluster=2, swizzle=32)
    ),
    "rows of 64 bytes, two blocks share out 32 terms": (
        matmul(130, 72, 104), config_of(1, 64, 3, 1, cluster=2, swizzle=64)
    ),
    "tiles of 192 × 96, rows of B of 64 bytes": (
        matmul(200, 200, 136), config_of(3, 96, 3, 1, overlap=1, wide=1)
    ),
    "tiles of 192 columns, terms side by side, boxes go out": (
        matmul(70, 200, 136, BRAIN, True), config_of(1, 192, 3, 1, store_boxes=1)
    ),
    "two blocks share terms out": (
        matmul(70, 200, 264, HALF), config_of(1, 96, 3, 1, overlap=1, split=2)
    ),
    "four blocks share terms out, of which the last has none, a batch, an epilogue": (
        function_of(
            lambda a, b, c: call("relu", call("add", call("matmul", a, b), c)),
            ((2, 40, 520), HALF), ((2, 520, 80), HALF), ((80,), HALF),
        ),
        config_of(1, 64, 2, 1, split=4),
    ),
    "two blocks join their sums": (
        matmul(70, 200, 264, HALF), config_of(1, 96, 3, 1, overlap=1, split=2, joined=1)
    ),
    "four blocks join their sums, of which the last has none, a batch, an epilogue": (
        function_of(
            lambda a, b, c: call("relu", call("add", call("matmul", a, b), c)),
            ((2, 40, 520), HALF), ((2, 520, 80), HALF), ((80,), HALF),
        ),
        config_of(1, 64, 2, 1, split=4, joined=1),
    ),
    "three blocks join their sums, each whole rows of eight columns, its threads fill": (
        matmul(70, 200, 456, BRAIN, True),
        config_of(1, 192, 3, 0, wide=1, split=3, joined=1),
    ),
    "boxes go out, four of each group": (
        matmul(70, 200, 136), config_of(2, 256, 2, 1, wide=1, store_boxes=1)
    ),
    "boxes of float32 go out, a batch, an epilogue": (
        function_of(
            lambda a, b, c: call(
                "add", call("matmul", a, b, transpose_b=True, out_dtype="float32"), c
            ),
            ((2, 70, 72), BRAIN), ((2, 84, 72), BRAIN), ((84,), "float32"),
        ),
        config_of(1, 64, 2, 1, store_boxes=1),
    ),
    "a convolution of 1 × 1": (
        function_of(
            lambda x, w: call("conv", x, w, **CONV), ((1, 5, 7, 72), HALF), ((1, 1, 72, 64), HALF)
        ),
        config_of(1, 64, 2, 1),
    ),
}  # fmt: skip


FEW = Target("cuda -arch=sm_90a -num-cores=3")
STAYING = {
    "three steps a tile, two stages": (
        matmul(200, 328, 136), config_of(1, 64, 2, 1, wide=1, resident=1, swath=4)
    ),
    "products that overlap": (
        matmul(140, 328, 264), config_of(1, 64, 3, 1, overlap=1, resident=1, swath=4)
    ),
    "boxes go out, of one tile of a group after the other": (
        matmul(200, 200, 136), config_of(2, 64, 3, 1, overlap=1, resident=1, store_boxes=1)
    ),
    "two blocks a multiprocessor, terms side by side, short rows": (
        matmul(270, 136, 136, BRAIN, True), config_of(1, 64, 3, 1, 1, resident=2, swizzle=64)
    ),
    "a cluster, a batch": (
        function_of("matmul", ((2, 390, 72), HALF), ((2, 72, 80), HALF)),
        config_of(1, 64, 2, 1, cluster=2, resident=1, store_boxes=1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STAYING)
def test_blocks_go_from_tile_to_tile(name: str) -> None:
    agrees(*STAYING[name], FEW)


@pytest.mark.parametrize(("rows", "columns", "swath"), [(3, 5, 2), (4, 8, 4), (2, 7, 0)])
def test_each_tile_has_one_number(rows: int, columns: int, swath: int) -> None:
    """And the numbers beyond are of none."""
    count = rows * columns + 9
    number, out = Var("number"), Buffer("out", (count, 2), "int64")
    at = place_of(number, rows, columns, swath)
    stores = seq(*(Store(out, (number, Const(n)), each) for n, each in enumerate(at)))
    got = np.zeros((count, 2), np.int64)
    interpret(PrimFunc("order", (out,), For(number, Const(count), stores)), [got])
    assert sorted(map(tuple, got[:-9])) == list(np.ndindex(rows, columns))
    assert ((got[-9:] >= (rows, columns)).any(axis=1)).all()


@pytest.mark.parametrize("name", CASES)
def test_its_ptx_agrees(name: str) -> None:
    agrees(*CASES[name])


@settings(max_examples=4, deadline=None, derandomize=True)
@given(
    m=st.integers(2, 150),
    n=st.integers(8, 30),
    k=st.integers(9, 40),
    turned=st.booleans(),
    stages=st.integers(3, 6),
    producer=st.integers(0, 1),
    overlap=st.integers(0, 1),
    swizzle=st.sampled_from([128, 64, 32]),
)
def test_any_lengths_agree(
    m: int, n: int, k: int, turned: bool, stages: int, producer: int, overlap: int, swizzle: int
) -> None:
    config = config_of(1, 64, stages, producer, overlap, wide=1, swizzle=swizzle)
    agrees(matmul(m, 8 * n, 8 * k, HALF, turned), config)


@pytest.mark.soak
def test_four_blocks_share_out_what_they_need() -> None:
    agrees(matmul(300, 72, 264, BRAIN, True), config_of(1, 64, 4, 1, cluster=4))


def cluster_ptx() -> tuple[GpuCode, str]:
    workload = Workload.from_function(matmul(100, 64, 136))
    return emitted(lowered(workload, config_of(1, 64, 2, 1, cluster=2), HOPPER), HOPPER)


def test_blocks_of_a_cluster_wait_for_each_other() -> None:
    """What a kernel does without one of its barriers is told."""
    code, ptx = cluster_ptx()
    (launch,) = code.launches
    assert (launch.grid, ".reqnctapercluster 2, 1, 1" in ptx) == ((2, 1, 1), True)
    assert [m.box for m in launch.maps] == [(64, 64), (64, 32)]  # half of B's rows each
    both = "barrier.cluster.arrive.release{0};\nbarrier.cluster.wait.acquire{0};"
    first, last = both.format(".aligned"), both.format("")
    arrive = "@p mbarrier.arrive.shared::cluster.b64 _, [there];"
    assert [ptx.count(text) for text in (first, last, arrive)] == [1, 1, 2]
    assert ptx.count(".multicast::cluster [") == 1
    run_text(code, ptx)
    for text, why in (
        (ptx.replace(first, "bar.sync 0;"), "does not know that the mbarrier at 0x.* is made"),
        (ptx.replace(last, ""), "ends, and others of its cluster may still tell its mbarriers"),
        (ptx.replace(first, first.split(";")[1] + ";"), "waits, and has not arrived"),
        (ptx.replace(arrive, "", 1), r"never comes: \d of \d arrivals are missing"),
        (re.sub(r"(mapa\S* there, %r\d+), 1;", r"\1, 2;", ptx), "no block 2 in a cluster of 2"),
    ):  # fmt: skip
        with pytest.raises(KernelFault, match=why):
            run_text(code, text)
    with pytest.raises(EmulatorError, match="clusters of 2 blocks along x, of which 3"):
        run_text(code, ptx, grid=(3, 1, 1))


def joined_ptx(producer: int) -> tuple[GpuCode, str]:
    workload = Workload.from_function(matmul(100, 64, 136))
    config = config_of(1, 64, 3, producer, split=2, joined=1)
    return emitted(lowered(workload, config, HOPPER), HOPPER)


@pytest.mark.parametrize("producer", [0, 1])
def test_blocks_that_join_their_sums_wait_for_each_other(producer: int) -> None:
    """What a kernel does without one of its steps is told."""
    code, ptx = joined_ptx(producer)
    (launch,) = code.launches
    assert (launch.grid, ".reqnctapercluster 2, 1, 1" in ptx) == ((4, 1, 1), True)
    assert ".version 8.1" in ptx
    waits = "barrier.cluster.arrive.relaxed{0};\nbarrier.cluster.wait.acquire{0};"
    own, others = waits.format(".aligned"), waits.format("")
    assert [ptx.count(text) for text in (own, others)] == [1, producer]
    tells = re.findall(r"st\.async\S*v4\.f32 \[there\+\d+\][^;]*;", ptx)
    assert len(tells) == 2 * 4  # 16 of 32 sums, from each of two blocks
    assert "mapa.shared::cluster.u32 mark" in ptx
    assert "barrier.cluster.arrive.release" not in ptx
    run_text(code, ptx)
    (expected,) = re.findall(r"mbarrier.arrive.expect_tx\S* _, \[%r\d+\], 8192;", ptx)
    waited = r"mbarrier\.try_wait\.parity\.acquire[^;]*;\n@!p bra [^;]*;"
    for text, why in (
        (ptx.replace(own, ""), "does not know that block 1 of its cluster has begun"),
        (ptx.replace(tells[0], ""), "2048 bytes have to come that nothing brings"),
        (ptx.replace(expected, expected.replace("8192", "8176")), "16 bytes came that nobody"),
        (re.sub(waited, "", ptx), "which a copy that may be under way writes"),
        (re.sub(r"(u32 mark, %r\d+), 1;", r"\1, 0;", ptx), "stores to a block, and tells another"),
        (re.sub(r"(u32 there, %r\d+), 1;", r"\1, 2;", ptx), "no block 2 in a cluster of 2"),
    ):
        assert text != ptx
        with pytest.raises(KernelFault, match=why):
            run_text(code, text)
    if producer:
        with pytest.raises(KernelFault, match=r"all threads of its cluster, but .* ended"):
            run_text(code, ptx.replace(others, ""))


def test_maps_are_fetched_before_all_else() -> None:
    code, ptx = joined_ptx(1)
    fetch = "@p prefetch.tensormap [%rd"
    assert ptx.count(fetch) == len(code.launches[0].maps) == 2
    assert ptx.index(fetch) < ptx.index("mbarrier.init")
    there = re.findall(r"prefetch\.tensormap \[(%rd\d+)\]", ptx)[0]
    with pytest.raises(KernelFault, match="there is no map of a tensor at"):
        run_text(code, ptx.replace(f"tensormap [{there}]", f"tensormap [{there}+64]"))


def run_text(code: GpuCode, ptx: str, grid: tuple[int, int, int] | None = None) -> None:
    """Run changed text of the kernel of ``cluster_ptx``."""
    memory, (launch,) = DeviceMemory(), code.launches
    places = [memory.allocate(2 * 136 * 100) for _ in range(3)]
    for place in places:
        memory.write(place, np.zeros(136 * 100, np.float16))
    given = [*places, memory.allocate(256)]
    given += [map_of(each, given) for each in launch.maps]
    load_ptx(ptx).launch(
        memory, launch.name, grid or launch.grid, launch.block, given, launch.dynamic_bytes
    )


def test_what_goes_out_is_fenced_and_waited_for() -> None:
    """What a kernel does without one of its steps is told."""
    workload = Workload.from_function(matmul(100, 64, 136))
    code, ptx = emitted(lowered(workload, config_of(1, 64, 2, 1, store_boxes=1), HOPPER), HOPPER)
    (launch,) = code.launches
    assert launch.maps[2] == TensorMap(2, HALF, (64, 100), (128,), (64, 64), 128)
    assert launch.dynamic_bytes == 0  # 2 · 16 KiB in the ring, 8 KiB for the result
    assert "st.global" not in ptx
    words = r"^\s*((?:fence\.proxy|bar\.sync|cp\.async\.bulk)\S*)[^\n]*?(\b\d+)?;$"
    found = [" ".join(filter(None, f)) for f in re.findall(words, ptx, re.MULTILINE)]
    assert found[-7:] == GOING_OUT.split("\n")[1:-1]
    run_text(code, ptx)
    fence, meets = "fence.proxy.async.shared::cta;", re.findall(r"bar.sync %r\d+, 128;", ptx)
    waits = "cp.async.bulk.wait_group.read 0;"
    assert (ptx.count(fence), len(meets), ptx.count(waits)) == (2, 2, 2)
    last = "".join(ptx.rpartition(fence)[::2])
    for text, why in (
        (last, "shared memory that was written after the last fence.proxy.async"),
        (ptx.replace(meets[0], "", 1), r"reads .*which nobody wrote|thread number \d+ .* wrote"),
        (ptx.replace(waits, ""), "still reads shared memory when its block ends"),
        (
            re.sub(r"(bar\.sync %r\d+), 128;", r"\1, 256;", ptx),
            "waits for 256 threads of its block, of which fewer",
        ),
    ):
        with pytest.raises(KernelFault, match=why):
            run_text(code, text)
    turns = config_of(1, 64, 2, 1, resident=1, store_boxes=1)
    small = Target("cuda -arch=sm_90a -num-cores=1")
    code, ptx = emitted(lowered(workload, turns, small), small)
    run_text(code, ptx)
    with pytest.raises(KernelFault, match="writes shared memory that a copy read, and does not"):
        run_text(code, ptx.replace(waits, "", 1))


GOING_OUT = """
fence.proxy.async.shared::cta
bar.sync 128
cp.async.bulk.tensor.2d.global.shared::cta.bulk_group
cp.async.bulk.commit_group
cp.async.bulk.wait_group.read 0
bar.sync 128
cp.async.bulk.wait_group.read 0
"""


@needs_ptxas
@pytest.mark.parametrize(("groups", "columns", "split"), [(2, 192, 2), (2, 256, 4), (1, 96, 6)])
@pytest.mark.parametrize("producer", [0, 1])
def test_joined_sums_stay_in_registers(
    groups: int, columns: int, split: int, producer: int
) -> None:
    workload = Workload.from_function(matmul(2048, 768, 3072))
    stages = 3 if columns == 256 else 4
    config = config_of(groups, columns, stages, producer, 1, 1, split=split, joined=1)
    _, ptx = emitted(lowered(workload, config, HOPPER), HOPPER)
    made = assemble(ptx, "sm_90a")
    assert not made.warnings
    assert all(usage.spilled_bytes == 0 for usage in made.kernels.values())
    assert set(re.findall(r"st\.global\S*", ptx)) == {"st.global.v4.b32"}


def test_what_cannot_be_joined() -> None:
    workload = Workload.from_function(matmul(100, 64, 520))
    program = lowered(workload, config_of(1, 64, 3, 1, split=2, joined=1), HOPPER)
    with pytest.raises(ScheduleError, match="run the PTX instead"):
        interpret(program, [np.zeros(p.shape, np.float16) for p in program.params])
    for config, why in (
        (config_of(1, 64, 3, 1, split=1, joined=1), "a cluster of 1 blocks cannot share out 64"),
        (config_of(1, 64, 3, 1, split=3, joined=1), "a cluster of 3 blocks cannot share out 64"),
        (config_of(1, 64, 3, 1, split=12, joined=1), "let 2 to 8 blocks"),
        (config_of(1, 64, 3, 1, split=2, joined=1, cluster=2), "share out terms, or boxes"),
    ):
        with pytest.raises(ScheduleError, match=why):
            lowered(workload, config, HOPPER)


@needs_ptxas
@pytest.mark.parametrize(
    ("groups", "columns", "swizzle"), [(1, 64, 32), (2, 128, 64), (3, 192, 128), (2, 256, 128)]
)
@pytest.mark.parametrize("producer", [0, 1])
@pytest.mark.parametrize("turned", [False, True])
def test_instructions_are_not_serialised(
    groups: int, columns: int, swizzle: int, producer: int, turned: bool
) -> None:
    workload = Workload.from_function(matmul(2048, 4096, 1024, HALF, turned))
    cluster = 2 if producer and turned else 1
    sends = int(producer and not turned)
    stages = 3 if columns == 192 else 4
    knobs = groups, columns, stages, producer, int(turned), 1 - sends, cluster, swizzle
    config = config_of(*knobs, resident=producer, swath=8, store_boxes=sends)
    code, ptx = emitted(lowered(workload, config, HOPPER), HOPPER)
    made = assemble(ptx, "sm_90a")
    assert not made.warnings
    assert re.findall(r"wgmma.wait_group\S* (\d)", ptx) == (["1", "0"] if turned else ["0"])
    (usage,) = made.kernels.values()
    assert usage.spilled_bytes == 0
    assert code.launches[0].block == (32, 4, groups + producer)
    changes = "setmaxnreg" in ptx
    assert changes == (producer == 1 and columns >= 192)
    if changes:  # what all threads begin with, so that those that compute can have more
        assert usage.registers == {2: 168, 3: 128}[groups]


SKELETON = """
mbarrier.init.shared::cta.b64 1
mbarrier.init.shared::cta.b64 1
mbarrier.init.shared::cta.b64 8
mbarrier.init.shared::cta.b64 8
fence.mbarrier_init.release.cluster
fence.proxy.async.shared::cta
bar.sync 0
setmaxnreg.dec.sync.aligned.u32 40
mbarrier.try_wait.parity.shared::cta.b64
mbarrier.arrive.expect_tx.shared::cta.b64
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes
setmaxnreg.inc.sync.aligned.u32 232
mbarrier.try_wait.parity.shared::cta.b64
wgmma.fence.sync.aligned
wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 0
wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 0
wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 0
wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 0
wgmma.commit_group.sync.aligned
wgmma.wait_group.sync.aligned 0
mbarrier.arrive.shared::cta.b64
"""


def test_who_waits_for_whom() -> None:
    workload = Workload.from_function(matmul(2048, 4096, 1024, BRAIN, True))
    code, ptx = emitted(lowered(workload, config_of(2, 256, 2, 1), HOPPER), HOPPER)
    words = r"(mbarrier|cp\.async|wgmma|setmaxnreg|bar|fence)\.[\w.:]+"
    found = re.findall(rf"(?:^|\s)({words})(?:\s[^;\n]*?(\b\d+))?;|({words})\s", ptx, re.MULTILINE)
    got = [f"{a or c} {n}".strip() for a, _, n, c, _ in found]
    assert got == SKELETON.split("\n")[1:-1]
    (launch,) = code.launches
    assert launch.maps == (
        TensorMap(0, BRAIN, (1024, 2048), (2048,), (64, 128), 128),
        TensorMap(1, BRAIN, (1024, 4096), (2048,), (64, 256), 128),
    )
    assert launch_from_json(launch_to_json(launch)) == launch
    assert "st.shared" not in ptx
    assembly = [line for line in code.text.splitlines() if " asm " in line]
    assert len(assembly) > 15
    assert all(line.endswith(" convergent") for line in assembly)  # or LLVM may let fewer come


@pytest.mark.parametrize(
    ("swizzle", "turned", "box", "number", "steps"),
    [
        # Mode, and in units of 16 bytes eight rows and what leads from one row's columns to the
        # next's: CUTLASS, ``make_gmma_desc``.
        (64, False, (32, 32), 2 << 62 | 8 * 4 << 32 | 32 * 4 << 16, 2),
        (64, True, (32, 64), 2 << 62 | 8 * 4 << 32 | 1 << 16, 2),
        (32, False, (16, 16), 3 << 62 | 8 * 2 << 32 | 16 * 2 << 16, 1),
        (32, True, (16, 64), 3 << 62 | 8 * 2 << 32 | 1 << 16, 1),
    ],
)
def test_shorter_rows_have_their_own_descriptors(
    swizzle: int, turned: bool, box: tuple[int, int], number: int, steps: int
) -> None:
    workload = Workload.from_function(matmul(256, 128, 256, HALF, turned))
    code, ptx = emitted(lowered(workload, config_of(1, 64, 4, 1, swizzle=swizzle), HOPPER), HOPPER)
    a, b = code.launches[0].maps
    assert (a.box, b.box) == ((swizzle // 2, 64), box)
    assert {a.swizzle, b.swizzle} == {swizzle}
    assert ptx.count("wgmma.mma_async") == steps
    whole = {int(n) % 2**64 for n in re.findall(r"or\.b64 \s*%\w+, %\w+, (-?\d+);", ptx)}
    assert {n >> 32 << 32 for n in whole} == {number >> 32 << 32}
    lows = {n >> 16 & 0x3FFF for n in whole}
    lows |= {int(n) >> 16 for n in re.findall(r"add\.s32 \s*%\w+, %\w+, (\d{5,});", ptx)}
    assert lows - {0} == {number >> 16 & 0x3FFF, 1}  # others are places in memory


def test_what_has_no_such_kernel() -> None:
    for function in (
        matmul(64, 64, 64),  # one step
        matmul(64, 64, 100),  # rows of no whole 16 bytes
        function_of(
            lambda a, b: call("matmul", call("relu", a), b), ((64, 72), HALF), ((72, 64), HALF)
        ),
        function_of(
            lambda x, w: call("conv", x, w, **{**CONV, "padding": ((1, 1), (1, 1))}),
            ((1, 8, 8, 64), HALF), ((3, 3, 64, 64), HALF),
        ),
    ):  # fmt: skip
        space = config_space(Workload.from_function(function), HOPPER)
        assert "gpu_tma" not in [s.sketch for s in space.sketches]
    workload = Workload.from_function(matmul(64, 64, 100))
    with pytest.raises(ScheduleError, match="do not lie in memory as matrices"):
        lowered(workload, config_of(1, 64, 2, 1), HOPPER)
    workload = Workload.from_function(matmul(64, 64, 128))
    assert "gpu_tma" not in [s.sketch for s in config_space(workload, OTHER).sketches]
    with pytest.raises(ScheduleError, match=r"needs? -arch=sm_90a, not cuda"):
        emitted(lowered(workload, config_of(1, 64, 2, 1)), OTHER)
    with pytest.raises(ScheduleError, match="overlap where there are 3 stages or more, not 2"):
        lowered(workload, config_of(1, 64, 2, 1, overlap=1), HOPPER)
    with pytest.raises(ScheduleError, match="are a cluster where threads of their own ask"):
        lowered(workload, config_of(1, 64, 3, 0, cluster=2), HOPPER)
    with pytest.raises(ScheduleError, match="boxes are stored by blocks with threads of their"):
        lowered(workload, config_of(1, 64, 3, 0, store_boxes=1), HOPPER)
    with pytest.raises(ScheduleError, match="share terms out stay for one tile"):
        lowered(workload, config_of(1, 64, 3, 1, store_boxes=1, split=2), HOPPER)
    with pytest.raises(ScheduleError, match="3 stages or more ahead, not 2"):
        lowered(workload, config_of(1, 64, 2, 0), HOPPER)
    single = Workload.from_function(
        function_of("matmul", ((64, 128), "float32"), ((128, 64), "float32"))
    )
    with pytest.raises(ScheduleError, match="no product that warpgroups compute"):
        lowered(single, config_of(1, 64, 2, 1))


def test_only_what_fits_is_tried() -> None:
    space = config_space(Workload.from_function(matmul(2048, 4096, 1024)), HOPPER)
    knobs = {"groups": 2, "columns": 256, "stages": 6, "producer": 0, "cluster": 2, "swizzle": 128}
    knobs |= {"split": 1, "joined": 0}
    k = {n: np.array([v]) for n, v in knobs.items()}
    names = {c.name: c for c in space.sketch("gpu_tma").constraints}
    assert not names["shared memory"].holds(k)[0]
    assert not names["cluster"].holds(k)[0]
    assert names["cluster"].holds({**k, "producer": np.array([1])})[0]
    shorter = {n: np.array([v]) for n, v in {**knobs, "producer": 1, "swizzle": 32}.items()}
    assert names["cluster"].holds(shorter)[0]
    assert not names["cluster"].holds({**shorter, "cluster": np.array([4])})[0]  # 16 rows for four
    assert names["shared memory"].holds(shorter)[0]
    stays = {**shorter, "columns": np.array([128]), "stages": np.array([2])}
    held = [names["resident"].holds({**stays, "resident": np.array([n])})[0] for n in (0, 1, 2)]
    assert held == [True, True, False]  # 512 tiles; registers are for one block
    held = [names["swath"].holds({**stays, "swath": np.array([n])})[0] for n in (0, 16, 32)]
    assert held == [True, True, False]
    sends = {**stays, "columns": np.array([256]), "swizzle": np.array([128])}
    sends |= {n: np.array([v]) for n, v in (("stages", 4), ("wide", 0), ("store_boxes", 1))}
    assert names["shared memory"].holds(sends)[0]  # 4 · 48 KiB, 32 KiB for two tiles each group
    assert not names["shared memory"].holds({**sends, "stages": np.array([5])})[0]
    held = [names["boxes"].holds({**sends, "producer": np.array([n])})[0] for n in (1, 0)]
    assert held == [True, False]
    assert names["stages"].holds(k)[0]
    assert not names["stages"].holds({**k, "stages": np.array([2])})[0]
