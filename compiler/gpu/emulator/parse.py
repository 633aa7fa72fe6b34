"""PTX text, as LLVM prints it → kernels: parameters, registers, arrays, labels and instructions.

Source of the grammar: NVIDIA, "PTX ISA", chapters on syntax, state spaces and directives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from tunefarm.compiler.gpu.emulator.errors import EmulatorError


@dataclass(frozen=True, slots=True)
class Register:
    """A register of a thread; ``bits`` are 1 of a predicate."""

    name: str
    bits: int


@dataclass(frozen=True, slots=True)
class Special:
    """A register that the GPU fills: ``%tid.x``."""

    name: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal; those written as floats (0f3F800000) are their bits."""

    value: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """The name of a parameter, an array or a label."""

    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """``[base + offset]``."""

    base: Register | Symbol | Immediate
    offset: int


@dataclass(frozen=True, slots=True)
class TensorAddress:
    """``[map, {c0, c1}]``: a corner in the tensor that a map describes."""

    base: Register
    coordinates: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Vector:
    """``{a, b}``, or ``a|b``; ``None`` is the sink ``_``."""

    parts: tuple[Operand | None, ...]


@dataclass(frozen=True, slots=True)
class Negated:
    """``!%p``."""

    register: Register


Operand = Register | Special | Immediate | Symbol | Address | TensorAddress | Vector | Negated


@dataclass(frozen=True, slots=True)
class Instruction:
    """``@guard opcode.modifiers operands``, as it stands in a line of the text."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | Negated | None
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Label:
    name: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number or an address, or an array of bytes."""

    name: str
    size: int  # bytes
    is_array: bool = False


