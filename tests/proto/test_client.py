"""The client against nothing, against a wrong server, and the rendezvous file."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status
from tunefarm.db.records import WorkerState
from tunefarm.proto import client as client_module
from tunefarm.proto import connection, farm_pb2, farm_pb2_grpc
from tunefarm.proto.awake import awake_s
from tunefarm.proto.client import FarmClient
from tunefarm.proto.errors import (
    DOMAIN,
    InvalidRequest,
    LeaseLost,
    TokenRefused,
    TrackerUnavailable,
)
from tunefarm.proto.keepalive import Keepalive
from tunefarm.proto.protocol import PROTOCOL
from tunefarm.proto.rendezvous import (
    Rendezvous,
    read_rendezvous,
    read_token,
    write_private,
    write_rendezvous,
)

from tests.patience import turns, wait_for


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and never speaks."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_no_tracker_is_one_sentence_soon() -> None:
    started = awake_s()
    with socket.socket() as taken:  # by one that does not listen, so that nobody else does
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            FarmClient(address, connect_s=0.3) as farm,
            pytest.raises(TrackerUnavailable) as caught,
        ):
            farm.info()
    expected = f"no tracker answers at {address}; start one with `tunefarm tracker`"
    assert str(caught.value) == expected
    assert awake_s() - started < 5


def test_a_silent_server_is_given_up(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CALL_S", 0.5)
    with (
        FarmClient(silent, connect_s=0.1) as farm,
        pytest.raises(TrackerUnavailable, match=f"{silent}"),
    ):
        farm.info()


class Pausing(farm_pb2_grpc.FarmServicer):
    """A tracker that answers every call but those whose numbers are given."""

    def __init__(self, *silent: int) -> None:
        self.calls = 0
        self._silent = silent

    def Info(self, request: farm_pb2.InfoRequest, context: Any) -> farm_pb2.InfoReply:
        self.calls += 1
        if self.calls in self._silent:
            gone = threading.Event()
            context.add_callback(gone.set)
            gone.wait(60)
        return farm_pb2.InfoReply()


@contextmanager
def client_of(farm: Pausing, patience_s: float) -> Iterator[FarmClient]:
    server = grpc.server(ThreadPoolExecutor(4))
    farm_pb2_grpc.add_FarmServicer_to_server(farm, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with FarmClient(f"127.0.0.1:{port}", patience_s=patience_s) as client:
            yield client
    finally:
        server.stop(None)


def test_a_tracker_that_stood_still_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a job is watched on after a pause of the machine, or of the watcher (Ctrl-Z)."""
    farm = Pausing(2)
    with client_of(farm, patience_s=60.0) as client:
        client.info()
        monkeypatch.setattr(connection, "CALL_S", 0.5)
        client.info()
    assert farm.calls >= 3, "a late answer is asked for again too"


def test_a_pause_within_a_call_does_not_use_up_its_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though the call ends at its deadline as if the tracker had been silent all the time."""
    farm = Pausing(2, 3, 4)
    with client_of(farm, patience_s=1.0) as client:
        client.info()
        monkeypatch.setattr(connection, "CALL_S", 0.5)
        monkeypatch.setattr(connection, "awake_s", lambda: 0.0)
        client.info()
    assert farm.calls >= 5


def test_a_tracker_that_stays_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    farm = Pausing(*range(2, 100))
    with client_of(farm, patience_s=1.0) as client:
        client.info()
        monkeypatch.setattr(connection, "CALL_S", 0.5)
        with pytest.raises(TrackerUnavailable, match="did not answer within"):
            client.info()


def test_a_patient_client_waits_longer_until_it_hurries() -> None:
    with FarmClient("127.0.0.1:1", patience_s=1.0) as client:
        client._answered = True
        with client.patient(60.0):
            assert client._wanted_s(None) == 60.0
            assert client._wanted_s(3.0) == 3.0
            client.hurry(0.5)
            assert client._wanted_s(None) == client._wanted_s(3.0) == 0.5
        assert client._wanted_s(None) == 0.5


class Late(farm_pb2_grpc.WorkerServicer):
    """A tracker whose every answer to Sync comes late, with a term of three seconds."""

    def __init__(self, late_s: float) -> None:
        self._late_s = late_s

    def Sync(self, request: farm_pb2.SyncRequest, context: Any) -> farm_pb2.SyncReply:
        time.sleep(self._late_s)
        return farm_pb2.SyncReply(term_s=3.0, protocol=PROTOCOL)


def test_a_slow_tracker_beside_a_silent_one_is_given_time(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_FIRST_SYNC_S", 0.5)
    server = grpc.server(ThreadPoolExecutor(4))
    farm_pb2_grpc.add_WorkerServicer_to_server(Late(1.2), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    state = WorkerState("w", "i", 1, "1", ())
    try:
        with FarmClient(f"{silent},127.0.0.1:{port}") as client:
            in_a_row = 0
            for _ in turns("three answers in a row", 40.0):
                try:
                    client.sync(state, 0.0)
                except TrackerUnavailable:
                    in_a_row = 0
                    continue
                in_a_row += 1
                if in_a_row == 3:
                    break
    finally:
        server.stop(None)


class Guarded(Pausing):
    """A tracker that lets one token in."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._wanted = ("authorization", f"Bearer {token}")

    def Info(self, request: farm_pb2.InfoRequest, context: Any) -> farm_pb2.InfoReply:
        if self._wanted not in [tuple(entry) for entry in context.invocation_metadata()]:
            info = error_details_pb2.ErrorInfo(reason=TokenRefused.reason, domain=DOMAIN)
            status = status_pb2.Status(code=grpc.StatusCode.UNAUTHENTICATED.value[0])
            status.details.add().Pack(info)
            context.abort_with_status(rpc_status.to_status(status))
        return super().Info(request, context)


