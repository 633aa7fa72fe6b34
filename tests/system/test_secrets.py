"""Tokens and keys are in their files and in memory, and nowhere else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from tunefarm.db.records import Job, JobState, Role, Token
from tunefarm.proto.client import FarmClient
from tunefarm.proto.errors import TokenRefused
from tunefarm.proto.rendezvous import Rendezvous, read_rendezvous, write_private, write_rendezvous
from tunefarm.proto.tls import Tls
from tunefarm.proto.tokens import digest_of, new_secret

from tests.patience import wait_for
from tunefarm.certificates import make_certificates

SKETCH = Path(__file__).parents[1] / "tuner" / "sim_sketch.py"
HOST = "127.0.0.3"
TARGET = "sim -trial-ms=5"
_COMMAND = """
import asyncio, logging, runpy, sys
runpy.run_path(sys.argv.pop(1))
from tunefarm.cli import main
from tunefarm.proto import logs
configure = logs.configure
def loud(*arguments):
    configure(*arguments)
    logging.getLogger().setLevel(logging.DEBUG)
logs.configure = loud
main()
"""
"""The command line with every logger of every package at DEBUG."""


@dataclass
class Processes:
    """Processes of the command line, as loud as they can be, and what they were started with."""

    folder: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, role: str, *words: str, **environment: str) -> None:
        loud = {"GRPC_VERBOSITY": "DEBUG", "PYTHONASYNCIODEBUG": "1", "PYTHONDEVMODE": "1"}
        loud |= {"TUNEFARM_HOME": str(self.folder / role), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", _COMMAND, str(SKETCH), role, *words]
        with (self.folder / f"{role}.log").open("ab") as log:
            self.running[role] = subprocess.Popen(
                [*command, "--log-level", "debug"],
                env={**os.environ, **loud, **environment},
                stdout=log,
                stderr=log,
            )

    def command_lines(self) -> str:
        """What ``ps`` shows of them and of all their children."""
        return self._told(lambda one: " ".join(one.cmdline()), with_own=True)

    def environments_of_children(self) -> str:
        """The environments of the processes that these have started."""
        return self._told(lambda one: str(one.environ()), with_own=False)

    def _told(self, tell: Callable[[psutil.Process], str], *, with_own: bool) -> str:
        found = []
        for process in self.running.values():
            assert process.poll() is None, f"{process.args} ended"
            parent = psutil.Process(process.pid)
            for one in [*parent.children(recursive=True), *([parent] if with_own else [])]:
                with suppress(psutil.Error):  # a child that ends meanwhile
                    found.append(tell(one))
        return "\n".join(found)

    def stop(self) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(90)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path)
    yield made
    made.stop()


def key_lines(folder: Path) -> set[str]:
    """The lines of every private key in a folder."""
    return {
        line
        for path in folder.glob("*.key")
        for line in path.read_text().splitlines()
        if not line.startswith("-----") and len(line) > 32
    }


def test_secrets_are_in_no_log_no_database_and_no_argument(
    tmp_path: Path, processes: Processes, sim_job: Callable[..., Job]
) -> None:
    tls, database = tmp_path / "tls", tmp_path / "farm.db"
    make_certificates(tls, [HOST], ["lab2"], 30)
    pair = ("--tls-cert", str(tls / "server.pem"), "--tls-key", str(tls / "server.key"))
    client_ca = ("--tls-client-ca", str(tls / "ca.pem"))
    processes.start("tracker", "--db", str(database), "--host", HOST, *pair, *client_ca)
    log = tmp_path / "tracker.log"
    wait_for(lambda: "tracker listening on" in log.read_text())
    found = re.search(r"tracker listening on (\S+) with TLS", log.read_text())
    assert found is not None
    address = found[1]

    local = read_rendezvous(database.with_name("farm.db.tracker.json"))
    secrets = {role: new_secret() for role in Role}
    wrong = new_secret()
    with FarmClient(local.address, local.token) as admin:
        for role, secret in secrets.items():
            admin.create_token(Token(digest_of(secret), f"a-{role}", role), actor="root@lab")
    carried = tmp_path / "worker.json"
    texts = [(tls / name).read_text() for name in ("ca.pem", "lab2.pem", "lab2.key")]
    write_rendezvous(carried, Rendezvous(address, secrets[Role.WORKER], "", 0, *texts))
    processes.start("worker", "--tracker", str(carried), "--target", TARGET)
    write_private(tmp_path / "tuner-token", secrets[Role.TUNER])
    own = (
        "--tls-ca",
        tls / "ca.pem",
        "--tls-cert",
        tls / "lab2.pem",
        "--tls-key",
        tls / "lab2.key",
    )
    processes.start(
        "tuner", "--tracker", address, "--token-file", str(tmp_path / "tuner-token"),
        *map(str, own), TUNEFARM_TOKEN=wrong,
    )  # fmt: skip

    credentials = Tls(*texts)
    with FarmClient(address, secrets[Role.CLIENT], tls=credentials) as client:
        job = client.submit_job(sim_job("secret", TARGET, 6, ((8, 8),)))
        shown = children = ""
        for _ in client.watch(job.id, wait_s=0.5):
            shown += processes.command_lines()
            children += processes.environments_of_children()
        job = client.job(job.id)
    assert job.state is JobState.SUCCEEDED, job.message
    assert job.owner == "a-client"
    assert job.claimed_by.startswith("a-tuner (")
    with (
        FarmClient(address, wrong, tls=credentials) as stranger,
        pytest.raises(TokenRefused) as caught,
    ):
        stranger.info()
    processes.stop()

    hidden = {*secrets.values(), local.token, wrong, *key_lines(tls)}
    places = {
        "ps": shown,
        "children": children,
        "error": str(caught.value),
        **{path.name: path.read_bytes().decode("latin-1") for path in tmp_path.glob("*.log")},
        **{path.name: path.read_bytes().decode("latin-1") for path in tmp_path.glob("farm.db*")},
    }
    del places["farm.db.tracker.json"]
    assert len(hidden) >= 8
    assert any("a-worker" in text for name, text in places.items() if name.startswith("farm.db"))
    assert "--tracker" in shown
    assert [name for name, text in places.items() if any(one in text for one in hidden)] == []


def test_every_file_with_a_secret_is_private(tmp_path: Path, processes: Processes) -> None:
    database = tmp_path / "farm.db"
    processes.start("tracker", "--db", str(database))
    rendezvous = database.with_name("farm.db.tracker.json")
    wait_for(lambda: "its token is in" in (tmp_path / "tracker.log").read_text())
    secret = read_rendezvous(rendezvous).token
    holders = [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and secret in path.read_bytes().decode("latin-1")
    ]
    assert rendezvous in holders
    assert len(holders) == 2
    assert {path.stat().st_mode & 0o777 for path in holders} == {0o600}
