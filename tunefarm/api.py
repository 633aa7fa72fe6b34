"""The public functions: from a model to a tuned module."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.ir import IRModule
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.workload import Task

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch.export import ExportedProgram
    from torch.nn import Module as TorchModule

    from tunefarm.compiler.decisions import Decision
    from tunefarm.compiler.dispatch import History
    from tunefarm.compiler.runtime.checked import CheckedFunction
    from tunefarm.compiler.runtime.cuda.kernel import CudaKernel
    from tunefarm.compiler.runtime.kernel import KernelFunction
    from tunefarm.compiler.runtime.module import Module
    from tunefarm.db.records import Trial

_WEIGHTS = "a file of PyTorch's weights, not an exported model"
_UNEXPORTED = {".py": "Python, not a model", ".pt": _WEIGHTS, ".pth": _WEIGHTS}


def default_database() -> str:
    """The database in the user's data folder (TUNEFARM_HOME), as a URL."""
    from tunefarm.compiler import settings

    return f"sqlite:///{settings.HOME.get().absolute() / 'tunefarm.db'}"


def from_onnx(
    model: str | Path | bytes | ModelProto, shapes: Mapping[str, Sequence[int]] | None = None
) -> IRModule:
    """Import an ONNX model (a file, its bytes or a ModelProto), its weights bound as constants.

    ``shapes`` fixes inputs with symbolic dimensions. Raises ModelError with everything that is
    unsupported, or with the dimension that is still open.
    """
    from tunefarm.compiler.frontend.onnx import from_onnx as import_model

    return import_model(model, shapes)


