"""Plug-ins: operators, sketches, ONNX converters and targets that installed packages bring along.

    group                an entry point names                      and is loaded
    tunefarm.operators   an ``Op``, or several                     at the first unknown operator
    tunefarm.sketches    a ``Sketch``, or several                  at the first space
    tunefarm.onnx        converters by operator; named as the      at the first operator of
                         domain                                    the domain
    tunefarm.targets     a ``TargetPlugin``; named as the kind     when a device is opened

A package's operators and sketches are loaded together or, if one of them is broken, not at all,
after one warning. Its version is that of the package with a hash of its sources: what is called
``toy-ops==0.1+1f2e3d4c`` is the same code on every machine, and a task is measured where that very
code is.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tunefarm.compiler.errors import PluginError, PluginMismatch, TunefarmError

if TYPE_CHECKING:
    from tunefarm.compiler.ops.base import Op
    from tunefarm.compiler.space.config import SketchSpace
    from tunefarm.compiler.space.registry import Sketch

P = ParamSpec("P")
T = TypeVar("T")

OPERATORS, SKETCHES = "tunefarm.operators", "tunefarm.sketches"
CONVERTERS, TARGETS = "tunefarm.onnx", "tunefarm.targets"
GROUPS = (OPERATORS, SKETCHES, CONVERTERS, TARGETS)
_SOURCES = frozenset({".py", ".so", ".pyd"})
_OWN_PACKAGE = "tunefarm"
_TRACEBACK = "the log (--verbose) has the traceback"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plugin:
    """An installed package with entry points of ``GROUPS``; ``digest`` is of its sources."""

    package: str
    release: str
    digest: str
    entries: tuple[EntryPoint, ...]

    def __str__(self) -> str:
        """``toy-ops==0.1+1f2e3d4c``: equal texts are equal code."""
        return f"{self.package}=={self.release}+{self.digest}"

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"plug-in {self.package} {self.release}"


@functools.cache
def installed() -> tuple[Plugin, ...]:
    """Every plug-in that is installed, by the name of its package; loads none of them."""
    found: dict[str, list[EntryPoint]] = {}
    known = entry_points()
    for entry in (entry for group in GROUPS for entry in known.select(group=group)):
        if entry.dist is not None and _normal(entry.dist.name) != _OWN_PACKAGE:
            found.setdefault(_normal(entry.dist.name), []).append(entry)
    return tuple(
        Plugin(package, _release(entries[0]), _digest(entries), tuple(entries))
        for package, entries in sorted(found.items())
    )


def _normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _release(entry: EntryPoint) -> str:
    assert entry.dist is not None
    return entry.dist.version


# --- what a package's code is ------------------------------------------------------------------


def _digest(entries: Iterable[EntryPoint]) -> str:
    """8 hexadecimal digits over the sources of the packages that the entry points lie in."""
    digest = hashlib.sha256()
    for place in sorted({place for entry in entries if (place := _place(entry.module))}):
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.suffix in _SOURCES and path.is_file():
                name = path.relative_to(place.parent).as_posix()
                digest.update(b"\0%b\0" % name.encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def _place(module: str) -> Path | None:
    """The file of a module, or the folder of the outermost package around it that is more than a
    namespace. Nothing is imported; None if there is none."""
    name, places = "", None
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
        specs = (find(name, places) for find in finders if find is not None)
        spec = next(filter(None, specs), None)
        if spec is None:
            return None
        if spec.has_location and spec.origin is not None:
            path = Path(spec.origin)
            return path.parent if spec.submodule_search_locations is not None else path
        places = spec.submodule_search_locations
    return None


# --- loading -----------------------------------------------------------------------------------

_lock = threading.RLock()
_loaded: dict[str, Plugin] = {}
_broken: dict[str, str] = {}
_operators: dict[str, str] = {}
"""The package of each operator of a plug-in."""
_is_begun = _is_loaded = False


def loaded() -> Mapping[str, Plugin]:
    """The plug-ins that can be used, by package, their operators and sketches in the tables; loads
    them at the first call."""
    global _is_begun, _is_loaded
    if not _is_loaded:
        with _lock:
            if not _is_begun:  # else a plug-in that is being imported asks for an operator
                _is_begun = True
                for plugin in installed():
                    _load(plugin)
                _is_loaded = True
    return _loaded


def broken() -> Mapping[str, str]:
    """Why those packages that cannot be used cannot, in one sentence each."""
    loaded()
    return _broken


def package_of_operator(name: str) -> str:
    """The package that brought an operator; empty for those of tunefarm itself."""
    return _operators.get(name, "")


def package_of_kind(kind: str) -> str:
    """The package that serves a target kind; empty for those of tunefarm itself."""
    for plugin in installed():
        if any(entry.group == TARGETS and entry.name == kind for entry in plugin.entries):
            return plugin.package
    return ""


def _load(plugin: Plugin) -> None:
    """Put a package's operators and sketches into the tables; if it cannot be done, say so once."""
    from tunefarm.compiler.ops.base import Op
    from tunefarm.compiler.space.registry import Sketch

    try:
        ops = _things(plugin, OPERATORS, Op)
        sketches = _things(plugin, SKETCHES, Sketch)
        _check_names(plugin, ops, sketches)
    except PluginError as error:
        _broken[plugin.package] = str(error)
        _log.warning("%s; the package is left out", error)
        _log.info("what it failed with", exc_info=error.__cause__)
        return
    for op in ops:
        _add_operator(plugin, op)
    for sketch in sketches:
        _add_sketch(plugin, sketch)
    _loaded[plugin.package] = plugin


