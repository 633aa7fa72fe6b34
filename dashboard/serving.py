"""Running the dashboard as a server of its own."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunefarm.db.store import Store

if TYPE_CHECKING:
    import uvicorn
    from tunefarm.dashboard.actions import Tracker

_log = logging.getLogger(__name__)
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PACKAGES = ("fastapi", "jinja2", "uvicorn")
_GRACE_S = 1
_TICKS = 100  # of a tenth of a second: how often the certificate is looked at


class ServingError(ValueError):
    """The dashboard cannot be served so; says in one sentence why."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; with ``cert`` and ``key`` (PEM files) for TLS."""

    host: str = "127.0.0.1"
    port: int = 8765
    cert: str = ""
    key: str = ""

    @property
    def is_local(self) -> bool:
        return self.host in LOOPBACK

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.cert else 'http'}://{host}:{self.port}/"


def check_packages(user: str) -> None:
    """ServingError if a package that pages are made with is missing; ``user`` needs it."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise ServingError(f"{user} needs {', '.join(missing)}; pip install 'tunefarm[dashboard]'")


def check(address: Address) -> None:
    """ServingError if a package is missing, or if tokens would travel in the clear."""
    check_packages("the dashboard")
    if bool(address.cert) != bool(address.key):
        raise ServingError("TLS takes both --tls-cert FILE and --tls-key FILE")
    if not address.is_local and not address.cert:
        raise ServingError(
            f"--host {address.host} is beyond this machine, where TLS protects tokens; give "
            "--tls-cert FILE and --tls-key FILE (`tunefarm certificates` makes them), or listen on "
            "127.0.0.1 and reach it by `ssh -L`"
        )


def serve(
    store: Store,
    address: Address,
    announce: Callable[[str], None],
    tracker: Tracker | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; ``announce`` is told the address once it answers. Jobs are
    changed by asking the ``tracker``.

    ServingError if it cannot listen there, or if beyond this machine no token would open it.
    """
    with listening(address) as place:
        url = replace(address, port=place.getsockname()[1]).url
        serve_at(place, store, address, lambda: announce(url), tracker)


def serve_at(
    place: socket.socket,
    store: Store,
    address: Address,
    announce: Callable[[], None],
    tracker: Tracker | None = None,
) -> None:
    """``serve`` on a socket that listens already."""
    import uvicorn
    from tunefarm.dashboard.app import create_app
    from tunefarm.dashboard.security import Guard

    own = tracker.own_digest if tracker is not None else lambda: ""
    guard = Guard(store, own, is_open=address.is_local)
    if not guard.is_open and not guard.is_open_to_somebody:
        raise ServingError(
            f"database {store.name} has no token that would open the dashboard; make one with "
            "`tunefarm token create NAME --role client`"
        )
    hosts = LOOPBACK + ("[::1]",) if address.is_local else ("*",)
    config = uvicorn.Config(
        create_app(store, guard, hosts, tracker),
        log_level="warning",
        access_log=False,
        ssl_certfile=address.cert or None,
        ssl_keyfile=address.key or None,
        timeout_graceful_shutdown=_GRACE_S,
        server_header=False,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise ServingError(f"certificate {address.cert} cannot be used: {error}") from None
    with suppress(KeyboardInterrupt):  # it raises again what ended it
        _server(config, address, announce).run(sockets=[place])


@contextmanager
def listening(address: Address) -> Iterator[socket.socket]:
    """A socket that listens there; ServingError if it cannot."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # asyncio sends without delay on sockets that say they are TCP's: a page would wait 40 ms for
    # the acknowledgement of its headers.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            place.bind((address.host, address.port))
        except OSError as error:
            raise ServingError(
                f"the dashboard cannot listen on {address.host} port {address.port}: "
                f"{error.strerror}; choose another with --port, 0 takes a free one"
            ) from None
        place.listen(128)
        yield place


def _server(config: uvicorn.Config, address: Address, announce: Callable[[], None]) -> Any:
    """A server that says when it answers, from when on signals end it in order, and that reads its
    certificate anew when the file changes."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            announce()

        async def on_tick(self, counter: int) -> bool:
            if counter % _TICKS == 0 and config.ssl is not None:
                renewal.look(config.ssl)
            return await super().on_tick(counter)

    renewal = _Renewal(address)
    return Server(config)


class _Renewal:
    """The files of a certificate, and when they last changed."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._seen = self._stamp()

    def look(self, context: ssl.SSLContext) -> None:
        """Give new connections what is in the files, if they changed and belong together."""
        stamp = self._stamp()
        if stamp == self._seen:
            return
        try:
            context.load_cert_chain(self._address.cert, self._address.key)
        except (OSError, ssl.SSLError) as error:
            _log.warning("the certificate stays as it was: %s", error)
        self._seen = stamp

    def _stamp(self) -> tuple[float, ...]:
        paths = [Path(path) for path in (self._address.cert, self._address.key) if path]
        return tuple(path.stat().st_mtime if path.exists() else 0.0 for path in paths)
