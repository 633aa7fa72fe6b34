"""What a target kind must provide to be measured in the worker's children.

The kinds ``llvm`` and ``cuda`` are built in; others come from the entry point group
``tunefarm.targets``, whose objects are ``TargetPlugin``s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.errors import TargetError, TunefarmError
from tunefarm.compiler.plugins import TARGETS, load_entry
from tunefarm.db.records import Config, ErrorKind
from tunefarm.worker.sandbox import HOST, Policy

if TYPE_CHECKING:
    from tunefarm.compiler.target import Target
    from tunefarm.worker.device import DeviceOptions, OpenDevice

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Built:
    """A candidate's code, and what loading it needs (``metadata``, JSON values).

    ``operations`` and ``traffic_bytes`` are what the scheduled program executes and must at
    least move in one call; 0 when unknown.
    """

    code: bytes
    metadata: Mapping[str, Any] = field(default_factory=dict)
    code_hash: str = ""
    space_fingerprint: str = ""
    operations: float = 0.0
    traffic_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Problem:
    """A workload with values: inputs, the reference outputs, and the error allowed per element.

    ``constant[i]`` tells whether input i is a weight; ``bounds`` are float arrays of the shapes
    of ``outputs``.
    """

    inputs: tuple[Array, ...]
    constant: tuple[bool, ...]
    outputs: tuple[Array, ...]
    bounds: tuple[Array, ...]

    @property
    def output_bytes(self) -> int:
        return sum(output.nbytes for output in self.outputs)


class Loaded(Protocol):
    """A candidate in the runner, ready to be called on its inputs."""

    @property
    def outputs(self) -> Sequence[Array]:
        """The arrays that calls write."""

    def repeat(self, number: int) -> float:
        """Seconds that ``number`` calls took together, by a native clock."""


@runtime_checkable
class Remote(Protocol):
    """What a ``Loaded`` has besides where its outputs lie in the memory of a device: each look at
    ``outputs`` copies them from there."""

    def poison(self) -> None:
        """Fill the outputs with ones bits."""


class CandidateError(TunefarmError):
    """A candidate that failed in the runner, and how: where more is known than that it did.

    After ``RUN_CRASH`` the runner is of no use any more, and is replaced.
    """

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Backend(Protocol):
    """How candidates of one target kind are built, posed and run, each in a child process."""

    def build(self, workload: str, target: str, config: Mapping[str, int | str]) -> Built: ...

    def problem(self, workload: str, seed: int) -> Problem: ...

    def start(self, target: str) -> None:
        """Prepare a runner to load and repeat candidates of the target: after this, and in them,
        it starts no thread, writes no file, and imports nothing but code."""

    def load(self, built: Built, inputs: Sequence[Array], constant: Sequence[bool]) -> Loaded: ...


@runtime_checkable
class Preparing(Protocol):
    """What a ``Backend`` has besides that starts something for its builds."""

    def prepare_builds(self) -> None:
        """Start it, in a builder, before that is confined."""


@runtime_checkable
class Joining(Protocol):
    """What a ``Backend`` has besides that builds candidates of a task faster together."""

    def build_together(
        self, workload: str, target: str, configs: Sequence[Mapping[str, int | str]]
    ) -> list[Built | None]:
        """What ``build`` makes of each config; None for one that is to be built alone, and an
        exception if all are."""


@dataclass(frozen=True, slots=True)
class TargetPlugin:
    """What an entry point of group ``tunefarm.targets`` names.

    ``open_device`` runs in the worker; ``backend`` runs in its children, and is None for devices
    that measure without them. ``checks`` gives, for a target, what its devices are
    checked with: names, workloads and configs. ``require`` raises TargetError, in one sentence, if
    this machine cannot run code of a target; it opens nothing. ``policy`` says what runners may do.
    ``together`` is how many candidates of a task its builders take at a time, if its backend is
    ``Joining``.
    """

    open_device: Callable[[DeviceOptions], OpenDevice]
    backend: Callable[[], Backend] | None = None
    checks: Callable[[str], Sequence[tuple[str, str, Config]]] = lambda _: ()
    require: Callable[[Target], None] = lambda _: None
    policy: Policy = HOST
    together: int = 1


def load_plugin(kind: str) -> TargetPlugin:
    """The plug-in of a target kind; TargetError if there is none."""
    if kind == "llvm":
        from tunefarm.worker.llvm import PLUGIN

        return PLUGIN
    if kind == "cuda":
        from tunefarm.worker.cuda.backend import PLUGIN as CUDA

        return CUDA
    for entry in entry_points(group=TARGETS, name=kind):
        plugin = load_entry(entry)
        if isinstance(plugin, TargetPlugin):
            return plugin
    raise TargetError(f"no plug-in serves devices of kind {kind!r}; install one or use llvm")


def load_backend(kind: str) -> Backend:
    """The backend of a target kind; TargetError if it has none."""
    backend = load_plugin(kind).backend
    if backend is None:
        raise TargetError(f"devices of kind {kind!r} build no code")
    return backend()


def dtype_of(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a name; those of machine learning are registered on demand."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found
