"""The emulator's machine: texts, launches, parting and meeting threads, and every kind of fault."""

from __future__ import annotations

import re

import numpy as np
import pytest
from ptx_text import HEADER, kernel_text, run_text
from tunefarm.compiler.gpu.emulator import DeviceMemory, EmulatorError, KernelFault, load_ptx

WORDS = np.arange(32, dtype=np.uint32)
STORE = "add.s64 %rd9, %rd2, %rd0;\nst.global.b32 [%rd9], %r9;"


# --- texts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("frobnicate.b32 %r1, %r2;", r"line \d+ of the PTX.*'frobnicate.b32 %r1, %r2'"),
        ("add.rz.f32 %r1, %r2, %r3;", r"'add.rz.f32 %r1, %r2, %r3': modifier .rz"),
        ("add.q32 %r1, %r2, %r3;", r"type .q32"),
        ("add.s32 %r1, %r2;", r"it has 2 operands"),
        ("add.s32 %r1, %r2, %rd3;", None),
        ("add.s64 %rd1, %rd2, %r3;", r"%r3 has 32 bits, not 64"),
        ("mov.b32 %r1, %nowhere;", r"'%nowhere' is no operand"),
        ("mov.b64 %rd1, nothing;", r"operand Symbol\(name='nothing'\)"),
        ("bra $L__nowhere;", r"its label is nowhere"),
        ("ld.shared.b32 %r1, [k_shared];", r"k_shared is no array in shared memory"),
        ("bar.sync 1;", r"barriers are number 0 of all"),
        ("shfl.sync.bfly.b32 %r1, %r2, 1, 31, 15;", r"only whole warps"),
        ("mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32 {%r1}, {%r2}, {%r3}, {%r4};", "not know"),
        ("cp.async.cg.shared.global [%rd1], [%rd2], 8;", r"its size"),
        ("cvt.s32.f32 %r1, %r2;", r"it does not say how to round"),
        ("@%p1 ret;", r"threads that end by a guard"),
        ("@%p1 bar.sync 0;", r"a guard"),
        (".weird thing;", r"is no instruction"),
    ],
)
def test_what_is_not_known_is_refused_when_it_is_loaded(
    statement: str, message: str | None
) -> None:
    text = kernel_text(statement)
    if message is None:  # a wider register gives its lower bits
        load_ptx(text)
        return
    with pytest.raises(EmulatorError, match=message):
        load_ptx(text)


def test_a_text_that_is_no_ptx() -> None:
    with pytest.raises(EmulatorError, match=r"names no .target"):
        load_ptx("")
    with pytest.raises(EmulatorError, match=r"line 1 of the PTX: .* 'int main'"):
        load_ptx("int main;")
    with pytest.raises(EmulatorError, match=r"only kernels \(.entry\) are emulated, not '.func f'"):
        load_ptx(HEADER + ".func f(.param .b32 x) {}")
    with pytest.raises(EmulatorError, match="kernel k has no end"):
        load_ptx(kernel_text("").rstrip()[:-1])
    with pytest.raises(EmulatorError, match="table is in const memory, which is not emulated"):
        load_ptx(kernel_text("").replace(".visible", ".const .b32 table[2] = {1, 2};\n.visible"))


def test_a_module_says_what_its_kernels_take() -> None:
    module = load_ptx(kernel_text("", shared_bytes=640))
    kernel = module.kernels["k"]
    assert module.arch == "sm_90a"
    assert (kernel.shared_bytes, kernel.local_bytes) == (640, 0)
    assert kernel.registers == 9 + 9 + 40 + 20


