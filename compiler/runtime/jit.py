"""Object code → callable code in this process, through LLVM's ORC."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Sequence
from typing import Any

from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.runtime.library import Library
from tunefarm.compiler.runtime.native import EXPORTS, native_object
from tunefarm.compiler.target import Target

_NUMBERS = itertools.count()
_LOCK = threading.Lock()


def load_objects(objects: Sequence[bytes], symbols: Sequence[str], target: Target) -> Library:
    """Link objects with the runtime and return the addresses of ``symbols`` and its exports.

    C functions that an object imports are taken from this process. The code is unmapped when the
    library is garbage. Raises BuildError if a symbol is missing or defined twice.
    """
    from llvmlite import binding

    jit = _jit()
    builder = binding.JITLibraryBuilder().add_current_process()
    for code in (native_object(target), *objects):
        builder.add_object_img(code)
    names = dict.fromkeys([*EXPORTS, *symbols])
    for name in names:
        builder.export_symbol(name)
    with _LOCK:
        try:
            tracker = builder.link(jit, f"tunefarm_{next(_NUMBERS)}")
        except RuntimeError as error:
            raise BuildError(f"the objects do not link: {' '.join(str(error).split())}") from None
    return Library({name: tracker[name] for name in names}, tracker)


@functools.cache
def _jit() -> Any:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.create_lljit_compiler(suppress_errors=True, use_jit_link=True)