@contextmanager
def serving(farm: Pausing, place: str = "127.0.0.1:0") -> Iterator[str]:
    """The address of a server of this tracker."""
    server = grpc.server(ThreadPoolExecutor(4))
    farm_pb2_grpc.add_FarmServicer_to_server(farm, server)
    port = server.add_insecure_port(place)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def test_a_tracker_that_comes_back_elsewhere_is_followed(tmp_path: Path) -> None:
    """By what its file says then, also where another tracker has taken its address."""
    file = tmp_path / "t.json"
    first, second = Guarded("one"), Guarded("two")
    with serving(first) as before:
        write_rendezvous(file, Rendezvous(before, "one"))
        client = FarmClient.from_rendezvous(file, patience_s=60.0)
        client.info()
    with client, serving(second) as after:
        threading.Timer(0.5, write_rendezvous, [file, Rendezvous(after, "two")]).start()
        client.info()
        assert (client.address, second.calls) == (after, 1)
        with serving(first) as again:
            write_rendezvous(file, Rendezvous(again, "one"))
            client.info()
            assert client.address == after, "it answers"
            write_rendezvous(file, Rendezvous(after, "none"))
            client.follow()
            with pytest.raises(TokenRefused):
                client.info()
            write_rendezvous(file, Rendezvous(again, "one"))
            client.info()
            assert (client.address, first.calls) == (again, 2)


def test_a_file_that_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    with serving(Guarded("one")) as address:
        write_rendezvous(file, Rendezvous(address, "one"))
        with FarmClient.from_rendezvous(file) as client:
            for text in ("", '{"address": "nowhere", "token": ""}'):
                file.write_text(text)
                client.follow()
                client.info()


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:http"])
def test_an_address_is_host_and_port(address: str) -> None:
    with pytest.raises(InvalidRequest, match="write HOST:PORT"):
        FarmClient(address)


# --- the rendezvous file ------------------------------------------------------------------------


def test_a_rendezvous_is_private_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    written = Rendezvous("127.0.0.1:4242", "secret", "sqlite:///a.db", 7)
    old_mask = os.umask(0)
    try:
        write_rendezvous(path, written)
    finally:
        os.umask(old_mask)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_rendezvous(path) == written
    assert read_rendezvous(path).port == 4242
    assert read_token(path) == "secret"
    assert list(tmp_path.iterdir()) == [path]


def test_a_token_file_is_one_line(tmp_path: Path) -> None:
    write_private(tmp_path / "token", "secret\n")
    assert read_token(tmp_path / "token") == "secret"


def test_files_that_cannot_be_trusted_or_used(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    with pytest.raises(InvalidRequest, match=r"cannot read .*t\.json: No such file"):
        read_rendezvous(path)
    path.write_text('{"address": "127.0.0.1:1", "token": "x"}')
    path.chmod(0o644)
    with pytest.raises(InvalidRequest, match=r"has mode 0644 and holds a token; run chmod 600"):
        read_rendezvous(path)
    path.chmod(0o600)
    others = (b"{", b"[]", b'{"address": "nowhere", "token": ""}', b'{"color": 1}', b"a", b"\xff")
    for mode, content in product((0o600, 0o644), others):
        path.write_bytes(content)
        path.chmod(mode)
        with pytest.raises(InvalidRequest, match="is not a tracker's rendezvous file"):
            read_rendezvous(path)


# --- keepalive ----------------------------------------------------------------------------------


def test_keepalive_renews_until_closed() -> None:
    calls = 0
    enough = threading.Event()

    def renew() -> int:
        nonlocal calls
        calls += 1
        if calls == 3:
            enough.set()
        return calls

    with Keepalive(renew, 0, term_s=0.06) as kept:
        assert enough.wait(60)
        assert kept.check() >= 2
    final = calls
    time.sleep(0.1)
    assert calls == final


def test_keepalive_is_lost_when_refused() -> None:
    def renew() -> int:
        raise LeaseLost("the lease of device d1 has ended: expired")

    with Keepalive(renew, 0, term_s=0.03) as kept:
        assert kept.lost.wait(60)
        with pytest.raises(LeaseLost, match="has ended: expired"):
            kept.check()


def test_keepalive_bears_silence_of_many_terms() -> None:
    """The tracker that comes back gives a full term of grace, so nothing is lost by then."""
    calls = 0
    answered = threading.Event()

    def renew() -> int:
        nonlocal calls
        calls += 1
        if calls < 60:  # a twentieth of a term apart
            raise TrackerUnavailable("no tracker answers")
        answered.set()
        return calls

    with Keepalive(renew, 0, term_s=0.1) as kept:
        assert answered.wait(60)
        wait_for(lambda: kept.is_heard)
        assert kept.check() >= 60
        assert not kept.lost.is_set()
