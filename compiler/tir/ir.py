"""The loop IR on one page (Feng et al., "TensorIR", 2022).

    program ::= PrimFunc(params, body)              params: Buffers; inputs first, then outputs
    stmt    ::= For(var, start, extent, kind, body)
              | Block(name, iters, bindings, predicate, init, body)    what is computed
              | Store(buffer, indices, value) | If(condition, then, orelse)
              | Allocate(buffer, body) | Seq(stmts) | Barrier(pending)
    expr    ::= Var | Const | Binary(op, a, b) | Cast(value) | Select(condition, a, b)
              | Load(buffer, indices) | Intrinsic(name, args)

A ``Block`` says what is computed: its iterators (spatial or reduce), one store as body, and for a
reduction the store that initialises it. The loops around it say how: ``bindings`` gives each
iterator's value in terms of the loop variables. Lowering replaces blocks by plain loops.

Integers are int64 in index positions (``narrow_indices`` makes them int32, last of all). Booleans
have dtype "bool". Nodes compare by identity, and their ``repr`` is one line however deep they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeAlias, TypeVar

from tunefarm.compiler.tir.node import node, short_repr

BinaryOp: TypeAlias = Literal[
    "add", "sub", "mul", "div", "floordiv", "floormod", "min", "max", "maxnum",
    "lt", "le", "gt", "ge", "eq", "ne", "and", "or", "xor",
    "bitand", "bitor", "bitxor", "shl", "shr",
]  # fmt: skip
COMPARISONS: frozenset[str] = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})

# Unary and n-ary functions of scalars. Their NumPy meaning is in ``interpreter.py``.
# ``exp_shifted`` is exp of a difference x ≤ 0 that was rounded: an error of |x| ulp adds nothing.
# ``exp_within`` is exp where |x| ≤ 87; below anything up to e^-87, above it grows to infinity.
# ``log1p_unit`` is log1p of 0 ≤ x ≤ 1. ``near_sigmoid`` is 1 / (1 + exp(-x)) to 12 bits at least.
INTRINSICS = frozenset({
    "exp", "exp_shifted", "exp_within",
    "log", "log2", "log1p", "log1p_unit", "expm1", "sqrt", "rsqrt", "tanh", "erf", "sin", "cos",
    "tan",
    "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "pow", "fmod", "floor",
    "ceil", "round", "trunc", "abs", "not", "isnan", "isinf", "fma", "bitnot", "popcount",
    "near_sigmoid",
})  # fmt: skip


class LoopKind(StrEnum):
    """How the iterations of a loop run."""

    SERIAL = "serial"
    PARALLEL = "parallel"
    VECTORIZED = "vectorized"
    UNROLLED = "unrolled"
    THREAD = "thread"
    VIRTUAL = "vthread"
    STAGGERED = "staggered"  # serial, the stages of its body a tile apart (``stagger.py``)
    OVERLAPPED = "overlapped"  # serial, an epilogue beside the next sum (``overlap.py``)
    TILED = "tiled"  # with those inside it, all by one instruction of a matrix unit


GRID_AXES = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
CLUSTER_AXIS = "clusterIdx.x"
"""Of the blocks of a cluster, which stand side by side along ``blockIdx.x``: that loop counts the
clusters then."""
BLOCK_AXES = (*GRID_AXES, CLUSTER_AXIS)
THREAD_AXES = ("threadIdx.x", "threadIdx.y", "threadIdx.z")


@dataclass(frozen=True, slots=True)
class Ring:
    """Of dimension ``dim`` a buffer keeps ``rows`` rows, row i at ``i % rows``, each until another
    takes its place in a later iteration of the loop over ``var``."""

    dim: int
    rows: int
    var: Var


SCOPES = ("global", "local", "register", "tile", "shared")


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """A dense row-major array. ``scope`` is where it lives: "global" (an argument, or the arena),
    "local" (a tile on the stack), "register" (a tile whose elements become SSA values), "tile" (in
    registers of a matrix unit) or "shared" (one array for all threads of a block). ``padding``
    elements are added to each row when the buffer is placed, so that rows do not meet in the same
    cache set; one with ``planes_apart`` then gets a row more, or each row a line, where its planes
    (the last two dimensions) would. Of ``copies`` 2, lowering fills one while the other is read; a
    GPU's, of more, all others. Lowering gives a buffer with a ``ring`` no more rows than that says,
    and one ``by_lines`` rows of whole lines of the cache, of which vectors that begin inside one
    are put together. A vector of one ``joined`` that lies in two which were loaded is put together
    from those. The compiler moves no loads and stores across stores to one ``ordered``. A GPU's
    shared one that is ``swizzled`` has the 16 bytes of its rows in an order by which those of eight
    rows meet in no bank."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    scope: str = "global"
    padding: int = 0
    copies: int = 1
    ring: Ring | None = None
    by_lines: bool = False
    joined: bool = False
    ordered: bool = False
    swizzled: bool = False
    planes_apart: bool = False

    __repr__ = short_repr

    def __getitem__(self, indices: Expr | int | tuple[Expr | int, ...]) -> Load:
        items = indices if isinstance(indices, tuple) else (indices,)
        return Load(self, tuple(as_expr(i) for i in items))