def from_torch(
    model: TorchModule | ExportedProgram | str | Path,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> IRModule:
    """Import a PyTorch model as it is called with ``args`` and ``kwargs``, its weights constants.

    ``model`` is a module, a program of ``torch.export.export``, or a file that
    ``torch.export.save`` wrote; the last two bring their example inputs along. A module is taken
    in evaluation mode, and left as it was. Inputs have the names of the parameters of ``forward``
    and the shapes of the examples. ``shapes`` fixes inputs of a program that was exported with
    dynamic dimensions; one that it fixes is fixed in the other inputs too. Raises ModelError with
    what PyTorch cannot export, with a shape that the program was not exported for or the dimension
    that is still open, or with every operator that is unsupported.
    """
    from tunefarm.compiler.frontend.torch import from_torch as import_model

    return import_model(model, args, kwargs, shapes)


def read_model(path: Path, shapes: Mapping[str, Sequence[int]] | None = None) -> IRModule:
    """A model's file: one that ``torch.export.save`` wrote (``.pt2``), else an ONNX model.

    ``shapes`` and errors as for ``from_onnx`` and ``from_torch``; TunefarmError for files that come
    before an export.
    """
    from tunefarm.compiler.frontend.torch import SAVED

    if path.suffix in _UNEXPORTED and path.is_file():
        raise TunefarmError(
            f"{path} is {_UNEXPORTED[path.suffix]}; export the model, by torch.onnx.export or by "
            f"torch.export.save to a {SAVED} file, or give it to tunefarm.from_torch in Python"
        )
    if path.suffix != SAVED:
        return from_onnx(path, shapes)
    return from_torch(path, shapes=shapes)


def as_target(target: Target | str | None) -> Target:
    """A target from its text; this host for None."""
    if target is None:
        return Target.host()
    if not isinstance(target, str | Target):
        raise TunefarmError(f"a target is a text or a Target, not {_told(target)}")
    return Target(target) if isinstance(target, str) else target


def _told(value: object) -> str:
    """What a caller gave instead: short values themselves, of others the type."""
    text = repr(value)
    return f"{text} ({type(value).__name__})" if len(text) <= 60 else type(value).__name__


def allow_precision(module: IRModule, precision: str) -> IRModule:
    """The module with leave to compute in ``precision`` in whatever is made of it.

    With "bf16" or "fp16" contractions of weights round their operands to 16 bits where the target
    multiplies those faster; results stay float32, but fp16 ends at 65504 and sums some terms in
    float16. "tf32" lets contractions of float32 keep 16 bits of them by AMX, ten of fraction by
    the tensor cores of GPUs, with the range of float32: kernels are made for the
    target with ``-precision=tf32``. "f32" takes the leave back, "" changes nothing. Raises
    TunefarmError for other words.
    """
    from tunefarm.compiler.transform.lower_precision import allow_precision as allow

    return allow(module, precision)


def extract_tasks(
    module: IRModule, target: Target | str | None = None, precision: str = ""
) -> list[Task]:
    """The distinct fused subgraphs of a model that are worth tuning, with their weights.

    ``precision`` as for ``build``.
    """
    from tunefarm.compiler.extract import extract_tasks as extract

    if not isinstance(module, IRModule):
        raise TunefarmError(
            f"extract_tasks takes a module, as from_onnx reads one, not {_told(module)}"
        )
    return extract(allow_precision(module, precision), as_target(target))


def apply_history_best(
    source: str | os.PathLike[str] | Iterable[Trial],
    *,
    strict: bool = False,
    on_miss: Callable[[Decision], None] | None = None,
    starter: bool = True,
    report_misses: bool = False,
    model_name: str = "",
) -> History:
    """Use the best records of ``source`` in every ``build`` inside the ``with`` block.

    ``source`` is a database URL, a JSON-lines file, records, or ``tracker://host:port``. It never
    breaks a build: a source that cannot be read is one warning, a task without a record gets its
    default config; with ``strict`` both raise HistoryError. Without ``starter`` the records that
    ship with the package are left out.

    With ``report_misses`` builds tell the tracker which tasks have no record (their workloads,
    without weights, and how often the model runs them): it tunes those that are worth most on
    devices that are idle. TunefarmError if the source is no tracker.

    With ``model_name`` builds note in a database, or at a tracker, that the tasks they ask for are
    those of a model that people call so, and the dashboard has a page for it.
    """
    from tunefarm.compiler import dispatch
    from tunefarm.farm import connect
    from tunefarm.missing import check_reportable, reporter
    from tunefarm.noting import noter

    dispatch.register_tracker_source(connect)
    if report_misses:
        check_reportable(source)
    return dispatch.apply_history_best(
        source,
        strict=strict,
        on_miss=on_miss,
        starter=starter,
        report_to=reporter if report_misses else None,
        note_to=partial(noter, name=model_name) if model_name else None,
    )


@overload
def build(
    module: IRModule,
    target: Target | str | None = None,
    *,
    precision: str = "",
    on_host: Collection[str] = (),
) -> Module: ...
@overload
def build(
    module: PrimFunc, target: Target | str | None = None, bounds_checks: Literal[False] = False
) -> KernelFunction | CudaKernel: ...
@overload
def build(
    module: PrimFunc, target: Target | str | None = None, *, bounds_checks: Literal[True]
) -> CheckedFunction: ...
def build(
    module: IRModule | PrimFunc,
    target: Target | str | None = None,
    bounds_checks: bool = False,
    precision: str = "",
    on_host: Collection[str] = (),
) -> Module | KernelFunction | CudaKernel | CheckedFunction:
    """Build a model with the records of the surrounding ``apply_history_best``, or one program.

    ``target`` None is this host. ``precision`` is for models, as in ``allow_precision``; so is
    ``on_host``: nodes and operators of a model for a GPU that run on this host's processor.
    ``bounds_checks`` makes a program, serial and slow, whose call raises BoundsError for an access
    outside of a buffer. Raises BuildError for what has no code.
    """
    if isinstance(module, PrimFunc):
        from tunefarm.compiler.build import build_checked, build_function

        if precision:
            raise TunefarmError("precision is for models; a program has the dtypes it was given")
        if on_host:
            raise TunefarmError("on_host is for models; a program runs where its target says")
        if bounds_checks:
            return build_checked(module, as_target(target))
        return build_function(module, as_target(target))
    if not isinstance(module, IRModule):
        raise TunefarmError(f"build takes a module or a program, not {_told(module)}")
    if bounds_checks:
        raise TunefarmError("bounds_checks is for programs; a model's kernels are made in bounds")
    from tunefarm.compiler.build import build_module

    return build_module(allow_precision(module, precision), as_target(target), on_host)


def lower(program: PrimFunc, simple_mode: bool = True) -> PrimFunc:
    """The plain loops of a scheduled program; ``simple_mode=False`` also verifies each step."""
    from tunefarm.compiler.tir.transform.lower import lower as lower_program

    if not isinstance(program, PrimFunc):
        raise TunefarmError(
            f"lower takes a program, as te.create_prim_func makes one, not {_told(program)}"
        )
    return lower_program(program, checked=None if simple_mode else True)


def load_module(path: str | os.PathLike[str]) -> Module:
    """A module that ``Module.export_library`` wrote; it refuses a CPU that lacks the features, and
    at its first run a GPU of another architecture."""
    from tunefarm.compiler.runtime.module import load_module as load

    return load(Path(path))
