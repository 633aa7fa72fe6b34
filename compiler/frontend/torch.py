"""PyTorch models become graph modules: ``from_torch``, through PyTorch's own exporter to ONNX."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunefarm.compiler.errors import ModelError
from tunefarm.compiler.frontend.onnx import from_onnx
from tunefarm.compiler.frontend.onnx.model import given_shapes
from tunefarm.compiler.frontend.torch_shapes import bound_shapes, examples, is_dynamic
from tunefarm.compiler.ir import IRModule

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch.export import ExportedProgram
    from torch.nn import Module

SAVED = ".pt2"
"""How files end that ``torch.export.save`` writes."""
_NEEDS = "PyTorch models need torch and onnxscript; pip install 'tunefarm[torch]'"
_REFUSES = "PyTorch's exporter refuses the model"


def from_torch(
    model: Module | ExportedProgram | str | Path,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> IRModule:
    """The model as a graph module; ``tunefarm.from_torch`` says what it takes and raises."""
    return from_onnx(to_onnx(model, args, kwargs, shapes))


def to_onnx(
    model: Module | ExportedProgram | str | Path,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> ModelProto:
    """The model in ONNX's form; arguments and errors as of ``from_torch``."""
    try:
        import onnxscript  # noqa: F401
        import torch
    except ImportError:
        raise ModelError(_NEEDS) from None
    if isinstance(model, str | Path):
        model = _load(Path(model))
    if isinstance(model, torch.export.ExportedProgram):
        if args or kwargs:
            raise ModelError("an exported program has its inputs; leave args and kwargs out")
        return _exported(_of_fixed_shapes(model, given_shapes(shapes or {})), (), {})
    _check_model(model)
    if shapes:
        raise ModelError(
            "a module has the shapes of its example inputs; give examples of others and leave "
            "shapes out"
        )
    args = (args,) if isinstance(args, torch.Tensor) else args
    _check_arguments(model, args, kwargs or {})
    with _evaluating(model):
        return _exported(model, tuple(args), dict(kwargs or {}))


def _load(path: Path) -> ExportedProgram:
    import torch

    if not path.exists():
        raise ModelError(f"{path} does not exist; give a file that torch.export.save wrote")
    if path.suffix == ".onnx":
        raise ModelError(f"{path} is an ONNX model; read it with from_onnx")
    try:
        with _quietly():
            return torch.export.load(path)
    except Exception as error:  # of the unpickler, of zip files, of versions: all mean the same
        raise ModelError(
            f"{path} is not what torch.export.save wrote, or of another PyTorch: {_line_of(error)}"
        ) from error


def _check_model(model: object) -> None:
    import torch

    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        raise ModelError(
            "a model of torch.jit cannot be exported; give the torch.nn.Module that it was made "
            "of, or what torch.export.export makes of that"
        )
    if not isinstance(model, torch.nn.Module):
        raise ModelError(
            f"from_torch takes a torch.nn.Module, a program of torch.export or its file, not "
            f"{type(model).__name__}"
        )


def _check_arguments(model: Module, args: object, kwargs: object) -> None:
    if isinstance(args, Mapping):
        raise ModelError(
            "the inputs are a dictionary, expected a tuple; give inputs by name as kwargs=, as in "
            "from_torch(model, kwargs={'x': torch.zeros(1, 3, 224, 224)})"
        )
    if not isinstance(args, tuple | list) or not isinstance(kwargs, Mapping):
        raise ModelError(
            f"args and kwargs are {type(args).__name__} and {type(kwargs).__name__}, expected a "
            "tuple of the inputs and a dictionary of those with names"
        )
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise ModelError(
            f"the inputs do not fit {type(model).__name__}.forward: {error}; give examples of all, "
            "as in from_torch(model, (torch.zeros(1, 3, 224, 224),))"
        ) from None


@contextlib.contextmanager
def _evaluating(model: Module) -> Iterator[None]:
    """Evaluation mode for all parts of the model, each put back into its own mode afterwards."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def _of_fixed_shapes(
    program: ExportedProgram, given: Mapping[str, tuple[int, ...]]
) -> ExportedProgram:
    """The program exported again at the shapes, where it has dynamic dimensions: its exporter to
    ONNX refuses some of those, and writes what depends on them as nodes that compute shapes."""
    import torch

    shapes = bound_shapes(program, given)
    if not is_dynamic(program):
        return program
    args, kwargs = examples(program, shapes)
    with _refusing():
        return torch.export.export(program.module(), args, kwargs)


def _exported(
    model: Module | ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> ModelProto:
    import torch

    with _refusing():
        program = torch.onnx.export(model, args, kwargs=kwargs or None, dynamo=True, verbose=False)
        return program.model_proto


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Whatever an exporter, or the model when it is traced, raises becomes a ModelError."""
    import torch

    try:
        with torch.no_grad(), _quietly():
            yield
    except Exception as error:
        raise ModelError(f"{_REFUSES}: {_line_of(error)}") from error


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep to oneself what the exporter prints and logs: packages that are absent, graphs that it
    gave up, its own deprecations. What went wrong is raised."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _line_of(error: BaseException) -> str:
    """The first line of the error that all others came of."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
