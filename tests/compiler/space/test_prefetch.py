"""Hints for the next panel of weights, and for the next tile of large arrays: all their lines, in
iterations that run."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any, TypeAlias, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from sketch_harness import function_of
from tunefarm.compiler.ir import Call, Expr, Function
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import Config, config_space, schedule_workload
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.ir import Binary, Const, For, Prefetch, Stmt
from tunefarm.compiler.tir.ir import Expr as Index
from tunefarm.compiler.tir.ir import Var as LoopVar
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.tir.visit import children
from tunefarm.compiler.workload import Workload

Numbers: TypeAlias = int | NDArray[np.int64]
TARGET = Target("llvm -mcpu=znver5 -num-cores=2")
MESH = Target("llvm -mcpu=emeraldrapids -num-cores=2")
TILES_OF_AMX = Target("llvm -mcpu=graniterapids -num-cores=1")
LINE = 16  # elements


def with_constant(function: Function) -> Workload:
    attrs = {**function.attrs, "constants": (1,)}
    return Workload.from_function(Function(function.params, function.body, attrs))


def product(rows: int, depth: int, columns: int) -> Workload:
    types = ((rows, depth), "float32"), ((depth, columns), "float32")
    return with_constant(function_of("matmul", *types))


def convolution(height: int, width: int, channels: int) -> Workload:
    types = ((1, height, width, channels), "float32"), ((3, 3, channels, 64), "float32")

    def same(x: Expr, w: Expr) -> Call:
        layouts = {"data_layout": "NSC", "kernel_layout": "SIO"}
        return call("conv", x, w, padding=((1, 1), (1, 1)), **layouts)

    return with_constant(function_of(same, *types))


def asked(stmt: Stmt, at: Mapping[LoopVar, Numbers]) -> Iterator[tuple[Prefetch, int]]:
    """The first element that each hint asks for, as the loops run."""
    if not isinstance(stmt, For):
        for child in children(stmt):
            yield from asked(child, at)
        return
    first = int(number(stmt.start, at))
    iterations = np.arange(first, first + int(number(stmt.extent, at)))
    if not hints_below(stmt.body):
        now = {**at, stmt.var: iterations}
        places = [np.broadcast_to(number(h.offset, now), iterations.shape) for h in stmt.prefetch]
        for together in zip(*(place.tolist() for place in places), strict=True):
            yield from zip(stmt.prefetch, together, strict=True)
        return
    for value in iterations.tolist():
        now = {**at, stmt.var: value}
        for hint in stmt.prefetch:
            yield hint, int(number(hint.offset, now))
        yield from asked(stmt.body, now)


OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "min": np.minimum,
    "max": np.maximum, "floordiv": operator.floordiv, "floormod": operator.mod,
}  # fmt: skip


def number(expr: Index, at: Mapping[LoopVar, Numbers]) -> Numbers:
    """An index for the values of the loops, of which one may be all of its iterations."""
    match expr:
        case Const(value):
            return int(value)
        case LoopVar():
            return at[expr]
        case Binary(op, a, b):
            return cast(Numbers, OPERATIONS[op](number(a, at), number(b, at)))
    raise AssertionError(expr)


def hints_below(stmt: Stmt) -> bool:
    own = isinstance(stmt, For) and bool(stmt.prefetch)
    return own or any(map(hints_below, children(stmt)))


CONTRACTION = {"sketch": "contraction", "rh": 1, "ku": 2, "order": "nm"}
CONTRACTION |= dict.fromkeys(("pack_lhs", "pack_rhs", "prefetch"), 0)
STRASSEN = {"sketch": "strassen", "ku": 2, "by_tile": 0}
WINOGRAD = {"sketch": "winograd", "tile_h": 2, "tile_w": 2, "ku": 2, "by_row": 0}


@pytest.mark.parametrize(
    ("workload", "config"),
    [
        (product(49, 64, 128), CONTRACTION | {"rw": 10, "nv": 2, "mb": 6, "nb": 1}),
        (product(49, 40, 96), CONTRACTION | {"rw": 7, "nv": 1, "mb": 8, "nb": 2}),
        (product(98, 64, 128), STRASSEN | {"rw": 10, "nv": 1, "mb": 5, "nb": 4}),
        (product(98, 64, 128), STRASSEN | {"rw": 10, "nv": 1, "mb": 5, "nb": 2}),
        (product(98, 64, 64), STRASSEN | {"rw": 10, "nv": 1, "mb": 2, "nb": 2}),
        (convolution(7, 7, 64), WINOGRAD | {"rw": 6, "nv": 2, "mb": 4, "nb": 2}),
    ],
    ids=[
        "more tiles than rows",
        "shares below a line",
        "strassen",
        "blocks of panels",
        "blocks of rows",
        "winograd",
    ],
)
@pytest.mark.parametrize("target", [TARGET, MESH], ids=["line after line", "at four places"])
def test_every_line_behind_the_first_panel_is_asked_for(
    workload: Workload, config: Config, target: Target
) -> None:
    lowered = lower(schedule_workload(workload, target, {**config, "next_panel": 1}))
    *_, depth, width = lowered.params[1].shape
    found = {
        first // LINE + line
        for hint, first in asked(lowered.body, {})
        if hint.buffer is lowered.params[1]
        for line in range(hint.lines)
    }
    panels = set(range(depth * width // LINE, prod(lowered.params[1].shape) // LINE))
    assert panels <= found


@pytest.mark.parametrize(("rows", "rh"), [(64, 2), (128, 1), (128, 2), (400, 2), (1664, 2)])
def test_every_line_of_the_next_parts_is_asked_for(rows: int, rh: int) -> None:
    """Where iterations have few lines, and where they have many, four side by side."""
    config = {"sketch": "float_parts", "rh": rh, "nv": 2, "mb": -(-rows // (16 * rh))}
    config |= {"nb": 2, "stretch": 0, "ahead": 0, "next_panel": 1}
    lowered = lower(schedule_workload(product(rows, 128, 128), TILES_OF_AMX, config))
    weights, line = lowered.params[1], 2 * LINE
    hints = [h for h in asked(lowered.body, {}) if h[0].buffer is weights]
    found = {first // line + h.lines_before(n) for h, first in hints for n in range(h.lines)}
    elements = prod(weights.shape)
    assert set(range(elements // 4 // line, elements // line)) <= found
    assert {h.run for h, _ in hints} == {4 if rows <= 400 else 1}


def test_a_panel_that_is_read_once_is_asked_for_shortly_before() -> None:
    """Of 3 × 16 × 3 steps those of a row of taps, so that no whole panel waits in the cache."""
    config = {"sketch": "window_parts", "rows": 7, "rh": 4, "nv": 1, "mb": 1, "nb": 4}
    workload = convolution(7, 7, 512)
    lowered = lower(schedule_workload(workload, TILES_OF_AMX, {**config, "next_panel": 1}))
    weights, line = lowered.params[1], 2 * LINE
    hints = [h for h in asked(lowered.body, {}) if h[0].buffer is weights]
    found = {first // line + h.lines_before(n) for h, first in hints for n in range(h.lines)}
    elements, row = prod(weights.shape), 16 * 3 * 3 * 32 * 16
    assert set(range(row // line, elements // line)) <= found
    assert min(found) == row // line


@pytest.mark.parametrize(
    ("rows", "apart"),
    [(49, [640, 640, 640]), (196, [LINE, LINE, LINE])],
    ids=["most are new", "few are new"],
)
def test_a_mesh_asks_at_four_places_in_turn(rows: int, apart: list[int]) -> None:
    """Panels of 128 lines: 5 tiles of 32 iterations ask for one line each, a quarter of them apart,
    20 tiles mostly for lines that are there."""
    config = CONTRACTION | {"rw": 10, "nv": 2, "mb": 20, "nb": 1, "next_panel": 1}
    offsets = {}
    for target in (TARGET, MESH):
        lowered = lower(schedule_workload(product(rows, 64, 128), target, config))
        offsets[target] = [first for _, first in asked(lowered.body, {})][:4]
    steps = {target: np.diff(firsts).tolist() for target, firsts in offsets.items()}
    assert steps == {TARGET: [LINE, LINE, LINE], MESH: apart}


def with_residual(rows: int, depth: int, columns: int) -> Workload:
    shapes = (rows, depth), (depth, columns), (rows, columns)

    def added(x: Expr, w: Expr, residual: Expr) -> Call:
        return call("add", call("matmul", x, w), residual)

    return with_constant(function_of(added, *((shape, "float32") for shape in shapes)))


def lines_of(workload: Workload, config: Config, target: Target = TARGET) -> dict[str, set[int]]:
    """The lines that hints ask for, by the buffer."""
    lowered = lower(schedule_workload(workload, target, {**config, "next_panel": 0}))
    found: dict[str, set[int]] = {}
    for hint, first in asked(lowered.body, {}):
        lines = {(first + LINE * line) // LINE for line in range(hint.lines)}
        found.setdefault(hint.buffer.name, set()).update(lines)
    return found


TILES = CONTRACTION | {"order": "mn", "mb": 24, "nb": 2}


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "tile"),
    [
        (2053, 128, 128, {"rw": 6, "nv": 4}),
        (2053, 144, 96, {"rw": 7, "nv": 2}),
        (1400, 112, 112, {"rw": 14, "nv": 1}),
        (4100, 64, 48, {"rw": 4, "nv": 3}),
    ],
    ids=["two panels", "three panels", "narrow panels", "whole rows"],
)
def test_every_line_behind_the_first_tile_is_asked_for(
    rows: int, depth: int, columns: int, tile: Config
) -> None:
    found = lines_of(with_residual(rows, depth, columns), TILES | tile)
    behind = int(tile["rw"])
    image = set(range(behind * depth // LINE, rows * depth // LINE))
    results = set(range(behind * columns // LINE, rows * columns // LINE))
    assert image <= found["p0"]
    assert results <= found["p2"]
    assert results <= found["add"]


@pytest.mark.parametrize("rows", [1400, 1402])
def test_every_left_operand_behind_the_first_block_is_asked_for(rows: int) -> None:
    config = STRASSEN | {"rw": 10, "nv": 1, "mb": 5, "nb": 4}
    found = lines_of(product(rows, 128, 128), config)
    assert set(range(2 * 50 * 128 // LINE, rows * 128 // LINE)) <= found["p0"]


def test_left_operands_of_the_second_cache_are_not_asked_for() -> None:
    config = STRASSEN | {"rw": 10, "nv": 1, "mb": 5, "nb": 4}
    assert not lines_of(product(400, 128, 128), config)


def planes(height: int, width: int, stride: int, layout: str = "NCS") -> Workload:
    """A network's first layer, of an image of three channels."""
    shape = (1, 3, height, width) if layout == "NCS" else (1, height, width, 3)

    def first(x: Expr, w: Expr) -> Call:
        layouts = {"data_layout": layout, "kernel_layout": "SIO", "out_layout": "NSC"}
        return call("conv", x, w, strides=(stride,) * 2, padding=((1, 1), (1, 1)), **layouts)

    return with_constant(function_of(first, (shape, "float32"), ((3, 3, 3, 32), "float32")))


