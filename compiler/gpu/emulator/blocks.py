"""The code of a kernel as blocks of straight steps, in an order in which threads meet again.

Blocks are ordered so that every path through the code but the way back of loops goes forward, and
the blocks of a loop stand together. If of all threads those of the lowest block always go first,
then threads that parted meet at the first block that they have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from tunefarm.compiler.gpu.archs import WARP
from tunefarm.compiler.gpu.emulator import (
    accesses,
    clusters,
    floats,
    integers,
    matrices,
    mbarriers,
    moves,
    warpgroups,
    warps,
)
from tunefarm.compiler.gpu.emulator.kinds import KINDS, Values
from tunefarm.compiler.gpu.emulator.mbarriers import Waiting, waiting_of
from tunefarm.compiler.gpu.emulator.operands import (
    Builder,
    Read,
    Scope,
    Step,
    guarded,
    operands,
    reads,
    unknown,
)
from tunefarm.compiler.gpu.emulator.parse import (
    Entry,
    Immediate,
    Instruction,
    Label,
    Symbol,
)
from tunefarm.compiler.gpu.emulator.wave import Group, Wave

BUILDERS: dict[str, Builder] = {
    **integers.BUILDERS,
    **floats.BUILDERS,
    **moves.BUILDERS,
    **accesses.BUILDERS,
    **warps.BUILDERS,
    **matrices.BUILDERS,
    **warpgroups.BUILDERS,
    **mbarriers.BUILDERS,
    **clusters.BUILDERS,
}
_COLLECTIVE = ("shfl", "vote", "ldmatrix", "mma", "wgmma", "setmaxnreg")


@dataclass(frozen=True, slots=True)
class Jump:
    """Goes on at block ``target``."""

    target: int


@dataclass(frozen=True, slots=True)
class Branch:
    """Goes on at ``target`` where the condition holds, and at ``following`` where not."""

    condition: Callable[[Wave], Values]
    target: int
    following: int


@dataclass(frozen=True, slots=True)
class Exit:
    """The threads end."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A step for whole warps, or four of them together, and where they go on."""

    instruction: Instruction
    step: Step
    following: int

    @property
    def of_warpgroup(self) -> bool:
        return self.instruction.opcode in ("wgmma", "setmaxnreg")


@dataclass(frozen=True, slots=True)
class Barrier:
    """The threads of a block, or of a cluster of blocks, wait for one another; or ``count`` of a
    block, at the barrier of a number (``name``)."""

    instruction: Instruction
    following: int
    of_cluster: bool = False
    name: Read | None = None
    count: int = 0


@dataclass(frozen=True, slots=True)
class Wait:
    """Threads wait at an mbarrier."""

    instruction: Instruction
    waiting: Waiting
    following: int


End = Jump | Branch | Exit | Collective | Barrier | Wait


@dataclass(frozen=True, slots=True)
class Block:
    """Steps in order, and what comes after them."""

    steps: tuple[Step, ...]
    end: End


def blocks_of(entry: Entry, scope: Scope) -> tuple[Block, ...]:
    """The blocks of a kernel, its first one first. EmulatorError names instructions that are not
    known."""
    drafts = _drafts(entry)
    order = _ordered(range(len(drafts)), 0, [d.targets for d in drafts])
    number_of = {draft: number for number, draft in enumerate(order)}
    return tuple(_block(drafts[draft], scope, number_of) for draft in order)


@dataclass(slots=True)
class _Draft:
    """Instructions up to one that ends a block, and the drafts that may come next."""

    instructions: list[Instruction]
    targets: tuple[int, ...] = ()


def _ends(i: Instruction) -> bool:
    waits = i.opcode == "mbarrier" and i.modifiers[0] == "try_wait"
    if i.modifiers[:2] == ("cluster", "arrive"):
        return False
    return waits or i.opcode in ("bra", "ret", "exit", "bar", "barrier", *_COLLECTIVE)


def _drafts(entry: Entry) -> list[_Draft]:
    drafts = [_Draft([])]
    labels: dict[str, int] = {}
    for item in entry.code:
        last = drafts[-1].instructions
        if isinstance(item, Label):
            if last:
                drafts.append(_Draft([]))
            labels[item.name] = len(drafts) - 1
            continue
        last.append(item)
        if _ends(item):
            drafts.append(_Draft([]))
    for number, draft in enumerate(drafts):
        draft.targets = _targets(draft, number + 1, labels)
        if number + 1 == len(drafts) and number + 1 in draft.targets:
            draft.targets = ()  # the end of the code is one of its threads
    return drafts


def _targets(draft: _Draft, following: int, labels: dict[str, int]) -> tuple[int, ...]:
    """Where a draft goes on: at its label if it branches, and behind itself."""
    i = draft.instructions[-1] if draft.instructions else None
    if i is None or i.opcode not in ("bra", "ret", "exit"):
        return (following,)
    behind = (following,) if i.guard is not None else ()
    if i.opcode != "bra":
        return behind
    (label,) = operands(i, 1)
    if not isinstance(label, Symbol) or label.name not in labels:
        unknown(i, "its label is nowhere")
    return (labels[label.name], *behind)


