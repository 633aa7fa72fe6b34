"""The dashboard that a tracker serves: in a process of its own, started again when it dies.

Pages cost Python and memory; in the tracker's own process they would hold up heartbeats and
renewals of leases. So they have a process that the operating system may leave for later, and that
can fail alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tunefarm.proto.errors import InvalidRequest
from tunefarm.tracker.options import TrackerOptions

_log = logging.getLogger(__name__)
_MODULE = "tunefarm.dashboard.beside"
START_S = 30.0
STOP_S = 3.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""How long after its end the process is started again: longer each time, until it answers."""


@asynccontextmanager
async def dashboard(options: TrackerOptions, tracker: str) -> AsyncIterator[str]:
    """Serve the dashboard meanwhile, if that is wanted; yields its address. It asks the tracker at
    ``tracker`` for what changes jobs.

    InvalidRequest if it cannot listen there.
    """
    if options.dashboard_port is None:
        yield ""
        return
    with _listening(options.host, options.dashboard_port) as place:
        serving = asyncio.create_task(_keep(options, tracker, place))
        try:
            yield _url(options, place)
        finally:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving


def _listening(host: str, port: int) -> socket.socket:
    place = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        place.bind((host, port))
        place.listen(128)
    except OSError as error:
        place.close()
        raise InvalidRequest(
            f"the dashboard cannot listen on {host} port {port}: {error.strerror}; choose another "
            "with --dashboard-port, 0 takes a free one"
        ) from error
    return place


def _url(options: TrackerOptions, place: socket.socket) -> str:
    host = f"[{options.host}]" if ":" in options.host else options.host
    scheme = "https" if options.tls_cert else "http"
    return f"{scheme}://{host}:{place.getsockname()[1]}/"


async def _keep(options: TrackerOptions, tracker: str, place: socket.socket) -> None:
    """Run the process until this task is cancelled, again and again."""
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            answered, why = await _run(options, tracker, place)
        except OSError as error:
            answered, why = False, str(error)
        pause_s = FIRST_PAUSE_S if answered else pause_s
        _log.warning("the dashboard ended (%s); it starts again in %.0f s", why, pause_s)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


async def _run(options: TrackerOptions, tracker: str, place: socket.socket) -> tuple[bool, str]:
    """Run the process to its end: whether it ever answered, and how it ended."""
    process = await _start(options, tracker, place)
    try:
        answered = await _answers(process)
        return answered, f"exit code {await process.wait()}"
    finally:
        await _end(process)


async def _start(options: TrackerOptions, tracker: str, place: socket.socket) -> Process:
    number = place.fileno()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", _MODULE,
        stdin=PIPE, stdout=PIPE, pass_fds=[number], start_new_session=True,
    )  # fmt: skip
    settings = {
        "database": options.database,
        "tracker": tracker,
        "socket": number,
        "host": options.host,
        "cert": options.tls_cert,
        "key": options.tls_key,
        "rendezvous": str(options.rendezvous_file or ""),
    }
    assert process.stdin is not None
    process.stdin.write(json.dumps(settings).encode() + b"\n")
    return process


async def _answers(process: Process) -> bool:
    """Wait until the process says that it answers; False if it ends or takes too long."""
    assert process.stdout is not None
    with suppress(TimeoutError):
        return bool(await asyncio.wait_for(process.stdout.readline(), START_S))
    return False


async def _end(process: Process) -> None:
    """End the process, gently at first."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), STOP_S)
            return
        process.kill()
    await process.wait()