@pytest.mark.parametrize(
    ("name", "grid", "block", "arguments", "dynamic_bytes", "message"),
    [
        ("f", 1, 32, 2, 0, "there is no kernel 'f' in the module; there are k"),
        ("k", 1, 65, 2, 0, "kernel k runs blocks of up to 64 threads, not 65"),
        ("k", 0, 32, 2, 0, "a grid has 1 to 2147483647 blocks along x, not 0"),
        ("k", 1, 32, 1, 0, "kernel k takes 2 arguments, not 1"),
        ("k", 1, 32, 2, 233000, "a block of k shares 233000 bytes; sm_90a has 232448"),
    ],
)
def test_launches_that_a_gpu_would_refuse(
    name: str, grid: int, block: int, arguments: int, dynamic_bytes: int, message: str
) -> None:
    module = load_ptx(kernel_text("").replace("\n)\n", "\n)\n.maxntid 64\n"))
    with pytest.raises(EmulatorError, match=re.escape(message)):
        module.launch(
            DeviceMemory(), name, (grid, 1, 1), (block, 1, 1), [0] * arguments, dynamic_bytes
        )


# --- threads that part and meet -----------------------------------------------------------------

COLLATZ = """
    add.s64 %rd3, %rd1, %rd0;
    ld.global.b32 %r2, [%rd3];
    mov.b32 %r9, 0;
    bra.uni $test;
$odd:
    mad.lo.s32 %r2, %r2, 3, 1;
$next:
    add.s32 %r9, %r9, 1;
$test:
    setp.le.u32 %p1, %r2, 1;
    @%p1 bra $done;
    and.b32 %r3, %r2, 1;
    setp.ne.b32 %p2, %r3, 0;
    @%p2 bra $odd;
    shr.u32 %r2, %r2, 1;
    bra.uni $next;
$done:
"""


