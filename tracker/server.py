"""The tracker's process: from options to a listening server, and down again."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from tunefarm.db.dialect import driver_place, sole_use, sqlite_path
from tunefarm.db.store import Store
from tunefarm.proto import farm_pb2, farm_pb2_grpc
from tunefarm.proto.connection import MAX_MESSAGE_BYTES
from tunefarm.proto.errors import FarmError, InvalidRequest
from tunefarm.proto.probe import answering
from tunefarm.proto.rendezvous import Rendezvous, read_rendezvous, write_rendezvous
from tunefarm.tracker.auth import Gate
from tunefarm.tracker.beside import dashboard
from tunefarm.tracker.farm import Farm
from tunefarm.tracker.idling import Idling
from tunefarm.tracker.keyring import Keyring
from tunefarm.tracker.leasing import Desk
from tunefarm.tracker.listening import check_options, listen
from tunefarm.tracker.metrics import Metrics
from tunefarm.tracker.options import TrackerOptions
from tunefarm.tracker.policy import BULK
from tunefarm.tracker.pruning import keep_pruning
from tunefarm.tracker.replicas import Replicas
from tunefarm.tracker.servicers import FarmServicer, WorkerServicer
from tunefarm.tracker.timing import CallTimes
from tunefarm.tracker.tokens import TokensServicer
from tunefarm.tracker.writer import Database

GRACE_S = 2.0
"""How long calls under way may finish at shutdown."""
SWITCH_S = 0.001
"""How soon a thread lets another run. The one that writes needs a moment between any two messages
of the database: with Python's 5 ms it waits longer for the event loop than for the database."""

_log = logging.getLogger(__name__)
_SERVICES = ("Worker", "Farm", "Tokens")
SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", BULK + 1024),
    ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a small message may unpack to a huge
    ("grpc.max_concurrent_streams", 1024),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
)


def main_serve(
    options: TrackerOptions, on_ready: Callable[[Rendezvous], None] | None = None
) -> None:
    """Run a tracker until SIGTERM or SIGINT; StoreError or FarmError if it cannot start."""
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    sys.setswitchinterval(SWITCH_S)
    asyncio.run(serve(options, on_ready=on_ready))


async def serve(
    options: TrackerOptions, *, on_ready: Callable[[Rendezvous], None] | None = None
) -> None:
    """Run a tracker until SIGTERM or SIGINT (or until this task is cancelled).

    Prints ``tracker listening on HOST:PORT`` when it is ready. StoreError says what is wrong with
    the database, InvalidRequest what is wrong with the options.
    """
    check_options(options)
    last = _last_run(options.rendezvous_file)
    token = options.token or (last.token if last else "") or secrets.token_urlsafe(24)
    store = Store.open(options.database)
    with _exclusive(store):
        database = Database(store)
        try:
            await _serve(options, database, store.name, token, last, on_ready)
        finally:
            await asyncio.to_thread(database.close)


