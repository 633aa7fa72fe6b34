"""``tunefarm token`` and ``tunefarm certificates``, as an operator types them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tunefarm.proto.client import FarmClient
from tunefarm.proto.errors import TokenRefused
from tunefarm.proto.rendezvous import read_rendezvous

from tests.tracker.conftest import Tracker
from tunefarm.cli.app import run

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracker]:
    running = Tracker(tmp_path_factory.mktemp("farm") / "farm.db").start()
    yield running
    running.kill()


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Runs a command in a home of its own: its exit code, output and errors."""
    monkeypatch.setenv("TUNEFARM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TUNEFARM_CONFIG", str(tmp_path / "config.toml"))
    for name in ("TOKEN", "TOKEN_FILE", "TLS_CA", "TLS_CERT", "TLS_KEY"):
        monkeypatch.setenv(f"TUNEFARM_{name}", "")

    def call(*words: object) -> tuple[int, str, str]:
        code = run([str(word) for word in words])
        told = capsys.readouterr()
        return code, told.out, told.err

    return call


def test_a_token_is_made_shown_once_used_and_revoked(
    tracker: Tracker, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    there = ("--tracker", tracker.rendezvous)
    code, secret, told = command(
        "token", "create", "anna", "--role", "client", "--max-priority", 3, "--days", 7, *there
    )
    assert code == 0
    assert secret.startswith("tunefarm_")
    assert len(secret.strip()) == len("tunefarm_") + 43
    assert "of anna, client, until 20" in told
    assert "not shown again" in told
    code, listed, _ = command("token", "list", *there)
    assert "anna" in listed
    assert "live" in listed
    assert secret.strip() not in listed
    assert secret.strip() not in tracker.rendezvous.read_text()
    (tmp_path / "token").write_text(secret)
    (tmp_path / "token").chmod(0o600)
    remote = ("--tracker", tracker.address)
    assert command("--token-file", tmp_path / "token", "devices", *remote)[0] == 0
    monkeypatch.setenv("TUNEFARM_TOKEN_FILE", "")
    monkeypatch.setenv("TUNEFARM_TOKEN", secret.strip())
    assert command("devices", *remote)[0] == 0
    code, _, told = command("token", "list", *remote)
    assert code == 2
    assert "ListTokens is for admin, and token anna has role client" in told
    code, out, _ = command("token", "revoke", "anna", "--reason", "left", *there)
    assert (code, out.split()[0], out.split()[3]) == (0, "revoked", "anna,")
    code, _, told = command("devices", *remote)
    assert code == 2
    assert "was revoked at" in told
    assert "anna" not in command("token", "list", *there)[1]
    assert "revoked" in command("token", "list", "--all", *there)[1]
    assert "was revoked before" in command("token", "revoke", "anna", *there)[1]


def test_a_file_is_all_that_a_machine_needs(
    tracker: Tracker, command: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "tls"
    assert (
        command("certificates", "--folder", folder, "--server", "lab1", "--worker", "lab2")[0] == 0
    )
    file = tmp_path / "lab2.json"
    told = command(
        "token", "create", "lab2", "--role", "worker", "--tracker", tracker.rendezvous,
        "--file", file, "--address", "lab1:9190", "--tls", folder,
    )  # fmt: skip
    assert told[:2] == (0, "")
    assert f"{file} lets it in" in told[2]
    assert file.stat().st_mode & 0o777 == 0o600
    found = read_rendezvous(file)
    assert found.address == "lab1:9190"
    assert found.tls is not None
    assert found.tls.ca == (folder / "ca.pem").read_text()
    assert found.tls.certificate == (folder / "lab2.pem").read_text()
    assert found.tls.key == (folder / "lab2.key").read_text()
    assert found.token not in repr(found)
    assert found.tls.key not in repr(found)
    plain = json.loads(file.read_text())
    file.write_text(json.dumps({"address": tracker.address, "token": plain["token"]}))
    code, _, told_ = command("devices", "--tracker", file)
    assert (code, "Devices is for admin or client or tuner" in told_) == (2, True)


def test_the_first_token_may_come_before_the_tracker(command: Command, tmp_path: Path) -> None:
    database = tmp_path / "new.db"
    code, secret, _ = command("token", "create", "boss", "--role", "admin", "--db", database)
    assert code == 0
    assert "boss" in command("token", "list", "--db", database)[1]
    running = Tracker(database).start()
    try:
        with FarmClient(running.address, secret.strip()) as client:
            assert [token.name for token in client.tokens()] == ["boss"]
        code, _, told = command("token", "revoke", "boss", "--db", database)
        assert (code, "has a tracker already; use it with --tracker" in told) == (75, True)
    finally:
        running.kill()
    code, out, told = command("token", "revoke", "boss", "--db", database)
    assert (code, told) == (0, "")
    assert out.startswith("revoked ")
    running.start()
    try:
        with (
            FarmClient(running.address, secret.strip()) as client,
            pytest.raises(TokenRefused, match="was revoked"),
        ):
            client.info()
    finally:
        running.kill()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("create", "a b", "--role", "client"), "is no name of a token"),
        (("create", "anna", "--role", "client", "--devices", "rack"), "is no condition"),
        (("create", "anna", "--role", "client", "--file", "x"), "belong together"),
        (("create", "anna", "--role", "king"), "'king' is not one of"),
        (("revoke", "nobody"), "there is no token 'nobody'"),
        (("list", "--db", "x.db"), "not both"),
    ],
)
def test_mistakes_are_one_sentence(
    tracker: Tracker, command: Command, words: tuple[str, ...], sentence: str
) -> None:
    code, out, told = command("token", *words, "--tracker", tracker.rendezvous)
    assert (code, out) == (2, "")
    assert sentence in told
    assert len(told.strip().splitlines()) == 1


def test_certificates_are_private_and_the_ca_stays(command: Command, tmp_path: Path) -> None:
    code, out, _ = command("certificates", "--server", "lab1", "--worker", "lab2")
    assert code == 0
    folder = tmp_path / "home" / "tls"
    assert [line.split()[1] for line in out.splitlines()] == [
        str(folder / f"{name}.pem") for name in ("ca", "server", "lab2")
    ]
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.glob("*.key")} == {
        "ca.key": 0o600,
        "server.key": 0o600,
        "lab2.key": 0o600,
    }
    before = {path.name: path.read_text() for path in folder.iterdir()}
    code, out, _ = command("certificates", "--server", "lab1")
    assert (code, out.count("\n")) == (0, 1)
    after = {path.name: path.read_text() for path in folder.iterdir()}
    assert {name for name in after if after[name] != before[name]} == {"server.pem", "server.key"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--worker", "ca"), "a worker cannot be named ca"),
        (("--server", "lab 1"), "'lab 1' is no name of a host or worker"),
        (("--worker", "../x"), "is no name of a host or worker"),
        (("--folder", "/proc/x"), "cannot write certificates to /proc/x"),
    ],
)
def test_certificates_that_cannot_be(command: Command, words: Any, sentence: str) -> None:
    code, _, told = command("certificates", *words)
    assert (code, sentence in told) == (2, True)
