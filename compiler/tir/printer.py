"""Programs as text, in the manner of Python: what ``print(program)`` shows after each step."""

from __future__ import annotations

from tunefarm.compiler.tir.ir import (
    COMPARISONS,
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
    IterVar,
    Load,
    LoopKind,
    Prefetch,
    PrimFunc,
    Select,
    Seq,
    Stmt,
    Store,
    Var,
)

_SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "floormod": "%",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "and": "and", "or": "or",
    "xor": "^", "bitand": "&", "bitor": "|", "bitxor": "^", "shl": "<<", "shr": ">>",
}  # fmt: skip
_STRENGTH = {
    "or": 1, "and": 2, "lt": 3, "le": 3, "gt": 3, "ge": 3, "eq": 3, "ne": 3, "bitor": 4, "xor": 5,
    "bitxor": 5, "bitand": 6, "shl": 7, "shr": 7, "add": 8, "sub": 8, "mul": 9, "div": 9,
    "floordiv": 9, "floormod": 9,
}  # fmt: skip


def print_program(program: PrimFunc) -> str:
    """The program's text; names that stand for different things get numbers."""
    return _Printer().program(program)


def print_expr(expr: Expr) -> str:
    """One expression's text."""
    return _Printer().expr(expr)


def print_short(node: object) -> str:
    """A node on one line of at most 100 characters, in the time that a small node takes.

    It lacks the body of a statement, and has "…" for what is deep in an expression.
    """
    text = _Short().node(node)
    return text if len(text) <= 100 else f"{text[:99]}…"


