"""The worker process: devices on one side, one long-poll Sync with the tracker on the other.

Both directions of a Sync are declarative: the worker says what it holds and what it has measured,
the tracker what to do and what is settled. A lost message is repaired by the next one, and a
result is told again until it is settled.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tunefarm.compiler.plugins import loaded
from tunefarm.compiler.version import compiler_version
from tunefarm.db.records import COMPILER_TAG, Device, WorkerOrders, WorkerState, plugin_tags
from tunefarm.proto.pauses import SPREAD, Pauses
from tunefarm.proto.probe import Answer, Routes, answering, health
from tunefarm.proto.stopping import stopping
from tunefarm.worker.device import DeviceOptions, OpenDevice, open_device
from tunefarm.worker.holdings import Holdings
from tunefarm.worker.pulse import MAX_DRIFT

if TYPE_CHECKING:
    from tunefarm.proto.client import FarmClient
    from tunefarm.proto.tls import Tls

_log = logging.getLogger(__name__)
_WAIT_S = 10.0
_FIRST_TERM_S = 10.0
_PATIENCE_S = 30.0
_GOODBYE_S = 5.0
_RESULTS_A_SYNC = 256
_STUCK_S = 120.0
"""After how long without a turn the conversation counts as stuck; a turn takes 25 s at most."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What ``tunefarm worker`` and the embedded farm decide.

    The tracker is named by ``rendezvous`` (a file that it wrote, read again when the tracker
    cannot be reached) or by ``tracker`` (HOST:PORT), ``token`` and ``tls``. ``targets`` are the
    devices to offer, none meaning this host. ``name`` outlives the process; by default it is made
    of the host's name and the devices. ``capacity`` is how many candidates a device holds at a
    time, and ``build_processes`` 0 means one a core. Jobs can select its devices by ``tags``,
    beside those that the devices tell of themselves and ``host``. With ``health_port`` (0: a free
    one) it answers probes over HTTP there. ``max_drift`` is how much slower the reference loop of
    a device may get before it measures no more (0: as much as it likes).
    """

    tracker: str = ""
    token: str = field(default="", repr=False)
    rendezvous: Path | None = None
    targets: tuple[str, ...] = ()
    name: str = ""
    build_processes: int = 0
    memory_bytes: int = 4 << 30
    capacity: int = 16
    tags: Mapping[str, str] = field(default_factory=dict)
    health_port: int | None = None
    health_host: str = "127.0.0.1"
    tls: Tls | None = None
    max_drift: float = MAX_DRIFT


def run_worker(
    options: WorkerOptions, *, on_ready: Callable[[Sequence[OpenDevice]], None] | None = None
) -> None:
    """Offer devices to the tracker until SIGTERM or SIGINT.

    ``on_ready`` is called with the devices when the tracker has first answered. Raises TargetError
    for a device that cannot be opened, and the errors of ``proto.errors`` when the tracker refuses
    this worker for good: TokenRefused, InvalidRequest, Superseded by a newer process of its name.
    """
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    with ExitStack() as stack:
        devices = []
        for one in _device_options(options):
            devices.append(open_device(one))
            stack.callback(devices[-1].close)
        _tell_sandbox(devices)
        loop = SyncLoop(options, devices)
        if options.health_port is not None:
            at = stack.enter_context(
                answering(options.health_host, options.health_port, loop.probes())
            )
            print(f"health at http://{options.health_host}:{at}/healthz", flush=True)
        with stopping(loop.stop):
            loop.run(lambda: on_ready(devices) if on_ready else None)


class SyncLoop:
    """The conversation with the tracker. ``stop`` may be called from any thread."""

    def __init__(self, options: WorkerOptions, devices: Sequence[OpenDevice]) -> None:
        self._options = options
        self._stopped = threading.Event()
        self._news = threading.Event()
        self._wake = threading.Event()
        self._holdings = Holdings(devices, compiler_version(), self._tell_news)
        self._name = options.name or default_name(devices)
        self._devices = tuple(devices)
        self._incarnation = uuid.uuid4().hex
        self._number = 0
        self._term_s = _FIRST_TERM_S
        self._answered_at = time.monotonic()
        self._failing_since: float | None = None
        self._pauses = Pauses()
        self._turned_at = time.monotonic()
        self._threads: list[threading.Thread] = []
        self._ready = False
        self._client = _connect(options)
        self._calls = ThreadPoolExecutor(2, thread_name_prefix="tunefarm-sync")

    def stop(self) -> None:
        self._stopped.set()
        self._tell_news()

    def run(self, on_ready: Callable[[], None]) -> None:
        """Sync until stopped; then tell the results that are left."""
        benches = list(self._holdings.benches.values())
        self._threads = [threading.Thread(target=self._holdings.serve, args=(b,)) for b in benches]
        for thread in self._threads:
            thread.start()
        try:
            self._converse(on_ready)
            self._say_goodbye()
        finally:
            self._holdings.close()
            for thread in self._threads:
                thread.join()
            self._client.close()
            self._calls.shutdown(wait=False)

    def _converse(self, on_ready: Callable[[], None]) -> None:
        """Keep one Sync under way; news of our own starts the next, which ends it."""
        pending: list[tuple[float, Future[WorkerOrders]]] = []
        while not self._stopped.is_set():
            self._turned_at = time.monotonic()
            self._news.clear()
            wait_s = min(_WAIT_S, self._term_s / 3) * random.uniform(*SPREAD)
            pending.append((time.monotonic(), self._start_sync(wait_s)))
            while len(pending) > 1:
                self._settle(*pending.pop(0))
            self._wait_for(pending[0][1])
            if pending[0][1].done() and self._settle(*pending.pop()) and not self._ready:
                self._ready = True
                on_ready()

    def probes(self) -> Routes:
        """What it answers over HTTP: whether it works, and whether the tracker hears it."""
        return {"/healthz": self._alive, "/readyz": self._reachable}

    def _alive(self) -> Answer:
        turned_s = time.monotonic() - self._turned_at
        if turned_s > _STUCK_S and not self._stopped.is_set():
            return health(f"the worker has been stuck for {turned_s:.0f} s")
        dead = [thread.name for thread in self._threads if not thread.is_alive()]
        if dead and not self._stopped.is_set():
            return health(f"the thread of a device has ended: {', '.join(dead)}")
        return health("")

    def _reachable(self) -> Answer:
        silent_s = time.monotonic() - self._answered_at
        if self._stopped.is_set():
            return health("the worker is stopping")
        if not self._ready or silent_s > self._term_s:
            return health(f"the tracker has not answered for {silent_s:.0f} s")
        return health("")

    def _start_sync(self, wait_s: float, capacity: int | None = None) -> Future[WorkerOrders]:
        self._number += 1
        held, results = self._holdings.snapshot()
        state = WorkerState(
            worker=self._name,
            incarnation=self._incarnation,
            number=self._number,
            compiler_version=compiler_version(),
            devices=tuple(
                _offered(d.device, self._name, self._options.tags) for d in self._devices
            ),
            held=held,
            results=results[:_RESULTS_A_SYNC],
            capacity=self._options.capacity if capacity is None else capacity,
        )
        call = self._client.start_sync(state, wait_s)
        future = self._calls.submit(call.result)
        future.add_done_callback(lambda _: self._wake.set())
        return future

    def _wait_for(self, call: Future[WorkerOrders]) -> None:
        """Wait for the answer or for news; stop all kernels when the term passes in silence."""
        while not (call.done() or self._news.is_set()):
            self._wake.clear()
            left_s = self._answered_at + self._term_s - time.monotonic()
            if left_s <= 0:
                self._holdings.drop_all()
            if not (call.done() or self._news.is_set()):
                self._wake.wait(left_s if left_s > 0 else self._term_s)

    def _tell_news(self) -> None:
        self._news.set()
        self._wake.set()

    def _settle(self, sent_at: float, call: Future[WorkerOrders]) -> bool:
        """Obey the answer of a Sync; False if there was none, after a pause.

        Raises what the tracker refuses for good.
        """
        from tunefarm.proto.errors import InvalidRequest, StorageFailed, TrackerUnavailable

        try:
            orders = call.result()
        except (TrackerUnavailable, StorageFailed, InvalidRequest) as error:
            self._endure(error, for_good=isinstance(error, InvalidRequest))
            return False
        self._failing_since = None
        self._pauses.after_success()
        self._answered_at = max(self._answered_at, sent_at)
        self._term_s = orders.term_s or self._term_s
        self._holdings.obey(orders)
        return True

    def _endure(self, error: Exception, *, for_good: bool) -> None:
        """Pause before the next try; raise what has not passed in ``_PATIENCE_S`` seconds."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
            _log.warning("%s; trying again", error)
        elif for_good and now - self._failing_since > _PATIENCE_S:
            raise error
        if now - self._answered_at > self._term_s:
            self._holdings.drop_all()
        self._stopped.wait(self._pauses.after_failure(self._term_s / 2))

    def _say_goodbye(self) -> None:
        """Stop the kernels, and tell the results that are left once more."""
        from tunefarm.proto.errors import FarmError

        self._holdings.drop_all()
        with suppress(FarmError, TimeoutError):
            self._holdings.obey(self._start_sync(0.0, capacity=0).result(_GOODBYE_S))


