"""Tensor expressions: say what each element is; ``create_prim_func`` makes plain loops of it.

A = te.placeholder((n, k)); B = te.placeholder((k, m))
r = te.reduce_axis(k)
C = te.compute((n, m), lambda i, j: te.sum(A[i, r] * B[r, j], [r]), name="C")
program = te.create_prim_func([A, B, C])
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index

from tunefarm.compiler.dtypes import DTYPES
from tunefarm.compiler.errors import ShapeError, TunefarmError
from tunefarm.compiler.tir.ir import (
    Block,
    Buffer,
    Cast,
    Const,
    Expr,
    For,
    Intrinsic,
    IterVar,
    Load,
    Operand,
    PrimFunc,
    Select,
    Stmt,
    Store,
    Var,
    as_expr,
    binary,
)
from tunefarm.compiler.tir.node import short_repr
from tunefarm.compiler.tir.visit import loads_of, seq, substitute


@dataclass(frozen=True, slots=True, eq=False)
class Reduce:
    """A reduction over ``axes``; only allowed as the whole value of a ``compute``."""

    op: str  # "add", "mul", "max", "maxnum", "min", "or", "and"
    value: Expr
    axes: tuple[IterVar, ...]

    def __repr__(self) -> str:
        axes = ", ".join(axis.var.name for axis in self.axes)
        return f"<Reduce {self.op} of {self.value!r} over {axes}>"

    @property
    def dtype(self) -> str:
        """That of the value."""
        return self.value.dtype


@dataclass(frozen=True, slots=True, eq=False)
class Loops:
    """Statements that fill a tensor, for what no element by element formula gives: scans, sorts.

    ``build(out)`` makes loops without blocks that read ``reads`` and store every element of
    ``out``; no schedule primitive changes them.
    """

    reads: tuple[Tensor, ...]
    build: Callable[[Tensor], Stmt]


@dataclass(frozen=True, slots=True, eq=False)
class Tensor(Buffer):
    """A placeholder, or the result of ``compute`` or ``extern``; ``T[i, j]`` reads an element."""

    axes: tuple[IterVar, ...] = ()
    value: Expr | Reduce | Loops | None = None

    __repr__ = short_repr

    def __getitem__(self, indices: Operand | tuple[Operand, ...]) -> Load:
        items = indices if isinstance(indices, tuple) else (indices,)
        if len(items) != len(self.shape):
            raise IndexError(
                f"{self.name} has {len(self.shape)} dimensions and was indexed with {len(items)}"
            )
        return Load(self, tuple(i.var if isinstance(i, IterVar) else as_expr(i) for i in items))


def placeholder(shape: Sequence[int], dtype: str = "float32", name: str = "x") -> Tensor:
    """An input tensor."""
    return Tensor(name, _extents(shape, name), _known(dtype, name))


def _extents(shape: Sequence[int], name: str) -> tuple[int, ...]:
    """A tensor's shape; ShapeError if it is not of whole numbers from 0."""
    try:
        extents = tuple(index(extent) for extent in shape)
    except TypeError:
        extents = (-1,)
    if builtins.any(extent < 0 for extent in extents):
        raise ShapeError(
            f"{name} has the shape {shape!r}, expected whole numbers from 0 in a tuple"
        )
    return extents


def _known(dtype: str, name: str) -> str:
    if dtype not in DTYPES:
        raise ShapeError(f"{name} has dtype {dtype!r}; known: {', '.join(DTYPES)}")
    return dtype


def reduce_axis(extent: int, name: str = "k") -> Var:
    """An axis to reduce over, used like an index; ``sum`` and its kin take a list of them."""
    return _ReduceVar(name, "int64", *_extents((extent,), f"the reduce_axis {name}"))


@dataclass(frozen=True, slots=True, eq=False)
class _ReduceVar(Var):
    extent: int = 0


def compute(
    shape: Sequence[int],
    f: Callable[..., Operand | Reduce],
    name: str = "compute",
    dtype: str | None = None,
    axis_names: Sequence[str] | None = None,
) -> Tensor:
    """The tensor whose element at ``(i, j, …)`` is ``f(i, j, …)``.

    ``f`` takes one index a dimension (or ``*indices``). It returns a scalar expression or a
    reduction. ``dtype`` is needed only where the value is a Python number. The axes are named
    after ``f``'s parameters, or by ``axis_names``.
    """
    extents = _extents(shape, name)
    names = axis_names or _index_names(f, len(extents))
    axes = tuple(IterVar(Var(n), e) for n, e in zip(names, extents, strict=True))
    value = f(*(a.var for a in axes))
    if not isinstance(value, Reduce):
        value = as_expr(value, dtype or "float32")
    if dtype is not None and value.dtype != dtype:
        raise ShapeError(f"{name}: the value has dtype {value.dtype}, not {dtype}")
    return Tensor(name, extents, value.dtype, axes=axes, value=value)


