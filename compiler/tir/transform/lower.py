"""Lowering: a scheduled program becomes plain loops that a code generator can print."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from tunefarm.compiler import settings
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.tir.ir import PrimFunc
from tunefarm.compiler.tir.transform.arrays import cut_at_arrays
from tunefarm.compiler.tir.transform.blocks import blocks_to_loops
from tunefarm.compiler.tir.transform.bounds import tighten_loops
from tunefarm.compiler.tir.transform.conditions import (
    guard_tiles,
    hoist_conditions,
    unswitch_loops,
)
from tunefarm.compiler.tir.transform.double_buffer import double_buffer
from tunefarm.compiler.tir.transform.no_ops import remove_no_ops
from tunefarm.compiler.tir.transform.overlap import overlap_sums
from tunefarm.compiler.tir.transform.rows_together import take_rows_together
from tunefarm.compiler.tir.transform.short_vectors import shorten_vectors
from tunefarm.compiler.tir.transform.simplify import simplify
from tunefarm.compiler.tir.transform.specialise import specialise
from tunefarm.compiler.tir.transform.stagger import stagger_stages
from tunefarm.compiler.tir.transform.storage import compact_buffers
from tunefarm.compiler.tir.transform.threads import insert_barriers, unify_threads
from tunefarm.compiler.tir.transform.virtual_threads import interleave_virtual_threads
from tunefarm.compiler.tir.verifier import verify

Phase: TypeAlias = Callable[[PrimFunc], PrimFunc]


def finish(program: PrimFunc) -> PrimFunc:
    """Simplify what the phases made, and leave out what does nothing."""
    return simplify(remove_no_ops(program))


PHASES: tuple[Phase, ...] = (
    blocks_to_loops,  # iterators, init, predicates
    simplify,  # divisions of packed indices fold
    compact_buffers,  # allocate what a tile needs
    double_buffer,  # fill the next tile while this one is read
    interleave_virtual_threads,  # their bodies, statement by statement
    unify_threads,  # one name a thread
    insert_barriers,  # where threads share what others write
    guard_tiles,  # tiles of which nothing exists are left out
    hoist_conditions,  # conditions stand at the loop they depend on
    unswitch_loops,  # and those with an else branch, or of some statements
    tighten_loops,  # borders become loop bounds
    cut_at_arrays,  # each of those that are joined has a loop of its own
    specialise,  # remainders and borders get code of their own
    take_rows_together,  # what each has one of, and columns behind whole vectors
    shorten_vectors,  # last vectors of a row with few lanes have no others
    stagger_stages,  # a stage runs beside the next tile's one before it
    overlap_sums,  # what stands around a sum of matrix tiles runs beside another one
    finish,
)


def lower(
    program: PrimFunc,
    checked: bool | None = None,
    extra: Mapping[str, Sequence[Phase]] | None = None,
) -> PrimFunc:
    """Blocks to loops. Loop kinds stay: the code generator expands them.

    ``checked`` verifies the program before the first phase and after each; None leaves that to
    TUNEFARM_VERIFY. ``extra`` are passes of the caller's own, by place: ``{"after:simplify": [f]}``
    runs ``f`` after that phase, "before:…" before it. Raises TunefarmError for an unknown place.
    """
    if checked is None:
        checked = settings.VERIFY.get()
    if checked:
        verify(program)
    for phase in _steps(extra or {}):
        made = phase(program)
        if checked and made is not program:
            verify(made)
        program = made
    return verify(program, lowered=True) if checked else program


def _steps(extra: Mapping[str, Sequence[Phase]]) -> Iterator[Phase]:
    """The phases with the caller's passes among them."""
    names = [phase.__name__ for phase in PHASES]
    for place in extra:
        when, _, name = place.partition(":")
        if when not in ("before", "after") or name not in names:
            raise TunefarmError(
                f"{place!r} is no place in lowering; places are before: or after: one of "
                f"{', '.join(names)}"
            )
    for phase in PHASES:
        yield from extra.get(f"before:{phase.__name__}", ())
        yield phase
        yield from extra.get(f"after:{phase.__name__}", ())
