"""Ctrl-C and SIGTERM: remembered while a job is watched, ignored while things are put away."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import ParamSpec, TypeVar

_AGAIN_S = 0.05
_P = ParamSpec("_P")
_T = TypeVar("_T")


def interrupted_here(said: str) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """A function whose KeyboardInterrupt begins at its call: where in it, or in a library below, a
    Ctrl-C came tells its caller nothing. What it ``said`` is what has become of the
    work, unless the interrupt says it."""

    def wrap(function: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(function)
        def call(*given: _P.args, **named: _P.kwargs) -> _T:
            try:
                with repeating_lost_interrupts():
                    return function(*given, **named)
            except KeyboardInterrupt as interrupt:
                raise KeyboardInterrupt(*(interrupt.args or (said,))) from None

        return call

    return wrap


@contextlib.contextmanager
def remembering_interrupts() -> Iterator[list[int]]:
    """Interrupts so far: one raised inside a callback is printed and lost, but remembered here."""
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def repeating_lost_interrupts() -> Iterator[None]:
    """Send an interrupt again that was raised where C could only print and forget it; they come to
    the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hook(lost: sys.UnraisableHookArgs, /) -> None:
        if lost.exc_type is KeyboardInterrupt:
            main = threading.main_thread().ident or 0  # whose sleep a signal elsewhere cannot end
            threading.Timer(_AGAIN_S, signal.pthread_kill, [main, signal.SIGINT]).start()
        else:
            before(lost)

    before = sys.unraisablehook
    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def ignoring_interrupts() -> Iterator[None]:
    """Finish what is begun: a second Ctrl-C must leave no process and no job behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def terminating_as_interrupt() -> Iterator[list[int]]:
    """Treat SIGTERM as Ctrl-C, so that it stops as cleanly; the list tells whether one came.

    A shell without job control starts what it leaves in the background with Ctrl-C ignored: that
    stays so, and SIGTERM ends it nevertheless.
    """
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        if signal.getsignal(signal.SIGINT) is _unheeded:
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored:
        signal.signal(signal.SIGINT, _unheeded)
    before = signal.signal(signal.SIGTERM, note)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGTERM, before)
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _unheeded(number: int, frame: FrameType | None) -> None:
    """Ignores a signal, but not for good as SIG_IGN, which children inherit."""
