"""The filter's verdicts, by an interpreter of its program, for both machines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tunefarm.worker.cuda.policy import GPU
from tunefarm.worker.seccomp import (
    ALLOW,
    AND,
    ANY_BIT,
    ARCH,
    AUDIT_ARCH,
    EQUAL,
    ERRNO,
    LOAD,
    NUMBER,
    RETURN,
    Calls,
    filter_program,
)
from tunefarm.worker.syscalls import GPU_NUMBERS, MACHINES, OPENING, numbers

PID = 4242
ENOSYS = 38
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
DANGEROUS = {
    "x86_64": [41, 53, 42, 49, 56, 57, 58, 59, 322, 435, 101, 310, 311, 319, 29, 425, 165, 161, 82,
               83, 87, 90, 76, 85, 200, 424, 438, 38, 222, 283, 160, 105, 126, 112, 321, 272, 437,
               1 << 30, 9999],
    "aarch64": [198, 199, 203, 200, 220, 221, 281, 435, 117, 270, 271, 279, 194, 425, 40, 51, 34,
                35, 38, 52, 45, 130, 424, 438, 103, 107, 85, 164, 146, 91, 157, 280, 97, 437, 9999],
}  # fmt: skip


def verdict(
    machine: str,
    number: int,
    *arguments: int,
    arch: int = 0,
    without: str = "",
    calls: Calls | None = None,
) -> bool:
    """Run the program; whether it lets the call pass."""
    return outcome(machine, number, *arguments, arch=arch, without=without, calls=calls) == ALLOW


def outcome(
    machine: str,
    number: int,
    *arguments: int,
    arch: int = 0,
    without: str = "",
    calls: Calls | None = None,
) -> int:
    """Run the program; what it returns."""
    program = filter_program(machine, PID, OPENING if without == "opening" else (), calls)
    words = {NUMBER: number, ARCH: arch or AUDIT_ARCH[machine]}
    for index, value in enumerate([*arguments, *[0] * (6 - len(arguments))]):
        words[16 + 8 * index] = value & 0xFFFFFFFF
        words[20 + 8 * index] = value >> 32 & 0xFFFFFFFF
    at = loaded = 0
    while True:
        code, if_true, if_false, value = program[at]
        match code:
            case _ if code == LOAD:
                loaded = words[value]
                at += 1
            case _ if code == EQUAL:
                at += 1 + (if_true if loaded == value else if_false)
            case _ if code == ANY_BIT:
                at += 1 + (if_true if loaded & value else if_false)
            case _ if code == AND:
                loaded &= value
                at += 1
            case _ if code == RETURN:
                assert value in (ALLOW, ERRNO | 1, ERRNO | ENOSYS)
                return value
            case _:
                raise AssertionError(f"no such instruction: {code:#x}")


@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_not_listed_is_refused(machine: str) -> None:
    assert not [n for n in DANGEROUS[machine] if verdict(machine, n)]
    listed = set(numbers(machine).values())
    assert not [n for n in range(600) if n not in listed and verdict(machine, n)]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    "name, arguments, allowed",
    [
        ("futex", (1, 2), True),
        ("openat", (-100, 1, 0o2000000), True),
        ("openat", (-100, 1, 1), False),
        ("openat", (-100, 1, 2), False),
        ("openat", (-100, 1, 0o100), False),
        ("openat", (-100, 1, 0o1000), False),
        ("kill", (PID, 6), True),
        ("kill", (1, 9), False),
        ("kill", (-1, 9), False),
        ("kill", (0, 9), False),
        ("tgkill", (PID, 1, 6), True),
        ("tgkill", (1, PID, 6), False),
        ("mmap", (0, 4096, 3, 34), True),
        ("mmap", (0, 4096, 3, 33), False),
        ("mmap", (0, 4096, 3, 35), False),
        ("fcntl", (3, 1), True),
        ("fcntl", (3, 8, PID), False),
        ("fcntl", (3, 10, 9), False),
        ("ioctl", (0, 0x5401), True),
        ("ioctl", (0, 0x5412), False),
        ("prctl", (15,), True),
        ("prctl", (1, 0), False),
        ("sendto", (3, 1, 1, 0, 0), True),
        ("sendto", (3, 1, 1, 0, 1 << 32), False),
        ("sendto", (3, 1, 1, 0, 1), False),
        ("prlimit64", (0, 7, 0, 1), True),
        ("prlimit64", (0, 7, 1 << 40), False),
    ],
)
def test_arguments_decide(
    machine: str, name: str, arguments: tuple[int, ...], allowed: bool
) -> None:
    assert verdict(machine, numbers(machine)[name], *arguments) is allowed


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    "name, arguments, allowed",
    [
        ("openat", (-100, 1, 2), True),
        ("mmap", (0, 4096, 3, 1), True),
        ("ioctl", (3, 0xC020462A), True),  # NV_ESC_RM_CONTROL
        ("ioctl", (3, 0x30000001), True),  # UVM_INITIALIZE
        ("ioctl", (3, 37), True),  # UVM_REGISTER_GPU
        ("ioctl", (0, 0x5401), True),
        ("ioctl", (0, 0x5412), False),  # TIOCSTI
        ("ioctl", (0, 0x8927), False),  # SIOCGIFHWADDR
        ("clone", (0x3D0F00,), True),  # a thread, as the C library starts them
        ("clone", (0x1200011,), False),  # a process
        ("kill", (1, 9), False),
        ("sendto", (3, 1, 1, 0, 1), False),
        ("prlimit64", (0, 7, 1 << 40), False),
    ],
)
def test_the_driver_of_gpus_may_more_and_nothing_else(
    machine: str, name: str, arguments: tuple[int, ...], allowed: bool
) -> None:
    number = numbers(machine, GPU_NUMBERS)[name]
    assert verdict(machine, number, *arguments, calls=GPU.calls) is allowed
    if allowed and name != "ioctl":
        assert not verdict(machine, number, *arguments)


@pytest.mark.parametrize("machine", MACHINES)
def test_of_dangerous_calls_gpus_are_given_those_of_their_driver_alone(machine: str) -> None:
    given = [n for n in DANGEROUS[machine] if verdict(machine, n, calls=GPU.calls)]
    assert given == []
    assert outcome(machine, 435, calls=GPU.calls) == ERRNO | ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_no_file_is_opened_where_opening_is_left_out(machine: str) -> None:
    number = numbers(machine)["openat"]
    assert verdict(machine, number, -100, 1, 0)
    assert not verdict(machine, number, -100, 1, 0, without="opening")


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_of_another_architecture_are_refused(machine: str) -> None:
    assert not verdict(machine, numbers(machine)["futex"], arch=0x40000003)  # 32-bit x86


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_the_kernels(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip(f"the kernel's headers are not installed: {HEADERS[machine]}")
    pattern = r"#define __NR(?:3264)?_(\w+)\s+(\d+)"
    found = dict(re.findall(pattern, HEADERS[machine].read_text()))
    # The generic header names these by the 64-bit call that has another name there.
    found |= {"newfstatat": found.get("newfstatat", found.get("fstatat", "79"))}
    ours = numbers(machine, GPU_NUMBERS)
    assert {name: int(found.get(name, -1)) for name in ours} == dict(ours)
