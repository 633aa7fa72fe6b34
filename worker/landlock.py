"""Landlock (linux/landlock.h): which files a process can open, whatever its user may.

The numbers of these calls are the same on every machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _IOCTL = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 15
# Execute, write, read, list, remove, make; rename (ABI 2); truncate (3); commands to devices (5).
_FILES_BY_ABI = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
_TCP = 0b11  # bind, connect; ABI 4
_SCOPES = 0b11  # abstract unix sockets, signals; ABI 6


def landlock_version() -> int:
    """The version of the kernel's interface; 0 where it has no Landlock, or has it off."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    return max(int(call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(_VERSION_FLAG))), 0)


def restrict_files(
    readable: Iterable[Path],
    devices: Iterable[Path] = (),
    runs: Iterable[Path] = (),
    writes: Iterable[Path] = (),
) -> bool:
    """Let this thread, and those that it starts, open for reading what is in ``readable`` alone,
    use the ``devices``, start the programs ``runs``, and do as it likes in the folders ``writes``.

    Files elsewhere, and other writing and making of files, TCP, and signals and ptrace to processes
    outside are refused. False where the kernel has no Landlock. Needs no new privileges to be had.
    """
    version = landlock_version()
    if not version:
        return False
    call = ctypes.CDLL(None, use_errno=True).syscall
    files = sum(bits for since, bits in _FILES_BY_ABI.items() if since <= version)
    attributes = struct.pack("<Q", files)
    if version >= 4:
        attributes += struct.pack("<Q", _TCP)
    if version >= 6:
        attributes += struct.pack("<Q", _SCOPES)
    ruleset = call(_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0))
    if ruleset < 0:
        return False
    try:
        for path in readable:
            _allow(call, ruleset, path)
        for path in devices:
            _allow(call, ruleset, path, _WRITE_FILE | (files & _IOCTL))
        for path in runs:
            _allow(call, ruleset, path, _EXECUTE)
        for path in writes:
            _allow(call, ruleset, path, files & ~(_EXECUTE | _IOCTL))
        return bool(call(_RESTRICT, ruleset, ctypes.c_uint(0)) == 0)
    finally:
        os.close(ruleset)


def _allow(call: ctypes._NamedFuncPointer, ruleset: int, path: Path, more: int = 0) -> None:
    """Allow reading a file, or what a folder holds, and ``more`` rights; what does not exist needs
    no leave."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            folder = stat.S_ISDIR(os.fstat(handle).st_mode)
            rights = _READ_FILE | _READ_DIR if folder else _READ_FILE
            rule = struct.pack("<Qi", rights | more, handle)
            call(_ADD, ruleset, _PATH_BENEATH, rule, ctypes.c_uint(0))
        finally:
            os.close(handle)
