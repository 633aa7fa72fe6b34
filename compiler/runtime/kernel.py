"""One kernel as a Python function: what a worker times, and what a hand-written program becomes.

add = load_kernel([code], "add", [a, b, c], outputs=1, target=target)
(result,) = add(x, y)
print(add.time_evaluator(x, y, min_repeat_ms=20))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from tunefarm.compiler.errors import BuildError, ShapeError
from tunefarm.compiler.ir import TensorType
from tunefarm.compiler.runtime.arrays import (
    Array,
    address,
    as_input,
    check_output,
    empty_apart,
    lasting_bytes,
)
from tunefarm.compiler.runtime.cpu import check_features, check_machine, required_features
from tunefarm.compiler.runtime.jit import load_objects
from tunefarm.compiler.runtime.library import Library
from tunefarm.compiler.runtime.pool import pool_address
from tunefarm.compiler.runtime.timing import BoundCall, Timing, bind_call, evaluate
from tunefarm.compiler.target import Target


@dataclass(frozen=True, slots=True, eq=False)
class KernelFunction:
    """``void name(pool, workspace, inputs…, outputs…)``, called with arrays.

    ``types`` are the parameters', the last ``outputs`` of them written. ``threads`` run its
    parallel loops. A call makes fresh outputs; ``bind`` takes given ones. ``text`` is the LLVM
    text that the code was made of, if known; ``c_source`` makes its C text.
    """

    library: Library
    name: str
    types: tuple[TensorType, ...]
    outputs: int
    workspace_bytes: int = 0
    threads: int = 1
    target: Target | None = None
    text: str = field(default="", repr=False)
    c_source: Callable[[], str] | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        """One line: name, types, target."""
        types = [str(t) for t in self.types]
        count = len(types) - self.outputs
        ends = f"{', '.join(types[:count])} → {', '.join(types[count:])}"
        return f"KernelFunction({self.name}: {ends}, threads={self.threads}, target={self.target})"

    def __call__(self, *inputs: object) -> tuple[Array, ...]:
        """The outputs, fresh arrays. Raises ShapeError if the inputs do not fit."""
        results = self._empty_outputs([a for a in inputs if isinstance(a, np.ndarray)])
        self.bind(inputs, results)()
        return results

    def bind(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Array] | None = None,
        cold: Sequence[int] = (),
    ) -> BoundCall:
        """The call on these arrays. ``cold`` are inputs to flush before each timed call."""
        count = len(self.types) - self.outputs
        if len(inputs) != count:
            raise ShapeError(f"{self.name} takes {count} inputs, got {len(inputs)}")
        arrays = [
            as_input(value, tensor, f"input {i} of {self.name}")
            for i, (value, tensor) in enumerate(zip(inputs, self.types[:count], strict=True))
        ]
        results = self._empty_outputs(arrays) if outputs is None else outputs
        if len(results) != self.outputs:
            raise ShapeError(f"{self.name} has {self.outputs} outputs, got {len(results)}")
        for i, (array, tensor) in enumerate(zip(results, self.types[count:], strict=True)):
            arrays.append(check_output(array, tensor, f"output {i} of {self.name}"))
        workspace = lasting_bytes(self.workspace_bytes)
        pool = pool_address(self.library, self.threads)
        pointers = [pool, address(workspace), *map(address, arrays)]
        flushed = [(address(arrays[i]), arrays[i].nbytes) for i in cold]
        keep = (*arrays, workspace)
        return bind_call(
            self.library, self.library[self.name], pointers, self.threads, flushed, keep
        )

    def time_evaluator(
        self,
        *inputs: object,
        number: int = 1,
        repeat: int = 3,
        min_repeat_ms: float = 0,
        cold: Sequence[int] = (),
    ) -> Timing:
        """Seconds a call; ``cold`` lists the inputs that are evicted before each call."""
        call = self.bind(inputs, cold=cold)
        return evaluate(call.seconds, number, repeat, min_repeat_ms)

    def get_source(self, kind: Literal["llvm", "asm", "c"] = "llvm") -> str:
        """The LLVM text, assembly or C; BuildError if the kernel was loaded without it."""
        from tunefarm.compiler.codegen.llvm_compile import assembly

        if kind not in ("llvm", "asm", "c"):
            raise BuildError(f"a kernel has no {kind!r} source; it has llvm, asm and c")
        if kind == "c" and self.c_source is not None:
            return self.c_source()
        if kind == "c" or not self.text or self.target is None:
            raise BuildError(
                f"{self.name} was loaded without its {kind} source; build its program to see it"
            )
        return self.text if kind == "llvm" else assembly(self.text, self.target)

    def _empty_outputs(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        largest = max(inputs, key=lambda a: a.nbytes, default=None)
        return tuple(empty_apart(t, largest) for t in self.types[len(self.types) - self.outputs :])


def load_kernel(
    objects: Sequence[bytes],
    name: str,
    types: Sequence[TensorType],
    outputs: int = 1,
    *,
    target: Target,
    workspace_bytes: int = 0,
    threads: int | None = None,
    text: str = "",
    c_source: Callable[[], str] | None = None,
) -> KernelFunction:
    """Load object code and take the kernel ``name`` from it.

    ``threads`` is the target's number of cores unless given; ``text`` and ``c_source`` are for
    ``get_source``. Raises TargetError if this machine lacks the target's instructions, BuildError
    if the objects do not link.
    """
    from tunefarm.compiler.codegen.llvm_compile import features

    check_machine(target.isa.name, f"code for {target}")
    check_features(required_features(target, features(target)), f"code for {target}")
    library = load_objects(objects, [name], target)
    count = target.num_cores if threads is None else threads
    return KernelFunction(
        library, name, tuple(types), outputs, workspace_bytes, count, target, text, c_source
    )
