"""Give every intermediate value of a fused ``main`` a place in one arena.

Values whose lives do not overlap share bytes: largest first, each at the lowest offset that is free
during its whole life (Pisarchyk and Lee 2020, "greedy by size"). A view has its operand's place. A
result of ``main`` is written straight into the caller's array, unless it is an input, a constant or
a result already: then the executor copies. A result takes the place of an operand that dies with it
where the kernel may overwrite that (``compiler/overwrite.py``): a sum that of its residual. A part
of a concatenation lies inside the whole (``write_parts.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from tunefarm.compiler.ir import (
    Call,
    Constant,
    Expr,
    Function,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    children,
    post_order,
    tensor_type,
)
from tunefarm.compiler.overwrite import overwritable
from tunefarm.compiler.target import STAGGER_BYTES, STAGGER_PERIOD, dtype_bytes

ALIGNMENT_BYTES = 64
LARGE_BYTES = 1 << 15  # of a value behind which the next one begins in other sets of the caches

Value: TypeAlias = tuple[Expr, int]
"""What is stored: a parameter, a constant, or one result (by index) of a call that is no view."""


class Store(StrEnum):
    """Where a value lies."""

    ARENA = "arena"
    INPUT = "input"
    CONSTANT = "constant"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Place:
    """``at`` is a byte offset in the arena, or the index of the input, constant or output, of which
    the value begins at byte ``start``."""

    store: Store
    at: int
    size_bytes: int
    start: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """The result of ``call`` is written into that of the concatenation ``whole``, from byte
    ``start`` on; ``whole`` itself does not run."""

    call: Call
    whole: Call
    start: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where the values of one function lie while ``calls`` run in this order.

    ``scratch`` is each call's workspace in the arena. ``copies`` are (source, output index) pairs
    left to the executor. ``peak_bytes`` is the largest sum of live values: no plan needs less than
    it, and ``arena_bytes`` is what this one needs.
    """

    calls: tuple[Call, ...]
    constants: tuple[Constant, ...]
    places: Mapping[Value, Place]
    scratch: Mapping[Call, Place]
    copies: tuple[tuple[Place, int], ...]
    arena_bytes: int
    peak_bytes: int

    def place(self, expr: Expr) -> Place:
        """Where an expression that is one tensor lies."""
        return self.places[stored_value(expr)]

    def results(self, node: Call) -> tuple[Place, ...]:
        """Where a call writes, one place a result."""
        return tuple(self.places[(node, i)] for i in range(len(result_types(node))))


@dataclass(frozen=True, slots=True)
class _Life:
    """A span of the arena, needed from the call ``first`` to the call ``last``, both included."""

    size_bytes: int
    first: int
    last: int


def plan_memory(
    main: Function,
    workspace_bytes: Mapping[Call, int] | None = None,
    in_place: bool = True,
    parts: Sequence[Part] = (),
    alignment: int = ALIGNMENT_BYTES,
) -> MemoryPlan:
    """Plan a function whose calls are fused functions; ``workspace_bytes`` is scratch a call.

    Without ``in_place`` no kernel overwrites an operand. ``parts`` are all those of the
    concatenations that they belong to. Values begin at multiples of ``alignment`` bytes.
    """
    order = post_order(main.body)
    wholes = {part.whole for part in parts}
    calls = tuple(c for c in kernel_calls(main) if c not in wholes)
    places = _fixed_places(main, order)
    constants = tuple(v for v, _ in places if isinstance(v, Constant))
    copies = _place_outputs(main, places)
    lives = _lives(order, calls, places, parts)
    read = {stored_value(operand) for c in calls for operand in children(c)}
    shared = {(part.whole, 0) for part in parts if (part.call, 0) in read}
    reused = _reused(calls, lives, shared) if in_place else {}
    needed = workspace_bytes or {}
    scratch = {c: _Life(needed[c], i, i) for i, c in enumerate(calls) if needed.get(c)}
    spans: dict[Value | Call, _Life] = {}
    for lasting in (_merged(lives, reused), scratch):
        spans.update(lasting.items())
    offsets = _offsets(spans, alignment)
    for value, life in lives.items():
        places[value] = Place(Store.ARENA, offsets[_root(value, reused)], life.size_bytes)
    for part in parts:
        places[(part.call, 0)] = _inside(places[(part.whole, 0)], part)
    return MemoryPlan(
        calls,
        constants,
        places,
        {c: Place(Store.ARENA, offsets[c], s.size_bytes) for c, s in scratch.items()},
        tuple((places[value], index) for value, index in copies),
        max((offsets[k] + _aligned(s.size_bytes, alignment) for k, s in spans.items()), default=0),
        _peak(spans.values(), len(calls), alignment),
    )


def kernel_calls(main: Function) -> tuple[Call, ...]:
    """The calls that run, in order: all but views."""
    order = post_order(main.body)
    return tuple(n for n in order if isinstance(n, Call) and not is_view(n))


def is_view(node: Expr) -> bool:
    """Whether a call only gives its operand another shape."""
    if not isinstance(node, Call):
        return False
    return node.op == "reshape" or (
        isinstance(node.op, Function) and bool(node.op.attrs.get("view"))
    )


def stored_value(expr: Expr) -> Value:
    """The stored value behind an expression: views and tuple items are looked through."""
    index = 0
    while True:
        if isinstance(expr, TupleGetItem):
            index, expr = expr.index, expr.value
            if isinstance(expr, Tuple):
                expr, index = expr.fields[index], 0
        elif isinstance(expr, Call) and is_view(expr):
            expr = expr.args[0]
        else:
            return expr, index


