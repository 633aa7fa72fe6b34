"""Asynchronous products of four warps, in text written by hand: layouts, waits and faults."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from ptx_text import kernel_text, run_text
from tunefarm.compiler.gpu.emulator import EmulatorError, KernelFault, load_ptx

_RANDOM = np.random.default_rng(3)
A = _RANDOM.integers(-9, 9, (64, 16)).astype(np.float16)
B = _RANDOM.integers(-9, 9, (16, 8)).astype(np.float16)
FENCE = "fence.proxy.async.shared::cta;"
WAIT = "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;"
DESCRIPTOR = "0x4000004000010000"  # 128 swizzled bytes a row, 1024 from eight rows to the next


def product(turned: bool, times: int = 1, fence: str = FENCE, wait: str = WAIT) -> str:
    """A kernel that adds A · B to fives, some times: A in rows of its terms, B in rows of its
    columns' terms or, if ``turned``, of its terms' columns."""
    row, chunk = ("%r1", "0") if turned else ("%r2", "%r3")
    one = (
        "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r20,%r21,%r22,%r23}, %rd10, %rd11, "
        f"p, 1, 1, 0, {int(turned)};\n}}\n"
    )
    return kernel_text(
        f"""
        mov.b64 %rd4, k_shared;
        shr.u32 %r2, %r1, 1;
        and.b32 %r3, %r1, 1;
        and.b32 %r4, %r2, 7;
        xor.b32 %r5, %r3, %r4;
        shl.b32 %r6, %r2, 7;
        mad.lo.s32 %r6, %r5, 16, %r6;
        cvt.u64.u32 %rd5, %r6;
        add.s64 %rd5, %rd4, %rd5;
        mul.wide.u32 %rd6, %r1, 16;
        add.s64 %rd7, %rd1, %rd6;
        ld.global.v4.b32 {{%r10, %r11, %r12, %r13}}, [%rd7];
        st.shared.v4.b32 [%rd5], {{%r10, %r11, %r12, %r13}};
        setp.gt.u32 %p1, %r1, 15;
        @%p1 bra $filled;
        mov.b32 %r7, {chunk};
        and.b32 %r8, {row}, 7;
        xor.b32 %r7, %r7, %r8;
        shl.b32 %r8, {row}, 7;
        mad.lo.s32 %r8, %r7, 16, %r8;
        cvt.u64.u32 %rd5, %r8;
        add.s64 %rd5, %rd4, %rd5;
        add.s64 %rd7, %rd2, %rd6;
        ld.global.v4.b32 {{%r10, %r11, %r12, %r13}}, [%rd7];
        st.shared.v4.b32 [%rd5+8192], {{%r10, %r11, %r12, %r13}};
    $filled:
        {fence}
        bar.sync 0;
        shr.u64 %rd10, %rd4, 4;
        or.b64 %rd10, %rd10, {DESCRIPTOR};
        add.s64 %rd11, %rd10, 512;
        mov.b32 %r20, 0f40A00000;
        mov.b32 %r21, 0f40A00000;
        mov.b32 %r22, 0f40A00000;
        mov.b32 %r23, 0f40A00000;
        wgmma.fence.sync.aligned;
        {one * times}
        {wait}
        shr.u32 %r2, %r1, 5;
        and.b32 %r3, %r1, 31;
        shr.u32 %r4, %r3, 2;
        and.b32 %r5, %r3, 3;
        mad.lo.s32 %r4, %r2, 16, %r4;
        shl.b32 %r4, %r4, 3;
        mad.lo.s32 %r4, %r5, 2, %r4;
        mul.wide.u32 %rd8, %r4, 4;
        add.s64 %rd8, %rd3, %rd8;
        st.global.v2.b32 [%rd8], {{%r20, %r21}};
        st.global.v2.b32 [%rd8+256], {{%r22, %r23}};
        """,
        parameters=3,
        shared_bytes=8192 + 2048,
    )


def run(text: str, turned: bool) -> NDArray[np.float32]:
    given = np.ascontiguousarray(B if turned else B.T)
    return run_text(text, [A, given], np.zeros((64, 8), np.float32), block=128)


@pytest.mark.parametrize("turned", [False, True])
def test_a_product_of_a_warpgroup(turned: bool) -> None:
    wanted = A.astype(np.float64) @ B.astype(np.float64)
    assert run(product(turned), turned).tolist() == (wanted + 5).tolist()
    assert run(product(turned, times=3), turned).tolist() == (3 * wanted + 5).tolist()
    alone = product(turned).replace("setp.ne.b32 p, 1, 0", "setp.ne.b32 p, 0, 0")
    assert run(alone, turned).tolist() == wanted.tolist()


SINGLE = _RANDOM.integers(-9, 9, (64, 8)).astype(np.float32)
HELD = """
    shr.u32 %r2, %r1, 2;
    and.b32 %r3, %r1, 3;
    shr.u32 %r4, %r1, 5;
    and.b32 %r5, %r2, 7;
    mad.lo.s32 %r5, %r4, 16, %r5;
    mad.lo.s32 %r5, %r5, 8, %r3;
    mul.wide.u32 %rd6, %r5, 4;
    add.s64 %rd7, %rd1, %rd6;
    ld.global.b32 %r30, [%rd7];
    ld.global.b32 %r31, [%rd7+256];
    ld.global.b32 %r32, [%rd7+16];
    ld.global.b32 %r33, [%rd7+272];
    wgmma.fence"""


def single(held: bool) -> str:
    """The same of float32, 64 × 8 by 8 × 8, whose A is in registers if it is ``held``."""
    text = product(False).replace("k16.f32.f16.f16", "k8.f32.tf32.tf32")
    text = text.replace("p, 1, 1, 0, 0", "p, 1, 1")
    if held:
        text = text.replace("%rd10, %rd11, p", "{%r30,%r31,%r32,%r33}, %rd11, p")
        text = text.replace("wgmma.fence", HELD)
    return text


@pytest.mark.parametrize("held", [False, True])
def test_a_product_of_float32(held: bool) -> None:
    """What float32 has beyond ten bits of fraction is not looked at."""
    b = _RANDOM.integers(-9, 9, (8, 8)).astype(np.float32)
    wanted = SINGLE @ b + 5
    for low in (0, 0x1FFF):
        given = [(x.view(np.uint32) | np.uint32(low)).view(np.float32) for x in (SINGLE, b)]
        given[1] = np.ascontiguousarray(given[1].T)
        got = run_text(single(held), given, np.zeros((64, 8), np.float32), block=128)
        assert got.tolist() == wanted.tolist()


def test_no_columns_of_float32_stand_side_by_side() -> None:
    with pytest.raises(EmulatorError, match="it has 8 operands"):
        load_ptx(single(False).replace("p, 1, 1", "p, 1, 1, 0, 1"))
    halves = product(False).replace("%rd10, %rd11, p", "{%r30,%r31,%r32,%r33}, %rd11, p")
    with pytest.raises(EmulatorError, match="does not know the instruction"):
        load_ptx(halves)


def test_a_product_is_there_when_it_is_waited_for() -> None:
    wanted = A.astype(np.float64) @ B.astype(np.float64)
    committed = "wgmma.commit_group.sync.aligned;\n"
    for wait in ("", "wgmma.wait_group.sync.aligned 0;", committed,
                 committed + "wgmma.wait_group.sync.aligned 1;"):  # fmt: skip
        assert (run(product(False, wait=wait), False) == 5).all()
    twice = committed * 2 + "wgmma.wait_group.sync.aligned 1;"
    assert run(product(False, wait=twice), False).tolist() == (wanted + 5).tolist()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (FENCE, "", r"wgmma.mma_async.*that was written after the last fence.proxy.async"),
        ("bar.sync 0;", "", r"reads shared memory that .* wrote since the last barrier"),
        ("or.b64 %rd10, %rd10, 0x4", "or.b64 %rd10, %rd10, 0x0", "only swizzled rows"),
        ("add.s64 %rd11, %rd10, 512", "cvt.u64.u32 %rd11, %r1", "have other descriptors"),
        ("add.s64 %rd11, %rd10, 512", "add.s64 %rd11, %rd10, 640", "of shared memory, which has"),
        ("add.s64 %rd11, %rd10, 512", "add.s64 %rd11, %rd10, 576", "which nobody wrote"),
    ],
)
def test_what_products_of_warpgroups_may_not(old: str, new: str, message: str) -> None:
    text = product(False).replace(old, new)
    assert text != product(False)
    with pytest.raises(KernelFault, match=message):
        run(text, False)


def test_products_that_are_not_known() -> None:
    text = product(False).replace("m64n8k16.f32.f16.f16", "m64n8k16.f32.f16.bf16")
    with pytest.raises(EmulatorError, match=r"does not know the instruction 'wgmma.mma_async"):
        load_ptx(text)


def test_warpgroups_come_whole() -> None:
    apart = "setp.lt.u32 %p2, %r1, 64;\n@%p2 bra $end;\nwgmma.fence"
    text = product(False).replace("wgmma.fence", apart).replace("    ret;", "$end:\n    ret;")
    with pytest.raises(KernelFault, match=r"waits for all threads of its warpgroup, but .* ended"):
        run(text, False)
