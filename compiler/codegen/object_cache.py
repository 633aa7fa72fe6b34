"""Object code kept on disk under the hash of everything that made it.

An entry is one file: a line with the SHA-256 of the code, then the code. It is written beside its
place and renamed, so a reader sees a whole entry or none; an entry whose hash is wrong is ignored.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
import warnings
from pathlib import Path

from tunefarm.compiler import settings


def load(key: str) -> bytes | None:
    """The code stored under ``key``, or None; a corrupt entry counts as none."""
    if settings.CACHE_BYTES.get() == 0:
        return None
    try:
        entry = _place(key).read_bytes()
    except OSError:
        return None
    digest, _, code = entry.partition(b"\n")
    return code if digest.decode("ascii", "replace") == _digest(code) else None


def store(key: str, code: bytes) -> None:
    """Keep ``code``; a cache that cannot be written (full disk, no rights) is one warning.

    About one store in 256 (by the key, so that it is reproducible) trims the cache.
    """
    if settings.CACHE_BYTES.get() == 0:
        return
    try:
        _write(_place(key), _digest(code).encode() + b"\n" + code)
    except OSError as error:
        _warn(settings.CACHE.get(), error.strerror or str(error))
    if key.startswith("00"):
        trim()


def _write(place: Path, entry: bytes) -> None:
    """A whole file or none; OSError if it cannot be written."""
    place.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=place.parent, prefix=".")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(entry)
        os.replace(temporary, place)
    except BaseException:
        os.unlink(temporary)
        raise


@functools.cache
def _warn(folder: Path, reason: str) -> None:
    """Say once a process that nothing is kept."""
    warnings.warn(
        f"the cache in {folder} cannot be written ({reason}), so code is compiled anew each time; "
        f"name another folder in {settings.CACHE.name}",
        stacklevel=3,
    )


def trim() -> int:
    """Delete the entries unused for longest until the rest fits TUNEFARM_CACHE_BYTES.

    Returns the bytes deleted. An entry's time of use is the file system's access time.
    """
    entries = []
    for path in (settings.CACHE.get() / "objects").glob("*/*"):
        with contextlib.suppress(OSError):
            status = path.stat()
            entries.append((max(status.st_atime, status.st_mtime), status.st_size, path))
    excess = sum(size for _, size, _ in entries) - settings.CACHE_BYTES.get()
    deleted = 0
    for _, size, path in sorted(entries):
        if deleted >= excess:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            deleted += size
    return deleted


def _place(key: str) -> Path:
    return settings.CACHE.get() / "objects" / key[:2] / key[2:]


def _digest(code: bytes) -> str:
    return hashlib.sha256(code).hexdigest()