def test_loops_of_other_lengths_in_each_thread() -> None:
    def steps(n: int) -> int:
        return 0 if n <= 1 else 1 + steps(3 * n + 1 if n % 2 else n // 2)

    got = run_text(kernel_text(COLLATZ + STORE), [WORDS], WORDS)
    assert got.tolist() == [steps(n) for n in range(32)]


def test_threads_that_parted_meet_before_they_exchange() -> None:
    exchange = "shfl.sync.bfly.b32 %r9, %r9, 1, 31, -1;\n"
    alone = run_text(kernel_text(COLLATZ + STORE), [WORDS], WORDS)
    got = run_text(kernel_text(COLLATZ + exchange + STORE), [WORDS], WORDS)
    assert got.tolist() == alone[np.arange(32) ^ 1].tolist()


def test_a_block_of_code_that_others_come_to_later_waits_for_them() -> None:
    """The exchange stands before the code that leads to it: LLVM lays out loops so."""
    body = f"""
        mov.b32 %r9, 7;
        setp.lt.u32 %p1, %r1, 16;
        @%p1 bra $long;
        bra.uni $meet;
    $meet:
        shfl.sync.bfly.b32 %r9, %r9, 16, 31, -1;
        {STORE}
        ret;
    $long:
        mov.b32 %r9, 9;
        bra.uni $meet;
    """
    got = run_text(kernel_text(body), [WORDS], WORDS)
    assert got.tolist() == [7] * 16 + [9] * 16


def test_threads_end_and_others_go_on() -> None:
    body = """
        mov.u32 %r2, %ctaid.x;
        mov.u32 %r3, %ntid.x;
        mad.lo.s32 %r4, %r2, %r3, %r1;
        setp.gt.u32 %p1, %r4, 70;
        @%p1 bra $end;
        mul.wide.u32 %rd3, %r4, 4;
        add.s64 %rd4, %rd2, %rd3;
        st.global.b32 [%rd4], %r4;
    $end:
    """
    got = run_text(kernel_text(body), [WORDS], np.zeros(80, np.uint32), block=20, grid=4)
    assert got.tolist() == [*range(71), *[0] * 9]


def test_grids_of_more_blocks_than_run_at_once() -> None:
    body = """
        mov.u32 %r2, %ctaid.x;
        mov.u32 %r3, %nctaid.x;
        mad.lo.s32 %r4, %r2, 32, %r1;
        mul.wide.u32 %rd3, %r4, 4;
        add.s64 %rd4, %rd2, %rd3;
        st.global.b32 [%rd4], %r3;
    """
    blocks = 1200
    got = run_text(kernel_text(body), [WORDS], np.zeros(32 * blocks, np.uint32), grid=blocks)
    assert (got == blocks).all()


def test_a_guard_keeps_threads_from_a_store() -> None:
    body = f"setp.lt.u32 %p1, %r1, 5;\nmov.b32 %r9, 3;\n{STORE.replace('st.', '@!%p1 st.')}"
    got = run_text(kernel_text(body), [WORDS], np.zeros(32, np.uint32))
    assert got.tolist() == [0] * 5 + [3] * 27


# --- faults -------------------------------------------------------------------------------------

SHARED = "mov.b64 %rd3, k_shared;\nadd.s64 %rd4, %rd3, %rd0;\n"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "add.s64 %rd3, %rd1, %rd0;\nld.global.nc.b32 %r2, [%rd3+4];",
            r"kernel k, block \(0, 0, 0\), thread \(31, 0, 0\), line \d+ of the PTX "
            r"\(ld.global.nc.b32 %r2, \[%rd3\+4\]\): reads 4 bytes at 0x\w+, 4 beyond the end of "
            r"the 128 bytes",
        ),
        ("st.global.b32 [%rd1+-4], %r1;", r"thread \(0, 0, 0\).*writes 4 bytes at 0x"),
        ("ld.global.b32 %r2, [%rd1+2];", r"which is no multiple of 4"),
        ("ld.global.v4.b32 {%r2, %r3, %r4, %r5}, [%rd1+8];", r"which is no multiple of 16"),
        ("mov.b64 %rd5, 64;\nld.global.b32 %r2, [%rd5];", r"before all that is allocated"),
        ("ld.b32 %r2, [%rd1+4096];", r"reads 4 bytes at"),
        (SHARED + "ld.shared.b32 %r2, [%rd4];", r"at 0x0 of shared memory, which nobody wrote"),
        (SHARED + "st.shared.b32 [%rd4+512], %r1;", r"of shared memory, which has 512"),
        (
            SHARED + "st.shared.b32 [%rd4], %r1;\nld.shared.b32 %r2, [%rd3+12];",
            r"thread \(0, 0, 0\).*reads shared memory that thread number 3 of its block wrote "
            r"since the last barrier",
        ),
        (
            SHARED + "st.shared.b32 [%rd3], %r1;",
            r"writes shared memory that thread number 31 of its block wrote since the last",
        ),
        (
            SHARED + "st.shared.b32 [%rd4], %r1;\nbar.sync 0;\nld.shared.b32 %r2, [%rd3];\n"
            "st.shared.b32 [%rd4], %r1;",
            r"thread \(0, 0, 0\).*writes shared memory that several threads of its block read",
        ),
        (
            "st.global.b32 [%rd2], 5;",
            r"writes global memory that thread number 31 of block number 0 wrote in the same",
        ),
        (
            f"mov.b32 %r9, 1;\n{STORE}\nbar.sync 0;\nld.global.b32 %r2, [%rd2+12];",
            r"\(0, 0, 0\).*reads global memory that thread number 3 of block number 0 wrote in the",
        ),
        (
            f"ld.global.b32 %r9, [%rd2];\n{STORE}",
            r"writes global memory that several threads read in the same launch",
        ),
        (
            "setp.lt.u32 %p1, %r1, 8;\n@%p1 bra $skip;\nbar.sync 0;\n$skip:",
            r"line \d+ of the PTX \(bar.sync 0\): waits for all threads of its block, but "
            r"block \(0, 0, 0\), thread \(0, 0, 0\) ended",
        ),
        (
            "setp.lt.u32 %p1, %r1, 8;\n@%p1 bra $skip;\nbar.sync 0;\nret;\n$skip: \nbar.sync 0;",
            r"others of its warp wait elsewhere",
        ),
        (
            "setp.lt.u32 %p1, %r1, 8;\n@%p1 bra $skip;\nshfl.sync.idx.b32 %r2, %r1, 0, 31, -1;\n"
            "$skip:",
            r"\(8, 0, 0\).*waits for all threads of its warp, but .* thread \(0, 0, 0\) ended",
        ),
        (
            "setp.lt.u32 %p1, %r1, 8;\n@%p1 bra $skip;\nshfl.sync.idx.b32 %r2, %r1, 0, 31, -1;\n"
            "ret;\n$skip: \nbar.sync 0;",
            r"waits for all threads of its warp, but .* thread \(0, 0, 0\) waits elsewhere",
        ),
    ],
)  # fmt: skip
def test_faults_name_their_kernel_block_thread_and_line(body: str, message: str) -> None:
    text = kernel_text(body, shared_bytes=512)
    with pytest.raises(KernelFault, match=message):
        run_text(text, [WORDS], WORDS)


