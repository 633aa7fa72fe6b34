"""Functions of several threads, as the loop IR names them.

    warp_add(x, width)      the sum of x over the ``width`` threads that stand side by side

Every thread of a warp comes to it together, and each gets the result. ``width`` is a power of two
up to 32. The numbers are combined in the order of a butterfly: first those half of the width
apart, at last neighbours.

    cluster_add(x, blocks)  the sum of x over the warps of all blocks of a cluster

Every thread of so many blocks comes to it together; those of a warp give the same x. The numbers
are combined in the order of warps within blocks, a butterfly as above.

    mma.m16n8k16.f16.held(c, a0 … a3, b0 … b15)     c + Σ_k A[row, k] · B[k, column]
    mma.m16n8k8.tf32.held(c, a0, a1, b0 … b7)
    fma.m16n8k8.f32.held(c, a0, a1, b0 … b7)

One element of a matrix instruction (``gpu/mma.py``) whose A the threads hold as they hold results:
thread ``4·g + t`` has of its element's row, g or g + 8, columns 2·t, 2·t + 1, and of sixteen
2·t + 8, 2·t + 9. The four threads of a row have all of it. B is read from shared memory. The last
one is no instruction: threads shuffle their parts of A, and multiply and add in float32.

    turned(x0, x1, x2, x3, own, k)      number ``own`` of the x of thread k of the four
    turned(x0, x1, own, k)              … of two

Two or four threads that stand side by side hold the rows of a square; ``own`` is the number of each
among them, and what it gets by all k is a column.

    boxed(x[…], c0, n0, s0, c1, n1, s1, …)      x[…] where every 0 ≤ c < n, else 0

An element of a box that is copied to shared memory, of a tensor with these coordinates, extents and
strides (``gpu/boxes.py``).

    sent(x[…], c0, n0, s0, c1, n1, s1, …)      x[…], of shared memory

An element of a box that is copied from there, and stored where every 0 ≤ c < n.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunefarm.compiler.tir.ir import BinaryOp

WARP_REDUCTIONS: dict[str, BinaryOp] = {
    "warp_add": "add",
    "warp_mul": "mul",
    "warp_max": "max",
    "warp_maxnum": "maxnum",
    "warp_min": "min",
}

CLUSTER_REDUCTIONS: dict[str, BinaryOp] = {
    name.replace("warp", "cluster"): op for name, op in WARP_REDUCTIONS.items()
}

BOXED = "boxed"
SENT = "sent"
TURNED = "turned"
QUAD = 4  # threads that hold a row of a matrix


@dataclass(frozen=True, slots=True)
class HeldProduct:
    """A matrix instruction that takes A from registers; ``mma`` is its name with A in memory, if
    there is such an instruction."""

    mma: str
    operand: str
    depth: int = 16
    accumulator: str = "float32"

    @property
    def name(self) -> str:
        return f"{self.mma}.held"

    @property
    def terms(self) -> int:
        """Of a row of A, that a thread holds."""
        return self.depth // QUAD


HELD_PRODUCTS: Mapping[str, HeldProduct] = {
    p.name: p
    for p in (
        HeldProduct("mma.m16n8k16.f16", "float16"),
        HeldProduct("mma.m16n8k16.bf16", "bfloat16"),
        HeldProduct("mma.m16n8k8.tf32", "float32", 8),
        HeldProduct("fma.m16n8k8.f32", "float32", 8),
    )
}

EXCHANGES = frozenset({*WARP_REDUCTIONS, *CLUSTER_REDUCTIONS, *HELD_PRODUCTS, TURNED})
"""What all threads of a warp, or of a cluster, must come to together."""


def owner_of_term(k: int) -> tuple[int, int]:
    """The thread of a row's four that holds its term ``k``, and which of its own it is."""
    return k % 8 // 2, k // 8 * 2 + k % 2
