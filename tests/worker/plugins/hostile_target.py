"""A target kind whose kernels attack the process that runs them (LLVM text with bare system calls).

The workload is y[i] = 2 · x[i] for 1024 floats; ``config["kernel"]`` names what the kernel does.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence

import numpy as np
from llvmlite import binding
from tunefarm.compiler.errors import ScheduleError
from tunefarm.worker.backend import Array, Built, Problem, TargetPlugin
from tunefarm.worker.host import HostDevice
from tunefarm.worker.llvm import NativeKernel, load_native, start_native
from tunefarm.worker.native import assemble

N = 1024
_SYSCALL = (
    'call i64 asm sideeffect "syscall", '
    '"={rax},{rax},{rdi},{rsi},{rdx},{r10},{r8},{r9},~{rcx},~{r11},~{memory}"'
    "(i64 %nr, i64 %a, i64 %b, i64 %c, i64 %d, i64 %e, i64 %f)"
)


def _call(name: str, *arguments: object) -> str:
    values = [*arguments, *[0] * (7 - len(arguments))]
    return f"  %{name} = call i64 @sys({', '.join(f'i64 {v}' for v in values)})\n"


def _double(factor: str = "2.0") -> str:
    return f"""
  br label %loop
loop:
  %i = phi i64 [ 0, %START ], [ %n, %loop ]
  %px = getelementptr float, ptr %x, i64 %i
  %py = getelementptr float, ptr %y, i64 %i
  %v = load float, ptr %px
  %w = fmul float %v, {factor}
  store float %w, ptr %py
  %n = add i64 %i, 1
  %more = icmp slt i64 %n, {N}
  br i1 %more, label %loop, label %end
end:
  ret void
"""


def _path(path: str) -> str:
    """The bytes of a path on the stack; its address is ``%path``."""
    data = path.encode() + b"\0"
    stores = "".join(
        f"  %c{i} = getelementptr i8, ptr %bytes, i64 {i}\n  store i8 {b}, ptr %c{i}\n"
        for i, b in enumerate(data)
    )
    return f"  %bytes = alloca [{len(data)} x i8]\n{stores}  %path = ptrtoint ptr %bytes to i64\n"


def _refused(*names: str) -> str:
    """Crash unless each of these calls failed with EPERM."""
    return "".join(
        f"  %ok_{n} = icmp eq i64 %{n}, -1\n  %at_{n} = select i1 %ok_{n}, ptr %y, ptr null\n"
        f"  store volatile i8 0, ptr %at_{n}\n"
        for n in names
    )


def _babble() -> str:
    """Write eight bytes of ones, which start no frame, to every open file."""
    writes = "".join(_call(f"w{fd}", 1, fd, "%at", 8) for fd in range(3, 32))
    return (
        "  %word = alloca i64\n  store i64 -1, ptr %word\n"
        "  %at = ptrtoint ptr %word to i64\n" + writes
    )


_FOREVER = "  br label %spin\nspin:\n  br label %spin\n"
_FLOOD = """
  %text = alloca [4096 x i8]
  %at = ptrtoint ptr %text to i64
  br label %spin
spin:
  %r = call i64 @sys(i64 1, i64 FD, i64 %at, i64 4096, i64 0, i64 0, i64 0)
  br label %spin
"""
_EAT = """
  %p = call i64 @sys(i64 9, i64 0, i64 10737418240, i64 3, i64 34, i64 -1, i64 0)
  %q = inttoptr i64 %p to ptr
  br label %touch
touch:
  %i = phi i64 [ 0, %entry ], [ %n, %touch ]
  %z = getelementptr i8, ptr %q, i64 %i
  store volatile i8 1, ptr %z
  %n = add i64 %i, 4096
  %more = icmp slt i64 %n, 10737418240
  br i1 %more, label %touch, label %end
end:
  ret void
"""
# SIG_IGN for SIGTERM, then for ever; struct sigaction {handler, flags, restorer, mask}.
_IGNORE = (
    """
  %action = alloca [4 x i64]
  store [4 x i64] [i64 1, i64 0, i64 0, i64 0], ptr %action
  %at = ptrtoint ptr %action to i64
  %r = call i64 @sys(i64 13, i64 15, i64 %at, i64 0, i64 8, i64 0, i64 0)