async def _serve(
    options: TrackerOptions,
    database: Database,
    name: str,
    token: str,
    last: Rendezvous | None,
    on_ready: Callable[[Rendezvous], None] | None,
) -> None:
    farm = Farm(options, database)
    await farm.load()
    desk = Desk(farm)
    keyring = Keyring(token, database)
    await keyring.load()
    _check_way_in(options, keyring)
    gate = Gate(keyring, farm.counts, bool(options.tls_client_ca))
    interceptors = [CallTimes(farm.counts), gate]
    server = grpc.aio.server(interceptors=interceptors, options=SERVER_OPTIONS)
    checks = await _add_services(server, farm, desk, keyring, name)
    places = listen(server, options, last.port if last else 0)
    background = await _join(desk, options.database, places.public)
    await server.start()
    rendezvous = Rendezvous(places.local, token, options.database, os.getpid())
    if options.rendezvous_file is not None:
        write_rendezvous(options.rendezvous_file, rendezvous)
    stop = _stop_on_signals()
    serving = asyncio.create_task(desk.serve())
    watching = asyncio.create_task(keyring.keep())
    idling = asyncio.create_task(Idling(farm, desk).serve())
    background += [serving, watching, idling]
    if options.retention is not None:
        background.append(asyncio.create_task(keep_pruning(farm, options.retention)))
    gc.freeze()  # what is there by now stays: collections that look at it hold calls up
    try:
        async with (
            _watched(options, farm, desk) as metrics,
            dashboard(options, places.local) as pages,
        ):
            print(f"tracker listening on {places}", flush=True)
            if on_ready is not None:
                on_ready(rendezvous)
            if metrics:
                print(f"metrics at {metrics}", flush=True)
            if pages:
                print(f"dashboard at {pages}", flush=True)
            await asyncio.wait(
                [serving, asyncio.ensure_future(stop.wait())], return_when=asyncio.FIRST_COMPLETED
            )
            if serving.done():
                serving.result()
            farm.closing = True
    finally:
        await checks.enter_graceful_shutdown()
        farm.closing = True
        farm.signals.notify_all()
        await server.stop(GRACE_S)
        for task in background:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def _join(desk: Desk, database: str, address: str) -> list[asyncio.Task[None]]:
    """Be one of the trackers of the database, if it may have several; what that goes on with."""
    if not desk.farm.database.is_shared:
        return []
    replicas = Replicas(desk.farm, desk, address)
    desk.join(replicas)
    await replicas.exchange()
    return replicas.keep_in_touch(driver_place(database))


def _check_way_in(options: TrackerOptions, keyring: Keyring) -> None:
    """InvalidRequest if nobody could call the tracker: no file would tell its token, and the
    database has none."""
    if keyring.is_empty and not options.token and options.rendezvous_file is None:
        raise InvalidRequest(
            "nobody could call this tracker, as it writes no rendezvous file and its database has "
            "no token; give --rendezvous FILE, or make a token first with `tunefarm token create "
            "NAME --role admin --db URL`"
        )


@asynccontextmanager
async def _watched(options: TrackerOptions, farm: Farm, desk: Desk) -> AsyncIterator[str]:
    """Answer scrapes and probes meanwhile, if that is wanted; yields where the metrics are."""
    if options.metrics_port is None:
        yield ""
        return
    metrics = Metrics(farm, desk)
    await metrics.start()
    host = options.metrics_host
    with answering(host, options.metrics_port, metrics.routes()) as port:
        yield f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"


async def _add_services(
    server: Any, farm: Farm, desk: Desk, keyring: Keyring, database: str
) -> Any:
    """Register all services; returns the health servicer."""
    farm_pb2_grpc.add_WorkerServicer_to_server(WorkerServicer(farm), server)  # type: ignore[no-untyped-call]
    farm_pb2_grpc.add_FarmServicer_to_server(FarmServicer(farm, desk, database), server)  # type: ignore[no-untyped-call]
    farm_pb2_grpc.add_TokensServicer_to_server(TokensServicer(farm, keyring), server)  # type: ignore[no-untyped-call]
    checks = health.aio.HealthServicer()  # type: ignore[attr-defined]
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    names = [farm_pb2.DESCRIPTOR.services_by_name[name].full_name for name in _SERVICES]
    for name in names:
        await checks.set(name, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection([*names, reflection.SERVICE_NAME], server)
    return checks


def _last_run(path: Path | None) -> Rendezvous | None:
    """Where the tracker of this file last listened, and its token; None if that is unknown."""
    if path is None or not path.exists():
        return None
    try:
        return read_rendezvous(path)
    except FarmError as error:
        _log.warning("%s", error)
        return None


@contextmanager
def _exclusive(store: Store) -> Iterator[None]:
    """Keep a second tracker off a SQLite database; PostgreSQL serves several."""
    path = sqlite_path(store.url)
    if path is None:
        yield
        return
    with sole_use(path):
        yield


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, stop.set)
    return stop