def _tell_sandbox(devices: Sequence[OpenDevice]) -> None:
    """One warning, at the start, if candidates are confined by less than this program can do."""
    found = {d.device.attributes["sandbox"] for d in devices if "sandbox" in d.device.attributes}
    for names in found:
        lacking = [name for name in ("seccomp", "landlock") if name not in names]
        if lacking:
            _log.warning(
                "this kernel has no %s: candidates are confined by %s and resource limits alone; "
                "see What a candidate may do in docs/operations.md",
                " and no ".join(lacking),
                names,
            )


def default_name(devices: Sequence[OpenDevice]) -> str:
    """The host's name, and a digest of the devices: the same for every process that serves them."""
    content = " ".join(sorted(d.device.id for d in devices))
    return f"{socket.gethostname()}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"


def _offered(device: Device, worker: str, tags: Mapping[str, str]) -> Device:
    """The device as the tracker is told of it, with the tags of this process, and its compiler if
    that is not the worker's."""
    plugins = plugin_tags(map(str, loaded().values()))
    attributes = {"host": socket.gethostname(), **device.attributes, **tags, **plugins}
    if device.compiler_version not in ("", compiler_version()):
        attributes[COMPILER_TAG] = device.compiler_version
    return replace(device, worker=worker, attributes=attributes)


