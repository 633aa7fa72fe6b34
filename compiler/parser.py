"""Read the text form of the graph IR: see ``printer.py`` for the syntax."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.dtypes import DTYPES, numpy_dtype
from tunefarm.compiler.errors import ModelError, TunefarmError
from tunefarm.compiler.ir import (
    AttrValue,
    Call,
    Constant,
    Expr,
    Function,
    IRModule,
    TensorType,
    Tuple,
    TupleGetItem,
    Var,
)
from tunefarm.compiler.ops import call, find


def parse_module(text: str, constants: Mapping[str, NDArray[Any]] | None = None) -> IRModule:
    """The module whose text this is: ``parse_module(str(module), module.constants)``.

    ``constants`` is the table of large constants beside the text. Raises ModelError, which names
    the line that is wrong or the constant that is missing.
    """
    if not isinstance(text, str) or not isinstance(constants or {}, Mapping):
        raise ModelError(
            f"parse_module takes a module's text and its constants, not {type(text).__name__} and "
            f"{type(constants).__name__}; for instance str(module) and module.constants"
        )
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ModelError(f"line {error.lineno} of the module's text is not understood") from None
    reader = _Reader(constants or {})
    output_names: tuple[str, ...] = ("output",)
    exported: tuple[str, ...] = ("main",)
    for statement in tree.body:
        match statement:
            case ast.Assign([ast.Name("output_names")], value):
                output_names = _names(value)
            case ast.Assign([ast.Name("functions")], value):
                exported = _names(value)
            case ast.FunctionDef():
                reader.functions[statement.name] = reader.function(statement)
            case _:
                raise _not_understood(statement)
    missing = [n for n in exported if n not in reader.functions]
    if missing:
        raise ModelError(f"the module's text defines no function {missing[0]!r}")
    return IRModule({n: reader.functions[n] for n in exported}, output_names)


def _names(node: ast.expr) -> tuple[str, ...]:
    value = _value(node)
    if not isinstance(value, tuple) or not all(isinstance(v, str) for v in value):
        raise _not_understood(node)
    return tuple(str(v) for v in value)


def _not_understood(node: ast.AST) -> ModelError:
    line = getattr(node, "lineno", "?")
    source = ast.unparse(node)[:80]
    return ModelError(f"line {line} of the module's text is not understood: {source}")


class _Reader:
    def __init__(self, constants: Mapping[str, NDArray[Any]]) -> None:
        self.constants = constants
        self.functions: dict[str, Function] = {}
        self.seen: dict[str, Constant] = {}

    def function(self, definition: ast.FunctionDef) -> Function:
        params = _params(definition)
        values: dict[str, Expr] = dict(params)
        attrs: dict[str, AttrValue] = {}
        for decorator in definition.decorator_list:
            assert isinstance(decorator, ast.Call)
            attrs = _attributes(decorator.keywords)
        for statement in definition.body:
            match statement:
                case ast.Assign([ast.Name(name)], value):
                    values[name] = self._checked(value, values)
                case ast.Return(ast.expr() as value):
                    return Function(tuple(params.values()), self._checked(value, values), attrs)
                case _:
                    raise _not_understood(statement)
        raise ModelError(f"function {definition.name!r} of the module's text returns nothing")

    def _checked(self, node: ast.expr, values: Mapping[str, Expr]) -> Expr:
        try:
            return self._expression(node, values)
        except ModelError:
            raise
        except (TunefarmError, TypeError, KeyError, ValueError) as error:
            raise ModelError(f"line {node.lineno} of the module's text: {error}") from None

    def _expression(self, node: ast.expr, values: Mapping[str, Expr]) -> Expr:
        match node:
            case ast.Name(name) if name in values:
                return values[name]
            case ast.Tuple(fields):
                return Tuple(tuple(self._expression(f, values) for f in fields))
            case ast.Subscript(ast.Name("const"), ast.Constant(str() as key)):
                return self._large_constant(key)
            case ast.Subscript(value, ast.Constant(int() as index)):
                return TupleGetItem(self._expression(value, values), index)
            case ast.Call(ast.Name("const"), args, keywords):
                return _small_constant(args, keywords)
            case ast.Call(ast.Name(op), args, keywords):
                operands = tuple(self._expression(a, values) for a in args)
                return self._call(op, operands, _attributes(keywords), node)
            case _:
                raise _not_understood(node)

    def _large_constant(self, key: str) -> Constant:
        if key not in self.constants:
            raise ModelError(
                f"constant {key!r} of the module's text is not in the table beside it; pass "
                "module.constants too"
            )
        return self.seen.setdefault(key, Constant(np.asarray(self.constants[key])))

    def _call(
        self, op: str, args: tuple[Expr, ...], attrs: dict[str, AttrValue], node: ast.expr
    ) -> Call:
        name = str(attrs.pop("name", ""))
        function = self.functions.get(op)
        if function is not None:
            if [a.type for a in args] != [p.type for p in function.params]:
                raise ModelError(
                    f"line {node.lineno} of the module's text calls {op} with other types"
                )
            return Call(function, args, attrs, function.type, name)
        if find(op) is None:
            raise ModelError(f"line {node.lineno} of the module's text: no operator {op!r}")
        return call(op, *args, name=name, **attrs)


def _params(definition: ast.FunctionDef) -> dict[str, Var]:
    arguments = definition.args.args
    defaults = definition.args.defaults
    originals: list[ast.expr | None] = [None] * (len(arguments) - len(defaults)) + list(defaults)
    params: dict[str, Var] = {}
    for argument, original in zip(arguments, originals, strict=True):
        if argument.annotation is None:
            raise _not_understood(argument)
        name = argument.arg if original is None else str(_value(original))
        params[argument.arg] = Var(name, _tensor_type(argument.annotation))
    return params


def _tensor_type(node: ast.expr) -> TensorType:
    """``float32[1, 8]``; a scalar is ``float32[()]``."""
    match node:
        case ast.Subscript(ast.Name(dtype), extents) if dtype in DTYPES:
            value = _value(extents)
            shape = value if isinstance(value, tuple) else (value,)
            if all(isinstance(e, int) for e in shape):
                return TensorType(shape, dtype)
    raise _not_understood(node)


def _small_constant(args: list[ast.expr], keywords: list[ast.keyword]) -> Constant:
    values, dtype = (_value(a) for a in args)
    named = _attributes(keywords)
    array = np.array(values, numpy_dtype(str(dtype)))
    if "shape" in named:
        array = array.reshape(named["shape"])  # type: ignore[arg-type]
    return Constant(array, str(named.get("name", "")))


def _attributes(keywords: list[ast.keyword]) -> dict[str, AttrValue]:
    return {str(k.arg): _value(k.value) for k in keywords}


def _value(node: ast.expr) -> Any:
    """A literal: numbers, strings, tuples, lists, None, and the names inf and nan."""
    match node:
        case ast.Constant(value):
            return value
        case ast.Tuple(items):
            return tuple(_value(i) for i in items)
        case ast.List(items):
            return [_value(i) for i in items]
        case ast.Name("inf" | "nan" as name):
            return float(name)
        case ast.UnaryOp(ast.USub(), operand):
            value = _value(operand)
            return math.nan if value != value else -value
        case _:
            raise _not_understood(node)
