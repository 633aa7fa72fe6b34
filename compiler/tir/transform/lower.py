"""Lowering: a scheduled program becomes plain loops that a code generator can print."""

from __future__ import annotations

from collections.abc import Callable

from tunefarm.compiler import settings
from tunefarm.compiler.tir.ir import PrimFunc
from tunefarm.compiler.tir.transform.blocks import blocks_to_loops
from tunefarm.compiler.tir.transform.bounds import specialise, tighten_loops
from tunefarm.compiler.tir.transform.conditions import guard_tiles, hoist_conditions
from tunefarm.compiler.tir.transform.simplify import simplify
from tunefarm.compiler.tir.transform.storage import compact_buffers
from tunefarm.compiler.tir.verifier import verify

PHASES: tuple[Callable[[PrimFunc], PrimFunc], ...] = (
    blocks_to_loops,  # iterators, init, predicates
    simplify,  # divisions of packed indices fold
    compact_buffers,  # allocate what a tile needs
    guard_tiles,  # tiles of which nothing exists are left out
    hoist_conditions,  # conditions stand at the loop they depend on
    tighten_loops,  # borders become loop bounds
    specialise,  # remainders and borders get code of their own
    simplify,
)


def lower(program: PrimFunc, checked: bool | None = None) -> PrimFunc:
    """Blocks to loops. Loop kinds stay: the code generator expands them.

    ``checked`` verifies the program before the first phase and after each; None leaves that to
    TUNEFARM_VERIFY.
    """
    if checked is None:
        checked = settings.VERIFY.get()
    if checked:
        verify(program)
    for phase in PHASES:
        program = phase(program)
        if checked:
            verify(program)
    return verify(program, lowered=True) if checked else program
