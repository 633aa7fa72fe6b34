"""Runs a program on NumPy arrays: the oracle of the compiler's tests.

The program becomes Python source (one nested loop a loop, one statement a store) that works on
NumPy scalars, so that every operation rounds and wraps as its dtype does. It runs at every level:
blocks or plain loops, any loop kind in order. Meant for small shapes.

The loops of a lowered program that are bound to ``threadIdx`` axes become a generator, of which
``threads.run_block`` advances one a thread from barrier to barrier, those of a warp also from one
exchange of values to the next; where the blocks of a cluster combine values, those of all of them
together. In a program with blocks,
which has no barriers yet, they are loops like others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.intrinsics import (
    BOXED,
    CLUSTER_REDUCTIONS,
    HELD_PRODUCTS,
    JOINED,
    QUAD,
    SENT,
    TURNED,
    WARP_REDUCTIONS,
    owner_of_term,
)
from tunefarm.compiler.tir.affine import conjuncts
from tunefarm.compiler.tir.facts import exchanges
from tunefarm.compiler.tir.ir import (
    CLUSTER_AXIS,
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
    PrimFunc,
    Select,
    Seq,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir.tensor_intrinsics import TENSOR_INTRINSICS, meaning
from tunefarm.compiler.tir.threads import Accesses, Exchange, Gathering, Meeting, run_block
from tunefarm.compiler.tir.visit import walk_expr, walk_stmt

Array = NDArray[Any]
MAX_NESTED = 16  # loops in one Python function, which allows 20


def interpret(program: PrimFunc, arrays: Sequence[Array]) -> None:
    """Run the program on one array a parameter; outputs are filled in place.

    Intermediate buffers start poisoned (NaN or the dtype's largest value). Raises IndexError on an
    access out of bounds, naming buffer, indices and shape; ValueError if an array does not fit.
    """
    if len(arrays) != len(program.params):
        raise ValueError(f"{program.name} takes {len(program.params)} arrays, got {len(arrays)}")
    for param, array in zip(program.params, arrays, strict=True):
        if array.shape != param.shape or array.dtype != numpy_dtype(param.dtype):
            raise ValueError(
                f"{param.name} is {param.dtype}{list(param.shape)}, "
                f"got {array.dtype}{list(array.shape)}"
            )
    function = _Source(program).function()
    with np.errstate(all="ignore"):
        function(*arrays)


def poisoned(shape: tuple[int, ...], dtype: str) -> Array:
    """An array that shows when it is read before it is written."""
    kind = numpy_dtype(dtype)
    if dtype == "bool":
        return np.ones(shape, kind)
    if "float" in dtype:
        return np.full(shape, np.nan, kind)
    return np.full(shape, np.iinfo(kind).max, kind)


class _Source:
    """Python source of one program and the objects that it refers to."""

    def __init__(self, program: PrimFunc) -> None:
        self.program = program
        self.lines: list[str] = []
        self.objects: dict[str, Any] = {**_RUNTIME, **_thread_runtime()}
        self.names: dict[Any, str] = {}
        self.nesting = 0
        self.places = 0  # indices that have a name of their own
        self.lowered = not any(isinstance(s, Block) for s in walk_stmt(program.body))
        self.threads: dict[str, str] = {}  # axis → the name of a thread's index along it
        self.owned: set[Buffer] = set()  # buffers of which each thread has its own

    def function(self) -> Callable[..., None]:
        params = ", ".join(self.name(p, "p") for p in self.program.params)
        self.lines.append(f"def run({params}):")
        for buffer in self.program.buffers:
            self.allocate(buffer, 1)
        self.stmt(self.program.body, 1)
        scope = dict(self.objects)
        exec("\n".join(self.lines), scope)
        return scope["run"]  # type: ignore[no-any-return]

    def name(self, thing: Any, prefix: str) -> str:
        if thing not in self.names:
            self.names[thing] = f"{prefix}{len(self.names)}"
        return self.names[thing]

    def put(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def allocate(self, buffer: Buffer, depth: int) -> None:
        self.put(depth, f"{self.name(buffer, 'b')} = poisoned({_room(buffer)}, {buffer.dtype!r})")

    def stmt(self, stmt: Stmt, depth: int) -> None:
        match stmt:
            case Seq(stmts):
                for part in stmts:
                    self.stmt(part, depth)
                if not stmts:
                    self.put(depth, "pass")
            case For() if self.lowered and (stmt.axis in THREAD_AXES or _is_team(stmt)):
                self.thread_loop(stmt, depth)
            case For():
                self.loop(stmt, depth)
            case Barrier():
                self.put(depth, f"yield Meeting({len(self.lines)}, {stmt.pending})")
            case If():
                self.put(depth, f"if {self.expr(stmt.condition)}:")
                self.stmt(stmt.then, depth + 1)
                if stmt.orelse is not None:
                    self.put(depth, "else:")
                    self.stmt(stmt.orelse, depth + 1)
            case Allocate():
                self.allocate(stmt.buffer, depth)
                self.stmt(stmt.body, depth)
            case Store():
                self.store(stmt, depth)
            case Block():
                self.block(stmt, depth)

    def store(self, store: Store, depth: int) -> None:
        buffer, value = store.buffer, self.expr(store.value)
        place = self.place(buffer, store.indices, "copy" if _is_copy(store) else "write")
        if place.condition:
            self.put(depth, f"if not ({place.condition}): {place.refusal}")
        if not (store.value.dtype == buffer.dtype in _PLAIN_FLOATS):
            kind = f"dt_{buffer.dtype}"
            convert = _wrapped if buffer.dtype == "int64" else numpy_dtype(buffer.dtype).type
            self.objects.setdefault(kind, convert)
            value = f"{kind}({value})"
        self.put(depth, f"{place.element} = {value}")

    def loop(self, loop: For, depth: int) -> None:
        start, extent = self.expr(loop.start), self.expr(loop.extent)
        var = self.name(loop.var, "v")
        self.put(depth, f"for {var} in range({start}, {start} + {extent}):")
        around, self.nesting = self.nesting, self.nesting + 1
        self.narrow(loop.var, depth + 1)
        if self.nesting == MAX_NESTED:
            self.nesting = 0
            self.put(depth + 1, f"def inside_{var}():")
            self.stmt(loop.body, depth + 2)
            again = "yield from " if self.threads else ""
            self.generator(depth + 2)
            self.put(depth + 1, f"{again}inside_{var}()")
        else:
            self.stmt(loop.body, depth + 1)
        self.nesting = around

    def narrow(self, var: Var, depth: int) -> None:
        """Make a variable wrap as its dtype does; those of int64 are Python's integers."""
        if var.dtype != "int64":
            kind = f"dt_{var.dtype}"
            self.objects.setdefault(kind, numpy_dtype(var.dtype).type)
            self.put(depth, f"{self.name(var, 'v')} = {kind}({self.name(var, 'v')})")

    def thread_loop(self, loop: For, depth: int) -> None:
        """The loop's body once a thread; the outermost such loop runs the threads of a block."""
        var, start = self.name(loop.var, "v"), self.expr(loop.start)
        if self.threads:
            self.put(depth, f"{var} = {start} + {self.threads[loop.axis]}")
            self.narrow(loop.var, depth)
            self.stmt(loop.body, depth)
            return
        axes = (*THREAD_AXES, CLUSTER_AXIS)
        inside = [s for s in walk_stmt(loop) if isinstance(s, For) and s.axis in axes]
        extents = {s.axis: self.expr(s.extent) for s in inside}
        self.threads = {a: f"t{axes.index(a)}" for a in axes if a in extents}
        own = {s.buffer for s in walk_stmt(loop) if isinstance(s, Allocate)}
        if loop.axis == CLUSTER_AXIS and any(b.scope == "shared" for b in own):
            raise ScheduleError("blocks that combine values share memory; run the PTX instead")
        around, self.nesting = self.nesting, 0
        self.put(depth, f"def thread({', '.join(self.threads.values())}):")
        self.owned = own
        self.thread_loop(loop, depth + 1)
        self.generator(depth + 1)
        listed = "".join(f"{extents[a]}, " for a in self.threads)
        self.put(depth, f"run_block(thread, ({listed}), accesses)")
        self.threads, self.nesting = {}, around

    def generator(self, depth: int) -> None:
        """Make a function of a thread a generator, even if it has no barrier."""
        if self.threads:
            self.put(depth, "return")
            self.put(depth, "yield")

    def place(self, buffer: Buffer, indices: tuple[Expr, ...], does: str) -> _Place:
        """An element that is read, written or copied to; of what threads share a record is kept, to
        see that no other interferes."""
        name, texts = self.name(buffer, "b"), [self.expr(i) for i in indices]
        if self.threads and buffer not in self.owned:
            does = "read_shared" if (does, buffer.scope) == ("read", "shared") else does
            where = "".join(f"{text}, " for text in texts)
            return _Place(f"{name}[{does}_at({name}, {buffer.name!r}, ({where}))]", "", "")
        questions: list[str] = []
        for dim, (index, extent) in enumerate(zip(indices, _room(buffer), strict=True)):
            if isinstance(index, Const) and 0 <= index.value < extent:
                continue
            asked = texts[dim]
            if not isinstance(index, Var):
                self.places += 1
                texts[dim] = f"x{self.places}"
                asked = f"({texts[dim]} := {asked})"
            questions.append(f"(0 <= {asked} < {extent})")
        where = "".join(f"{text}, " for text in texts)
        refusal = f"outside({name}, {buffer.name!r}, ({where}))"
        return _Place(f"{name}[({where})]", " & ".join(questions), refusal)

    def block(self, block: Block, depth: int) -> None:
        for axis, binding in zip(block.iters, block.bindings, strict=True):
            self.put(depth, f"{self.name(axis.var, 'v')} = {self.expr(binding)}")
        bindings = list(zip(block.iters, block.bindings, strict=True))
        reducing = {v for i, b in bindings if i.kind == "reduce" for v in _variables(b)}
        shared = {v for i, b in bindings if i.kind == "spatial" for v in _variables(b)} & reducing
        parts = conjuncts(block.predicate) if block.predicate is not None else []
        terms = [p for p in parts if _variables(p) & reducing and not _variables(p) & shared]
        terms = terms if block.init is not None else []
        depth = self.guard([p for p in parts if p not in terms], depth)
        reduced = [self.name(i.var, "v") for i in block.iters if i.kind == "reduce"]
        if block.init is not None:
            first = " and ".join(f"{v} == 0" for v in reduced) or "True"
            self.put(depth, f"if {first}:")
            self.stmt(block.init, depth + 1)
        depth = self.guard(terms, depth)
        self.stmt(block.body, depth)

    def guard(self, parts: list[Expr], depth: int) -> int:
        """Open an ``if`` for the conditions; the depth of what it guards."""
        if parts:
            self.put(depth, f"if {' and '.join(map(self.expr, parts))}:")
        return depth + bool(parts)

    def expr(self, expr: Expr) -> str:
        match expr:
            case Var():
                return self.name(expr, "v")
            case Const(value, "int64"):
                return str(int(value))
            case Const(value, "bool"):
                return str(bool(value))
            case Const(value, dtype):
                name = f"c{len(self.objects)}"
                with np.errstate(all="ignore"):
                    self.objects[name] = numpy_dtype(dtype).type(value)
                return name
            case Load(buffer, indices):
                place = self.place(buffer, indices, "read")
                text = place.element
                if place.condition:
                    text = f"({text} if {place.condition} else {place.refusal})"
                return f"int({text})" if buffer.dtype == "int64" else text
            case Select(condition, a, b, _):
                return f"({self.expr(a)} if {self.expr(condition)} else {self.expr(b)})"
            case Cast(value, dtype):
                return f"cast({self.expr(value)}, {dtype!r})"
            case Intrinsic() if expr.name in TENSOR_INTRINSICS:
                return self.expr(meaning(expr))
            case Intrinsic(name) if name in HELD_PRODUCTS:
                return self.held_product(expr)
            case Intrinsic(name) if name == SENT:
                return self.expr(expr.args[0])
            case Intrinsic(name) if name == BOXED:
                return self.boxed(expr)
            case Intrinsic(name) if name == TURNED:
                return self.turned(expr)
            case Intrinsic(name, (value, width), _) if name in WARP_REDUCTIONS:
                if not self.threads:
                    raise ScheduleError(f"{name} stands where there are no threads")
                combine = f"op_{WARP_REDUCTIONS[name]}"
                here = f"{len(self.lines)}, {self.expr(width)}, {combine}"
                return f"(yield Exchange({here}, {self.expr(value)}))"
            case Intrinsic(name, (value, _), _) if name in CLUSTER_REDUCTIONS:
                if CLUSTER_AXIS not in self.threads:
                    raise ScheduleError(f"{name} stands where there is no cluster of blocks")
                combine = f"op_{CLUSTER_REDUCTIONS[name]}"
                return f"(yield Gathering({len(self.lines)}, {combine}, {self.expr(value)}))"
            case Intrinsic(name, args, dtype):
                listed = ", ".join(map(self.expr, args))
                return f"intrinsic({name!r}, {dtype!r}, {listed})"
            case Binary(op, a, b, _):
                return self.binary(op, a, b)

    def held_product(self, expr: Intrinsic) -> str:
        """A sum of products whose left factors lie with the four threads of a row."""
        if not self.threads:
            raise ScheduleError(f"{expr.name} stands where there are no threads")
        total, *parts = map(self.expr, expr.args)
        held = HELD_PRODUCTS[expr.name].terms
        own, right = ", ".join(parts[:held]), ", ".join(parts[held:])
        row = f"(yield Exchange({len(self.lines)}, {QUAD}, None, ({own})))"
        return f"held_product({total}, {row}, ({right}))"

    def turned(self, expr: Intrinsic) -> str:
        """What another thread holds for this one."""
        if not self.threads:
            raise ScheduleError(f"{expr.name} stands where there are no threads")
        *held, own, k = map(self.expr, expr.args)
        row = f"Exchange({len(self.lines)}, {len(held)}, None, ({', '.join(held)}))"
        return f"(yield {row})[{k}][{own}]"

    def boxed(self, expr: Intrinsic) -> str:
        """An element of a tensor where it has one, else zero."""
        load, *axes = map(self.expr, expr.args)
        limits = zip(axes[::3], axes[1::3], strict=True)
        inside = " and ".join(f"0 <= {at} < {extent}" for at, extent in limits)
        return f"({load} if {inside} else {self.expr(Const(0, expr.dtype))})"

    def binary(self, op: str, a: Expr, b: Expr) -> str:
        x, y = self.expr(a), self.expr(b)
        if a.dtype == "int64" and op in _RINGS and not (_is_index(a) and _is_index(b)):
            return f"wrap(op_{op}({x}, {y}))"
        safe = not op.startswith("floor") or (isinstance(b, Const) and b.value > 0)
        if a.dtype in ("int64", "bool") and op in _PYTHON and safe:
            return f"({x} {_PYTHON[op]} {y})"
        if a.dtype in _PLAIN_FLOATS and op in _FIELD:
            return f"({x} {_FIELD[op]} {y})"
        return f"op_{op}({x}, {y})"


def _is_team(loop: For) -> bool:
    """True for blocks of a cluster whose threads combine values."""
    if loop.axis != CLUSTER_AXIS:
        return False
    values = [s.value for s in walk_stmt(loop) if isinstance(s, Store)]
    return any(exchanges(value) & {JOINED, *CLUSTER_REDUCTIONS} for value in values)


def _is_copy(store: Store) -> bool:
    """True for what a GPU may copy to shared memory beside its threads."""
    value = store.value.a if isinstance(store.value, Select) else store.value
    if isinstance(value, Intrinsic) and value.name == BOXED:
        value = value.args[0]
    from_global = isinstance(value, Load) and value.buffer.scope == "global"
    return store.buffer.scope == "shared" and from_global


def _variables(expr: Expr) -> set[Var]:
    return {e for e in walk_expr(expr) if isinstance(e, Var)}


def _is_index(expr: Expr) -> bool:
    """True for int64 arithmetic on loop variables alone, which never wraps."""
    return all(isinstance(e, (Var, Const, Binary)) for e in walk_expr(expr))


def _wrap(value: int) -> int:
    """The int64 that is equal modulo 2^64; int64 values are Python's integers here."""
    return (int(value) + (1 << 63)) % (1 << 64) - (1 << 63)


_RINGS = frozenset({"add", "sub", "mul", "div", "floordiv", "floormod", "shl", "shr"})
_PYTHON = {
    "add": "+", "sub": "-", "mul": "*", "floordiv": "//", "floormod": "%", "lt": "<", "le": "<=",
    "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "and": "and", "or": "or", "xor": "^",
    "bitand": "&", "bitor": "|", "bitxor": "^",
}  # fmt: skip


_FIELD = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_PLAIN_FLOATS = ("float32", "float64")  # whose scalars of NumPy's compute as they are


@dataclass(frozen=True, slots=True)
class _Place:
    """Source of an element, of the condition that it exists (none if it always does, or if it is
    asked for meanwhile), and of what refuses it otherwise."""

    element: str
    condition: str
    refusal: str


def _room(buffer: Buffer) -> tuple[int, ...]:
    """A buffer's shape with its padding."""
    return buffer.shape[:-1] + (buffer.shape[-1] + buffer.padding,) if buffer.shape else ()


def _outside(array: Array, name: str, indices: tuple[int, ...]) -> NoReturn:
    raise IndexError(f"{name}[{', '.join(map(str, indices))}] is outside {array.shape}")


def _at(array: Array, name: str, indices: tuple[int, ...]) -> tuple[int, ...]:
    for index, extent in zip(indices, array.shape, strict=True):
        if not 0 <= index < extent:
            _outside(array, name, indices)
    return indices


def _thread_runtime() -> dict[str, Any]:
    """What programs with threads call, with a record of their accesses."""
    accesses = Accesses()

    def read_at(array: Array, name: str, indices: tuple[int, ...]) -> tuple[int, ...]:
        accesses.read(id(array), name, indices)
        return _at(array, name, indices)

    def read_shared_at(array: Array, name: str, indices: tuple[int, ...]) -> tuple[int, ...]:
        accesses.read_shared(id(array), name, indices)
        return _at(array, name, indices)

    def write_at(array: Array, name: str, indices: tuple[int, ...]) -> tuple[int, ...]:
        accesses.write(id(array), name, indices)
        return _at(array, name, indices)

    def copy_at(array: Array, name: str, indices: tuple[int, ...]) -> tuple[int, ...]:
        accesses.copy(id(array), name, indices)
        return _at(array, name, indices)

    return {
        "accesses": accesses, "read_at": read_at, "read_shared_at": read_shared_at,
        "write_at": write_at, "run_block": run_block, "Exchange": Exchange, "Gathering": Gathering,
        "Meeting": Meeting, "copy_at": copy_at,
    }  # fmt: skip


def _wrapped(value: Any) -> Any:
    """A Python integer as int64, modulo 2⁶⁴."""
    return np.int64((int(value) + (1 << 63)) % (1 << 64) - (1 << 63))


def _narrow(*values: Any) -> bool:
    return any(getattr(v, "dtype", None) in _NARROW for v in values)


_NARROW = (np.dtype("float16"), numpy_dtype("bfloat16"))


def _arithmetic(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Narrow floats are computed in float32 and rounded."""

    def apply(a: Any, b: Any) -> Any:
        if _narrow(a, b):
            kind = a.dtype.type
            return kind(operation(np.float32(a), np.float32(b)))
        return operation(a, b)

    return apply


def _divide(a: Any, b: Any) -> Any:
    """ONNX division: integers truncate towards zero."""
    if isinstance(a, (int, np.integer)):
        b = _safe_divisor(a, b)
        whole = abs(int(a)) // abs(int(b))
        return type(a)(whole if (a < 0) == (b < 0) else -whole)
    return np.true_divide(a, b)


def _safe_divisor(a: Any, b: Any) -> Any:
    """One for what a processor cannot divide by: 0, and −1 where the quotient would overflow."""
    least = not isinstance(a, np.unsignedinteger) and a == np.iinfo(np.asarray(a).dtype).min
    return type(b)(1) if b == 0 or (least and b == -1) else b


def _floor_divide(a: Any, b: Any) -> Any:
    return a // b if isinstance(a, np.floating) else a // _safe_divisor(a, b)


def _remainder(a: Any, b: Any) -> Any:
    return a % b if isinstance(a, np.floating) else a % _safe_divisor(a, b)


def _cast(value: Any, dtype: str) -> Any:
    kind = numpy_dtype(dtype)
    if dtype == "bool":
        return bool(value != 0)
    result = np.asarray(value).astype(kind)[()]
    return int(result) if dtype == "int64" else result


def _erf(x: Any) -> Any:
    return type(x)(math.erf(float(x)))


def _fma(a: Any, b: Any, c: Any) -> Any:
    """Rounded once, but for ties that the wider format rounds first."""
    wider = np.float64 if isinstance(a, np.float32) else np.longdouble
    return type(a)(wider(a) * wider(b) + wider(c))


def _popcount(x: Any) -> Any:
    bits = 64 if isinstance(x, int) else 8 * x.dtype.itemsize
    return type(x)((int(x) % (1 << bits)).bit_count())


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "exp": np.exp, "exp_shifted": np.exp, "exp_within": np.exp,
    "log": np.log, "log2": np.log2, "log1p": np.log1p, "log1p_unit": np.log1p, "expm1": np.expm1,
    "sqrt": np.sqrt, "rsqrt": lambda x: type(x)(1) / np.sqrt(x), "tanh": np.tanh, "erf": _erf,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "pow": np.power, "fmod": np.fmod,
    "floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc, "abs": np.abs,
    "not": lambda x: not x, "isnan": lambda x: bool(np.isnan(x)),
    "isinf": lambda x: bool(np.isinf(x)), "fma": _fma, "bitnot": lambda x: ~x,
    "popcount": _popcount, "near_sigmoid": lambda x: type(x)(1) / (type(x)(1) + np.exp(-x)),
}  # fmt: skip


def _intrinsic(name: str, dtype: str, *args: Any) -> Any:
    """A scalar function by name; narrow floats are computed in float32 and rounded."""
    if _narrow(*args):
        args = tuple(np.float32(a) for a in args)
    result = _FUNCTIONS[name](*args)
    if dtype == "int64":
        return _wrap(result)
    return result if dtype == "bool" else numpy_dtype(dtype).type(result)


def _held_product(total: Any, row: Sequence[Sequence[Any]], right: Sequence[Any]) -> Any:
    """``total`` + Σ a · b, of which each of four threads has its part of a."""
    kind = type(total)
    for k, b in enumerate(right):
        thread, number = owner_of_term(k)
        total = total + kind(row[thread][number]) * kind(b)
    return total


_RUNTIME: dict[str, Any] = {
    "poisoned": poisoned,
    "outside": _outside,
    "cast": _cast,
    "wrap": _wrap,
    "intrinsic": _intrinsic,
    "held_product": _held_product,
    "op_add": _arithmetic(lambda a, b: a + b),
    "op_sub": _arithmetic(lambda a, b: a - b),
    "op_mul": _arithmetic(lambda a, b: a * b),
    "op_div": _arithmetic(_divide),
    "op_floordiv": _arithmetic(_floor_divide),
    "op_floormod": _arithmetic(_remainder),
    "op_min": np.minimum,
    "op_max": np.maximum,
    "op_maxnum": np.fmax,
    "op_lt": lambda a, b: bool(a < b),
    "op_le": lambda a, b: bool(a <= b),
    "op_gt": lambda a, b: bool(a > b),
    "op_ge": lambda a, b: bool(a >= b),
    "op_eq": lambda a, b: bool(a == b),
    "op_ne": lambda a, b: bool(a != b),
    "op_and": lambda a, b: bool(a and b),
    "op_or": lambda a, b: bool(a or b),
    "op_xor": lambda a, b: a ^ b,
    "op_bitand": lambda a, b: a & b,
    "op_bitor": lambda a, b: a | b,
    "op_bitxor": lambda a, b: a ^ b,
    "op_shl": lambda a, b: a << b,
    "op_shr": lambda a, b: a >> b,
}
