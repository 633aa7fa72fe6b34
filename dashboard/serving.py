"""Running the dashboard as a server of its own."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tunefarm.db.store import Store

if TYPE_CHECKING:
    import uvicorn

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PACKAGES = ("fastapi", "jinja2", "uvicorn")
_GRACE_S = 1


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


def serve(store: Store, address: Address, announce: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; ``announce`` is told the address once it answers.

    ServingError if it cannot listen there, or if beyond this machine no token would open it.
    """
    import uvicorn
    from tunefarm.dashboard.app import create_app
    from tunefarm.dashboard.security import Guard

    guard = None if address.is_local else Guard(store)
    if guard is not None and not guard.is_open_to_somebody:
        raise ServingError(
            f"database {store.name} has no token that would open the dashboard; make one with "
            "`tunefarm token create NAME --role client`"
        )
    app = create_app(store, guard, LOOPBACK + ("[::1]",) if address.is_local else ("*",))
    config = uvicorn.Config(
        app,
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
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((address.host, address.port))
        except OSError as error:
            raise ServingError(
                f"the dashboard cannot listen on {address.host} port {address.port}: "
                f"{error.strerror}; choose another with --port, 0 takes a free one"
            ) from None
        listening.listen(128)
        url = replace(address, port=listening.getsockname()[1]).url
        with suppress(KeyboardInterrupt):  # it raises again what ended it
            _announcing(config, lambda: announce(url)).run(sockets=[listening])


def _announcing(config: uvicorn.Config, announce: Callable[[], None]) -> uvicorn.Server:
    """A server that says when it answers, and from when on signals end it in order."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            announce()

    return Server(config)
