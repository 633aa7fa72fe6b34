"""``time_evaluator``: how long native code takes, timed by a native loop."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.runtime.arrays import address
from tunefarm.compiler.runtime.library import Library
from tunefarm.compiler.runtime.native import padded_argument_count
from tunefarm.compiler.runtime.pool import shared_pool
from tunefarm.compiler.runtime.ticks import ticks_per_second

_GROWTH = 1.618


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call, once for each repeat; a repeat is the mean of ``number`` calls."""

    seconds: tuple[float, ...]
    number: int

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.seconds)

    @property
    def best(self) -> float:
        return min(self.seconds)

    def __str__(self) -> str:
        median, best = self.median * 1e6, self.best * 1e6
        repeats = len(self.seconds)
        return f"median {median:.3f} µs, best {best:.3f} µs ({repeats} × {self.number} calls)"


@dataclass(frozen=True, slots=True, eq=False)
class BoundCall:
    """A native function with its pointers in place, ready to be called many times.

    ``flushed`` are (address, bytes) ranges that ``seconds`` evicts from every cache before each
    call (the protocol "activations warm, weights cold"). ``keep`` holds the arrays alive, and
    ``invoke`` makes one call: its arguments are looked up once, which halves what a call costs.
    """

    library: Library
    function: int
    pointers: NDArray[np.uintp]
    threads: int
    flushed: NDArray[np.uintp]
    keep: tuple[Any, ...]
    invoke: Callable[[], object]

    def __call__(self) -> None:
        """One call."""
        self.invoke()

    def seconds(self, number: int) -> float:
        """Seconds of ``number`` calls together by the native clock; flushing is not counted."""
        pool = shared_pool(self.library, self.threads)
        with pool.awake() if pool else contextlib.nullcontext():
            ticks = self.library.function("tunefarm_time")(
                self.function,
                address(self.pointers),
                len(self.pointers),
                number,
                address(self.flushed),
                len(self.flushed),
            )
        return float(ticks / ticks_per_second(self.library))


def bind_call(
    library: Library,
    function: int,
    pointers: Sequence[int],
    threads: int,
    flushed: Sequence[tuple[int, int]] = (),
    keep: Sequence[Any] = (),
) -> BoundCall:
    """Put a call's pointers in place; BuildError if there are too many."""
    padded = np.zeros(padded_argument_count(len(pointers)), np.uintp)
    padded[: len(pointers)] = pointers
    ranges = np.array(flushed, np.uintp).reshape(len(flushed), 2)
    native = library.function("tunefarm_invoke")
    invoke = partial(native, function, address(padded), len(padded))
    return BoundCall(library, function, padded, threads, ranges, tuple(keep), invoke)


def check_count(name: str, value: object) -> None:
    """TunefarmError unless the value of an argument is a whole number from 1."""
    if not isinstance(value, int | np.integer) or value < 1:
        raise TunefarmError(f"{name} is {value!r}, expected a whole number from 1")


def evaluate(
    seconds: Callable[[int], float], number: int = 1, repeat: int = 3, min_repeat_ms: float = 0
) -> Timing:
    """Time ``repeat`` repeats of ``number`` calls; ``seconds(n)`` makes n calls and times them.

    The first call is discarded. While a repeat is shorter than ``min_repeat_ms``, ``number``
    grows to what the target asks for and by at least 1.618, and the short repeat is discarded.
    TunefarmError where ``repeat`` or ``number`` is below 1.
    """
    check_count("repeat", repeat)
    check_count("number", number)
    seconds(1)
    target = min_repeat_ms * 1e-3
    results: list[float] = []
    while len(results) < repeat:
        spent = seconds(number)
        if spent >= target:
            results.append(spent / number)
            continue
        wanted = int(target * number / spent) + 1 if spent > 0 else 0
        number = max(wanted, int(number * _GROWTH) + 1)
        results.clear()
    return Timing(tuple(results), number)
