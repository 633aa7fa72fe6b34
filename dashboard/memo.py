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
        made = make()
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return made
