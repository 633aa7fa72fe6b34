"""Small native functions of the measurement itself, written as LLVM text and linked in process."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

CLOCK_MONOTONIC = 1
_NUMBERS = count()


@cache
def target_machine(mcpu: str) -> Any:
    """LLVM's code generator for this machine, tuned for ``mcpu``."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple()
    return target.create_target_machine(
        cpu=mcpu, opt=2, reloc="pic", codemodel="default", jit=False
    )


def assemble(text: str, mcpu: str) -> bytes:
    """The object code of LLVM text, as it stands (no optimiser)."""
    from llvmlite import binding

    machine = target_machine(mcpu)
    module = binding.parse_assembly(text)
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    return bytes(machine.emit_object(module))


class Linked:
    """Object code in memory. Its address is valid as long as this lives."""

    def __init__(self, code: bytes, symbol: str) -> None:
        from llvmlite import binding

        builder = binding.JITLibraryBuilder().add_object_img(code).export_symbol(symbol)
        self._tracker = builder.link(_jit(), f"measurement{next(_NUMBERS)}")
        self.address = int(self._tracker[symbol])


@cache
def _jit() -> Any:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.create_lljit_compiler(use_jit_link=True)


@cache
def clock_address() -> int:
    """The address of the C library's ``clock_gettime``."""
    address = ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value
    assert address is not None
    return address


@dataclass(frozen=True, slots=True)
class Native:
    """A linked function as ctypes calls it; the interpreter's lock is free meanwhile."""

    linked: Linked
    function: Any


@cache
def timing_loop(arity: int) -> Native:
    """``loop(kernel, pool, workspace, rows, row_count, number, first, clock) -> nanoseconds``.

    Calls ``kernel(pool, workspace, p0 … p[arity-1])`` ``number`` times, call i with the pointers
    of row ``(first + i) % row_count`` of the table ``rows``.
    """
    linked = Linked(assemble(timing_loop_text(arity), ""), "tunefarm_time")
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    prototype = ctypes.CFUNCTYPE(
        integer, pointer, pointer, pointer, pointer, integer, integer, integer, pointer
    )
    return Native(linked, prototype(linked.address))


NOW = f"""
define internal i64 @now(ptr %clock) {{
  %t = alloca [2 x i64]
  %told = call i32 %clock(i32 {CLOCK_MONOTONIC}, ptr %t)
  %s = load i64, ptr %t
  %p = getelementptr i64, ptr %t, i64 1
  %n = load i64, ptr %p
  %billions = mul i64 %s, 1000000000
  %all = add i64 %billions, %n
  ret i64 %all
}}"""
"""A function of a module's own: nanoseconds of the clock, by ``clock_gettime``."""


def timing_loop_text(arity: int) -> str:
    loads = "\n".join(
        f"  %e{i} = getelementptr ptr, ptr %row, i64 {i}\n  %p{i} = load ptr, ptr %e{i}"
        for i in range(arity)
    )
    arguments = "".join(f", ptr %p{i}" for i in range(arity))
    return f"""{NOW}
define i64 @tunefarm_time(ptr %kernel, ptr %pool, ptr %workspace, ptr %rows, i64 %row_count,
                          i64 %number, i64 %first, ptr %clock) {{
entry:
  %begin = call i64 @now(ptr %clock)
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %at = add i64 %first, %i
  %turn = urem i64 %at, %row_count
  %offset = mul i64 %turn, {arity}
  %row = getelementptr ptr, ptr %rows, i64 %offset
{loads}
  call void %kernel(ptr %pool, ptr %workspace{arguments})
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %number
  br i1 %more, label %loop, label %done
done:
  %end = call i64 @now(ptr %clock)
  %elapsed = sub i64 %end, %begin
  ret i64 %elapsed
}}
"""
