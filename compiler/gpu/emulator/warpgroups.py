"""Asynchronous matrix instructions of four warps: ``wgmma`` of operands in shared memory.

A product is computed when its warpgroup waits for it, of what its operands hold then; that nobody
still writes them is held when it begins, too. Operands are found by their descriptors as the manual
has it, apart from how the compiler places them. Source: NVIDIA, "PTX ISA", asynchronous
warpgroup-level matrix instructions; for the layouts also NVIDIA, CUTLASS,
``cute/arch/mma_sm90_desc.hpp``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.gpu.emulator.errors import Fault
from tunefarm.compiler.gpu.emulator.kinds import KINDS, Values, brain_to_single, half_to_single
from tunefarm.compiler.gpu.emulator.mbarriers import fence_all
from tunefarm.compiler.gpu.emulator.operands import (
    Builder,
    Scope,
    Step,
    located,
    operands,
    parts_of,
    reads,
    unknown,
    writes_own,
)
from tunefarm.compiler.gpu.emulator.parse import Immediate, Instruction
from tunefarm.compiler.gpu.emulator.wave import WARPGROUP, Group, Wave

Index = NDArray[np.intp]
DEPTH = 16
_ROWS = 64
_ROW_BYTES = {1: 128, 2: 64, 3: 32}  # of swizzled rows, by a descriptor's mode


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix of ``extent`` rows of A, or columns of B; of which ``turned`` ones stand side by
    side, not their terms. ``descriptors`` has one for each warpgroup."""

    extent: int
    turned: bool
    descriptors: Values

    def addresses(self) -> Values:
        """Of each 16 bytes: those of two chunks of terms for each row, or, if ``turned``, of the
        chunks of rows for each term. A row of the result for each warpgroup."""
        start, leading, stride = (
            ((self.descriptors >> np.uint64(bit)) & np.uint64(0x3FFF)) << np.uint64(4)
            for bit in (0, 16, 32)
        )
        row_bytes = _ROW_BYTES[int(self.descriptors[0] >> np.uint64(62))]
        in_row = row_bytes // 16
        if self.turned:
            outer, chunk = np.divmod(np.arange(DEPTH * self.extent // 8), self.extent // 8)
            far, near = chunk // in_row, chunk % in_row
        else:
            outer, near = np.divmod(np.arange(2 * self.extent), 2)
            far = np.zeros_like(near)
        within = (near * 16 + outer % 8 * row_bytes).astype(np.uint64)
        places = start[:, None] + within
        places = places + far.astype(np.uint64) * leading[:, None]
        places = places + (outer // 8).astype(np.uint64) * stride[:, None]
        line = (places >> np.uint64(7)) & np.uint64(in_row - 1)
        swizzled: Values = places ^ (line << np.uint64(4))
        return swizzled

    def load(self, wave: Wave, leaders: Index) -> Values:
        """The matrix of each warpgroup, extent × terms, in words of 16 bits. Raises Fault of the
        positions of ``leaders``, the first threads."""
        there = self.addresses()
        threads = np.repeat(leaders, there.shape[1])
        try:
            rows = wave.shared.load_async(threads, there.reshape(-1), np.dtype(np.uint16), 8)
        except Fault as fault:
            raise Fault(fault.position // there.shape[1] * WARPGROUP, fault.problem) from None
        if self.turned:
            return rows.reshape(-1, DEPTH, self.extent).transpose(0, 2, 1)
        return rows.reshape(-1, self.extent, DEPTH)


@dataclass(frozen=True, slots=True)
class Held:
    """A in registers: 64 × 8 words of 32 bits, four of a thread, which ``read`` gives."""

    read: Callable[[Wave, Group], Values]

    def load(self, wave: Wave, leaders: Index) -> Values:
        """The matrix of each warpgroup, 64 × terms, in words of 16 bits."""
        group = wave.group((leaders[:, None] + np.arange(WARPGROUP)).reshape(-1))
        row, term = _held()
        words = np.empty((len(leaders), _ROWS, DEPTH // 2), np.uint32)
        words[:, row, term] = self.read(wave, group).reshape(-1, WARPGROUP, 4)
        return words.view(np.uint16)


@dataclass(frozen=True, slots=True)
class Product:
    """One instruction's product for some warpgroups, whose first threads are ``leaders``.

    ``begun`` counts the groups that they had committed before; ``add`` says whether to add to what
    the registers hold.
    """

    kind: str
    leaders: Index
    begun: Index
    left: Operand | Held
    right: Operand
    add: Values
    read: Callable[[Wave, Group], Values]
    write: Callable[[Wave, Group, Values], None]

    def run(self, wave: Wave) -> None:
        decode = _FLOATS[self.kind]
        group = wave.group((self.leaders[:, None] + np.arange(WARPGROUP)).reshape(-1))
        a, b = (
            decode(np.ascontiguousarray(x.load(wave, self.leaders))).astype(np.float32)
            for x in (self.left, self.right)
        )
        row, column = _sums(self.right.extent)
        held = self.read(wave, group).reshape(-1, WARPGROUP, self.right.extent // 2)
        total = np.empty((len(self.leaders), _ROWS, self.right.extent), np.float32)
        total[:, row, column] = held
        total = np.where(self.add[:, None, None], total, np.float32(0)) + a @ b.transpose(0, 2, 1)
        self.write(wave, group, total[:, row, column].reshape(group.count, -1))


def _sums(columns: int) -> tuple[Index, Index]:
    """Row and column of each number of the result, by thread of the warpgroup."""
    thread = np.arange(WARPGROUP)[:, None]
    number = np.arange(columns // 2)[None, :]
    row = thread // 32 * 16 + thread % 32 // 4 + 8 * (number // 2 % 2)
    return row, number // 4 * 8 + thread % 4 * 2 + number % 2


def _held() -> tuple[Index, Index]:
    """Row and term of each word of A in registers, by thread of the warpgroup: as ``mma.sync``."""
    thread, number = np.arange(WARPGROUP)[:, None], np.arange(4)[None, :]
    row = thread // 32 * 16 + thread % 32 // 4 + 8 * (number % 2)
    return row, thread % 4 + 4 * (number // 2)


def _cut_to_tf32(halves: Values) -> Values:
    """Words of 16 bits, two a float32, of which the hardware takes the first 19 bits."""
    words = halves.view(np.uint32) & np.uint32(0xFFFFE000)
    cut: Values = words.view(np.float32)
    return cut


_FLOATS: Mapping[str, Callable[[Values], Values]] = {
    "f16": half_to_single, "bf16": brain_to_single, "tf32": _cut_to_tf32,
}  # fmt: skip


def _wgmma(i: Instruction, scope: Scope) -> Step:
    match i.modifiers:
        case ("fence", "sync", "aligned"):
            return lambda wave, group: None
        case ("commit_group", "sync", "aligned"):
            return _commit
        case ("wait_group", "sync", "aligned"):
            (allowed,) = operands(i, 1)
            if isinstance(allowed, Immediate):
                return _waits(i, allowed.value)
        case ("mma_async", "sync", "aligned", shape, "f32", kind, other) if kind == other:
            depth = "k8" if kind == "tf32" else "k16"
            if kind in _FLOATS and shape.startswith("m64n") and shape.endswith(depth):
                return _begins(i, scope, kind, int(shape[4:].removesuffix(depth)))
    unknown(i)


def _commit(wave: Wave, group: Group) -> None:
    wave.committed[group.index] += 1


def _waits(i: Instruction, allowed: int) -> Step:
    def step(wave: Wave, group: Group) -> None:
        mask = group.mask(wave.threads)
        left = []
        for product in wave.products:
            due = product.begun < wave.committed[product.leaders] - allowed
            if not (due & mask[product.leaders]).all():
                left.append(product)
            else:
                product.run(wave)
        wave.products = left

    return located(i, step)


def _begins(i: Instruction, scope: Scope, kind: str, columns: int) -> Step:
    """``{d…}, a, b, p, 1, 1`` and, of 16 bits, whether A and B are turned; a is a descriptor or,
    of float32, ``{a, b, c, d}``."""
    turns = 2 if kind != "tf32" else 0
    d, a, b, add, *rest = operands(i, 6 + turns)
    numbers = [x.value for x in rest if isinstance(x, Immediate)]
    targets, fragment = parts_of(i, d), parts_of(i, a)
    if len(numbers) != 2 + turns or numbers[:2] != [1, 1] or len(targets) != columns // 2:
        unknown(i)
    if len(fragment) != 1 and (len(fragment) != 4 or turns):
        unknown(i)
    left_turned, right_turned = map(bool, numbers[2:] or (0, 0))
    of_words = [reads(i, scope, x, KINDS["b32"]) for x in fragment if len(fragment) == 4]
    descriptors = [reads(i, scope, x, KINDS["b64"]) for x in (a, b)[len(fragment) == 4 :]]
    adds = reads(i, scope, add, KINDS["pred"])
    read = [reads(i, scope, target, KINDS["f32"]) for target in targets]
    write = [writes_own(i, scope, target, KINDS["f32"]) for target in targets]

    def sums(wave: Wave, group: Group) -> Values:
        return np.stack([group.own(each(wave)) for each in read], axis=1)

    def words(wave: Wave, group: Group) -> Values:
        return np.stack([group.own(each(wave)) for each in of_words], axis=1)

    def put(wave: Wave, group: Group, values: Values) -> None:
        for number, set_one in enumerate(write):
            set_one(wave, group, np.ascontiguousarray(values[:, number]))

    def step(wave: Wave, group: Group) -> None:
        leaders = _leaders(wave, group)
        sides = left_turned, right_turned
        *left, right = (
            _descriptor(group.own(each(wave)), turned)
            for each, turned in zip(descriptors, sides[-len(descriptors) :], strict=True)
        )
        product = Product(
            kind, leaders, wave.committed[leaders],
            Operand(_ROWS, left_turned, left[0]) if left else Held(words),
            Operand(columns, right_turned, right),
            group.own(adds(wave)).reshape(-1, WARPGROUP)[:, 0], sums, put,
        )  # fmt: skip
        product.left.load(wave, leaders)
        product.right.load(wave, leaders)
        wave.products.append(product)

    return located(i, step)


def _leaders(wave: Wave, group: Group) -> Index:
    """The first threads of the warpgroups that a group is of; Fault if they are not whole."""
    whole = group.count % WARPGROUP == 0 and wave.block_threads % WARPGROUP == 0
    first: Index = group.index[::WARPGROUP]
    if (
        not whole
        or (first % WARPGROUP).any()
        or (group.index[WARPGROUP - 1 :: WARPGROUP] - first != 127).any()
    ):
        raise Fault(0, "not all threads of its warpgroup come to it")
    return first


def _descriptor(values: Values, turned: bool) -> Values:
    """The descriptor of each warpgroup; Fault for what is not emulated."""
    each = values.reshape(-1, WARPGROUP)
    wrong = np.flatnonzero((each != each[:, :1]).any(axis=1))
    if len(wrong):
        raise Fault(int(wrong[0]) * WARPGROUP, "threads of its warpgroup have other descriptors")
    first: Values = each[:, 0].copy()
    mode, base = first >> np.uint64(62), (first >> np.uint64(49)) & np.uint64(7)
    other = (mode == 0) | (mode != mode[0]) | (base != 0)
    if other.any():
        position = int(np.flatnonzero(other)[0]) * WARPGROUP
        raise Fault(position, "only swizzled rows, at multiples of eight of them, are emulated")
    leading = (first >> np.uint64(16)) & np.uint64(0x3FFF)
    if not turned and (leading != 1).any():  # as part of an address that has more than 14 bits
        position = int(np.flatnonzero(leading != 1)[0]) * WARPGROUP
        raise Fault(position, f"has {leading.max()} as the leading offset of rows of terms, not 1")
    return first


def _fence(i: Instruction, scope: Scope) -> Step:
    """``fence.proxy.async``: asynchronous products may read what the threads wrote before."""
    if i.modifiers == ("mbarrier_init", "release", "cluster"):
        return lambda wave, group: fence_all(wave)
    if i.modifiers[:2] != ("proxy", "async") or i.modifiers[2:] not in ((), ("shared", "cta")):
        unknown(i)

    def step(wave: Wave, group: Group) -> None:
        fence_all(wave)
        wave.shared.let_async_read(None if group.whole else group.index)

    return step


BUILDERS: Mapping[str, Builder] = {"wgmma": _wgmma, "fence": _fence}