class _Arithmetic:
    """Operators on expressions: ``i * 4 + j``. Equality is a method, since ``==`` is identity."""

    __slots__ = ()
    dtype: str

    def __add__(self, other: Operand) -> Expr:
        return binary("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return binary("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return binary("sub", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return binary("sub", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return binary("mul", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return binary("mul", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return binary("div", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return binary("div", other, self)

    def __floordiv__(self, other: Operand) -> Expr:
        return binary("floordiv", self, other)

    def __mod__(self, other: Operand) -> Expr:
        return binary("floormod", self, other)

    def __neg__(self) -> Expr:
        return binary("sub", Const(0, self.dtype), self)

    def __lt__(self, other: Operand) -> Expr:
        return binary("lt", self, other)

    def __le__(self, other: Operand) -> Expr:
        return binary("le", self, other)

    def __gt__(self, other: Operand) -> Expr:
        return binary("gt", self, other)

    def __ge__(self, other: Operand) -> Expr:
        return binary("ge", self, other)

    def equal(self, other: Operand) -> Expr:
        """Whether both have the same value; ``==`` asks whether they are the same node."""
        return binary("eq", self, other)

    def __and__(self, other: Operand) -> Expr:
        return binary("and", self, other)

    def __or__(self, other: Operand) -> Expr:
        return binary("or", self, other)


@dataclass(frozen=True, slots=True, eq=False)
class Var(_Arithmetic):
    """A loop's variable, or a block's iterator."""

    name: str
    dtype: str = "int64"


@node(frozen=True, slots=True, eq=False)
class Const(_Arithmetic):
    """A number."""

    value: int | float | bool
    dtype: str = "int64"


@node(frozen=True, slots=True, eq=False)
class Binary(_Arithmetic):
    """An operation on two values of one dtype; comparisons have dtype bool."""

    op: BinaryOp
    a: Expr
    b: Expr
    dtype: str


@node(frozen=True, slots=True, eq=False)
class Cast(_Arithmetic):
    """A value in another dtype."""

    value: Expr
    dtype: str


@node(frozen=True, slots=True, eq=False)
class Select(_Arithmetic):
    """``a`` where the condition holds, else ``b``. A load in the branch not taken is not made."""

    condition: Expr
    a: Expr
    b: Expr
    dtype: str


@node(frozen=True, slots=True, eq=False)
class Load(_Arithmetic):
    """An element of a buffer."""

    buffer: Buffer
    indices: tuple[Expr, ...]

    @property
    def dtype(self) -> str:  # type: ignore[override]
        """The buffer's."""
        return self.buffer.dtype


@node(frozen=True, slots=True, eq=False)
class Intrinsic(_Arithmetic):
    """A named function of values: one of ``INTRINSICS``, or a tensor intrinsic."""

    name: str
    args: tuple[Expr, ...]
    dtype: str


Expr: TypeAlias = Var | Const | Binary | Cast | Select | Load | Intrinsic
Operand: TypeAlias = "_Arithmetic | Expr | int | float"


@node(frozen=True, slots=True, eq=False)
class IterVar:
    """A block's iterator: ``var`` ranges over [0, extent)."""

    var: Var
    extent: int
    kind: Literal["spatial", "reduce"] = "spatial"


@node(frozen=True, slots=True, eq=False)
class Store:
    """``buffer[indices] = value``"""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr


@node(frozen=True, slots=True, eq=False)
class Prefetch:
    """Ask for ``lines`` cache lines from element ``offset`` of a buffer's memory on.

    A hint: it changes no value, and ``offset`` may lie outside of the buffer. ``level`` is the
    cache that gets the lines, 1 or 2. Of an intermediate buffer, whose shape lowering may change,
    ``offset`` counts from the element ``first``, if that is given. The lines follow each other, or
    runs of ``run`` of them are ``apart`` lines from each other.
    """

    buffer: Buffer
    offset: Expr
    lines: int = 1
    level: int = 1
    first: tuple[Expr, ...] = ()
    apart: int = 1
    run: int = 1

    def lines_before(self, number: int) -> int:
        """How many lines behind the first one, the 0th, another one lies."""
        runs, rest = divmod(number, self.run)
        return runs * self.apart + rest


@node(frozen=True, slots=True, eq=False)
class For:
    """``for var in [start, start + extent)``; each iteration begins with its ``prefetch``.

    The iterations of a loop of kind THREAD run on the threads (or blocks) along ``axis``. In
    loops one in the other with the same axis, each thread has the same number.
    """

    var: Var
    extent: Expr
    body: Stmt
    kind: LoopKind = LoopKind.SERIAL
    start: Expr = field(default_factory=lambda: Const(0))
    prefetch: tuple[Prefetch, ...] = ()
    axis: str = ""

    @property
    def is_serial(self) -> bool:
        """Whether one thread runs the iterations, one after the other, in a loop."""
        return self.kind in (LoopKind.SERIAL, LoopKind.STAGGERED, LoopKind.OVERLAPPED)

    @property
    def is_expanded(self) -> bool:
        """Whether the iterations are written out, one after the other or in lanes."""
        return self.kind in (LoopKind.UNROLLED, LoopKind.VECTORIZED)


@node(frozen=True, slots=True, eq=False)
class If:
    """``then`` where the condition holds, else ``orelse``, if there is one."""

    condition: Expr
    then: Stmt
    orelse: Stmt | None = None


@node(frozen=True, slots=True, eq=False)
class Seq:
    """Statements one after the other."""

    stmts: tuple[Stmt, ...]


@node(frozen=True, slots=True, eq=False)
class Allocate:
    """``buffer`` lives during ``body``."""

    buffer: Buffer
    body: Stmt


@node(frozen=True, slots=True, eq=False)
class Barrier:
    """All threads of a block come here before one goes on. What they copied to shared memory has
    arrived then, but for what was copied in the last ``pending`` stretches between barriers."""

    pending: int = 0


@node(frozen=True, slots=True, eq=False)
class Block:
    """``body`` once for every value of the iterators at which ``predicate`` holds.

    ``init`` is stored where every reduce iterator is at its first value; a sum over ``k`` has
    ``init: C[i] = 0`` and ``body: C[i] = C[i] + A[i, k]``. What the predicate says of loops of the
    reduction alone guards the body alone: an element without terms has its first value.
    """

    name: str
    iters: tuple[IterVar, ...]
    bindings: tuple[Expr, ...]
    body: Stmt
    init: Stmt | None = None
    predicate: Expr | None = None


Stmt: TypeAlias = For | Block | Store | If | Seq | Allocate | Barrier
_Node = TypeVar("_Node", "PrimFunc", For, Block)


@node(frozen=True, slots=True, eq=False)
class PrimFunc:
    """A function over buffers. ``outputs`` counts the last params that are written.

    ``buffers`` are the intermediate arrays that are not yet placed by an ``Allocate``.
    ``layouts`` records, for a constant parameter, the packing that the schedule asked for
    (parameter index → ``PackedLayout``): whoever calls the function packs the tensor once.
    ``constants`` are the indices of the parameters that never change (weights), ``overwritten``
    those of inputs that may lie where the result does (``compiler/overwrite.py``).
    """

    name: str
    params: tuple[Buffer, ...]
    body: Stmt
    outputs: int = 1
    buffers: tuple[Buffer, ...] = ()
    layouts: Mapping[int, PackedLayout] = field(default_factory=dict)
    constants: frozenset[int] = frozenset()
    overwritten: frozenset[int] = frozenset()

    @property
    def shared(self) -> frozenset[int]:
        """The parameters that may lie where another does: what is overwritten, and the result."""
        results = {len(self.params) - self.outputs} if self.overwritten else set()
        return self.overwritten | results

    def __str__(self) -> str:
        from tunefarm.compiler.tir.printer import print_program

        return print_program(self)


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """A constant operand's packing: split each dimension by ``factors``, then permute.

    Dimension d becomes (⌈extent / Π factors[d]⌉, *factors[d]), padded with zeros; ``order``
    permutes all the resulting dimensions. ``transforms`` names a value transform applied first
    (for instance a Winograd filter transform), "" for none. ``shape`` is what the tensor is
    viewed as before it is split; ``transform_layout`` fills it in.
    """

    factors: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    transform: str = ""
    shape: tuple[int, ...] = ()


def changed(node: _Node, **fields: Any) -> _Node:
    """``dataclasses.replace``, three times as fast; TypeError for a field that there is not."""
    kind = type(node)
    values = [fields.pop(f) if f in fields else getattr(node, f) for f in kind.__match_args__]
    return kind(*values, **fields)


def as_expr(value: Operand, dtype: str = "int64") -> Expr:
    """A Python number becomes a constant of ``dtype``; an expression stays."""
    if isinstance(value, (int, float)):
        return Const(value, dtype)
    return value  # type: ignore[return-value]


def binary(op: BinaryOp, a: Operand, b: Operand) -> Expr:
    """Build ``a op b``; a Python number takes the other side's dtype; constants are folded."""
    if isinstance(a, (int, float)):
        a = Const(a, b.dtype)  # type: ignore[union-attr]
    elif isinstance(b, (int, float)):
        b = Const(b, a.dtype)
    elif a.dtype != b.dtype:
        raise TypeError(f"{op}: operands have different dtypes, {a.dtype} and {b.dtype}")
    return fold_binary(op, a, b)  # type: ignore[arg-type]


# Last, since it needs the nodes above.
from tunefarm.compiler.tir.simplify import fold_binary  # noqa: E402
