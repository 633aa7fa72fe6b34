"""The graph IR: an immutable expression DAG with static tensor types.

Every expression carries its type from birth: ``ops.call`` infers it. Nodes compare by identity;
``compiler/structural.py`` has the memoised structural hash and equality, ``compiler/printer.py``
the text form.

    module  ::= IRModule { name: Function }
    expr    ::= Var | Constant | Call(op | Function, args, attrs) | Tuple | TupleGetItem
    type    ::= TensorType(shape, dtype) | TupleType(fields)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

AttrValue: TypeAlias = "int | float | str | bool | tuple[AttrValue, ...] | None"
Attrs: TypeAlias = Mapping[str, AttrValue]


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dense tensor: static shape, and a dtype named as in NumPy ("float32", "bfloat16", …)."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """How many elements it has."""
        return prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class TupleType:
    """Several tensors: the result of an operator that has more than one."""

    fields: tuple[TensorType, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.fields))})"


Type: TypeAlias = TensorType | TupleType


@dataclass(frozen=True, slots=True, eq=False)
class Var:
    """A parameter of a function."""

    name: str
    type: TensorType


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Constant:
    """A tensor known at build time. ``name`` is the model's own, kept for messages."""

    data: NDArray[Any]
    name: str = ""

    @property
    def type(self) -> TensorType:
        """That of the data."""
        return TensorType(self.data.shape, _name_of(self.data.dtype))

    def __repr__(self) -> str:
        return f"Constant({self.name!r}: {self.type})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Call:
    """An operator, or a primitive (fused) function, applied to arguments."""

    op: str | Function
    args: tuple[Expr, ...]
    attrs: Attrs
    type: Type
    name: str = ""

    def __repr__(self) -> str:
        """One level deep: what is below would print again at every use."""
        op = self.op if isinstance(self.op, str) else repr(self.op)
        return f"Call({op}, {len(self.args)} args, {self.type})"


@dataclass(frozen=True, slots=True, eq=False)
class Tuple:
    """Several tensors as one value: the results of a function that has more than one."""

    fields: tuple[Expr, ...]

    @property
    def type(self) -> TupleType:
        """Those of its fields."""
        return TupleType(tuple(tensor_type(f) for f in self.fields))


@dataclass(frozen=True, slots=True, eq=False)
class TupleGetItem:
    """A field of what an operator with several results gave."""

    value: Expr
    index: int

    @property
    def type(self) -> TensorType:
        """That of the field."""
        assert isinstance(self.value.type, TupleType)
        return self.value.type.fields[self.index]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Function:
    """Parameters and a body. ``attrs["primitive"]`` marks a fused function (one kernel)."""

    params: tuple[Var, ...]
    body: Expr
    attrs: Attrs = field(default_factory=dict)

    @property
    def type(self) -> Type:
        """The type of the result."""
        return self.body.type

    @property
    def constants(self) -> tuple[int, ...]:
        """The numbers of the parameters that are constant: ``attrs["constants"]``."""
        listed = self.attrs.get("constants", ())
        assert isinstance(listed, tuple)
        return tuple(int(i) for i in listed)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        name = self.attrs.get("name", "")
        return f"Function({name!r}, {len(self.params)} params, {self.type})"

    def __str__(self) -> str:
        """Its text, behind that of the fused functions that it calls."""
        from tunefarm.compiler.printer import function_text

        return function_text(self, str(self.attrs.get("name") or "main"))


Expr: TypeAlias = Var | Constant | Call | Tuple | TupleGetItem


@dataclass(frozen=True, slots=True, eq=False)
class IRModule:
    """Named functions; ``"main"`` is the model. ``output_names`` name main's results in order."""

    functions: Mapping[str, Function]
    output_names: tuple[str, ...] = ("output",)

    @property
    def main(self) -> Function:
        """The model."""
        return self.functions["main"]

    def with_main(self, main: Function) -> IRModule:
        """The module with another model in place of its own."""
        return IRModule({**self.functions, "main": main}, self.output_names)

    def with_body(self, body: Expr) -> IRModule:
        """The module whose ``main`` computes something else of its parameters; itself if it is what
        ``main`` computes already."""
        main = self.main
        if body is main.body:
            return self
        return self.with_main(Function(main.params, body, main.attrs))

    @property
    def constants(self) -> dict[str, NDArray[Any]]:
        """The large constants that the text refers to, for ``parse_module(str(module), …)``."""
        from tunefarm.compiler.printer import module_text

        return module_text(self)[1]

    def __repr__(self) -> str:
        """One line: what goes in and out, and how many calls are between."""
        params = ", ".join(f"{param.name}: {param.type}" for param in self.main.params)
        calls = sum(isinstance(node, Call) for node in post_order(self.main.body))
        outputs = ", ".join(self.output_names)
        return f"IRModule({params} → {outputs}: {self.main.type}, {calls} calls)"

    def __str__(self) -> str:
        from tunefarm.compiler.printer import print_module

        return print_module(self)

    def _repr_html_(self) -> str:
        from tunefarm.notebook import Table, page

        calls = [n for n in post_order(self.main.body) if isinstance(n, Call)]
        counts = Counter(str(c.op) if isinstance(c.op, str) else "fused function" for c in calls)
        facts = {
            "inputs": ", ".join(f"{param.name}: {param.type}" for param in self.main.params),
            "outputs": f"{', '.join(self.output_names)}: {self.main.type}",
        }
        table = Table(("operator", "calls"), counts.most_common())
        return page("Model", facts, table, "print(module) shows it call by call")


@cache
def _name_of(dtype: np.dtype[Any]) -> str:
    """NumPy puts a name together each time, and passes ask some thousand times a model."""
    return dtype.name


def tensor_type(expr: Expr) -> TensorType:
    """The type of an expression that is known to be one tensor."""
    if not isinstance(expr.type, TensorType):
        raise TypeError(f"expected one tensor, got {expr.type}")
    return expr.type


def children(expr: Expr) -> tuple[Expr, ...]:
    """What an expression is made of."""
    match expr:
        case Call():
            return expr.args
        case Tuple():
            return expr.fields
        case TupleGetItem():
            return (expr.value,)
        case _:
            return ()


def post_order(root: Expr) -> list[Expr]:
    """Every distinct expression below ``root``, each after its operands (iterative)."""
    order: list[Expr] = []
    done: set[int] = set()
    stack: list[tuple[Expr, bool]] = [(root, False)]
    while stack:
        node, expanded = stack.pop()
        if id(node) in done:
            continue
        if expanded:
            done.add(id(node))
            order.append(node)
        else:
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(children(node)))
    return order