def test_what_passes_from_block_to_block_in_one_launch() -> None:
    """Each block reads what the one before it wrote; 40000 of them do not run at once."""
    body = """
        mov.u32 %r2, %ctaid.x;
        mul.wide.u32 %rd3, %r2, 4;
        add.s64 %rd4, %rd2, %rd3;
        ld.global.b32 %r3, [%rd4];
        st.global.b32 [%rd4+4], %r3;
    """
    text = kernel_text(body)
    run_text(text, [WORDS], np.zeros(2, np.uint32), block=1)
    for grid in (2, 40000):
        with pytest.raises(KernelFault, match="that thread number 0 of block number 1 read"):
            run_text(text, [WORDS], np.zeros(grid + 1, np.uint32), block=1, grid=grid)


def test_a_shuffle_from_a_lane_that_there_is_not() -> None:
    text = kernel_text("shfl.sync.down.b32 %r2, %r1, 8, 31, -1;")
    with pytest.raises(KernelFault, match="its warp has no thread in lane 20"):
        run_text(text, [WORDS], WORDS, block=20)


@pytest.mark.parametrize("rounds", [1, 400])
def test_what_was_read_and_written_long_before_is_a_race_still(rounds: int) -> None:
    """A loop of reads, or of writes, of each thread's own element; then one of a neighbour's."""
    loop = """
        mov.b32 %r4, 0;
    $loop:
        ACCESS
        add.s32 %r4, %r4, 1;
        setp.ne.b32 %p1, %r4, ROUNDS;
        @%p1 bra $loop;
        add.s64 %rd5, %rd4, 4;
        setp.eq.b32 %p2, %r1, 31;
        selp.b64 %rd5, %rd3, %rd5, %p2;
    """.replace("ROUNDS", str(rounds))
    begin = SHARED + "st.shared.b32 [%rd4], %r1;\nbar.sync 0;\n"
    reads = loop.replace("ACCESS", "ld.shared.b32 %r2, [%rd4];")
    writes = loop.replace("ACCESS", "st.shared.b32 [%rd4], %r1;")
    for body, problem in (
        (reads + "st.shared.b32 [%rd5], %r1;", "that thread number 1 of its block read since"),
        (writes + "ld.shared.b32 %r2, [%rd5];", "that thread number 1 of its block wrote since"),
    ):
        with pytest.raises(KernelFault, match=problem):
            run_text(kernel_text(begin + body, shared_bytes=128), [WORDS], WORDS)
        waited = body.replace("add.s64 %rd5", "bar.sync 0;\nadd.s64 %rd5")
        run_text(kernel_text(begin + waited, shared_bytes=128), [WORDS], WORDS)


def test_memory_that_was_given_back() -> None:
    memory = DeviceMemory()
    addresses = [memory.allocate(128) for _ in range(2)]
    module = load_ptx(kernel_text("ld.global.b32 %r2, [%rd1];"))
    module.launch(memory, "k", (1, 1, 1), (1, 1, 1), addresses)
    memory.free(addresses[0])
    with pytest.raises(KernelFault, match="reads 4 bytes at"):
        module.launch(memory, "k", (1, 1, 1), (1, 1, 1), addresses)
    assert memory.allocated_bytes == 128
    with pytest.raises(EmulatorError, match="nothing is allocated at"):
        memory.free(addresses[0])
    with pytest.raises(EmulatorError, match=r"256 bytes at .* are not allocated"):
        memory.read(addresses[1], 256)


