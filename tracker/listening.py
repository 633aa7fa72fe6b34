"""Where a tracker listens: in the clear on loopback, for others with TLS."""

from __future__ import annotations

import errno
import logging
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from tunefarm.proto.errors import InvalidRequest
from tunefarm.proto.tls import expires_at, read_pem
from tunefarm.tracker.options import LOOPBACK, TrackerOptions

LOCAL = "127.0.0.1"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Places:
    """HOST:PORT for everybody, for processes of this machine (in the clear), and for workers if
    they have a port of their own."""

    public: str
    local: str
    workers: str = ""

    def __str__(self) -> str:
        if self.public == self.local:
            return self.public
        workers = f", for workers on {self.workers}" if self.workers else ""
        return f"{self.public} with TLS{workers}, for this machine on {self.local}"


def check_options(options: TrackerOptions) -> None:
    """InvalidRequest if others could read what is sent, or if the options for TLS are no set."""
    if bool(options.tls_cert) != bool(options.tls_key):
        raise InvalidRequest("TLS takes both --tls-cert FILE and --tls-key FILE")
    if options.tls_client_ca and not options.tls_cert:
        raise InvalidRequest(
            "--tls-client-ca asks callers for certificates, which takes TLS: give --tls-cert FILE "
            "and --tls-key FILE as well"
        )
    if options.worker_port is not None and not options.tls_client_ca:
        raise InvalidRequest(
            "--worker-port is where workers show their certificates; give --tls-client-ca FILE "
            "with the CA that signed them"
        )
    if options.tls_cert or options.host in LOOPBACK:
        return
    raise InvalidRequest(
        f"the tracker does not listen on {options.host} in the clear, where others could read its "
        "tokens; give --tls-cert FILE and --tls-key FILE (`tunefarm certificates` makes them), or "
        "use 127.0.0.1 and an SSH tunnel"
    )


def listen(server: Any, options: TrackerOptions, last_port: int) -> Places:
    """Bind the server's ports; InvalidRequest if one is taken, or if a file is none for TLS.

    A port that is not asked for is that of the last run if it is free, else any free one.
    """
    if not options.tls_cert:
        port = options.port or _free(options.host, last_port)
        local = _bind(server, options.host, port, None)
        return Places(local, local)
    files = _Files(options)
    has_own_port = options.worker_port is not None
    asks = bool(options.tls_client_ca)
    public = _bind(server, options.host, options.port, files.credentials(asks and not has_own_port))
    local = _bind(server, LOCAL, _free(LOCAL, last_port), None)
    if options.worker_port is None:
        return Places(public, local)
    workers = _bind(server, options.host, options.worker_port, files.credentials(True))
    return Places(public, local, workers)


def certificates_end(options: TrackerOptions) -> dict[str, float]:
    """When the certificates in the tracker's files end, in seconds since the epoch: its own
    (``server``) and the CA that it asks callers for (``client_ca``). Those that cannot be read now
    are left out."""
    found = {}
    for name, file in (("server", options.tls_cert), ("client_ca", options.tls_client_ca)):
        if file:
            with suppress(InvalidRequest, ValueError):
                found[name] = expires_at(read_pem(Path(file), "CERTIFICATE"))
    return found


def _bind(server: Any, host: str, port: int, credentials: Any) -> str:
    place = f"[{host}]" if ":" in host else host
    if _refusal(host, port) == errno.EADDRINUSE:  # gRPC would print lines of its own too
        raise InvalidRequest(_taken(host, port))
    try:
        bound: int = (
            server.add_insecure_port(f"{place}:{port}")
            if credentials is None
            else server.add_secure_port(f"{place}:{port}", credentials)
        )
    except RuntimeError as error:
        raise InvalidRequest(_taken(host, port)) from error
    if bound == 0:
        raise InvalidRequest(_taken(host, port))
    return f"{host}:{bound}"


def _taken(host: str, port: int) -> str:
    return (
        f"port {port} of {host} is in use by another process; stop it, or leave the port out to "
        "get a free one"
    )


def _free(host: str, port: int) -> int:
    """The port if it is free, else 0."""
    return port if _refusal(host, port) is None else 0


def _refusal(host: str, port: int) -> int | None:
    """The system's reason not to give the port; None if it gives it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno
    return None


class _Files:
    """The files of a tracker's TLS; connections made after they change get what is in them."""

    def __init__(self, options: TrackerOptions) -> None:
        self._certificate = Path(options.tls_cert)
        self._key = Path(options.tls_key)
        self._client_ca = Path(options.tls_client_ca) if options.tls_client_ca else None
        self._configuration = self._read()
        self._seen = self._stamp()

    def credentials(self, asks: bool) -> Any:
        """What a port is opened with; it ``asks`` for certificates of the client CA, or not."""
        return grpc.dynamic_ssl_server_credentials(self._configuration, self._fresh, asks)

    def _fresh(self) -> Any:
        """Called for each connection: a configuration if the files changed, else None."""
        try:
            stamp = self._stamp()
            if stamp != self._seen:
                self._configuration = self._read()
                self._seen = stamp
                _log.info("read the certificate in %s anew", self._certificate)
        except (InvalidRequest, OSError) as error:
            _log.warning("the certificate stays as it was: %s", error)
        return self._configuration

    def _stamp(self) -> tuple[tuple[int, int, int], ...]:
        found = [path.stat() for path in (self._certificate, self._key, self._client_ca) if path]
        return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in found)

    def _read(self) -> Any:
        certificate = read_pem(self._certificate, "CERTIFICATE")
        key = read_pem(self._key, "PRIVATE KEY")
        client_ca = read_pem(self._client_ca, "CERTIFICATE") if self._client_ca else ""
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            raise InvalidRequest(
                f"the key in {self._key} does not open the certificate in {self._certificate} "
                f"({getattr(error, 'reason', None) or error}); name the two that belong together"
            ) from error
        return grpc.ssl_server_certificate_configuration(
            [(key.encode(), certificate.encode())], client_ca.encode() or None
        )


def _no_password() -> str:
    raise ValueError("it is encrypted; give one without a password, in a file of mode 0600")