def _things(plugin: Plugin, group: str, kind: type[T]) -> list[T]:
    """What the package's entry points of a group name; PluginError if one names something else."""
    found: list[T] = []
    for entry in plugin.entries:
        if entry.group != group:
            continue
        thing = load_entry(entry)
        several = list(thing) if isinstance(thing, Iterable) else [thing]
        wrong = next((one for one in several if not isinstance(one, kind)), None)
        if wrong is not None:
            raise PluginError(
                f"{_where(entry)} names a {type(wrong).__name__}, expected a "
                f"{kind.__name__} or several of them"
            )
        found += several
    return found


def load_entry(entry: EntryPoint) -> Any:
    """The object that an entry point names; PluginError, in one sentence, if there is none."""
    try:
        return entry.load()
    except (Exception, SystemExit) as error:
        raise PluginError(f"{_where(entry)} cannot be loaded: {_told(error)}") from error


def _where(entry: EntryPoint) -> str:
    package = f"{_normal(entry.dist.name)} {entry.dist.version}" if entry.dist else "of no package"
    return f"plug-in {package}: entry point {entry.name} of {entry.group} ({entry.value})"


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _check_names(plugin: Plugin, ops: Iterable[Op], sketches: Iterable[Sketch]) -> None:
    from tunefarm.compiler.ops.base import OPS
    from tunefarm.compiler.space.registry import SKETCHES as TABLE

    table = {sketch.name: sketch for sketch in TABLE}
    for what, new, known in (("operator", ops, OPS), ("sketch", sketches, table)):
        for one in new:
            if known.get(one.name, one) is not one:
                raise PluginError(f"{plugin.label}: the {what} {one.name!r} is there already")


def _add_operator(plugin: Plugin, op: Op) -> None:
    from tunefarm.compiler.ops.base import OPS

    what = f"operator {op.name!r} of {plugin.label}"
    _operators[op.name] = plugin.package
    OPS[op.name] = replace(
        op,
        infer=_guarded(what, op.infer),
        compute=_guarded(what, op.compute),
        reference=_guarded(what, op.reference),
        flops=None if op.flops is None else _guarded(what, op.flops),
    )


def _add_sketch(plugin: Plugin, sketch: Sketch) -> None:
    from tunefarm.compiler.space.registry import SKETCHES, register_sketch

    what = f"sketch {sketch.name!r} of {plugin.label}"

    def space(*args: Any) -> SketchSpace | None:
        found = sketch.space(*args)
        if found is None:
            return None
        constraints = (replace(c, holds=_guarded(what, c.holds)) for c in found.constraints)
        return replace(
            found,
            constraints=tuple(constraints),
            nest=_guarded(what, found.nest),
            plugin=f"{plugin.package}=={plugin.release}",
        )

    SKETCHES[:] = [known for known in SKETCHES if known is not sketch]  # its module registered it
    register_sketch(
        replace(
            sketch,
            space=_guarded(what, space),
            schedule=_guarded(what, sketch.schedule),
            package=plugin.package,
        ),
        sketch.first,
    )


def _guarded(
    what: str, function: Callable[P, T], refusal: type[Exception] = TunefarmError
) -> Callable[P, T]:
    """The function of a plug-in, whose faults come as one sentence that names it; a ``refusal`` is
    no fault."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except (TunefarmError, refusal):
            raise
        except Exception as error:
            _log.info("%s failed", what, exc_info=error)
            raise PluginError(f"{what} failed: {_told(error)}; {_TRACEBACK}") from error

    return call


# --- ONNX --------------------------------------------------------------------------------------


@functools.cache
def converters(domain: str) -> Mapping[str, Callable[[Any], Any]]:
    """What plug-ins convert operators of an ONNX domain with, by the operators' names.

    PluginError if a plug-in's entry point names no such table.
    """
    from tunefarm.compiler.frontend.onnx.node import Unsupported

    found: dict[str, Callable[[Any], Any]] = {}
    for plugin in installed():
        for entry in plugin.entries:
            if entry.group != CONVERTERS or entry.name != domain:
                continue
            table = load_entry(entry)
            if not isinstance(table, Mapping) or not all(map(callable, table.values())):
                raise PluginError(
                    f"{_where(entry)} names a {type(table).__name__}, expected a "
                    "dictionary of converters by the operator's name"
                )
            for name, convert in table.items():
                what = f"the converter of {domain}.{name} of {plugin.label}"
                found.setdefault(str(name), _guarded(what, convert, Unsupported))
    return found


# --- which of them are in use ------------------------------------------------------------------

_active: ContextVar[frozenset[str] | None] = ContextVar("tunefarm_plugins", default=None)


def active() -> frozenset[str] | None:
    """The packages whose sketches spaces hold now; None for all that are loaded."""
    return _active.get()


@contextmanager
def using(wanted: Iterable[str]) -> Iterator[None]:
    """Let spaces hold the sketches of these plug-ins (``package==version``) and of no other.

    PluginMismatch if one of them is not here, or is here in another version.
    """
    names = set()
    for text in wanted:
        package = text.partition("==")[0]
        here = loaded().get(package)
        if here is None or str(here) != text:
            raise PluginMismatch(_mismatch(text, package))
        names.add(package)
    token = _active.set(frozenset(names))
    try:
        yield
    finally:
        _active.reset(token)


def _mismatch(wanted: str, package: str) -> str:
    here = loaded().get(package)
    if here is not None:
        what = f"here is {here}"
    else:
        what = broken().get(package, "it is not installed here")
    return (
        f"plug-in {wanted} is wanted, and {what}; install the same one for clients, tuners and "
        "workers, and start them again"
    )
