"""The text form of the graph IR: Python's syntax, one call a line, fused functions first.

    output_names = ("probabilities",)

    @attrs(primitive=True, constants=(1,))
    def f0(p0: float32[1, 8], p1: float32[8, 4]):
        v0 = matmul(p0, p1)  # float32[1, 4]
        v1 = multiply(v0, const(0.5, "float32"))  # float32[1, 4]
        return v1

    def main(x: float32[1, 8] = "input.1"):
        v0 = f0(x, const["c0"], name="fc")  # float32[1, 4]
        return v0

Attributes at their defaults are left out; names that are no identifiers stand as the parameters'
default values; constants of more than 16 elements are references into a table beside the text.
``parser.parse_module`` reads it back: ``parse_module(str(module), module.constants)``.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from numpy.typing import NDArray
from tunefarm.compiler.ir import (
    Attrs,
    Call,
    Constant,
    Expr,
    Function,
    IRModule,
    TensorType,
    Tuple,
    TupleGetItem,
    Var,
    post_order,
)

Constants: TypeAlias = dict[str, NDArray[Any]]

_INLINE_ELEMENTS = 16


def print_module(module: IRModule) -> str:
    """The module's text, without the values of large constants."""
    return module_text(module)[0]


def module_text(module: IRModule) -> tuple[str, Constants]:
    """The module's text and its table of large constants, which ``parse_module`` takes."""
    head = [f"output_names = {module.output_names!r}"]
    if len(module.functions) > 1:
        head.append(f"functions = {tuple(module.functions)!r}")
    printer = _Printer()
    parts = _texts_of(module.functions, printer)
    return "\n\n".join([*head, *parts]) + "\n", printer.constants


def function_text(function: Function, name: str = "main") -> str:
    """A function's text, behind those of the functions that it calls; no module, so without the
    names of its results."""
    return "\n\n".join(_texts_of({name: function}, _Printer()))


def _texts_of(functions: Mapping[str, Function], printer: _Printer) -> list[str]:
    """The texts of functions and of all that they call, callees first."""
    named = {id(f): name for name, f in functions.items()}
    parts = []
    for function in _callees_first(list(functions.values())):
        name = named.get(id(function)) or f"f{len(printer.functions)}"
        printer.functions[id(function)] = name
        parts.append(printer.function(function, name))
    return parts


def print_function(function: Function, name: str = "main") -> str:
    """One function's text."""
    return print_module(IRModule({name: function}))


def _callees_first(roots: list[Function]) -> list[Function]:
    order: list[Function] = []
    seen: set[int] = set()
    stack = [(f, False) for f in reversed(roots)]
    while stack:
        function, expanded = stack.pop()
        if expanded:
            order.append(function)
        elif id(function) not in seen:
            seen.add(id(function))
            stack.append((function, True))
            calls = [n for n in post_order(function.body) if isinstance(n, Call)]
            callees = [c.op for c in calls if isinstance(c.op, Function)]
            stack.extend((f, False) for f in reversed(callees) if id(f) not in seen)
    return order


class _Printer:
    def __init__(self) -> None:
        self.functions: dict[int, str] = {}
        self.constants: Constants = {}
        self.keys: dict[int, str] = {}

    def function(self, function: Function, name: str) -> str:
        lines = [f"@attrs({_keywords(function.attrs)})"] if function.attrs else []
        values = _parameter_names(function)
        lines.append(f"def {name}({', '.join(_parameters(function, values))}):")
        lines.extend(f"    {line}" for line in self._body(function, values))
        return "\n".join(lines)

    def _body(self, function: Function, values: dict[Expr, str]) -> Iterator[str]:
        count = 0
        for node in post_order(function.body):
            if node in values:
                continue
            if isinstance(node, Constant):
                values[node] = self._constant(node)
            elif isinstance(node, Var):
                raise ValueError(f"variable {node.name!r} is not a parameter of its function")
            else:
                text = self._expression(node, values)
                values[node] = f"v{count}"
                count += 1
                yield f"{values[node]} = {text}  # {node.type}"
        yield f"return {values[function.body]}"

    def _expression(self, node: Call | Tuple | TupleGetItem, values: dict[Expr, str]) -> str:
        match node:
            case Tuple():
                return _tuple([values[f] for f in node.fields])
            case TupleGetItem():
                return f"{values[node.value]}[{node.index}]"
            case Call():
                op = node.op if isinstance(node.op, str) else self.functions[id(node.op)]
                named = f"name={node.name!r}" if node.name else ""
                parts = [*(values[a] for a in node.args), _keywords(_changed(node)), named]
                return f"{op}({', '.join(filter(None, parts))})"

    def _constant(self, node: Constant) -> str:
        named = f", name={node.name!r}" if node.name else ""
        if node.data.size <= _INLINE_ELEMENTS:
            shape = "" if node.data.size else f", shape={node.data.shape!r}"
            values = _literal(node.data.tolist())
            return f'const({values}, "{node.type.dtype}"{shape}{named})'
        key = self.keys.setdefault(id(node.data), f"c{len(self.keys)}")
        self.constants[key] = node.data
        return f'const["{key}"]'


def _changed(node: Call) -> Attrs:
    """The attributes that differ from the operator's defaults."""
    from tunefarm.compiler.ops import OPS

    if not isinstance(node.op, str):
        return node.attrs
    defaults = OPS[node.op].defaults
    return {
        name: value
        for name, value in node.attrs.items()
        if name not in defaults or repr(defaults[name]) != repr(value)
    }


def _keywords(attrs: Attrs) -> str:
    return ", ".join(f"{name}={_literal(value)}" for name, value in sorted(attrs.items()))


def _literal(value: object) -> str:
    """A Python literal; infinities and NaN as the names inf and nan."""
    if isinstance(value, tuple):
        return _tuple([_literal(v) for v in value])
    return repr(value)


def _tuple(items: Sequence[str]) -> str:
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def _parameters(function: Function, names: Mapping[Expr, str]) -> Iterator[str]:
    """Names and types; from the first name that is no identifier on, the originals too."""
    renamed = False
    for param in function.params:
        renamed = renamed or names[param] != param.name
        original = f" = {param.name!r}" if renamed else ""
        yield f"{names[param]}: {_annotation(param.type)}{original}"


def _annotation(kind: TensorType) -> str:
    """As types print, but a scalar's, which Python's syntax does not allow: ``float32[()]``."""
    return str(kind) if kind.shape else f"{kind.dtype}[()]"


def _parameter_names(function: Function) -> dict[Expr, str]:
    """An identifier a parameter, like its name, that no value or other parameter has."""
    names: dict[Expr, str] = {}
    taken: set[str] = set()
    for param in function.params:
        base = re.sub(r"\W", "_", param.name, flags=re.ASCII) or "p"
        if base[0].isdigit() or keyword.iskeyword(base) or re.fullmatch(r"v\d+|const", base):
            base = f"_{base}"
        name, count = base, 1
        while name in taken:
            name, count = f"{base}_{count}", count + 1
        taken.add(name)
        names[param] = name
    return names