class _Printer:
    def __init__(self) -> None:
        self.names: dict[Var | Buffer, str] = {}
        self.taken: set[str] = set()
        self.lines: list[str] = []
        self.indexing = 0  # inside bounds and indices, where constants of int32 stand bare

    def name(self, thing: Var | Buffer) -> str:
        if thing not in self.names:
            name, count = thing.name, 1
            while name in self.taken:
                name = f"{thing.name}.{count}"
                count += 1
            self.taken.add(name)
            self.names[thing] = name
        return self.names[thing]

    def put(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def typed(self, buffer: Buffer) -> str:
        scope = "" if buffer.scope == "global" else f" in {buffer.scope}"
        shape = ", ".join(map(str, buffer.shape))
        copies = "" if buffer.copies == 1 else f", {buffer.copies} copies"
        ring = "" if buffer.ring is None else f", {buffer.ring.rows} rows kept"
        return f"{self.name(buffer)}: {buffer.dtype}[{shape}]{scope}{copies}{ring}"

    def header(self, program: PrimFunc) -> str:
        inputs = len(program.params) - program.outputs
        params = []
        for index, param in enumerate(program.params):
            role = "out " if index >= inputs else "const " if index in program.constants else ""
            params.append(role + self.typed(param))
        return f"{program.name}({', '.join(params)})"

    def program(self, program: PrimFunc) -> str:
        self.put(0, f"def {self.header(program)}:")
        for buffer in program.buffers:
            self.put(1, f"allocate {self.typed(buffer)}")
        for index, layout in program.layouts.items():
            name = self.name(program.params[index])
            self.put(1, f"# {name} is packed: split {layout.factors}, order {layout.order}")
        self.stmt(program.body, 1)
        return "\n".join(self.lines) + "\n"

    def stmt(self, stmt: Stmt, depth: int) -> None:
        match stmt:
            case Seq(stmts):
                for part in stmts:
                    self.stmt(part, depth)
            case For():
                kind = "" if stmt.var.dtype == "int64" else f": {stmt.var.dtype}"
                self.put(depth, f"for {self.name(stmt.var)}{kind} in {self.bounds(stmt)}:")
                for hint in stmt.prefetch:
                    self.put(depth + 1, self.hint(hint))
                self.stmt(stmt.body, depth + 1)
            case If():
                self.put(depth, f"if {self.expr(stmt.condition)}:")
                self.stmt(stmt.then, depth + 1)
                if stmt.orelse is not None:
                    self.put(depth, "else:")
                    self.stmt(stmt.orelse, depth + 1)
            case Allocate():
                self.put(depth, f"allocate {self.typed(stmt.buffer)}")
                self.stmt(stmt.body, depth)
            case Store(buffer, indices, value):
                self.put(depth, f"{self.element(buffer, indices)} = {self.expr(value)}")
            case Barrier():
                self.put(depth, f"barrier({stmt.pending} pending)" if stmt.pending else "barrier")
            case Block():
                self.block(stmt, depth)

    def hint(self, hint: Prefetch) -> str:
        base = self.element(hint.buffer, hint.first) if hint.first else self.name(hint.buffer)
        place = f"{base} + {self.expr(hint.offset)}"
        lines = f"{hint.lines} line{'s' if hint.lines > 1 else ''}"
        if hint.apart > 1:
            lines += f", {'' if hint.run == 1 else f'runs of {hint.run} '}{hint.apart} apart,"
        return f"# prefetch {lines} into L{hint.level} at {place}"

    def bounds(self, loop: For) -> str:
        kind = "range" if loop.kind is LoopKind.SERIAL else loop.axis or str(loop.kind)
        if isinstance(loop.start, Const) and loop.start.value == 0:
            return f"{kind}({self.index(loop.extent)})"
        return f"{kind}({self.index(loop.start)}, extent={self.index(loop.extent)})"

    def block(self, block: Block, depth: int) -> None:
        self.put(depth, f"block {block.name}:")
        for axis, binding in zip(block.iters, block.bindings, strict=False):
            text = f"{self.name(axis.var)} = {axis.kind}({axis.extent}, {self.expr(binding)})"
            self.put(depth + 1, text)
        if block.predicate is not None:
            self.put(depth + 1, f"where {self.expr(block.predicate)}")
        if block.init is not None:
            self.put(depth + 1, "init:")
            self.stmt(block.init, depth + 2)
        self.stmt(block.body, depth + 1)

    def element(self, buffer: Buffer, indices: tuple[Expr, ...]) -> str:
        return f"{self.name(buffer)}[{', '.join(map(self.index, indices))}]"

    def index(self, expr: Expr) -> str:
        self.indexing += 1
        text = self.expr(expr)
        self.indexing -= 1
        return text

    def expr(self, expr: Expr, strength: int = 0) -> str:
        match expr:
            case Var():
                return self.name(expr)
            case Const(value, dtype):
                bare = dtype in ("int64", "bool") or (self.indexing and dtype == "int32")
                return str(value) if bare else f"{dtype}({value})"
            case Load(buffer, indices):
                return self.element(buffer, indices)
            case Cast(value, dtype):
                return f"{dtype}({self.expr(value)})"
            case Select(condition, a, b, _):
                return f"select({self.expr(condition)}, {self.expr(a)}, {self.expr(b)})"
            case Intrinsic(name, args, _):
                return f"{name}({', '.join(map(self.expr, args))})"
            case Binary(op, a, b, _) if op in ("min", "max", "maxnum"):
                return f"{op}({self.expr(a)}, {self.expr(b)})"
            case Binary("add", a, Const(value, "int64"), _) if value < 0:
                text = f"{self.expr(a, 8)} - {-value}"
                return f"({text})" if strength > 8 else text
            case Binary(op, a, b, _):
                own = _STRENGTH[op]
                left = own + (op in COMPARISONS)  # a < b == c would be a chain
                text = f"{self.expr(a, left)} {_SYMBOLS[op]} {self.expr(b, own + 1)}"
                return f"({text})" if strength > own else text


class _Short(_Printer):
    depth = 0  # of the expression

    def node(self, node: object) -> str:
        match node:
            case PrimFunc():
                return self.header(node)
            case Buffer():
                return self.typed(node)
            case IterVar(var, extent, kind):
                return f"{self.name(var)} = {kind}({extent})"
            case Prefetch():
                return self.hint(node).removeprefix("# prefetch ")
            case For(var):
                return f"{self.name(var)} in {self.bounds(node)}"
            case If(condition):
                return self.expr(condition)
            case Store(buffer, indices, value):
                return f"{self.element(buffer, indices)} = {self.expr(value)}"
            case Seq(stmts):
                return f"of {len(stmts)}"
            case Block(name):
                return name
            case Allocate(buffer):
                return self.typed(buffer)
            case Barrier(pending):
                return f"({pending} pending)"
            case _:
                return self.expr(node)  # type: ignore[arg-type]

    def expr(self, expr: Expr, strength: int = 0) -> str:
        if self.depth == 4 and not isinstance(expr, Var | Const):
            return "…"
        self.depth += 1
        text = super().expr(expr, strength)
        self.depth -= 1
        return text
