"""Loop IR → C99, to read: what a schedule made of a program, in the language that all know.

Storage is flattened, and index types are narrowed to int32_t where they provably fit. Vectorized
and unrolled loops are plain loops, parallel ones carry an OpenMP pragma. Signed arithmetic wraps as
it does in the machine code only under ``-fwrapv``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import inf, isnan, prod

from tunefarm.compiler.errors import BuildError, ScheduleError
from tunefarm.compiler.tir.ir import (
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
from tunefarm.compiler.tir.tensor_intrinsics import TENSOR_INTRINSICS, meaning
from tunefarm.compiler.tir.transform.flatten import flatten_buffers
from tunefarm.compiler.tir.transform.narrow import narrow_indices
from tunefarm.compiler.tir.visit import walk_stmt

_TYPES = {
    "float32": "float", "float64": "double", "bool": "bool",
    **{f"{s}int{n}": f"{s}int{n}_t" for s in ("", "u") for n in (8, 16, 32, 64)},
}  # fmt: skip
_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==",
    "ne": "!=", "and": "&&", "or": "||", "xor": "^", "bitand": "&", "bitor": "|", "bitxor": "^",
    "shl": "<<", "shr": ">>",
}  # fmt: skip
_LIBRARY = {
    "exp": "exp", "exp_shifted": "exp", "exp_within": "exp",
    "log": "log", "log2": "log2", "log1p": "log1p", "log1p_unit": "log1p", "expm1": "expm1",
    "sqrt": "sqrt", "tanh": "tanh", "erf": "erf", "sin": "sin", "cos": "cos", "tan": "tan",
    "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh",
    "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "pow": "pow", "fmod": "fmod",
    "floor": "floor", "ceil": "ceil", "round": "rint", "trunc": "trunc", "abs": "fabs",
    "fma": "fma",
}  # fmt: skip
# Functions that C lacks, for a type T and its name D; a divisor of 0 counts as 1.
_HELPERS = {
    "min_float": "T min_D(T a, T b) { return a < b || a != a ? a : b; }",
    "max_float": "T max_D(T a, T b) { return a > b || a != a ? a : b; }",
    "min": "T min_D(T a, T b) { return a < b ? a : b; }",
    "max": "T max_D(T a, T b) { return a > b ? a : b; }",
    "maxnum": "T maxnum_D(T a, T b) { return a > b ? a : b; }",
    "div": "T div_D(T a, T b) { return b == 0 ? a : b + 1 == 0 && (T)-1 < 0 ? 0 - a : a / b; }",
    "floordiv": (
        "T floordiv_D(T a, T b) {\n"
        "    T q = b == 0 ? a : b + 1 == 0 && (T)-1 < 0 ? 0 - a : a / b;\n"
        "    return b != 0 && q * b != a && (a < 0) != (b < 0) ? q - 1 : q;\n}"
    ),
    "floormod": (
        "T floormod_D(T a, T b) {\n"
        "    T r = b == 0 || (b + 1 == 0 && (T)-1 < 0) ? 0 : a % b;\n"
        "    return r != 0 && (r < 0) != (b < 0) ? r + b : r;\n}"
    ),
    "abs": "T abs_D(T a) { return a < 0 ? 0 - a : a; }",
    "popcount": "T popcount_D(T a) { T n = 0; for (; a; a &= a - 1) ++n; return n; }",
}


def emit_c(*programs: PrimFunc) -> str:
    """C99 of lowered programs: ``void name(inputs…, outputs…)`` each, all of them pointers.

    A name that C has taken (``main``) gets an underscore.

    Raises BuildError for a dtype that C99 lacks; AssertionError if a block is left.
    """
    writer = _Writer()
    functions = [writer.program(program) for program in programs]
    headers = [f"#include <{name}.h>" for name in ("math", "stdbool", "stdint", "stdlib")]
    helpers = [f"static inline {text}" for text in writer.helpers.values()]
    parts = ["\n".join(headers), *(["\n".join(helpers)] if helpers else []), *functions]
    return "\n\n".join(parts) + "\n"


def c_type(dtype: str) -> str:
    """The type of C99 for an element; BuildError if it has none."""
    if dtype not in _TYPES:
        raise BuildError(f"dtype {dtype} has no type in C99; known: {', '.join(_TYPES)}")
    return _TYPES[dtype]


class _Writer:
    """The text of one function at a time; ``helpers`` are those of all so far."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[Var | Buffer, str] = {}
        self.taken: set[str] = set()
        self.helpers: dict[str, str] = {}
        self.shapes: dict[Buffer, tuple[int, ...]] = {}  # of tiles, before they were flattened

    def name(self, thing: Var | Buffer) -> str:
        """An identifier of its own for every variable and buffer."""
        if thing not in self.names:
            stem = re.sub(r"\W", "_", thing.name)
            stem = stem if re.match(r"[A-Za-z]", stem) else f"v{stem}"
            name, count = stem, 1
            while name in self.taken or name in _RESERVED:
                name, count = f"{stem}_{count}", count + 1
            self.taken.add(name)
            self.names[thing] = name
        return self.names[thing]

    def put(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    # --- statements ----------------------------------------------------------------------------

    def program(self, program: PrimFunc) -> str:
        self.lines, self.names, self.taken = [], {}, set()
        tiles = _tiles(program)
        program = narrow_indices(flatten_buffers(program))
        self.shapes = {b: t.shape for b, t in zip(_tiles(program), tiles, strict=True)}
        inputs = len(program.params) - program.outputs
        params = [
            f"{'const ' if n < inputs else ''}{c_type(p.dtype)} *"
            f"{'' if n in program.shared else 'restrict '}{self.name(p)}"
            for n, p in enumerate(program.params)
        ]
        name = program.name if program.name not in _RESERVED else f"{program.name}_"
        self.put(0, f"void {name}({', '.join(params)}) {{")
        self.stmt(program.body, 1)
        self.put(0, "}")
        return "\n".join(self.lines)

    def stmt(self, stmt: Stmt, depth: int) -> None:
        match stmt:
            case Seq(stmts):
                for part in stmts:
                    self.stmt(part, depth)
            case For():
                self.loop(stmt, depth)
            case If():
                self.put(depth, f"if ({self.expr(stmt.condition)}) {{")
                self.stmt(stmt.then, depth + 1)
                if stmt.orelse is not None:
                    self.put(depth, "} else {")
                    self.stmt(stmt.orelse, depth + 1)
                self.put(depth, "}")
            case Allocate():
                self.allocate(stmt, depth)
            case Store(buffer, indices, value):
                self.put(depth, f"{self.element(buffer, indices)} = {self.expr(value)};")
            case Barrier():
                raise ScheduleError("a barrier in the program: C99 has no thread blocks")
            case Block():
                raise AssertionError(f"block {stmt.name} reached the code generator")

    def loop(self, loop: For, depth: int) -> None:
        var = self.name(loop.var)
        if loop.kind in (LoopKind.THREAD, LoopKind.VIRTUAL):
            raise ScheduleError(
                f"loop {loop.var.name} is bound to {loop.axis or loop.kind}, which C99 does not "
                "have; make it parallel instead"
            )
        if loop.kind is LoopKind.PARALLEL:
            self.put(depth, "#pragma omp parallel for")
        note = f"  // {loop.kind}" if loop.is_expanded else ""
        head = f"{c_type(loop.var.dtype)} {var} = {self.expr(loop.start)}"
        self.put(depth, f"for ({head}; {var} < {self.expr(_end(loop))}; ++{var}) {{{note}")
        for hint in loop.prefetch:
            place = f"{self.name(hint.buffer)} + {self.expr(hint.offset)}"
            for line in range(hint.lines):
                lines = f"(const char *)({place}) + {hint.lines_before(line) * 64}"
                self.put(depth + 1, f"__builtin_prefetch({lines}, 0, {4 - hint.level});")
        self.stmt(loop.body, depth + 1)
        self.put(depth, "}")

    def allocate(self, node: Allocate, depth: int) -> None:
        """A tile on the stack; what may be large comes from the heap."""
        name, kind = self.name(node.buffer), c_type(node.buffer.dtype)
        size, shape = prod(node.buffer.shape), list(self.shapes[node.buffer])
        heap = node.buffer.scope == "global"
        self.put(depth, "{")
        array = f"{kind} *{name} = malloc({size} * sizeof *{name});"
        self.put(depth + 1, f"{array if heap else f'{kind} {name}[{size}];'}  // {shape}")
        self.stmt(node.body, depth + 1)
        if heap:
            self.put(depth + 1, f"free({name});")
        self.put(depth, "}")

    # --- expressions ---------------------------------------------------------------------------

    def element(self, buffer: Buffer, indices: tuple[Expr, ...]) -> str:
        (offset,) = indices
        return f"{self.name(buffer)}[{self.expr(offset)}]"

    def expr(self, expr: Expr) -> str:
        """The expression; what is not a single term stands in parentheses inside another."""
        match expr:
            case Var():
                return self.name(expr)
            case Const(value, dtype):
                return _constant(value, dtype)
            case Load(buffer, indices):
                return self.element(buffer, indices)
            case Cast(value, "bool"):
                return f"{self.term(value)} != 0"
            case Cast(value, dtype):
                return f"({c_type(dtype)}){self.term(value)}"
            case Select(condition, a, b, _):
                return f"{self.term(condition)} ? {self.term(a)} : {self.term(b)}"
            case Intrinsic() if expr.name in TENSOR_INTRINSICS:
                return self.expr(meaning(expr))
            case Intrinsic():
                return self.intrinsic(expr)
            case Binary():
                return self.binary(expr)

    def term(self, expr: Expr) -> str:
        text = self.expr(expr)
        return text if re.fullmatch(r"[\w.]+(\[[^][]*\])?", text) else f"({text})"

    def binary(self, expr: Binary) -> str:
        op, dtype = expr.op, expr.a.dtype
        if op == "div" and "float" in dtype:
            return f"{self.term(expr.a)} / {self.term(expr.b)}"
        if op in _INFIX:
            text = f"{self.term(expr.a)} {_INFIX[op]} {self.term(expr.b)}"
            narrow = dtype in ("int8", "int16", "uint8", "uint16") and expr.dtype != "bool"
            return f"({c_type(dtype)})({text})" if narrow else text
        if op in ("floordiv", "floormod") and "float" in dtype:
            quotient = f"floor{_suffix(dtype)}({self.term(expr.a)} / {self.term(expr.b)})"
            if op == "floordiv":
                return quotient
            return f"{self.term(expr.a)} - {quotient} * {self.term(expr.b)}"
        kind = f"{op}_float" if op in ("min", "max") and "float" in dtype else op
        return f"{self.helper(kind, op, dtype)}({self.expr(expr.a)}, {self.expr(expr.b)})"

    def intrinsic(self, expr: Intrinsic) -> str:
        name, dtype = expr.name, expr.args[0].dtype
        args = ", ".join(map(self.expr, expr.args))
        first = self.term(expr.args[0])
        floating = "float" in dtype
        special: dict[str, Callable[[], str]] = {
            "not": lambda: f"!{first}",
            "bitnot": lambda: f"({c_type(dtype)})~{first}",
            "isnan": lambda: f"isnan({args}) != 0",
            "isinf": lambda: f"isinf({args}) != 0",
            "rsqrt": lambda: f"1 / sqrt{_suffix(dtype)}({args})",
            "near_sigmoid": lambda: f"1 / (1 + exp{_suffix(dtype)}(-{first}))",
            "popcount": lambda: f"{self.helper('popcount', 'popcount', dtype)}({args})",
        }
        if name in special:
            return special[name]()
        if floating and name in _LIBRARY:
            return f"{_LIBRARY[name]}{_suffix(dtype)}({args})"
        if name == "abs":
            return f"{self.helper('abs', 'abs', dtype)}({args})"
        if name in ("floor", "ceil", "round", "trunc"):
            return self.expr(expr.args[0])
        raise BuildError(f"function {name} of {dtype} has no C code")

    def helper(self, kind: str, op: str, dtype: str) -> str:
        """The name of a function that the text defines."""
        name = f"{op}_{dtype}"
        text = _HELPERS[kind].replace(f"{op}_D", name)
        self.helpers[name] = re.sub(r"\bT\b", c_type(dtype), text)
        return name


_WORDS = """
    auto bool break case char const continue default do double else enum extern false float for
    goto if inline int long register restrict return short signed sizeof static struct switch true
    typedef union unsigned void volatile while exp log sqrt sin cos tan floor ceil fabs fma malloc
    free main isnan isinf abs div pow erf round trunc y0 y1 yn j0 j1 jn gamma
"""
_RESERVED = frozenset(_WORDS.split())


def _tiles(program: PrimFunc) -> list[Buffer]:
    return [node.buffer for node in walk_stmt(program.body) if isinstance(node, Allocate)]


def _end(loop: For) -> Expr:
    """The first value after the loop's last."""
    match loop.start, loop.extent:
        case Const(start), Const(extent):
            return Const(start + extent, loop.var.dtype)
        case Const(0), extent:
            return extent
        case _:
            return loop.start + loop.extent


def _suffix(dtype: str) -> str:
    """``f`` for the float32 functions of math.h; BuildError for narrow floats."""
    return "f" if c_type(dtype) == "float" else ""


def _constant(value: int | float | bool, dtype: str) -> str:
    if dtype == "bool":
        return "true" if value else "false"
    if "float" in dtype:
        number = float(value)
        if isnan(number):
            return "NAN"
        if number in (inf, -inf):
            return "INFINITY" if number > 0 else "-INFINITY"
        return f"{number!r}{'f' if c_type(dtype) == 'float' else ''}"
    whole = int(value)
    if dtype == "int64" and whole == -(1 << 63):
        return "INT64_MIN"
    return f"UINT64_C({whole})" if whole >= 1 << 63 else str(whole)
