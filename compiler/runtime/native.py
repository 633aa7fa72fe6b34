"""The native part of the runtime: ``pool.ll`` and ``native.ll``, completed for an instruction set.

void tunefarm_parallel(pool, body, closure, n, scratch, stride, seats)
                                                   fork-join loop, called by kernels
void tunefarm_worker_main(pool)                    what a host thread runs
void tunefarm_pool_shutdown(pool)
i32  tunefarm_pool_workers(pool)
i64  tunefarm_pool_spin(pool, ticks)
void tunefarm_invoke(function, arguments, count)   call a kernel with pointers from an array
i64  tunefarm_time(function, arguments, count, number, ranges, range_count)
void tunefarm_flush(ranges, count)
i64  tunefarm_ticks()
i32  tunefarm_float_mode(mode)                     set how the thread computes with floats, unless 0
ptr  tunefarm_memcpy | memmove | memset
"""

from __future__ import annotations

import functools
from importlib.resources import files

from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.processors import RISCV64
from tunefarm.compiler.runtime.arch import Arch, arch_of
from tunefarm.compiler.target import Target

POOL_VERSION = 4  # layout of the pool's memory and the ABI above
MAX_THREADS = 256
POOL_ALIGNMENT = 128
POOL_BYTES = 1024 + 128 * MAX_THREADS
PATIENCE = 24  # pauses before a thread looks at what others have left: 0.6 µs of a Zen 5, whose
# cores hear of each other after 0.05 to 0.26 µs

# ``tunefarm_invoke`` passes the next larger number of pointers: a callee ignores what it did not
# ask for, since the caller removes the arguments in both C calling conventions served here.
_ARGUMENT_COUNTS = (8, 16, 32, 64, 128)
MAX_ARGUMENTS = _ARGUMENT_COUNTS[-1]

FLOAT_MODE = "tunefarm_float_mode"
EXPORTS = (
    "tunefarm_parallel",
    "tunefarm_worker_main",
    "tunefarm_pool_shutdown",
    "tunefarm_pool_workers",
    "tunefarm_pool_spin",
    "tunefarm_invoke",
    "tunefarm_time",
    "tunefarm_flush",
    "tunefarm_ticks",
    FLOAT_MODE,
)


def offered(target: Target) -> tuple[str, ...]:
    """The symbols of the runtime that other code may call: its exports, and what executors need."""
    lengths = ("tunefarm_vector_bytes",) if target.isa is RISCV64 else ()
    return (*EXPORTS, "tunefarm_memcpy", *lengths)


def flush_bits(target: Target) -> int:
    """What a run of a model adds to the mode of floats: results too small for full precision, those
    of float32 below 2^-126, become zeros. Nothing where targets are strict, or processors not known
    to be slow with such numbers."""
    return 0 if target.strict else arch_of(target.isa.triple).flush_bits


def padded_argument_count(count: int) -> int:
    """The slots that an argument array needs for ``count`` pointers; BuildError past the limit."""
    for size in _ARGUMENT_COUNTS:
        if count <= size:
            return size
    raise BuildError(f"a function takes {count} pointers; at most {MAX_ARGUMENTS} can be passed")


@functools.lru_cache(maxsize=8)
def native_object(target: Target) -> bytes:
    """The object code of the runtime for a target."""
    from tunefarm.compiler.codegen.llvm_compile import compile_llvm

    return compile_llvm(native_text(target.isa.triple), target)


@functools.cache
def native_text(triple: str) -> str:
    """The runtime as LLVM text."""
    arch = arch_of(triple)
    parts = [
        arch.text,
        _complete(_source("pool.ll"), arch),
        _source("native.ll"),
        _invoke_text(),
        'attributes #0 = { nounwind "no-builtins" }',
    ]
    return "\n".join(parts) + "\n"


def _source(name: str) -> str:
    return files("tunefarm.compiler.runtime").joinpath(name).read_text("utf-8")


def _complete(text: str, arch: Arch) -> str:
    values = {**arch.calls, "max_parts": MAX_THREADS, "patience": PATIENCE}
    for name, value in values.items():
        text = text.replace("{" + name + "}", str(value))
    return text


def _invoke_text() -> str:
    """``switch`` on the padded count; each case loads its pointers and calls."""
    cases = " ".join(f"i64 {n}, label %take{n}" for n in _ARGUMENT_COUNTS)
    lines = [
        "define void @tunefarm_invoke(ptr %function, ptr %arguments, i64 %count) #0 {",
        f"  switch i64 %count, label %refuse [ {cases} ]",
    ]
    for n in _ARGUMENT_COUNTS:
        lines.append(f"take{n}:")
        for i in range(n):
            lines.append(f"  %p{n}.{i} = getelementptr ptr, ptr %arguments, i64 {i}")
            lines.append(f"  %a{n}.{i} = load ptr, ptr %p{n}.{i}")
        passed = ", ".join(f"ptr %a{n}.{i}" for i in range(n))
        lines += [f"  call void %function({passed})", "  ret void"]
    return "\n".join([*lines, "refuse:", "  ret void", "}", ""])
