"""``tunefarm worker --ray`` on a real local Ray cluster: workers start, come back, and stop."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tunefarm.compiler.errors import TunefarmError
from tunefarm.proto.client import FarmClient
from tunefarm.proto.rendezvous import Rendezvous

from tests.patience import wait_for
from tunefarm.cli.app import run
from tunefarm.farm import connect
from tunefarm.on_ray import RayOptions, check_reachable, plan

PATIENCE_S = 90.0
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed; pip install ray"
)


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tunefarm", *arguments], stdout=subprocess.PIPE, text=True
    )


@pytest.fixture
def rendezvous(tmp_path: Path, home: Path) -> Iterator[str]:
    tracker = start("tracker", "--db", str(tmp_path / "farm.db"), "--lease-term-s", "3")
    assert tracker.stdout is not None
    assert tracker.stdout.readline()
    yield str(tmp_path / "farm.db.tracker.json")
    tracker.kill()
    tracker.communicate()


@pytest.fixture
def launcher(rendezvous: str) -> Iterator[subprocess.Popen[str]]:
    """One worker of a simulated device, on a Ray of its own."""
    options = ["--ray", "--ray-address", "local", "--ray-cpus", "1", "--target", "sim"]
    launched = start("worker", *options, "--rendezvous", rendezvous, "--tag", "by=ray")
    yield launched
    below = psutil.Process(launched.pid).children(recursive=True) if launched.poll() is None else []
    for process in [*below, launched]:
        process.kill()
    launched.communicate()


@pytest.fixture
def client(rendezvous: str) -> Iterator[FarmClient]:
    with connect(rendezvous) as client:
        yield client


def below(launcher: subprocess.Popen[str], sign: str) -> list[psutil.Process]:
    """The launcher's processes, at any depth, whose command line has the sign."""
    found = []
    for process in psutil.Process(launcher.pid).children(recursive=True):
        try:
            if sign in " ".join(process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def workers(launcher: subprocess.Popen[str]) -> set[int]:
    return {process.pid for process in below(launcher, "-m tunefarm worker")}


@needs_ray
def test_a_worker_comes_back_after_its_death_and_its_actors(
    launcher: subprocess.Popen[str], client: FarmClient
) -> None:
    wait_for(lambda: [d.state for d in client.devices()] == ["idle"])
    (device,) = client.devices()
    assert device.attributes["by"] == "ray"
    (first,) = workers(launcher)
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: workers(launcher) - {first})
    wait_for(lambda: [d.state for d in client.devices()] == ["idle"])
    (second,) = workers(launcher)
    (actor,) = below(launcher, "ray::Hosted")
    actor.kill()
    wait_for(lambda: workers(launcher) - {first, second})
    wait_for(lambda: not psutil.pid_exists(second))
    wait_for(lambda: [d.state for d in client.devices()] == ["idle"])
    (third,) = workers(launcher)
    launcher.terminate()
    assert launcher.wait(PATIENCE_S) == 0
    wait_for(lambda: not psutil.pid_exists(third))
    wait_for(lambda: [d.state for d in client.devices()] == ["offline"])


def test_a_worker_takes_a_whole_node_unless_told() -> None:
    nodes = [{"CPU": 64.0, "GPU": 8.0}, {"CPU": 32.0}, {"memory": 1.0}]
    assert plan(nodes, RayOptions()) == (2, {"CPU": 32.0})
    assert plan(nodes, RayOptions(workers=1, cpus=4)) == (1, {"CPU": 4})
    assert plan(nodes, RayOptions(gpus=2)) == (1, {"CPU": 64.0, "GPU": 2})
    with pytest.raises(
        TunefarmError, match="1 of the 3 nodes of the Ray cluster have 40 CPUs and 1"
    ):
        plan(nodes, RayOptions(workers=2, cpus=40, gpus=1))


def test_other_nodes_cannot_reach_a_tracker_on_loopback() -> None:
    check_reachable(1, Rendezvous("127.0.0.1:9190", "t"))
    check_reachable(2, Rendezvous("lab1:9190", "t"))
    with pytest.raises(TunefarmError, match="cannot be reached from other nodes"):
        check_reachable(2, Rendezvous("[::1]:9190", "t"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--name", "w"], "--name and --health-port are for one worker; leave them out"),
        (["--ray-address", "127.0.0.1:1"], "no Ray cluster answers at 127.0.0.1:1; start one"),
    ],
)
@needs_ray
def test_a_mistake_is_one_sentence(
    options: list[str], sentence: str, rendezvous: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["worker", "--ray", "--rendezvous", rendezvous, *options]) == 2
    assert sentence in capfd.readouterr().err
