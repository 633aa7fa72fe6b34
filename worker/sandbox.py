"""What a child forbids itself before it touches a candidate (standard library only, Linux).

Resource limits, death with its parent, no new privileges, a seccomp filter (no new processes, no
exec, no sockets, no signals to others) and Landlock (writes inside the scratch directory alone).
The filter and Landlock apply where the kernel has them; ``confine`` returns which did.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_ADDRESS_SPACE_BYTES = 16 << 30
_CPU_LIMIT_S = 3600
_FILE_LIMIT_BYTES = 64 << 20
_OPEN_FILES = 128


def confine(parent: int, scratch: Path, memory_bytes: int) -> tuple[str, ...]:
    """Confine this process for the rest of its life; exit if ``parent`` (a process id) is gone.

    ``memory_bytes`` is what may be resident, which the parent watches; the address space has room
    for four times that and for 16 GiB, so that only an absurd allocation fails inside the child.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the worker that started this process is gone")
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, max(4 * memory_bytes, _ADDRESS_SPACE_BYTES))
    _limit(resource.RLIMIT_CPU, _CPU_LIMIT_S)
    _limit(resource.RLIMIT_FSIZE, _FILE_LIMIT_BYTES)
    _limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    applied = []
    if _restrict_files(libc, scratch):
        applied.append("landlock")
    if _restrict_calls(libc):
        applied.append("seccomp")
    return tuple(applied)


def _limit(what: int, value: int) -> None:
    hard = resource.getrlimit(what)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(what, (value, value))


# --- Landlock (linux/landlock.h); the numbers of these calls are the same on every machine ------

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_WRITE_FILE = 1 << 1
_WRITES_BY_ABI = {1: _WRITE_FILE | sum(1 << bit for bit in range(4, 13)), 2: 1 << 13, 3: 1 << 14}
_TCP = 0b11  # bind, connect; ABI 4
_SCOPES = 0b11  # abstract unix sockets, signals; ABI 6


def _restrict_files(libc: ctypes.CDLL, scratch: Path) -> bool:
    """Deny writes outside ``scratch`` and /dev/null, TCP, and signals to other processes."""
    call = libc.syscall
    abi = call(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    if abi < 1:
        return False
    writes = sum(bits for since, bits in _WRITES_BY_ABI.items() if since <= abi)
    attributes = struct.pack("<Q", writes)
    if abi >= 4:
        attributes += struct.pack("<Q", _TCP)
    if abi >= 6:
        attributes += struct.pack("<Q", _SCOPES)
    size = ctypes.c_size_t(len(attributes))
    ruleset = call(_LANDLOCK_CREATE, attributes, size, ctypes.c_uint(0))
    if ruleset < 0:
        return False
    for path, allowed in ((str(scratch), writes), ("/dev/null", _WRITE_FILE)):
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("<Qi", allowed, handle)
        call(_LANDLOCK_ADD, ruleset, 1, rule, ctypes.c_uint(0))
        os.close(handle)
    restricted = call(_LANDLOCK_RESTRICT, ruleset, ctypes.c_uint(0)) == 0
    os.close(ruleset)
    return bool(restricted)


# --- seccomp (linux/filter.h, linux/seccomp.h) ---------------------------------------------------

_EPERM, _ENOSYS = 1, 38
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_CLONE_THREAD = 0x00010000
_X32 = 0x40000000

_AUDIT_ARCH: Mapping[str, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SECCOMP: Mapping[str, int] = {"x86_64": 317, "aarch64": 277}
# Denied outright: new processes and programs, sockets, other processes' memory and scheduling,
# the machine itself, and owners and modes of files, which Landlock leaves alone.
_DENIED: Mapping[str, tuple[int, ...]] = {
    "x86_64": (
        57, 58, 59, 322, 41, 42, 49, 50, 101, 310, 311, 424, 434, 438, 425, 321, 298, 272, 308,
        155, 161, 165, 166, 167, 168, 169, 170, 171, 175, 176, 246, 313, 304, 428, 429, 430, 442,
        90, 91, 92, 93, 94, 260, 268, 452, 188, 189, 190, 197, 198, 199, 200, 129, 297, 164, 227,
        141, 312, 250, 248, 249,
    ),
    "aarch64": (
        221, 281, 198, 203, 200, 201, 117, 270, 271, 424, 434, 438, 425, 280, 241, 97, 268, 41, 51,
        40, 39, 224, 225, 142, 161, 162, 105, 106, 104, 273, 265, 428, 429, 430, 442, 52, 53, 54,
        55, 452, 5, 6, 7, 14, 15, 16, 130, 138, 240, 170, 112, 140, 272, 219, 217, 218,
    ),
}  # fmt: skip
# Allowed where the first argument is this process: kill, tgkill.
_OWN_ONLY: Mapping[str, tuple[int, ...]] = {"x86_64": (62, 234), "aarch64": (129, 131)}
_PRLIMIT: Mapping[str, int] = {"x86_64": 302, "aarch64": 261}
_CLONE: Mapping[str, int] = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435


def _restrict_calls(libc: ctypes.CDLL) -> bool:
    machine = platform.machine()
    if machine not in _AUDIT_ARCH:
        return False
    program = _filter_program(machine, os.getpid())
    code = b"".join(struct.pack("<HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(buffer))
    set_mode_filter, all_threads = 1, 1
    result = libc.syscall(
        _SECCOMP[machine], ctypes.c_uint(set_mode_filter), ctypes.c_uint(all_threads), header
    )
    return bool(result == 0)


def _filter_program(machine: str, pid: int) -> list[tuple[int, int, int, int]]:
    """BPF lines (code, jump if true, jump if false, value) that end each call in a verdict."""
    number, arch, first_argument = 0, 4, 16
    deny = (_RETURN, 0, 0, _ERRNO | _EPERM)
    allow = (_RETURN, 0, 0, _ALLOW)
    lines = [
        (_LOAD, 0, 0, arch),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        deny,
        (_LOAD, 0, 0, number),
        (_AT_LEAST, 0, 1, _X32),
        deny,
        (_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),  # glibc falls back to clone, whose flags we can read
        (_EQUAL, 0, 4, _CLONE[machine]),
        (_LOAD, 0, 0, first_argument),
        (_ANY_BIT, 0, 1, _CLONE_THREAD),
        allow,
        deny,
        (_EQUAL, 0, 5, _PRLIMIT[machine]),
        (_LOAD, 0, 0, first_argument),
        (_EQUAL, 1, 0, 0),
        (_EQUAL, 0, 1, pid),
        allow,
        deny,
    ]
    for call in _OWN_ONLY[machine]:
        lines += [
            (_EQUAL, 0, 4, call),
            (_LOAD, 0, 0, first_argument),
            (_EQUAL, 0, 1, pid),
            allow,
            deny,
        ]
    for call in _DENIED[machine]:
        lines += [(_EQUAL, 0, 1, call), deny]
    return [*lines, allow]