@dataclass(frozen=True, slots=True)
class Array:
    """Memory with a name. One of no ``size`` in bytes begins what a launch asks for."""

    name: str
    space: str
    size: int
    align: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A kernel. ``max_threads`` of a block, if the text says so; ``cluster`` blocks side by side
    along x are launched together."""

    name: str
    parameters: tuple[Parameter, ...]
    max_threads: int | None
    registers: tuple[Register, ...]
    arrays: tuple[Array, ...]
    code: tuple[Instruction | Label, ...]
    cluster: int = 1

    @property
    def instructions(self) -> list[Instruction]:
        return [item for item in self.code if isinstance(item, Instruction)]


@dataclass(frozen=True, slots=True)
class Text:
    """A module: the architecture that it was made for, its kernels and arrays."""

    arch: str
    entries: tuple[Entry, ...]
    arrays: tuple[Array, ...]


_SIZES = {"b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "b32": 4, "u32": 4,
          "s32": 4, "f32": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8}  # fmt: skip
_SPACES = ("shared", "local", "global", "const")
_TOKEN = re.compile(r"[;{}\n]|[^;{}\n]+")
_HEADER = re.compile(r"(\.(visible|weak|extern)\s+)*\.(entry|func)\b")
_LINE_DIRECTIVE = re.compile(r"\.(version|target|address_size)\b")
_SPECIAL = re.compile(r"%(tid|ntid|ctaid|nctaid)\.[xyz]$|%(laneid|warpid)$")
_VECTORS = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,{\[]*")


def parse_ptx(text: str) -> Text:
    """The module that a text describes; EmulatorError names the line that it cannot be."""
    return _Reader().read(text)


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Statements with the lines that they begin in; braces around code stand alone."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL)
    pending, begun, line, inside = "", 1, 1, False

    for match in _TOKEN.finditer(text):
        token, stripped = match[0], pending.strip()
        if token == "\n":
            line += 1
            if _LINE_DIRECTIVE.match(stripped) or (stripped.endswith(":") and not inside):
                yield begun, stripped
                pending = ""
            else:
                pending += " "
        elif token == ";":
            yield begun, stripped
            pending = ""
        elif token in "{}" and (not stripped or _HEADER.match(stripped)):
            if stripped:
                yield begun, stripped
            yield line, token
            pending = ""
        elif token in "{}":
            pending, inside = pending + token, token == "{"
        else:
            if not stripped:
                begun = line
            pending += token
    if pending.strip():
        yield begun, pending.strip()


def _fail(line: int, problem: str) -> NoReturn:
    raise EmulatorError(f"line {line} of the PTX: {problem}")


@dataclass
class _Reader:
    """Collects what the statements of a text say."""

    arch: str = ""
    entries: list[Entry] = field(default_factory=list)
    arrays: list[Array] = field(default_factory=list)

    def read(self, text: str) -> Text:
        statements = _statements(text)
        for line, statement in statements:
            if match := re.match(r"\.target\s+(\w+)", statement):
                self.arch = match[1]
            elif _HEADER.match(statement):
                self.entries.append(_entry(line, statement, statements))
            elif array := _array(statement):
                self.arrays.append(array)
            elif not re.match(r"\.(version|address_size|file|section)\b", statement):
                _fail(line, f"the emulator does not know {statement!r}")
        if not self.arch:
            raise EmulatorError("the PTX names no .target; is it PTX at all?")
        return Text(self.arch, tuple(self.entries), tuple(self.arrays))


def _entry(line: int, header: str, statements: Iterator[tuple[int, str]]) -> Entry:
    match = re.fullmatch(r"(?:\.\w+\s+)*\.entry\s+([\w$]+)\s*\(([^)]*)\)(.*)", header, re.DOTALL)
    if match is None:
        _fail(line, f"only kernels (.entry) are emulated, not {header.split('(')[0].strip()!r}")
    name, listed, directives = match.groups()
    parameters = tuple(_parameter(line, p) for p in listed.split(",") if p.strip())
    threads = None
    if limits := re.search(r"\.(?:maxntid|reqntid)\s+([\d,\s]+)", directives):
        threads = 1
        for extent in limits[1].split(","):
            threads *= int(extent)
    cluster = 1
    if shape := re.search(r"\.reqnctapercluster\s+([\d,\s]+)", directives):
        cluster, *others = map(int, shape[1].split(","))
        if any(extent != 1 for extent in others):
            _fail(line, "only clusters of blocks along x are emulated")
    body = _Body(line)
    depth = 0
    for at, statement in statements:
        depth += (statement == "{") - (statement == "}")
        if not depth:
            break
        if statement not in "{}":
            body.take(at, statement)
    else:
        _fail(line, f"kernel {name} has no end")
    registers = tuple(Register(n, bits) for n, bits in body.registers.items())
    code = tuple(body.code)
    return Entry(name, parameters, threads, registers, tuple(body.arrays), code, cluster)


def _parameter(line: int, text: str) -> Parameter:
    array = re.fullmatch(r"\s*\.param\s+\.align\s+\d+\s+\.b8\s+([\w$]+)\[(\d+)\]\s*", text)
    if array is not None:
        return Parameter(array[1], int(array[2]), True)
    words = text.split()
    kind = words[1].removeprefix(".") if len(words) > 2 and words[0] == ".param" else ""
    if kind not in _SIZES or "[" in text:
        _fail(line, f"a parameter is a number or an address, not {text.strip()!r}")
    return Parameter(words[-1], _SIZES[kind])


def _array(statement: str) -> Array | None:
    match = re.fullmatch(
        r"(?:\.(?:visible|extern|weak|common)\s+)*\.(\w+)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+"
        r"([\w$]+)(\[(\d*)\])?(?:\s*=.*)?",
        statement,
        re.DOTALL,
    )
    if match is None or match[1] not in _SPACES or match[3] not in _SIZES:
        return None
    space, align, kind, name, brackets, count = match.groups()
    each = _SIZES[kind]
    size = each * (int(count or 0) if brackets else 1)
    return Array(name, space, size, int(align or each))


@dataclass
class _Body:
    """What stands between a kernel's braces."""

    line: int
    registers: dict[str, int] = field(default_factory=dict)  # bits by name
    arrays: list[Array] = field(default_factory=list)
    code: list[Instruction | Label] = field(default_factory=list)

    def take(self, line: int, statement: str) -> None:
        if statement.startswith(".reg"):
            self._declare(line, statement)
        elif array := _array(statement):
            self.arrays.append(array)
        elif match := re.fullmatch(r"([\w$]+)\s*:", statement):
            self.code.append(Label(match[1]))
        elif not statement.startswith((".pragma", ".loc")):
            self.code.append(self._instruction(line, statement))

    def _declare(self, line: int, statement: str) -> None:
        match = re.fullmatch(r"\.reg\s+\.(\w+)\s+(.*)", statement, re.DOTALL)
        bits = None
        if match is not None:
            bits = 1 if match[1] == "pred" else 8 * _SIZES.get(match[1], 0)
        if match is None or not bits:
            _fail(line, f"the emulator does not know {statement!r}")
        for word in match[2].split(","):
            several = re.fullmatch(r"([%\w$]+)<(\d+)>", word.strip())
            names = [word.strip()]
            if several:
                names = [f"{several[1]}{n}" for n in range(int(several[2]))]
            for name in names:
                if self.registers.setdefault(name, bits) != bits:
                    _fail(line, f"{name} is declared with {bits} bits and with others")

    def _instruction(self, line: int, statement: str) -> Instruction:
        text = " ".join(statement.split())
        match = re.fullmatch(r"(?:@(!?)([%\w$]+)\s+)?([a-z]\w*)((?:(?:\.|::)\w+)*)\s*(.*)", text)
        if match is None:
            _fail(line, f"{text!r} is no instruction")
        no, guard, opcode, modifiers, rest = match.groups()
        operands = tuple(self._operand(line, m[0].strip()) for m in _VECTORS.finditer(rest))
        condition: Register | Negated | None = None
        if guard:
            register = self._register(line, guard)
            condition = Negated(register) if no else register
        words = tuple(modifiers.replace("::", ".").split(".")[1:])
        return Instruction(opcode, words, operands, condition, line, text)

    def _register(self, line: int, name: str) -> Register:
        if name not in self.registers:
            _fail(line, f"{name} is not declared")
        return Register(name, self.registers[name])

    def _operand(self, line: int, text: str) -> Operand:
        if text.startswith("{"):
            words = [w.strip() for w in text.strip("{}").split(",")]
            return Vector(tuple(None if w == "_" else self._operand(line, w) for w in words))
        if "|" in text:
            words = [w.strip() for w in text.split("|")]
            return Vector(tuple(None if w == "_" else self._operand(line, w) for w in words))
        if text.startswith("["):
            return self._address(line, text)
        if text.startswith("!"):
            return Negated(self._register(line, text[1:].strip()))
        if text in self.registers:
            return Register(text, self.registers[text])
        if _SPECIAL.match(text):
            return Special(text)
        number = _number(text)
        if number is not None:
            return Immediate(number)
        if re.fullmatch(r"[A-Za-z_$][\w$]*", text):
            return Symbol(text)
        _fail(line, f"{text!r} is no operand that the emulator knows")

    def _address(self, line: int, text: str) -> Address | TensorAddress:
        corner = re.fullmatch(r"\[\s*([%\w$]+)\s*,\s*(\{[^}]*\})\s*\]", text)
        if corner is not None:
            coordinates = self._operand(line, corner[2])
            assert isinstance(coordinates, Vector)
            parts = tuple(c for c in coordinates.parts if c is not None)
            return TensorAddress(self._register(line, corner[1]), parts)
        match = re.fullmatch(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\w+))?\s*\]", text)
        base = self._operand(line, match[1]) if match else None
        offset = _number(match[2] or "0") if match else None
        if not isinstance(base, Register | Symbol | Immediate) or offset is None:
            _fail(line, f"{text!r} is no address that the emulator knows")
        return Address(base, offset)


def _number(text: str) -> int | None:
    """A literal: a whole number, or the bits of a float."""
    if re.fullmatch(r"0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}", text):
        return int(text[2:], 16)
    if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", text):
        return int(text.rstrip("U"), 0) if not re.match(r"-?0\d", text) else int(text, 8)
    return None
