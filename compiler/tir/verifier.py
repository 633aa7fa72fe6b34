"""What holds for every program, scheduled or lowered; a violation is a bug of ours.

Variables are used where they are bound, buffers where they live, indices are int64 (in a lowered
program int32 as well) and as many as the buffer has dimensions, operands have the dtypes that their
operation asks for, inputs are not stored to, and no access that is certain to happen is certain to
miss its buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NoReturn

from tunefarm.compiler.dtypes import DTYPES, is_float
from tunefarm.compiler.gpu.intrinsics import (
    BOXED,
    CLUSTER_REDUCTIONS,
    HELD_PRODUCTS,
    JOINED,
    SENT,
    TURNED,
    WARP_REDUCTIONS,
)
from tunefarm.compiler.tir.affine import Ranges, interval
from tunefarm.compiler.tir.ir import (
    BLOCK_AXES,
    COMPARISONS,
    INTRINSICS,
    SCOPES,
    THREAD_AXES,
    Allocate,
    Barrier,
    Binary,
    Block,
    Buffer,
    Cast,
    Const,
    Expr,
    For,
    If,
    Intrinsic,
    Load,
    LoopKind,
    PrimFunc,
    Select,
    Seq,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir.printer import print_expr
from tunefarm.compiler.tir.tensor_intrinsics import TENSOR_INTRINSICS
from tunefarm.compiler.tir.visit import walk_stmt

MAX_REGISTER_BYTES = 1 << 20  # beyond, SSA values would not be registers but megabytes of text
_LOGIC = frozenset({"and", "or", "xor"})
_WHOLE = frozenset({"bitand", "bitor", "bitxor", "shl", "shr"})
_TESTS = frozenset({"isnan", "isinf"})
_ARITY = {"pow": 2, "fmod": 2, "fma": 3}


class VerifyError(AssertionError):
    """A program that breaks a rule of the loop IR: what, where, and the program's text."""


def verify(program: PrimFunc, lowered: bool = False) -> PrimFunc:
    """The program itself, if it keeps the rules of the loop IR.

    A lowered one has neither blocks nor buffers without a place. Raises VerifyError, an
    AssertionError with the program's text.
    """
    _Verifier(program, lowered).run()
    return program


