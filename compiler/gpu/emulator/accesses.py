"""Instructions that read and write memory, and asynchronous copies.

Source of the meanings: NVIDIA, "PTX ISA", data movement and asynchronous copy instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.gpu.emulator.box_copies import (
    begin_stores,
    copies_box,
    fetches_map,
    sends_box,
    waits_for_sent,
)
from tunefarm.compiler.gpu.emulator.clusters import block_and_address
from tunefarm.compiler.gpu.emulator.errors import Fault
from tunefarm.compiler.gpu.emulator.kinds import KINDS, Kind, Values
from tunefarm.compiler.gpu.emulator.moves import LOCAL_WINDOW, SHARED_WINDOW
from tunefarm.compiler.gpu.emulator.operands import (
    CLUSTER,
    Builder,
    Scope,
    Step,
    addresses,
    kind_of,
    located,
    only,
    operands,
    own_places,
    parts_of,
    reads,
    unknown,
    writes,
    writes_own,
)
from tunefarm.compiler.gpu.emulator.parse import Address, Immediate, Instruction, Operand, Symbol
from tunefarm.compiler.gpu.emulator.traffic import counted_global, counted_shared
from tunefarm.compiler.gpu.emulator.wave import Group, Wave

# How often something is read again, and what may know of it, changes no value.
_HINTS = ("nc", "volatile", "relaxed", "weak", "cta", "gpu", "sys", "L1", "L2", "no_allocate",
          "evict_first", "evict_last", "ca", "cg", "cs", "lu", "cv", "wb", "wt")  # fmt: skip
_ASYNC = ("async", "mbarrier", "complete_tx", "bytes")
_SPACES = ("global", "shared", "local", "param", "const")
MOST_BYTES = 16  # of one access
Load = Callable[[Wave, Group, Values, Kind, int], Values]
Store = Callable[[Wave, Group, Values, Values], None]


def _shape(i: Instruction) -> tuple[str, Kind, int]:
    """The state space ("generic" if none is named), the type, and how many elements."""
    words = [m for m in i.modifiers if m not in _HINTS and m not in _ASYNC]
    space, lanes = "generic", 1
    if words[:2] == ["shared", "cluster"]:
        space, words = CLUSTER, words[2:]
    elif words and words[0] in _SPACES:
        space = words.pop(0)
    if words and words[0] in ("v2", "v4"):
        lanes = int(words.pop(0)[1:])
    if len(words) != 1:
        unknown(i)
    return space, kind_of(i, words[0]), lanes


def _ld(i: Instruction, scope: Scope) -> Step:
    """``ld.space.type d, [a]``."""
    space, kind, lanes = _shape(i)
    d, a = operands(i, 2)
    targets = parts_of(i, d)
    if len(targets) != lanes:
        unknown(i)
    if space == "param":
        return _parameter(i, scope, kind, d, a)
    raw = KINDS[f"u{kind.bits}"]
    load = _LOADS.get(space)
    if load is None:
        unknown(i, f"state space .{space}")
    read = addresses(i, scope, a, space)
    count, size = _counter(i), kind.bits // 8 * lanes
    write = [(n, writes_own(i, scope, t, kind)) for n, t in enumerate(targets) if t is not None]

    def step(wave: Wave, group: Group) -> None:
        at = group.own(read(wave))
        rows = load(wave, group, at, raw, lanes)
        count(wave, group, space, at, size)
        for number, set_one in write:
            set_one(wave, group, kind.decode(np.ascontiguousarray(rows[:, number])))

    return located(i, step)


def _parameter(i: Instruction, scope: Scope, kind: Kind, d: Operand, a: Operand) -> Step:
    if not (isinstance(a, Address) and isinstance(a.base, Symbol) and not a.offset):
        unknown(i)
    name = a.base.name
    if scope.parameters.get(name) != kind.bits // 8:
        unknown(i, f"{name} is no parameter of {kind.bits} bits")
    write = writes(i, scope, d, kind)

    def step(wave: Wave, group: Group) -> None:
        bits = np.full(1, wave.parameters[name], kind.unsigned)
        write(wave, group, kind.decode(bits))

    return step


def _st(i: Instruction, scope: Scope) -> Step:
    """``st.space.type [a], b``."""
    if i.modifiers[:1] == ("async",):
        return _st_async(i, scope)
    space, kind, lanes = _shape(i)
    a, b = operands(i, 2)
    sources = parts_of(i, b)
    store = _STORES.get(space)
    if len(sources) != lanes or store is None:
        unknown(i)
    raw = KINDS[f"u{kind.bits}"]
    place = addresses(i, scope, a, space)
    read = [reads(i, scope, source, raw) for source in sources]
    count, size = _counter(i), kind.bits // 8 * lanes

    def step(wave: Wave, group: Group) -> None:
        rows = np.empty((group.count, lanes), raw.unsigned)
        for number, each in enumerate(read):
            rows[:, number] = group.own(each(wave))
        at = group.own(place(wave))
        store(wave, group, at, rows)
        count(wave, group, space, at, size)

    return located(i, step)


def _st_async(i: Instruction, scope: Scope) -> Step:
    """``st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.type [a], b, [mbarrier]``: a
    store that runs on, to a block that counts its bytes."""
    tail = ("weak", "shared", "cluster", "mbarrier", "complete_tx", "bytes")
    if i.modifiers[1:7] != tail:
        unknown(i)
    a, b, mark = operands(i, 3)
    sources, (_, kind, lanes) = parts_of(i, b), _shape(i)
    if len(sources) != lanes:
        unknown(i)
    raw = KINDS[f"u{kind.bits}"]
    place, told = addresses(i, scope, a, CLUSTER), addresses(i, scope, mark, CLUSTER)
    read = [reads(i, scope, source, raw) for source in sources]

    def step(wave: Wave, group: Group) -> None:
        rows = np.stack([group.own(each(wave)).astype(raw.unsigned) for each in read], axis=1)
        there, marks = group.own(place(wave)), group.own(told(wave))
        places, placed = _of_cluster(wave, group, there)
        begin_stores(wave, group, i, places, placed, marks, rows.view(np.uint8))

    return located(i, step)


def _counter(i: Instruction) -> Callable[[Wave, Group, str, Values, int], None]:
    """What counts an instruction's accesses to global and shared memory."""
    counters = {"global": counted_global(i), "shared": counted_shared(i)}

    def count(wave: Wave, group: Group, space: str, at: Values, size: int) -> None:
        if wave.traffic is not None:
            window = np.uint64(0)
            if space == "generic":
                space, window = _space_of(at)
            if space in counters:
                counters[space](wave, group.index, at - window, size)

    return count


