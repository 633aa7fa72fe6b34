"""Tiles of a matrix unit (AMX): nests of tiled loops become its instructions.

    for r, l: C[r, l] = 0                                      tilezero
    for r, l, g: C[r, l] = x86.tdpbusd(C[r, l], A[r, g], B[g, l])   tileloadd, tileloadd, tdpbusd
    for r, l: S[r, l] = C[r, l]                                tilestored

Cache lines that a loop over products asks for are shared out to these.

Sums get the lowest registers, in the order in which they are first stored; those of B are taken
from the top, those of A from what is left, and the one that was read longest ago makes place. A
register keeps its shape, which the function's first instruction tells the unit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from tunefarm.compiler.codegen.loops import Loops
from tunefarm.compiler.codegen.values import Lin
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.target import dtype_bytes
from tunefarm.compiler.tir.facts import variables
from tunefarm.compiler.tir.ir import (
    Buffer,
    Const,
    For,
    If,
    Intrinsic,
    Load,
    LoopKind,
    Prefetch,
    Seq,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir.tensor_intrinsics import TENSOR_INTRINSICS

REGISTERS = 8
CONFIG_BYTES = 64


@dataclass(slots=True)
class TileFile:
    """The tile registers of a function: rows and bytes a row of each that is used, the sums by
    where they begin in their buffer, and of the operands those that were read last, at the end."""

    shapes: dict[int, tuple[int, int]] = field(default_factory=dict)
    sums: dict[tuple[Buffer, int], int] = field(default_factory=dict)
    operands: dict[str, list[int]] = field(default_factory=lambda: {"a": [], "b": []})
    holds: dict[int, str] = field(default_factory=dict)

    def free(self) -> list[int]:
        """The registers that hold neither a sum nor an operand."""
        taken = {*self.sums.values(), *self.operands["a"], *self.operands["b"]}
        return [r for r in range(REGISTERS) if r not in taken]

    def config(self) -> list[int]:
        """What LDTILECFG reads, as eight words of 64 bits: palette 1, bytes of rows, rows."""
        memory = bytearray(CONFIG_BYTES)
        memory[0] = 1
        for register, (rows, row_bytes) in self.shapes.items():
            memory[16 + 2 * register : 18 + 2 * register] = row_bytes.to_bytes(2, "little")
            memory[48 + register] = rows
        return [int.from_bytes(memory[at : at + 8], "little") for at in range(0, CONFIG_BYTES, 8)]


@dataclass(slots=True)
class _Hints:
    """What a loop's iteration asks for, line by line, beside so many products; how many of either
    have been written."""

    lines: list[tuple[Prefetch, int]]
    products: int
    asked: int = 0
    written: int = 0


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tile begins in its buffer, and how far apart its elements are along each loop."""

    buffer: Buffer
    first: Lin
    steps: dict[Var, int]


