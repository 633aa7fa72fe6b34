"""Trackers that speak TLS, those who come to them, and one sentence for each mistake."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tunefarm.db.records import Device, Role, Token, WorkerState
from tunefarm.proto.client import FarmClient
from tunefarm.proto.errors import Forbidden, InvalidRequest, TrackerUnavailable
from tunefarm.proto.rendezvous import Rendezvous, write_rendezvous
from tunefarm.proto.tls import Tls, expires_at, shown_by
from tunefarm.proto.tokens import digest_of, new_secret
from tunefarm.tracker.listening import certificates_end, check_options, listen
from tunefarm.tracker.options import TrackerOptions

from tunefarm.certificates import make_certificates

HOST = "127.0.0.2"
"""A second address of loopback, which certificates are made out to or not."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a farm's CA, its tracker's certificate and that of the worker lab2."""
    folder = tmp_path_factory.mktemp("tls")
    make_certificates(folder, ["lab1", HOST], ["lab2"], 30)
    return folder


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of another farm."""
    folder = tmp_path_factory.mktemp("strange")
    make_certificates(folder, ["lab1", HOST], ["lab2"], 30)
    return folder


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts a tracker with certificates of a folder; returns it and its address for others."""
    from tests.tracker.conftest import Tracker

    running: list[Any] = []

    def begin(folder: Path, **options: object) -> tuple[Any, str]:
        options = {
            "host": HOST,
            "tls_cert": str(folder / "server.pem"),
            "tls_key": str(folder / "server.key"),
            **options,
        }
        running.append(Tracker(tmp_path / "farm.db", options=options).start())
        found = re.match(r"tracker listening on (\S+) with TLS", running[-1].told)
        assert found is not None
        return running[-1], found[1]

    yield begin
    for tracker in running:
        tracker.kill()


def tls_of(folder: Path, name: str = "") -> Tls | None:
    own = (str(folder / f"{name}.pem"), str(folder / f"{name}.key")) if name else ("", "")
    return Tls.read(str(folder / "ca.pem"), *own)


def reach(address: str, tracker: Any, tls: Tls | None) -> FarmClient:
    return FarmClient(address, tracker.token, connect_s=0.5, patience_s=0.5, tls=tls)


def refused(address: str, tracker: Any, tls: Tls | None) -> str:
    """The sentence with which a first call fails."""
    with reach(address, tracker, tls) as client, pytest.raises(TrackerUnavailable) as caught:
        client.info()
    return str(caught.value)


def test_others_speak_tls_and_this_machine_need_not(
    start: Callable[..., Any], certificates: Path, strange: Path, tmp_path: Path
) -> None:
    tracker, address = start(certificates)
    with reach(address, tracker, tls_of(certificates)) as client:
        assert client.info().lease_term_s > 0
    assert tracker.address.startswith("127.0.0.1:")
    with tracker.client() as client:
        assert client.info().lease_term_s > 0
    carried = tmp_path / "carried.json"
    ca = (certificates / "ca.pem").read_text()
    write_rendezvous(carried, Rendezvous(address, tracker.token, ca=ca))
    with FarmClient.from_rendezvous(carried) as client:
        assert client.info().lease_term_s > 0
    assert "speaks TLS only; give --tls-ca FILE" in refused(address, tracker, None)
    told = refused(address, tracker, tls_of(strange))
    assert "is not signed by the CA given with --tls-ca" in told
    told = refused(tracker.address, tracker, tls_of(certificates))
    assert f"what listens at {tracker.address} does not speak TLS" in told
    for tls in (None, tls_of(certificates)):
        told = refused(f"{HOST}:1", tracker, tls)
        assert told == f"no tracker answers at {HOST}:1; start one with `tunefarm tracker`"


def test_a_name_that_the_certificate_lacks(start: Callable[..., Any], tmp_path: Path) -> None:
    make_certificates(tmp_path, ["lab1"], [], 30)
    tracker, address = start(tmp_path)
    told = refused(address, tracker, tls_of(tmp_path))
    assert f"the certificate of the tracker at {address} is not made out to {HOST}" in told
    assert f"tunefarm certificates --server {HOST}" in told