class _Verifier:
    """Walks a program with the variables and buffers that are in scope."""

    def __init__(self, program: PrimFunc, lowered: bool) -> None:
        self.program = program
        self.lowered = lowered
        self.where: list[str] = []
        self.ranges: dict[Var, tuple[int, int]] = {}
        self.bound: set[Var] = set()
        self.live: set[Buffer] = set()
        self.read_only: set[Buffer] = set()
        self.certain = True
        self.axes: list[tuple[str, int]] = []
        self.seen: set[tuple[Expr, bool]] = set()  # of a statement, in whose expressions they recur

    def fail(self, what: str) -> NoReturn:
        at = f" in {' / '.join(self.where)}" if self.where else ""
        raise VerifyError(f"{self.program.name}: {what}{at}\n{self.program}")

    def run(self) -> None:
        program = self.program
        if not 0 < program.outputs <= len(program.params):
            self.fail(f"{program.outputs} outputs of {len(program.params)} parameters")
        for buffer in (*program.params, *program.buffers):
            self.declare(buffer)
        if self.lowered and program.buffers:
            self.fail(f"buffer {program.buffers[0].name} has no place after lowering")
        for param in program.params:
            if param.scope != "global":
                self.fail(f"parameter {param.name} has scope {param.scope}")
        self.read_only = set(program.params[: len(program.params) - program.outputs])
        for what, indices in self.attributes():
            if any(not 0 <= i < len(program.params) - program.outputs for i in indices):
                self.fail(f"{what} names what is not an input")
        self.blocks()
        self.stmt(program.body)

    def attributes(self) -> Iterator[tuple[str, frozenset[int]]]:
        yield "layouts", frozenset(self.program.layouts)
        yield "constants", self.program.constants
        yield "overwritten", self.program.overwritten

    def blocks(self) -> None:
        """Block names are unique, and so are the loops of a program that has blocks."""
        names: set[str] = set()
        loops: set[Var] = set()
        for stmt in walk_stmt(self.program.body):
            if isinstance(stmt, Block):
                if stmt.name in names:
                    self.fail(f"two blocks have the name {stmt.name}")
                names.add(stmt.name)
        if not names:
            return
        for stmt in walk_stmt(self.program.body):
            if isinstance(stmt, For):
                if stmt.var in loops:
                    self.fail(f"two loops have the variable {stmt.var.name}")
                loops.add(stmt.var)

    def declare(self, buffer: Buffer) -> None:
        name = buffer.name
        if buffer in self.live:
            self.fail(f"buffer {name} is declared twice")
        if buffer.dtype not in DTYPES:
            self.fail(f"buffer {name} has dtype {buffer.dtype}")
        if buffer.scope not in SCOPES:
            self.fail(f"buffer {name} has scope {buffer.scope!r}; scopes: {', '.join(SCOPES)}")
        threads = self.lowered and any(axis in THREAD_AXES for axis, _ in self.axes)
        if threads and buffer.scope == "shared":
            self.fail(f"shared buffer {name} is allocated inside a thread")
        if buffer.padding < 0 or any(e < 0 for e in buffer.shape):
            self.fail(f"buffer {name} has shape {buffer.shape} and padding {buffer.padding}")
        large = prod(buffer.shape) > MAX_REGISTER_BYTES
        if self.lowered and buffer.scope == "register" and large:  # compacted by then
            self.fail(f"register buffer {name} has shape {buffer.shape}")
        self.live.add(buffer)

    # --- statements ----------------------------------------------------------------------------

    def stmt(self, stmt: Stmt) -> None:
        self.seen.clear()
        match stmt:
            case Seq(stmts):
                for part in stmts:
                    self.stmt(part)
            case For():
                self.loop(stmt)
            case If():
                self.condition(stmt.condition)
                self.maybe(stmt.then)
                if stmt.orelse is not None:
                    self.maybe(stmt.orelse)
            case Allocate(buffer, body):
                self.declare(buffer)
                self.stmt(body)
                self.live.remove(buffer)
            case Store():
                self.store(stmt)
            case Barrier():
                if not any(axis in THREAD_AXES for axis, _ in self.axes):
                    self.fail("a barrier where there are no threads")
            case Block():
                self.block(stmt)

    def maybe(self, stmt: Stmt) -> None:
        """A statement that may not run: nothing is certain in it."""
        before, self.certain = self.certain, False
        self.stmt(stmt)
        self.certain = before

    def loop(self, loop: For) -> None:
        for bound in (loop.start, loop.extent):
            self.integer(bound, f"a bound of loop {loop.var.name}")
        if loop.is_expanded and not isinstance(loop.extent, Const):
            self.fail(f"{loop.kind} loop {loop.var.name} has no constant extent")
        around = self.axes
        self.axes = [*around, *self.axis(loop)]
        low, _ = interval(loop.start, self.ranges)
        _, end = interval(loop.start + loop.extent, self.ranges)
        certain = self.certain
        empty, _ = interval(loop.extent, self.ranges)
        self.certain = certain and empty > 0
        self.bind(loop.var, (low, max(low, end - 1)))
        if not loop.start.dtype == loop.extent.dtype == loop.var.dtype:
            self.fail(f"loop {loop.var.name} of {loop.var.dtype} has bounds of another dtype")
        self.where.append(f"loop {loop.var.name}")
        self.stmt(loop.body)
        self.axes = around
        self.where.pop()
        self.unbind(loop.var)
        self.certain = certain

    def axis(self, loop: For) -> Iterator[tuple[str, int]]:
        """The axis and the number of its threads, if the loop has one; both are constants, and
        the same as those of a loop around with this axis."""
        if (loop.kind is LoopKind.THREAD) != (loop.axis in (*BLOCK_AXES, *THREAD_AXES)):
            self.fail(f"{loop.kind} loop {loop.var.name} has the axis {loop.axis!r}")
        if loop.kind not in (LoopKind.THREAD, LoopKind.VIRTUAL):
            return
        if not isinstance(loop.extent, Const) or not isinstance(loop.start, Const):
            self.fail(f"{loop.kind} loop {loop.var.name} has no constant bounds")
        extent = int(loop.extent.value)
        if loop.kind is LoopKind.VIRTUAL:
            return
        if any(axis == loop.axis and size != extent for axis, size in self.axes):
            self.fail(f"loop {loop.var.name} has another number of threads along {loop.axis}")
        yield loop.axis, extent

    def bind(self, var: Var, bounds: tuple[int, int]) -> None:
        if not self.may_index(var.dtype):
            self.fail(f"variable {var.name} has dtype {var.dtype}")
        if var in self.bound:
            self.fail(f"variable {var.name} is bound twice")
        self.bound.add(var)
        self.ranges[var] = bounds

    def unbind(self, var: Var) -> None:
        self.bound.remove(var)
        del self.ranges[var]

    def block(self, block: Block) -> None:
        if self.lowered:
            self.fail(f"block {block.name} is left after lowering")
        self.where.append(f"block {block.name}")
        if len(block.iters) != len(block.bindings):
            self.fail(f"{len(block.iters)} iterators have {len(block.bindings)} bindings")
        for binding in block.bindings:
            self.integer(binding, "a binding")
        if block.predicate is not None:
            self.condition(block.predicate)
        reduces = any(i.kind == "reduce" for i in block.iters)
        if block.init is not None and not reduces:
            self.fail("an init without a reduction")
        for axis in block.iters:
            self.bind(axis.var, (0, max(0, axis.extent - 1)))
        before, self.certain = self.certain, self.certain and block.predicate is None
        for part in (block.init, block.body):
            if part is not None and not isinstance(part, Store):
                self.fail("a block's init and body are stores")
            if part is not None:
                self.stmt(part)
        self.certain = before
        for axis in block.iters:
            self.unbind(axis.var)
        self.where.pop()

    def store(self, store: Store) -> None:
        buffer = store.buffer
        if buffer in self.read_only:
            self.fail(f"input {buffer.name} is stored to")
        self.access(buffer, store.indices, self.certain)
        dtype = self.expr(store.value, self.certain)
        if dtype != buffer.dtype:
            self.fail(f"{buffer.name} holds {buffer.dtype} and is stored {dtype}")

    # --- expressions ---------------------------------------------------------------------------

    def condition(self, expr: Expr) -> None:
        dtype = self.expr(expr, False)
        if dtype != "bool":
            self.fail(f"condition {print_expr(expr)} has dtype {dtype}")

    def integer(self, expr: Expr, what: str) -> None:
        dtype = self.expr(expr, False)
        if not self.may_index(dtype):
            self.fail(f"{what}, {print_expr(expr)}, has dtype {dtype}")

    def may_index(self, dtype: str) -> bool:
        return dtype == "int64" or (self.lowered and dtype == "int32")

    def access(self, buffer: Buffer, indices: tuple[Expr, ...], certain: bool) -> None:
        if buffer not in self.live:
            self.fail(f"buffer {buffer.name} is used where it does not live")
        if len(indices) != len(buffer.shape):
            self.fail(
                f"{buffer.name} has {len(buffer.shape)} dimensions and {len(indices)} indices"
            )
        for index, extent in zip(indices, buffer.shape, strict=True):
            self.integer(index, f"an index of {buffer.name}")
            if certain and self._misses(index, extent):
                self.fail(f"{buffer.name} of shape {buffer.shape} is indexed {print_expr(index)}")

    def _misses(self, index: Expr, extent: int) -> bool:
        """True if no value of the index lies in [0, extent)."""
        ranges: Ranges = self.ranges
        low, high = interval(index, ranges)
        return high < 0 or low >= extent

    def expr(self, expr: Expr, certain: bool) -> str:
        """The dtype of an expression whose parts fit together."""
        if (expr, certain) in self.seen:
            return expr.dtype
        match expr:
            case Var():
                if expr not in self.bound:
                    self.fail(f"variable {expr.name} is used where it is not bound")
            case Const(value, dtype):
                if dtype not in DTYPES:
                    self.fail(f"constant {value} has dtype {dtype}")
                if not is_float(dtype) and int(value) != value:
                    self.fail(f"constant {value} is no {dtype}")
            case Load(buffer, indices):
                self.access(buffer, indices, certain)
            case Cast(value, _):
                self.expr(value, certain)
            case Select(condition, a, b, dtype):
                self.condition(condition)
                self.same(expr, (self.expr(a, False), self.expr(b, False), dtype))
            case Intrinsic():
                self.intrinsic(expr, certain)
            case Binary(op, a, b, dtype):
                kinds = (self.expr(a, certain), self.expr(b, certain and op not in ("and", "or")))
                self.same(expr, kinds)
                self.operation(expr, kinds[0])
        if expr.dtype not in DTYPES:
            self.fail(f"{print_expr(expr)} has dtype {expr.dtype}")
        self.seen.add((expr, certain))
        return expr.dtype

    def same(self, expr: Expr, dtypes: tuple[str, ...]) -> None:
        if len(set(dtypes)) > 1:
            self.fail(f"{print_expr(expr)} mixes {', '.join(dict.fromkeys(dtypes))}")

    def operation(self, expr: Binary, operand: str) -> None:
        result = "bool" if expr.op in COMPARISONS or expr.op in ("and", "or") else operand
        if expr.dtype != result:
            self.fail(f"{print_expr(expr)} has dtype {expr.dtype}, not {result}")
        if expr.op in _LOGIC and operand != "bool":
            self.fail(f"{print_expr(expr)} is logic on {operand}")
        if expr.op in _WHOLE and is_float(operand):
            self.fail(f"{print_expr(expr)} is bit arithmetic on {operand}")

    def intrinsic(self, expr: Intrinsic, certain: bool) -> None:
        name, args = expr.name, expr.args
        if name in TENSOR_INTRINSICS:
            self.tensor_intrinsic(expr, certain)
            return
        if name in WARP_REDUCTIONS or name in CLUSTER_REDUCTIONS:
            self.warp_reduction(expr, certain)
            return
        if name in HELD_PRODUCTS:
            self.held_product(expr, certain)
            return
        if name == JOINED:
            if len(args) < 2 or {expr.dtype, *(self.expr(a, certain) for a in args)} != {"float32"}:
                self.fail(f"{print_expr(expr)} adds float32 of two blocks or more")
            return
        if name in (BOXED, SENT):
            self.boxed(expr, certain and name == SENT)
            return
        if name == TURNED:
            self.turned(expr, certain)
            return
        if name not in INTRINSICS:
            self.fail(f"there is no intrinsic {name}")
        if len(args) != _ARITY.get(name, 1):
            self.fail(f"{print_expr(expr)} has {len(args)} arguments")
        kinds = tuple(self.expr(a, certain) for a in args)
        result = "bool" if name in _TESTS else expr.dtype
        self.same(expr, kinds if name in _TESTS else (*kinds, expr.dtype))
        if expr.dtype != result or (name == "not" and expr.dtype != "bool"):
            self.fail(f"{print_expr(expr)} has dtype {expr.dtype}")

    def warp_reduction(self, expr: Intrinsic, certain: bool) -> None:
        value, *rest = expr.args
        width = rest[0].value if len(rest) == 1 and isinstance(rest[0], Const) else 0
        what = "threads" if expr.name in WARP_REDUCTIONS else "blocks"
        if width not in (2, 4, 8, 16, 32) or self.expr(value, certain) != expr.dtype:
            self.fail(f"{print_expr(expr)} does not combine 2, 4 … 32 {what}' {expr.dtype}")

    def held_product(self, expr: Intrinsic, certain: bool) -> None:
        p = HELD_PRODUCTS[expr.name]
        wanted = (p.accumulator, *[p.operand] * (p.terms + p.depth))
        kinds = tuple(self.expr(a, certain) for a in expr.args)
        if kinds != wanted or expr.dtype != p.accumulator:
            self.fail(f"{print_expr(expr)} takes {', '.join(kinds)}, not {', '.join(wanted)}")

    def turned(self, expr: Intrinsic, certain: bool) -> None:
        *held, own, k = expr.args
        kinds = {self.expr(value, certain) for value in held}
        numbers = {self.expr(own, certain), self.expr(k, certain)}
        if len(held) not in (2, 4) or kinds != {expr.dtype} or numbers != {"int64"}:
            self.fail(f"{print_expr(expr)} is no exchange of 2 or 4 values between as many threads")

    def boxed(self, expr: Intrinsic, certain: bool) -> None:
        """The element is read where its coordinates lie in the tensor, and only there, unless that
        is ``certain``."""
        load, *axes = expr.args
        fits = len(axes) >= 3 and len(axes) % 3 == 0
        fits = fits and all(isinstance(n, Const) for n in (*axes[1::3], *axes[2::3]))
        kinds = {self.expr(axis, False) for axis in axes}
        if not fits or kinds != {"int64"} or self.expr(load, certain) != expr.dtype:
            self.fail(f"{print_expr(expr)} is no element of a tensor with coordinates and extents")

    def tensor_intrinsic(self, expr: Intrinsic, certain: bool) -> None:
        t = TENSOR_INTRINSICS[expr.name]
        wanted = (t.accumulator, *[t.a] * t.terms, *[t.b] * t.terms)
        kinds = tuple(self.expr(a, certain) for a in expr.args)
        if kinds != wanted or expr.dtype != t.accumulator:
            self.fail(f"{print_expr(expr)} takes {', '.join(kinds)}; {t.name} is {t}")
