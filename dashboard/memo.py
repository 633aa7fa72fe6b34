"""What took a while to read, kept for as long as it stays true."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeVar

Value = TypeVar("Value")
KEPT = 64


@dataclass
class Memo:
    """The last ``KEPT`` values by keys that differ when the value would: they hold a revision."""

    _kept: OrderedDict[Hashable, object] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of the key; two who ask at once may both make it."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]  # type: ignore[return-value]
        return self._keep(key, make())

    def grown(self, key: Hashable, grow: Callable[[Value | None], Value]) -> Value:
        """The value of the key, made of the one that was kept before, if there is one: what is
        kept may have become more, and is never other than it was."""
        with self._lock:
            before = self._kept.get(key)
        return self._keep(key, grow(before))  # type: ignore[arg-type]

    def _keep(self, key: Hashable, made: Value) -> Value:
        with self._lock:
            self._kept[key] = made
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return made
