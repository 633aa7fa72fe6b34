"""The dashboard beside a tracker: a process of its own, which the tracker starts and ends.

Standard input has one line of JSON (``Settings``), and stays open for as long as the tracker
lives. The socket is the tracker's, so that its port stays taken while this process is replaced.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tunefarm.dashboard.actions import Tracker
from tunefarm.dashboard.serving import Address, ServingError, serve_at
from tunefarm.db.errors import StoreError
from tunefarm.db.store import Store
from tunefarm.proto.errors import FarmError
from tunefarm.proto.rendezvous import Rendezvous, read_rendezvous

NICE = 10
"""Less urgent than the tracker, and than what is measured."""


@dataclass(frozen=True, slots=True)
class Settings:
    """``tracker`` is the address in the clear on this machine, ``socket`` the number of the open
    socket; ``rendezvous`` is the file that holds the tracker's own token, if it wrote one."""

    database: str
    tracker: str
    socket: int
    host: str
    cert: str = ""
    key: str = field(default="", repr=False)
    rendezvous: str = ""


def main() -> None:
    with suppress(OSError):
        os.nice(NICE)
    told = sys.stdin.readline()
    if not told:  # the tracker is gone already
        return
    settings = Settings(**json.loads(told))
    threading.Thread(target=_end_with_tracker, name="tracker", daemon=True).start()
    place = socket.socket(fileno=settings.socket)
    address = Address(settings.host, place.getsockname()[1], settings.cert, settings.key)
    file = Path(settings.rendezvous) if settings.rendezvous else None
    tracker = Tracker(lambda: _tracker(settings.tracker, file), file=file)
    try:
        with Store.open(settings.database, readonly=True) as store:
            serve_at(place, store, address, lambda: print(address.url, flush=True), tracker)
    except (ServingError, StoreError) as error:
        sys.exit(f"the dashboard: {error}")


def _tracker(address: str, file: Path | None) -> Rendezvous:
    """The tracker with its own token, as its file says it now."""
    token = ""
    if file is not None:
        with suppress(FarmError):
            token = read_rendezvous(file).token
    return Rendezvous(address, token)


def _end_with_tracker() -> None:
    """SIGTERM to this process once the tracker is gone, and with it the other end of the pipe."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