def test_memory_that_nobody_wrote_is_no_number() -> None:
    memory = DeviceMemory()
    address = memory.allocate(64)
    assert address % 256 == 0
    assert np.isnan(memory.read(address, 64).view(np.float32)).all()


def test_accesses_of_several_allocations_at_once() -> None:
    """Even threads read the first array, odd ones the second."""
    body = f"""
        and.b32 %r2, %r1, 1;
        setp.ne.b32 %p1, %r2, 0;
        selp.b64 %rd5, %rd2, %rd1, %p1;
        add.s64 %rd6, %rd5, %rd0;
        ld.global.b32 %r9, [%rd6];
        {STORE.replace("%rd2", "%rd3")}
        st.global.b32 [%rd6], 5;
    """
    text = kernel_text(body, parameters=3)
    memory = DeviceMemory()
    addresses = [memory.allocate(128) for _ in range(3)]
    for number, address in enumerate(addresses):
        memory.write(address, WORDS + 100 * number)
    load_ptx(text).launch(memory, "k", (1, 1, 1), (32, 1, 1), addresses)
    got = [memory.read(address, 128).view(np.uint32).tolist() for address in addresses]
    assert got[2] == [n + 100 * (n % 2) for n in range(32)]
    assert got[0] == [n if n % 2 else 5 for n in range(32)]


# --- asynchronous copies ------------------------------------------------------------------------

COPY = SHARED + "add.s64 %rd5, %rd1, %rd0;\ncp.async.ca.shared.global [%rd4], [%rd5], 4;\n"
LOAD = "ld.shared.b32 %r9, [%rd4];\n" + STORE


def test_a_copy_arrives_when_it_is_waited_for() -> None:
    text = kernel_text(COPY + "cp.async.wait_all;\n" + LOAD, shared_bytes=128)
    assert (run_text(text, [WORDS], WORDS * 0) == WORDS).all()


def test_bytes_that_a_copy_does_not_take_are_zeros() -> None:
    body = (
        SHARED
        + """
        mul.wide.u32 %rd6, %r1, 16;
        add.s64 %rd4, %rd3, %rd6;
        add.s64 %rd5, %rd1, %rd6;
        setp.lt.u32 %p1, %r1, 3;
        selp.b32 %r2, 16, 0, %p1;
        setp.eq.b32 %p2, %r1, 1;
        selp.b32 %r2, 6, %r2, %p2;
        cp.async.cg.shared.global [%rd4], [%rd5], 16, %r2;
        cp.async.commit_group;
        cp.async.wait_group 0;
        ld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [%rd4];
        add.s64 %rd9, %rd2, %rd6;
        st.global.v4.b32 [%rd9], {%r3, %r4, %r5, %r6};
    """
    )
    given = np.arange(1, 25, dtype=np.uint16)
    got = run_text(kernel_text(body, shared_bytes=64), [given], np.ones(32, np.uint16), block=4)
    wanted = np.concatenate([given, np.zeros(8, np.uint16)])
    wanted[11:16] = 0
    assert got.tolist() == wanted.tolist()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (COPY + LOAD, "reads 4 bytes at 0x0 of shared memory, which a copy that may be under way"),
        (COPY + "cp.async.commit_group;\ncp.async.wait_group 1;\n" + LOAD, "may be under way"),
        (COPY + "cp.async.wait_group 0;\n" + LOAD, "may be under way"),  # in no group yet
        (COPY + "st.shared.b32 [%rd4], %r1;", "writes 4 bytes at 0x0 .* may be under way"),
        (COPY + COPY, "writes 4 bytes at 0x0 .* may be under way"),
        (
            COPY + "cp.async.wait_all;\nld.shared.b32 %r9, [%rd3];",
            "reads shared memory that thread number 0 of its block wrote",
        ),
        (COPY.replace("[%rd5]", "[%rd5+64]"), "reads 4 bytes at .* beyond the end of the 128"),
        (COPY.replace("[%rd5]", "[%rd5+1]"), "which is no multiple of 4"),
        (COPY.replace(", 4;", ", 4, %r1;"), r"thread \(31, 0, 0\).*takes more than 4 bytes"),
    ],
)
def test_what_copies_may_not(body: str, message: str) -> None:
    with pytest.raises(KernelFault, match=message):
        run_text(kernel_text(body, shared_bytes=128), [WORDS], WORDS)