def extern(
    shape: Sequence[int],
    dtype: str,
    reads: Sequence[Tensor],
    build: Callable[[Tensor], Stmt],
    name: str = "extern",
) -> Tensor:
    """The tensor that the statements ``build(tensor)`` fill, reading ``reads``."""
    return Tensor(
        name, _extents(shape, name), _known(dtype, name), value=Loops(tuple(reads), build)
    )


def _index_names(f: Callable[..., object], rank: int) -> list[str]:
    parameters = list(inspect.signature(f).parameters.values())
    fixed = [p.name for p in parameters if p.kind is not inspect.Parameter.VAR_POSITIONAL]
    return [fixed[i] if i < len(fixed) else f"i{i}" for i in range(rank)]


def _reduce(op: str, value: Operand, axes: Sequence[Var]) -> Reduce:
    iters = []
    for axis in axes:
        if not isinstance(axis, _ReduceVar):
            raise TypeError(f"{axis.name} is not a reduce_axis")
        iters.append(IterVar(axis, axis.extent, "reduce"))
    return Reduce(op, as_expr(value), tuple(iters))


def sum(value: Operand, axes: Sequence[Var]) -> Reduce:
    """The sum of ``value`` over axes that ``reduce_axis`` made; 0 over none.

    ``te.compute((m, n), lambda i, j: te.sum(a[i, k] * b[k, j], axes=[k]))``
    """
    return _reduce("add", value, axes)


def prod(value: Operand, axes: Sequence[Var]) -> Reduce:
    """The product of ``value`` over reduction axes; 1 over none."""
    return _reduce("mul", value, axes)


def max(value: Operand, axes: Sequence[Var]) -> Reduce:
    """The largest ``value`` over reduction axes, NaN if one is NaN; −∞, or the dtype's least, over
    none."""
    return _reduce("max", value, axes)


def maxnum(value: Operand, axes: Sequence[Var]) -> Reduce:
    """The largest ``value`` over reduction axes; of a NaN and a number either, which a processor
    finds in a third of the instructions."""
    return _reduce("maxnum", value, axes)


def min(value: Operand, axes: Sequence[Var]) -> Reduce:
    """The smallest ``value`` over reduction axes, NaN if one is NaN; ∞, or the dtype's largest,
    over none."""
    return _reduce("min", value, axes)


def any(value: Operand, axes: Sequence[Var]) -> Reduce:
    """Whether a ``value`` of dtype bool holds anywhere along reduction axes."""
    return _reduce("or", value, axes)


def all(value: Operand, axes: Sequence[Var]) -> Reduce:
    """Whether a ``value`` of dtype bool holds everywhere along reduction axes."""
    return _reduce("and", value, axes)


def const(value: int | float | bool, dtype: str) -> Const:
    """A number of a dtype: ``te.const(0.5, "float32")``."""
    return Const(value, dtype)


def cast(value: Expr, dtype: str) -> Expr:
    """The value in another dtype; itself if it has that already."""
    return value if value.dtype == dtype else Cast(value, dtype)


def if_then_else(condition: Expr, a: Operand, b: Operand) -> Expr:
    """``a`` where the condition holds, else ``b``; the other branch's loads are not made."""
    dtype = a.dtype if not isinstance(a, (int, float)) else b.dtype  # type: ignore[union-attr]
    x, y = as_expr(a, dtype), as_expr(b, dtype)
    if isinstance(condition, Const):
        return x if condition.value else y
    return Select(condition, x, y, dtype)


def one_of(number: Expr, values: Sequence[Expr]) -> Expr:
    """``values[number]``; only the loads of the chosen one are made."""
    chosen = values[-1]
    for place in range(len(values) - 2, -1, -1):
        chosen = if_then_else(number.equal(place), values[place], chosen)
    return chosen


def maximum(a: Operand, b: Operand) -> Expr:
    """Elementwise maximum; NaN if either is NaN."""
    return binary("max", a, b)


def minimum(a: Operand, b: Operand) -> Expr:
    """Elementwise minimum; NaN if either is NaN."""
    return binary("min", a, b)


def intrinsic(name: str, *args: Expr, dtype: str | None = None) -> Expr:
    """A named scalar function (``tir.ir.INTRINSICS``); the result has the first one's dtype."""
    return Intrinsic(name, args, dtype or args[0].dtype)


