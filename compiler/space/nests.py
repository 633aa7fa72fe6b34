"""What sketches share: inlining, the loops of a block, lanes, costs, and sharing work out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from itertools import dropwhile
from math import prod

import numpy as np
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.space.columns import Numbers
from tunefarm.compiler.space.config import Access
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.affine import affine
from tunefarm.compiler.tir.ir import (
    Binary,
    Block,
    Expr,
    Intrinsic,
    IterVar,
    Load,
    Select,
    Var,
)
from tunefarm.compiler.tir.schedule.tree import constant_extent, find_loop, store_of
from tunefarm.compiler.tir.visit import operands, walk_expr

# Vector instructions that one element's operation costs, measured or counted in the emitted code.
INTRINSIC_COSTS = {
    "exp": 12, "exp_shifted": 12, "exp_within": 12, "near_sigmoid": 12,
    "expm1": 20, "tanh": 20, "erf": 25, "log": 18, "log2": 18, "log1p": 20, "log1p_unit": 11,
    "pow": 45, "sqrt": 8, "rsqrt": 16, "sin": 25, "cos": 25, "tan": 40, "fmod": 30,
}  # fmt: skip
SCATTERED = 10.0  # what a vector of lanes that do not stand side by side costs, in plain ones
SERIAL_NS = 4_000.0  # work below this is not shared out: a fork-join and its cold caches cost more
TASKS = (0, 1, 2, 4, 8)


def inline_all(program: PrimFunc, kept: Collection[str] = ()) -> PrimFunc:
    """Inline every block that can be, but for those ``kept``: spatial, and not an output."""
    for block in s.remaining_blocks(program):
        if block not in kept:
            with suppress(ScheduleError):
                program = s.compute_inline(program, block)
    return program


def own_loops(program: PrimFunc, block: str, loop: Var | None) -> list[Var]:
    """The loops of a block below ``loop`` (all of them for None)."""
    loops = s.loops_of(program, block)
    return loops if loop is None else loops[loops.index(loop) + 1 :]


def loop_of(program: PrimFunc, block: str, axis: IterVar, own: Sequence[Var]) -> Var | None:
    """The loop among ``own`` that an iterator of a block runs with; None if its value is fixed."""
    node = s.find_block(program, block)
    binding = next(b for i, b in zip(node.iters, node.bindings, strict=True) if i.var is axis.var)
    used = affine(binding).variables()
    return next((v for v in own if v in used), None)


def is_of_sum(program: PrimFunc, block: str, loop: Var) -> bool:
    """True for a loop over terms of a block's sum."""
    node = s.find_block(program, block)
    pairs = zip(node.iters, node.bindings, strict=True)
    return any(i.kind == "reduce" and loop in affine(b).variables() for i, b in pairs)


def extent_of(program: PrimFunc, loop: Var) -> int:
    return constant_extent(find_loop(program, loop))