def test_the_newest_groups_may_be_under_way() -> None:
    """Two groups are begun; the first is there when all but one are waited for."""
    second = "cp.async.ca.shared.global [%rd4+128], [%rd5], 4;\ncp.async.commit_group;\n"
    begin = COPY + "cp.async.commit_group;\n" + second
    text = kernel_text(begin + "cp.async.wait_group 1;\n" + LOAD, shared_bytes=256)
    assert (run_text(text, [WORDS], WORDS * 0) == WORDS).all()
    late = LOAD.replace("[%rd4]", "[%rd4+128]")
    text = kernel_text(begin + "cp.async.wait_group 1;\n" + late, shared_bytes=256)
    with pytest.raises(KernelFault, match="may be under way"):
        run_text(text, [WORDS], WORDS)
    text = kernel_text(begin + "cp.async.wait_group 0;\n" + late, shared_bytes=256)
    assert (run_text(text, [WORDS], WORDS * 0) == WORDS).all()


def test_threads_that_wait_apart_get_their_own_copies() -> None:
    body = (
        COPY
        + f"""
        setp.lt.u32 %p1, %r1, 8;
        @!%p1 bra $load;
        cp.async.wait_all;
    $load:
        @!%p1 bra $end;
        {LOAD}
    $end:
    """
    )
    got = run_text(kernel_text(body, shared_bytes=128), [WORDS], WORDS * 0 + 50)
    assert got.tolist() == [*range(8), *[50] * 24]


# --- a thread's own memory, generic addresses, dynamic shared memory ------------------------------


def test_memory_of_a_thread_and_generic_addresses() -> None:
    body = f"""
        .local .align 16 .b8 depot[64];
        mov.b64 %rd3, depot;
        cvta.local.u64 %rd4, %rd3;
        and.b32 %r2, %r1, 7;
        mul.wide.u32 %rd5, %r2, 4;
        add.s64 %rd6, %rd4, %rd5;
        st.b32 [%rd6], %r1;
        add.s64 %rd7, %rd3, %rd5;
        ld.local.b32 %r9, [%rd7];
        cvta.to.local.u64 %rd8, %rd6;
        st.local.v2.b32 [%rd3+32], {{%r9, %r2}};
        ld.b32 %r3, [%rd6];
        ld.local.b32 %r4, [depot+36];
        add.s32 %r9, %r3, %r4;
        {STORE}
    """
    got = run_text(kernel_text(body), [WORDS], WORDS * 0)
    assert got.tolist() == [n + n % 8 for n in range(32)]


def test_shared_memory_that_a_launch_asks_for_comes_last() -> None:
    text = kernel_text(
        SHARED
        + f"""
        mov.b64 %rd6, k_more;
        add.s64 %rd7, %rd6, %rd0;
        st.shared.b32 [%rd4], 1;
        st.shared.b32 [%rd7], %r1;
        ld.shared.b32 %r9, [%rd4+128];
        {STORE}
        """,
        shared_bytes=128,
    ).replace(".visible", ".extern .shared .align 128 .b8 k_more[];\n.visible")
    assert (run_text(text, [WORDS], WORDS * 0, dynamic_bytes=128) == WORDS).all()
    with pytest.raises(KernelFault, match="of shared memory, which has 192"):
        run_text(text, [WORDS], WORDS, dynamic_bytes=64)