def bytes_of(i: Instruction, space: str) -> int:
    """The bytes that a thread reads or writes at once of shared or global memory; the most there
    are for other instructions."""
    if i.opcode == "cp" and len(i.operands) > 2:
        size = i.operands[2]
        return size.value if isinstance(size, Immediate) else MOST_BYTES
    if i.opcode not in ("ld", "st"):
        return MOST_BYTES
    named, kind, lanes = _shape(i)
    return kind.bits // 8 * lanes if named in (space, "generic") else MOST_BYTES


# --- state spaces -------------------------------------------------------------------------------


def _load_global(wave: Wave, group: Group, at: Values, kind: Kind, lanes: int) -> Values:
    return wave.memory.load(group.index, at, kind.unsigned, lanes)


def _load_shared(wave: Wave, group: Group, at: Values, kind: Kind, lanes: int) -> Values:
    return wave.shared.load(group.index, at, kind.unsigned, lanes)


def _load_local(wave: Wave, group: Group, at: Values, kind: Kind, lanes: int) -> Values:
    return wave.local.load(group.index, at, kind.unsigned, lanes)


def _store_global(wave: Wave, group: Group, at: Values, rows: Values) -> None:
    wave.memory.store(group.index, at, rows)


def _store_shared(wave: Wave, group: Group, at: Values, rows: Values) -> None:
    wave.shared.store(group.index, at, rows)


def _store_cluster(wave: Wave, group: Group, at: Values, rows: Values) -> None:
    places, placed = _of_cluster(wave, group, at)
    wave.shared.store(group.index, places, rows, placed)


def _of_cluster(wave: Wave, group: Group, at: Values) -> tuple[Values, NDArray[np.intp]]:
    """Places in shared memory of blocks of the own cluster, which have to have begun, and threads
    of these blocks."""
    placed, places = np.empty(group.count, np.intp), np.empty(group.count, np.uint64)
    for position, thread in enumerate(group.index):
        block, place = block_and_address(wave, int(thread), int(at[position]))
        placed[position], places[position] = block * wave.block_threads, place
        if not wave.order.knows_of_any(int(thread), block):
            rank = block % wave.cluster
            raise Fault(position, f"does not know that block {rank} of its cluster has begun")
    return places, placed