@pytest.mark.parametrize(
    ("height", "width", "stride", "tile"),
    [
        (96, 224, 2, {"rw": 14, "rh": 1}),
        (97, 131, 2, {"rw": 8, "rh": 1}),
        (96, 112, 1, {"rw": 7, "rh": 2}),
    ],
    ids=["whole tiles", "odd image", "tiles of two rows"],
)
def test_every_line_of_planes_below_the_first_rows_is_asked_for(
    height: int, width: int, stride: int, tile: Config
) -> None:
    config = CONTRACTION | {"order": "mn", "ku": 1, "nv": 2, "mb": 64, "nb": 1, **tile}
    found = lines_of(planes(height, width, stride), config)["p0"]
    read = int(tile["rh"]) * stride + 3  # by the first rows of tiles
    for plane in range(3):
        below = range((plane * height + read) * width // LINE, (plane + 1) * height * width // LINE)
        assert set(below) <= found
    assert len(found) <= 1.1 * 3 * height * width / LINE


def test_windows_that_are_written_out_have_no_loop_for_hints() -> None:
    """Convolutions in three groups of one channel each."""

    def grouped(x: Expr, w: Expr) -> Call:
        layouts = {"data_layout": "NCS", "kernel_layout": "SIO", "out_layout": "NSC"}
        return call("conv", x, w, groups=3, padding=((1, 1), (1, 1)), **layouts)

    types = ((1, 3, 224, 224), "float32"), ((3, 3, 1, 3), "float32")
    workload = with_constant(function_of(grouped, *types))
    for sketch in config_space(workload, TARGET).sketches:
        lower(schedule_workload(workload, TARGET, {**sketch.default, "sketch": sketch.sketch}))


def test_pixels_side_by_side_and_small_planes_are_not_asked_for() -> None:
    config = CONTRACTION | {"order": "mn", "ku": 1, "nv": 2, "mb": 64, "nb": 1, "rw": 8}
    assert "p0" not in lines_of(planes(96, 224, 2, "NSC"), config)
    assert "p0" not in lines_of(planes(40, 40, 2), config)
    tall = config | {"rh": 7, "rw": 4, "nv": 1}  # 21 rows of planes in three iterations
    assert "p0" not in lines_of(planes(96, 224, 1), tall)


@pytest.mark.parametrize(
    ("depth", "columns", "tile", "hinted"),
    [
        (64, 128, {"rw": 6, "nv": 2, "nb": 4}, {"p2", "add"}),  # rows of the second cache alone
        (256, 64, {"rw": 6, "nv": 2, "nb": 2}, {"p0"}),  # results are few beside long sums
        (512, 512, {"rw": 6, "nv": 2, "nb": 16}, set()),  # rows that most panels find near
    ],
)
def test_hints_are_for_what_a_sum_waits_for(
    depth: int, columns: int, tile: Config, hinted: set[str]
) -> None:
    """Of AVX2, whose iterations are short, hints for less than a line in 16 of them would cost more
    than they bring."""
    target = Target("llvm -mcpu=znver3 -num-cores=1")
    rows = 900 if depth == 64 else 1100
    found = lines_of(with_residual(rows, depth, columns), TILES | tile, target)
    assert found.keys() == hinted


@pytest.mark.parametrize("rows", [1027, 1028])
def test_no_line_beyond_the_next_tile_is_asked_for(rows: int) -> None:
    """Long sums have more iterations than the next tile has lines."""
    config = TILES | {"rw": 6, "nv": 2, "nb": 2, "mb": 2, "ku": 1}
    lowered = lower(schedule_workload(product(rows, 256, 64), TARGET, {**config, "next_panel": 0}))
    visits: dict[str, list[int]] = {}
    for hint, first in asked(lowered.body, {}):
        visits.setdefault(hint.buffer.name, []).append(first)
    (image,) = visits.values()
    tiles = [set(image[n : n + 256]) for n in range(0, len(image), 256)]
    assert all(len(lines) == 6 * 256 // LINE for lines in tiles)


@pytest.mark.parametrize(
    ("rows", "depth"), [(500, 128), (20_000, 40)], ids=["arrays of the second cache", "short sums"]
)
def test_what_hints_would_not_pay_for_has_none(rows: int, depth: int) -> None:
    assert not lines_of(with_residual(rows, depth, 64), TILES | {"rw": 6, "nv": 4})
