"""Files that say where a tracker listens and what opens it: the one that a running tracker writes
for its own user (its rendezvous file), and those that are carried to other machines."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from tunefarm.proto.errors import InvalidRequest
from tunefarm.proto.tls import SYSTEM, Tls


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """``address`` is HOST:PORT, ``token`` a secret, ``database`` the tracker's URL and ``pid`` its
    process on this machine, 0 if it runs on another. ``ca`` (or "system"), ``certificate`` and
    ``key`` are PEM for connections with TLS, empty for those in the clear."""

    address: str
    token: str = field(repr=False)
    database: str = ""
    pid: int = 0
    ca: str = ""
    certificate: str = ""
    key: str = field(default="", repr=False)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def is_elsewhere(self) -> bool:
        """Whether the tracker runs on another machine, for all this file says."""
        return self.pid == 0

    @property
    def tls(self) -> Tls | None:
        """What its connections bring; None for one in the clear."""
        trusted = "" if self.ca == SYSTEM else self.ca
        return Tls(trusted, self.certificate, self.key) if self.ca else None

    @property
    def is_running(self) -> bool:
        """Whether a process of the tracker's id runs on this machine; False: it is surely gone."""
        try:
            os.kill(self.pid, 0)
        except PermissionError:
            return True
        except (ProcessLookupError, OverflowError):
            return False
        return self.pid > 0


_FIELDS = tuple(field.name for field in fields(Rendezvous))


def write_private(path: Path, text: str) -> None:
    """Replace the file at once by one that only its owner can read (mode 0600)."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def read_private(path: Path) -> str:
    """The text of a secret's file; InvalidRequest if it is missing or others can read it."""
    _check_private(path)
    with _reading(path):
        return path.read_text(encoding="utf-8")


def _check_private(path: Path) -> None:
    with _reading(path):
        mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise InvalidRequest(f"{path} has mode {mode:04o} and holds a token; run chmod 600 {path}")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror or error}") from error


def write_rendezvous(path: Path, rendezvous: Rendezvous) -> None:
    told = {name: value for name, value in asdict(rendezvous).items() if value}
    write_private(path, json.dumps({"token": "", **told}) + "\n")


def read_rendezvous(path: Path) -> Rendezvous:
    """Where the tracker of this file listens; InvalidRequest if the file cannot be used, or others
    can read it."""
    with _reading(path):
        content = path.read_bytes()
    try:
        told = json.loads(content)
        found = Rendezvous(**{name: told[name] for name in _FIELDS if name in told})
        _ = found.port
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidRequest(
            f"{path} is not a tracker's rendezvous file; name one that a tracker or "
            "`tunefarm token create --file` wrote, or HOST:PORT; delete one that was damaged"
        ) from error
    _check_private(path)
    return found


def read_token(path: Path) -> str:
    """The token in ``path``: a file of one line, or a rendezvous file."""
    text = read_private(path).strip()
    return read_rendezvous(path).token if text.startswith("{") else text
