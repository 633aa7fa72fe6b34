"""Workers on a Ray cluster: an actor on each node, which keeps a ``tunefarm worker`` running.

    tunefarm worker --ray --tracker worker.json

An actor holds the resources of its node, so that Ray runs nothing else on the cores that time. It
starts its worker again when that dies; Ray starts the actor again when it or its node dies.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefarm.compiler.errors import TunefarmError
from tunefarm.proto.rendezvous import Rendezvous, write_rendezvous
from tunefarm.proto.stopping import stopping
from tunefarm.tracker.options import LOOPBACK

STOP_S = 30.0
"""How long a worker may take to hand back what it holds."""
LOOK_S = 2.0
KNOCK_S = 5.0
TELL_EVERY_S = 30.0
RESTART_S = (1.0, 30.0)
"""Pause before a worker is started again: at first, and at most when it dies again and again."""
LASTING_S = 60.0
"""A worker that ran for so long has not died again and again."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RayOptions:
    """``address`` is a cluster's, "local" for one of this process, empty for the one that runs here
    or that RAY_ADDRESS names. ``workers`` 0 means one on each node that has what it takes, and
    ``cpus`` 0 all of the smallest node's."""

    address: str = ""
    workers: int = 0
    cpus: float = 0.0
    gpus: float = 0.0


class Hosted:
    """A worker's process, started again when it ends. Runs in a Ray actor; see ``run_on_ray``."""

    def __init__(self, arguments: Sequence[str], place: Rendezvous, restart_s: float) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tunefarm-ray-")
        file = Path(self._folder.name) / "tracker.json"
        write_rendezvous(file, place)
        given = ["worker", "--rendezvous", str(file), *arguments, "--exit-with-parent"]
        self._command = [sys.executable, "-P", "-m", "tunefarm", *given]
        self._restart_s = restart_s
        self._stopped = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        # The kernel ends the worker when the thread that started it ends: it lasts with the actor.
        self._thread = threading.Thread(target=self._keep, name="tunefarm-worker")
        self._thread.start()

    def state(self) -> tuple[str, int, int]:
        """(host, process id, how often it was started)."""
        process = self._process
        return os.uname().nodename, process.pid if process else 0, self._starts

    def stop(self, grace_s: float) -> None:
        """Have the worker hand back what it holds and end; it is killed after that time."""
        self._stopped.set()
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)
            process.kill()
        self._thread.join()
        self._folder.cleanup()

    def _keep(self) -> None:
        pause_s = self._restart_s
        while not self._stopped.is_set():
            began = time.monotonic()
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL)
            self._starts += 1
            self._process.wait()
            lasted = time.monotonic() - began > LASTING_S
            pause_s = self._restart_s if lasted else min(2 * pause_s, RESTART_S[1])
            self._stopped.wait(pause_s)


def run_on_ray(options: RayOptions, arguments: Sequence[str], place: Rendezvous) -> None:
    """Run workers on a Ray cluster until SIGTERM or SIGINT; then they hand back what they hold.

    ``arguments`` go to each ``tunefarm worker``, ``place`` is where all find the tracker.
    TunefarmError if Ray is not installed, has no cluster, or no node with such resources.
    """
    ray = _connected(options.address)
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        count, resources = plan(nodes, options)
        check_reachable(len(nodes), place)
        _keep_workers(ray, count, resources, arguments, place)
    finally:
        ray.shutdown()


def _connected(address: str) -> Any:
    """The module ``ray``, joined to the cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise TunefarmError("--ray needs Ray; pip install 'tunefarm[ray]'") from error
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": True}
    if address == "local":
        ray.init(address="local", include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
        return ray
    chosen = address or os.environ.get("RAY_ADDRESS", "auto")
    try:
        if ":" in chosen:
            _knock(chosen)  # Ray itself would try for minutes
        ray.init(address=chosen, **quiet)
    except OSError as error:  # ConnectionError is one
        where = "" if chosen == "auto" else f" at {chosen}"
        raise TunefarmError(
            f"no Ray cluster answers{where}; start one with `ray start --head`, or give "
            "--ray-address local for one on this machine alone"
        ) from error
    return ray


def _knock(address: str) -> None:
    """OSError if nothing listens at HOST:PORT."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    socket.create_connection((host, int(port)), KNOCK_S).close()


