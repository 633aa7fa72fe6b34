"""What the runtime's LLVM text needs of an instruction set, in one table.

Each entry is the text of small functions that ``pool.ll`` and ``native.ll`` call:

    void @cpu_pause()                       tell the core that this is a spin loop
    i64  @cpu_ticks()                       a clock that runs at a constant rate
    i64  @cpu_syscall(i64 number, i64 × 6)  a Linux system call (futex, sched_yield)
    void @cpu_flush_line(ptr)               evict the cache line from every cache
    void @cpu_fence()                       order flushes before what follows
"""

from __future__ import annotations

from dataclasses import dataclass

from tunefarm.compiler.errors import BuildError


@dataclass(frozen=True, slots=True)
class Arch:
    """An instruction set: ELF machine number, Linux call numbers, and inline assembly."""

    name: str
    elf_machine: int
    futex: int
    sched_yield: int
    text: str


_X86_64 = Arch(
    name="x86_64",
    elf_machine=62,
    futex=202,
    sched_yield=24,
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
""",
)

_AARCH64 = Arch(
    name="aarch64",
    elf_machine=183,
    futex=98,
    sched_yield=124,
    text="""
define internal void @cpu_pause() #0 {
  call void asm sideeffect "isb", "~{memory}"()
  ret void
}

define internal i64 @cpu_ticks() #0 {
  %ticks = call i64 asm sideeffect "isb; mrs $0, cntvct_el0", "=r,~{memory}"()
  ret i64 %ticks
}

define internal i64 @cpu_syscall(i64 %n, i64 %a, i64 %b, i64 %c, i64 %d, i64 %e, i64 %f) #0 {
  %r = call i64 asm sideeffect "svc #0",
    "={x0},{x8},{x0},{x1},{x2},{x3},{x4},{x5},~{memory}"(
    i64 %n, i64 %a, i64 %b, i64 %c, i64 %d, i64 %e, i64 %f)
  ret i64 %r
}

define internal void @cpu_flush_line(ptr %line) #0 {
  call void asm sideeffect "dc civac, $0", "r,~{memory}"(ptr %line)
  ret void
}

define internal void @cpu_fence() #0 {
  call void asm sideeffect "dsb sy; isb", "~{memory}"()
  ret void
}
""",
)

_ARCHES = {arch.name: arch for arch in (_X86_64, _AARCH64)}


def arch_of(triple: str) -> Arch:
    """The table's entry for an LLVM triple; BuildError if the runtime does not know it."""
    name = triple.split("-")[0]
    if name not in _ARCHES:
        raise BuildError(f"no runtime for {name}; it exists for {', '.join(sorted(_ARCHES))}")
    return _ARCHES[name]