# --- the order ----------------------------------------------------------------------------------


def _ordered(nodes: Iterable[int], entry: int, targets: Sequence[Collection[int]]) -> list[int]:
    """Nodes that can be reached from the entry: loops together, and otherwise forward."""
    order = []
    inside = set(nodes)
    for component in _components(inside, entry, targets):
        head = component[0]
        order.append(head)
        if len(component) > 1:
            rest = set(component) - {head}
            heads = [t for t in targets[head] if t in rest]
            order += _ordered_from(rest, heads, targets)
    return order


def _ordered_from(
    nodes: set[int], heads: Sequence[int], targets: Sequence[Collection[int]]
) -> list[int]:
    """The order of what several nodes lead to."""
    root = len(targets)
    return _ordered({*nodes, root}, root, [*targets, heads])[1:]


def _components(nodes: set[int], entry: int, targets: Sequence[Collection[int]]) -> list[list[int]]:
    """Strongly connected components, from the entry on, each with the node that is reached first in
    front. Source: Tarjan, "Depth-first search and linear graph algorithms" (1972)."""
    number: dict[int, int] = {entry: 0}
    low: dict[int, int] = {entry: 0}
    stack, waiting = [entry], {entry}
    work = [(entry, iter([t for t in targets[entry] if t in nodes]))]
    found: list[list[int]] = []
    while work:
        node, following = work[-1]
        for target in following:
            if target not in number:
                number[target] = low[target] = len(number)
                stack.append(target)
                waiting.add(target)
                work.append((target, iter([t for t in targets[target] if t in nodes])))
                break
            if target in waiting:
                low[node] = min(low[node], number[target])
        else:
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[node])
            if low[node] == number[node]:
                place = stack.index(node)
                found.append(stack[place:])
                waiting.difference_update(stack[place:])
                del stack[place:]
    return found[::-1]


# --- steps --------------------------------------------------------------------------------------


def _block(draft: _Draft, scope: Scope, number_of: dict[int, int]) -> Block:
    straight = [i for i in draft.instructions if not _ends(i)]
    steps = tuple(guarded(i, scope, _step(i, scope)) for i in straight)
    last = draft.instructions[-1] if len(straight) < len(draft.instructions) else None
    targets = [number_of[t] for t in draft.targets]
    return Block(steps, _end(last, scope, targets))


def _step(i: Instruction, scope: Scope) -> Step:
    builder = BUILDERS.get(i.opcode)
    if builder is None:
        unknown(i)
    try:
        return builder(i, scope)
    except (IndexError, ValueError):
        unknown(i)


def _end(i: Instruction | None, scope: Scope, targets: list[int]) -> End:
    if i is None:
        return Jump(targets[0]) if targets else Exit()
    if i.opcode in _COLLECTIVE:
        if i.guard is not None:
            unknown(i, "a guard")
        return Collective(i, _step(i, scope), targets[0])
    if i.opcode in ("bar", "barrier"):
        return _barrier(i, scope, targets)
    if i.opcode == "mbarrier":
        return Wait(i, waiting_of(i, scope), targets[0])
    if i.guard is None:
        return Jump(targets[0]) if i.opcode == "bra" else Exit()
    if i.opcode != "bra":
        unknown(i, "threads that end by a guard")
    return Branch(reads(i, scope, i.guard, KINDS["pred"]), targets[0], targets[1])


def _meet_in_warps(wave: Wave, group: Group) -> None:
    """The threads of each warp have waited for one another."""
    if wave.has_mbarriers:
        for lanes in np.split(group.index, np.flatnonzero(np.diff(group.index // WARP)) + 1):
            wave.order.pass_part(lanes)


def _barrier(i: Instruction, scope: Scope, targets: list[int]) -> End:
    if i.guard is not None:
        unknown(i, "a guard")
    if i.modifiers == ("warp", "sync"):
        return Collective(i, _meet_in_warps, targets[0])
    if i.modifiers[:3] == ("cluster", "wait", "acquire") and i.modifiers[3:] in clusters.ALIGNED:
        return Barrier(i, targets[0], of_cluster=True)
    if i.modifiers not in (("sync",), ("sync", "aligned"), ("cta", "sync", "aligned")):
        unknown(i)
    if i.operands == (Immediate(0),):
        return Barrier(i, targets[0])
    name, count = i.operands if len(i.operands) == 2 else (None, None)
    if not isinstance(count, Immediate) or count.value % WARP or not count.value:
        unknown(i, "barriers are number 0 of all threads, or of a count of whole warps")
    return Barrier(i, targets[0], False, reads(i, scope, name, KINDS["u32"]), count.value)
