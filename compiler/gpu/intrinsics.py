"""Functions of several threads, as the loop IR names them.

    warp_add(x, width)      the sum of x over the ``width`` threads that stand side by side

Every thread of a warp comes to it together, and each gets the result. ``width`` is a power of two
up to 32. The numbers are combined in the order of a butterfly: first those half of the width
apart, at last neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunefarm.compiler.tir.ir import BinaryOp

WARP_REDUCTIONS: dict[str, BinaryOp] = {
    "warp_add": "add",
    "warp_mul": "mul",
    "warp_max": "max",
    "warp_min": "min",
}
