"""Boxes of a tensor, copied beside the threads, in text written by hand: bounds, waits, faults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from ptx_text import kernel_text
from tunefarm.compiler.gpu.emulator import DeviceMemory, EmulatorError, KernelFault, load_ptx
from tunefarm.compiler.gpu.emulator.tensor_maps import Tensor, decode, encode

X = np.random.default_rng(5).integers(1, 99, (20, 72)).astype(np.float16)
ROWS, COLUMNS = 16, 64  # of a box
BYTES = ROWS * COLUMNS * 2
COPY = (
    "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
    "[%r2], [%rd10, {%r5, %r6}], [%r3];"
)
EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], %r4;"


def waits(label: str, parity: int) -> str:
    return f"""
    mov.b32 %r7, {parity};
$wait_{label}:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], %r7;
    @!%p2 bra $wait_{label};
    """


def box_text(column: int = 0, row: int = 0, again: str = "") -> str:
    """A kernel of 128 threads: the first asks for a box, each copies 16 bytes of it, which is done
    ``again`` after some text."""
    asks = f"@%p1 {EXPECT}\n@%p1 {COPY}"
    copies = """
        ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [%rd7];
        st.global.v4.b32 [%rd8], {%r10, %r11, %r12, %r13};
    """
    text = kernel_text(
        f"""
        mov.b64 %rd10, k_map;
        cvta.param.u64 %rd10, %rd10;
        mov.b64 %rd4, k_shared;
        cvt.u32.u64 %r2, %rd4;
        add.s32 %r3, %r2, {BYTES};
        mul.wide.u32 %rd6, %r1, 16;
        add.s64 %rd7, %rd4, %rd6;
        add.s64 %rd8, %rd1, %rd6;
        mov.b32 %r4, {BYTES};
        mov.b32 %r5, {column};
        mov.b32 %r6, {row};
        setp.eq.u32 %p1, %r1, 0;
        @%p1 mbarrier.init.shared::cta.b64 [%r3], 1;
        fence.mbarrier_init.release.cluster;
        bar.sync 0;
        {asks}
        {waits("first", 0)}
        {copies}
        {again and again + asks + waits("second", 1) + copies}
        """,
        parameters=1,
        shared_bytes=BYTES + 8,
    )
    return text.replace("\n)\n{", ",\n    .param .align 64 .b8 k_map[128]\n)\n{")


def tensor_at(address: int) -> Tensor:
    return Tensor(address, 2, (72, 20), (144,), (COLUMNS, ROWS), 128)


def run(text: str, change: Any = lambda data: data) -> NDArray[np.float16]:
    memory = DeviceMemory()
    x, out = memory.allocate(X.nbytes), memory.allocate(BYTES)
    memory.write(x, X)
    tensor_map = int.from_bytes(change(encode(tensor_at(x))), "little")
    load_ptx(text).launch(memory, "k", (1, 1, 1), (128, 1, 1), [out, tensor_map])
    return memory.read(out, BYTES).view(np.float16).reshape(ROWS, COLUMNS)


def swizzled(column: int, row: int) -> NDArray[np.float16]:
    """The box at a corner as it lies in shared memory, zeros outside of the tensor."""
    wide = np.zeros((96, 256), np.float16)
    wide[20:40, 100:172] = X
    box = wide[20 + row : 20 + row + ROWS, 100 + column : 100 + column + COLUMNS]
    chunks, out = box.reshape(ROWS, 8, 8), np.empty((ROWS, 8, 8), np.float16)
    for r in range(ROWS):
        out[r, np.arange(8) ^ r % 8] = chunks[r]
    return out.reshape(ROWS, COLUMNS)


@pytest.mark.parametrize(("column", "row"), [(0, 0), (8, 4), (40, 10), (-8, -3), (5, 0), (80, 30)])
def test_a_box_of_a_tensor(column: int, row: int) -> None:
    assert run(box_text(column, row)).tolist() == swizzled(column, row).tolist()


def test_a_box_once_more_when_all_have_read_it() -> None:
    assert run(box_text(again="bar.sync 0;\n")).tolist() == swizzled(0, 0).tolist()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("@!%p2 bra $wait_first", "bra $read;\n$read:\n//", None),
        (waits("first", 0), "", r"ld.shared.*which a copy that may be under way writes"),
        (waits("first", 0), waits("first", 1), "a copy that may be under way writes"),
        (f"mov.b32 %r4, {BYTES}", "mov.b32 %r4, 4096", "and 2048 bytes have to come that nothing"),
        (f"mov.b32 %r4, {BYTES}", "mov.b32 %r4, 1024", "and 1024 bytes came that nobody expects"),
        ("[%r3], 1;", "[%r3], 2;", "1 of 2 arrivals are missing, and no bytes"),
        (f"@%p1 {EXPECT}", EXPECT, "is one more than the 1 arrivals of a phase"),
        ("fence.mbarrier_init.release.cluster;", "", "was made after the last fence"),
        ("@%p1 mbarrier.init", "//", "there is no mbarrier at 0x800 of shared memory"),
        ("add.s32 %r3, %r2, 2048", "add.s32 %r3, %r2, 2052", "no room for an mbarrier at 0x804"),
        ("[%r2], [%rd10", "[%r2+512], [%rd10", "to 0x200 of shared memory, no multiple of 1024"),
        ("cvta.param.u64 %rd10, %rd10;", "", "no map of a tensor of 2 axes"),
    ],
)
def test_what_boxes_may_not(old: str, new: str, message: str | None) -> None:
    text = box_text().replace(old, new)
    assert text != box_text()
    if message is None:  # the emulator waits as long as it takes
        assert run(text).tolist() == swizzled(0, 0).tolist()
        return
    with pytest.raises(KernelFault, match=message):
        run(text)


def test_a_stage_that_others_still_read() -> None:
    with pytest.raises(KernelFault, match="that thread number 1 of its block read, and does not"):
        run(box_text(again="\n"))


def test_a_copy_that_nobody_waits_for() -> None:
    text = box_text().replace(waits("first", 0), "ret;\n")
    with pytest.raises(KernelFault, match="has not ended when its block does"):
        run(text)


def store_text(column: int = 0, row: int = 0, again: str = "") -> str:
    """A kernel of 128 threads that fill a box with their numbers, which the first has stored."""
    text = kernel_text(
        f"""
        mov.b64 %rd10, k_map;
        cvta.param.u64 %rd10, %rd10;
        mov.b64 %rd4, k_shared;
        cvt.u32.u64 %r2, %rd4;
        mul.wide.u32 %rd6, %r1, 16;
        add.s64 %rd7, %rd4, %rd6;
        mov.b32 %r5, {column};
        mov.b32 %r6, {row};
        mad.lo.s32 %r10, %r1, 65537, 65537;
        setp.eq.u32 %p1, %r1, 0;
        st.shared.v4.b32 [%rd7], {{%r10, %r10, %r10, %r10}};
        fence.proxy.async.shared::cta;
        bar.sync 1, 128;
        @%p1 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd10, {{%r5, %r6}}], [%r2];
        cp.async.bulk.commit_group;
        cp.async.bulk.wait_group.read 0;
        {again}
        """,
        parameters=1,
        shared_bytes=BYTES,
    )
    return text.replace("\n)\n{", ",\n    .param .align 64 .b8 k_map[128]\n)\n{")


def stored(text: str) -> NDArray[np.uint16]:
    """The tensor that such a kernel stores to, zeros before."""
    memory = DeviceMemory()
    x = memory.allocate(X.nbytes)
    memory.write(x, np.zeros_like(X))
    tensor_map = int.from_bytes(encode(tensor_at(x)), "little")
    load_ptx(text).launch(memory, "k", (1, 1, 1), (128, 1, 1), [x, tensor_map])
    return memory.read(x, X.nbytes).view(np.uint16).reshape(X.shape)


@pytest.mark.parametrize(("column", "row"), [(0, 0), (8, 4), (40, 10), (-8, -3), (80, 30)])
def test_a_box_is_stored_where_the_tensor_has_it(column: int, row: int) -> None:
    box = np.empty((ROWS, 8, 8), np.uint16)
    for r in range(ROWS):
        box[r, np.arange(8)] = (8 * r + (np.arange(8) ^ r % 8) + 1)[:, None]
    wide = np.zeros((100, 300), np.uint16)
    wide[20 + row :, 100 + column :][:ROWS, :COLUMNS] = box.reshape(ROWS, COLUMNS)
    assert stored(store_text(column, row)).tolist() == wide[20:40, 100:172].tolist()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("fence.proxy.async.shared::cta;", "", "was written after the last fence.proxy.async"),
        ("fence.proxy", "@%p1 fence.proxy", "was written after the last fence.proxy.async"),
        ("bar.sync 1, 128;", "", r"reads .* thread number \d+ of its block wrote, and does not"),
        ("bar.sync 1, 128;", "bar.sync 1, 160;", "waits for 160 threads of its block, of which"),
        ("bar.sync 1, 128;", "bar.sync 1, 96;", "more than 96 threads come to it"),
        ("cp.async.bulk.wait_group.read 0;", "", "still reads shared memory when its block ends"),
        ("wait_group.read 0;", "wait_group.read 1;", "still reads shared memory when its block"),
        ("commit_group;", "wait_group 0;", "still reads shared memory when its block"),
        ("[%r2];\n", "[%r2+512];\n", "to 0x200 of shared memory, no multiple of 1024"),
        ("mov.b32 %r5, 0", "mov.b32 %r5, 4", "whose rows end within 16 bytes: not emulated"),
    ],
)
def test_what_stored_boxes_may_not(old: str, new: str, message: str) -> None:
    assert old in store_text()
    with pytest.raises(KernelFault, match=message):
        stored(store_text().replace(old, new))


def test_what_is_stored_stays_until_others_know_that_it_was_read() -> None:
    again = "st.shared.b32 [%rd7], %r10;"
    stored(store_text(again=f"bar.sync 0;\n{again}"))
    with pytest.raises(KernelFault, match="writes shared memory that a copy read, and does not"):
        stored(store_text(again=again))


def test_what_is_no_map() -> None:
    with pytest.raises(KernelFault, match="there is no map of a tensor of 2 axes"):
        run(box_text(), lambda data: bytes(128))
    good = tensor_at(256)
    assert decode(encode(good)) == good
    for wrong, what in (
        (replace(good, address=8), "address"),
        (replace(good, strides=(136,)), "strides"),
        (replace(good, box=(64, 257)), "box"),
        (replace(good, box=(60, 16)), "row of a box"),
        (replace(good, box=(128, 16)), "swizzled row"),
        (replace(good, swizzle=64), "swizzled row"),
        (replace(good, swizzle=48), "swizzle"),
        (replace(good, extents=(72,)), "rank"),
    ):
        with pytest.raises(EmulatorError, match=f"its {what} is not allowed"):
            encode(wrong)


def test_registers_are_given_in_eights() -> None:
    text = box_text().replace("bar.sync 0;", "bar.sync 0;\nsetmaxnreg.dec.sync.aligned.u32 40;")
    assert run(text).tolist() == swizzled(0, 0).tolist()
    with pytest.raises(EmulatorError, match="the number of registers"):
        load_ptx(text.replace("u32 40", "u32 41"))
