"""A fused function with reductions as stages that run together, a few rows of the result at a time.

    for rows:                      (the axes of the result that every reduction keeps)
      stage 1 of these rows        mean[r] = Σ x[r, :]
      stage 2                      variance[r] = Σ (x[r, :] - mean[r])²
      the result                   out[r, :] = …

The lanes lie along the rows (pooling, sums over outer axes) or along what is reduced (softmax,
layer norm): ``lane_choices`` ranks both by the memory instructions that they need.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from math import prod

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.flatten import flatten
from tunefarm.compiler.space.nests import (
    cost_of,
    fitting_lanes,
    is_expensive,
    lane_cost,
    lanes_of,
    strides,
)
from tunefarm.compiler.space.program import create_program
from tunefarm.compiler.space.whole_lines import in_whole_lines
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Block, IterVar, Var
from tunefarm.compiler.tir.schedule.tree import blocks, reads, store_of, written_buffer

HORIZONTAL = 2.0  # vector instructions that combine the lanes of one accumulator, of many at once
GATHERED = 22.0  # vector instructions of a load or store whose lanes do not stand side by side


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """The flat program of a fused function with reductions, and how its blocks hang together.

    ``final`` makes the result from its own ``rows`` (kept by every reduction) and ``inner`` axes;
    ``before`` are the other blocks, producers first. ``links[block][v]`` is the axis of the result
    that iterator ``v`` of a block runs along. Those in ``by_lines`` read rows from the beginnings
    of lines.
    """

    program: PrimFunc
    final: str
    before: tuple[str, ...]
    links: dict[str, dict[Var, Var]]
    rows: tuple[IterVar, ...]
    inner: tuple[IterVar, ...]
    by_lines: frozenset[str] = frozenset()

    def node(self, block: str) -> Block:
        return s.find_block(self.program, block)

    @property
    def nodes(self) -> list[Block]:
        return list(blocks(self.program.body))

    def along(self, block: str, axis: Var) -> IterVar | None:
        """The iterator of a block that runs along an axis of the result."""
        links = self.links[block]
        return next((i for i in self.node(block).iters if links.get(i.var) is axis), None)


@dataclass(frozen=True, slots=True)
class LaneChoice:
    """Where the lanes lie: along an axis of the rows, or (None) along what is reduced."""

    axis: IterVar | None
    cost: float


@functools.lru_cache(maxsize=64)
def stages_of(function: Function, keep: bool) -> Stages | None:
    """The stages of a function with one result and a reduction; None for others.

    With ``keep``, an expensive value that is read twice is stored, not computed twice.
    """
    program = create_program(function)
    if program.outputs != 1:
        return None
    program = _inlined(program, keep)
    nodes = list(blocks(program.body))
    if not any(b.init is not None for b in nodes):
        return None
    last = nodes[-1]
    if last.init is not None:
        program, _ = s.cache_write(program, last.name, "register")
    return linked(flatten(program))


@functools.lru_cache(maxsize=64)
def by_lines(stages: Stages, lanes: int) -> Stages:
    """The stages with reductions that read whole lines, where rows begin inside them."""
    program, names = in_whole_lines(stages.program, lanes)
    return replace(linked(program), by_lines=names) if names else stages


def kept_blocks(stages: Stages) -> list[str]:
    """The spatial blocks before the result: those that ``keep`` stores."""
    return [b for b in stages.before if stages.node(b).init is None]


def row_bytes(stages: Stages, block: str) -> int:
    """Bytes of one row of what a block stores beside one element a row; 0 if it stores no more."""
    node, links = stages.node(block), stages.links[block]
    rows = {a.var for a in stages.rows}
    free = [i.extent for i in node.iters if i.kind == "spatial" and links.get(i.var) not in rows]
    return prod(free) * dtype_bytes(written_buffer(node).dtype) if free else 0


def longest_row(stages: Stages) -> int:
    """Bytes of one row of what the largest stage works on."""
    rows = prod(a.extent for a in stages.rows)
    sizes = (
        prod(i.extent for i in n.iters) * dtype_bytes(written_buffer(n).dtype) for n in stages.nodes
    )
    return max(sizes) // rows


def _inlined(program: PrimFunc, keep: bool) -> PrimFunc:
    for block in s.remaining_blocks(program):
        node = s.find_block(program, block)
        if node.init is not None or written_buffer(node) not in program.buffers:
            continue
        readers = [
            b for b in blocks(program.body) if b is not node and reads(b, written_buffer(node))
        ]
        if keep and is_expensive(store_of(node).value) and _read_often(node, readers):
            continue
        try:
            program = s.compute_inline(program, block)
        except ScheduleError:
            continue
    return program


def _read_often(node: Block, readers: list[Block]) -> bool:
    size = prod(i.extent for i in node.iters)
    return len(readers) > 1 or any(prod(i.extent for i in b.iters) > size for b in readers)


def linked(program: PrimFunc) -> Stages:
    """The stages of a flat program, whose last block makes the result."""
    nodes = list(blocks(program.body))
    final = nodes[-1]
    links: dict[str, dict[Var, Var]] = {final.name: {i.var: i.var for i in final.iters}}
    for node in reversed(nodes[:-1]):
        readers = [b for b in nodes if b is not node and reads(b, written_buffer(node))]
        links[node.name] = _links(node, readers, links)
    common = {i.var for i in final.iters}
    for node in nodes[:-1]:
        if node.init is not None:
            common &= set(links[node.name].values())
    rows = tuple(i for i in final.iters if i.var in common)
    inner = tuple(i for i in final.iters if i.var not in common)
    return Stages(program, final.name, tuple(b.name for b in nodes[:-1]), links, rows, inner)


def _links(node: Block, readers: list[Block], links: dict[str, dict[Var, Var]]) -> dict[Var, Var]:
    """Which axes of the result a block's own run along, seen from everybody who reads it."""
    buffer = written_buffer(node)
    found: dict[Var, Var] = {}
    for d, formal in enumerate(store_of(node).indices):
        axes = {
            links[b.name].get(load.indices[d]) if isinstance(load.indices[d], Var) else None  # type: ignore[arg-type]
            for b in readers
            for load in reads(b, buffer)
        }
        axis = axes.pop() if len(axes) == 1 else None
        if axis is not None and isinstance(formal, Var):
            found[formal] = axis
    return found