def _store_local(wave: Wave, group: Group, at: Values, rows: Values) -> None:
    wave.local.store(group.index, at, rows)


def _load_generic(wave: Wave, group: Group, at: Values, kind: Kind, lanes: int) -> Values:
    space, places = _places_of(wave, group, at)
    return _LOADS[space](wave, group, places, kind, lanes)


def _store_generic(wave: Wave, group: Group, at: Values, rows: Values) -> None:
    space, places = _places_of(wave, group, at)
    _STORES[space](wave, group, places, rows)


def _places_of(wave: Wave, group: Group, at: Values) -> tuple[str, Values]:
    """The state space that generic addresses are of, and the places there."""
    space, window = _space_of(at)
    places = at - window
    return space, own_places(wave, places, group) if space == "shared" else places


def _space_of(at: Values) -> tuple[str, np.uint64]:
    """The state space that generic addresses are of, and where it begins."""
    windows = at & np.uint64(SHARED_WINDOW | LOCAL_WINDOW)
    other = np.flatnonzero(windows != windows[0])
    if len(other):
        raise Fault(int(other[0]), "its address is of another state space than the first thread's")
    names = {0: "global", SHARED_WINDOW: "shared", LOCAL_WINDOW: "local"}
    name = names.get(int(windows[0]))
    if name is None:
        raise Fault(0, f"{int(at[0]):#x} is an address of no state space")
    return name, windows[0]


_LOADS: Mapping[str, Load] = {
    "global": _load_global,
    "shared": _load_shared,
    "local": _load_local,
    "generic": _load_generic,
}
_STORES: Mapping[str, Store] = {
    "global": _store_global,
    "shared": _store_shared,
    CLUSTER: _store_cluster,
    "local": _store_local,
    "generic": _store_generic,
}

# --- asynchronous copies ------------------------------------------------------------------------


def _cp(i: Instruction, scope: Scope) -> Step:
    """``cp.async.ca|cg.shared.global [d], [a], size{, taken}``, and what waits for them."""
    match i.modifiers:
        case ("async", "commit_group"):
            return lambda wave, group: wave.copies.commit(group.index)
        case ("async", "wait_all"):
            return _waits(None)
        case ("async", "wait_group"):
            (allowed,) = operands(i, 1)
            if not isinstance(allowed, Immediate):
                unknown(i)
            return _waits(allowed.value)
        case ("async", "ca" | "cg", "shared", "global", *hints):
            only(i, [h for h in hints if h not in _HINTS], ("64B", "128B", "256B"))
            return _copy(i, scope)
        case ("async", "bulk", "tensor", _, "global", *_):
            return sends_box(i, scope)
        case ("async", "bulk", "tensor", *_):
            return copies_box(i, scope)
        case ("async", "bulk", "commit_group" | "wait_group", *_):
            return waits_for_sent(i)
    unknown(i)


def _waits(allowed: int | None) -> Step:
    def step(wave: Wave, group: Group) -> None:
        mask = group.mask(wave.threads)
        wave.copies.finish(mask, allowed, wave.shared, wave.memory)

    return step


def _copy(i: Instruction, scope: Scope) -> Step:
    d, a, size, *more = operands(i, 3, 4)
    allowed = (16,) if "cg" in i.modifiers else (4, 8, 16)
    if not isinstance(size, Immediate) or size.value not in allowed:
        unknown(i, "its size")
    count = size.value
    target, source = addresses(i, scope, d, "shared"), addresses(i, scope, a, "global")
    taken = reads(i, scope, (more or [size])[0], KINDS["u32"])
    from_global, to_shared = counted_global(i), counted_shared(i)

    def step(wave: Wave, group: Group) -> None:
        bytes_taken = group.own(taken(wave))
        if (bytes_taken > count).any():
            raise Fault(int(np.argmax(bytes_taken)), f"takes more than {count} bytes")
        to, at = group.own(target(wave)), group.own(source(wave))
        wave.copies.begin(group.index, to, at, bytes_taken, count, wave.shared, wave.memory)
        read = np.broadcast_to(bytes_taken, group.count) > 0
        from_global(wave, group.index[read], at[read], count)
        to_shared(wave, group.index, to, count)

    return located(i, step)


BUILDERS: Mapping[str, Builder] = {"ld": _ld, "st": _st, "cp": _cp, "prefetch": fetches_map}