def identity(op: str, dtype: str) -> Const:
    """The neutral element of a reduction."""
    import numpy as np

    if op in ("or", "and"):
        return Const(op == "and", "bool")
    if op in ("add", "mul"):
        return Const((0 if op == "add" else 1) * (1.0 if "float" in dtype else 1), dtype)
    if dtype == "bool":
        return Const(op == "min", "bool")
    if "float" in dtype:
        return Const(float("inf") if op == "min" else float("-inf"), dtype)
    info = np.iinfo(dtype)
    return Const(int(info.max if op == "min" else info.min), dtype)


def create_prim_func(tensors: Sequence[Tensor], name: str = "main") -> PrimFunc:
    """Plain loops that compute the ``compute`` tensors among ``tensors`` from the placeholders.

    Placeholders come first, computed results last; what lies between becomes an intermediate
    buffer. Each tensor becomes one block, in the order of their dependence. Raises TunefarmError
    if tensors are missing or in another order.
    """
    if not isinstance(tensors, Sequence) or not builtins.all(
        isinstance(t, Tensor) for t in tensors
    ):
        raise TunefarmError("create_prim_func takes a list of tensors: [placeholders…, results…]")
    inputs = [t for t in tensors if t.value is None]
    outputs = [t for t in tensors if t.value is not None]
    given = ", ".join(t.name for t in tensors) or "nothing"
    if not outputs:
        raise TunefarmError(f"create_prim_func needs a computed tensor too, got {given} alone")
    if list(tensors[: len(inputs)]) != inputs:
        raise TunefarmError(
            f"create_prim_func takes placeholders first, then computed tensors, got {given}"
        )
    stages = _topological(outputs)
    missing = [t.name for t in stages if t.value is None and t not in inputs]
    if missing:
        raise TunefarmError(f"placeholder {missing[0]} is read but not among the arguments")
    computed = [t for t in stages if t.value is not None]
    names: dict[str, int] = {}
    body = seq(*(_stage_loops(t, _unique(t.name, names)) for t in computed))
    hidden = tuple(t for t in computed if t not in outputs)
    return PrimFunc(name, (*inputs, *outputs), body, len(outputs), hidden)


def _topological(outputs: Sequence[Tensor]) -> list[Tensor]:
    order: list[Tensor] = []
    seen: set[Tensor] = set()
    stack: list[tuple[Tensor, bool]] = [(t, False) for t in reversed(outputs)]
    while stack:
        tensor, expanded = stack.pop()
        if tensor in seen:
            continue
        if expanded:
            seen.add(tensor)
            order.append(tensor)
        else:
            stack.append((tensor, True))
            stack.extend((t, False) for t in reversed(_reads(tensor)))
    return order


def _reads(tensor: Tensor) -> Sequence[Tensor]:
    value = tensor.value.value if isinstance(tensor.value, Reduce) else tensor.value
    if isinstance(value, Loops):
        return value.reads
    loads = loads_of(value) if value is not None else ()
    return [ld.buffer for ld in loads if isinstance(ld.buffer, Tensor)]


def _unique(name: str, names: dict[str, int]) -> str:
    count = names.get(name, 0)
    names[name] = count + 1
    return name if count == 0 else _unique(f"{name}_{count}", names)


def _stage_loops(tensor: Tensor, name: str) -> Stmt:
    """``for i: for j: block(i, j)`` for one tensor."""
    value = tensor.value
    assert value is not None
    if isinstance(value, Loops):
        return value.build(tensor)
    if isinstance(value, Reduce) and 0 in [axis.extent for axis in value.axes]:
        value = identity(value.op, tensor.dtype)  # nothing to combine
    axes = tensor.axes + (value.axes if isinstance(value, Reduce) else ())
    iters = tuple(IterVar(Var(a.var.name), a.extent, a.kind) for a in axes)
    renamed = {a.var: i.var for a, i in zip(axes, iters, strict=True)}
    indices = tuple(i.var for i in iters[: len(tensor.axes)])
    init: Stmt | None = None
    if isinstance(value, Reduce):
        element = Load(tensor, indices)
        update = binary(value.op, element, substitute(value.value, renamed))  # type: ignore[arg-type]
        init = Store(tensor, indices, identity(value.op, tensor.dtype))
        body: Stmt = Store(tensor, indices, update)
    else:
        body = Store(tensor, indices, substitute(value, renamed))
    loops = [Var(i.var.name) for i in iters]
    stmt: Stmt = Block(name, iters, tuple(loops), body, init)
    for loop, axis in reversed(list(zip(loops, iters, strict=True))):
        stmt = For(loop, Const(axis.extent), stmt)
    return stmt
