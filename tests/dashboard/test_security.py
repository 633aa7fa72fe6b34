"""Who may see the dashboard, and what it refuses."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tunefarm.dashboard import security
from tunefarm.dashboard.app import create_app
from tunefarm.dashboard.security import Guard
from tunefarm.dashboard.serving import Address, ServingError, check, listening
from tunefarm.db import tokens
from tunefarm.db.records import Role, Token
from tunefarm.db.store import Store
from tunefarm.proto.tokens import digest_of, new_secret


@pytest.fixture
def secrets(farm: Any) -> dict[str, str]:
    """Secrets of tokens in the database, by their names."""
    made = {name: new_secret() for name in ("anna", "worker", "revoked")}
    with Store.open(farm.database) as store, store.writing() as db:
        for name, secret in made.items():
            role = Role.WORKER if name == "worker" else Role.CLIENT
            tokens.create(db, name, Token(digest_of(secret), name, role), "me")
        tokens.revoke(db, "r", "revoked", actor="me", reason="")
    return made


@pytest.fixture
def guarded(farm: Any, secrets: dict[str, str]) -> Any:
    with Store.open(farm.database, readonly=True) as store:
        app = create_app(store, Guard(store))
        yield TestClient(app, base_url="https://farm.example", follow_redirects=False)


def test_without_a_token_people_are_asked_and_programs_refused(guarded: TestClient) -> None:
    page = guarded.get("/jobs?q=a b")
    assert (page.status_code, page.headers["location"]) == (303, "/login?next=/jobs%3Fq%3Da%2520b")
    for path in ("/api/v1/jobs", "/api/openapi.json", "/live/overview"):
        answer = guarded.get(path)
        assert answer.status_code == 401
        assert "content-security-policy" in answer.headers
    assert guarded.get("/login").status_code == 200
    assert guarded.get("/static/dashboard.css").status_code == 200


def test_a_token_of_a_client_opens_the_dashboard(
    guarded: TestClient, secrets: dict[str, str]
) -> None:
    headers = {"Authorization": f"Bearer {secrets['anna']}"}
    assert guarded.get("/api/v1/jobs", headers=headers).status_code == 200
    entered = guarded.post("/login", data={"token": secrets["anna"], "next": "/jobs"})
    assert (entered.status_code, entered.headers["location"]) == (303, "/jobs")
    cookie = entered.headers["set-cookie"].lower()
    assert all(word in cookie for word in ("httponly", "samesite=strict", "secure"))
    assert guarded.get("/jobs").status_code == 200
    guarded.post("/logout")
    assert guarded.get("/jobs").status_code == 303


@pytest.mark.parametrize(
    ("name", "why"),
    [("worker", "has role worker"), ("revoked", "was revoked"), ("", "asks for a token")],
)
def test_other_tokens_do_not(
    guarded: TestClient, secrets: dict[str, str], name: str, why: str
) -> None:
    answer = guarded.post("/login", data={"token": secrets.get(name, "")})
    assert answer.status_code == 401
    assert why in answer.text


def test_a_revoked_token_closes_soon(
    farm: Any, guarded: TestClient, secrets: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "REFRESH_S", 0.0)
    headers = {"Authorization": f"Bearer {secrets['anna']}"}
    assert guarded.get("/api/v1/jobs", headers=headers).status_code == 200
    with Store.open(farm.database) as store, store.writing() as db:
        tokens.revoke(db, "r2", "anna", actor="me", reason="")
    refused = guarded.get("/api/v1/jobs", headers=headers)
    assert refused.status_code == 401
    assert "was revoked" in refused.json()["error"]


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example", "/\\evil.example"])
def test_the_way_back_stays_on_this_site(
    guarded: TestClient, secrets: dict[str, str], target: str
) -> None:
    answer = guarded.post("/login", data={"token": secrets["anna"], "next": target})
    assert answer.headers["location"] == "/"


def test_other_names_of_this_machine_are_refused(farm: Any) -> None:
    with Store.open(farm.database, readonly=True) as store:
        app = create_app(store, hosts=("127.0.0.1", "localhost"))
        assert TestClient(app, base_url="http://localhost:1").get("/").status_code == 200
        assert TestClient(app, base_url="http://evil.example").get("/").status_code == 400


def test_tokens_do_not_travel_in_the_clear() -> None:
    with pytest.raises(ServingError, match="beyond this machine, where TLS protects tokens"):
        check(Address("0.0.0.0"))
    with pytest.raises(ServingError, match="both --tls-cert FILE and --tls-key FILE"):
        check(Address(cert="a.pem"))
    check(Address())


def test_nothing_is_written(farm: Any) -> None:
    before = Path(farm.database).read_bytes()
    with Store.open(farm.database, readonly=True) as store:
        client = TestClient(create_app(store))
        for path in ("/", "/jobs", "/jobs/aaaa", "/devices", "/failures", "/tasks", "/trials/1"):
            assert client.get(path).status_code == 200
    assert Path(farm.database).read_bytes() == before


def test_the_command_serves_and_ends_on_sigterm(farm: Any) -> None:
    command = [sys.executable, "-m", "tunefarm", "dashboard", "--db", farm.database]
    server = subprocess.Popen(
        [*command, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("dashboard at http://127.0.0.1:")
    finally:
        server.terminate()
    errors = server.communicate(timeout=120)[1]
    assert server.returncode == 0, errors
    assert errors == ""


def test_the_command_tells_what_it_cannot_do(
    farm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tunefarm.cli import app

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert app.run(["dashboard", "--db", farm.database, "--port", port]) == 2
    assert app.run(["dashboard", "--db", str(tmp_path / "none.db")]) == 2
    monkeypatch.setenv("TUNEFARM_HOME", str(tmp_path / "home"))
    assert app.run(["dashboard"]) == 2
    assert capsys.readouterr().err.endswith(
        "tunefarm: there are no records yet; `tunefarm tune MODEL` makes some\n"
    )
    assert app.run(["dashboard", "--db", farm.database, "--host", "0.0.0.0"]) == 2


def test_without_its_packages_the_command_says_what_to_install(
    farm: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tunefarm.cli import app

    monkeypatch.setitem(sys.modules, "fastapi", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "tunefarm.dashboard.actions", raising=False)
    assert app.run(["dashboard", "--db", farm.database]) == 2
    assert capsys.readouterr().err == (
        "tunefarm: the dashboard needs fastapi; pip install 'tunefarm[dashboard]'\n"
    )


def test_answers_do_not_wait_for_the_acknowledgement_of_their_headers() -> None:
    with listening(Address(port=0)) as place:
        assert place.proto == socket.IPPROTO_TCP  # what asyncio asks before it sends at once
