"""What each primitive prints, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import random_schedules as r
import tir_harness as h
from tunefarm.compiler import te
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import PackedLayout, PrimFunc, Var
from tunefarm.compiler.tir.transform.lower import lower

Golden = Callable[[str, str], None]
Schedule = Callable[[PrimFunc], PrimFunc]


def loop(program: PrimFunc, block: str, index: int) -> Var:
    return s.loops_of(program, block)[index]


def tiled(program: PrimFunc) -> PrimFunc:
    """C in tiles of 2 × 4, D after each tile."""
    program, (i0, i1) = s.split(program, loop(program, "C", 0), 2)
    program, (j0, j1) = s.split(program, loop(program, "C", 2), 4)
    program = s.reorder(program, i0, j0, loop(program, "C", 4), i1, j1)
    return s.reverse_compute_at(program, "D", j0)


def decomposed(program: PrimFunc) -> PrimFunc:
    return s.decompose_reduction(program, "C", loop(program, "C", 2))


def rfactored(program: PrimFunc) -> PrimFunc:
    program, (_, inner) = s.split(program, loop(program, "C", 2), 2)
    return s.rfactor(program, "C", inner)[0]


def halved(program: PrimFunc) -> PrimFunc:
    program = rfactored(program)
    return s.halve_reduction(program, "C", loop(program, "C", 2))


def written_out(program: PrimFunc) -> PrimFunc:
    program, (_, *parts) = s.split(program, loop(program, "C", 2), 3, 2)
    program, _ = s.rfactor(program, "C", *parts)
    return s.write_out_reduction(program, "C", loop(program, "C", 2))


def divided(program: PrimFunc) -> PrimFunc:
    return s.divide(program, "D", 1, 4)[0]


def joined(program: PrimFunc) -> PrimFunc:
    program = divided(program)
    return s.join(program, loop(program, "D", 0), loop(program, "D_rest", 0))


MATMUL: dict[str, Schedule] = {
    "plain": lambda p: p,
    "split": lambda p: s.split(p, loop(p, "C", 0), 2, 3)[0],
    "fuse": lambda p: s.fuse(p, *s.loops_of(p, "C")[:2])[0],
    "reorder": lambda p: s.reorder(p, loop(p, "C", 2), loop(p, "C", 0)),
    "kinds": lambda p: s.vectorize(
        s.unroll(s.parallel(p, loop(p, "C", 0)), loop(p, "C", 2)), loop(p, "D", 1)
    ),
    "compute_at": lambda p: s.compute_at(p, "C", loop(p, "D", 0)),
    "reverse_compute_at": tiled,
    "cache_read": lambda p: s.cache_read(p, "C", p.params[1], "local", 3)[0],
    "cache_write": lambda p: s.cache_write(p, "D", "local")[0],
    "permute_buffer": lambda p: s.permute_buffer(p, "C", (1, 0)),
    "pack_buffer": lambda p: s.pack_buffer(p, "C", PackedLayout(((), (4,)), (1, 0, 2))),
    "decompose_reduction": decomposed,
    "divide": divided,
    "divide a sum": lambda p: s.divide(p, "C", 0, 2)[0],
    "join": joined,
    "set_scope": lambda p: s.set_scope(p, "C", "local"),
    "rfactor": rfactored,
    "halve_reduction": halved,
    "write_out_reduction": written_out,
    "transform_layout": lambda p: s.transform_layout(p, 1, PackedLayout(((), (4,)), (1, 0, 2))),
}


@pytest.mark.parametrize("name", sorted(MATMUL))
def test_a_primitive_prints_what_it_did(name: str, golden: Golden) -> None:
    program = r.matmul(5, 6, 7)
    scheduled = MATMUL[name](program)
    golden(name, f"{scheduled}\n# lowered\n{lower(scheduled)}")
    arrays = h.whole_numbers(program)
    h.same(h.interpreted(scheduled, arrays), h.interpreted(program, arrays), name)


def test_an_inlined_block_leaves_no_buffer(golden: Golden) -> None:
    program = s.compute_inline(r.chain(3, 4), "A")
    golden("compute_inline", str(program))
    assert [b.name for b in program.buffers] == ["B"]


def _vectorize_fused(program: PrimFunc) -> PrimFunc:
    program, fused = s.fuse(program, *s.loops_of(program, "C")[1:])
    return s.vectorize(program, fused)


def _decompose_inside(program: PrimFunc) -> PrimFunc:
    program = s.reorder(program, loop(program, "C", 2), loop(program, "C", 0))
    return s.decompose_reduction(program, "C", loop(program, "C", 2))


REFUSALS: dict[str, tuple[Schedule, str]] = {
    "split by nothing": (
        lambda p: s.split(p, loop(p, "C", 0), 0)[0],
        "positive whole numbers as factors",
    ),
    "fuse of what is not nested": (
        lambda p: s.fuse(p, loop(p, "C", 0), loop(p, "C", 2))[0],
        "loop k is not directly inside i",
    ),
    "reorder across nests": (
        lambda p: s.reorder(p, loop(p, "C", 0), loop(p, "D", 0)),
        "loop i is not in one perfect nest",
    ),
    "a loop twice": (
        lambda p: s.reorder(p, loop(p, "C", 1), loop(p, "C", 1)),
        "loop j is named twice",
    ),
    "no scope": (
        lambda p: s.cache_write(p, "C", "stack")[0],
        "there is no scope 'stack'; scopes: global, local, register, tile, shared",
    ),
    "parallel reduction": (lambda p: s.parallel(p, loop(p, "C", 2)), "carries the reduction of C"),
    "lanes of two kinds": (
        _vectorize_fused,
        "carries spatial and reduction iterators of C",
    ),
    "no such block": (lambda p: s.compute_inline(p, "X"), "no block 'X' in matmul; blocks: C, D"),
    "inlined reduction": (lambda p: s.compute_inline(p, "C"), "C is a reduction"),
    "inlined output": (lambda p: s.compute_inline(p, "D"), "D writes an output"),
    "inlined first value": (
        lambda p: s.compute_inline(decomposed(p), "C_init"),
        "C is written by C too, not by C_init alone",
    ),
    "moved output": (lambda p: s.compute_at(p, "D", loop(p, "C", 0)), "D writes an output"),
    "moved without its first value": (
        lambda p: s.compute_at(decomposed(p), "C", loop(p, "D", 0)),
        "C is written by C_init too",
    ),
    "not every reader inside": (
        lambda p: s.compute_at(p, "C", loop(p, "C", 0)),
        "not every consumer of C is inside loop i",
    ),
    "unfinished reduction": (
        lambda p: s.reverse_compute_at(p, "D", loop(p, "C", 2)),
        "the reduction of C is not finished inside loop k",
    ),
    "no producer inside": (
        lambda p: s.reverse_compute_at(p, "D", loop(p, "D", 0)),
        "no producer of D is inside loop i",
    ),
    "reduction that follows": (
        lambda p: s.reverse_compute_at(p, "C", loop(p, "D", 0)),
        "C is a reduction",
    ),
    "nothing to decompose": (
        lambda p: s.decompose_reduction(p, "D", loop(p, "D", 0)),
        "D has no init",
    ),
    "decomposed inside its reduction": (
        _decompose_inside,
        "loop k of the reduction of C is outside loop i",
    ),
    "cache of what is not read": (
        lambda p: s.cache_read(p, "D", p.params[0], "local")[0],
        "D does not read A",
    ),
    "cache of half a reduction": (
        lambda p: s.cache_write(decomposed(p), "C", "local")[0],
        "C is written by C_init too",
    ),
    "cache behind a reader": (
        lambda p: s.cache_write(tiled(p), "C", "local")[0],
        "block D reads C inside the loops of C",
    ),
    "permuted output": (lambda p: s.permute_buffer(p, "D", (1, 0)), "its layout is fixed"),
    "output in a layout": (
        lambda p: s.pack_buffer(p, "D", PackedLayout(((), (4,)), (1, 0, 2))),
        "its layout is fixed",
    ),
    "not an order": (lambda p: s.permute_buffer(p, "C", (1, 1)), "is not an order of C"),
    "packed output": (
        lambda p: s.transform_layout(p, 3, PackedLayout(((), ()), (1, 0))),
        "D is an output",
    ),
    "divided at its end": (lambda p: s.divide(p, "C", 1, 6)[0], "inside of the extent, 6, of a"),
    "divided sum": (lambda p: s.divide(p, "C", 2, 2)[0], "of a spatial iterator"),
    "divided tiles": (
        lambda p: s.divide(tiled(p), "D", 0, 2)[0],
        "the loops of block D are scheduled; divide it before",
    ),
    "join of a reader": (
        lambda p: s.join(p, loop(p, "C", 0), loop(p, "D", 0)),
        "loop i writes C, and loop i may touch the same elements",
    ),
    "join of what is not behind": (
        lambda p: s.join(p, loop(p, "D", 0), loop(p, "C", 0)),
        "loop i does not follow loop i",
    ),
    "join of other extents": (
        lambda p: s.join(q := s.divide(p, "D", 0, 2)[0], loop(q, "D", 0), loop(q, "D_rest", 0)),
        "not both serial, without hints, and of as many iterations: 2 and 3",
    ),
    "scope of an output": (lambda p: s.set_scope(p, "D", "local"), "its scope is fixed"),
}


@pytest.mark.parametrize("name", sorted(REFUSALS))
def test_a_primitive_refuses(name: str) -> None:
    step, reason = REFUSALS[name]
    with pytest.raises(ScheduleError, match=reason):
        step(r.matmul(5, 6, 7))


def test_a_consumer_waits_for_everything_that_it_reads() -> None:
    program = r.chain(4, 5)
    with pytest.raises(ScheduleError, match="block C reads what B writes after loop i"):
        s.reverse_compute_at(program, "C", loop(program, "A", 0))


def test_a_consumer_with_more_elements_stays_behind() -> None:
    x = te.placeholder((3,), name="X")
    a = te.compute((3,), lambda i: x[i] * 2, name="A")
    b = te.compute((5,), lambda i: te.if_then_else(i < 3, a[i], 7), name="B")
    program = te.create_prim_func([x, b])
    with pytest.raises(ScheduleError, match="B has elements beyond those of A"):
        s.reverse_compute_at(program, "B", loop(program, "A", 0))


def test_a_consumer_waits_for_whole_regions() -> None:
    """The outer loop writes every other element; the rest is not there to be read."""
    program = r.chain(6, 2)
    program, (i0, i1) = s.split(program, loop(program, "B", 0), 2)
    program = s.reorder(program, i1, i0)
    with pytest.raises(ScheduleError, match="B writes a part of a region in an iteration of"):
        s.reverse_compute_at(program, "C", i1)
    uneven = r.chain(6, 2)
    uneven, (_, tile) = s.split(uneven, loop(uneven, "B", 0), 2)
    uneven, _ = s.split(uneven, tile, 3)
    with pytest.raises(ScheduleError, match="B writes a part of a region in an iteration of"):
        s.reverse_compute_at(uneven, "C", loop(uneven, "B", 0))


def test_a_consumer_follows_a_tile_of_fused_loops() -> None:
    program = r.matmul(6, 4, 3)
    program, (i0, i1) = s.split(program, loop(program, "C", 0), 3)
    program, fused = s.fuse(program, i1, loop(program, "C", 2))
    placed = s.reverse_compute_at(program, "D", i0)
    arrays = h.whole_numbers(program)
    want = h.interpreted(r.matmul(6, 4, 3), arrays)
    h.same(h.compiled(lower(placed), arrays), want, str(placed))
    program, (half, _) = s.split(program, fused, 6)
    with pytest.raises(ScheduleError, match="C writes a part of a region in an iteration of"):
        s.reverse_compute_at(program, "D", half)


def test_a_consumer_reads_the_rows_of_a_group_as_one_axis() -> None:
    x = te.placeholder((12, 4), name="X")
    a = te.compute((3, 24), lambda g, t: x[g * 4 + t // 6, t % 6 % 4] * 2, name="A")
    b = te.compute((12, 4), lambda i, j: a[i // 4, i % 4 * 6 + j] + 1, name="B")
    program = te.create_prim_func([x, b])
    group, pixel = (loop(program, "A", n) for n in range(2))
    placed = s.set_scope(s.reverse_compute_at(program, "B", group), "A", "local")
    arrays = h.whole_numbers(program)
    want = h.interpreted(program, arrays)
    h.same(h.compiled(lower(placed), arrays), want, str(placed))
    with pytest.raises(ScheduleError, match="B does not read A at its own iterators"):
        s.reverse_compute_at(program, "B", pixel)


def test_a_last_group_may_have_fewer_rows() -> None:
    x = te.placeholder((10,), name="X")
    a = te.compute((3,), lambda g: x[g * 4] * 2, name="A")
    c = te.compute((10,), lambda i: x[i] + 1, name="C")
    b = te.compute((10,), lambda i: a[i // 4] + c[i], name="B")
    program = te.create_prim_func([x, b])
    placed = s.compute_inline(program, "C")
    loose, _ = s.split(placed, loop(placed, "A", 0), 1)
    around, _ = s.split(placed, loop(placed, "A", 0), 3)
    arrays = h.whole_numbers(program)
    want = h.interpreted(program, arrays)
    for made in (loose, around):
        outer = loop(made, "A", 0)
        moved = s.reverse_compute_at(made, "B", outer)
        h.same(h.compiled(lower(moved), arrays), want, str(moved))


def test_overlapping_tiles_keep_their_first_values() -> None:
    """Each tile of B sums two rows, one of which the tile before it has summed already."""
    x, k = te.placeholder((6, 3), name="X"), te.reduce_axis(3)
    a = te.compute((6,), lambda i: te.sum(x[i, k], [k]), name="A")
    b = te.compute((5,), lambda i: a[i] + a[i + 1], name="B")
    program = te.create_prim_func([x, b])
    program = s.compute_at(program, "A", loop(program, "B", 0))
    with pytest.raises(ScheduleError, match="tiles of A overlap inside loop i"):
        s.decompose_reduction(program, "A", loop(program, "A", 0))
    inside = s.decompose_reduction(program, "A", loop(program, "A", 1))
    arrays = h.whole_numbers(program)
    h.same(h.compiled(lower(inside), arrays), h.interpreted(program, arrays), str(inside))


def test_a_repeated_producer_keeps_its_first_value_inside() -> None:
    x, k = te.placeholder((3,), name="X"), te.reduce_axis(3)
    total = te.compute((1,), lambda i: te.sum(x[k], [k]), name="T")
    out = te.compute((4,), lambda i: total[0] * 2, name="O")
    program = te.create_prim_func([x, out])
    program = s.compute_at(program, "T", loop(program, "O", 0))
    with pytest.raises(ScheduleError, match="loop i repeats T inside loop i"):
        s.decompose_reduction(program, "T", loop(program, "T", 0))


def test_lanes_have_elements_of_their_own() -> None:
    """A tile inside a vectorized loop takes one element a lane."""
    program = r.matmul(6, 5, 6)
    program, fused = s.fuse(program, *s.loops_of(program, "D"))
    program = s.compute_at(program, "C", fused)
    program = s.vectorize(program, fused)
    program = s.decompose_reduction(program, "C", loop(program, "C", 1))
    arrays = h.whole_numbers(program)
    h.same(h.compiled(lower(program), arrays), h.interpreted(program, arrays), str(program))


def test_padding_lanes_of_a_whole_buffer_stay_inside_it() -> None:
    program = r.rows(2, 1)
    program, _ = s.split(program, loop(program, "M", 0), 3)
    program = s.decompose_reduction(program, "M", loop(program, "M", 1))
    arrays = h.whole_numbers(program)
    h.same(h.interpreted(lower(program), arrays), h.interpreted(program, arrays), str(program))


def test_the_rest_of_a_loop_of_both_kinds_guards_the_first_value() -> None:
    program = r.matmul(2, 7, 3)
    program, fused = s.fuse(program, *s.loops_of(program, "C")[1:])
    program, _ = s.split(program, fused, 2)
    arrays = h.whole_numbers(program)
    want = h.interpreted(r.matmul(2, 7, 3), arrays)
    h.same(h.interpreted(program, arrays), want, str(program))
    h.same(h.compiled(lower(program), arrays), want, str(program))


def test_a_consumer_leaves_out_what_its_producer_does() -> None:
    """Iterations 1 and 2 of the split loop compute nothing that could be consumed."""
    program = r.chain(1, 7)
    program, _ = s.split(program, loop(program, "B", 0), 3)
    program = s.reverse_compute_at(program, "C", loop(program, "B", 2))
    arrays = h.whole_numbers(program)
    want = h.interpreted(r.chain(1, 7), arrays)
    h.same(h.interpreted(lower(program), arrays), want, str(program))


def test_no_loop_bound_depends_on_the_lane() -> None:
    """A padded window under a vectorized loop: its condition becomes a mask, not a bound."""
    x, k = te.placeholder((8,), name="X"), te.reduce_axis(3)
    y = te.compute(
        (8,),
        lambda i: te.sum(te.if_then_else((i + k >= 1) & (i + k < 9), x[i + k - 1], 0.0), [k]),
        name="Y",
    )
    program = te.create_prim_func([x, y])
    outer, inner = s.loops_of(program, "Y")
    program = s.vectorize(s.decompose_reduction(program, "Y", inner), outer)
    arrays = h.whole_numbers(program)
    h.same(h.compiled(lower(program), arrays), h.interpreted(program, arrays), str(program))
