"""Lowering: a scheduled program becomes plain loops that a code generator can print."""

from __future__ import annotations

from tunefarm.compiler import settings
from tunefarm.compiler.tir.ir import PrimFunc
from tunefarm.compiler.tir.transform.blocks import blocks_to_loops
from tunefarm.compiler.tir.transform.bounds import hoist_conditions, specialise, tighten_loops
from tunefarm.compiler.tir.transform.simplify import simplify
from tunefarm.compiler.tir.transform.storage import compact_buffers
from tunefarm.compiler.tir.verifier import verify


def lower(program: PrimFunc) -> PrimFunc:
    """Blocks to loops, every step printable. Loop kinds stay: the code generator expands them."""
    checked = settings.VERIFY.get()
    if checked:
        verify(program)
    program = blocks_to_loops(program)  # iterators, init, predicates
    program = simplify(program)  # divisions of packed indices fold
    program = compact_buffers(program)  # allocate what a tile needs
    program = hoist_conditions(program)  # conditions stand at the loop they depend on
    program = tighten_loops(program)  # borders become loop bounds
    program = specialise(program)  # remainders and borders get code of their own
    program = simplify(program)
    return verify(program, lowered=True) if checked else program
