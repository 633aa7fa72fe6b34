"""Object code → callable code in this process, through LLVM's ORC."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.runtime.library import Library
from tunefarm.compiler.runtime.native import native_object, offered
from tunefarm.compiler.target import Target

_NUMBERS = itertools.count()
_LOCK = threading.Lock()


def load_objects(objects: Sequence[bytes], symbols: Sequence[str], target: Target) -> Library:
    """Link objects with the runtime and return the addresses of ``symbols`` and of its own.

    C functions that an object imports are taken from this process. The code is unmapped when the
    library is garbage. Raises BuildError if a symbol is missing or defined twice.
    """
    runtime = _runtime(target)
    if not objects:
        return runtime
    called = {n: a for n, a in runtime.addresses.items() if any(n.encode() in o for o in objects)}
    code = _link(objects, symbols, called)
    addresses = {name: code[name] for name in symbols}
    return Library({**runtime.addresses, **addresses}, (runtime, code))


@functools.lru_cache(maxsize=8)
def _runtime(target: Target) -> Library:
    """The runtime's code for a target, which all that is loaded shares."""
    symbols = offered(target)
    code = _link([native_object(target)], symbols, {})
    return Library({name: code[name] for name in symbols}, code)


def _link(objects: Sequence[bytes], symbols: Sequence[str], known: Mapping[str, int]) -> Any:
    """Code in this process that exports ``symbols``, and may import those ``known``."""
    from llvmlite import binding

    jit = _jit()
    builder = binding.JITLibraryBuilder().add_current_process()
    for code in objects:
        builder.add_object_img(code)
    for name, address in known.items():
        builder.import_symbol(name, address)
    for name in symbols:
        builder.export_symbol(name)
    with _LOCK:
        try:
            return builder.link(jit, f"tunefarm_{next(_NUMBERS)}")
        except RuntimeError as error:
            raise BuildError(f"the objects do not link: {' '.join(str(error).split())}") from None


@functools.cache
def _jit() -> Any:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.create_lljit_compiler(suppress_errors=True, use_jit_link=True)
