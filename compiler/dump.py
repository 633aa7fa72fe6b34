"""Every stage of a build as a numbered file in the folder TUNEFARM_DUMP; nothing if it is unset.

    DIR/00-model/00-import.txt           the graph as it came
                 01-infer-types.txt …    after each pass that changed it
                 17-conv-3x3-…/          a fused function: 00-function.txt, 01-program.txt (plain
                                         loops), 02-scheduled.txt, after each phase of lowering
                                         that changed it, the LLVM text, the assembly
                 40-memory-plan.txt      the calls in order, and where their tensors lie
                 41-executor.ll          what calls them

A build takes the next number that is free in DIR. A stage that changed nothing leaves its number
out. Kernels are built anew, not taken from the cache.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tunefarm.compiler import settings
from tunefarm.compiler.runtime.plan import Argument, Copy, ExecutionPlan, KernelCall, Step
from tunefarm.compiler.transform.context import PassContext

if TYPE_CHECKING:
    from tunefarm.compiler.ir import IRModule
    from tunefarm.compiler.tir import PrimFunc
    from tunefarm.compiler.tir.transform.lower import Phase

_NAME_LENGTH = 72


class Stages:
    """The files of one build, or of a part of it; without a folder it is false and writes none."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._number = 0
        self._last = ""

    def __bool__(self) -> bool:
        return self._folder is not None

    def write(self, name: str, text: Callable[[], str], suffix: str = ".txt") -> None:
        """Write the next stage, unless its text is that of the one before.

        Raises SettingError if the folder cannot be written.
        """
        if self._folder is None:
            return
        content = text()
        path = self._folder / f"{self._next(name)}{suffix}"
        if content != self._last:
            with _explained(path):
                path.write_text(content, encoding="utf-8")
        self._last = content

    def inside(self, name: str) -> Stages:
        """The stages of a part, in a folder of their own."""
        if self._folder is None:
            return self
        path = self._folder / self._next(name)
        with _explained(path):
            path.mkdir()
        return Stages(path)

    def passes(self, names: Sequence[str]) -> PassContext:
        """The context in force, watched: the module after ``names[i]`` gets the number i + 1."""
        context = PassContext.current()
        return context.watched_by(_PassWriter(self, names)) if self else context

    def phases(self, names: Sequence[str]) -> Mapping[str, Sequence[Phase]]:
        """What ``lower`` takes as ``extra``, to write the program after each phase."""
        return {f"after:{name}": (self._phase_writer(name),) for name in names if self}

    def _phase_writer(self, name: str) -> Phase:
        def keep(program: PrimFunc) -> PrimFunc:
            self.write(name, program.__str__)
            return program

        return keep

    def _next(self, name: str) -> str:
        self._number += 1
        return f"{self._number - 1:02}-{_readable(name)}"

    def skip_to(self, number: int) -> None:
        """Leave out numbers: those of passes that do not run."""
        self._number = number


class _PassWriter:
    """Writes the module after each pass; a pass has the same number whichever others run."""

    def __init__(self, stages: Stages, names: Sequence[str]) -> None:
        self._stages, self._names = stages, names

    def before(self, name: str, module: IRModule) -> None:
        """Nothing: the pass before has written it."""

    def after(self, name: str, module: IRModule, seconds: float) -> None:
        self._stages.skip_to(1 + self._names.index(name))
        self._stages.write(name, module.__str__)


def begin(name: str) -> Stages:
    """The stages of a new build; SettingError if TUNEFARM_DUMP cannot be written."""
    root = settings.DUMP.get()
    if root is None:
        return Stages(None)
    with _explained(root):
        root.mkdir(parents=True, exist_ok=True)
        number = len(list(root.iterdir()))
        while True:
            folder = root / f"{number:02}-{_readable(name)}"
            try:
                folder.mkdir()
                return Stages(folder)
            except FileExistsError:
                number += 1


def memory_plan_text(plan: ExecutionPlan, peak_bytes: int) -> str:
    """The calls of a plan in order, each with the places of its operands and results."""
    lines = [
        f"arena {plan.arena_bytes} bytes (no plan needs less than {peak_bytes}), "
        f"weights {plan.weight_bytes}"
    ]
    lines += [f"input {i}: {port.name} {port.type}" for i, port in enumerate(plan.inputs)]
    lines += [f"output {i}: {port.name} {port.type}" for i, port in enumerate(plan.outputs)]
    lines += [f"{_called(step)}  # {step.label}" for step in plan.steps]
    return "\n".join(lines) + "\n"


def _called(step: Step) -> str:
    match step:
        case KernelCall(kernel, arguments, _, workspace):
            room = f", workspace arena {workspace.offset}, {workspace.bytes} bytes"
            return f"{kernel}({', '.join(map(_place, arguments))}){room if workspace.bytes else ''}"
        case Copy(source, destination, size):
            return f"copy({_place(source)}, {_place(destination)}, {size} bytes)"


def _place(argument: Argument) -> str:
    at = argument.offset if argument.place in ("arena", "weight") else argument.index
    return f"{argument.place} {at}"


def _readable(name: str) -> str:
    """``conv 3x3 s1 1x56x56x64→64 +relu`` as ``conv-3x3-s1-1x56x56x64-64-relu``."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")[:_NAME_LENGTH] or "build"


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise settings.SettingError(
            f"{settings.DUMP.name}: {path} cannot be written ({error.strerror or error}); "
            "name a folder that can be, or unset the variable"
        ) from None
