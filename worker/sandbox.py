"""What a child gives up for ever before it touches a candidate (standard library only, Linux).

    limit        at its start: dies with its parent, no new privileges, bounded files and time
    bound_memory after its imports: bounded memory, bounded open files
    shut_files   then: reads code alone (Landlock), holds no capability (as root too)
    shut_calls   after its threads: no call but those of ``syscalls`` (seccomp), no process, no file

Landlock and capabilities belong to a thread and pass to those that it starts, so they go first.
A ``Policy`` says what the runners of a kind of device need beyond that.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tunefarm.worker.landlock import landlock_version, restrict_files
from tunefarm.worker.seccomp import Calls, filter_available, restrict_calls
from tunefarm.worker.syscalls import OPENING

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION_3 = 0x20080522
_ADDRESS_SPACE_BYTES = 16 << 30
_CPU_LIMIT_S = 3600
_FILE_LIMIT_BYTES = 64 << 20
_SYSTEM_CODE = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib", "/etc/ld.so.cache",
                "/sys/devices/system/cpu", "/proc/cpuinfo", "/dev/null")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Policy:
    """What a child may do that runs candidates of some kind of device, beyond what any may.

    It reads what is in ``readable``, uses the device files ``devices`` (patterns, both), and makes
    ``calls``. With ``any_address`` its address space has no bound (drivers reserve more than there
    is), and if it ``starts_first`` its service starts before anything is given up: threads of then
    keep their files. Without Landlock it opens files if it ``opens`` any. Where the user says so
    (TUNEFARM_GPU_SANDBOX) what is ``optional`` does not apply.
    """

    readable: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    calls: Calls = field(default_factory=Calls)
    any_address: bool = False
    open_files: int = 128
    starts_first: bool = False
    opens: bool = False
    threads: bool = False
    optional: bool = False


HOST = Policy()


def mechanisms() -> tuple[str, ...]:
    """What this kernel has to confine children with: of ``seccomp`` and ``landlock-VERSION``."""
    version = landlock_version()
    found = ["seccomp"] if filter_available() else []
    return (*found, f"landlock-{version}") if version else tuple(found)


def limit(parent: int) -> None:
    """Bound this process for the rest of its life; exit if ``parent`` (a process id) is gone."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the worker that started this process is gone")
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _bound(resource.RLIMIT_CORE, 0)
    _bound(resource.RLIMIT_CPU, _CPU_LIMIT_S)
    _bound(resource.RLIMIT_FSIZE, _FILE_LIMIT_BYTES)


def bound_memory(memory_bytes: int, policy: Policy) -> None:
    """Bound the memory of this process and the files that it holds open.

    ``memory_bytes`` is what may be resident, which the parent watches; the address space has room
    for four times that and for 16 GiB, so that only an absurd allocation fails inside the child.
    """
    if not policy.any_address:
        _bound(resource.RLIMIT_AS, max(4 * memory_bytes, _ADDRESS_SPACE_BYTES))
    _bound(resource.RLIMIT_NOFILE, policy.open_files)


def shut_files(policy: Policy, runs: Iterable[Path] = (), writes: Iterable[Path] = ()) -> bool:
    """Read code alone from now on, and what the policy says, and hold no capability; whether
    Landlock sees to the first. Programs ``runs`` may be started, and the folders ``writes``
    written.

    To be called while this process has one thread, or such as may keep what they have.
    """
    restricted = restrict_files(
        [*_readable(), *_matching(policy.readable)], _matching(policy.devices), runs, writes
    )
    _drop_capabilities()
    return restricted


def shut_calls(policy: Policy, *, opening: bool) -> bool:
    """Make no call from now on but those that are allowed; without ``opening`` no file is opened
    that the policy does not need.

    Limits stand in for the filter where the kernel has none: no file grows, and no thread or
    process starts except root's, which that limit leaves alone. Whether the filter applies.
    """
    _bound(resource.RLIMIT_FSIZE, 0)
    if not policy.threads:
        _bound(resource.RLIMIT_NPROC, 0)
    return restrict_calls(() if opening or policy.opens else OPENING, policy.calls)


def _bound(what: int, value: int) -> None:
    hard = resource.getrlimit(what)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(what, (value, value))


def _readable() -> Iterator[Path]:
    """Where code lies that may yet be imported: the interpreter's, its packages', the system's."""
    for place in {sys.prefix, sys.base_prefix, *sys.path, *_SYSTEM_CODE, *_library_path()}:
        if place:
            yield Path(place)
    for module in list(sys.modules.values()):
        yield from map(Path, getattr(module, "__path__", ()))


def _matching(patterns: tuple[str, ...]) -> Iterator[Path]:
    """The files of this machine that absolute patterns match."""
    for pattern in patterns:
        yield from Path("/").glob(pattern.removeprefix("/"))


def _library_path() -> list[str]:
    return os.environ.get("LD_LIBRARY_PATH", "").split(":")


def _drop_capabilities() -> None:
    """Give up what makes root (or a service with capabilities) more than an owner of files."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = struct.pack("<Ii", _CAPABILITY_VERSION_3, 0)
    if libc.capset(header, bytes(24)):
        sys.exit(f"cannot give up capabilities: {os.strerror(ctypes.get_errno())}")
