"""The system calls that a confined child may make, and what their arguments may be.

What is not listed is refused: new processes, threads and programs, files that are written or
made, sockets, signals and memory of others, shared memory (which no resident size shows), timers
that outlive a call, limits, privileges, mounts, and every call that is younger than this list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

_PR_SET_NAME, _PR_SET_VMA = 15, 0x53564D41
_MAP_SHARED = 1
_WRITING = 0o1 | 0o2 | 0o100 | 0o1000 | 0o20000000  # WRONLY, RDWR, CREAT, TRUNC, TMPFILE
# DUPFD, GETFD, SETFD, GETFL, SETFL, DUPFD_CLOEXEC: not SETOWN and SETSIG, which send signals.
_FILE_COMMANDS = (0, 1, 2, 3, 4, 1030)
_TCGETS, _FIONBIO, _FIOCLEX = 0x5401, 0x5421, 0x5451


@dataclass(frozen=True, slots=True)
class OneOf:
    """The argument, 32 bits of it, is one of these values."""

    argument: int
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NoBits:
    """The argument has none of these bits."""

    argument: int
    mask: int


@dataclass(frozen=True, slots=True)
class Zero:
    """The argument, all 64 bits of it, is zero."""

    argument: int


@dataclass(frozen=True, slots=True)
class Own:
    """The argument is the id of this very process."""

    argument: int


@dataclass(frozen=True, slots=True)
class AnyBit:
    """The argument, 32 bits of it, has one of these bits."""

    argument: int
    mask: int


@dataclass(frozen=True, slots=True)
class Command:
    """The argument is one of these values, or its second byte one of these families."""

    argument: int
    families: tuple[int, ...]
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """The call fails as if the kernel did not have it: libraries then make another."""


Condition: TypeAlias = OneOf | NoBits | Zero | Own | AnyBit | Command | Missing

MACHINES = ("x86_64", "aarch64")

# name: (x86-64, AArch64); the frequent ones come first.
NUMBERS: Mapping[str, tuple[int, int]] = {
    "futex": (202, 98),
    "sched_yield": (24, 124),
    "clock_gettime": (228, 113),
    "recvfrom": (45, 207),
    "sendto": (44, 206),
    "read": (0, 63),
    "write": (1, 64),
    # threads, time, signals of its own
    "set_robust_list": (273, 99),
    "rseq": (334, 293),
    "gettid": (186, 178),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "sched_getaffinity": (204, 123),
    "getcpu": (309, 168),
    "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115),
    "nanosleep": (35, 101),
    "gettimeofday": (96, 169),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132),
    "restart_syscall": (219, 128),
    "kill": (62, 129),
    "tgkill": (234, 131),
    # memory
    "mmap": (9, 222),
    "munmap": (11, 215),
    "mremap": (25, 216),
    "mprotect": (10, 226),
    "madvise": (28, 233),
    "mincore": (27, 232),
    "brk": (12, 214),
    "membarrier": (324, 283),
    # files that are read
    "openat": (257, 56),
    "close": (3, 57),
    "pread64": (17, 67),
    "readv": (19, 65),
    "writev": (20, 66),
    "lseek": (8, 62),
    "fstat": (5, 80),
    "newfstatat": (262, 79),
    "statx": (332, 291),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "readlinkat": (267, 78),
    "getdents64": (217, 61),
    "getcwd": (79, 17),
    "dup": (32, 23),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "ppoll": (271, 73),
    "pselect6": (270, 72),
    # facts
    "uname": (63, 160),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "getrusage": (98, 165),
    "times": (100, 153),
    "sysinfo": (99, 179),
    "prlimit64": (302, 261),
    "getrlimit": (97, 163),
    "getrandom": (318, 278),
    "prctl": (157, 167),
}
# Calls of x86-64 whose work other calls do elsewhere.
_X86_ALONE: Mapping[str, int] = {
    "open": 2,
    "stat": 4,
    "lstat": 6,
    "poll": 7,
    "access": 21,
    "select": 23,
    "readlink": 89,
    "arch_prctl": 158,
    "time": 201,
}
CONDITIONS: Mapping[str, Condition] = {
    "kill": Own(0),
    "tgkill": Own(0),
    "mmap": NoBits(3, _MAP_SHARED),
    "openat": NoBits(2, _WRITING),
    "open": NoBits(1, _WRITING),
    "fcntl": OneOf(1, _FILE_COMMANDS),
    "ioctl": OneOf(1, (_TCGETS, _FIONBIO, _FIOCLEX)),
    "prctl": OneOf(0, (_PR_SET_NAME, _PR_SET_VMA)),
    "prlimit64": Zero(2),  # no new limit
    "sendto": Zero(4),  # no address: only to whom the socket is connected
}
OPENING = ("openat", "open")

# What NVIDIA's driver does beside that in a process that has a context: it opens its devices for
# writing and maps them shared, speaks to them by ioctl (family F; those of unified memory have
# small numbers), starts threads, and waits for events.
GPU_NUMBERS: Mapping[str, tuple[int, int]] = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "set_tid_address": (218, 96),
    "eventfd2": (290, 19),
    "pipe2": (293, 59),
    "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21),
    "epoll_pwait": (281, 22),
    "pwrite64": (18, 68),
    "msync": (26, 227),
    "mlock": (149, 228),
    "mlock2": (325, 284),
    "munlock": (150, 229),
    "get_mempolicy": (239, 236),
    "set_mempolicy": (238, 237),
    "mbind": (237, 235),
    "sched_setaffinity": (203, 122),
    "sched_getparam": (143, 121),
    "sched_getscheduler": (145, 120),
    "sched_get_priority_max": (146, 125),
    "sched_get_priority_min": (147, 126),
    "statfs": (137, 43),
    "fstatfs": (138, 44),
    "capget": (125, 90),
}
_CLONE_THREAD = 0x10000
_NVIDIA = ord("F")
GPU_CONDITIONS: Mapping[str, Condition | None] = {
    "clone": AnyBit(0, _CLONE_THREAD),
    "clone3": Missing(),
    "mmap": None,
    "openat": None,
    "open": None,
    "ioctl": Command(1, (_NVIDIA, 0), (_TCGETS, _FIONBIO, _FIOCLEX)),
}


def numbers(machine: str, more: Mapping[str, tuple[int, int]] | None = None) -> Mapping[str, int]:
    """The allowed calls of a machine by name, with ``more``; KeyError for a machine that is not in
    ``MACHINES``."""
    column = {name: index for index, name in enumerate(MACHINES)}[machine]
    common = {name: pair[column] for name, pair in {**NUMBERS, **(more or {})}.items()}
    return {**common, **(_X86_ALONE if machine == "x86_64" else {})}
