"""Which passes run, and who watches them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass, field, replace
from typing import Protocol

from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.ir import AttrValue, IRModule
from tunefarm.compiler.target import Target

Transform = Callable[[IRModule, Target], IRModule]


@dataclass(frozen=True, slots=True)
class Pass:
    """A named step of ``optimize``; it runs from optimisation level ``level`` on."""

    name: str
    run: Transform
    level: int = 1


class Instrument(Protocol):
    """Sees the module before and after each pass."""

    def before(self, name: str, module: IRModule) -> None: ...

    def after(self, name: str, module: IRModule, seconds: float) -> None: ...


@dataclass(frozen=True)
class PassContext:
    """Options of the passes, in force inside ``with PassContext(…):``.

    A pass runs if it is required, or if its level is at most ``opt_level`` (0 to 3) and it is not
    disabled. ``config`` holds options of single passes: ``{"fuse_ops.max_nodes": 16}``. Raises
    TunefarmError if a level or names are something else, ``optimize`` for names without a pass.
    """

    opt_level: int = 3
    required_pass: frozenset[str] | tuple[str, ...] = ()
    disabled_pass: frozenset[str] | tuple[str, ...] = ()
    instruments: tuple[Instrument, ...] = ()
    config: Mapping[str, AttrValue] = field(default_factory=dict)
    _tokens: list[Token[PassContext | None]] = field(
        default_factory=list, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        if not isinstance(self.opt_level, int):
            raise TunefarmError(f"opt_level is {self.opt_level!r}, expected a whole number, 0 to 3")
        for option in ("required_pass", "disabled_pass"):
            if isinstance(names := getattr(self, option), str):
                raise TunefarmError(f"{option} is {names!r}, expected a tuple: ({names!r},)")

    @staticmethod
    def current() -> PassContext:
        """The context in force; the defaults outside any."""
        return _CURRENT.get() or PassContext()

    def __enter__(self) -> PassContext:
        self._tokens.append(_CURRENT.set(self))
        return self

    def __exit__(self, *error: object) -> None:
        _CURRENT.reset(self._tokens.pop())

    def watched_by(self, *instruments: Instrument) -> PassContext:
        """This context with further instruments."""
        return replace(self, instruments=(*self.instruments, *instruments), _tokens=[])

    def enabled(self, step: Pass) -> bool:
        """Whether a pass runs: it is required, or of this level and not disabled."""
        if step.name in self.required_pass:
            return True
        return step.level <= self.opt_level and step.name not in self.disabled_pass

    def run(self, step: Pass, module: IRModule, target: Target) -> IRModule:
        """The module after the pass, or the same module if the pass does not run."""
        if not self.enabled(step):
            return module
        for instrument in self.instruments:
            instrument.before(step.name, module)
        started = time.perf_counter()
        module = step.run(module, target)
        seconds = time.perf_counter() - started
        for instrument in self.instruments:
            instrument.after(step.name, module, seconds)
        return module

    def check_names(self, known: frozenset[str]) -> None:
        """Raise TunefarmError if a required or disabled pass does not exist."""
        unknown = sorted((set(self.required_pass) | set(self.disabled_pass)) - known)
        if unknown:
            raise TunefarmError(
                f"there is no pass {unknown[0]!r}; passes: {', '.join(sorted(known))}"
            )


_CURRENT: ContextVar[PassContext | None] = ContextVar("pass_context", default=None)


def option(name: str, default: int) -> int:
    """An integer option of a pass in the context in force; TunefarmError if it is not one."""
    value = PassContext.current().config.get(name, default)
    if not isinstance(value, int):
        raise TunefarmError(f"the pass option {name} is {value!r}, and must be a whole number")
    return value