def lanes_of(nodes: Iterable[Block], target: Target) -> int:
    """Lanes of one vector: as many as the widest element that is computed with leaves."""
    widest = 1
    for node in nodes:
        store = store_of(node)
        widest = max(widest, dtype_bytes(store.buffer.dtype))
        for expr in _values(store.value):
            if isinstance(expr, Load):
                widest = max(widest, dtype_bytes(expr.buffer.dtype))
    return max(1, target.vector_bytes // widest)


def _values(expr: Expr) -> Iterable[Expr]:
    """The nodes of an expression that are not part of an index."""
    yield expr
    if not isinstance(expr, Load):
        for operand in operands(expr):
            yield from _values(operand)


def fitting_lanes(lanes: int, extent: int) -> int:
    """The smallest power of two that holds a short axis, at most ``lanes``."""
    fit = 1
    while fit < min(lanes, extent):
        fit *= 2
    return fit


def cost_of(value: Expr) -> float:
    """Vector instructions of one element's value; what stands in several places counts once."""
    total = 0.0
    for expr in dict.fromkeys(walk_expr(value)):
        match expr:
            case Intrinsic(name, _, _):
                total += INTRINSIC_COSTS.get(name, 25 if name.startswith("a") else 2)
            case Binary("div" | "floordiv" | "floormod", _, _, _):
                total += 8
            case Load() | Select():
                total += 1
            case Binary(_, _, _, dtype) if dtype != "int64":
                total += 1
            case _:
                pass
    return max(total, 1.0)


def is_expensive(value: Expr) -> bool:
    """True for a value that is better stored than computed twice."""
    return any(
        isinstance(e, Intrinsic) and INTRINSIC_COSTS.get(e.name, 25) >= 12 for e in _values(value)
    )


def work_ns(nodes: Iterable[Block], target: Target) -> float:
    """A rough time of the blocks on one core: instructions at 2 a ns, each over all lanes."""
    total = 0.0
    for node in nodes:
        lanes = lanes_of([node], target)
        total += prod(i.extent for i in node.iters) * cost_of(store_of(node).value) / lanes
    return total / 2.0


def strides(node: Block, var: Var) -> list[int | None]:
    """How far each access of a block moves with an iterator; None where it is not affine."""
    store = store_of(node)
    accesses = [store.indices, *(e.indices for e in walk_expr(store.value) if isinstance(e, Load))]
    shapes = [
        store.buffer.shape,
        *(e.buffer.shape for e in walk_expr(store.value) if isinstance(e, Load)),
    ]
    found: list[int | None] = []
    for indices, shape in zip(accesses, shapes, strict=True):
        step: int | None = 0
        stride = 1
        for index, extent in zip(reversed(indices), reversed(shape), strict=True):
            form = affine(index)
            opaque = any(
                var in affine(a).variables() for _, a in form.terms.values() if a is not var
                and not isinstance(a, Var)
            )  # fmt: skip
            step = None if opaque or step is None else step + stride * form.coefficient(var)
            stride *= extent
        found.append(step)
    return found


def lane_cost(node: Block, axis: IterVar, lanes: int) -> float:
    """Memory instructions of one element if the lanes lie along an iterator."""
    moves = sum(1.0 if step in (0, 1) else SCATTERED for step in strides(node, axis.var))
    vectors = -(-axis.extent // lanes)
    return moves * vectors / max(axis.extent, 1)


def task_choices(nodes: Iterable[Block], target: Target) -> tuple[int, ...]:
    """The choices of tasks a core; 0 runs in the caller's thread alone."""
    return (0,) if target.num_cores == 1 else tasks_for(work_ns(nodes, target), target)


def tasks_for(work: float, target: Target) -> tuple[int, ...]:
    """The same for work of so many nanoseconds."""
    return (0,) if target.num_cores == 1 or work < SERIAL_NS / 4 else TASKS


def default_tasks(nodes: Sequence[Block], target: Target) -> int:
    choices = task_choices(nodes, target)
    return 2 if len(choices) > 1 and work_ns(nodes, target) >= SERIAL_NS else 0


def busy_cores(tasks: Numbers, target: Target) -> Numbers:
    """The cores that so many tasks a core keep busy, the caller's own with none."""
    return np.clip(tasks * target.num_cores, 1, target.num_cores)


def share_out(
    program: PrimFunc, loops: Sequence[Var], tasks_per_core: int, target: Target
) -> PrimFunc:
    """Run a perfect nest's outer loops as tasks: as many of them fused as it takes.

    for i in 6: for j in 100: f   ->   parallel t in 4: for ij in 150: f     for 4 tasks

    Loops of one iteration in front are left: fused, they would hide from what is computed inside
    that the index of a task is that of the next loop.
    """
    tasks = tasks_per_core * target.num_cores
    loops = list(dropwhile(lambda loop: extent_of(program, loop) == 1, loops))
    if tasks <= 1 or not loops:
        return program
    taken: list[Var] = []
    count = 1
    for loop in loops:
        taken.append(loop)
        count *= extent_of(program, loop)
        if count >= tasks:
            break
    if count == 1:
        return program
    top = taken[0]
    if len(taken) > 1:
        program, top = s.fuse(program, *taken)
    size = _size_of_tasks(count, tasks, target.num_cores)
    if size > 1:
        program, (top, _) = s.split(program, top, size)
    return s.parallel(program, top)


def _size_of_tasks(count: int, tasks: int, cores: int) -> int:
    """How many of ``count`` iterations each of about ``tasks`` tasks takes: as many in each where
    up to twice as many tasks are done as soon, as a task that may end early asks in each iteration.

    7 in 4 tasks are 7 tasks of one, which two cores share 4 to 3 as they do tasks of 2, 2, 2 and 1.
    """
    most = -(-count // tasks)

    def ends(size: int) -> int:
        return -(-count // (size * cores)) * size

    even = [n for n in range(1, most + 1) if count % n == 0 and count <= 2 * tasks * n]
    return max((n for n in even if ends(n) <= ends(most)), default=most)


def accesses_of(node: Block, program: PrimFunc, names: dict[Var, str]) -> list[Access]:
    """A block's accesses of parameters, for the features."""
    store = store_of(node)
    found = []
    seen: set[tuple[str, tuple[tuple[str, int], ...]]] = set()
    params = list(program.params)
    places = [(store.buffer, store.indices, True)]
    places += [(e.buffer, e.indices, False) for e in walk_expr(store.value) if isinstance(e, Load)]
    for buffer, indices, write in places:
        if not write and buffer is store.buffer:
            continue
        dims = tuple(
            {names[v]: abs(c) for v, (c, _) in affine(i).terms.items() if v in names}
            for i in indices
        )
        key = (buffer.name, tuple(sorted((n, c) for d in dims for n, c in d.items())))
        if key in seen:
            continue
        seen.add(key)
        constant = buffer in params and params.index(buffer) in program.constants
        size = dtype_bytes(buffer.dtype)
        found.append(Access(buffer.name, size, buffer.shape, dims, write, constant))
    return found
