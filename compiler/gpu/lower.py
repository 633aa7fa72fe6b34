"""Lowering for GPUs: blocks to plain loops of blocks and threads, with barriers.

The phases are those of CPUs as far as they serve. Threads are named first, so that a thread's own
tile holds what that thread computes; what makes code for borders its own is left out: on a GPU a
border is a condition of few threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tunefarm.compiler.gpu.pipeline import pipeline_copies
from tunefarm.compiler.gpu.weave import weave_products
from tunefarm.compiler.tir.ir import PrimFunc
from tunefarm.compiler.tir.transform.blocks import blocks_to_loops
from tunefarm.compiler.tir.transform.conditions import hoist_conditions
from tunefarm.compiler.tir.transform.double_buffer import double_buffer
from tunefarm.compiler.tir.transform.lower import Phase, finish
from tunefarm.compiler.tir.transform.simplify import simplify
from tunefarm.compiler.tir.transform.storage import compact_buffers
from tunefarm.compiler.tir.transform.threads import insert_barriers, unify_threads
from tunefarm.compiler.tir.transform.virtual_threads import interleave_virtual_threads
from tunefarm.compiler.tir.verifier import verify


def replace_blocks(program: PrimFunc) -> PrimFunc:
    """Blocks become loops; threads that have nothing to fill of a shared tile are kept from it."""
    return blocks_to_loops(program, frozenset(b for b in program.buffers if b.scope == "shared"))


GPU_PHASES: tuple[Phase, ...] = (
    replace_blocks,  # iterators, init, predicates
    simplify,  # divisions of packed indices fold
    unify_threads,  # one name a thread
    compact_buffers,  # allocate what a thread, or a block of them, needs
    pipeline_copies,  # fill tiles several steps ahead, and wait for them
    double_buffer,  # fill the next tile while this one is read
    interleave_virtual_threads,  # their bodies, statement by statement
    unify_threads,  # shared tiles outside of the threads
    insert_barriers,  # where threads share what others write
    weave_products,  # copies and fragments between the products that come before them
    hoist_conditions,  # conditions stand at the loop they depend on
    finish,
)


def lower_gpu(
    program: PrimFunc,
    checked: bool = False,
    extra: Mapping[str, Sequence[Phase]] = MappingProxyType({}),
) -> PrimFunc:
    """A scheduled program as loops over blocks and threads; ``checked`` verifies each phase.

    ``extra`` are passes of the caller's own, such as ``{"after:simplify": [f]}``. Raises
    ScheduleError if threads would have to wait where not all of them come.
    """
    if checked:
        verify(program)
    for phase in GPU_PHASES:
        for step in (phase, *extra.get(f"after:{phase.__name__}", ())):
            program = step(program)
        if checked:
            verify(program)
    return verify(program, lowered=True) if checked else program