def result_types(node: Call) -> tuple[TensorType, ...]:
    return node.type.fields if isinstance(node.type, TupleType) else (node.type,)


def bytes_of(kind: TensorType) -> int:
    return kind.size * dtype_bytes(kind.dtype)


def _aligned(size_bytes: int, alignment: int) -> int:
    return max(-(-size_bytes // alignment) * alignment, alignment)


def _room(size_bytes: int, alignment: int) -> int:
    """Bytes from a value to the next one, which begins ``STAGGER_BYTES`` further than a large one,
    modulo their period."""
    size = _aligned(size_bytes, alignment)
    if size < LARGE_BYTES or STAGGER_BYTES % alignment:
        return size
    return size + (STAGGER_BYTES - size) % STAGGER_PERIOD


def _fixed_places(main: Function, order: list[Expr]) -> dict[Value, Place]:
    places: dict[Value, Place] = {}
    for index, param in enumerate(main.params):
        places[(param, 0)] = Place(Store.INPUT, index, bytes_of(param.type))
    constants = [n for n in order if isinstance(n, Constant)]
    for index, constant in enumerate(constants):
        places[(constant, 0)] = Place(Store.CONSTANT, index, bytes_of(constant.type))
    return places


def outputs_of(main: Function) -> tuple[Expr, ...]:
    """The expressions that are the function's results, in order."""
    body = main.body
    if isinstance(body, Tuple):
        return body.fields
    if isinstance(body.type, TupleType):
        return tuple(TupleGetItem(body, i) for i in range(len(body.type.fields)))
    return (body,)


def _place_outputs(main: Function, places: dict[Value, Place]) -> list[tuple[Value, int]]:
    """Give results their own places; the values that must be copied, with the output's index."""
    copies: list[tuple[Value, int]] = []
    for index, output in enumerate(outputs_of(main)):
        value = stored_value(output)
        if value in places:
            copies.append((value, index))
        else:
            places[value] = Place(Store.OUTPUT, index, bytes_of(tensor_type(output)))
    return copies


def _inside(whole: Place, part: Part) -> Place:
    size_bytes = bytes_of(tensor_type(part.call))
    if whole.store is Store.ARENA:
        return Place(Store.ARENA, whole.at + part.start, size_bytes)
    return Place(whole.store, whole.at, size_bytes, part.start)


def _lives(
    order: list[Expr],
    calls: tuple[Call, ...],
    places: Mapping[Value, Place],
    parts: Sequence[Part],
) -> dict[Value, _Life]:
    step = {c: i for i, c in enumerate(calls)}
    home: dict[Call, Call] = {part.call: part.whole for part in parts}
    last: dict[Value, int] = {}
    for node in order:
        if isinstance(node, Call) and node in step:
            for operand in children(node):
                last[stored_value(operand)] = step[node]
    for part in parts:  # whole until nobody reads a part of it
        value = (part.whole, 0)
        last[value] = max(last.get(value, 0), last.get((part.call, 0), 0), step[part.call])
    lives: dict[Value, _Life] = {}
    for node, first in step.items():
        written = home.get(node, node)
        for index, kind in enumerate(result_types(written)):
            value = (written, index)
            if value not in places and value not in lives:
                lives[value] = _Life(bytes_of(kind), first, last.get(value, first))
    return lives


def _reused(
    calls: tuple[Call, ...], lives: Mapping[Value, _Life], shared: Set[Value]
) -> dict[Value, Value]:
    """Results that take over the place of an operand that dies: result → operand. Not of those that
    are ``shared``: a kernel may read a part of one beside the whole."""
    reused: dict[Value, Value] = {}
    for step, node in enumerate(calls):
        if not isinstance(node.op, Function) or (node, 0) not in lives:
            continue
        values = [stored_value(operand) for operand in node.args]
        for index in sorted(overwritable(node.op)):
            value = values[index]
            life = lives.get(value)
            if life is None or value in shared:
                continue
            if life.last == step and values.count(value) == 1:
                reused[(node, 0)] = value
                break
    return reused


def _root(value: Value, reused: Mapping[Value, Value]) -> Value:
    while value in reused:
        value = reused[value]
    return value


def _merged(lives: Mapping[Value, _Life], reused: Mapping[Value, Value]) -> dict[Value, _Life]:
    """One life for each chain of values that share a place."""
    merged: dict[Value, _Life] = {}
    for value, life in lives.items():
        root = _root(value, reused)
        known = merged.get(root, life)
        merged[root] = _Life(
            max(known.size_bytes, life.size_bytes),
            min(known.first, life.first),
            max(known.last, life.last),
        )
    return merged


def _offsets(spans: Mapping[Value | Call, _Life], alignment: int) -> dict[Value | Call, int]:
    """Lowest free offsets, the largest first."""
    placed: list[tuple[int, int, _Life]] = []
    offsets: dict[Value | Call, int] = {}
    for key, life in sorted(spans.items(), key=lambda s: (-s[1].size_bytes, s[1].first)):
        size, offset = _room(life.size_bytes, alignment), 0
        for begin, end, other in placed:
            apart = other.last < life.first or life.last < other.first
            if not apart and offset < end and begin < offset + size:
                offset = end
        placed.append((offset, offset + size, life))
        placed.sort(key=lambda p: p[0])
        offsets[key] = offset
    return offsets


def _peak(lives: Iterable[_Life], steps: int, alignment: int) -> int:
    change = [0] * (steps + 1)
    for life in lives:
        size = _aligned(life.size_bytes, alignment)
        change[life.first] += size
        change[life.last + 1] -= size
    peak = total = 0
    for delta in change:
        total += delta
        peak = max(peak, total)
    return peak
