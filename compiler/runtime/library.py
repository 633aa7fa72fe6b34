"""Loaded native code: symbols by name, and the typed ctypes functions of the runtime."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

_POINTER = ctypes.c_void_p
_I64 = ctypes.c_int64


class NativeFunction(Protocol):
    """A ctypes function; the interpreter's lock is released while it runs."""

    def __call__(self, *arguments: Any) -> Any: ...


_SIGNATURES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "tunefarm_worker_main": (None, (_POINTER,)),
    "tunefarm_pool_shutdown": (None, (_POINTER,)),
    "tunefarm_pool_workers": (ctypes.c_int32, (_POINTER,)),
    "tunefarm_pool_spin": (_I64, (_POINTER, _I64)),
    "tunefarm_invoke": (None, (_POINTER, _POINTER, _I64)),
    "tunefarm_time": (_I64, (_POINTER, _POINTER, _I64, _I64, _POINTER, _I64)),
    "tunefarm_flush": (None, (_POINTER, _I64)),
    "tunefarm_ticks": (_I64, ()),
    "tunefarm_float_mode": (ctypes.c_uint32, (ctypes.c_uint32,)),
    "tunefarm_run": (ctypes.c_int32, (_POINTER,) * 5),
}


@dataclass(frozen=True, slots=True, eq=False)
class Library:
    """Addresses by symbol; ``owner`` keeps the code mapped as long as the library lives."""

    addresses: Mapping[str, int]
    owner: object = field(repr=False)
    functions: dict[str, NativeFunction] = field(default_factory=dict, repr=False)

    def __getitem__(self, symbol: str) -> int:
        return self.addresses[symbol]

    def function(self, symbol: str) -> NativeFunction:
        """The runtime's function of that name, as a Python callable."""
        if symbol not in self.functions:
            self.functions[symbol] = _prototype(symbol)(self.addresses[symbol])
        return self.functions[symbol]


@functools.cache
def _prototype(symbol: str) -> Any:
    result, arguments = _SIGNATURES[symbol]
    return ctypes.CFUNCTYPE(result, *arguments)
