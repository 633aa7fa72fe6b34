"""Runs kernels for other instruction sets: QEMU emulates AArch64 and RISC-V, Wasmtime WebAssembly.

    kernels and operands ─► objects and a C program without a library ─zig cc─► program ─► results

The program's memory holds all operands, results and workspaces; it is read from standard input and
written to standard output (WebAssembly: copied in and out).
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tunefarm.compiler.build import build_kernel
from tunefarm.compiler.kernel import Kernel
from tunefarm.compiler.packing import pack
from tunefarm.compiler.runtime.native import native_object
from tunefarm.compiler.space import Config
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

Array = NDArray[Any]
EMULATORS = {
    "aarch64": ("qemu-aarch64", ()),
    "riscv64": ("qemu-riscv64", ("-cpu", "rv64,v=true,vlen=256,vext_spec=v1.0")),
}
# What zig calls a machine, and where it keeps the C library's headers.
ZIG_TARGETS = {
    "aarch64": ("aarch64-linux-musl", ("aarch64-linux-musl", "generic-musl")),
    "riscv64": ("riscv64-linux-musl", ("riscv64-linux-musl", "generic-musl")),
    "wasm32": ("wasm32-wasi", ("wasm-wasi-musl", "generic-musl")),
}
_SYSTEM = {
    "aarch64": ('register long x8 __asm__("x8") = number, x0 __asm__("x0") = a,'
                ' x1 __asm__("x1") = b, x2 __asm__("x2") = c;'
                ' __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");'
                ' return x0;'),
    "riscv64": ('register long a7 __asm__("a7") = number, a0 __asm__("a0") = a,'
                ' a1 __asm__("a1") = b, a2 __asm__("a2") = c;'
                ' __asm__ volatile("ecall" : "+r"(a0) : "r"(a7), "r"(a1), "r"(a2) : "memory");'
                ' return a0;'),
}  # fmt: skip
START = """
static long call_system(long number, long a, long b, long c) {{ {system} }}
void _start(void) {{
  long at = 0, count;
  while ((count = call_system(63, 0, (long)memory + at, MEMORY_BYTES - at)) > 0) at += count;
  run();
  for (at = 0; at < (long)MEMORY_BYTES; at += count)
    count = call_system(64, 1, (long)memory + at, MEMORY_BYTES - at);
  call_system(94, 0, 0, 0);
}}
"""


@dataclass(frozen=True)
class Case:
    """A kernel and what it is given, in the shapes of its workload."""

    kernel: Kernel
    arrays: Sequence[Array]
    outputs: tuple[Array, ...]


def emulator(machine: str) -> list[str]:
    """The command that runs a program of another machine; skips the test if there is none."""
    name, options = EMULATORS[machine]
    found = shutil.which(f"{name}-static") or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian's package qemu-user-static)")
    return [found, *options]


def need(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"the package {module} is not installed")


def case_of(
    workload: Workload, target: Target, config: Config, arrays: Sequence[Array], like: list[Array]
) -> Case:
    """The kernel of a config, its operands packed, and room for outputs ``like`` those."""
    kernel = build_kernel(workload, target, config, cache=False)
    shapes = [p.shape for p in kernel.params]
    packed = [pack(a, kernel.layouts.get(i), shapes[i]) for i, a in enumerate(arrays)]
    return Case(kernel, packed, tuple(np.empty_like(a) for a in like))


def link(target: Target, objects: Sequence[str], source: str, folder: Path) -> Path:
    """A program of C text and objects in the folder; it starts at ``_start`` and has no library."""
    need("ziglang")
    import ziglang

    machine = target.isa.name
    triple, headers = ZIG_TARGETS[machine]
    (folder / "main.c").write_text(source)
    flags = ["-O1", "-nostdlib", "-fno-builtin", "-fno-sanitize=all", "-I."]
    flags += ["-Wl,--export=run", "-Wl,--export=memory_at"] if machine == "wasm32" else []
    flags += ["-Wl,--no-entry"] if machine == "wasm32" else ["-static", "-fno-stack-protector"]
    included = Path(ziglang.__file__).parent / "lib" / "libc" / "include"
    flags += [word for name in headers for word in ("-isystem", str(included / name))]
    command = [sys.executable, "-m", "ziglang", "cc", "-target", triple, *flags]
    command += ["main.c", *objects, "-o", "program"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder / "program"


def start_of(machine: str) -> str:
    """What reads ``memory``, calls ``run`` and writes it."""
    if machine == "wasm32":
        return "void *memory_at(void) { return memory; }\n"
    return START.format(system=_SYSTEM[machine])


def execute(target: Target, program: Path, memory: bytes) -> bytes:
    """Run the program on its memory; the memory afterwards."""
    if target.isa.name == "wasm32":
        return _in_wasmtime(program, memory)
    command = [*emulator(target.isa.name), str(program)]
    done = subprocess.run(command, input=memory, capture_output=True, timeout=120)
    assert done.returncode == 0, (done.returncode, done.stderr[-1000:])
    return done.stdout


def _in_wasmtime(program: Path, memory: bytes) -> bytes:
    need("wasmtime")
    import wasmtime

    store = wasmtime.Store()
    module = wasmtime.Module.from_file(store.engine, str(program))
    exports: Any = wasmtime.Instance(store, module, []).exports(store)
    start = exports["memory_at"](store)
    exports["memory"].write(store, memory, start)
    exports["run"](store)
    return bytes(exports["memory"].read(store, start, start + len(memory)))


def run_all(target: Target, cases: Sequence[Case], folder: Path) -> None:
    """Fill the outputs of all cases, in one program."""
    if target.isa.name != "wasm32":
        emulator(target.isa.name)
    unique = {case.kernel.name: case.kernel for case in cases}
    memory, calls, results = bytearray(), [], []

    def place(data: bytes) -> str:
        memory.extend(bytes(-len(memory) % 64))
        at = len(memory)
        memory.extend(data)
        return f"memory + {at}"

    for case in cases:
        names = [place(np.ascontiguousarray(a).tobytes()) for a in case.arrays]
        for output in case.outputs:
            results.append((len(memory) + -len(memory) % 64, output))
            names.append(place(b"\x55" * output.nbytes))
        workspace = place(bytes(case.kernel.workspace_bytes))
        calls.append(f"  {case.kernel.name}(0, {', '.join([workspace, *names])});")
    source = [f"static char memory[{len(memory)}] __attribute__((aligned(64)));"]
    source.append("#define MEMORY_BYTES sizeof memory")
    for kernel in unique.values():
        pointers = ", ".join(["void *"] * (len(kernel.params) + 2))
        source.append(f"void {kernel.name}({pointers});")
    source += ["void run(void) {", *calls, "}", start_of(target.isa.name)]
    objects = [native_object(target), *(k.object for k in unique.values())]
    names = [f"object{number}.o" for number in range(len(objects))]
    for name, code in zip(names, objects, strict=True):
        (folder / name).write_bytes(code)
    program = link(target, names, "\n".join(source), folder)
    after = execute(target, program, bytes(memory))
    for at, output in results:
        flat = np.frombuffer(after, output.dtype, output.size, at)
        output[...] = flat.reshape(output.shape)
