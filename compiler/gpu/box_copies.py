"""Copies of boxes in LLVM text: one instruction of one thread for all elements of a box.

Those from shared memory are in groups, which that thread waits for.

The loops over the elements of a box (``boxes.py``) become ``cp.async.bulk.tensor``, and what they
say of the tensor a map that the kernel takes beside its addresses. In a cluster of blocks a box
that is the same for all of them is asked for once: each block asks for its part of the rows, which
arrive in the memory of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from tunefarm.compiler.codegen.builder import FunctionBuilder
from tunefarm.compiler.codegen.statements import Module
from tunefarm.compiler.codegen.values import Lin
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.boxes import MAX_BOX, axes_of
from tunefarm.compiler.gpu.dialects import Dialect
from tunefarm.compiler.gpu.launches import Part
from tunefarm.compiler.gpu.tensor_maps import TensorMap
from tunefarm.compiler.gpu.warpgroups import CONVERGENT, WarpgroupEmitter
from tunefarm.compiler.gpu.wgmma import ROWS_TOGETHER, SWIZZLES, next_row
from tunefarm.compiler.target import dtype_bytes
from tunefarm.compiler.tir.affine import affine
from tunefarm.compiler.tir.ir import (
    CLUSTER_AXIS,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Intrinsic,
    Load,
    Stmt,
    Store,
    Var,
)


class BoxEmitter(WarpgroupEmitter):
    """Writes what four warps do together, and the boxes that are copied beside.

    ``params`` are the program's; ``maps`` is what the kernel takes beside their addresses.
    """

    def __init__(
        self, module: Module, builder: FunctionBuilder, dialect: Dialect, part: Part, name: str
    ) -> None:
        super().__init__(module, builder, dialect, part, name)
        self.params: Sequence[Buffer] = ()
        self.maps: list[TensorMap] = []
        self._member: Var | None = None  # the number of the block in its cluster

    def _box(self, loops: Sequence[For], store: Store, mark: str) -> None:
        """One instruction for all iterations of the loops around an element, or for the part of
        them that this block asks for on behalf of its cluster."""
        assert isinstance(store.value, Intrinsic)
        axes = axes_of(store.value)
        shared_out = self.part.sharing > 1 and not any(
            self._member in affine(axis.at).variables() for axis in axes
        )
        parts = self.part.cluster if shared_out else 1
        for each in loops:
            self.env[each.var] = Lin(0)
        place = self._target(loops, store, extent_of(loops[0]) // parts)
        if shared_out:
            number = self.number_of(CLUSTER_AXIS, parts)
            self.env[loops[0].var] = Lin(0, ((number, extent_of(loops[0]) // parts),))
            place = self._shared_address(store, self._linear_at(loops, store, number, parts))
        load = store.value.args[0]
        assert isinstance(load, Load)
        tensor = self._map(loops, store.buffer, load.buffer, store.value, parts)
        operands = [("r", place), ("l", tensor)]
        operands += [("r", self._narrow(self._linear_index(axis.at))) for axis in axes]
        numbers = ", ".join(f"${n + 2}" for n in range(len(axes)))
        name = f"cp.async.bulk.tensor.{len(axes)}d.shared::cluster.global"
        name = f"{name}.mbarrier::complete_tx::bytes{'.multicast::cluster' if shared_out else ''}"
        operands.append(("r", mark))
        mask = ""
        if shared_out:
            operands.append(("h", str((1 << parts) - 1)))
            mask = f", ${len(axes) + 3}"
        self._assembly(f"{name} [$0], [$1, {{{numbers}}}], [${len(axes) + 2}]{mask};", operands)

    def _send_box(self, loops: Sequence[For], store: Store) -> None:
        """One instruction of one thread that copies all elements of a box from shared memory, in a
        group of its own; it waits until so few are under way that the next tile is free."""
        assert isinstance(store.value, Intrinsic)
        load, axes = store.value.args[0], axes_of(store.value)
        assert isinstance(load, Load)
        for each in loops:
            self.env[each.var] = Lin(0)
        place = self._target(loops, load, extent_of(loops[0]))
        operands = [
            ("l", self._map(loops, load.buffer, store.buffer, store.value, 1)),
            ("r", place),
        ]
        operands += [("r", self._narrow(self._linear_index(axis.at))) for axis in axes]
        numbers = ", ".join(f"${n + 2}" for n in range(len(axes)))
        name = f"cp.async.bulk.tensor.{len(axes)}d.global.shared::cta.bulk_group"
        self._assembly(f"{name} [$0, {{{numbers}}}], [$1];", operands)
        self._assembly("cp.async.bulk.commit_group;", [])
        self.wait_for_sent(load.buffer.shape[1] - 1)

    def wait_for_sent(self, groups: int) -> None:
        """Wait until all but so many groups of a thread's boxes have been read."""
        self._assembly(f"cp.async.bulk.wait_group.read {groups};", [])

    def _linear_at(self, loops: Sequence[For], store: Store, number: str, parts: int) -> Lin:
        """The element at which a part of a box begins: rows of it lie one after the other."""
        now, self.env[loops[0].var] = self.env[loops[0].var], Lin(0)
        start = self._linear_index(store)
        self.env[loops[0].var] = now
        part = extent_of(loops[0]) // parts * store.buffer.shape[-1]
        return start.plus(Lin(0, ((number, part),)))

    def _target(self, loops: Sequence[For], at: Store | Load, rows: int) -> str:
        """Where a box begins in shared memory, whose parts have so many rows; ScheduleError unless
        its rows lie there as the instruction writes or reads them."""
        place = self._linear_index(at)
        corner = loops[0].var
        self.env[corner] = Lin(1)
        apart = self._linear_index(at).plus(place, -1)
        self.env[corner] = Lin(0)
        length, size = at.buffer.shape[-1], dtype_bytes(at.buffer.dtype)
        steps = gcd(place.const, *(c for _, c in place.terms))
        whole = steps % (ROWS_TOGETHER * length) == 0 and rows % ROWS_TOGETHER == 0
        if apart != Lin(next_row(length, size)) or not whole:
            raise ScheduleError(f"{at.buffer.name} does not lie as boxes are copied")
        return self._shared_address(at, place)

    def _shared_address(self, at: Store | Load, place: Lin) -> str:
        pointer = self.in_space(self.address(at.buffer, place), 3)
        return self.builder.here(f"ptrtoint ptr addrspace(3) {pointer} to i32")

    def _map(
        self, loops: Sequence[For], tile: Buffer, of: Buffer, value: Intrinsic, parts: int
    ) -> str:
        """The kernel's argument that describes the tensor ``of`` a box of a tile, of which each
        block asks for one of some parts."""
        axes, size = axes_of(value), dtype_bytes(of.dtype)
        row_bytes = tile.shape[-1] * size
        box = []
        for axis in axes:
            form = affine(axis.at)
            mine = [each for each in loops if form.coefficient(each.var) == 1]
            extent = prod(map(extent_of, mine))
            box.append(extent // parts if loops[0] in mine else extent)
        elements = prod(map(extent_of, loops)) // parts
        whole = row_bytes in SWIZZLES and box[0] * size == row_bytes
        if not whole or max(box) > MAX_BOX or prod(box) != elements:
            raise ScheduleError(f"a box of {' × '.join(map(str, box))} of {of.name}")
        made = TensorMap(
            self.params.index(of), of.dtype, tuple(axis.extent for axis in axes),
            tuple(axis.stride * size for axis in axes[1:]), tuple(box), row_bytes,
        )  # fmt: skip
        if made not in self.maps:
            self.maps.append(made)
        return f"%m{self.maps.index(made)}"

    # --- text ----------------------------------------------------------------------------------

    def _linear_index(self, place: Expr | Store) -> Lin:
        """An index, or the number of the element that is stored or loaded, as a linear form."""
        if isinstance(place, Store | Load):
            found = self.flat_index(place.buffer, place.indices)
        else:
            found = self.index(place)
        if not isinstance(found, Lin):
            raise ScheduleError("a box lies at no linear place")
        return found

    def _narrow(self, value: Lin) -> str:
        """An index in 32 bits."""
        text = self.scalar_int(value)
        return text if value.is_constant else self.builder.here(f"trunc i64 {text} to i32")

    def _assembly(self, text: str, operands: Sequence[tuple[str, str]]) -> None:
        """Instructions that change memory, on registers of 32 or 16 bits ("r", "h") or pointers
        ("l")."""
        kinds = ",".join([*(kind for kind, _ in operands), "~{memory}"])
        types = {"l": "ptr", "h": "i16"}
        given = ", ".join(f"{types.get(kind, 'i32')} {value}" for kind, value in operands)
        self.builder.line(f'call void asm sideeffect "{text}", "{kinds}"({given}) {CONVERGENT}')


def nest_of(stmt: Stmt) -> tuple[list[For], Store]:
    """The loops over a box, and what stores its elements, under whichever conditions."""
    loops = []
    while isinstance(stmt, For | If):
        loops += [stmt] if isinstance(stmt, For) else []
        stmt = stmt.body if isinstance(stmt, For) else stmt.then
    if not isinstance(stmt, Store) or not loops:
        raise ScheduleError("a box is no nest of loops over its elements")
    return loops, stmt


def extent_of(loop: For) -> int:
    if not isinstance(loop.extent, Const):
        raise ScheduleError(f"loop {loop.var.name} over a box has no constant extent")
    return int(loop.extent.value)
