"""The shapes of an exported PyTorch program's inputs, from those that are given: a dimension that
was exported as ``s`` or ``2*s`` has one extent for each ``s``, in all inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tunefarm.compiler.errors import ModelError, OpenShapeError

if TYPE_CHECKING:
    from torch.export import ExportedProgram

Shapes = dict[str, tuple[int, ...]]
Open = dict[str, tuple[Any, ...]]
"""Of each input the dimensions: numbers, or expressions of SymPy."""

_SURELY_CHECKED = 3
"""PyTorch writes 2 as the least extent of a dimension of any, and runs 0 and 1 too."""
_AGAIN = "export the model again for others"


def bound_shapes(program: ExportedProgram, given: Mapping[str, tuple[int, ...]]) -> Shapes:
    """The shapes of all inputs that are tensors, where some have those that are ``given``.

    ``{"x": (4, 3)}`` makes ``{"x": (4, 3), "y": (8,)}`` of x of (s, 3) and y of (2*s). Raises
    OpenShapeError for an input that stays open, ModelError for one that was exported for others.
    """
    inputs = _inputs(program)
    for name, shape in given.items():
        if name not in inputs:
            names = ", ".join(inputs) or "none"
            raise ModelError(f"the model has no input {name!r} of a shape; its inputs are {names}")
        _check_fixed(name, inputs[name], shape)
    extents = _extents(inputs, given)
    _check_ranges(program, inputs, extents)
    least = {symbol: 1 for dims in inputs.values() for symbol in _symbols(dims)}
    least |= {dim: _lowest(range) for dim, range in program.range_constraints.items()}
    for name, dims in inputs.items():
        if _symbols(dims) - extents.keys():
            raise OpenShapeError(
                f"input {name!r} has the symbolic shape {_text(dims)}",
                name,
                _put_in(dims, {s: extents.get(s, least[s]) for s in _symbols(dims)}),
            )
    return {name: _put_in(dims, extents) for name, dims in inputs.items()}


def is_dynamic(program: ExportedProgram) -> bool:
    """Whether an input has a dimension that is open."""
    return any(_symbols(dims) for dims in _inputs(program).values())


def examples(program: ExportedProgram, shapes: Shapes) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of the shapes to call the program with: zeros, and its own constants.

    Raises ModelError for a number that was left to the caller.
    """
    import torch
    from torch.export.graph_signature import ConstantArgument
    from torch.utils import _pytree

    found: list[Any] = []
    for argument, value in _arguments(program):
        if isinstance(argument, ConstantArgument):
            found.append(argument.value)
        elif isinstance(value, torch.Tensor):
            shape = shapes[argument.name]
            found.append(torch.zeros(shape, dtype=value.dtype, device=value.device))
        else:
            raise ModelError(
                f"input {argument.name!r} is a number that was exported as dynamic; export the "
                "model again with its value, or with a tensor in its place"
            )
    args, kwargs = _pytree.tree_unflatten(found, program.call_spec.in_spec)
    return args, kwargs


def _arguments(program: ExportedProgram) -> Iterator[tuple[Any, Any]]:
    """What the caller gives, flat, and what stands for it in the graph."""
    from torch.export.graph_signature import InputKind

    values = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    for spec in program.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            yield spec.arg, values.get(spec.arg.name)


def _inputs(program: ExportedProgram) -> Open:
    import torch

    return {
        argument.name: tuple(_dimension(extent) for extent in value.shape)
        for argument, value in _arguments(program)
        if isinstance(value, torch.Tensor)
    }


def _dimension(extent: Any) -> Any:
    """A number where it is one, else the expression."""
    expression = getattr(getattr(extent, "node", None), "expr", extent)
    return expression if getattr(expression, "free_symbols", None) else int(extent)


def _check_fixed(name: str, dims: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    fits = len(dims) == len(shape) and all(
        dim == extent for dim, extent in zip(dims, shape, strict=True) if isinstance(dim, int)
    )
    if not fits:
        raise _contradicted(name, dims, shape)


def _contradicted(name: str, dims: tuple[Any, ...], shape: tuple[int, ...]) -> ModelError:
    return ModelError(
        f"input {name!r} was exported with the shape {_text(dims)} and cannot be given {shape}; "
        f"{_AGAIN}"
    )


def _extents(inputs: Open, given: Mapping[str, tuple[int, ...]]) -> dict[Any, int]:
    """What the given shapes make of each symbol: plain ones first, then those in expressions."""
    asked = [
        (name, dim, extent)
        for name, shape in given.items()
        for dim, extent in zip(inputs[name], shape, strict=True)
        if not isinstance(dim, int)
    ]
    extents: dict[Any, int] = {}
    for name, dim, extent in sorted(asked, key=lambda one: not one[1].is_symbol):
        left = dim.subs(extents)
        if left.is_number and left != extent:
            raise ModelError(
                f"input {name!r} is given {extent} for the dimension {dim}, which is {left} by "
                f"another shape"
            )
        if len(left.free_symbols) == 1:
            (symbol,) = left.free_symbols
            solved = _solved(left, symbol, extent)
            if solved is None:
                raise _contradicted(name, inputs[name], given[name])
            extents[symbol] = solved
    return extents


def _solved(left: Any, symbol: Any, extent: int) -> int | None:
    """The number from 1 that makes a·symbol + b the extent; PyTorch derives dimensions so alone."""
    slope = int(left.coeff(symbol))
    offset = extent - int(left.subs(symbol, 0))
    fits = slope and offset % slope == 0 and offset // slope >= 1
    return offset // slope if fits else None


def _check_ranges(program: ExportedProgram, inputs: Open, extents: Mapping[Any, int]) -> None:
    for dim, range in program.range_constraints.items():
        if not dim.free_symbols <= extents.keys():
            continue
        extent = dim.subs(extents)
        if not _lowest(range) <= extent <= range.upper:
            name = next(n for n, dims in inputs.items() if dim.free_symbols & _symbols(dims))
            raise ModelError(
                f"the dimension {dim} of input {name!r} was exported for {_told(range)} and cannot "
                f"be {extent}; {_AGAIN}"
            )


def _lowest(range: Any) -> int:
    return int(range.lower) if range.lower >= _SURELY_CHECKED else 1


def _told(range: Any) -> str:
    """``1 to 16``, ``4 or more``."""
    bounded = getattr(range.upper, "is_finite", True) and range.upper < 2**62
    return f"{_lowest(range)} to {range.upper}" if bounded else f"{_lowest(range)} or more"


def _symbols(dims: tuple[Any, ...]) -> set[Any]:
    return {symbol for dim in dims if not isinstance(dim, int) for symbol in dim.free_symbols}


def _put_in(dims: tuple[Any, ...], extents: Mapping[Any, int]) -> tuple[int, ...]:
    return tuple(dim if isinstance(dim, int) else int(dim.subs(extents)) for dim in dims)


def _text(dims: tuple[Any, ...]) -> str:
    return f"({', '.join(map(str, dims))})"