class Tiles(Loops):
    """Writes nests of tiled loops."""

    tiles: TileFile
    _hints: _Hints | None = None

    def iteration(self, loop: For) -> None:
        """Write the loop's body once, its hints among the products. Those that wait for memory
        take the few places of a core that tiles from the second cache come through: all at once
        they let a float32 product of 128 × 768 × 768 take 1.2 × the time, of 64 rows 1.25 ×."""
        products = _products(loop.body) if loop.prefetch else 0
        if not products:
            super().iteration(loop)
            return
        lines = [(hint, line) for hint in loop.prefetch for line in range(hint.lines)]
        outer, self._hints = self._hints, _Hints(lines, products)
        self.statement(loop.body)
        self._hints = outer

    def _ask_beside(self) -> None:
        """Ask for the lines that are due with one more product."""
        hints = self._hints
        if hints is None:
            return
        hints.written += 1
        due = hints.written * len(hints.lines) // hints.products
        for hint, line in hints.lines[hints.asked : due]:
            self.prefetch(hint, line, line + 1)
        hints.asked = due

    def tiled_nest(self, loop: For) -> None:
        """One instruction for all iterations, with the loads of its operands."""
        if self.lanes != 1 or self.mask is not None:
            raise ScheduleError(f"loop {loop.var.name} is tiled inside a vectorized loop")
        extents: dict[Var, int] = {}
        body: Stmt = loop
        while isinstance(body, For):
            start, extent = self.constant_bounds(body)
            if body.kind is not LoopKind.TILED or start:
                self._refuse(loop, f"loop {body.var.name} stands inside it")
            extents[body.var] = extent
            body = body.body
        if not isinstance(body, Store):
            self._refuse(loop, "it does not store a tile alone")
        value = body.value
        if body.buffer.scope == "tile" and isinstance(value, Const) and not value.value:
            register = self._sum_register(self._tile_place(body, extents), extents)
            self._tile_instruction("llvm.x86.tilezero", "i8", f"i8 {register}")
        elif body.buffer.scope == "tile" and isinstance(value, Intrinsic):
            self._multiply(loop, body, value, extents)
        elif isinstance(value, Load) and value.buffer.scope == "tile":
            register = self._sum_register(self._tile_place(value, extents), extents)
            self._move_tile(
                "llvm.x86.tilestored64", register, self._tile_place(body, extents), extents
            )
            self.builder.forget(body.buffer)
        else:
            self._refuse(loop, "a matrix unit has no instruction for what it stores")

    def configured(self) -> None:
        """Let the function, whose code ends here, begin with what its registers hold, and leave
        the unit unused."""
        if not self.tiles.shapes:
            return
        b = self.builder
        memory = b.alloca(f"[{CONFIG_BYTES} x i8], align {CONFIG_BYTES}")
        for number, word in enumerate(self.tiles.config()):
            place = f"{memory}.{number}"
            b.entry.append(f"  {place} = getelementptr i8, ptr {memory}, i64 {8 * number}")
            b.entry.append(f"  store i64 {word}, ptr {place}, align 8")
        b.entry.append(f"  call void @llvm.x86.ldtilecfg(ptr {memory})")
        self.declares.add("declare void @llvm.x86.ldtilecfg(ptr)")
        self._tile_instruction("llvm.x86.tilerelease", "", "")

    def _refuse(self, loop: For, why: str) -> NoReturn:
        raise ScheduleError(f"tiled loop {loop.var.name}: {why}")

    def _tile_instruction(self, name: str, types: str, arguments: str) -> None:
        self.declares.add(f"declare void @{name}({types})")
        self.builder.line(f"call void @{name}({arguments})")

    def _tile_place(self, access: Load | Store, extents: dict[Var, int]) -> _Place:
        """Where the element of all loops' first iterations is, and the steps to the next."""
        for var in extents:
            self.env[var] = Lin(0)
            self.ranges[var] = (0, 0)
        first = self._linear_place(access)
        steps: dict[Var, int] = {}
        used = frozenset().union(*map(variables, access.indices))
        for var in [v for v in extents if v in used]:
            self.env[var] = Lin(1)
            step = self._linear_place(access).plus(first, -1)
            self.env[var] = Lin(0)
            if not step.is_constant:
                raise ScheduleError(f"{access.buffer.name} is no matrix along {var.name}")
            if step.const:
                steps[var] = step.const
        return _Place(access.buffer, first, steps)

    def _linear_place(self, access: Load | Store) -> Lin:
        place = self.flat_index(access.buffer, access.indices)
        if not isinstance(place, Lin):
            raise ScheduleError(f"{access.buffer.name} is no matrix in memory")
        return place

    def _sum_register(self, place: _Place, extents: dict[Var, int]) -> int:
        """The register of a tile of sums: lanes side by side, in rows of so many."""
        if place.first.terms:
            raise ScheduleError(f"{place.buffer.name} is a tile register, and its index varies")
        key = place.buffer, place.first.const
        files = self.tiles
        lane = next((v for v, step in place.steps.items() if step == 1), None)
        rows = [extents[v] for v in place.steps if v is not lane]
        if lane is None or len(rows) > 1:
            raise ScheduleError(f"{place.buffer.name} is no tile of rows of lanes")
        if key not in files.sums:
            files.sums = {k: r for k, r in files.sums.items() if k[0] is place.buffer}
            files.sums[key] = next(iter(files.free()), REGISTERS)
        register = files.sums[key]
        self._shape(register, (*rows, 1)[0], extents[lane] * dtype_bytes(place.buffer.dtype))
        return register

    def _shape(self, register: int, rows: int, row_bytes: int) -> None:
        shape = rows, row_bytes
        if register >= REGISTERS or self.tiles.shapes.setdefault(register, shape) != shape:
            raise ScheduleError(f"a function needs more than {REGISTERS} tile registers")

    def _multiply(self, loop: For, store: Store, value: Intrinsic, extents: dict[Var, int]) -> None:
        intrinsic = TENSOR_INTRINSICS.get(value.name)
        if intrinsic is None or not intrinsic.rows:
            self._refuse(loop, f"{value.name} is no instruction of a matrix unit")
        loads = value.args[1], value.args[1 + intrinsic.terms]
        if not all(isinstance(load, Load) for load in loads):
            self._refuse(loop, "an operand is no element in memory")
        sums = self._tile_place(store, extents)
        a, b = (self._tile_place(load, extents) for load in loads)  # type: ignore[arg-type]
        group = next((v for v in a.steps if v in b.steps), None)
        row = next((v for v in a.steps if v is not group), None)
        lane = next((v for v in b.steps if v is not group), None)
        if group is None or row is None or lane is None or len(extents) != 3:
            self._refuse(loop, "its loops are no rows, lanes and groups of terms")
        if a.steps[group] != intrinsic.terms or b.steps[lane] != intrinsic.terms:
            self._refuse(loop, "the terms of a group do not stand side by side")
        register = self._sum_register(sums, extents)
        first = self._tile_operand("a", a, (row, group), extents, intrinsic.terms)
        second = self._tile_operand("b", b, (group, lane), extents, intrinsic.terms)
        registers = ", ".join(f"i8 {n}" for n in (register, first, second))
        self._tile_instruction(intrinsic.instruction, "i8, i8, i8", registers)
        self._ask_beside()

    def _tile_operand(
        self, role: str, place: _Place, loops: tuple[Var, Var], extents: dict[Var, int], terms: int
    ) -> int:
        """The register that holds a tile of A or B, which is loaded if none does."""
        files, b = self.tiles, self.builder
        outer, inner = loops
        row_bytes = extents[inner] * terms * dtype_bytes(place.buffer.dtype)
        key = ("tile", place.first, place.steps[outer])
        name = b.loaded(place.buffer, key)
        order = files.operands[role]
        register = next((r for r in order if name is not None and files.holds[r] == name), None)
        if register is None:
            register = self._free_operand(role)
            self._shape(register, extents[outer], row_bytes)
            pitch = {outer: place.steps[outer]}
            self._move_tile(
                "llvm.x86.tileloadd64", register, _Place(place.buffer, place.first, pitch)
            )
            name = b.fresh("tile")
            b.define(name)
            b.remember_load(place.buffer, key, name)
            files.holds[register] = name
        else:
            order.remove(register)
        order.append(register)
        return register

    def _free_operand(self, role: str) -> int:
        """A register that no tile was in, or the one of this role that was read longest ago."""
        files = self.tiles
        free = files.free()
        if free:
            return free[0] if role == "a" else free[-1]
        if not files.operands[role]:
            raise ScheduleError(f"a function needs more than {REGISTERS} tile registers")
        return files.operands[role].pop(0)

    def _move_tile(
        self, name: str, register: int, place: _Place, extents: dict[Var, int] | None = None
    ) -> None:
        """Load or store a tile, whose rows are as far apart as its place says."""
        steps = [s for v, s in place.steps.items() if extents is None or s != 1]
        stride = (*steps, 1)[0] * dtype_bytes(place.buffer.dtype)
        pointer = self.address(place.buffer, place.first)
        self._tile_instruction(name, "i8, ptr, i64", f"i8 {register}, ptr {pointer}, i64 {stride}")


def _products(stmt: Stmt) -> int:
    """Products of tiles that are written for a statement, those in serial loops left out."""
    match stmt:
        case Seq(stmts):
            return sum(map(_products, stmts))
        case If(then=then):
            return _products(then)
        case For(kind=LoopKind.TILED):
            return int(_multiplies(stmt))
        case For(kind=LoopKind.UNROLLED, extent=Const(value=extent)):
            return int(extent) * _products(stmt.body)
        case _:
            return 0


def _multiplies(loop: For) -> bool:
    body: Stmt = loop
    while isinstance(body, For):
        body = body.body
    return isinstance(body, Store) and isinstance(body.value, Intrinsic)