# --- lanes --------------------------------------------------------------------------------------


def lane_width(stages: Stages, target: Target) -> int:
    """Lanes of one vector: by the widest element of all stages."""
    return lanes_of(stages.nodes, target)


@functools.lru_cache(maxsize=64)
def lane_choices(stages: Stages, target: Target) -> tuple[LaneChoice, ...]:
    """At most two places for the lanes, the cheaper first."""
    full = lane_width(stages, target)
    found = [LaneChoice(a, _column_cost(stages, a, full)) for a in stages.rows]
    found.append(LaneChoice(None, _reduced_cost(stages, full)))
    found.sort(key=lambda c: c.cost)
    return tuple(c for c in found[:2] if c.cost < 4 * found[0].cost)


def _column_cost(stages: Stages, axis: IterVar, lanes: int) -> float:
    total = 0.0
    for node in stages.nodes:
        mine = stages.along(node.name, axis.var)
        total += _block_cost(node, mine, lanes)
    return total


def _reduced_cost(stages: Stages, lanes: int) -> float:
    total = 0.0
    for node in stages.nodes:
        axis = inner_lane(stages, node, lanes)
        total += _block_cost(node, axis, lanes)
        if node.init is not None and axis is not None:
            total += HORIZONTAL * prod(i.extent for i in node.iters if i.kind == "spatial")
    return total


def inner_lane(stages: Stages, node: Block, lanes: int) -> IterVar | None:
    """A block's best iterator for the lanes that is not of the rows."""
    rows = {a.var for a in stages.rows}
    links = stages.links[node.name]
    if node.init is not None:
        mine = [i for i in node.iters if i.kind == "reduce"]
    else:
        mine = [i for i in node.iters if links.get(i.var) not in rows]
    return min(mine, key=lambda i: lane_cost(node, i, lanes), default=None)


def _block_cost(node: Block, axis: IterVar | None, lanes: int) -> float:
    size = prod(i.extent for i in node.iters)
    work = cost_of(store_of(node).value)
    if axis is None:
        return size * (work + len(strides(node, Var("none"))))
    fit = fitting_lanes(lanes, axis.extent)
    vectors = -(-axis.extent // fit) / axis.extent
    gathers = sum(1 for step in strides(node, axis.var) if step not in (0, 1))
    return size * vectors * (work + len(strides(node, axis.var)) + gathers * GATHERED)
