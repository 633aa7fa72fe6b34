"""A target kind whose kernels attack the process that runs them (LLVM text with bare system calls).

The workload is y[i] = 2 · x[i] for 1024 floats; ``config["kernel"]`` names what the kernel does.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
from llvmlite import binding
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.target import Target
from tunefarm.worker import wire
from tunefarm.worker.backend import Array, Built, Loaded, Problem, TargetPlugin
from tunefarm.worker.cuda.policy import GPU
from tunefarm.worker.host import HostDevice
from tunefarm.worker.llvm import load_native, start_native
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


def _double(added: str = "-0.0") -> str:
    return f"""
  br label %loop
loop:
  %i = phi i64 [ 0, %START ], [ %n, %loop ]
  %px = getelementptr float, ptr %x, i64 %i
  %py = getelementptr float, ptr %y, i64 %i
  %v = load float, ptr %px
  %t = fmul float %v, 2.0
  %w = fadd float %t, {added}
  store float %w, ptr %py
  %n = add i64 %i, 1
  %more = icmp slt i64 %n, {N}
  br i1 %more, label %loop, label %end
end:
  ret void
"""


def _path(path: str) -> str:
    return _bytes(path.encode() + b"\0")


def _bytes(data: bytes) -> str:
    """Bytes on the stack; their address is ``%path``."""
    stores = "".join(
        f"  %c{i} = getelementptr i8, ptr %bytes, i64 {i}\n  store i8 {b}, ptr %c{i}\n"
        for i, b in enumerate(data)
    )
    return f"  %bytes = alloca [{len(data)} x i8]\n{stores}  %path = ptrtoint ptr %bytes to i64\n"


def _refused(*names: str) -> str:
    """Crash unless each of these calls failed."""
    return "".join(
        f"  %ok_{n} = icmp slt i64 %{n}, 0\n  %at_{n} = select i1 %ok_{n}, ptr %y, ptr null\n"
        f"  store volatile i8 0, ptr %at_{n}\n"
        for n in names
    )


def _all_refused(*calls: tuple[object, ...]) -> str:
    """Make calls of these numbers and arguments; crash unless each failed."""
    names = [f"call{i}" for i in range(len(calls))]
    made = "".join(_call(name, *call) for name, call in zip(names, calls, strict=True))
    return made + _refused(*names)


def _for_ever(*calls: tuple[object, ...]) -> str:
    """Make these calls again and again."""
    made = "".join(_call(f"call{i}", *call) for i, call in enumerate(calls))
    return "  br label %spin\nspin:\n" + made + "  br label %spin\n"


# Numbers of x86-64, by what they do.
_PROCESSES = ((57,), (58,), (56, 17), (56, 0x10900), (435,), (112,))  # fork … clone3, setsid
_SOCKETS = ((41, 2, 2), (41, 2, 1), (41, 1, 1), (41, 16, 3), (53, 1, 1), (425, 8))
_SHARED = ((9, 0, 1 << 30, 3, 33, -1), (319, "%path"), (29, 0, 1 << 30, 0o1600))
_TIMERS = ((157, 1, 0), (38, 0), (37, 1), (222, 1), (283, 1))  # outlive the worker, or the call
_SIGNALS = ((72, 3, 8, "%pid"), (200, "%pid", 9), (129, "%pid", 9), (424, 3, 9), (434, "%pid"))
_OTHERS = ((101, 16, "%pid"), (310, "%pid"), (311, "%pid"), (312, "%pid", "%pid"))
_MACHINE = (
    (165,), (161, "%path"), (272, 1 << 29), (105, 0), (126,), (160, 7, "%path"), (321,), (298,),
    (169,), (170, "%path", 1), (135, 1), (250,), (175,), (435,), (323,), (302, 0, 7, "%path"),
)  # fmt: skip
_AT_CWD = -100


def _writes(path: str) -> tuple[tuple[object, ...], ...]:
    """open, openat, openat2, creat, mkdir, mknod, symlink, link, rename, unlink, truncate, chmod,
    chown, utime: at ``path``."""
    return (
        (2, path, 65, 511), (2, path, 1), (2, path, 2), (257, _AT_CWD, path, 66, 511),
        (437, _AT_CWD, path), (85, path, 511), (83, path, 511), (133, path, 33188),
        (88, path, path), (86, path, path), (82, path, path), (87, path),
        (76, path, 0), (90, path, 511), (92, path, 1, 1), (132, path),
    )  # fmt: skip


def _bytes_to_all(data: bytes) -> str:
    """Write these bytes to every open file but the standard ones."""
    writes = "".join(_call(f"w{fd}", 1, fd, "%path", len(data)) for fd in range(3, 32))
    return _bytes(data) + writes


def _frame(header: str) -> bytes:
    return len(header).to_bytes(4, "little") + header.encode()


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
            return _double("1.0").replace("%START", "%entry")
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
            return _all_refused(*_PROCESSES) + then
        case "fork_bomb":
            return _for_ever(*_PROCESSES)
        case "thread_bomb":
            return _for_ever((56, 0x10F00))
        case "daemon":
            return _all_refused((112,), (57,), (109, 0, 0), (157, 1, 0)) + then
        case "write_home":
            return _path("/tmp/tunefarm-hostile") + _all_refused(*_writes("%path")) + then
        case "write_scratch":
            return _path("file") + _all_refused(*_writes("%path")) + then
        case "fill_scratch":
            return _path("file") + _for_ever((2, "%path", 65, 511), (83, "%path", 511))
        case "socket":
            return _all_refused(*_SOCKETS) + then
        case "shared_memory":
            return _path("memory") + _all_refused(*_SHARED) + then
        case "timers":
            return _all_refused(*_TIMERS) + then
        case "signals":
            return _call("pid", 110) + _all_refused(*_SIGNALS) + then
        case "others":
            return _call("pid", 110) + _all_refused(*_OTHERS) + then
        case "machine":
            return _path("/") + _all_refused(*_MACHINE) + then
        case "forge":
            return _bytes_to_all(_frame('{"seconds": 1e-9, "blobs": []}')) + then
        case "nest":
            return _bytes_to_all(_frame("[" * 3000)) + then
        case _ if kernel.startswith("read:"):
            path = _path(kernel.removeprefix("read:"))
            return path + _all_refused((2, "%path", 0), (257, _AT_CWD, "%path", 0)) + then
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


class PythonKernel:
    """A right answer, and a word of its own to the worker about it: ``says`` names it.

    It stands for a kernel that has taken over the process: it knows the socket and the request.
    """

    def __init__(self, says: str, x: Array) -> None:
        self._says = says
        self._x = x
        self._calls = 0
        self.outputs = (np.zeros_like(x),)

    def repeat(self, number: int) -> float:
        start = time.perf_counter()
        self._calls += 1
        for _ in range(min(number, 1000)):
            np.multiply(self._x, 2, out=self.outputs[0])
        seconds = time.perf_counter() - start
        sock, nonce = _conversation()
        match self._says:
            case "no time":
                time.sleep(0.05)
                return 1e-9
            case "nan":
                return float("nan")
            case "words":
                return cast(float, "fast")
            case "twice" if self._calls > 1:
                wire.send(sock, {"seconds": seconds, "nonce": nonce})
            case "twice at the end" if number == 0:
                wire.send(sock, {"seconds": 0.0, "nonce": nonce}, [self.outputs[0].view(np.uint8)])
            case "device lost":
                message = "\ud800\0" * 10_000
                wire.send(sock, {"error": "device_lost", "message": message, "nonce": nonce})
            case "an error of no kind":
                wire.send(sock, {"error": [{}], "nonce": nonce})
            case "mail":
                wire.send(sock, {"seconds": "x" * 2_000_000, "nonce": nonce})
            case "a thread":
                threading.Thread(target=print).start()
        return seconds


def _conversation() -> tuple[socket.socket, str]:
    """The socket to the worker and the nonce of its request, found on the stack."""
    frame = sys._getframe()
    while frame.f_code.co_name != "serve":
        assert frame.f_back is not None
        frame = frame.f_back
    return frame.f_locals["sock"], frame.f_locals["frame"].header["nonce"]


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
            "python": kernel.removeprefix("python:") if kernel.startswith("python:") else "",
            "target": target,
            "name": "kernel",
            "params": [[[N], "float32"]] * 2,
            "outputs": 1,
            "layouts": {},
            "workspace_bytes": 0,
            "threads": 1,
        }
        code = b"" if metadata["python"] else assemble(text(kernel), "")
        return Built(code, metadata, code_hash=kernel, operations=claimed)

    def build_together(
        self, workload: str, target: str, configs: Sequence[Mapping[str, int | str]]
    ) -> list[Built | None]:
        if any(config.get("build") == "raise" for config in configs):
            return [None if "build" in c else self.build(workload, target, c) for c in configs]
        return [self.build(workload, target, config) for config in configs]

    def problem(self, workload: str, seed: int) -> Problem:
        x = np.random.default_rng(seed).standard_normal(N).astype(np.float32)
        return Problem((x,), (False,), (x * 2,), (np.full(N, 1e-5),))

    def start(self, target: str) -> None:
        start_native(target)

    def load(self, built: Built, inputs: Sequence[Array], constant: Sequence[bool]) -> Loaded:
        if built.metadata["python"]:
            return PythonKernel(built.metadata["python"], inputs[0])
        return load_native(built, inputs, constant)


def checks(target: str) -> list[tuple[str, str, Mapping[str, int | str]]]:
    """With ``-check=KERNEL`` a device is checked with that kernel."""
    kernel = Target(target).options.get("check")
    return [(f"double, {kernel}", "double", {"kernel": kernel})] if kernel else []


PLUGIN = TargetPlugin(HostDevice, HostileBackend, checks, together=4)
WITH_A_DRIVER = TargetPlugin(HostDevice, HostileBackend, checks, policy=GPU)
"""The same where a runner may do what a driver of GPUs does for it."""
