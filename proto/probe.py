"""A small HTTP face of a process, for those that watch it: probes of its health, its metrics."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6

from tunefarm.proto.errors import InvalidRequest

_log = logging.getLogger(__name__)
_PATIENCE_S = 10.0
"""How long a caller may take over its request."""


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    status: int = 200
    type: str = "text/plain; charset=utf-8"


Routes = Mapping[str, Callable[[], Answer]]


def health(problem: str) -> Answer:
    """What a probe is told: 200, or 503 with what is wrong."""
    return Answer(f"{problem}\n", 503) if problem else Answer("ok\n")


@contextmanager
def answering(host: str, port: int, routes: Routes) -> Iterator[int]:
    """Answer GET of these paths in threads of its own meanwhile; yields the port (0: a free one).

    InvalidRequest if it cannot listen there.
    """
    try:
        server = (_Server6 if ":" in host else _Server)((host, port), _handler(routes))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidRequest(
            f"cannot answer HTTP at {host}:{port}: {reason}; choose another port, or 0 for a free "
            "one"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="tunefarm-http", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True


class _Server6(_Server):
    address_family = AF_INET6


def _handler(routes: Routes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version = "tunefarm"
        sys_version = ""
        timeout = _PATIENCE_S

        def do_GET(self) -> None:
            self._send(_answer_of(routes, self.path.partition("?")[0]))

        def _send(self, answer: Answer) -> None:
            body = answer.text.encode()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            _log.debug(format, *arguments)

    return Handler


def _answer_of(routes: Routes, path: str) -> Answer:
    if path not in routes:
        return Answer(f"there is {', '.join(sorted(routes))} here\n", 404)
    try:
        return routes[path]()
    except Exception as error:
        _log.warning("GET %s failed", path, exc_info=True)
        return Answer(f"{type(error).__name__}\n", 500)
