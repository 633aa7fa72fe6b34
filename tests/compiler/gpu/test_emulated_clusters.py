"""Addresses in the shared memory of a cluster of blocks, in text written by hand."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from ptx_text import kernel_text, run_text
from tunefarm.compiler.gpu.emulator import KernelFault

SPAN = 1 << 24
HEAD = """
    mov.b64 %rd4, k_shared;
    cvt.u32.u64 %r2, %rd4;
    mov.u32 %r3, %ctaid.x;
    and.b32 %r4, %r3, 1;
    xor.b32 %r5, %r4, 1;
    mapa.shared::cluster.u32 %r6, %r2, %r4;
    mapa.shared::cluster.u32 %r7, %r2, %r5;
    shl.b32 %r8, %r1, 2;
    add.s32 %r9, %r2, %r8;
    add.s32 %r10, %r7, %r8;
    mul.lo.s32 %r11, %r3, 100;
    add.s32 %r11, %r11, %r1;
    mad.lo.s32 %r12, %r3, 32, %r1;
    mul.wide.u32 %rd5, %r12, 4;
    add.s64 %rd5, %rd1, %rd5;
    cvt.u64.u32 %rd6, %r9;
    cvta.shared.u64 %rd7, %rd6;
    cvta.to.shared.u64 %rd8, %rd7;
"""
BOTH = "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;"
OWN = np.arange(32) + 100 * np.arange(4)[:, None]  # %r11 of four blocks
OTHERS = OWN[[1, 0, 3, 2]]


def run(body: str) -> NDArray[np.uint32]:
    """What the 32 threads of each of four blocks, clusters of two, find in %r20 at last."""
    text = kernel_text(f"{HEAD}{body}\nst.global.b32 [%rd5], %r20;", 1, 512)
    text = text.replace("\n)\n{", "\n)\n.explicitcluster\n.reqnctapercluster 2, 1, 1\n{")
    return run_text(text, [], np.zeros((4, 32), np.uint32), grid=4)


@pytest.mark.parametrize(("register", "ranks"), [("%r2", 0), ("%r6", 0), ("%r7", 1)])
def test_an_address_has_the_number_of_its_block(register: str, ranks: int) -> None:
    numbers = (np.arange(4) + ranks) % 2 * SPAN
    assert run(f"mov.b32 %r20, {register};").tolist() == np.tile(numbers[:, None], 32).tolist()


@pytest.mark.parametrize("store", ["st.shared.b32 [%r9]", "st.shared.b32 [%rd6]",
                                   "st.b32 [%rd7]", "st.shared.b32 [%rd8]",
                                   "st.shared::cluster.b32 [%r9]"])  # fmt: skip
@pytest.mark.parametrize("load", ["ld.shared.b32 %r20, [%r9]", "ld.b32 %r20, [%rd7]"])
def test_a_block_finds_its_own(store: str, load: str) -> None:
    assert run(f"{store}, %r11;\nbar.sync 0;\n{load};").tolist() == OWN.tolist()


def test_a_symbol_is_an_address_of_the_cluster() -> None:
    first = "setp.eq.u32 %p1, %r1, 0;\n@%p1 st.shared::cluster.b32 [k_shared+4], %r11;"
    found = run(f"{first}\nbar.sync 0;\nld.shared.b32 %r20, [k_shared+4];")
    assert found.tolist() == np.tile(OWN[:, :1], 32).tolist()


def test_a_block_writes_to_the_other() -> None:
    body = f"{BOTH}\nst.shared::cluster.b32 [%r10], %r11;\n{BOTH}\nld.shared.b32 %r20, [%r9];"
    assert run(body).tolist() == OTHERS.tolist()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("st.shared.b32 [%r10], %r11;", "writes 4 bytes at 0x100007c of shared memory"),
        ("ld.shared.b32 %r20, [%r10];", "reads 4 bytes at 0x100007c of shared memory"),
        (
            "cvt.u64.u32 %rd9, %r10;\ncvta.shared.u64 %rd9, %rd9;\nst.b32 [%rd9], %r11;",
            "writes 4 bytes at 0x100007c of shared memory",
        ),
        ("and.b32 %r9, %r9, 0xffffff;\nst.shared.b32 [%r9], %r11;", r"block \(1, 0, 0\).*writes"),
        ("cp.async.ca.shared.global [%r10], [%rd5], 4;", "writes 4 bytes at 0x100007c"),
        ("setp.eq.u32 %p1, %r1, 0;\n@%p1 mbarrier.init.shared::cta.b64 [%r7], 1;",
         "no room for an mbarrier at 0x1000000"),
        (
            "setp.eq.u32 %p1, %r1, 0;\n@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\n"
            f"{BOTH}\n@%p1 mbarrier.arrive.shared::cta.b64 _, [%r7];",
            "no mbarrier at 0x1000000",
        ),
        ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r20}, [%r7];", "reads 16 bytes at 0x1000000"),
        ("add.s32 %r10, %r10, 0x2000000;\nst.shared::cluster.b32 [%r10], %r11;",
         "there is no block 3 in a cluster of 2"),
    ],
)  # fmt: skip
def test_another_block_is_not_the_own(body: str, why: str) -> None:
    with pytest.raises(KernelFault, match=why):
        run(body)