"""
    + _FOREVER
)


def body(kernel: str) -> str:
    """The statements of a kernel."""
    plain = _double().replace("%START", "%entry")
    then = "  br label %go\ngo:" + _double().replace("%START", "%go")
    match kernel:
        case "honest":
            return plain
        case "wrong":
            return _double("2.5").replace("%START", "%entry")
        case "empty":
            return "  ret void\n"
        case "loop":
            return _FOREVER
        case "ignore_sigterm":
            return _IGNORE
        case "eat_memory":
            return _EAT
        case "segfault":
            return "  store volatile i8 1, ptr null\n  ret void\n"
        case "write_inputs":
            return "  store volatile i8 1, ptr %x\n  ret void\n"
        case "abort":
            return _call("pid", 39) + _call("r", 62, "%pid", 6) + "  ret void\n"
        case "kill_itself":
            return _call("pid", 39) + _call("r", 62, "%pid", 9) + "  ret void\n"
        case "exit":
            return _call("r", 231, 0) + "  ret void\n"
        case "flood_stdout":
            return _FLOOD.replace("FD", "1")
        case "flood_stderr":
            return _FLOOD.replace("FD", "2")
        case "kill_parent":
            return _call("pid", 110) + _call("r", 62, "%pid", 9) + then
        case "kill_everyone":
            return _call("r", 62, -1, 9) + then
        case "fork":
            return _call("r1", 57) + _call("r2", 56, 17) + _call("r3", 435) + then
        case "write_home":
            return _path("/tmp/tunefarm-hostile") + _call("r", 2, "%path", 65, 511) + then
        case "socket":
            return _call("udp", 41, 2, 2) + _call("tcp", 41, 2, 1) + _refused("udp", "tcp") + then
        case "babble":
            return _babble() + then
        case "lazy":
            return (
                "  %calls = load i64, ptr @calls\n  %more = add i64 %calls, 1\n"
                "  store i64 %more, ptr @calls\n  %first = icmp eq i64 %calls, 0\n"
                "  br i1 %first, label %go, label %skip\nskip:\n  ret void\ngo:"
                + _double().replace("%START", "%go").replace("%more", "%again")
            )
        case "close_everything":
            return "".join(_call(f"r{fd}", 3, fd) for fd in range(32)) + _FOREVER
        case _:
            raise ScheduleError(f"no kernel {kernel!r}")


def text(kernel: str) -> str:
    return f"""
@calls = internal global i64 0
define internal i64 @sys(i64 %nr, i64 %a, i64 %b, i64 %c, i64 %d, i64 %e, i64 %f) noinline {{
  %r = {_SYSCALL}
  ret i64 %r
}}
define void @kernel(ptr %pool, ptr %workspace, ptr %x, ptr %y) {{
entry:
{body(kernel)}
}}
"""


class HostileBackend:
    def build(self, workload: str, target: str, config: Mapping[str, int | str]) -> Built:
        kernel = str(config["kernel"])
        match config.get("build"):
            case "hang":
                time.sleep(1000)
            case "abort":
                sys.stderr.write("LLVM ERROR: cannot select\n")
                sys.stderr.flush()
                os.abort()
            case "raise":
                raise RuntimeError("no code today")
            case "eat_memory":
                np.ones(10 << 30, np.uint8)
        binding.initialize_native_asmparser()
        claimed = float(config.get("operations", 0))
        metadata = {
            "target": target,
            "name": "kernel",
            "params": [[[N], "float32"]] * 2,
            "outputs": 1,
            "layouts": {},
            "workspace_bytes": 0,
            "threads": 1,
        }
        return Built(assemble(text(kernel), ""), metadata, code_hash=kernel, operations=claimed)

    def problem(self, workload: str, seed: int) -> Problem:
        x = np.random.default_rng(seed).standard_normal(N).astype(np.float32)
        return Problem((x,), (False,), (x * 2,), (np.full(N, 1e-5),))

    def start(self, target: str) -> None:
        start_native(target)

    def load(self, built: Built, inputs: Sequence[Array], constant: Sequence[bool]) -> NativeKernel:
        return load_native(built, inputs, constant)


PLUGIN = TargetPlugin(HostDevice, HostileBackend)