def test_a_certificate_expires_and_is_renewed_meanwhile(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    make_certificates(tmp_path, [HOST], [], 0)
    tracker, address = start(tmp_path)
    assert "has expired; renew it" in refused(address, tracker, tls_of(tmp_path))
    make_certificates(tmp_path, [HOST], [], 30)
    with reach(address, tracker, tls_of(tmp_path)) as client:
        assert client.info().lease_term_s > 0
    place = (HOST, int(address.rpartition(":")[2]))
    first = ssl.get_server_certificate(place)
    (tmp_path / "server.pem").write_text("half-written -----BEGIN CERTIFICATE-----")
    assert ssl.get_server_certificate(place) == first
    make_certificates(tmp_path, [HOST], [], 30)
    assert ssl.get_server_certificate(place) == (tmp_path / "server.pem").read_text() != first


def test_the_end_of_certificates_is_known(
    start: Callable[..., Any], certificates: Path, tmp_path: Path
) -> None:
    """By the tracker's files, by what it shows, and as the doctor tells it."""
    from cryptography import x509

    from tunefarm.doctor.farm import examine_certificates
    from tunefarm.doctor.findings import State

    for name in ("ca", "server"):
        pem = (certificates / f"{name}.pem").read_text()
        made = x509.load_pem_x509_certificate(pem.encode())
        assert expires_at(pem) == made.not_valid_after_utc.timestamp()
    tracker, address = start(certificates)
    options = TrackerOptions(
        "x", tls_cert=str(certificates / "server.pem"), tls_client_ca=str(certificates / "ca.pem")
    )
    ends = certificates_end(options)
    assert ends == {
        "server": expires_at((certificates / "server.pem").read_text()),
        "client_ca": expires_at((certificates / "ca.pem").read_text()),
    }
    assert certificates_end(TrackerOptions("x", tls_cert=str(tmp_path / "none.pem"))) == {}
    assert shown_by(address) == ends["server"]
    assert shown_by(tracker.address) is None
    carried = tmp_path / "carried.json"
    ca = (certificates / "ca.pem").read_text()
    write_rendezvous(carried, Rendezvous(address, tracker.token, ca=ca))
    (found,) = examine_certificates(str(carried))
    day = time.strftime("%Y-%m-%d", time.gmtime(ends["server"]))
    assert found.told == f"the tracker's ends first, on {day}"
    is_late = ends["server"] - time.time() < 30 * 86400
    assert found.state is (State.FIX if is_late else State.OK)
    for text in ("", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"):
        with pytest.raises(ValueError, match="certificate"):
            expires_at(text)


def test_all_show_certificates(
    start: Callable[..., Any], certificates: Path, strange: Path, tmp_path: Path
) -> None:
    tracker, address = start(certificates, tls_client_ca=str(certificates / "ca.pem"))
    with reach(address, tracker, tls_of(certificates, "lab2")) as client:
        assert client.info().lease_term_s > 0
        sync(client)
    told = refused(address, tracker, tls_of(certificates))
    assert f"the tracker at {address} asks for a certificate; give --tls-cert FILE" in told
    theirs = tls_of(strange, "lab2")
    ours = tls_of(certificates)
    assert theirs is not None
    assert ours is not None
    mixed = Tls(ours.ca, theirs.certificate, theirs.key)
    told = refused(address, tracker, mixed)
    assert "refuses the certificate given with --tls-cert" in told
    assert "speaks TLS only" in refused(address, tracker, None)
    with tracker.client() as client:
        sync(client)


def sync(client: FarmClient, worker: str = "lab2") -> None:
    device = Device("d1", "sim", "Sim 1", "sim", "")
    client.sync(WorkerState(worker, f"{worker} {time.monotonic()}", 1, "0.1", (device,)), 0.0)


def test_workers_show_certificates_at_a_port_of_their_own(
    start: Callable[..., Any], certificates: Path
) -> None:
    options = {"tls_client_ca": str(certificates / "ca.pem"), "worker_port": 0}
    tracker, address = start(certificates, **options)
    found = re.search(r"for workers on (\S+),", tracker.told)
    assert found is not None
    secret = new_secret()
    with tracker.client() as admin:
        admin.create_token(Token(digest_of(secret), "lab2", Role.WORKER), actor="root@lab")
    with FarmClient(address, secret, tls=tls_of(certificates)) as stranger:
        stranger.info()
        with pytest.raises(Forbidden, match="a worker comes with a certificate of the farm's"):
            sync(stranger)
    assert "asks for a certificate" in refused(found[1], tracker, tls_of(certificates))
    with FarmClient(found[1], secret, tls=tls_of(certificates, "lab2")) as worker:
        sync(worker)


def test_a_workers_certificate_makes_no_tracker(
    start: Callable[..., Any], certificates: Path
) -> None:
    theft = {name: str(certificates / f"lab2.{end}") for name, end in
             (("tls_cert", "pem"), ("tls_key", "key"))}  # fmt: skip
    tracker, address = start(certificates, **theft)
    told = refused(address, tracker, tls_of(certificates))
    assert f"the certificate of the tracker at {address} is" in told


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tls_key": ""}, "TLS takes both --tls-cert FILE and --tls-key FILE"),
        ({"tls_cert": "", "tls_key": ""}, "does not listen on 127.0.0.2 in the clear"),
        ({"tls_cert": "", "tls_key": "", "tls_client_ca": "x", "host": "127.0.0.1"},
         "which takes TLS"),
        ({"worker_port": 0}, "give --tls-client-ca FILE"),
        ({"tls_key": "{}/lab2.key"}, "does not open the certificate in"),
        ({"tls_key": "{}/server.pem"}, "holds no private key in PEM"),
        ({"tls_cert": "/no/such.pem"}, "cannot read /no/such.pem: No such file"),
    ],
)  # fmt: skip
def test_a_tracker_says_what_its_options_lack(
    certificates: Path, change: dict[str, Any], sentence: str
) -> None:
    filled = {
        name: value.format(certificates) if isinstance(value, str) else value
        for name, value in change.items()
    }
    options = replace(
        TrackerOptions("farm.db", HOST),
        **{
            "tls_cert": f"{certificates}/server.pem",
            "tls_key": f"{certificates}/server.key",
            **filled,
        },
    )

    def begin() -> None:
        check_options(options)
        listen(None, options, 0)

    with pytest.raises(InvalidRequest, match=sentence):
        begin()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("", "lab2.pem", "lab2.key"), "takes --tls-ca FILE"),
        (("ca.pem", "lab2.pem", ""), "both --tls-cert FILE and --tls-key FILE"),
        (("ca.key", "", ""), "ca.key holds no certificate in PEM"),
        (("none.pem", "", ""), r"cannot read .*none.pem: No such file"),
    ],
)
def test_a_client_says_what_its_options_lack(
    certificates: Path, given: tuple[str, str, str], sentence: str
) -> None:
    paths = [str(certificates / name) if name else "" for name in given]
    with pytest.raises(InvalidRequest, match=sentence):
        Tls.read(*paths)
    assert Tls.read("") is None