def _device_options(options: WorkerOptions) -> list[DeviceOptions]:
    return [
        DeviceOptions(
            target,
            build_processes=options.build_processes,
            memory_bytes=options.memory_bytes,
            name=name,
            max_drift=options.max_drift,
        )
        for target, name in named_devices(options.targets)
    ]


def named_devices(targets: Sequence[str]) -> list[tuple[str, str]]:
    """The target and the name of each device that a worker offers: those that are asked for, or
    this host's processor and, where there is a driver for them, its GPUs."""
    from tunefarm.compiler.target import Target
    from tunefarm.worker.cuda.discovery import is_gpu_target, offers

    named: list[tuple[str, str]] = []
    seen: Counter[str] = Counter()
    taken: set[int] = set()
    for text in targets or _all_here():
        if is_gpu_target(text):
            found = offers(text, taken)
            taken.update(ordinal for _, ordinal in found)
            named += [(target, str(ordinal)) for target, ordinal in found]
            continue
        target = Target(text).text
        named.append((target, str(seen[target]) if seen[target] else ""))
        seen[target] += 1
    return named


def _all_here() -> list[str]:
    """This host's processor, and all its GPUs; a warning says why those cannot be offered."""
    from tunefarm.compiler.errors import TargetError
    from tunefarm.compiler.target import Target
    from tunefarm.worker.cuda.discovery import find_gpus, has_driver

    host = [Target.host().text]
    if not has_driver():
        return host
    try:
        find_gpus()
    except TargetError as error:
        _log.warning("the GPUs of this machine are not offered: %s", error)
        return host
    return [*host, "cuda"]


def _connect(options: WorkerOptions) -> FarmClient:
    """A client of the tracker, which is followed where its file says."""
    from tunefarm.proto.client import FarmClient

    if options.rendezvous is not None:
        return FarmClient.from_rendezvous(options.rendezvous)
    return FarmClient(options.tracker, options.token, tls=options.tls)
