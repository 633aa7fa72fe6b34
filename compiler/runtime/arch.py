"""What the runtime's LLVM text needs of an instruction set, in one table.

Each entry is the text of small functions that ``pool.ll`` and ``native.ll`` call:

    void @cpu_pause()                       tell the core that this is a spin loop
    i64  @cpu_ticks()                       a clock that runs at a constant rate
    i64  @cpu_syscall(i64 number, i64 × 6)  a Linux system call, of those in ``calls``
    void @cpu_flush_line(ptr)               evict the cache line from every cache
    void @cpu_fence()                       order flushes before what follows
    i32  @cpu_float_mode()                  how the thread computes with floats; 0: not told
    void @cpu_set_float_mode(i32)           compute so; not with 0

RISC-V has ``i64 @tunefarm_vector_bytes()`` beside them, for the executor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tunefarm.compiler.errors import BuildError


@dataclass(frozen=True, slots=True)
class Arch:
    """An instruction set: Linux call numbers, and the functions' text. ``flush_bits`` of the mode
    of floats make results that are too small for full precision zeros; 0 if there are none."""

    name: str
    calls: Mapping[str, int]
    text: str
    flush_bits: int = 0


# Linux' numbers on AArch64, RISC-V and whatever came after them.
_GENERIC_CALLS = {
    "futex": 98,
    "sched_yield": 124,
    "getcpu": 168,
    "sched_getaffinity": 123,
    "sched_setaffinity": 122,
}

_NO_FLOAT_MODE = """
define internal i32 @cpu_float_mode() #0 {
  ret i32 0
}

define internal void @cpu_set_float_mode(i32 %mode) #0 {
  ret void
}
"""

_X86_64 = Arch(
    name="x86_64",
    flush_bits=1 << 15,  # FTZ of MXCSR
    calls={
        "futex": 202,
        "sched_yield": 24,
        "getcpu": 309,
        "sched_getaffinity": 204,
        "sched_setaffinity": 203,
    },
    text="""
define internal void @cpu_pause() #0 {
  call void asm sideeffect "pause", "~{memory}"()
  ret void
}

define internal i64 @cpu_ticks() #0 {
  %low_high = call { i64, i64 } asm sideeffect "lfence; rdtsc", "={ax},={dx},~{memory}"()
  %low = extractvalue { i64, i64 } %low_high, 0
  %high = extractvalue { i64, i64 } %low_high, 1
  %shifted = shl i64 %high, 32
  %ticks = or i64 %shifted, %low
  ret i64 %ticks
}

define internal i64 @cpu_syscall(i64 %n, i64 %a, i64 %b, i64 %c, i64 %d, i64 %e, i64 %f) #0 {
  %r = call i64 asm sideeffect "syscall",
    "={ax},{ax},{di},{si},{dx},{r10},{r8},{r9},~{rcx},~{r11},~{memory}"(
    i64 %n, i64 %a, i64 %b, i64 %c, i64 %d, i64 %e, i64 %f)
  ret i64 %r
}

define internal void @cpu_flush_line(ptr %line) #0 {
  call void asm sideeffect "clflush ($0)", "r,~{memory}"(ptr %line)
  ret void
}

define internal void @cpu_fence() #0 {
  call void asm sideeffect "mfence; lfence", "~{memory}"()
  ret void
}

define internal i32 @cpu_float_mode() #0 {
  %slot = alloca i32, align 4
  call void @llvm.x86.sse.stmxcsr(ptr %slot)
  %mode = load i32, ptr %slot
  ret i32 %mode
}

define internal void @cpu_set_float_mode(i32 %mode) #0 {
entry:
  %slot = alloca i32, align 4
  %told = icmp ne i32 %mode, 0
  br i1 %told, label %set, label %exit
set:
  store i32 %mode, ptr %slot
  call void @llvm.x86.sse.ldmxcsr(ptr %slot)
  br label %exit
exit:
  ret void
}

declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
""",
)


def _riscv_move(to: int, source: int) -> int:
    """mv to, source"""
    return 0x13 | to << 7 | source << 15


def _machine_code(declaration: str, *words: int, linkage: str = "internal ") -> str:
    """A function that is given as 32-bit instructions, its return among them: LLVM as it comes
    with llvmlite reads no assembly but the host's. ``prologue`` stands where it is entered."""
    listed = ", ".join(f"i32 {word}" for word in words)
    prologue = f"prologue [{len(words)} x i32] [{listed}]"
    return f"define {linkage}{declaration} #0 {prologue} {{\n  unreachable\n}}\n"


_SYSCALL = (
    "i64 @cpu_syscall(i64 %n, i64 %a, i64 %b, i64 %c, i64 %d, i64 %e, i64 %f)"  # in the C ABI
)

_ARM_RET, _ARM_ISB = 0xD65F03C0, 0xD5033FDF
_AARCH64 = Arch(
    name="aarch64",
    calls=_GENERIC_CALLS,
    text="\n".join([
        _machine_code("void @cpu_pause()", _ARM_ISB, _ARM_RET),
        _machine_code("i64 @cpu_ticks()", _ARM_ISB, 0xD53BE040, _ARM_RET),  # mrs x0, cntvct_el0
        _machine_code(
            _SYSCALL,
            0xAA0003E8,  # mov x8, x0
            *(0xAA0003E0 | (register + 1) << 16 | register for register in range(6)),
            0xD4000001,  # svc #0
            _ARM_RET,
        ),
        _machine_code("void @cpu_flush_line(ptr %line)", 0xD50B7E20, _ARM_RET),  # dc civac, x0
        _machine_code("void @cpu_fence()", 0xD5033F9F, _ARM_ISB, _ARM_RET),  # dsb sy
        _NO_FLOAT_MODE,
    ]),
)  # fmt: skip

_RISCV_RET, _A0, _A7 = 0x00008067, 10, 17
_RISCV64 = Arch(
    name="riscv64",
    calls=_GENERIC_CALLS,
    text="\n".join([
        _machine_code("void @cpu_pause()", 0x0100000F, _RISCV_RET),
        _machine_code("i64 @cpu_ticks()", 0xC0102573, _RISCV_RET),  # rdtime a0
        _machine_code(
            _SYSCALL,
            _riscv_move(_A7, _A0),
            *(_riscv_move(register, register + 1) for register in range(_A0, _A0 + 6)),
            0x00000073,  # ecall
            _RISCV_RET,
        ),
        # Flushing takes an extension that few processors have: cold times there are warm ones.
        _machine_code("void @cpu_flush_line(ptr %line)", _RISCV_RET),
        _machine_code("void @cpu_fence()", 0x0330000F, _RISCV_RET),  # fence rw, rw
        _machine_code("i64 @tunefarm_vector_bytes()", 0xC2202573, _RISCV_RET, linkage=""),  # vlenb
        _NO_FLOAT_MODE,
    ]),
)  # fmt: skip

# One thread, no system and no clock: a pool without workers runs its loops by itself.
_WASM32 = Arch(
    name="wasm32",
    calls=dict.fromkeys(_GENERIC_CALLS, 0),
    text="""
define internal void @cpu_pause() #0 {
  ret void
}

define internal i64 @cpu_ticks() #0 {
  ret i64 0
}

define internal i64 @cpu_syscall(i64 %n, i64 %a, i64 %b, i64 %c, i64 %d, i64 %e, i64 %f) #0 {
  ret i64 0
}

define internal void @cpu_flush_line(ptr %line) #0 {
  ret void
}

define internal void @cpu_fence() #0 {
  ret void
}
"""
    + _NO_FLOAT_MODE,
)

_ARCHES = {arch.name: arch for arch in (_X86_64, _AARCH64, _RISCV64, _WASM32)}


def arch_of(triple: str) -> Arch:
    """The table's entry for an LLVM triple; BuildError if the runtime does not know it."""
    name = triple.split("-")[0]
    if name not in _ARCHES:
        raise BuildError(f"no runtime for {name}; it exists for {', '.join(sorted(_ARCHES))}")
    return _ARCHES[name]