def plan(nodes: Sequence[Mapping[str, float]], options: RayOptions) -> tuple[int, dict[str, float]]:
    """How many workers, and what each takes of its node; TunefarmError if nodes have too little."""
    able = [
        node
        for node in nodes
        if node.get("CPU", 0) >= max(options.cpus, 1) and node.get("GPU", 0) >= options.gpus
    ]
    wanted = f"{options.cpus or 1:g} CPUs" + (f" and {options.gpus:g} GPUs" if options.gpus else "")
    if len(able) < max(options.workers, 1):
        raise TunefarmError(
            f"{len(able)} of the {len(nodes)} nodes of the Ray cluster have {wanted}, and "
            f"{max(options.workers, 1)} are asked for: one worker a node; lower --ray-workers, "
            "--ray-cpus or --ray-gpus"
        )
    cpus = options.cpus or min(node["CPU"] for node in able)
    resources = {"CPU": cpus} | ({"GPU": options.gpus} if options.gpus else {})
    return options.workers or len(able), resources


def check_reachable(nodes: int, place: Rendezvous) -> None:
    """TunefarmError if only this machine of several could reach the tracker."""
    host = place.address.rpartition(":")[0].strip("[]")
    if host in LOOPBACK and nodes > 1:
        raise TunefarmError(
            f"the tracker at {place.address} cannot be reached from other nodes; let it listen "
            "on --host 0.0.0.0 with TLS, and give what `tunefarm token create --file` made"
        )


def _keep_workers(
    ray: Any, count: int, resources: dict[str, float], arguments: Sequence[str], place: Rendezvous
) -> None:
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    stopped = threading.Event()
    with stopping(stopped.set):
        group = placement_group([resources] * count, strategy="STRICT_SPREAD")
        if not _placed(ray, group, stopped):
            remove_placement_group(group)
            return
        actor = ray.remote(Hosted)
        actors = [
            actor.options(
                num_cpus=resources["CPU"],
                num_gpus=resources.get("GPU", 0),
                max_restarts=-1,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
            ).remote(arguments, place, RESTART_S[0])
            for index in range(count)
        ]
        print(f"{count} workers on Ray, each with {_told(resources)}", flush=True)
        _watch(ray, actors, stopped)
        _stop(ray, actors)
        remove_placement_group(group)


def _placed(ray: Any, group: Any, stopped: threading.Event) -> bool:
    """Wait until Ray has given the resources; False if stopped meanwhile."""
    told = time.monotonic()
    while not ray.wait([group.ready()], timeout=LOOK_S)[0]:
        if stopped.is_set():
            return False
        if time.monotonic() - told > TELL_EVERY_S:
            told = time.monotonic()
            _log.warning("waiting for Ray to give the resources; `ray status` says who has them")
    return True


def _watch(ray: Any, actors: Sequence[Any], stopped: threading.Event) -> None:
    """Log which workers start, and start again, until stopped."""
    known: dict[int, tuple[str, int, int]] = {}
    while not stopped.wait(LOOK_S):
        for index, actor in enumerate(actors):
            try:
                state = ray.get(actor.state.remote(), timeout=LOOK_S)
            except ray.exceptions.GetTimeoutError:
                continue
            except ray.exceptions.RayError as error:
                _log.warning("the actor of worker %d is away: %s", index, type(error).__name__)
                continue
            if known.get(index) != state:
                _log.info("worker %d runs on %s as process %d, start %d", index, *state)
                known[index] = state


def _stop(ray: Any, actors: Sequence[Any]) -> None:
    ending = [actor.stop.remote(STOP_S) for actor in actors]
    ray.wait(ending, num_returns=len(ending), timeout=STOP_S + LOOK_S)
    for actor in actors:
        ray.kill(actor)


def _told(resources: dict[str, float]) -> str:
    return " and ".join(f"{number:g} {name}s" for name, number in resources.items())
